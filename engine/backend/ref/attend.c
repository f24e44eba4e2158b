/* Attention of a chunk's queries, tiled (running softmax) and eager (scores materialised). */
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "engine/backend/ref/ref.h"

void tw_ref_logits_of(float *logit, const float *query, const struct tw_kv *kv, size_t g, size_t first, size_t n,
                      size_t position, size_t sliding_window, float scale) {
    for (size_t i = 0; i < n; i++) {
        const size_t at = tw_kv_position(kv, g, first + i);
        if (at > position || (sliding_window && at + sliding_window <= position)) {
            logit[i] = -INFINITY;
            continue;
        }
        const float *key = tw_ref_key(kv, g, first + i);
        float sum = 0;
        for (size_t j = 0; j < kv->head_dim; j++) sum += query[j] * key[j];
        logit[i] = sum * scale;
    }
}

static float greatest(const float *x, size_t n) {
    float maximum = -INFINITY;
    for (size_t i = 0; i < n; i++) maximum = fmaxf(maximum, x[i]);
    return maximum;
}

/*
 * Per block of keys with maximum m_b: m' = max(m, m_b); Z' = Z exp(m - m') + sum of exp(a - m'); the same for the
 * weighted values. Blocks lie on the grid of the KV's rows, so that the result does not depend on the chunk.
 */
void tw_ref_attend_tiled(float *out, const float *query, const struct tw_kv *kv, size_t g, size_t n_rows,
                         size_t position, size_t sliding_window, float scale) {
    const size_t d = kv->head_dim;
    float maximum = -INFINITY, sum = 0;
    memset(out, 0, d * sizeof *out);
    for (size_t first = 0; first < n_rows; first += TW_REF_KEYS) {
        float logit[TW_REF_KEYS];
        const size_t n = tw_min_size(TW_REF_KEYS, n_rows - first);
        tw_ref_logits_of(logit, query, kv, g, first, n, position, sliding_window, scale);
        const float block_maximum = greatest(logit, n);
        if (block_maximum == -INFINITY) continue;
        const float new_maximum = fmaxf(maximum, block_maximum);
        const float rescale = expf(maximum - new_maximum);
        sum *= rescale;
        for (size_t j = 0; j < d; j++) out[j] *= rescale;
        maximum = new_maximum;
        for (size_t i = 0; i < n; i++) {
            const float p = expf(logit[i] - maximum);
            const float *value = tw_ref_value(kv, g, first + i);
            sum += p;
            for (size_t j = 0; j < d; j++) out[j] += p * value[j];
        }
    }
    for (size_t j = 0; j < d; j++) out[j] /= sum;
}

/* logit [n_rows] is where the scores of this query and head are kept. */
static void attend_eager(float *out, float *logit, const float *query, const struct tw_kv *kv, size_t g, size_t n_rows,
                         size_t position, size_t sliding_window, float scale) {
    const size_t d = kv->head_dim;
    tw_ref_logits_of(logit, query, kv, g, 0, n_rows, position, sliding_window, scale);
    const float maximum = greatest(logit, n_rows);
    float sum = 0;
    for (size_t i = 0; i < n_rows; i++) {
        logit[i] = expf(logit[i] - maximum);
        sum += logit[i];
    }
    memset(out, 0, d * sizeof *out);
    for (size_t i = 0; i < n_rows; i++) {
        const float *value = tw_ref_value(kv, g, i);
        for (size_t j = 0; j < d; j++) out[j] += logit[i] / sum * value[j];
    }
}

tw_status tw_ref_attend(struct tw_backend *backend, size_t l, const struct tw_kv *kv, size_t n, size_t first_position,
                        struct tw_error *err) {
    const struct tw_model_config *config = &backend->model->config;
    const size_t sliding_window = backend->model->layers[l].sliding_window;
    const size_t d = config->head_dim, group = config->n_heads / config->n_kv_heads;
    const size_t n_keys = tw_kv_longest(kv);
    const float *query = backend->chunk.buffer[REF_CHUNK_QUERY].data;
    float *attention = backend->chunk.buffer[REF_CHUNK_ATTENTION].data;
    struct tw_buffers eager;
    TW_TRY(tw_buffers_allocate(&eager, backend->accountant, &tw_ref_image, backend->model, &backend->options,
                               &(struct tw_moment_of){.moment = TW_MOMENT_ATTEND, .n = n, .n_keys = n_keys}, err));
    float *scores = eager.buffer[0].data; /* [n_heads][n][n_keys] */
#pragma omp parallel for collapse(2) schedule(dynamic, 16) num_threads((int)backend->options.n_threads)
    for (size_t h = 0; h < config->n_heads; h++)
        for (size_t i = 0; i < n; i++) {
            const size_t g = h / group;
            const size_t n_rows = kv->length[g] - (n - 1 - i);
            const float *q = query + (i * config->n_heads + h) * d;
            float *out = attention + (i * config->n_heads + h) * d;
            if (scores)
                attend_eager(out, scores + (h * n + i) * n_keys, q, kv, g, n_rows, first_position + i, sliding_window,
                             config->attention_scale);
            else
                tw_ref_attend_tiled(out, q, kv, g, n_rows, first_position + i, sliding_window, config->attention_scale);
        }
    tw_buffers_release(&eager, backend->accountant);
    return TW_OK;
}
