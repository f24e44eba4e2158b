/*
 * What a user should know about traces before believing figures made from them: on standard error, one line a matter,
 * however many traces it concerns.
 *
 *     struct tw_trace_warnings warnings = {0};
 *     ... tw_trace_warnings_see(&warnings, trace, true); ...      for each trace, while it is open
 *     tw_trace_warnings_tell(&warnings);                          once; also before a failure is reported
 */
#ifndef TW_CLI_TRACE_WARNINGS_H
#define TW_CLI_TRACE_WARNINGS_H

#include <stdbool.h>

#include "traces/trace.h"

enum tw_trace_matter {
    TW_MATTER_LIMITED,       /* recorded with a budget: demand is limited */
    TW_MATTER_INCOMPLETE,    /* the run was interrupted */
    TW_MATTER_NO_SCORES,     /* neither needle nor copy-paste scores */
    TW_MATTER_NO_NEEDLE,     /* no needle scores */
    TW_MATTER_NO_COPY_PASTE, /* no copy-paste scores */
    TW_N_MATTERS
};

struct tw_trace_warnings {
    struct {
        size_t n;
        char first[512]; /* path of the first trace that it concerns, cut if longer */
    } matters[TW_N_MATTERS];
};

/* `scores`: whether missing score datasets matter. */
void tw_trace_warnings_see(struct tw_trace_warnings *warnings, const struct tw_trace *trace, bool scores);
/* Prints and forgets. */
void tw_trace_warnings_tell(struct tw_trace_warnings *warnings);

/* Both for a single trace. */
void tw_warn_about_trace(const struct tw_trace *trace, bool scores);

#endif
