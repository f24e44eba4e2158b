#include "cli/trace_warnings.h"

#include "cli/command.h"

void tw_warn_about_trace(const struct tw_trace *trace, bool scores) {
    const struct tw_trace_info *const info = tw_trace_info(trace);
    const char *const path = tw_trace_path(trace);
    if (info->budget)
        tw_warn("trace '%s' was recorded with a budget of %llu: positions evicted then cannot be wanted, so demand is "
                "limited",
                path, (unsigned long long)info->budget);
    if (!info->complete)
        tw_warn("trace '%s' is incomplete: its run was interrupted after %zu steps", path, info->n_steps);
    if (!scores) return;
    const bool needle = tw_trace_has(trace, TW_TRACE_NEEDLE), copy = tw_trace_has(trace, TW_TRACE_COPY_PASTE);
    if (!needle && !copy)
        tw_warn("trace '%s' has no %s and no %s: what needs them is left out", path,
                tw_trace_dataset_path(TW_TRACE_NEEDLE), tw_trace_dataset_path(TW_TRACE_COPY_PASTE));
    else if (!needle || !copy)
        tw_warn("trace '%s' has no %s: what needs it is left out", path,
                tw_trace_dataset_path(needle ? TW_TRACE_COPY_PASTE : TW_TRACE_NEEDLE));
}
