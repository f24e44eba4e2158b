/*
 * ChunkKV: snapkv's scores, summed over the KV heads, averaged over chunks of neighbouring positions; whole chunks are
 * kept by score, the first that does not fit is cut to its first positions. The same for all heads, and the window.
 */
#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "engine/prefill/compress.h"
#include "engine/prefill/topk.h"

struct chunkkv_options {
    struct tw_pooling_options pooling;
    uint64_t size;
};

static const struct tw_option chunkkv_options[] = {
    TW_POOLING_OPTION_ROWS,
    {.name = "size",
     .type = TW_OPTION_U64,
     .offset = offsetof(struct chunkkv_options, size),
     .default_value = "10",
     .minimum = 1,
     .maximum = 1 << 20,
     .value_name = "N",
     .help = "positions a chunk"},
    {0},
};

static tw_status layer_budget(size_t *budget, const struct tw_selection_context *context, const void *options, size_t l,
                              struct tw_error *err) {
    (void)options, (void)l;
    return tw_uniform_budget(budget, context, true, "chunkkv", err);
}

struct chunks {
    size_t n_kv_heads, n_scored, size;
    struct tw_topk best; /* chunks: `row` is the chunk's number */
    double sum;          /* of the chunk that is being filled */
};

static tw_status take_scores(void *context, size_t first, size_t n, const float *score, struct tw_error *err) {
    (void)err;
    struct chunks *chunks = context;
    for (size_t i = 0; i < n; i++) {
        const size_t row = first + i, begin = row / chunks->size * chunks->size;
        for (size_t g = 0; g < chunks->n_kv_heads; g++) chunks->sum += score[g * n + i];
        if (row + 1 < tw_min_size(begin + chunks->size, chunks->n_scored)) continue;
        const float mean = (float)(chunks->sum / (double)(row + 1 - begin));
        tw_topk_offer(&chunks->best, (struct tw_scored){mean, (int32_t)(row / chunks->size), 0}, NULL);
        chunks->sum = 0;
    }
    return TW_OK;
}

/* Cuts the list to the chunks that are kept, in ascending order; *cut is how much of chunk *cut_chunk is. */
static void fit(struct chunks *chunks, size_t n, int32_t *cut_chunk, size_t *cut) {
    *cut_chunk = -1;
    *cut = 0;
    tw_topk_sort_by_score(&chunks->best);
    size_t taken = 0, left = n;
    for (; taken < chunks->best.n && left > 0; taken++) {
        const size_t begin = (size_t)chunks->best.best[taken].row * chunks->size;
        const size_t rows = tw_min_size(chunks->size, chunks->n_scored - begin);
        if (rows > left) {
            *cut_chunk = chunks->best.best[taken].row;
            *cut = left;
        }
        left -= tw_min_size(rows, left);
    }
    assert(left == 0);
    chunks->best.n = taken;
    tw_topk_sort_by_row(&chunks->best);
}

static tw_status select_rows(struct tw_kept *kept, const struct tw_selection_context *context, const void *options,
                             size_t l, const struct tw_kv *kv, struct tw_observation *observation,
                             struct tw_error *err) {
    const struct chunkkv_options *o = options;
    const size_t n_kv_heads = context->n_kv_heads, window = observation->n_queries, length = kv->length[0];
    struct tw_pooling pooling;
    struct tw_buffer memory = {0};
    size_t budget;
    memset(kept, 0, sizeof *kept);
    TW_TRY(tw_pooling_of(&pooling, &o->pooling, "chunkkv", err));
    TW_TRY(layer_budget(&budget, context, options, l, err));
    if (length <= budget) return tw_kept_all(kept, context->accountant, kv, err);

    const size_t n = budget - window;
    tw_status status = TW_OK;
    struct chunks chunks = {.n_kv_heads = n_kv_heads, .n_scored = length - window, .size = o->size};
    size_t *n_scored = calloc(3 * n_kv_heads, sizeof *n_scored);
    if (!n_scored) return TW_FAIL(err, TW_E_MEMORY, "out of memory: counts of kept rows");
    size_t *const n_kept = n_scored + n_kv_heads, *const n_best = n_kept + n_kv_heads;
    for (size_t g = 0; g < n_kv_heads; g++) {
        assert(kv->length[g] == length);
        n_scored[g] = length - window;
        n_kept[g] = budget;
    }
    /* One more than fill the budget, since the prompt's last chunk may be short. */
    chunks.best.k = tw_divide_up(n, o->size) + 1;
    TW_TRY_GOTO(status, done,
                tw_buffer_allocate_host(&memory, context->accountant, chunks.best.k * sizeof(struct tw_scored),
                                        TW_CATEGORY_COMPRESSION, "running top-k", err));
    chunks.best.best = memory.data;
    if (context->ranks) {
        n_best[0] = chunks.best.n = tw_min_size(chunks.best.k, tw_divide_up(chunks.n_scored, o->size));
        const struct tw_ranking ranking = {
            .kind = TW_SCORE_ATTENTION, .pooling = pooling, .n_scored = n_scored, .n_best = n_best, .chunk = o->size};
        TW_TRY_GOTO(status, done, tw_compress_rank(context, l, kv, observation, ranking, memory.data, err));
    } else {
        TW_TRY_GOTO(status, done,
                    tw_compress_scores(context, l, kv, observation, TW_SCORE_ATTENTION, NULL, pooling, n_scored,
                                       take_scores, &chunks, err));
    }
    TW_TRY_GOTO(status, done, tw_kept_allocate(kept, context->accountant, n_kv_heads, n_kept, err));
    int32_t cut_chunk;
    size_t cut, at = 0;
    fit(&chunks, n, &cut_chunk, &cut);
    for (size_t k = 0; k < chunks.best.n; k++) {
        const size_t begin = (size_t)chunks.best.best[k].row * o->size;
        const size_t rows = chunks.best.best[k].row == cut_chunk ? cut : tw_min_size(o->size, chunks.n_scored - begin);
        for (size_t i = 0; i < rows; i++) kept->row[0][at++] = (int32_t)(begin + i);
    }
    for (size_t r = chunks.n_scored; r < length; r++) kept->row[0][at++] = (int32_t)r;
    assert(at == budget);
    for (size_t g = 1; g < n_kv_heads; g++) memcpy(kept->row[g], kept->row[0], budget * sizeof(int32_t));
done:
    tw_buffer_release(&memory, context->accountant);
    free(n_scored);
    return status;
}

const struct tw_selector tw_selector_chunkkv = {
    .name = "chunkkv",
    .summary = "snapkv's scores over chunks of neighbours, the same for all heads",
    .source = "ChunkKV (Liu et al., 2025)",
    .options = chunkkv_options,
    .options_size = sizeof(struct chunkkv_options),
    .windowed = true,
    .needs_observation = true,
    .layer_budget = layer_budget,
    .select = select_rows,
};
