/* `tidewake check`: is this trace what it claims to be? */
#include <stdio.h>

#include "base/stop.h"
#include "cli/command.h"
#include "traces/check.h"

/* A bad file is an answer; a full memory or an unreadable disk is not. */
static tw_status run(struct tw_invocation *invocation, struct tw_error *err) {
    struct tw_trace_paths paths;
    TW_TRY(tw_trace_paths_find(&paths, invocation->operands, invocation->n_operands, err));
    tw_status status = TW_OK;
    for (size_t i = 0; status == TW_OK && i < paths.n; i++) {
        struct tw_trace_verdict verdict;
        if (tw_stop_requested()) status = TW_FAIL(err, TW_E_INTERRUPTED, "interrupted");
        if (status == TW_OK) status = tw_trace_check(&verdict, paths.paths[i], err);
        if (status == TW_E_INPUT) {
            tw_note("%s", err->text);
            invocation->answer = 1;
            status = TW_OK;
        } else if (status == TW_OK) {
            printf("%s: good, %zu steps%s\n", paths.paths[i], verdict.n_steps,
                   verdict.complete ? "" : ", incomplete (the run was interrupted)");
        }
        tw_progress_update(invocation->progress, "check", i + 1, paths.n, "files", NULL);
    }
    tw_trace_paths_release(&paths);
    return status;
}

const struct tw_command tw_command_check = {
    .name = "check",
    .summary = "reads traces to the last byte and says whether they are sound",
    .usage = "FILE|FOLDER...",
    .description =
        "A line for each trace: 'good' on standard output, or what is wrong on standard error, and exit status 1\n"
        "if any is bad. The reading is done in a process of its own, so that no file can do harm.",
    .example = "tidewake check runs/*.h5",
    .min_operands = 1,
    .max_operands = SIZE_MAX,
    .run = run,
};
