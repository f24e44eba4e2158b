#include "base/table.h"

#include <assert.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/parse.h"

void tw_table_init(struct tw_table *table, const char *const *columns, size_t n_columns) {
    *table = (struct tw_table){0};
    for (size_t i = 0; i < n_columns; i++) tw_table_add_column(table, columns[i]);
}

void tw_table_release(struct tw_table *table) {
    for (size_t i = 0; i < table->n_rows * table->n_columns; i++)
        if (table->cells[i].type == TW_CELL_TEXT) free(table->cells[i].text);
    for (size_t i = 0; i < table->n_columns; i++) free(table->columns[i]);
    free(table->columns);
    free(table->cells);
    tw_text_release(&table->metadata);
    *table = (struct tw_table){0};
}

void tw_table_add_column(struct tw_table *table, const char *name) {
    assert(table->n_rows == 0);
    char **columns = realloc(table->columns, (table->n_columns + 1) * sizeof *columns);
    if (columns) table->columns = columns;
    char *copy = strdup(name);
    if (!columns || !copy) {
        free(copy);
        table->failed = true;
        return;
    }
    columns[table->n_columns++] = copy;
    table->at = table->n_columns;
}

void tw_table_begin_row(struct tw_table *table) {
    assert(table->at == table->n_columns || table->failed);
    if (table->failed) return;
    if (table->n_rows == table->capacity) {
        const size_t capacity = table->capacity ? table->capacity * 2 : 16;
        struct tw_cell *cells = realloc(table->cells, capacity * table->n_columns * sizeof *cells);
        if (!cells) {
            table->failed = true;
            return;
        }
        table->cells = cells;
        table->capacity = capacity;
    }
    for (size_t i = 0; i < table->n_columns; i++)
        table->cells[table->n_rows * table->n_columns + i] = (struct tw_cell){.type = TW_CELL_EMPTY};
    table->n_rows++;
    table->at = 0;
}

static void put(struct tw_table *table, struct tw_cell cell) {
    if (table->failed) {
        if (cell.type == TW_CELL_TEXT) free(cell.text);
        return;
    }
    assert(table->at < table->n_columns);
    table->cells[(table->n_rows - 1) * table->n_columns + table->at++] = cell;
}

void tw_table_put_text(struct tw_table *table, const char *text) {
    char *copy = strdup(text);
    if (!copy) table->failed = true;
    put(table, (struct tw_cell){.type = TW_CELL_TEXT, .text = copy});
}
void tw_table_put_uint(struct tw_table *table, uint64_t value) {
    put(table, (struct tw_cell){.type = TW_CELL_UINT, .u = value});
}
void tw_table_put_int(struct tw_table *table, int64_t value) {
    put(table, (struct tw_cell){.type = TW_CELL_INT, .i = value});
}
void tw_table_put_double(struct tw_table *table, double value) {
    put(table,
        isnan(value) ? (struct tw_cell){.type = TW_CELL_EMPTY} : (struct tw_cell){.type = TW_CELL_DOUBLE, .d = value});
}
void tw_table_put_empty(struct tw_table *table) { put(table, (struct tw_cell){.type = TW_CELL_EMPTY}); }

void tw_table_put_copy(struct tw_table *table, const struct tw_cell *cell) {
    switch (cell->type) {
    case TW_CELL_EMPTY: tw_table_put_empty(table); return;
    case TW_CELL_TEXT: tw_table_put_text(table, cell->text); return;
    case TW_CELL_UINT: tw_table_put_uint(table, cell->u); return;
    case TW_CELL_INT: tw_table_put_int(table, cell->i); return;
    case TW_CELL_DOUBLE: tw_table_put_double(table, cell->d); return;
    }
}

void tw_table_set_metadata(struct tw_table *table, const char *name, const char *value) {
    tw_text_append_json(&table->metadata, tw_view_of(name));
    tw_text_append(&table->metadata, TW_VIEW(": "));
    tw_text_append_json(&table->metadata, tw_view_of(value));
    tw_text_append(&table->metadata, TW_VIEW(",\n  "));
}

const struct tw_cell *tw_table_cell(const struct tw_table *table, size_t row, size_t column) {
    assert(row < table->n_rows && column < table->n_columns);
    return &table->cells[row * table->n_columns + column];
}

size_t tw_table_column(const struct tw_table *table, const char *name) {
    for (size_t i = 0; i < table->n_columns; i++)
        if (strcmp(table->columns[i], name) == 0) return i;
    return SIZE_MAX;
}

bool tw_cell_number(double *value, const struct tw_cell *cell) {
    switch (cell->type) {
    case TW_CELL_UINT: *value = (double)cell->u; return true;
    case TW_CELL_INT: *value = (double)cell->i; return true;
    case TW_CELL_DOUBLE: *value = cell->d; return true;
    case TW_CELL_TEXT:
    case TW_CELL_EMPTY: break;
    }
    return false;
}

void tw_text_append_double(struct tw_text *text, double value) {
    char buffer[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(buffer, sizeof buffer, "%.*g", digits, value);
        if (strtod(buffer, NULL) == value) break;
    }
    const char point = *localeconv()->decimal_point;
    if (point != '.')
        for (char *c = buffer; *c; c++)
            if (*c == point) *c = '.';
    tw_text_append(text, tw_view_of(buffer));
}

void tw_text_append_cell(struct tw_text *out, const struct tw_cell *cell) {
    switch (cell->type) {
    case TW_CELL_EMPTY: break;
    case TW_CELL_TEXT: tw_text_append(out, tw_view_of(cell->text)); break;
    case TW_CELL_UINT: tw_text_printf(out, "%llu", (unsigned long long)cell->u); break;
    case TW_CELL_INT: tw_text_printf(out, "%lld", (long long)cell->i); break;
    case TW_CELL_DOUBLE: tw_text_append_double(out, cell->d); break;
    }
}

static void append_csv(struct tw_text *out, const char *text) {
    if (!strpbrk(text, ",\"\r\n")) {
        tw_text_append(out, tw_view_of(text));
        return;
    }
    tw_text_append_char(out, '"');
    for (; *text; text++) {
        if (*text == '"') tw_text_append_char(out, '"');
        tw_text_append_char(out, *text);
    }
    tw_text_append_char(out, '"');
}

static void write_csv(struct tw_text *out, const struct tw_table *table) {
    for (size_t c = 0; c < table->n_columns; c++) {
        if (c) tw_text_append_char(out, ',');
        append_csv(out, table->columns[c]);
    }
    tw_text_append_char(out, '\n');
    for (size_t r = 0; r < table->n_rows; r++) {
        for (size_t c = 0; c < table->n_columns; c++) {
            const struct tw_cell *cell = tw_table_cell(table, r, c);
            if (c) tw_text_append_char(out, ',');
            if (cell->type == TW_CELL_TEXT)
                append_csv(out, cell->text);
            else
                tw_text_append_cell(out, cell);
        }
        tw_text_append_char(out, '\n');
    }
}

static void write_json(struct tw_text *out, const struct tw_table *table) {
    tw_text_append(out, TW_VIEW("{\n  "));
    tw_text_append(out, tw_text_view(&table->metadata));
    tw_text_append(out, TW_VIEW("\"rows\": ["));
    for (size_t r = 0; r < table->n_rows; r++) {
        tw_text_append(out, tw_view_of(r ? ",\n    {" : "\n    {"));
        for (size_t c = 0; c < table->n_columns; c++) {
            const struct tw_cell *cell = tw_table_cell(table, r, c);
            if (c) tw_text_append(out, TW_VIEW(", "));
            tw_text_append_json(out, tw_view_of(table->columns[c]));
            tw_text_append(out, TW_VIEW(": "));
            if (cell->type == TW_CELL_TEXT)
                tw_text_append_json(out, tw_view_of(cell->text));
            else if (cell->type == TW_CELL_EMPTY || (cell->type == TW_CELL_DOUBLE && !isfinite(cell->d)))
                tw_text_append(out, TW_VIEW("null"));
            else
                tw_text_append_cell(out, cell);
        }
        tw_text_append_char(out, '}');
    }
    tw_text_append(out, tw_view_of(table->n_rows ? "\n  ]\n}\n" : "]\n}\n"));
}

/* ---- for reading: aligned columns ---- */

/* Beyond this width names of columns are broken behind underscores, over as many lines as that takes. */
enum { WIDE = 100 };

/* The part of a column's name on its next line: up to the last underscore that fits into `width`, or all of it. Parts
 * longer than the width, which the width was made for, cannot be there. */
static size_t name_part(const char *name, size_t width) {
    const size_t length = strlen(name);
    if (length <= width) return length;
    size_t n = 0;
    for (size_t i = 0; i < width; i++)
        if (name[i] == '_') n = i + 1;
    return n ? n : length;
}

/* The longest part of a name that cannot be broken, its underscore included. */
static size_t longest_part(const char *name) {
    size_t longest = 0;
    for (const char *c = name; *c;) {
        const char *const end = strchr(c, '_');
        const size_t n = end ? (size_t)(end - c) + 1 : strlen(c);
        longest = n > longest ? n : longest;
        c += n;
    }
    return longest;
}

static size_t count_parts(const char *name, size_t width) {
    size_t n = 0;
    for (; *name; name += name_part(name, width)) n++;
    return n;
}

/* The names, the last line of each at the bottom. */
static void write_names(struct tw_text *out, const struct tw_table *table, const size_t *width) {
    size_t lines = 1;
    for (size_t c = 0; c < table->n_columns; c++) {
        const size_t parts = count_parts(table->columns[c], width[c]);
        lines = parts > lines ? parts : lines;
    }
    for (size_t line = lines; line-- > 0;) {
        for (size_t c = 0; c < table->n_columns; c++) {
            const bool number = table->n_rows && tw_table_cell(table, 0, c)->type != TW_CELL_TEXT;
            const size_t parts = count_parts(table->columns[c], width[c]);
            const char *name = table->columns[c];
            for (size_t skip = line < parts ? parts - 1 - line : 0; skip; skip--) name += name_part(name, width[c]);
            const size_t n = line < parts ? name_part(name, width[c]) : 0;
            const size_t blank = width[c] - n;
            tw_text_printf(out, "%s%*s%.*s%*s", c ? "  " : "", number ? (int)blank : 0, "", (int)n, name,
                           number ? 0 : (int)blank, "");
        }
        if (line) tw_text_append_char(out, '\n');
    }
}

/* Columns as wide as their widest cell (in bytes), numbers to the right, doubles with six digits for reading. */
static void write_plain(struct tw_text *out, const struct tw_table *table) {
    struct tw_text *texts = calloc(table->n_rows * table->n_columns + 1, sizeof *texts);
    size_t *width = calloc(table->n_columns + 1, sizeof *width);
    if (!texts || !width) {
        out->failed = true;
    } else {
        for (size_t r = 0; r < table->n_rows; r++)
            for (size_t c = 0; c < table->n_columns; c++) {
                const struct tw_cell *cell = tw_table_cell(table, r, c);
                struct tw_text *text = &texts[r * table->n_columns + c];
                if (cell->type == TW_CELL_DOUBLE)
                    tw_text_printf(text, "%.6g", cell->d);
                else
                    tw_text_append_cell(text, cell);
                width[c] = text->size > width[c] ? text->size : width[c];
            }
        size_t whole = 0;
        for (size_t c = 0; c < table->n_columns; c++) {
            const size_t name = strlen(table->columns[c]);
            whole += 2 + (name > width[c] ? name : width[c]);
        }
        for (size_t c = 0; c < table->n_columns; c++) {
            const size_t name = (whole > WIDE ? longest_part : strlen)(table->columns[c]);
            width[c] = name > width[c] ? name : width[c];
        }
        write_names(out, table, width);
        for (size_t r = 0; r < table->n_rows; r++) {
            tw_text_append_char(out, '\n');
            for (size_t c = 0; c < table->n_columns; c++) {
                const bool number = tw_table_cell(table, r, c)->type != TW_CELL_TEXT;
                tw_text_printf(out, "%s%*s", c ? "  " : "", (int)width[c] * (number ? 1 : -1),
                               tw_text_string(&texts[r * table->n_columns + c]));
            }
        }
        tw_text_append_char(out, '\n');
    }
    for (size_t i = 0; texts && i < table->n_rows * table->n_columns; i++) tw_text_release(&texts[i]);
    free(texts);
    free(width);
}

tw_status tw_table_write(struct tw_text *out, const struct tw_table *table, enum tw_table_format format,
                         struct tw_error *err) {
    assert(table->at == table->n_columns || table->failed);
    static void (*const writers[])(struct tw_text *, const struct tw_table *) = {
        [TW_TABLE_PLAIN] = write_plain, [TW_TABLE_CSV] = write_csv, [TW_TABLE_JSON] = write_json};
    if (!table->failed) writers[format](out, table);
    if (table->failed || !tw_text_ok(out)) return TW_FAIL(err, TW_E_MEMORY, "out of memory while writing a table");
    return TW_OK;
}

/* One field; moves *at behind it and its separator. Returns false on a broken quotation. `ended` is the line's end. */
static bool read_field(struct tw_text *field, bool *quoted, bool *ended, struct tw_view csv, size_t *at) {
    tw_text_clear(field);
    *quoted = *at < csv.size && csv.data[*at] == '"';
    size_t i = *at;
    if (*quoted) {
        for (i++;; i++) {
            if (i >= csv.size) return false;
            if (csv.data[i] != '"') {
                tw_text_append_char(field, csv.data[i]);
            } else if (i + 1 < csv.size && csv.data[i + 1] == '"') {
                tw_text_append_char(field, '"');
                i++;
            } else {
                break;
            }
        }
        i++;
        if (i < csv.size && csv.data[i] != ',' && csv.data[i] != '\n' && csv.data[i] != '\r') return false;
    } else {
        const size_t start = i;
        while (i < csv.size && csv.data[i] != ',' && csv.data[i] != '\n' && csv.data[i] != '\r') i++;
        tw_text_append(field, (struct tw_view){csv.data + start, i - start});
    }
    *ended = i >= csv.size || csv.data[i] != ',';
    if (i < csv.size && csv.data[i] == '\r') i++;
    if (i < csv.size && (csv.data[i] == ',' || csv.data[i] == '\n')) i++;
    *at = i;
    return true;
}

static void put_parsed(struct tw_table *table, const struct tw_text *field, bool quoted) {
    uint64_t u;
    int64_t i;
    double d;
    const struct tw_view view = tw_text_view(field);
    if (view.size == 0)
        tw_table_put_empty(table);
    else if (!quoted && tw_parse_u64(&u, view))
        tw_table_put_uint(table, u);
    else if (!quoted && tw_parse_i64(&i, view))
        tw_table_put_int(table, i);
    else if (!quoted && tw_parse_double(&d, view))
        tw_table_put_double(table, d);
    else
        tw_table_put_text(table, tw_text_string(field));
}

tw_status tw_table_read_csv(struct tw_table *table, struct tw_view csv, const char *name, struct tw_error *err) {
    tw_table_init(table, NULL, 0);
    struct tw_text field = {0};
    tw_status status = TW_OK;
    size_t at = 0, line = 1;
    bool quoted, ended = false;
    if (tw_view_starts_with(csv, TW_VIEW("\xef\xbb\xbf"))) at = 3; /* a byte order mark, as spreadsheets write */
    if (at >= csv.size) status = TW_FAIL(err, TW_E_INPUT, "table '%s' is empty, expected a header line", name);
    while (status == TW_OK && !ended) {
        if (!read_field(&field, &quoted, &ended, csv, &at))
            status = TW_FAIL(err, TW_E_INPUT, "table '%s', line 1: a quotation does not end", name);
        else if (tw_table_column(table, tw_text_string(&field)) != SIZE_MAX)
            status = TW_FAIL(err, TW_E_INPUT, "table '%s' has column '%s' twice", name, tw_text_string(&field));
        else
            tw_table_add_column(table, tw_text_string(&field));
    }
    while (status == TW_OK && at < csv.size) {
        line++;
        if (csv.data[at] == '\n' || csv.data[at] == '\r') { /* an empty line */
            at++;
            continue;
        }
        tw_table_begin_row(table);
        size_t n = 0;
        ended = false;
        while (status == TW_OK && !ended) {
            if (!read_field(&field, &quoted, &ended, csv, &at))
                status = TW_FAIL(err, TW_E_INPUT, "table '%s', line %zu: a quotation does not end", name, line);
            else if (n == table->n_columns)
                status = TW_FAIL(err, TW_E_INPUT, "table '%s', line %zu has more than the header's %zu fields", name,
                                 line, n);
            else
                put_parsed(table, &field, quoted), n++;
        }
        if (status == TW_OK && n < table->n_columns)
            status = TW_FAIL(err, TW_E_INPUT, "table '%s', line %zu has %zu fields, the header has %zu", name, line, n,
                             table->n_columns);
    }
    if (status == TW_OK && (table->failed || !tw_text_ok(&field)))
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory while reading table '%s'", name);
    tw_text_release(&field);
    if (status != TW_OK) tw_table_release(table);
    return status;
}
