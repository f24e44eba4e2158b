/* `tidewake list`: what there is to choose from. */
#include <stdio.h>

#include "cli/commands.h"

static tw_status run(struct tw_invocation *invocation, struct tw_error *err) {
    (void)invocation;
    (void)err;
    for (const struct tw_command *const *c = tw_command_table; *c; c++) printf("command %s\n", (*c)->name);
    return TW_OK;
}

const struct tw_command tw_command_list = {
    .name = "list",
    .summary = "what there is of policies, selectors, schedules, backends and architectures",
    .usage = "",
    .example = "tidewake list",
    .run = run,
};
