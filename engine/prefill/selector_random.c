/* Any K positions, every set as likely as every other: a control. The seed, layer and head say which. No window. */
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/random.h"
#include "engine/prefill/selector.h"

static tw_status layer_budget(size_t *budget, const struct tw_selection_context *context, const void *options, size_t l,
                              struct tw_error *err) {
    (void)options, (void)l;
    return tw_uniform_budget(budget, context, false, "random", err);
}

/* Knuth's algorithm S: row r is taken with probability (still wanted) / (still there), in one pass, in order. */
static void sample(int32_t *row, size_t wanted, size_t n, struct tw_random *random) {
    for (size_t r = 0; wanted > 0; r++)
        if (tw_random_below(random, n - r) < wanted) {
            *row++ = (int32_t)r;
            wanted--;
        }
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
    size_t *counts = malloc(n_kv_heads * sizeof *counts);
    if (!counts) return TW_FAIL(err, TW_E_MEMORY, "out of memory: counts of kept rows");
    for (size_t g = 0; g < n_kv_heads; g++) counts[g] = tw_min_size(budget, kv->length[g]);
    const tw_status status = tw_kept_allocate(kept, context->accountant, n_kv_heads, counts, err);
    for (size_t g = 0; status == TW_OK && g < n_kv_heads; g++) {
        struct tw_random random;
        tw_random_init(&random, context->seed, 1 + l * n_kv_heads + g);
        sample(kept->row[g], counts[g], kv->length[g], &random);
    }
    free(counts);
    return status;
}

const struct tw_selector tw_selector_random = {
    .name = "random",
    .summary = "any positions, a control; no window",
    .source = "-",
    .layer_budget = layer_budget,
    .select = select_rows,
};
