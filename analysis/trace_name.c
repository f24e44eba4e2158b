#include "analysis/trace_name.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

tw_status tw_trace_name_init(struct tw_trace_name *name, const struct tw_trace *trace, struct tw_error *err) {
    const struct tw_trace_info *const info = tw_trace_info(trace);
    const char *const path = tw_trace_path(trace);
    const char *const slash = strrchr(path, '/');
    const char *const file = slash ? slash + 1 : path;
    const size_t length = strlen(file);
    const bool ends = length > 3 && strcmp(file + length - 3, ".h5") == 0;
    *name = (struct tw_trace_name){.trace = strndup(file, ends ? length - 3 : length),
                                   .model = strdup(info->model ? info->model : ""),
                                   .task = strdup(info->task ? info->task : ""),
                                   .run = strdup(info->run ? info->run : "")};
    if (name->trace && name->model && name->task && name->run) return TW_OK;
    tw_trace_name_release(name);
    return TW_FAIL(err, TW_E_MEMORY, "out of memory for the names in trace '%s'", path);
}

void tw_trace_name_release(struct tw_trace_name *name) {
    free(name->trace);
    free(name->model);
    free(name->task);
    free(name->run);
    *name = (struct tw_trace_name){0};
}

size_t tw_trace_names_group(size_t *group, const struct tw_trace_name *names, size_t stride, size_t n) {
    const char *const first = (const char *)names;
    size_t n_groups = 0;
    for (size_t i = 0; i < n; i++) {
        const struct tw_trace_name *const own = (const void *)(first + i * stride);
        group[i] = SIZE_MAX;
        for (size_t j = 0; j < i && group[i] == SIZE_MAX; j++) {
            const struct tw_trace_name *const other = (const void *)(first + j * stride);
            if (strcmp(own->model, other->model) == 0 && strcmp(own->task, other->task) == 0) group[i] = group[j];
        }
        if (group[i] == SIZE_MAX) group[i] = n_groups++;
    }
    return n_groups;
}
