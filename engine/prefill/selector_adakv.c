/*
 * AdaKV: the heads of a layer share its budget. Every head first keeps its best floor(share * (K - W)), then the best
 * of all that is left over all heads, until n_kv_heads * (K - W) rows are kept; the window is added to each head.
 *
 * In one stream: what falls out of a head's own heap, or never gets in, is offered to the heap that all share. A row
 * that has fallen out can never be among its head's best again, so both heaps are exact.
 */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "engine/prefill/compress.h"
#include "engine/prefill/topk.h"

struct adakv_options {
    struct tw_pooling_options pooling;
    double share;
};

static const struct tw_option adakv_options[] = {
    TW_POOLING_OPTION_ROWS,
    {.name = "share",
     .type = TW_OPTION_DOUBLE,
     .offset = offsetof(struct adakv_options, share),
     .default_value = "0.2",
     .maximum = 1,
     .value_name = "X",
     .help = "part of the budget that every head is sure of"},
    {0},
};

static tw_status layer_budget(size_t *budget, const struct tw_selection_context *context, const void *options, size_t l,
                              struct tw_error *err) {
    (void)options, (void)l;
    return tw_uniform_budget(budget, context, true, "adakv", err);
}

/* Rows that are sure for each head, out of `n` beside the window. */
static size_t sure_rows(const struct adakv_options *options, size_t n) {
    return (size_t)floor(options->share * (double)n);
}

static tw_status head_budget(size_t *budget, const struct tw_selection_context *context, const void *options, size_t l,
                             struct tw_error *err) {
    TW_TRY(layer_budget(budget, context, options, l, err));
    if (*budget >= context->prompt_length) return TW_OK;
    const size_t n = *budget - context->window, sure = sure_rows(options, n);
    *budget = tw_min_size(context->prompt_length, context->window + sure + context->n_kv_heads * (n - sure));
    return TW_OK;
}

struct heaps {
    size_t n_kv_heads;
    const size_t *n_scored;
    struct tw_topk *own; /* [n_kv_heads] */
    struct tw_topk shared;
};

static tw_status take_scores(void *context, size_t first, size_t n, const float *score, struct tw_error *err) {
    (void)err;
    struct heaps *heaps = context;
    /* Row by row over all heads, so that of equal scores the lower position comes first everywhere. */
    for (size_t i = 0; i < n; i++)
        for (size_t g = 0; g < heaps->n_kv_heads; g++) {
            if (first + i >= heaps->n_scored[g]) continue;
            struct tw_scored left_over;
            const struct tw_scored item = {score[g * n + i], (int32_t)(first + i), (int32_t)g};
            if (tw_topk_offer(&heaps->own[g], item, &left_over)) tw_topk_offer(&heaps->shared, left_over, NULL);
        }
    return TW_OK;
}

/* The rows of both heaps and the window, ascending for each head. */
static tw_status merge(struct tw_kept *kept, const struct tw_selection_context *context, const struct tw_kv *kv,
                       struct heaps *heaps, size_t *n_kept, struct tw_error *err) {
    for (size_t g = 0; g < heaps->n_kv_heads; g++) n_kept[g] = heaps->own[g].n + kv->length[g] - heaps->n_scored[g];
    for (size_t k = 0; k < heaps->shared.n; k++) n_kept[heaps->shared.best[k].head]++;
    TW_TRY(tw_kept_allocate(kept, context->accountant, heaps->n_kv_heads, n_kept, err));
    tw_topk_sort_by_row(&heaps->shared);
    for (size_t g = 0; g < heaps->n_kv_heads; g++) {
        struct tw_topk *own = &heaps->own[g];
        tw_topk_sort_by_row(own);
        size_t at = 0, o = 0;
        for (size_t k = 0; k < heaps->shared.n; k++) {
            if ((size_t)heaps->shared.best[k].head != g) continue;
            while (o < own->n && own->best[o].row < heaps->shared.best[k].row) kept->row[g][at++] = own->best[o++].row;
            kept->row[g][at++] = heaps->shared.best[k].row;
        }
        while (o < own->n) kept->row[g][at++] = own->best[o++].row;
        for (size_t r = heaps->n_scored[g]; r < kv->length[g]; r++) kept->row[g][at++] = (int32_t)r;
    }
    return TW_OK;
}

static tw_status select_rows(struct tw_kept *kept, const struct tw_selection_context *context, const void *options,
                             size_t l, const struct tw_kv *kv, struct tw_observation *observation,
                             struct tw_error *err) {
    const struct adakv_options *o = options;
    const size_t n_kv_heads = context->n_kv_heads, window = observation->n_queries;
    struct tw_pooling pooling;
    struct tw_buffer memory = {0};
    size_t budget, scored = 0;
    memset(kept, 0, sizeof *kept);
    TW_TRY(tw_pooling_of(&pooling, &o->pooling, "adakv", err));
    TW_TRY(layer_budget(&budget, context, options, l, err));
    for (size_t g = 0; g < n_kv_heads; g++) scored += kv->length[g] - window;
    if (budget >= context->prompt_length || scored <= n_kv_heads * (budget - window))
        return tw_kept_all(kept, context->accountant, kv, err);

    const size_t n = budget - window, sure = sure_rows(o, n), rest = n_kv_heads * (n - sure);
    tw_status status = TW_OK;
    struct tw_topk *own = calloc(n_kv_heads, sizeof *own);
    size_t *counts = calloc(2 * n_kv_heads, sizeof *counts);
    if (!own || !counts) {
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory: running top-k");
        goto done;
    }
    TW_TRY_GOTO(status, done,
                tw_buffer_allocate_host(&memory, context->accountant,
                                        (n_kv_heads * sure + rest) * sizeof(struct tw_scored), TW_CATEGORY_COMPRESSION,
                                        "running top-k", err));
    struct tw_scored *at = memory.data;
    for (size_t g = 0; g < n_kv_heads; g++) {
        counts[g] = kv->length[g] - window;
        own[g] = (struct tw_topk){.best = at, .k = tw_min_size(sure, counts[g])};
        at += own[g].k;
    }
    struct heaps heaps = {.n_kv_heads = n_kv_heads, .n_scored = counts, .own = own, .shared = {.best = at, .k = rest}};
    if (context->ranks) {
        size_t *const n_best = counts + n_kv_heads;
        for (size_t g = 0; g < n_kv_heads; g++) n_best[g] = own[g].n = own[g].k;
        const struct tw_ranking ranking = {.kind = TW_SCORE_ATTENTION,
                                           .pooling = pooling,
                                           .n_scored = counts,
                                           .n_best = n_best,
                                           .n_shared = heaps.shared.n = rest};
        TW_TRY_GOTO(status, done, tw_compress_rank(context, l, kv, observation, ranking, memory.data, err));
    } else {
        TW_TRY_GOTO(status, done,
                    tw_compress_scores(context, l, kv, observation, TW_SCORE_ATTENTION, NULL, pooling, counts,
                                       take_scores, &heaps, err));
    }
    status = merge(kept, context, kv, &heaps, counts + n_kv_heads, err);
done:
    tw_buffer_release(&memory, context->accountant);
    free(counts);
    free(own);
    return status;
}

const struct tw_selector tw_selector_adakv = {
    .name = "adakv",
    .summary = "as snapkv, but a layer's heads share its budget",
    .source = "Ada-KV (Feng et al., 2024)",
    .options = adakv_options,
    .options_size = sizeof(struct adakv_options),
    .windowed = true,
    .needs_observation = true,
    .layer_budget = layer_budget,
    .head_budget = head_budget,
    .select = select_rows,
};
