/* What a user should know about a trace before believing figures made from it: on standard error, one line each. */
#ifndef TW_CLI_TRACE_WARNINGS_H
#define TW_CLI_TRACE_WARNINGS_H

#include <stdbool.h>

#include "traces/trace.h"

/*
 * Says that demand is limited when the trace was recorded with a budget, that the run is incomplete when it is, and,
 * with `scores`, which score datasets are missing and what is left out for it.
 */
void tw_warn_about_trace(const struct tw_trace *trace, bool scores);

#endif
