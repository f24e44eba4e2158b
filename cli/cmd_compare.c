/* `tidewake compare`: two traces of the same tokens. */
#include "analysis/compare.h"
#include "cli/command.h"
#include "cli/trace_warnings.h"
#include "traces/trace.h"

struct compare_options {
    struct tw_table_options table;
    unsigned by; /* enum tw_compare_by */
};

static const struct tw_option option_rows[] = {
    {.name = "by",
     .type = TW_OPTION_CHOICE,
     .offset = offsetof(struct compare_options, by),
     .default_value = "layer",
     .choices = "layer|step|both|all",
     .help = "what a row is: a layer, a step, a layer and step, or everything"},
    {0},
};
static const struct tw_option_group groups[] = {
    {"Comparing", option_rows, 0},
    {"Output", tw_table_option_rows, offsetof(struct compare_options, table)},
    {0},
};

static tw_status run(struct tw_invocation *invocation, struct tw_error *err) {
    const struct compare_options *const options = invocation->options;
    struct tw_trace *a = NULL, *b = NULL;
    struct tw_comparison comparison = {0};
    struct tw_table table = {0};
    tw_status status;
    TW_TRY_GOTO(status, done, tw_trace_open(&a, invocation->operands[0], err));
    TW_TRY_GOTO(status, done, tw_trace_open(&b, invocation->operands[1], err));
    struct tw_trace_warnings warnings = {0};
    tw_trace_warnings_see(&warnings, a, false);
    tw_trace_warnings_see(&warnings, b, false);
    tw_trace_warnings_tell(&warnings);
    const struct tw_trace_info *const info_a = tw_trace_info(a), *const info_b = tw_trace_info(b);
    if (info_a->top_k != info_b->top_k)
        tw_warn("'%s' logs %zu positions a row and '%s' %zu: overlaps stay below 1", invocation->operands[0],
                info_a->top_k, invocation->operands[1], info_b->top_k);
    TW_TRY_GOTO(status, done, tw_compare(&comparison, a, b, invocation->progress, err));
    if (info_a->n_steps != info_b->n_steps)
        tw_warn("'%s' has %zu steps and '%s' %zu: the first %zu are compared", invocation->operands[0], info_a->n_steps,
                invocation->operands[1], info_b->n_steps, comparison.n_steps);
    tw_comparison_table(&table, &comparison, (enum tw_compare_by)options->by);
    status = tw_write_table(invocation, &options->table, &table, err);
done:
    tw_table_release(&table);
    tw_comparison_release(&comparison);
    tw_trace_free(a);
    tw_trace_free(b);
    return status;
}

const struct tw_command tw_command_compare = {
    .name = "compare",
    .summary = "how far two traces of the same tokens differ: overlap of rows, error of weights",
    .usage = "A.h5 B.h5 [options]",
    .description =
        "overlap: positions in both rows, as a share of the longer row; top_equal: share of rows whose most attended\n"
        "position is the same; weight_l1: summed difference of the weights of a row, missing ones counting as 0 (at\n"
        "most 2); weight_rms and weight_max: over the positions in both. Refuses traces of different tokens.",
    .example = "tidewake compare tests/golden/replay/plain.h5 tests/golden/replay/plain.h5 --by all",
    .groups = groups,
    .options_size = sizeof(struct compare_options),
    .min_operands = 2,
    .max_operands = 2,
    .run = run,
};
