/* Decoding, one token: the same operations on one row, straight from the weights as they are on disk; and logits. */
#include <assert.h>
#include <string.h>

#include "base/checked.h"
#include "engine/backend/ref/ref.h"

static const float *const not_unpacked[REF_N_MATRICES];

tw_status tw_ref_decode_begin(struct tw_backend *backend, int32_t token, struct tw_error *err) {
    struct tw_bridge row = {.n_rows = 1, .data = {.data = backend->hidden}};
    return tw_ref_embed(backend, &row, 0, &token, 1, err);
}

tw_status tw_ref_decode_layer(struct tw_backend *backend, size_t l, struct tw_kv *kv, size_t position,
                              struct tw_attention_log *log, struct tw_error *err) {
    (void)err;
    const struct tw_model_config *config = &backend->model->config;
    const size_t d = config->head_dim, group = config->n_heads / config->n_kv_heads;
    tw_ref_project(backend, l, backend->hidden, 1, position, not_unpacked, backend->query, kv, backend->normed,
                   backend->kv_rows);
    tw_kv_extend(kv, position, 1);
#pragma omp parallel for schedule(dynamic) num_threads((int)backend->options.n_threads)
    for (size_t h = 0; h < config->n_heads; h++)
        tw_ref_attend_tiled(backend->attention + h * d, backend->query + h * d, kv, h / group, kv->length[h / group],
                            position, backend->model->layers[l].sliding_window, config->attention_scale);
    if (log) tw_ref_log_attention(backend, l, kv, backend->query, d, position, log);
    tw_ref_finish_rows(backend, l, backend->hidden, backend->attention, 1, not_unpacked, backend->normed, backend->gate,
                       backend->up);
    return TW_OK;
}

/* logits [n][n_vocab] of n rows of hidden states, one after another: the scratch of the products is one row wide. */
static void output_rows(const struct tw_backend *backend, float *logits, const float *hidden, size_t n) {
    const struct tw_model_config *config = &backend->model->config;
    const size_t rows = backend->chunk.n ? backend->block_rows : 1;
    float *normed = backend->chunk.n ? backend->chunk.buffer[REF_CHUNK_NORMED].data : backend->normed;
    for (size_t first = 0; first < n; first += rows) {
        const size_t m = tw_min_size(rows, n - first);
        for (size_t i = 0; i < m; i++)
            tw_ref_rms_norm(normed + i * config->n_embd, hidden + (first + i) * config->n_embd,
                            backend->model->output_norm, config->n_embd, config->norm_epsilon);
        tw_ref_product(backend, logits + first * config->n_vocab, config->n_vocab, normed, config->n_embd, m,
                       &backend->model->output, NULL);
    }
}

tw_status tw_ref_decode_logits(struct tw_backend *backend, float *logits, struct tw_error *err) {
    (void)err;
    output_rows(backend, logits, backend->hidden, 1);
    return TW_OK;
}

tw_status tw_ref_logits(struct tw_backend *backend, const struct tw_bridge *bridge, size_t first_row, size_t n,
                        float *logits, struct tw_error *err) {
    (void)err;
    assert(first_row + n <= bridge->n_rows);
    output_rows(backend, logits, (const float *)bridge->data.data + first_row * backend->model->config.n_embd, n);
    return TW_OK;
}
