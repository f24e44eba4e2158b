/* `tidewake convert`: the logs of the WakeKV scripts to traces and back, and traces to CSV. */
#include <string.h>

#include "cli/command.h"
#include "traces/npz.h"

struct options {
    bool force;
};

static const struct tw_option rows[] = {
    {"force", 0, TW_OPTION_FLAG, 0, NULL, 0, 0, NULL, NULL, "overwrite what is there"},
    {0},
};

static bool ends_with(const char *text, const char *ending) {
    const size_t n = strlen(text), m = strlen(ending);
    return n >= m && strcmp(text + n - m, ending) == 0;
}

static tw_status run(struct tw_invocation *invocation, struct tw_error *err) {
    const struct options *const options = invocation->options;
    const char *const from = invocation->operands[0], *const to = invocation->operands[1];
    if (tw_npz_is_log(from)) {
        if (!ends_with(to, ".h5"))
            return TW_FAIL(err, TW_E_OPTION, "'%s' is a log, which becomes a trace: the output's name must end in .h5",
                           from);
        return tw_npz_import(to, from, options->force, invocation->progress, err);
    }
    struct tw_trace *trace;
    TW_TRY(tw_trace_open(&trace, from, err));
    tw_status status;
    if (ends_with(to, ".csv") || strcmp(to, "-") == 0)
        status = tw_trace_export_csv(to, trace, invocation->progress, err);
    else if (ends_with(to, ".h5") || ends_with(to, ".npz"))
        status =
            TW_FAIL(err, TW_E_OPTION,
                    "'%s' is a trace, which becomes a folder with log.npz, or a .csv file; '%s' is neither", from, to);
    else
        status = tw_npz_export(to, trace, options->force, invocation->progress, err);
    if (status == TW_OK && !tw_trace_info(trace)->complete)
        tw_warn("trace '%s' is incomplete: %zu steps were converted", from, tw_trace_info(trace)->n_steps);
    tw_trace_free(trace);
    return status;
}

static const struct tw_option_group groups[] = {
    {NULL, rows, 0},
    {0},
};

const struct tw_command tw_command_convert = {
    .name = "convert",
    .summary = "imports WakeKV logs (a folder with log.npz and meta.json), exports to them and to CSV",
    .usage = "IN OUT [options]",
    .description =
        "What IN is and how OUT is called decide: a log folder to a trace (.h5), a trace to a log folder or to\n"
        ".csv ('-': standard output; a line for each logged position).",
    .example = "tidewake convert wakekv_logs/run3 run3.h5\n"
               "tidewake convert run.h5 run_folder\n"
               "tidewake convert run.h5 run.csv",
    .groups = groups,
    .options_size = sizeof(struct options),
    .min_operands = 2,
    .max_operands = 2,
    .run = run,
};
