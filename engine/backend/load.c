#include "engine/backend/load.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct tw_cuda_host host = {
    .version = TW_CUDA_HOST_VERSION,
    .bytes = sizeof(struct tw_cuda_host),
    .fail = tw_fail,
    .buffer_allocate = tw_buffer_allocate,
    .buffer_allocate_host = tw_buffer_allocate_host,
    .buffer_release = tw_buffer_release,
    .note_mapped = tw_accountant_note_mapped,
};

/* The program's folder + `relative`; false when the system does not say where the program is. */
static bool beside_program(char *path, size_t size, const char *relative) {
    char program[4096];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0) return false;
    program[length] = '\0';
    char *const slash = strrchr(program, '/');
    if (!slash) return false;
    *slash = '\0';
    const int written = snprintf(path, size, "%s/%s", program, relative);
    return written > 0 && (size_t)written < size && access(path, R_OK) == 0;
}

static void *open_library(struct tw_text *tried) {
    const char *const named = getenv("TIDEWAKE_CUDA_LIBRARY");
    const char *const places[] = {"libtidewake-cuda.so", "../lib/libtidewake-cuda.so",
                                  "../lib/tidewake/libtidewake-cuda.so"};
    char path[4096 + 64];
    const char *candidate = named && *named ? named : NULL;
    for (size_t i = 0; i < sizeof places / sizeof *places && !candidate; i++)
        if (beside_program(path, sizeof path, places[i])) candidate = path;
    if (!candidate) candidate = "libtidewake-cuda.so";
    void *const library = dlopen(candidate, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *const reason = dlerror();
        tw_text_printf(tried, "%s", reason ? reason : candidate);
    }
    return library;
}

tw_status tw_backend_load(const struct tw_backend_ops **ops, const char *name, struct tw_error *err) {
    *ops = NULL;
    if (strcmp(name, "cuda") != 0) return TW_FAIL(err, TW_E_OPTION, "no loadable backend is called '%s'", name);
    struct tw_text reason = {0};
    void *const library = open_library(&reason);
    if (!library) {
        const tw_status status = TW_FAIL(
            err, TW_E_UNSUPPORTED,
            "backend 'cuda' cannot be loaded (%s): build it with 'make cuda' and keep it beside the program, or use '--backend cpu'",
            tw_text_string(&reason));
        tw_text_release(&reason);
        return status;
    }
    tw_cuda_entry_fn *entry;
    *(void **)&entry = dlsym(library, TW_CUDA_ENTRY);
    if (!entry) {
        dlclose(library);
        return TW_FAIL(err, TW_E_UNSUPPORTED,
                       "the CUDA library has no '%s': it is not Tidewake's, build it with 'make cuda'", TW_CUDA_ENTRY);
    }
    *ops = entry(&host, err);
    if (*ops) return TW_OK;
    dlclose(library);
    return TW_E_UNSUPPORTED;
}
