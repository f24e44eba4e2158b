/* The end of a layer: the two streaming passes' operations, gathering, and the logged row. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "engine/backend/cuda/cuda.h"

tw_status tw_cuda_op_observe(struct tw_backend *backend, size_t l, const struct tw_kv *kv,
                             struct tw_observation *observation, size_t block, struct tw_error *err) {
    (void)block; /* bounds memory; the workspace here does not depend on the keys at all */
    struct tw_buffers buffers;
    struct tw_cuda_visible visible;
    const struct tw_cuda_kv rows = tw_cuda_kv_of(backend, kv);
    TW_TRY(tw_cuda_moment(backend, &buffers,
                          &(struct tw_moment_of){.moment = TW_MOMENT_OBSERVE, .n = block, .n_keys = tw_kv_longest(kv)},
                          err));
    tw_status status = tw_cuda_visible_of(backend, &visible, buffers.buffer[TW_CUDA_RANGES].data, l, kv,
                                          observation->n_queries, observation->first_position, false, err);
    if (status == TW_OK) {
        const cudaError_t error =
            tw_cuda_observe(backend->stream, backend->precision, observation->maximum.data, observation->sum.data,
                            backend->open.buffer[TW_CUDA_PARTIALS].data, observation->query.data,
                            (int)backend->options.window, &rows, &visible, backend->model->config.attention_scale);
        if (error != cudaSuccess) status = tw_cuda_fail(backend, error, "first pass of compression", err);
    }
    tw_buffers_release(&buffers, backend->accountant);
    return status;
}

tw_status tw_cuda_scoring_begin(struct tw_backend *backend, struct tw_cuda_scoring *scoring, size_t l,
                                const struct tw_kv *kv, const struct tw_observation *observation,
                                enum tw_score_kind kind, const double *key_mean, void *ranges, double *mean,
                                struct tw_error *err) {
    *scoring =
        (struct tw_cuda_scoring){.l = l, .kind = kind, .observation = observation, .rows = tw_cuda_kv_of(backend, kv)};
    if (kind == TW_SCORE_ATTENTION)
        return tw_cuda_visible_of(backend, &scoring->visible, ranges, l, kv, observation->n_queries,
                                  observation->first_position, false, err);
    if (kind != TW_SCORE_KEYDIFF) return TW_OK;
    scoring->mean = mean;
    return tw_cuda_upload(backend, mean, key_mean, kv->n_kv_heads * kv->head_dim * sizeof *mean, err);
}

tw_status tw_cuda_score_rows(struct tw_backend *backend, const struct tw_cuda_scoring *scoring, size_t first, size_t n,
                             float *scores, struct tw_error *err) {
    const struct tw_observation *const observation = scoring->observation;
    const cudaError_t error =
        scoring->kind == TW_SCORE_ATTENTION
            ? tw_cuda_score_attention(backend->stream, backend->precision, scores, observation->query.data,
                                      observation->maximum.data, observation->sum.data, (int)backend->options.window,
                                      &scoring->rows, &scoring->visible, (int)first, (int)n,
                                      backend->model->config.attention_scale)
            : tw_cuda_score_keys(backend->stream, backend->precision, scores, scoring->mean, &scoring->rows, (int)first,
                                 (int)n);
    CUDA_TRY(backend, error, "second pass of compression", err);
    return TW_OK;
}

tw_status tw_cuda_op_score(struct tw_backend *backend, size_t l, const struct tw_kv *kv,
                           const struct tw_observation *observation, enum tw_score_kind kind, const double *key_mean,
                           size_t first, size_t n, float *score, struct tw_error *err) {
    if (n == 0) return TW_OK;
    struct tw_buffers buffers;
    struct tw_cuda_scoring scoring;
    tw_status status = TW_OK;
    TW_TRY(tw_cuda_moment(backend, &buffers,
                          &(struct tw_moment_of){.moment = TW_MOMENT_SCORE, .n = n, .n_keys = tw_kv_longest(kv)}, err));
    float *const scores = buffers.buffer[TW_CUDA_SCORES].data;
    TW_TRY_GOTO(status, done,
                tw_cuda_scoring_begin(backend, &scoring, l, kv, observation, kind, key_mean,
                                      buffers.buffer[TW_CUDA_SCORE_RANGES].data,
                                      buffers.buffer[TW_CUDA_KEY_MEAN_IN].data, err));
    TW_TRY_GOTO(status, done, tw_cuda_score_rows(backend, &scoring, first, n, scores, err));
    status = tw_cuda_download(backend, score, scores, kv->n_kv_heads * n * sizeof *score, "scores", err);
done:
    tw_buffers_release(&buffers, backend->accountant);
    return status;
}

tw_status tw_cuda_op_key_mean(struct tw_backend *backend, const struct tw_kv *kv, double *key_mean,
                              struct tw_error *err) {
    const struct tw_cuda_kv rows = tw_cuda_kv_of(backend, kv);
    double *const partials = backend->open.buffer[TW_CUDA_PARTIALS].data;
    CUDA_TRY(backend, tw_cuda_key_mean(backend->stream, backend->precision, partials, &rows), "mean of keys", err);
    return tw_cuda_download(backend, key_mean, partials, kv->n_kv_heads * kv->head_dim * sizeof *key_mean,
                            "mean of keys", err);
}

tw_status tw_cuda_op_gather(struct tw_backend *backend, struct tw_kv *to, const struct tw_kv *from,
                            const int32_t *const *kept, const size_t *n_kept, struct tw_error *err) {
    size_t most = 0;
    for (size_t g = 0; g < to->n_kv_heads; g++) most = tw_max_size(most, n_kept[g]);
    tw_kv_gather_books(to, from, kept, n_kept);
    if (most == 0) return TW_OK;
    struct tw_buffers buffers;
    tw_status status = TW_OK;
    int32_t *const list = calloc(to->n_kv_heads * most, sizeof *list);
    if (!list) return TW_FAIL(err, TW_E_MEMORY, "out of memory: kept rows");
    for (size_t g = 0; g < to->n_kv_heads; g++) memcpy(list + g * most, kept[g], n_kept[g] * sizeof *list);
    TW_TRY_GOTO(status, done,
                tw_cuda_moment(backend, &buffers, &(struct tw_moment_of){.moment = TW_MOMENT_GATHER, .n = most}, err));
    status = tw_cuda_upload(backend, buffers.buffer[0].data, list, to->n_kv_heads * most * sizeof *list, err);
    if (status == TW_OK) {
        const struct tw_cuda_kv target = tw_cuda_kv_of(backend, to), source = tw_cuda_kv_of(backend, from);
        const cudaError_t error =
            tw_cuda_gather(backend->stream, backend->precision, &target, &source, buffers.buffer[0].data, (int)most);
        if (error != cudaSuccess) status = tw_cuda_fail(backend, error, "gathering kept rows", err);
    }
    tw_buffers_release(&buffers, backend->accountant);
done:
    free(list);
    return status;
}

/* ---- one row ---- */

struct tw_cuda_row_state *tw_cuda_row_states(const struct tw_backend *backend) {
    const struct tw_model_config *const config = &backend->model->config;
    float *const partials = backend->open.buffer[TW_CUDA_PARTIALS].data;
    /* Behind the partial outputs; what is left is TW_CUDA_SPLITS * 2 floats a head. */
    _Static_assert(sizeof(struct tw_cuda_row_state) <= TW_CUDA_SPLITS * 2 * sizeof(float), "row states fit");
    return (struct tw_cuda_row_state *)(partials + TW_CUDA_SPLITS * config->n_heads * config->head_dim);
}

void tw_cuda_row_ranges_of(struct tw_cuda_row_ranges *ranges, const struct tw_backend *backend, size_t l,
                           const struct tw_kv *kv, size_t position, const struct tw_attention_log *log) {
    const size_t window = backend->model->layers[l].sliding_window;
    for (size_t g = 0; g < kv->n_kv_heads; g++) {
        const size_t end = tw_cuda_rows_before(kv, g, position + 1);
        ranges->begin[g] =
            window && position + 1 > window ? (int32_t)tw_cuda_rows_before(kv, g, position + 1 - window) : 0;
        ranges->end[g] = (int32_t)end;
        ranges->needle_begin[g] = ranges->needle_end[g] = ranges->rest_begin[g] = ranges->rest_end[g] = 0;
        if (!log || log->needle_end <= log->needle_begin) continue;
        ranges->needle_begin[g] = (int32_t)tw_cuda_rows_before(kv, g, log->needle_begin);
        ranges->needle_end[g] = (int32_t)tw_cuda_rows_before(kv, g, log->needle_end);
        /* Neither sink nor local: positions from sink_tokens to position - local_window. */
        ranges->rest_begin[g] = (int32_t)tw_cuda_rows_before(kv, g, log->sink_tokens);
        ranges->rest_end[g] = position + 1 > log->local_window
                                  ? (int32_t)tw_cuda_rows_before(kv, g, position + 1 - log->local_window)
                                  : 0;
    }
}

tw_status tw_cuda_log_check(const struct tw_attention_log *log, struct tw_error *err) {
    if (log->top_k <= TW_CUDA_MAX_TOP_K) return TW_OK;
    return TW_FAIL(err, TW_E_OPTION, "backend 'cuda' logs up to %d positions a head, not %zu: a smaller --top-k",
                   TW_CUDA_MAX_TOP_K, log->top_k);
}

static int32_t position_of(const struct tw_kv *kv, size_t g, uint64_t entry) {
    return (int32_t)tw_kv_position(kv, g, (size_t)tw_cuda_entry_row(entry));
}

tw_status tw_cuda_log_read(struct tw_backend *backend, const struct tw_kv *kv, const uint64_t *best,
                           const struct tw_cuda_row_state *state, struct tw_attention_log *log, struct tw_error *err) {
    const size_t n_heads = backend->model->config.n_heads, group = n_heads / kv->n_kv_heads, k = log->top_k;
    tw_status status = TW_OK;
    uint64_t *const entries = malloc((n_heads * k + 1) * sizeof *entries);
    struct tw_cuda_row_state *const states = malloc(n_heads * sizeof *states);
    if (!entries || !states) {
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory: the attention log");
        goto done;
    }
    if (k > 0)
        TW_TRY_GOTO(status, done,
                    tw_cuda_download(backend, entries, best, n_heads * k * sizeof *entries, "attention log", err));
    TW_TRY_GOTO(status, done, tw_cuda_download(backend, states, state, n_heads * sizeof *states, "attention log", err));
    for (size_t h = 0; h < n_heads; h++) {
        const size_t g = h / group;
        for (size_t i = 0; i < k; i++) {
            const uint64_t entry = entries[h * k + i];
            const uint32_t bits = (uint32_t)(entry >> 32);
            log->position[h * k + i] = entry ? position_of(kv, g, entry) : -1;
            memcpy(&log->weight[h * k + i], &bits, sizeof bits);
        }
        if (log->needle_end <= log->needle_begin) continue;
        log->needle_mass[h] = (float)states[h].needle;
        log->rest_mass[h] = (float)states[h].rest;
        log->argmax[h] = states[h].best ? position_of(kv, g, states[h].best) : -1;
    }
done:
    free(entries);
    free(states);
    return status;
}

tw_status tw_cuda_op_log_row(struct tw_backend *backend, size_t l, const struct tw_kv *kv,
                             const struct tw_observation *observation, struct tw_attention_log *log,
                             struct tw_error *err) {
    const struct tw_model_config *const config = &backend->model->config;
    const size_t d = config->head_dim, window = backend->options.window, n_keys = tw_kv_longest(kv);
    const size_t w = observation->n_queries - 1;
    const struct tw_cuda_kv rows = tw_cuda_kv_of(backend, kv);
    struct tw_cuda_row_state *const state = tw_cuda_row_states(backend);
    struct tw_cuda_row_ranges ranges;
    struct tw_buffers buffers;
    tw_status status = TW_OK;
    assert(observation->n_queries > 0);
    TW_TRY(tw_cuda_log_check(log, err));
    tw_cuda_row_ranges_of(&ranges, backend, l, kv, observation->first_position + w, log);
    TW_TRY(tw_cuda_moment(
        backend, &buffers,
        &(struct tw_moment_of){.moment = TW_MOMENT_LOG_ROW, .n = log->top_k, .n_keys = n_keys, .layer = l}, err));
    float *const row = buffers.buffer[TW_CUDA_PIECES].data;
    uint64_t *const candidates = buffers.buffer[TW_CUDA_CANDIDATES].data;
    uint64_t *const best = candidates + config->n_heads * (TW_CUDA_PIECE + log->top_k);
    const char *const query = (const char *)observation->query.data + w * d * backend->element;
    const bool sums = log->needle_end > log->needle_begin;
    /* Once for maximum and sum, once for the weights. */
    for (int pass = 0; pass < 2 && status == TW_OK; pass++)
        for (size_t first = 0; first < n_keys && status == TW_OK; first += TW_CUDA_PIECE) {
            const int n = (int)tw_min_size(TW_CUDA_PIECE, n_keys - first);
            cudaError_t error =
                tw_cuda_row_logits(backend->stream, backend->precision, row, TW_CUDA_PIECE, query, window * d, false,
                                   &rows, &ranges, (int)first, n, config->attention_scale);
            if (error == cudaSuccess && pass == 0)
                error =
                    tw_cuda_row_fold(backend->stream, state, row, TW_CUDA_PIECE, (int)config->n_heads, n, first == 0);
            if (error == cudaSuccess && pass == 1)
                error = tw_cuda_row_weights(backend->stream, state, row, TW_CUDA_PIECE, &rows, &ranges, (int)first, n,
                                            sums);
            if (error == cudaSuccess && pass == 1 && log->top_k > 0)
                error = tw_cuda_top(backend->stream, best, candidates, (int)log->top_k, row, TW_CUDA_PIECE, &rows,
                                    &ranges, (int)first, n, TW_CUDA_PIECE, first == 0);
            if (error != cudaSuccess) status = tw_cuda_fail(backend, error, "logging an attention row", err);
        }
    if (status == TW_OK) status = tw_cuda_log_read(backend, kv, best, state, log, err);
    tw_buffers_release(&buffers, backend->accountant);
    return status;
}
