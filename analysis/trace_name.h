/* What a trace calls itself, and which traces are runs of one model and task. */
#ifndef TW_ANALYSIS_TRACE_NAME_H
#define TW_ANALYSIS_TRACE_NAME_H

#include <stddef.h>

#include "base/error.h"
#include "traces/trace.h"

struct tw_trace_name {
    char *trace;              /* the file's name without folder and ".h5"; owned, as the others */
    char *model, *task, *run; /* "" where the file has none */
};
tw_status tw_trace_name_init(struct tw_trace_name *name, const struct tw_trace *trace, struct tw_error *err);
void tw_trace_name_release(struct tw_trace_name *name); /* copes with {0} */

/*
 * Which of n runs belong together: those of equal model and task. `names` is the name of the first run, that of the
 * next lies `stride` bytes further (names inside larger structs). group [n] gets numbers from 0 in the order of first
 * appearance; returns how many groups there are.
 */
size_t tw_trace_names_group(size_t *group, const struct tw_trace_name *names, size_t stride, size_t n);

#endif
