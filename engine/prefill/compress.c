#include "engine/prefill/compress.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "engine/prefill/topk.h"

/* Pooled score of row i out of raw [from, n_scored), raw[0] being row `from`. Terms in ascending order of row. */
static float pool(const float *raw, size_t from, size_t n_scored, size_t i, struct tw_pooling pooling) {
    const size_t half = pooling.kernel / 2;
    const size_t first = i > half ? i - half : 0, end = tw_min_size(i + half + 1, n_scored);
    if (pooling.maximum) {
        float maximum = -INFINITY;
        for (size_t j = first; j < end; j++) maximum = fmaxf(maximum, raw[j - from]);
        return maximum;
    }
    float sum = 0;
    for (size_t j = first; j < end; j++) sum += raw[j - from];
    return sum / (float)pooling.kernel;
}

tw_status tw_compress_scores(const struct tw_selection_context *context, size_t l, const struct tw_kv *kv,
                             struct tw_observation *observation, enum tw_score_kind kind, const double *key_mean,
                             struct tw_pooling pooling, const size_t *n_scored, tw_take_scores_fn *take, void *sink,
                             struct tw_error *err) {
    const size_t n_kv_heads = context->n_kv_heads, half = pooling.kernel / 2;
    size_t n_rows = 0;
    for (size_t g = 0; g < n_kv_heads; g++) n_rows = tw_max_size(n_rows, n_scored[g]);
    if (n_rows == 0) return TW_OK;
    if (kind == TW_SCORE_ATTENTION)
        TW_TRY(context->ops->observe(context->backend, l, kv, observation, context->block, err));

    const size_t block = tw_min_size(context->block, n_rows);
    const size_t raw_size = block + 2 * half, pooled_size = block + half;
    struct tw_buffer buffer;
    TW_TRY(tw_buffer_allocate_host(&buffer, context->accountant,
                                   n_kv_heads * (block + raw_size + pooled_size) * sizeof(float),
                                   TW_CATEGORY_COMPRESSION, "blocks of scores", err));
    float *score = buffer.data;                  /* [n_kv_heads][n] of this block */
    float *raw = score + n_kv_heads * block;     /* [n_kv_heads][raw_size] rows [from, first + n) */
    float *pooled = raw + n_kv_heads * raw_size; /* [n_kv_heads][n to emit] */
    size_t from = 0, emitted = 0;
    tw_status status = TW_OK;
    for (size_t first = 0; first < n_rows; first += block) {
        const size_t n = tw_min_size(block, n_rows - first), held = first - from;
        TW_TRY_GOTO(status, done,
                    context->ops->score(context->backend, l, kv, observation, kind, key_mean, first, n, score, err));
        for (size_t g = 0; g < n_kv_heads; g++) memcpy(raw + g * raw_size + held, score + g * n, n * sizeof *score);

        /* A row can be pooled once its upper neighbours are there. */
        const size_t known = first + n;
        const size_t end = known == n_rows ? n_rows : known > half ? known - half : 0;
        const size_t n_emit = end > emitted ? end - emitted : 0;
        for (size_t g = 0; g < n_kv_heads; g++)
            for (size_t i = emitted; i < end; i++)
                pooled[g * n_emit + i - emitted] =
                    i < n_scored[g] ? pool(raw + g * raw_size, from, n_scored[g], i, pooling) : -INFINITY;
        if (n_emit) TW_TRY_GOTO(status, done, take(sink, emitted, n_emit, pooled, err));
        emitted += n_emit;

        const size_t keep_from = emitted > half ? emitted - half : 0;
        for (size_t g = 0; g < n_kv_heads; g++)
            memmove(raw + g * raw_size, raw + g * raw_size + keep_from - from, (known - keep_from) * sizeof *raw);
        from = keep_from;
    }
    assert(emitted == n_rows);
done:
    tw_buffer_release(&buffer, context->accountant);
    return status;
}

struct best_sink {
    size_t n_kv_heads;
    const size_t *n_scored;
    struct tw_topk *topk; /* [n_kv_heads] */
};

static tw_status take_best(void *context, size_t first, size_t n, const float *score, struct tw_error *err) {
    (void)err;
    const struct best_sink *sink = context;
    for (size_t g = 0; g < sink->n_kv_heads; g++)
        for (size_t i = 0; i < n && first + i < sink->n_scored[g]; i++)
            tw_topk_offer(&sink->topk[g], (struct tw_scored){score[g * n + i], (int32_t)(first + i), 0}, NULL);
    return TW_OK;
}

tw_status tw_compress_rank(const struct tw_selection_context *context, size_t l, const struct tw_kv *kv,
                           struct tw_observation *observation, struct tw_ranking ranking, struct tw_scored *best,
                           struct tw_error *err) {
    ranking.block = context->block;
    if (ranking.kind == TW_SCORE_ATTENTION)
        TW_TRY(context->ops->observe(context->backend, l, kv, observation, context->block, err));
    return context->ops->rank(context->backend, l, kv, observation, &ranking, best, err);
}

tw_status tw_compress_best(struct tw_kept *kept, const struct tw_selection_context *context, size_t l,
                           const struct tw_kv *kv, struct tw_observation *observation, enum tw_score_kind kind,
                           const double *key_mean, struct tw_pooling pooling, const size_t *n_scored,
                           const size_t *n_best, struct tw_error *err) {
    const size_t n_kv_heads = context->n_kv_heads;
    struct tw_buffer heaps = {0};
    size_t total = 0;
    tw_status status = TW_OK;
    memset(kept, 0, sizeof *kept);
    size_t *n_kept = calloc(n_kv_heads, sizeof *n_kept);
    struct tw_topk *topk = calloc(n_kv_heads, sizeof *topk);
    if (!n_kept || !topk) {
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory: running top-k");
        goto done;
    }
    for (size_t g = 0; g < n_kv_heads; g++) total += n_best[g];
    TW_TRY_GOTO(status, done,
                tw_buffer_allocate_host(&heaps, context->accountant, total * sizeof(struct tw_scored),
                                        TW_CATEGORY_COMPRESSION, "running top-k", err));
    struct tw_scored *at = heaps.data;
    for (size_t g = 0; g < n_kv_heads; g++) {
        assert(n_best[g] <= n_scored[g]);
        topk[g] = (struct tw_topk){.best = at, .k = n_best[g]};
        at += n_best[g];
        n_kept[g] = n_best[g] + kv->length[g] - n_scored[g];
    }
    if (context->ranks) {
        const struct tw_ranking ranking = {
            .kind = kind, .key_mean = key_mean, .pooling = pooling, .n_scored = n_scored, .n_best = n_best};
        TW_TRY_GOTO(status, done, tw_compress_rank(context, l, kv, observation, ranking, heaps.data, err));
        for (size_t g = 0; g < n_kv_heads; g++) topk[g].n = n_best[g];
    } else {
        struct best_sink sink = {n_kv_heads, n_scored, topk};
        TW_TRY_GOTO(
            status, done,
            tw_compress_scores(context, l, kv, observation, kind, key_mean, pooling, n_scored, take_best, &sink, err));
    }
    TW_TRY_GOTO(status, done, tw_kept_allocate(kept, context->accountant, n_kv_heads, n_kept, err));
    for (size_t g = 0; g < n_kv_heads; g++) {
        tw_topk_sort_by_row(&topk[g]);
        for (size_t k = 0; k < n_best[g]; k++) kept->row[g][k] = topk[g].best[k].row;
        for (size_t k = n_best[g]; k < n_kept[g]; k++) kept->row[g][k] = (int32_t)(n_scored[g] + k - n_best[g]);
    }
done:
    tw_buffer_release(&heaps, context->accountant);
    free(topk);
    free(n_kept);
    return status;
}

tw_status tw_compress_windowed(struct tw_kept *kept, const struct tw_selection_context *context, size_t l,
                               const struct tw_kv *kv, struct tw_observation *observation, struct tw_pooling pooling,
                               size_t budget, struct tw_error *err) {
    const size_t n_kv_heads = context->n_kv_heads, window = observation->n_queries;
    if (tw_kv_longest(kv) <= budget) return tw_kept_all(kept, context->accountant, kv, err);
    memset(kept, 0, sizeof *kept);
    size_t *n_scored = calloc(2 * n_kv_heads, sizeof *n_scored);
    if (!n_scored) return TW_FAIL(err, TW_E_MEMORY, "out of memory: counts of kept rows");
    size_t *n_best = n_scored + n_kv_heads;
    assert(budget >= window);
    for (size_t g = 0; g < n_kv_heads; g++) {
        assert(kv->length[g] >= window);
        n_scored[g] = kv->length[g] - window;
        n_best[g] = tw_min_size(budget - window, n_scored[g]);
    }
    const tw_status status =
        tw_compress_best(kept, context, l, kv, observation, TW_SCORE_ATTENTION, NULL, pooling, n_scored, n_best, err);
    free(n_scored);
    return status;
}

tw_status tw_pooling_of(struct tw_pooling *pooling, const struct tw_pooling_options *options, const char *selector,
                        struct tw_error *err) {
    if (options->kernel % 2 == 0)
        return TW_FAIL(err, TW_E_OPTION, "selector '%s': kernel=%llu is even; pooling needs a middle", selector,
                       (unsigned long long)options->kernel);
    *pooling = (struct tw_pooling){.kernel = options->kernel, .maximum = options->pool == 1};
    return TW_OK;
}
