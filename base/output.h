/*
 * An output that appears under its name only when it is complete: written to a temporary file beside it, renamed at
 * the end. `-` and NULL are standard output. (Traces are the exception; they do not come through here.)
 */
#ifndef TW_BASE_OUTPUT_H
#define TW_BASE_OUTPUT_H

#include <stdio.h>

#include "base/error.h"
#include "base/view.h"

struct tw_output {
    FILE *stream;
    char *path;      /* NULL: standard output */
    char *temporary; /* the name it has until commit */
};

/* Fails with TW_E_INPUT when the folder does not exist or cannot be written, TW_E_IO otherwise. */
tw_status tw_output_open(struct tw_output *output, const char *path, struct tw_error *err);
/* Flushes, checks every error since the opening, renames. On failure nothing is left. Releases either way. */
tw_status tw_output_commit(struct tw_output *output, struct tw_error *err);
/* Removes what was written. Copes with {0} and with a committed output. */
void tw_output_discard(struct tw_output *output);

/* All at once. */
tw_status tw_output_write(const char *path, struct tw_view content, struct tw_error *err);

#endif
