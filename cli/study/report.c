#include "cli/study/report.h"

#include <stdarg.h>
#include <stdint.h>

#include "base/file.h"
#include "base/output.h"
#include "base/parse.h"
#include "cli/command.h"

static const char style[] =
    ":root{color-scheme:light dark;--ink:#1c2430;--soft:#5b6675;--line:#d7dde5;--paper:#fff;--band:#f4f6f9;--link:#0b5cad}\n"
    "@media (prefers-color-scheme:dark){:root{--ink:#e4e8ee;--soft:#9aa6b5;--line:#39424e;--paper:#151a21;--band:#1d242d;--link:#7db7f0}}\n"
    "body{font:16px/1.55 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:62rem;margin:0 auto;padding:2rem 1.25rem 4rem}\n"
    "h1{font-size:1.8rem;line-height:1.2;margin:0 0 .3rem}h2{font-size:1.25rem;margin:2.6rem 0 .6rem;padding-top:.6rem;border-top:1px solid var(--line)}\n"
    ".subtitle{color:var(--soft);margin:0 0 1.5rem}nav{background:var(--band);border-radius:.5rem;padding:.8rem 1.2rem}nav ol{margin:0;padding-left:1.2rem;columns:2}\n"
    "a{color:var(--link)}figure{margin:1.4rem 0}figure img{max-width:100%;background:#fff;border:1px solid var(--line);border-radius:.4rem}\n"
    "figcaption,caption{color:var(--soft);font-size:.9rem;text-align:left;padding:.4rem 0}.scroll{overflow-x:auto;margin:1rem 0}\n"
    "table{border-collapse:collapse;font-size:.86rem;font-variant-numeric:tabular-nums}th,td{padding:.3rem .65rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}\n"
    "td.n,th.n{text-align:right;white-space:nowrap}thead th{border-bottom:2px solid var(--line)}tbody tr:nth-child(even){background:var(--band)}\n"
    ".verdict{font-weight:600;white-space:nowrap}.holds::before{content:'\\2714\\a0'}.fails::before{content:'\\2718\\a0'}.open::before{content:'?\\a0'}\n"
    ".holds{color:#1a7f4b}.fails{color:#b3261e}.open{color:var(--soft)}@media (prefers-color-scheme:dark){.holds{color:#5fd08f}.fails{color:#ff8a80}}\n"
    "footer{margin-top:3rem;color:var(--soft);font-size:.85rem}@media print{nav{display:none}body{max-width:none}}\n";

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

void tw_report_paragraph(struct tw_report *report, const char *format, ...) {
    struct tw_text text = {0};
    va_list args;
    va_start(args, format);
    tw_text_vprintf(&text, format, args);
    va_end(args);
    tw_text_append(&report->body, TW_VIEW("<p>"));
    append_html(&report->body, tw_text_view(&text));
    tw_text_append(&report->body, TW_VIEW("</p>\n"));
    tw_text_release(&text);
}

static void append_cell(struct tw_text *out, const struct tw_cell *cell) {
    switch (cell->type) {
    case TW_CELL_EMPTY: tw_text_append(out, TW_VIEW("<td class=\"n\"></td>")); return;
    case TW_CELL_TEXT:
        tw_text_append(out, TW_VIEW("<td>"));
        append_html(out, tw_view_of(cell->text));
        break;
    case TW_CELL_UINT: tw_text_printf(out, "<td class=\"n\">%llu", (unsigned long long)cell->u); break;
    case TW_CELL_INT: tw_text_printf(out, "<td class=\"n\">%lld", (long long)cell->i); break;
    case TW_CELL_DOUBLE: tw_text_printf(out, "<td class=\"n\">%.4g", cell->d); break;
    }
    tw_text_append(out, TW_VIEW("</td>"));
}

void tw_report_table(struct tw_report *report, const struct tw_table *table, const char *caption, size_t max_rows,
                     const char *csv) {
    struct tw_text *out = &report->body;
    tw_text_append(out, TW_VIEW("<div class=\"scroll\"><table><caption>"));
    append_html(out, tw_view_of(caption));
    if (table->n_rows > max_rows && csv) {
        struct tw_text note = {0};
        tw_text_printf(&note, " (the first %zu of %zu rows; %s has them all)", max_rows, table->n_rows, csv);
        append_html(out, tw_text_view(&note));
        tw_text_release(&note);
    }
    tw_text_append(out, TW_VIEW("</caption>\n<thead><tr>"));
    for (size_t c = 0; c < table->n_columns; c++) {
        const bool number = table->n_rows && tw_table_cell(table, 0, c)->type != TW_CELL_TEXT;
        tw_text_append(out, tw_view_of(number ? "<th class=\"n\">" : "<th>"));
        append_html(out, tw_view_of(table->columns[c]));
        tw_text_append(out, TW_VIEW("</th>"));
    }
    tw_text_append(out, TW_VIEW("</tr></thead>\n<tbody>\n"));
    for (size_t r = 0; r < table->n_rows && r < max_rows; r++) {
        tw_text_append(out, TW_VIEW("<tr>"));
        for (size_t c = 0; c < table->n_columns; c++) append_cell(out, tw_table_cell(table, r, c));
        tw_text_append(out, TW_VIEW("</tr>\n"));
    }
    tw_text_append(out, TW_VIEW("</tbody></table></div>\n"));
}

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
    tw_text_append(&report->body, TW_VIEW("<figure><img alt=\""));
    append_html(&report->body, tw_view_of(alt));
    tw_text_append(&report->body, TW_VIEW("\" src=\"data:image/svg+xml;base64,"));
    append_base64(&report->body, file.data, file.size);
    tw_text_append(&report->body, TW_VIEW("\">\n<figcaption>"));
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
                    [TW_VERDICT_OPEN] = {"open", "cannot be told at this size"}};
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
