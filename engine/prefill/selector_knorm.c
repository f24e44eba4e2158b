/* The shortest keys: a control. No window. */
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "engine/prefill/compress.h"

static tw_status layer_budget(size_t *budget, const struct tw_selection_context *context, const void *options, size_t l,
                              struct tw_error *err) {
    (void)options, (void)l;
    return tw_uniform_budget(budget, context, false, "knorm", err);
}

static tw_status select_rows(struct tw_kept *kept, const struct tw_selection_context *context, const void *options,
                             size_t l, const struct tw_kv *kv, struct tw_observation *observation,
                             struct tw_error *err) {
    (void)observation;
    const size_t n_kv_heads = context->n_kv_heads;
    size_t budget;
    memset(kept, 0, sizeof *kept);
    TW_TRY(layer_budget(&budget, context, options, l, err));
    if (tw_kv_longest(kv) <= budget) return tw_kept_all(kept, context->accountant, kv, err);
    size_t *n_best = malloc(n_kv_heads * sizeof *n_best);
    if (!n_best) return TW_FAIL(err, TW_E_MEMORY, "out of memory: counts of kept rows");
    for (size_t g = 0; g < n_kv_heads; g++) n_best[g] = tw_min_size(budget, kv->length[g]);
    const tw_status status = tw_compress_best(kept, context, l, kv, NULL, TW_SCORE_KEY_NORM, NULL,
                                              (struct tw_pooling){.kernel = 1}, kv->length, n_best, err);
    free(n_best);
    return status;
}

const struct tw_selector tw_selector_knorm = {
    .name = "knorm",
    .summary = "the shortest keys, a control; no window",
    .source = "Devoto et al., 2024",
    .layer_budget = layer_budget,
    .select = select_rows,
};
