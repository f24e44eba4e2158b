/*
 * The second streaming pass with its top-k: blocks of scores are pooled and merged into running lists on the device,
 * and only the lists come to the host. A block's neighbours, which pooling needs, are scored once more: a score does
 * not depend on what is scored beside it.
 */
#include <string.h>

#include "base/checked.h"
#include "engine/backend/cuda/cuda.h"

struct ranking {
    struct tw_backend *backend;
    const struct tw_ranking *ask;
    struct tw_cuda_scoring scoring;
    struct tw_cuda_lists lists;
    struct tw_buffers buffers;
    size_t n_kv_heads, n_rows, block;
    size_t own_entries;
    size_t turn;  /* which of the two lists holds what has been found */
    size_t began; /* chunk sums: which of the two goes on */
};

static uint64_t *list_of(const struct ranking *r, size_t turn) {
    return (uint64_t *)r->buffers.buffer[TW_CUDA_LISTS].data + turn * tw_cuda_rank_entries(r->ask, r->n_kv_heads);
}

/* Pooled scores of rows [first, first + n). */
static tw_status pool(struct ranking *r, size_t first, size_t n, struct tw_error *err) {
    struct tw_backend *const backend = r->backend;
    const size_t half = r->ask->pooling.kernel / 2;
    const size_t from = first > half ? first - half : 0, end = tw_min_size(first + n + half, r->n_rows);
    float *const raw = r->buffers.buffer[TW_CUDA_SCORES].data;
    TW_TRY(tw_cuda_score_rows(backend, &r->scoring, from, end - from, raw, err));
    CUDA_TRY(backend,
             tw_cuda_pool_scores(backend->stream, r->buffers.buffer[TW_CUDA_POOLED].data, raw, end - from, (int)from,
                                 (int)first, (int)n, &r->lists, (int)r->ask->pooling.kernel, r->ask->pooling.maximum),
             "pooling scores", err);
    return TW_OK;
}

/* Merges a block's chunks that are over into the list. */
static tw_status merge_chunks(struct ranking *r, size_t first, size_t n, struct tw_error *err) {
    struct tw_backend *const backend = r->backend;
    const size_t size = r->ask->chunk, n_scored = r->ask->n_scored[0], begin = first / size;
    const size_t end = first + n == n_scored ? tw_divide_up(n_scored, size) : (first + n) / size;
    double *const carry = r->buffers.buffer[TW_CUDA_CHUNKS].data;
    float *const mean = (float *)(carry + 2);
    struct tw_cuda_lists one = {.n_heads = 1};
    one.n_scored[0] = (int32_t)end;
    one.k[0] = r->lists.k[0];
    CUDA_TRY(backend,
             tw_cuda_chunk_means(backend->stream, mean, carry, (int)r->began, r->buffers.buffer[TW_CUDA_POOLED].data,
                                 (int)r->n_kv_heads, (int)first, (int)n, (int)n_scored, (int)size),
             "means of chunks", err);
    r->began = 1 - r->began;
    if (end == begin) return TW_OK;
    CUDA_TRY(backend,
             tw_cuda_rank(backend->stream, list_of(r, 1 - r->turn), list_of(r, r->turn),
                          r->buffers.buffer[TW_CUDA_LEAST].data, mean, end - begin, &one, (int)begin,
                          (int)(end - begin), begin == 0),
             "merging scores", err);
    r->turn = 1 - r->turn;
    return TW_OK;
}

/* Each head's own list, or (`rest`) the shared one, whose place is behind the others. */
static tw_status merge(struct ranking *r, size_t first, size_t n, bool rest, struct tw_error *err) {
    struct tw_backend *const backend = r->backend;
    const size_t at = rest ? r->own_entries : 0;
    uint64_t *const to = list_of(r, 1 - r->turn) + at, *const from = list_of(r, r->turn) + at;
    uint64_t *const least = r->buffers.buffer[TW_CUDA_LEAST].data;
    const float *const pooled = r->buffers.buffer[TW_CUDA_POOLED].data;
    const cudaError_t error =
        rest ? tw_cuda_rank_rest(backend->stream, to, from, (int)r->ask->n_shared, r->buffers.buffer[TW_CUDA_REST].data,
                                 least, pooled, n, &r->lists, (int)first, (int)n, first == 0)
             : tw_cuda_rank(backend->stream, to, from, least, pooled, n, &r->lists, (int)first, (int)n, first == 0);
    CUDA_TRY(backend, error, "merging scores", err);
    r->turn = 1 - r->turn;
    return TW_OK;
}

static tw_status sweep(struct ranking *r, bool rest, struct tw_error *err) {
    for (size_t first = 0; first < r->n_rows; first += r->block) {
        const size_t n = tw_min_size(r->block, r->n_rows - first);
        TW_TRY(pool(r, first, n, err));
        TW_TRY(r->ask->chunk ? merge_chunks(r, first, n, err) : merge(r, first, n, rest, err));
    }
    return TW_OK;
}

/*
 * n entries (device) as scored rows. They come in the upper part of the place where they go: a scored row is written
 * over entries that have been read.
 */
static tw_status fetch(struct ranking *r, struct tw_scored *best, const uint64_t *entries, size_t n, bool heads,
                       struct tw_error *err) {
    char *const raw = (char *)best + n * (sizeof *best - sizeof *entries);
    const uint32_t strands = r->ask->chunk ? 1 : (uint32_t)r->n_kv_heads;
    if (n == 0) return TW_OK;
    _Static_assert(sizeof *best >= sizeof *entries, "entries fit");
    TW_TRY(tw_cuda_download(r->backend, raw, entries, n * sizeof *entries, "the best rows", err));
    for (size_t i = 0; i < n; i++) {
        uint64_t entry;
        memcpy(&entry, raw + i * sizeof entry, sizeof entry);
        const uint32_t index = 0xffffffffu - (uint32_t)entry;
        best[i] = (struct tw_scored){tw_cuda_entry_score(entry), (int32_t)(index / strands),
                                     heads ? (int32_t)(index % strands) : 0};
    }
    return TW_OK;
}

tw_status tw_cuda_op_rank(struct tw_backend *backend, size_t l, const struct tw_kv *kv,
                          const struct tw_observation *observation, const struct tw_ranking *ranking,
                          struct tw_scored *best, struct tw_error *err) {
    struct ranking r = {.backend = backend, .ask = ranking, .n_kv_heads = kv->n_kv_heads};
    tw_status status = TW_OK;
    r.lists.n_heads = (int)kv->n_kv_heads;
    for (size_t g = 0; g < kv->n_kv_heads; g++) {
        r.lists.n_scored[g] = (int32_t)ranking->n_scored[g];
        r.lists.k[g] = (int32_t)ranking->n_best[g];
        r.lists.offset[g] = (int64_t)r.own_entries;
        r.own_entries += ranking->n_best[g];
        r.n_rows = tw_max_size(r.n_rows, ranking->n_scored[g]);
    }
    if (tw_cuda_rank_entries(ranking, kv->n_kv_heads) == 0) return TW_OK;
    r.block = tw_min_size(ranking->block, r.n_rows);
    TW_TRY(
        tw_cuda_moment(backend, &r.buffers,
                       &(struct tw_moment_of){
                           .moment = TW_MOMENT_RANK, .n = r.block, .n_keys = r.n_rows, .layer = l, .ranking = ranking},
                       err));
    TW_TRY_GOTO(status, done,
                tw_cuda_scoring_begin(backend, &r.scoring, l, kv, observation, ranking->kind, ranking->key_mean,
                                      r.buffers.buffer[TW_CUDA_SCORE_RANGES].data,
                                      r.buffers.buffer[TW_CUDA_KEY_MEAN_IN].data, err));
    TW_TRY_GOTO(status, done, sweep(&r, false, err));
    TW_TRY_GOTO(status, done, fetch(&r, best, list_of(&r, r.turn), r.own_entries, false, err));
    if (ranking->n_shared == 0) goto done;
    TW_TRY_GOTO(status, done, sweep(&r, true, err));
    status = fetch(&r, best + r.own_entries, list_of(&r, r.turn) + r.own_entries, ranking->n_shared, true, err);
done:
    tw_buffers_release(&r.buffers, backend->accountant);
    return status;
}
