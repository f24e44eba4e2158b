/* The last K positions, or the first few (attention sinks) and the last of the rest. No scores. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "engine/prefill/selector.h"

struct recent_options {
    uint64_t sinks;
};

static const struct tw_option recent_options[] = {
    {.name = "sinks",
     .type = TW_OPTION_U64,
     .offset = offsetof(struct recent_options, sinks),
     .default_value = "0",
     .maximum = 1 << 30,
     .value_name = "N",
     .help = "first positions that are always kept"},
    {0},
};

static tw_status layer_budget(size_t *budget, const struct tw_selection_context *context, const void *options, size_t l,
                              struct tw_error *err) {
    (void)l;
    const struct recent_options *o = options;
    TW_TRY(tw_uniform_budget(budget, context, false, "recent", err));
    if (*budget < context->prompt_length && o->sinks > *budget)
        return TW_FAIL(err, TW_E_OPTION, "selector 'recent': sinks=%llu are more than the budget of %zu",
                       (unsigned long long)o->sinks, *budget);
    return TW_OK;
}

static tw_status select_rows(struct tw_kept *kept, const struct tw_selection_context *context, const void *options,
                             size_t l, const struct tw_kv *kv, struct tw_observation *observation,
                             struct tw_error *err) {
    (void)observation;
    const struct recent_options *o = options;
    const size_t n_kv_heads = context->n_kv_heads;
    size_t budget;
    memset(kept, 0, sizeof *kept);
    TW_TRY(layer_budget(&budget, context, options, l, err));
    if (tw_kv_longest(kv) <= budget) return tw_kept_all(kept, context->accountant, kv, err);
    size_t *counts = malloc(n_kv_heads * sizeof *counts);
    if (!counts) return TW_FAIL(err, TW_E_MEMORY, "out of memory: counts of kept rows");
    for (size_t g = 0; g < n_kv_heads; g++) counts[g] = tw_min_size(budget, kv->length[g]);
    const tw_status status = tw_kept_allocate(kept, context->accountant, n_kv_heads, counts, err);
    for (size_t g = 0; status == TW_OK && g < n_kv_heads; g++)
        for (size_t k = 0; k < counts[g]; k++)
            kept->row[g][k] = (int32_t)(k < o->sinks ? k : kv->length[g] - counts[g] + k);
    free(counts);
    return status;
}

const struct tw_selector tw_selector_recent = {
    .name = "recent",
    .summary = "the last positions, with sinks=N the first N too; no window",
    .source = "StreamingLLM (Xiao et al., 2023)",
    .options = recent_options,
    .options_size = sizeof(struct recent_options),
    .layer_budget = layer_budget,
    .select = select_rows,
};
