/*
 * A wide table laid out for people: columns that are the same in every row stand in a line above, those that tell rows
 * apart in front of titled blocks no wider than the terminal. CSV and JSON are written from the same cells and have
 * every column.
 */
#ifndef TW_CLI_LAYOUT_H
#define TW_CLI_LAYOUT_H

#include "base/table.h"

enum tw_shown {
    TW_SHOWN_AS_IS,
    TW_SHOWN_BYTES,      /* "15.46 GiB", "816.6 MiB"; a column of nothing but 0 is left out */
    TW_SHOWN_CHANGE,     /* in bytes: "+1.2 KiB", "0 B" */
    TW_SHOWN_FIXED,      /* `digits` behind the point */
    TW_SHOWN_SECONDS,    /* the same, "1.234 s" */
    TW_SHOWN_SCIENTIFIC, /* the same, with an exponent */
    TW_SHOWN_PERCENT,    /* of a share */
};

struct tw_layout_column {
    const char *title;   /* of the block that begins here; NULL: goes on with the one before */
    const char *name;    /* of the table's column; NULL ends a list */
    const char *heading; /* for people: "peak" */
    enum tw_shown shown;
    int digits;
};

struct tw_layout {
    const char *subject;     /* begins the line above; NULL: nothing does */
    const char *const *keys; /* [n_keys] columns that name a row; an empty cell goes with whatever the others have */
    size_t n_keys;
    const struct tw_layout_column *columns; /* those that the table lacks, or that are empty (0 bytes) throughout, are
                                               left out */
    const char *remark;                     /* a text column, written as lines behind the blocks; NULL: none */
};

/* Appends the table. `width`: columns of the terminal; a block that does not fit is continued in another below. */
void tw_layout_write(struct tw_text *out, const struct tw_table *table, const struct tw_layout *layout, size_t width);

/*
 * Appends a sentence and ends the line, breaking it at spaces (with `after` only behind one of its characters); further
 * lines are indented.
 */
void tw_text_append_wrapped(struct tw_text *text, struct tw_view sentence, size_t width, const char *after);

/* Appends "15.46 GiB", or MiB or KiB or bytes. */
void tw_text_append_bytes(struct tw_text *text, double bytes);

#endif
