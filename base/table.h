/*
 * Tables of results: built row by row in memory, written as an aligned table, as CSV or as JSON from the same cells.
 * An aligned table that would be wider than a terminal has the names of its columns broken behind underscores.
 * Doubles are printed with the fewest digits that read back exactly; a NaN is an empty cell (CSV) or null (JSON).
 * And the reader of such CSV files.
 */
#ifndef TW_BASE_TABLE_H
#define TW_BASE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "base/text.h"

enum tw_table_format { TW_TABLE_PLAIN, TW_TABLE_CSV, TW_TABLE_JSON };

enum tw_cell_type { TW_CELL_EMPTY, TW_CELL_TEXT, TW_CELL_UINT, TW_CELL_INT, TW_CELL_DOUBLE };

struct tw_cell {
    enum tw_cell_type type;
    union {
        char *text; /* owned by the table */
        uint64_t u;
        int64_t i;
        double d;
    };
};

struct tw_table {
    char **columns;        /* [n_columns] names */
    struct tw_cell *cells; /* [n_rows][n_columns] */
    size_t n_columns, n_rows;
    size_t capacity;         /* rows allocated */
    size_t at;               /* next column of the row being filled; n_columns when it is full */
    struct tw_text metadata; /* JSON members before "rows": "\"seed\": 0, " */
    bool failed;             /* memory ran out: tw_table_write reports it */
};

/* Copies the names. */
void tw_table_init(struct tw_table *table, const char *const *columns, size_t n_columns);
void tw_table_release(struct tw_table *table); /* copes with {0} */
/* One column more, at the end, only while there are no rows. */
void tw_table_add_column(struct tw_table *table, const char *name);

void tw_table_begin_row(struct tw_table *table); /* the row before must be full */
void tw_table_put_text(struct tw_table *table, const char *text);
void tw_table_put_uint(struct tw_table *table, uint64_t value);
void tw_table_put_int(struct tw_table *table, int64_t value);
void tw_table_put_double(struct tw_table *table, double value); /* NaN: empty */
void tw_table_put_empty(struct tw_table *table);
void tw_table_put_copy(struct tw_table *table, const struct tw_cell *cell); /* of another table, as it is */

/* What produced the table: written as members of the JSON object beside "rows"; ignored by the other formats. */
void tw_table_set_metadata(struct tw_table *table, const char *name, const char *value);

const struct tw_cell *tw_table_cell(const struct tw_table *table, size_t row, size_t column);
/* SIZE_MAX when there is no such column. */
size_t tw_table_column(const struct tw_table *table, const char *name);
/* The cell as a number: true unless it is empty or text that is no number. */
bool tw_cell_number(double *value, const struct tw_cell *cell);

/* Appends the whole table. Fails with TW_E_MEMORY. */
tw_status tw_table_write(struct tw_text *out, const struct tw_table *table, enum tw_table_format format,
                         struct tw_error *err);

/* Fewest significant digits (15 to 17) that read back exactly; a point whatever the locale. */
void tw_text_append_double(struct tw_text *text, double value);
/* A cell as CSV has it, not quoted; nothing for an empty one. */
void tw_text_append_cell(struct tw_text *text, const struct tw_cell *cell);

/*
 * Parses CSV with a header line (RFC 4180: quoted fields, doubled quotes, CRLF or LF). Whole numbers become uint (or
 * int when negative), other numbers double, empty fields empty, the rest text. Every row must have as many fields as
 * the header, column names must differ. `name` stands for the file in messages. On failure the table is released.
 */
tw_status tw_table_read_csv(struct tw_table *table, struct tw_view csv, const char *name, struct tw_error *err);

#endif
