/* SnapKV: what the last W prompt queries attend to, averaged over them and over a KV head's query heads, pooled. */
#include <stdlib.h>

#include "base/checked.h"
#include "engine/prefill/compress.h"

static const struct tw_option snapkv_options[] = {TW_POOLING_OPTION_ROWS, {0}};

static tw_status layer_budget(size_t *budget, const struct tw_selection_context *context, const void *options, size_t l,
                              struct tw_error *err) {
    (void)options, (void)l;
    return tw_uniform_budget(budget, context, true, "snapkv", err);
}

static tw_status select_rows(struct tw_kept *kept, const struct tw_selection_context *context, const void *options,
                             size_t l, const struct tw_kv *kv, struct tw_observation *observation,
                             struct tw_error *err) {
    struct tw_pooling pooling;
    size_t budget;
    TW_TRY(tw_pooling_of(&pooling, options, "snapkv", err));
    TW_TRY(layer_budget(&budget, context, options, l, err));
    return tw_compress_windowed(kept, context, l, kv, observation, pooling, budget, err);
}

const struct tw_selector tw_selector_snapkv = {
    .name = "snapkv",
    .summary = "mean attention of the last W prompt queries, pooled; the best K - W a KV head, and the window",
    .source = "SnapKV (Li et al., 2024); TideKV, section 4",
    .options = snapkv_options,
    .options_size = sizeof(struct tw_pooling_options),
    .windowed = true,
    .needs_observation = true,
    .layer_budget = layer_budget,
    .select = select_rows,
};
