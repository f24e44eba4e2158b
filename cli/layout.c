#include "cli/layout.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

#define INDENT 4 /* of the further lines of a sentence */
#define GAP    2 /* spaces between columns */

void tw_text_append_bytes(struct tw_text *text, double bytes) {
    const double magnitude = fabs(bytes);
    if (magnitude >= 0x1p30)
        tw_text_printf(text, "%.2f GiB", bytes / 0x1p30);
    else if (magnitude >= 0x1p20)
        tw_text_printf(text, "%.1f MiB", bytes / 0x1p20);
    else if (magnitude >= 0x1p10)
        tw_text_printf(text, "%.1f KiB", bytes / 0x1p10);
    else
        tw_text_printf(text, "%.0f B", bytes);
}

void tw_text_append_wrapped(struct tw_text *text, struct tw_view sentence, size_t width, const char *after) {
    size_t used = 0;
    while (sentence.size) {
        size_t n = 0; /* up to the next place for a break */
        while (n < sentence.size &&
               (sentence.data[n] != ' ' || (after && (n == 0 || !strchr(after, sentence.data[n - 1])))))
            n++;
        if (used && used + 1 + n > width) {
            tw_text_printf(text, "\n%*s", INDENT, "");
            used = INDENT;
        } else if (used) {
            tw_text_append_char(text, ' ');
            used++;
        }
        tw_text_append(text, (struct tw_view){sentence.data, n});
        used += n;
        n += n < sentence.size;
        sentence = (struct tw_view){sentence.data + n, sentence.size - n};
    }
    tw_text_append_char(text, '\n');
}

static void append_shown(struct tw_text *out, const struct tw_cell *cell, enum tw_shown shown, int digits) {
    double value;
    if (cell->type == TW_CELL_EMPTY) {
        tw_text_append_char(out, '-');
    } else if (shown == TW_SHOWN_AS_IS || !tw_cell_number(&value, cell)) {
        tw_text_append_cell(out, cell);
    } else {
        switch (shown) {
        case TW_SHOWN_CHANGE:
            if (value > 0) tw_text_append_char(out, '+');
            tw_text_append_bytes(out, value);
            break;
        case TW_SHOWN_BYTES: tw_text_append_bytes(out, value); break;
        case TW_SHOWN_SCIENTIFIC:
            if (value == 0)
                tw_text_append_char(out, '0');
            else
                tw_text_printf(out, "%.*e", digits, value);
            break;
        case TW_SHOWN_SECONDS: tw_text_printf(out, "%.*f s", digits, value); break;
        case TW_SHOWN_PERCENT: tw_text_printf(out, "%.*f %%", digits, 100 * value); break;
        case TW_SHOWN_FIXED:
        case TW_SHOWN_AS_IS: tw_text_printf(out, "%.*f", digits, value); break;
        }
    }
}

/* A column as it will be printed. */
struct shown_column {
    size_t column; /* of the table */
    const char *title, *heading;
    enum tw_shown shown;
    int digits;
    bool text; /* to the left */
    size_t width;
};

static struct shown_column prepare(const struct tw_table *table, size_t column, const struct tw_layout_column *as) {
    struct shown_column out = {.column = column, .title = as->title, .heading = as->heading, .shown = as->shown};
    out.digits = as->digits;
    out.width = strlen(as->heading);
    struct tw_text text = {0};
    for (size_t r = 0; r < table->n_rows; r++) {
        const struct tw_cell *cell = tw_table_cell(table, r, column);
        out.text = out.text || (r == 0 && cell->type == TW_CELL_TEXT);
        tw_text_clear(&text);
        append_shown(&text, cell, as->shown, as->digits);
        out.width = tw_max_size(out.width, text.size);
    }
    tw_text_release(&text);
    return out;
}

static bool worth_showing(const struct tw_table *table, size_t column, enum tw_shown shown) {
    double value;
    for (size_t r = 0; r < table->n_rows; r++) {
        const struct tw_cell *cell = tw_table_cell(table, r, column);
        if (cell->type == TW_CELL_EMPTY) continue;
        if (shown != TW_SHOWN_BYTES || !tw_cell_number(&value, cell) || value != 0) return true;
    }
    return false;
}

/* Whether all cells that are not empty are the same. `text` becomes the first of them. */
static bool same_throughout(struct tw_text *text, const struct tw_table *table, size_t column) {
    struct tw_text other = {0};
    bool same = true;
    tw_text_clear(text);
    for (size_t r = 0; same && r < table->n_rows; r++) {
        struct tw_text *into = text->size ? &other : text;
        tw_text_clear(into);
        tw_text_append_cell(into, tw_table_cell(table, r, column));
        same = into == text || other.size == 0 || strcmp(tw_text_string(text), tw_text_string(&other)) == 0;
    }
    tw_text_release(&other);
    return same;
}

/* Ends the line, without spaces at its end. */
static void end_line(struct tw_text *out) {
    while (out->size && out->data[out->size - 1] == ' ') out->data[--out->size] = 0;
    tw_text_append_char(out, '\n');
}

static void append_cell_of(struct tw_text *out, const struct tw_table *table, const struct shown_column *c, size_t row,
                           bool first) {
    struct tw_text text = {0};
    if (row == SIZE_MAX)
        tw_text_append(&text, tw_view_of(c->heading));
    else
        append_shown(&text, tw_table_cell(table, row, c->column), c->shown, c->digits);
    tw_text_printf(out, "%*s%*s", first ? 0 : GAP, "", (int)c->width * (c->text ? -1 : 1), tw_text_string(&text));
    tw_text_release(&text);
}

/* Columns [from, end) behind the keys; SIZE_MAX is the row of headings. */
static void write_block(struct tw_text *out, const struct tw_table *table, const struct shown_column *keys,
                        size_t n_keys, const struct shown_column *from, const struct shown_column *end) {
    for (size_t r = SIZE_MAX; r == SIZE_MAX || r < table->n_rows; r++) {
        for (size_t k = 0; k < n_keys; k++) append_cell_of(out, table, &keys[k], r, k == 0);
        for (const struct shown_column *c = from; c < end; c++)
            append_cell_of(out, table, c, r, c == from && n_keys == 0);
        end_line(out);
    }
}

static void write_remarks(struct tw_text *out, const struct tw_table *table, const struct shown_column *keys,
                          size_t n_keys, size_t column, size_t width) {
    bool any = false;
    struct tw_text text = {0};
    for (size_t r = 0; column != SIZE_MAX && r < table->n_rows; r++) {
        const struct tw_cell *cell = tw_table_cell(table, r, column);
        if (cell->type == TW_CELL_EMPTY) continue;
        if (!any) tw_text_append_char(out, '\n');
        any = true;
        tw_text_clear(&text);
        for (size_t k = 0; k < n_keys; k++) {
            if (k) tw_text_printf(&text, ", %s ", keys[k].heading);
            append_shown(&text, tw_table_cell(table, r, keys[k].column), keys[k].shown, keys[k].digits);
        }
        tw_text_append(&text, TW_VIEW(": "));
        tw_text_append_cell(&text, cell);
        tw_text_append_wrapped(out, tw_text_view(&text), width, NULL);
    }
    tw_text_release(&text);
}

/* The keys that tell rows apart (the first, when none does); the others go into a line of their own. */
static size_t write_common(struct tw_text *out, struct shown_column *keys, const struct tw_table *table,
                           const struct tw_layout *layout, size_t width) {
    struct tw_text text = {0}, line = {0};
    const char *separator = layout->subject ? ": " : "";
    size_t n = 0, varied = 0;
    if (layout->subject) tw_text_append(&line, tw_view_of(layout->subject));
    for (size_t k = 0; k < layout->n_keys; k++)
        varied += !same_throughout(&text, table, tw_table_column(table, layout->keys[k]));
    for (size_t k = 0; k < layout->n_keys; k++) {
        const size_t column = tw_table_column(table, layout->keys[k]);
        assert(column != SIZE_MAX);
        if (!same_throughout(&text, table, column) || (varied == 0 && k == 0))
            keys[n++] = prepare(table, column, &(struct tw_layout_column){.heading = layout->keys[k]});
        else if (text.size)
            tw_text_printf(&line, "%s%s %s", separator, layout->keys[k], tw_text_string(&text)), separator = ", ";
    }
    if (line.size) tw_text_append_wrapped(out, tw_text_view(&line), width, ",:");
    tw_text_release(&line);
    tw_text_release(&text);
    return n;
}

void tw_layout_write(struct tw_text *out, const struct tw_table *table, const struct tw_layout *layout, size_t width) {
    size_t n_columns = 0, n = 0;
    while (layout->columns[n_columns].name) n_columns++;
    struct shown_column *keys = calloc(layout->n_keys + n_columns + 1, sizeof *keys);
    if (!keys) {
        out->failed = true;
        return;
    }
    struct shown_column *columns = keys + layout->n_keys;
    const size_t n_keys = write_common(out, keys, table, layout, width);
    const char *title = NULL; /* of a block whose first columns are left out */
    for (size_t i = 0; i < n_columns; i++) {
        const size_t column = tw_table_column(table, layout->columns[i].name);
        if (layout->columns[i].title) title = layout->columns[i].title;
        if (column == SIZE_MAX || !worth_showing(table, column, layout->columns[i].shown)) continue;
        columns[n] = prepare(table, column, &layout->columns[i]);
        columns[n++].title = title;
        title = NULL;
    }
    size_t keys_width = 0;
    for (size_t k = 0; k < n_keys; k++) keys_width += keys[k].width + GAP;
    for (size_t i = 0, end; i < n; i = end) {
        size_t used = keys_width + columns[i].width;
        for (end = i + 1; end < n && !columns[end].title && used + GAP + columns[end].width <= width; end++)
            used += GAP + columns[end].width;
        if (out->size) tw_text_append_char(out, '\n');
        if (columns[i].title) tw_text_printf(out, "%s\n", columns[i].title);
        write_block(out, table, keys, n_keys, columns + i, columns + end);
    }
    write_remarks(out, table, keys, n_keys, layout->remark ? tw_table_column(table, layout->remark) : SIZE_MAX, width);
    free(keys);
}
