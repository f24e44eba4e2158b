/*
 * Layer after layer on the whole prompt at once, each layer compressed when it is done: SnapKV and its kin as they are
 * usually run. With rows=all every operator works on the whole prompt, as the paper's baseline does; with rows=block
 * they work in row blocks, which shows what that alone saves.
 */
#include <stddef.h>

#include "engine/prefill/schedule.h"

struct postprefill_options {
    unsigned rows; /* all, block */
};

static const struct tw_option postprefill_options[] = {
    {.name = "rows",
     .type = TW_OPTION_CHOICE,
     .offset = offsetof(struct postprefill_options, rows),
     .default_value = "all",
     .choices = "all|block",
     .help = "temporaries of the whole prompt, or of row blocks"},
    {0},
};

static bool whole_rows(const void *options) { return ((const struct postprefill_options *)options)->rows == 0; }

static tw_status run(struct tw_prefill *prefill, const void *options, struct tw_error *err) {
    (void)options;
    return tw_prefill_layer_major(prefill, prefill->n_tokens, prefill->selection.budget != 0, err);
}

const struct tw_schedule tw_schedule_postprefill = {
    .name = "postprefill",
    .summary = "layer after layer on the whole prompt at once, each compressed when done",
    .source = "TideKV, matched SnapKV and others",
    .options = postprefill_options,
    .options_size = sizeof(struct postprefill_options),
    .evicts = true,
    .whole_prompt = true,
    .layer_major = true,
    .whole_rows = whole_rows,
    .run = run,
};
