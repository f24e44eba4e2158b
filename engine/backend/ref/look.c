/* Looking at what there is, and filling it from outside. */
#include <assert.h>
#include <string.h>

#include "engine/backend/ref/ref.h"

static void read_rows(const struct tw_backend *backend, float *out, const float *hidden, size_t n, bool normed) {
    const struct tw_model_config *config = &backend->model->config;
    memcpy(out, hidden, n * config->n_embd * sizeof *out);
    for (size_t i = 0; normed && i < n; i++)
        tw_ref_rms_norm(out + i * config->n_embd, out + i * config->n_embd, backend->model->output_norm, config->n_embd,
                        config->norm_epsilon);
}

tw_status tw_ref_read_hidden(struct tw_backend *backend, const struct tw_bridge *bridge, size_t first_row, size_t n,
                             bool normed, float *hidden, struct tw_error *err) {
    (void)err;
    assert(first_row + n <= bridge->n_rows);
    read_rows(backend, hidden, (const float *)bridge->data.data + first_row * backend->model->config.n_embd, n, normed);
    return TW_OK;
}

tw_status tw_ref_read_decode_hidden(struct tw_backend *backend, bool normed, float *hidden, struct tw_error *err) {
    (void)err;
    read_rows(backend, hidden, backend->hidden, 1, normed);
    return TW_OK;
}

tw_status tw_ref_read_kv(struct tw_backend *backend, const struct tw_kv *kv, bool values, size_t head, size_t first,
                         size_t n, float *out, struct tw_error *err) {
    (void)backend, (void)err;
    assert(first + n <= kv->length[head]);
    memcpy(out, values ? tw_ref_value(kv, head, first) : tw_ref_key(kv, head, first), n * kv->head_dim * sizeof *out);
    return TW_OK;
}

tw_status tw_ref_write_kv(struct tw_backend *backend, struct tw_kv *kv, const float *key, const float *value, size_t n,
                          struct tw_error *err) {
    (void)backend, (void)err;
    tw_kv_extend(kv, 0, n);
    for (size_t g = 0; g < kv->n_kv_heads; g++) {
        memcpy(tw_ref_key(kv, g, 0), key + g * n * kv->head_dim, n * kv->head_dim * sizeof *key);
        memcpy(tw_ref_value(kv, g, 0), value + g * n * kv->head_dim, n * kv->head_dim * sizeof *value);
    }
    return TW_OK;
}

tw_status tw_ref_write_observation(struct tw_backend *backend, struct tw_observation *observation, const float *query,
                                   size_t n_queries, size_t first_position, struct tw_error *err) {
    (void)err;
    const size_t d = backend->model->config.head_dim, window = backend->options.window;
    assert(n_queries <= window);
    for (size_t h = 0; h < backend->model->config.n_heads; h++)
        memcpy((float *)observation->query.data + h * window * d, query + h * n_queries * d,
               n_queries * d * sizeof *query);
    observation->n_queries = n_queries;
    observation->first_position = first_position;
    return TW_OK;
}
