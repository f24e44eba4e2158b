/* Whole files: mapped for reading, or read into memory. */
#ifndef TW_BASE_FILE_H
#define TW_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"

/* A file mapped read-only and shared: pages are the kernel's, nothing is copied. */
struct tw_file {
    const uint8_t *data; /* NULL for an empty file */
    size_t size;         /* bytes */
};

/*
 * Maps `path`. Fails with TW_E_INPUT when it is missing, a directory or not a regular file, TW_E_IO when the system
 * refuses. An empty file succeeds with size 0. `what` names the kind of file in messages ("model", "prompt").
 */
tw_status tw_file_map(struct tw_file *file, const char *path, const char *what, struct tw_error *err);
void tw_file_unmap(struct tw_file *file); /* copes with {0} */
/* Advice: these bytes of a mapped file will be read soon. Many small places are then fetched side by side. */
void tw_file_will_need(const void *data, size_t size);

/*
 * Appends the whole content of `path` to `text`, `-` being standard input. Refuses more than `max_bytes`.
 */
tw_status tw_file_read(struct tw_text *text, const char *path, size_t max_bytes, const char *what,
                       struct tw_error *err);

#endif
