#include "cli/trace_warnings.h"

#include <stdio.h>

#include "cli/command.h"

/* What is said of one trace, and of several. */
static const struct {
    const char *one, *several;
} sentences[TW_N_MATTERS] = {
    [TW_MATTER_LIMITED] =
        {"was recorded with a budget: what was evicted then cannot be wanted, so its demand is limited",
         "were recorded with a budget: what was evicted then cannot be wanted, so their demand is "
         "limited"},
    [TW_MATTER_INCOMPLETE] = {"is incomplete: its run was interrupted", "are incomplete: their runs were interrupted"},
    [TW_MATTER_NO_SCORES] = {"has no /score/needle and no /score/copy_paste: what needs them is left out",
                             "have no /score/needle and no /score/copy_paste: what needs them is left out"},
    [TW_MATTER_NO_NEEDLE] = {"has no /score/needle: what needs it is left out",
                             "have no /score/needle: what needs it is left out"},
    [TW_MATTER_NO_COPY_PASTE] = {"has no /score/copy_paste: what needs it is left out",
                                 "have no /score/copy_paste: what needs it is left out"},
};

static void see(struct tw_trace_warnings *warnings, enum tw_trace_matter matter, const struct tw_trace *trace) {
    if (warnings->matters[matter].n++ == 0)
        snprintf(warnings->matters[matter].first, sizeof warnings->matters[matter].first, "%s", tw_trace_path(trace));
}

void tw_trace_warnings_see(struct tw_trace_warnings *warnings, const struct tw_trace *trace, bool scores) {
    const struct tw_trace_info *const info = tw_trace_info(trace);
    const bool needle = tw_trace_has(trace, TW_TRACE_NEEDLE), copy = tw_trace_has(trace, TW_TRACE_COPY_PASTE);
    if (info->budget) see(warnings, TW_MATTER_LIMITED, trace);
    if (!info->complete) see(warnings, TW_MATTER_INCOMPLETE, trace);
    if (!scores || (needle && copy)) return;
    see(warnings, needle ? TW_MATTER_NO_COPY_PASTE : copy ? TW_MATTER_NO_NEEDLE : TW_MATTER_NO_SCORES, trace);
}

void tw_trace_warnings_tell(struct tw_trace_warnings *warnings) {
    for (size_t m = 0; m < TW_N_MATTERS; m++) {
        if (warnings->matters[m].n == 1)
            tw_warn("trace '%s' %s", warnings->matters[m].first, sentences[m].one);
        else if (warnings->matters[m].n > 1)
            tw_warn("%zu traces, the first '%s', %s", warnings->matters[m].n, warnings->matters[m].first,
                    sentences[m].several);
        warnings->matters[m].n = 0;
    }
}

void tw_warn_about_trace(const struct tw_trace *trace, bool scores) {
    struct tw_trace_warnings warnings = {0};
    tw_trace_warnings_see(&warnings, trace, scores);
    tw_trace_warnings_tell(&warnings);
}
