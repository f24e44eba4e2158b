/* The root attributes of a trace: one table, from which they are read, written and printed. For this floor and cli. */
#ifndef TW_TRACES_ATTRIBUTES_H
#define TW_TRACES_ATTRIBUTES_H

#include <hdf5.h>
#include <stdint.h>

#include "base/error.h"
#include "base/view.h"
#include "traces/trace.h"

#define TW_TRACE_FORMAT         "tidewake-trace"
#define TW_TRACE_FORMAT_VERSION 1

enum tw_attribute_kind {
    TW_KIND_TEXT, /* [char *] */
    TW_KIND_SIZE, /* [size_t] */
    TW_KIND_U64,  /* [uint64_t] */
    TW_KIND_BOOL, /* [bool] 0 or 1 */
};

struct tw_attribute_row {
    const char *name; /* NULL ends the table */
    enum tw_attribute_kind kind;
    size_t offset;   /* of the field in struct tw_trace_info */
    size_t presence; /* of the bool that says whether the file has it; 0: always, or (text) when not NULL */
    bool required;
};

extern const struct tw_attribute_row tw_attribute_rows[];

/* The field's value as an integer; for kinds other than text. */
uint64_t tw_attribute_number(const struct tw_attribute_row *row, const struct tw_trace_info *info);
/* Whether a trace with this info has the attribute. */
bool tw_attribute_present(const struct tw_attribute_row *row, const struct tw_trace_info *info);

/* Refuses shapes that are no model's: what reader and writer both demand. */
tw_status tw_trace_info_check(const struct tw_trace_info *info, const char *path, struct tw_error *err);

/* Puts `extra` into the order that the info promises. */
void tw_attributes_sort(struct tw_trace_info *info);

/* All attributes of the root group; `info` is overwritten, and released on failure. Under the lock. */
tw_status tw_attributes_read(struct tw_trace_info *info, hid_t file, const char *path, struct tw_error *err);
/* All of them, `n_steps` and `complete` as 0. Under the lock. */
tw_status tw_attributes_write(hid_t file, const struct tw_trace_info *info, const char *path, struct tw_error *err);

/* Makes or overwrites one attribute, opened and closed here. False on failure (tw_h5_reason). Under the lock. */
bool tw_attribute_put_integer(hid_t file, const char *name, int64_t value);
bool tw_attribute_put_real(hid_t file, const char *name, double value);
/* Broken UTF-8 and NUL become U+FFFD. */
bool tw_attribute_put_text(hid_t file, const char *name, struct tw_view text);

#endif
