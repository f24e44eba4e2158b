/* `tidewake match`: policies compared at matched memory. */
#include <stdlib.h>

#include "base/file.h"
#include "cli/command.h"
#include "sim/match.h"

struct match_options {
    const char *reference;
    struct tw_table_options table;
};

static const struct tw_option option_rows[] = {
    {.name = "reference",
     .type = TW_OPTION_TEXT,
     .offset = offsetof(struct match_options, reference),
     .default_value = "reactive",
     .value_name = "POLICY",
     .help = "whose curve the others are held against"},
    {0},
};

#define MAX_TABLE_BYTES ((size_t)1 << 32)

static tw_status run(struct tw_invocation *invocation, struct tw_error *err) {
    const struct match_options *options = invocation->options;
    const char *path = invocation->operands[0];
    struct tw_text csv = {0};
    struct tw_table in = {0}, out = {0};
    struct tw_match_summaries summaries = {0};
    tw_status status;
    TW_TRY_GOTO(status, done, tw_file_read(&csv, path, MAX_TABLE_BYTES, "table", err));
    TW_TRY_GOTO(status, done, tw_table_read_csv(&in, tw_text_view(&csv), path, err));
    TW_TRY_GOTO(status, done, tw_match_run(&out, &summaries, &in, path, options->reference, err));
    TW_TRY_GOTO(status, done, tw_write_table(invocation, &options->table, &out, err));
    for (size_t i = 0; i < summaries.n; i++) {
        const struct tw_match_summary *s = &summaries.policies[i];
        struct tw_text line = {0};
        tw_text_printf(&line, "%s: %s misses no more in %zu of %zu comparisons", s->policy, options->reference, s->wins,
                       s->compared);
        if (s->left_out) tw_text_printf(&line, ", %zu more lie outside its memory range", s->left_out);
        if (s->unpruned)
            tw_text_printf(&line, ", %zu more are of runs too short for %s to prune", s->unpruned, s->policy);
        tw_note("%s", tw_text_string(&line));
        tw_text_release(&line);
    }
done:
    tw_match_summaries_release(&summaries);
    tw_table_release(&in);
    tw_table_release(&out);
    tw_text_release(&csv);
    return status;
}

const struct tw_command tw_command_match = {
    .name = "match",
    .summary = "compares policies at matched memory, from a table of replay",
    .usage = "RESULTS.csv [options]",
    .description =
        "Each policy's point is held against the reference's miss rate, interpolated at the same mean resident pages;\n"
        "evict, which has the same cap, at equal budget. Points outside the reference's range have no 'win' and are not\n"
        "counted; nor are those of policies with an interval (rkv, reasonalloc) in runs too short for them to prune.",
    .example = "tidewake replay tests/golden/replay/plain.h5 --budget 1..64 -o plain.csv && tidewake match plain.csv\n"
               "tidewake match data/published/residency.csv",
    .groups = (const struct tw_option_group[]){{NULL, option_rows, 0},
                                               {"Output", tw_table_option_rows, offsetof(struct match_options, table)},
                                               {0}},
    .options_size = sizeof(struct match_options),
    .min_operands = 1,
    .max_operands = 1,
    .run = run,
};
