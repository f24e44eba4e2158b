/*
 * Verifying a whole trace: everything that a reader could ever ask for is read and checked. The reading is done in a
 * child process, so that a crash of libhdf5 on a hostile file is one more way for the file to be bad.
 */
#ifndef TW_TRACES_CHECK_H
#define TW_TRACES_CHECK_H

#include <stddef.h>

#include "base/error.h"
#include "traces/trace.h"

/* Reads every dataset of an open trace. TW_E_INPUT names what is wrong. */
tw_status tw_trace_verify(struct tw_trace *trace, struct tw_error *err);

struct tw_trace_verdict {
    size_t n_steps;
    bool complete;
};

/*
 * Opens and verifies `path` in a child process. TW_E_INPUT: the file is bad, in `err` the reason (or that the library
 * crashed). The calling process must not hold OpenMP threads in the middle of a region.
 */
tw_status tw_trace_check(struct tw_trace_verdict *verdict, const char *path, struct tw_error *err);

#endif
