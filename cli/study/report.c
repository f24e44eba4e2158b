#include "cli/study/report.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/output.h"
#include "base/parse.h"
#include "cli/command.h"

static const char style[] =
    ":root{color-scheme:light dark;--ink:#1c2430;--soft:#5b6675;--line:#d7dde5;--paper:#fff;--band:#f4f6f9;--link:#0b5cad}\n"
    "@media (prefers-color-scheme:dark){:root{--ink:#e4e8ee;--soft:#9aa6b5;--line:#39424e;--paper:#151a21;--band:#1d242d;--link:#7db7f0}}\n"
    "html{-webkit-text-size-adjust:100%;text-size-adjust:100%}body{font:16px/1.55 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:64rem;margin:0 auto;padding:2rem 1.25rem 4rem}\n"
    "h1{font-size:1.8rem;line-height:1.2;margin:0 0 .3rem}h2{font-size:1.25rem;margin:2.6rem 0 .6rem;padding-top:.6rem;border-top:1px solid var(--line)}\n"
    ".subtitle{color:var(--soft);margin:0 0 1.5rem}nav{background:var(--band);border-radius:.5rem;padding:.8rem 1.2rem}nav ol{margin:0;padding-left:1.2rem;columns:2 16rem}\n"
    "a{color:var(--link)}figure{margin:1.8rem 0}figure div{overflow-x:auto}figure img{max-width:100%;min-width:38rem;background:#fff;border:1px solid var(--line);border-radius:.4rem}\n"
    "figcaption,.caption,.note{color:var(--soft);font-size:.9rem;margin:.4rem 0}.caption b{color:var(--ink)}.note{max-width:52rem}\n"
    ".scroll{overflow-x:auto;margin:.3rem 0 1rem}.caption{margin-top:1.4rem}\n"
    "table{border-collapse:collapse;font-size:.86rem;font-variant-numeric:tabular-nums}th,td{padding:.3rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}\n"
    "th{vertical-align:bottom}td.n,th.n{text-align:right}td.n,td.s{white-space:nowrap}td.long{min-width:16rem}\n"
    "thead th{border-bottom:2px solid var(--line)}tbody tr:nth-child(even){background:var(--band)}\n"
    ".verdict{font-weight:600}.holds::before{content:'\\2714\\a0'}.fails::before{content:'\\2718\\a0'}.open::before{content:'?\\a0'}.none::before{content:'\\2013\\a0'}\n"
    ".holds{color:#1a7f4b}.fails{color:#b3261e}.open,.none{color:var(--soft)}@media (prefers-color-scheme:dark){.holds{color:#5fd08f}.fails{color:#ff8a80}}\n"
    "details{margin:1rem 0}summary{cursor:pointer;color:var(--link)}footer{margin-top:3rem;color:var(--soft);font-size:.85rem}\n"
    "@media print{nav{display:none}body{max-width:none;font-size:12px}.scroll{overflow:visible}figure,tr{break-inside:avoid}}\n";

void tw_report_release(struct tw_report *report) {
    tw_text_release(&report->head);
    tw_text_release(&report->body);
    *report = (struct tw_report){0};
}

static void append_html(struct tw_text *out, struct tw_view text) {
    struct tw_text clean = {0};
    tw_text_append_utf8_repaired(&clean, text, false);
    for (size_t i = 0; i < clean.size; i++) switch (clean.data[i]) {
        case '<': tw_text_append(out, TW_VIEW("&lt;")); break;
        case '>': tw_text_append(out, TW_VIEW("&gt;")); break;
        case '&': tw_text_append(out, TW_VIEW("&amp;")); break;
        case '"': tw_text_append(out, TW_VIEW("&quot;")); break;
        default: tw_text_append_char(out, clean.data[i]);
        }
    tw_text_release(&clean);
}

void tw_report_section(struct tw_report *report, const char *title) {
    report->n_sections++;
    tw_text_printf(&report->head, "<li><a href=\"#s%zu\">", report->n_sections);
    append_html(&report->head, tw_view_of(title));
    tw_text_append(&report->head, TW_VIEW("</a></li>\n"));
    tw_text_printf(&report->body, "<h2 id=\"s%zu\">", report->n_sections);
    append_html(&report->body, tw_view_of(title));
    tw_text_append(&report->body, TW_VIEW("</h2>\n"));
}

static void append_paragraph(struct tw_report *report, const char *opening, const char *format, va_list args) {
    struct tw_text text = {0};
    tw_text_vprintf(&text, format, args);
    tw_text_append(&report->body, tw_view_of(opening));
    append_html(&report->body, tw_text_view(&text));
    tw_text_append(&report->body, TW_VIEW("</p>\n"));
    tw_text_release(&text);
}

void tw_report_paragraph(struct tw_report *report, const char *format, ...) {
    va_list args;
    va_start(args, format);
    append_paragraph(report, "<p>", format, args);
    va_end(args);
}

void tw_report_note(struct tw_report *report, const char *format, ...) {
    va_list args;
    va_start(args, format);
    append_paragraph(report, "<p class=\"note\">", format, args);
    va_end(args);
}

void tw_report_fold(struct tw_report *report, const char *title) {
    tw_text_append(&report->body, TW_VIEW("<details><summary>"));
    append_html(&report->body, tw_view_of(title));
    tw_text_append(&report->body, TW_VIEW("</summary>\n"));
}

void tw_report_fold_end(struct tw_report *report) { tw_text_append(&report->body, TW_VIEW("</details>\n")); }

/* ---- tables ---- */

enum { LONGEST_TEXT = 160, LONG_TEXT = 28 }; /* bytes of a cell: cut beyond the one, on one line below the other */

/* A column as it is shown. */
struct column {
    size_t at; /* in the table */
    bool constant, number;
    int decimals; /* of doubles */
};

static bool equal_cells(const struct tw_cell *a, const struct tw_cell *b) {
    if (a->type != b->type) return false;
    switch (a->type) {
    case TW_CELL_EMPTY: return true;
    case TW_CELL_TEXT: return strcmp(a->text, b->text) == 0;
    case TW_CELL_UINT: return a->u == b->u;
    case TW_CELL_INT: return a->i == b->i;
    case TW_CELL_DOUBLE: return a->d == b->d;
    }
    return false;
}

/* About four significant digits of the largest value, and as many decimals for all others. */
static int decimals_of(double largest) {
    if (!(largest > 0)) return 0;
    const int before = (int)floor(log10(largest)) + 1; /* digits before the point; 0 or less below 1 */
    return before >= 4 ? 0 : before >= 1 ? 4 - before : before >= -1 ? 3 - before : 6;
}

static struct column look_at(const struct tw_table *table, size_t at) {
    struct column column = {.at = at, .constant = table->n_rows > 1, .number = table->n_rows > 0};
    double largest = 0;
    for (size_t r = 0; r < table->n_rows; r++) {
        const struct tw_cell *const cell = tw_table_cell(table, r, at);
        column.constant = column.constant && equal_cells(cell, tw_table_cell(table, 0, at));
        column.number = column.number && cell->type != TW_CELL_TEXT;
        if (cell->type == TW_CELL_DOUBLE) largest = fmax(largest, fabs(cell->d));
    }
    column.decimals = decimals_of(largest);
    return column;
}

static void append_value(struct tw_text *out, const struct tw_cell *cell, int decimals) {
    switch (cell->type) {
    case TW_CELL_EMPTY: tw_text_append(out, TW_VIEW("\u2013")); return;
    case TW_CELL_TEXT: {
        size_t n = strlen(cell->text);
        const bool cut = n > LONGEST_TEXT;
        if (cut)
            for (n = LONGEST_TEXT; n && ((unsigned char)cell->text[n] & 0xc0) == 0x80;)
                n--; /* not inside a character */
        append_html(out, (struct tw_view){cell->text, n});
        if (cut) tw_text_append(out, TW_VIEW(" \u2026"));
        return;
    }
    case TW_CELL_UINT: tw_text_printf(out, "%llu", (unsigned long long)cell->u); return;
    case TW_CELL_INT: tw_text_printf(out, "%lld", (long long)cell->i); return;
    case TW_CELL_DOUBLE: tw_text_printf(out, "%.*f", decimals, cell->d); return;
    }
}

static void append_cell(struct tw_text *out, const struct tw_cell *cell, const struct column *column) {
    const size_t length = cell->type == TW_CELL_TEXT ? strlen(cell->text) : 0;
    tw_text_printf(out, "<td class=\"%s\">", column->number ? "n" : length > LONG_TEXT ? "long" : "s");
    append_value(out, cell, column->decimals);
    tw_text_append(out, TW_VIEW("</td>"));
}

/* A name may be broken behind its underscores. */
static void append_name(struct tw_text *out, const char *name) {
    for (const char *c = name; *c; c++) {
        append_html(out, (struct tw_view){c, 1});
        if (*c == '_') tw_text_append(out, TW_VIEW("<wbr>"));
    }
}

static size_t choose_columns(struct column *columns, const struct tw_table *table, const char *names, size_t n_keys) {
    size_t n = 0;
    if (!names)
        for (; n < table->n_columns; n++) columns[n] = look_at(table, n);
    struct tw_view name, rest = tw_view_of(names ? names : "");
    while (names && n < table->n_columns && tw_parse_next(&name, &rest, ','))
        for (size_t c = 0; c < table->n_columns; c++)
            if (tw_view_equal(name, tw_view_of(table->columns[c]))) {
                columns[n++] = look_at(table, c);
                break;
            }
    for (size_t c = n_keys; n_keys && c < n; c++) columns[c].constant = false;
    size_t varying = 0;
    for (size_t c = 0; c < n; c++) varying += !columns[c].constant;
    for (size_t c = 0; c < n; c++) columns[c].constant = columns[c].constant && varying;
    return n;
}

static void append_caption(struct tw_text *out, const struct tw_table *table, const struct column *columns, size_t n,
                           const struct tw_report_listing *listing) {
    const char *before = " In every row: ";
    tw_text_append(out, TW_VIEW("<p class=\"caption\"><b>"));
    append_html(out, tw_view_of(listing->caption));
    tw_text_append(out, TW_VIEW("</b>."));
    for (size_t c = 0; c < n; c++) {
        if (!columns[c].constant) continue;
        tw_text_printf(out, "%s%s ", before, table->columns[columns[c].at]);
        append_value(out, tw_table_cell(table, 0, columns[c].at), columns[c].decimals);
        before = ", ";
    }
    tw_text_append(out, tw_view_of(before[0] == ',' ? "." : ""));
    const bool cut = listing->max_rows && table->n_rows > listing->max_rows;
    if (cut) tw_text_printf(out, " The first %zu of %zu rows.", listing->max_rows, table->n_rows);
    if (listing->csv) {
        tw_text_append(out, TW_VIEW(" All of it: "));
        append_html(out, tw_view_of(listing->csv));
        tw_text_append_char(out, '.');
    }
    tw_text_append(out, TW_VIEW("</p>\n"));
}

void tw_report_table(struct tw_report *report, const struct tw_table *table, const struct tw_report_listing *listing) {
    struct tw_text *out = &report->body;
    struct column *const columns = calloc(table->n_columns + 1, sizeof *columns);
    if (!columns) {
        out->failed = true;
        return;
    }
    const size_t n = choose_columns(columns, table, listing->columns, listing->n_keys);
    append_caption(out, table, columns, n, listing);
    tw_text_append(out, TW_VIEW("<div class=\"scroll\"><table>\n<thead><tr>"));
    for (size_t c = 0; c < n; c++) {
        if (columns[c].constant) continue;
        tw_text_append(out, tw_view_of(columns[c].number ? "<th class=\"n\">" : "<th>"));
        append_name(out, table->columns[columns[c].at]);
        tw_text_append(out, TW_VIEW("</th>"));
    }
    tw_text_append(out, TW_VIEW("</tr></thead>\n<tbody>\n"));
    for (size_t r = 0; r < table->n_rows && (!listing->max_rows || r < listing->max_rows); r++) {
        tw_text_append(out, TW_VIEW("<tr>"));
        for (size_t c = 0; c < n; c++)
            if (!columns[c].constant) append_cell(out, tw_table_cell(table, r, columns[c].at), &columns[c]);
        tw_text_append(out, TW_VIEW("</tr>\n"));
    }
    tw_text_append(out, TW_VIEW("</tbody></table></div>\n"));
    free(columns);
}

/* ---- figures and claims ---- */

static void append_base64(struct tw_text *out, const uint8_t *data, size_t size) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < size; i += 3) {
        const size_t n = size - i < 3 ? size - i : 3;
        const uint32_t bits =
            (uint32_t)data[i] << 16 | (uint32_t)(n > 1 ? data[i + 1] : 0) << 8 | (n > 2 ? data[i + 2] : 0);
        const char four[4] = {digits[bits >> 18], digits[bits >> 12 & 63], n > 1 ? digits[bits >> 6 & 63] : '=',
                              n > 2 ? digits[bits & 63] : '='};
        tw_text_append(out, (struct tw_view){four, 4});
    }
}

tw_status tw_report_figure(struct tw_report *report, const char *svg_path, const char *caption, const char *alt,
                           struct tw_error *err) {
    struct tw_file file;
    TW_TRY(tw_file_map(&file, svg_path, "figure", err));
    tw_text_append(&report->body, TW_VIEW("<figure><div><img alt=\""));
    append_html(&report->body, tw_view_of(alt));
    tw_text_append(&report->body, TW_VIEW("\" src=\"data:image/svg+xml;base64,"));
    append_base64(&report->body, file.data, file.size);
    tw_text_append(&report->body, TW_VIEW("\"></div>\n<figcaption>"));
    append_html(&report->body, tw_view_of(caption));
    tw_text_append(&report->body, TW_VIEW("</figcaption></figure>\n"));
    tw_file_unmap(&file);
    return TW_OK;
}

void tw_report_claim(struct tw_report *report, enum tw_verdict verdict, const char *claim, const char *published,
                     const char *measured) {
    static const struct {
        const char *class, *words;
    } verdicts[] = {[TW_VERDICT_HOLDS] = {"holds", "holds here"},
                    [TW_VERDICT_FAILS] = {"fails", "does not hold here"},
                    [TW_VERDICT_OPEN] = {"open", "cannot be told at this size"},
                    [TW_VERDICT_NOT_RUN] = {"none", "not part of this study"}};
    static const char end[] = "</tbody></table></div>\n<!--claims-->\n";
    struct tw_text *out = &report->body;
    /* A claim right after a claim goes on with its table. */
    if (out->size >= sizeof end - 1 && memcmp(out->data + out->size - (sizeof end - 1), end, sizeof end - 1) == 0)
        out->size -= sizeof end - 1;
    else
        tw_text_append(out,
                       TW_VIEW("<div class=\"scroll\"><table>\n<thead><tr><th>Claim</th><th>Published</th><th>Measured "
                               "here</th><th>Verdict</th></tr></thead>\n<tbody>\n"));
    tw_text_append(out, TW_VIEW("<tr><td>"));
    append_html(out, tw_view_of(claim));
    tw_text_append(out, TW_VIEW("</td><td>"));
    append_html(out, tw_view_of(published));
    tw_text_append(out, TW_VIEW("</td><td>"));
    append_html(out, tw_view_of(measured));
    tw_text_printf(out, "</td><td class=\"verdict %s\">%s</td></tr>\n%s", verdicts[verdict].class,
                   verdicts[verdict].words, end);
}

tw_status tw_report_write(struct tw_report *report, const char *path, const char *title, const char *subtitle,
                          struct tw_error *err) {
    struct tw_text page = {0};
    tw_text_append(
        &page, TW_VIEW("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
                       "content=\"width=device-width, initial-scale=1\">\n<title>"));
    append_html(&page, tw_view_of(title));
    tw_text_append(&page, TW_VIEW("</title>\n<style>\n"));
    tw_text_append(&page, tw_view_of(style));
    tw_text_append(&page, TW_VIEW("</style>\n</head>\n<body>\n<h1>"));
    append_html(&page, tw_view_of(title));
    tw_text_append(&page, TW_VIEW("</h1>\n<p class=\"subtitle\">"));
    append_html(&page, tw_view_of(subtitle));
    tw_text_append(&page, TW_VIEW("</p>\n<nav><ol>\n"));
    tw_text_append(&page, tw_text_view(&report->head));
    tw_text_append(&page, TW_VIEW("</ol></nav>\n"));
    tw_text_append(&page, tw_text_view(&report->body));
    tw_text_printf(&page, "<footer>Made by tidewake %s.</footer>\n</body>\n</html>\n", tw_version);
    tw_status status = TW_OK;
    if (!tw_text_ok(&page) || !tw_text_ok(&report->body) || !tw_text_ok(&report->head))
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory for the report '%s'", path);
    else
        status = tw_output_write(path, tw_text_view(&page), err);
    tw_text_release(&page);
    return status;
}
