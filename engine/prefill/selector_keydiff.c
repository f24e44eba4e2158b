/*
 * KeyDiff: keys that look least like the others, by the cosine to the mean of the normalised keys. No window.
 *
 * Online, after every chunk of C positions the best K of what is still kept and the chunk are kept. At a layer's end
 * the same choice is made out of the full KV, so that it does not change the hidden states of later chunks; under
 * `block`, which trims after every chunk anyway, it is what happens.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "engine/prefill/compress.h"

struct keydiff_options {
    bool online;
};

static const struct tw_option keydiff_options[] = {
    {.name = "online",
     .type = TW_OPTION_FLAG,
     .offset = offsetof(struct keydiff_options, online),
     .default_value = "0",
     .help = "choose after every chunk, over what is still kept"},
    {0},
};

static tw_status layer_budget(size_t *budget, const struct tw_selection_context *context, const void *options, size_t l,
                              struct tw_error *err) {
    (void)options, (void)l;
    return tw_uniform_budget(budget, context, false, "keydiff", err);
}

static tw_status best_of(struct tw_kept *kept, const struct tw_selection_context *context, size_t l,
                         const struct tw_kv *kv, size_t budget, struct tw_error *err) {
    const size_t n_kv_heads = context->n_kv_heads;
    memset(kept, 0, sizeof *kept);
    if (tw_kv_longest(kv) <= budget) return tw_kept_all(kept, context->accountant, kv, err);
    double *mean = malloc(n_kv_heads * context->head_dim * sizeof *mean);
    size_t *n_best = malloc(n_kv_heads * sizeof *n_best);
    tw_status status = TW_OK;
    if (!mean || !n_best) {
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory: mean of the keys");
        goto done;
    }
    for (size_t g = 0; g < n_kv_heads; g++) n_best[g] = tw_min_size(budget, kv->length[g]);
    TW_TRY_GOTO(status, done, context->ops->key_mean(context->backend, kv, mean, err));
    status = tw_compress_best(kept, context, l, kv, NULL, TW_SCORE_KEYDIFF, mean, (struct tw_pooling){.kernel = 1},
                              kv->length, n_best, err);
done:
    free(n_best);
    free(mean);
    return status;
}

/* kept: rows of kv; afterwards those of kept and [first, end) among which the best have been chosen. */
static tw_status next_chunk(struct tw_kept *kept, const struct tw_selection_context *context, size_t l,
                            const struct tw_kv *kv, size_t budget, size_t first, size_t end, struct tw_error *err) {
    const size_t n_kv_heads = context->n_kv_heads;
    struct tw_kept candidates = {0}, best = {0};
    struct tw_kv cached = {0};
    size_t *counts = malloc(n_kv_heads * sizeof *counts);
    if (!counts) return TW_FAIL(err, TW_E_MEMORY, "out of memory: counts of kept rows");
    for (size_t g = 0; g < n_kv_heads; g++) counts[g] = kept->n_rows[g] + end - first;
    tw_status status;
    TW_TRY_GOTO(status, done, tw_kept_allocate(&candidates, context->accountant, n_kv_heads, counts, err));
    for (size_t g = 0; g < n_kv_heads; g++) {
        memcpy(candidates.row[g], kept->row[g], kept->n_rows[g] * sizeof(int32_t));
        for (size_t r = first; r < end; r++) candidates.row[g][kept->n_rows[g] + r - first] = (int32_t)r;
    }
    TW_TRY_GOTO(status, done,
                context->ops->kv_create(context->backend, &cached, counts, true, TW_CATEGORY_COMPRESSION,
                                        "keys of an online choice", err));
    TW_TRY_GOTO(
        status, done,
        context->ops->gather(context->backend, &cached, kv, (const int32_t *const *)candidates.row, counts, err));
    TW_TRY_GOTO(status, done, best_of(&best, context, l, &cached, budget, err));
    for (size_t g = 0; g < n_kv_heads; g++)
        for (size_t k = 0; k < best.n_rows[g]; k++) best.row[g][k] = candidates.row[g][best.row[g][k]];
    tw_kept_release(kept, context->accountant);
    *kept = best;
    best = (struct tw_kept){0};
done:
    if (cached.capacity) context->ops->kv_release(context->backend, &cached);
    tw_kept_release(&best, context->accountant);
    tw_kept_release(&candidates, context->accountant);
    free(counts);
    return status;
}

static tw_status select_online(struct tw_kept *kept, const struct tw_selection_context *context, size_t l,
                               const struct tw_kv *kv, size_t budget, struct tw_error *err) {
    const size_t n_kv_heads = context->n_kv_heads, length = kv->length[0];
    size_t *none = calloc(n_kv_heads, sizeof *none);
    if (!none) return TW_FAIL(err, TW_E_MEMORY, "out of memory: counts of kept rows");
    tw_status status = tw_kept_allocate(kept, context->accountant, n_kv_heads, none, err);
    for (size_t first = 0; status == TW_OK && first < length; first += context->chunk)
        status = next_chunk(kept, context, l, kv, budget, first, tw_min_size(first + context->chunk, length), err);
    if (status != TW_OK) tw_kept_release(kept, context->accountant);
    free(none);
    return status;
}

static tw_status select_rows(struct tw_kept *kept, const struct tw_selection_context *context, const void *options,
                             size_t l, const struct tw_kv *kv, struct tw_observation *observation,
                             struct tw_error *err) {
    (void)observation;
    size_t budget;
    memset(kept, 0, sizeof *kept);
    TW_TRY(layer_budget(&budget, context, options, l, err));
    /* Rows of a full KV are the prompt's positions; a cache that is trimmed chunk by chunk is online as it is. */
    if (((const struct keydiff_options *)options)->online && !kv->position)
        return select_online(kept, context, l, kv, budget, err);
    return best_of(kept, context, l, kv, budget, err);
}

static bool by_chunk(const void *options) { return ((const struct keydiff_options *)options)->online; }

const struct tw_selector tw_selector_keydiff = {
    .name = "keydiff",
    .summary = "keys least like the others, by cosine to their mean; no window",
    .source = "KeyDiff (Park et al., 2025)",
    .options = keydiff_options,
    .options_size = sizeof(struct keydiff_options),
    .by_chunk = by_chunk,
    .layer_budget = layer_budget,
    .select = select_rows,
};
