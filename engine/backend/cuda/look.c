/* Looking at what there is, and filling it from outside. Rows cross as they are and are converted on the host. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "engine/backend/cuda/cuda.h"

/* n numbers of the activations' precision. */
static tw_status read_numbers(struct tw_backend *backend, float *out, const void *device, size_t n,
                              struct tw_error *err) {
    if (n == 0) return TW_OK;
    if (backend->precision == TW_CUDA_F32)
        return tw_cuda_download(backend, out, device, n * sizeof *out, "reading activations", err);
    uint16_t *const raw = malloc(n * sizeof *raw);
    if (!raw) return TW_FAIL(err, TW_E_MEMORY, "out of memory: activations on the host");
    const tw_status status = tw_cuda_download(backend, raw, device, n * sizeof *raw, "reading activations", err);
    for (size_t i = 0; status == TW_OK && i < n; i++) out[i] = tw_float_from_bf16(raw[i]);
    free(raw);
    return status;
}

static tw_status write_numbers(struct tw_backend *backend, void *device, const float *in, size_t n,
                               struct tw_error *err) {
    if (n == 0) return TW_OK;
    if (backend->precision == TW_CUDA_F32) return tw_cuda_upload(backend, device, in, n * sizeof *in, err);
    uint16_t *const raw = malloc(n * sizeof *raw);
    if (!raw) return TW_FAIL(err, TW_E_MEMORY, "out of memory: activations on the host");
    for (size_t i = 0; i < n; i++) raw[i] = tw_bf16_from_float(in[i]);
    const tw_status status = tw_cuda_upload(backend, device, raw, n * sizeof *raw, err);
    free(raw);
    return status;
}

static void norm_rows(const struct tw_backend *backend, float *rows, size_t n) {
    const struct tw_model_config *const config = &backend->model->config;
    for (size_t i = 0; i < n; i++) {
        float *const row = rows + i * config->n_embd;
        double square = 0;
        for (size_t j = 0; j < config->n_embd; j++) square += (double)row[j] * row[j];
        const float scale = (float)(1 / sqrt(square / (double)config->n_embd + config->norm_epsilon));
        for (size_t j = 0; j < config->n_embd; j++) row[j] = row[j] * scale * backend->model->output_norm[j];
    }
}

tw_status tw_cuda_op_read_hidden(struct tw_backend *backend, const struct tw_bridge *bridge, size_t first_row, size_t n,
                                 bool normed, float *hidden, struct tw_error *err) {
    assert(first_row + n <= bridge->n_rows);
    TW_TRY(
        read_numbers(backend, hidden, tw_cuda_row(backend, bridge, first_row), n * backend->model->config.n_embd, err));
    if (normed) norm_rows(backend, hidden, n);
    return TW_OK;
}

tw_status tw_cuda_op_read_decode_hidden(struct tw_backend *backend, bool normed, float *hidden, struct tw_error *err) {
    TW_TRY(tw_cuda_download(backend, hidden, backend->hidden, backend->model->config.n_embd * sizeof *hidden,
                            "reading the decoding state", err));
    if (normed) norm_rows(backend, hidden, 1);
    return TW_OK;
}

static char *kv_row(const struct tw_backend *backend, const struct tw_kv *kv, bool values, size_t head, size_t row) {
    return (char *)(values ? kv->value.data : kv->key.data) +
           (kv->offset[head] + row) * kv->head_dim * backend->element;
}

tw_status tw_cuda_op_read_kv(struct tw_backend *backend, const struct tw_kv *kv, bool values, size_t head, size_t first,
                             size_t n, float *out, struct tw_error *err) {
    assert(first + n <= kv->length[head]);
    return read_numbers(backend, out, kv_row(backend, kv, values, head, first), n * kv->head_dim, err);
}

tw_status tw_cuda_op_write_kv(struct tw_backend *backend, struct tw_kv *kv, const float *key, const float *value,
                              size_t n, struct tw_error *err) {
    tw_kv_extend(kv, 0, n);
    for (size_t g = 0; g < kv->n_kv_heads; g++) {
        const size_t numbers = n * kv->head_dim;
        TW_TRY(write_numbers(backend, kv_row(backend, kv, false, g, 0), key + g * numbers, numbers, err));
        TW_TRY(write_numbers(backend, kv_row(backend, kv, true, g, 0), value + g * numbers, numbers, err));
    }
    return TW_OK;
}

tw_status tw_cuda_op_write_observation(struct tw_backend *backend, struct tw_observation *observation,
                                       const float *query, size_t n_queries, size_t first_position,
                                       struct tw_error *err) {
    const size_t d = backend->model->config.head_dim, window = backend->options.window;
    assert(n_queries <= window);
    for (size_t h = 0; h < backend->model->config.n_heads; h++)
        TW_TRY(write_numbers(backend, (char *)observation->query.data + h * window * d * backend->element,
                             query + h * n_queries * d, n_queries * d, err));
    observation->n_queries = n_queries;
    observation->first_position = first_position;
    return TW_OK;
}
