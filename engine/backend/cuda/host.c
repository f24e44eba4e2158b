/*
 * The shared object's one exported function, and the program's functions behind their own names: what is compiled into
 * the object from backend/ and cache/ calls them as it does inside the program.
 */
#include "engine/backend/load.h"

#include <stdarg.h>
#include <stdio.h>

extern const struct tw_backend_ops tw_cuda_ops;

static const struct tw_cuda_host *host;

/* The program's, which image.c names; in here nobody asks for them. */
const struct tw_backend_ops *const tw_backend_table[] = {NULL};
const struct tw_memory_source tw_memory_dry_device = {.device = true};

tw_status tw_fail(struct tw_error *err, tw_status status, const char *format, ...) {
    char text[sizeof err->text];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return host->fail(err, status, "%s", text);
}

tw_status tw_buffer_allocate(struct tw_buffer *buffer, struct tw_accountant *accountant, size_t bytes,
                             enum tw_category category, const char *what, struct tw_error *err) {
    return host->buffer_allocate(buffer, accountant, bytes, category, what, err);
}

tw_status tw_buffer_allocate_host(struct tw_buffer *buffer, struct tw_accountant *accountant, size_t bytes,
                                  enum tw_category category, const char *what, struct tw_error *err) {
    return host->buffer_allocate_host(buffer, accountant, bytes, category, what, err);
}

void tw_buffer_release(struct tw_buffer *buffer, struct tw_accountant *accountant) {
    host->buffer_release(buffer, accountant);
}

void tw_accountant_note_mapped(struct tw_accountant *accountant, int64_t bytes) {
    host->note_mapped(accountant, bytes);
}

__attribute__((visibility("default"))) const struct tw_backend_ops *tw_cuda_backend(const struct tw_cuda_host *table,
                                                                                    struct tw_error *err);

const struct tw_backend_ops *tw_cuda_backend(const struct tw_cuda_host *table, struct tw_error *err) {
    if (table->version != TW_CUDA_HOST_VERSION || table->bytes != sizeof *table) {
        table->fail(
            err, TW_E_UNSUPPORTED,
            "the CUDA library is of another version of Tidewake (%u, the program wants %u): run 'make cuda' again",
            (unsigned)TW_CUDA_HOST_VERSION, (unsigned)table->version);
        return NULL;
    }
    host = table;
    return &tw_cuda_ops;
}
