/* Prefill of one layer over one chunk, around attention: embed, append, finish. */
#include <assert.h>
#include <string.h>

#include "base/checked.h"
#include "engine/backend/ref/ref.h"

static float *bridge_row(const struct tw_bridge *bridge, const struct tw_backend *backend, size_t row) {
    return (float *)bridge->data.data + row * backend->model->config.n_embd;
}

static void layer_panels(const float **panels, const struct tw_backend *backend) {
    for (size_t m = 0; m < REF_N_MATRICES; m++) panels[m] = backend->layer.buffer[m].data;
}

tw_status tw_ref_embed(struct tw_backend *backend, struct tw_bridge *bridge, size_t first_row, const int32_t *tokens,
                       size_t n, struct tw_error *err) {
    (void)err;
    const struct tw_matrix *embedding = &backend->model->embedding;
    const size_t n_embd = backend->model->config.n_embd;
    assert(first_row + n <= bridge->n_rows);
    for (size_t i = 0; i < n; i++) {
        float *row = bridge_row(bridge, backend, first_row + i);
        assert(tokens[i] >= 0 && (size_t)tokens[i] < embedding->n_rows);
        tw_type_traits(embedding->type)
            ->dequantise(row, embedding->data + (size_t)tokens[i] * embedding->row_bytes, n_embd);
        for (size_t j = 0; j < n_embd; j++) row[j] *= backend->model->config.embedding_scale;
    }
    return TW_OK;
}

/* The queries of the chunk that the observation wants. */
static void observe_queries(const struct tw_backend *backend, struct tw_observation *observation, const float *query,
                            size_t n, size_t first_position) {
    const struct tw_model_config *config = &backend->model->config;
    const size_t d = config->head_dim, window = backend->options.window;
    for (size_t i = 0; i < n; i++) {
        if (first_position + i < observation->first_position) continue;
        const size_t w = first_position + i - observation->first_position;
        assert(w == observation->n_queries && w < window);
        for (size_t h = 0; h < config->n_heads; h++)
            memcpy((float *)observation->query.data + (h * window + w) * d, query + (i * config->n_heads + h) * d,
                   d * sizeof(float));
        observation->n_queries++;
    }
}

tw_status tw_ref_append(struct tw_backend *backend, size_t l, const struct tw_bridge *bridge, size_t first_row,
                        size_t n, size_t first_position, struct tw_kv *kv, struct tw_observation *observation,
                        struct tw_error *err) {
    (void)err;
    const size_t query_width = backend->model->config.n_heads * backend->model->config.head_dim;
    float *query = backend->chunk.buffer[REF_CHUNK_QUERY].data;
    const float *panels[REF_N_MATRICES];
    layer_panels(panels, backend);
    for (size_t first = 0; first < n; first += backend->block_rows) {
        const size_t rows = tw_min_size(backend->block_rows, n - first);
        tw_ref_project(backend, l, bridge_row(bridge, backend, first_row + first), rows, first_position + first, panels,
                       query + first * query_width, kv, backend->chunk.buffer[REF_CHUNK_NORMED].data,
                       backend->chunk.buffer[REF_CHUNK_KV].data);
        tw_kv_extend(kv, first_position + first, rows);
    }
    if (observation) observe_queries(backend, observation, query, n, first_position);
    return TW_OK;
}

tw_status tw_ref_finish(struct tw_backend *backend, size_t l, struct tw_bridge *bridge, size_t first_row, size_t n,
                        struct tw_error *err) {
    (void)err;
    const size_t query_width = backend->model->config.n_heads * backend->model->config.head_dim;
    const float *attention = backend->chunk.buffer[REF_CHUNK_ATTENTION].data;
    const float *panels[REF_N_MATRICES];
    layer_panels(panels, backend);
    for (size_t first = 0; first < n; first += backend->block_rows)
        tw_ref_finish_rows(backend, l, bridge_row(bridge, backend, first_row + first), attention + first * query_width,
                           tw_min_size(backend->block_rows, n - first), panels,
                           backend->chunk.buffer[REF_CHUNK_NORMED].data, backend->chunk.buffer[REF_CHUNK_GATE].data,
                           backend->chunk.buffer[REF_CHUNK_UP].data);
    return TW_OK;
}
