/*
 * Backends that are loaded on demand: `cuda` lives in libtidewake-cuda.so, so that the program starts where there is no
 * CUDA. The file is looked for beside the program, in ../lib beside it, and where the system's loader looks;
 * TIDEWAKE_CUDA_LIBRARY names another.
 *
 * The shared object exports one function (TW_CUDA_ENTRY). It gets a versioned table of the program's functions and
 * gives its table of operations: nothing else crosses, so neither depends on the other's symbols.
 */
#ifndef TW_ENGINE_BACKEND_LOAD_H
#define TW_ENGINE_BACKEND_LOAD_H

#include "engine/backend/backend.h"

/* Raise with every change of this table, of backend.h or of what they include. */
enum { TW_CUDA_HOST_VERSION = 2 };

struct tw_cuda_host {
    uint32_t version; /* TW_CUDA_HOST_VERSION */
    uint32_t bytes;   /* sizeof(struct tw_cuda_host) */
    tw_status (*fail)(struct tw_error *err, tw_status status, const char *format, ...);
    tw_status (*buffer_allocate)(struct tw_buffer *buffer, struct tw_accountant *accountant, size_t bytes,
                                 enum tw_category category, const char *what, struct tw_error *err);
    tw_status (*buffer_allocate_host)(struct tw_buffer *buffer, struct tw_accountant *accountant, size_t bytes,
                                      enum tw_category category, const char *what, struct tw_error *err);
    void (*buffer_release)(struct tw_buffer *buffer, struct tw_accountant *accountant);
    void (*note_mapped)(struct tw_accountant *accountant, int64_t bytes);
};

/* NULL with a sentence when the versions differ. */
typedef const struct tw_backend_ops *tw_cuda_entry_fn(const struct tw_cuda_host *host, struct tw_error *err);
#define TW_CUDA_ENTRY "tw_cuda_backend"

/*
 * The operations of the loaded backend `name` ("cuda"); the object stays loaded. Fails with TW_E_UNSUPPORTED and says
 * what to do when the library cannot be found or used; a missing driver or device is found out by its `open`.
 */
tw_status tw_backend_load(const struct tw_backend_ops **ops, const char *name, struct tw_error *err);

#endif
