/* What `tidewake info` shows: rows of (property, value) that the kinds of files fill in. */
#ifndef TW_CLI_INFO_H
#define TW_CLI_INFO_H

#include "base/error.h"
#include "base/table.h"

/* One row; a printf format for the value. */
void tw_info_row(struct tw_table *table, const char *property, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Whether the file or folder looks like a model: GGUF, config.json, or a folder with one. */
int tw_info_is_model(const char *path);
/* What was understood of a model: its shape, its weights, its tokenizer. In builds with the engine. */
tw_status tw_info_model(struct tw_table *table, const char *path, struct tw_error *err);

#endif
