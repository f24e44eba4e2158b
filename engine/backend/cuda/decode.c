/* Decoding, one token, float state, straight from the weights as they are on disk; and logits. */
#include <assert.h>
#include <string.h>

#include "base/checked.h"
#include "engine/backend/cuda/cuda.h"

tw_status tw_cuda_op_decode_begin(struct tw_backend *backend, int32_t token, struct tw_error *err) {
    const struct tw_model *const model = backend->model;
    const struct tw_matrix *const embedding = &model->embedding;
    assert(token >= 0 && (size_t)token < embedding->n_rows);
    const uint8_t *row;
    if (backend->options.weights == TW_WEIGHTS_STREAM) {
        row = (const uint8_t *)backend->normed; /* room for a row of any type; normed is not in use yet */
        TW_TRY(tw_cuda_upload(backend, backend->normed, embedding->data + (size_t)token * embedding->row_bytes,
                              embedding->row_bytes, err));
    } else {
        row = (const uint8_t *)backend->open.buffer[TW_CUDA_WEIGHTS].data + tw_cuda_embedding_offset(model) +
              (size_t)token * embedding->row_bytes;
    }
    CUDA_TRY(backend,
             tw_cuda_embed(backend->stream, TW_CUDA_F32, backend->hidden, row, (int)embedding->type,
                           embedding->row_bytes, (int)model->config.n_embd, NULL, 1, model->config.embedding_scale),
             "embedding a token", err);
    return TW_OK;
}

/* y = W x for matrix `which` of the layer. */
static tw_status product(struct tw_backend *backend, float *y, const float *x, size_t l, size_t which,
                         struct tw_error *err) {
    const struct tw_matrix *const matrix = tw_cuda_layer_matrix(&backend->model->layers[l], which);
    CUDA_TRY(backend,
             tw_cuda_product(backend->stream, y, matrix->n_rows, x, 1, tw_cuda_stored_matrix(backend, l, which),
                             (int)matrix->type, matrix->row_bytes, (int)matrix->n_columns, (int)matrix->n_rows),
             "a decoding product", err);
    return TW_OK;
}

static tw_status project(struct tw_backend *backend, size_t l, struct tw_kv *kv, size_t position,
                         struct tw_error *err) {
    const struct tw_model_config *const config = &backend->model->config;
    CUDA_TRY(backend,
             tw_cuda_norm(backend->stream, TW_CUDA_F32, backend->normed, backend->hidden,
                          tw_cuda_vector_of(backend, l, TW_CUDA_ATTENTION_NORM), (int)config->n_embd,
                          (float)config->norm_epsilon, 1),
             "norm before attention", err);
    TW_TRY(product(backend, backend->query, backend->normed, l, 0, err));
    TW_TRY(product(backend, backend->key, backend->normed, l, 1, err));
    TW_TRY(product(backend, backend->value, backend->normed, l, 2, err));
    CUDA_TRY(backend,
             tw_cuda_rotation(backend->stream, backend->rotation, tw_cuda_vector_of(backend, l, TW_CUDA_ROPE_DIVISOR),
                              (int)(config->head_dim / 2), 1, (int)position),
             "rotation", err);
    const struct tw_cuda_project project = {
        .query = backend->query,
        .key = backend->key,
        .value = backend->value,
        .query_bias = tw_cuda_vector_of(backend, l, TW_CUDA_QUERY_BIAS),
        .key_bias = tw_cuda_vector_of(backend, l, TW_CUDA_KEY_BIAS),
        .value_bias = tw_cuda_vector_of(backend, l, TW_CUDA_VALUE_BIAS),
        .query_norm = tw_cuda_vector_of(backend, l, TW_CUDA_QUERY_NORM),
        .key_norm = tw_cuda_vector_of(backend, l, TW_CUDA_KEY_NORM),
        .rotation = backend->rotation,
        .n_heads = (int)config->n_heads,
        .n_rows = 1,
        .halves = config->rope_pairs == TW_ROPE_HALVES,
        .window = (int)backend->options.window,
        .epsilon = (float)config->norm_epsilon,
    };
    const struct tw_cuda_kv rows = tw_cuda_kv_of(backend, kv);
    CUDA_TRY(backend, tw_cuda_append(backend->stream, backend->precision, &project, &rows, true),
             "appending a key and a value", err);
    tw_kv_extend(kv, position, 1);
    return TW_OK;
}

static tw_status attend(struct tw_backend *backend, size_t l, const struct tw_kv *kv, size_t position, float *row,
                        uint64_t *candidates, struct tw_attention_log *log, struct tw_error *err) {
    const struct tw_model_config *const config = &backend->model->config;
    const struct tw_cuda_kv rows = tw_cuda_kv_of(backend, kv);
    const size_t n_keys = tw_kv_longest(kv);
    const int n = (int)n_keys;
    struct tw_cuda_row_state *const state = tw_cuda_row_states(backend);
    struct tw_cuda_row_ranges ranges;
    tw_cuda_row_ranges_of(&ranges, backend, l, kv, position, log);
    const char *const what = "attention of a token";
    CUDA_TRY(backend,
             tw_cuda_row_logits(backend->stream, backend->precision, row, n_keys, backend->query, config->head_dim,
                                true, &rows, &ranges, 0, n, config->attention_scale),
             what, err);
    CUDA_TRY(backend, tw_cuda_row_fold(backend->stream, state, row, n_keys, (int)config->n_heads, n, true), what, err);
    CUDA_TRY(backend,
             tw_cuda_row_weights(backend->stream, state, row, n_keys, &rows, &ranges, 0, n,
                                 log && log->needle_end > log->needle_begin),
             what, err);
    CUDA_TRY(backend,
             tw_cuda_row_values(backend->stream, backend->precision, backend->attention,
                                backend->open.buffer[TW_CUDA_PARTIALS].data, row, n_keys, &rows, &ranges, n),
             what, err);
    if (!log) return TW_OK;
    uint64_t *const best = candidates + config->n_heads * (TW_CUDA_PIECE + log->top_k);
    if (log->top_k > 0)
        CUDA_TRY(backend,
                 tw_cuda_top(backend->stream, best, candidates, (int)log->top_k, row, n_keys, &rows, &ranges, 0, n,
                             TW_CUDA_PIECE, true),
                 "logging an attention row", err);
    return tw_cuda_log_read(backend, kv, best, state, log, err);
}

static tw_status finish(struct tw_backend *backend, size_t l, struct tw_error *err) {
    const struct tw_model_config *const config = &backend->model->config;
    const float epsilon = (float)config->norm_epsilon;
    TW_TRY(product(backend, backend->product, backend->attention, l, 3, err));
    CUDA_TRY(backend,
             tw_cuda_add_norm(backend->stream, TW_CUDA_F32, backend->hidden, backend->product,
                              tw_cuda_vector_of(backend, l, TW_CUDA_POST_ATTENTION_NORM), backend->normed,
                              tw_cuda_vector_of(backend, l, TW_CUDA_MLP_NORM), (int)config->n_embd, epsilon, 1),
             "residual after attention", err);
    TW_TRY(product(backend, backend->gate, backend->normed, l, 4, err));
    TW_TRY(product(backend, backend->up, backend->normed, l, 5, err));
    CUDA_TRY(backend,
             tw_cuda_gate(backend->stream, TW_CUDA_F32, backend->gate, backend->up, config->n_mlp,
                          config->activation == TW_ACTIVATION_SILU ? 0 : 1),
             "gated activation", err);
    TW_TRY(product(backend, backend->product, backend->gate, l, 6, err));
    CUDA_TRY(backend,
             tw_cuda_add_norm(backend->stream, TW_CUDA_F32, backend->hidden, backend->product,
                              tw_cuda_vector_of(backend, l, TW_CUDA_POST_MLP_NORM), NULL, NULL, (int)config->n_embd,
                              epsilon, 1),
             "residual after the MLP", err);
    return TW_OK;
}

tw_status tw_cuda_op_decode_layer(struct tw_backend *backend, size_t l, struct tw_kv *kv, size_t position,
                                  struct tw_attention_log *log, struct tw_error *err) {
    const size_t n_keys = tw_kv_longest(kv) + 1, n_layers = backend->model->config.n_layers;
    struct tw_buffers logging = {0};
    struct tw_buffer row = {0};
    tw_status status = TW_OK;
    if (log) TW_TRY(tw_cuda_log_check(log, err));
    TW_TRY_GOTO(status, done, tw_cuda_weights_begin(backend, l, (l + 1) % n_layers, err));
    TW_TRY_GOTO(status, done,
                tw_buffer_allocate(&row, backend->accountant, tw_cuda_row_bytes(&backend->model->config, n_keys),
                                   TW_CATEGORY_CHUNK, "attention rows", err));
    if (log)
        TW_TRY_GOTO(status, done,
                    tw_cuda_moment(backend, &logging,
                                   &(struct tw_moment_of){
                                       .moment = TW_MOMENT_LOG_ROW, .n = log->top_k, .n_keys = n_keys, .layer = l},
                                   err));
    TW_TRY_GOTO(status, done, project(backend, l, kv, position, err));
    TW_TRY_GOTO(
        status, done,
        attend(backend, l, kv, position, row.data, log ? logging.buffer[TW_CUDA_CANDIDATES].data : NULL, log, err));
    status = finish(backend, l, err);
    if (status == TW_OK) status = tw_cuda_weights_pump(backend, err);
done:
    tw_buffers_release(&logging, backend->accountant);
    tw_buffer_release(&row, backend->accountant);
    tw_cuda_weights_end(backend, l, status != TW_OK);
    return status;
}

/* out [n][n_vocab] (host) of n rows of normed states (device, float), n up to TW_CUDA_LOGITS_ROWS. */
static tw_status output_rows(struct tw_backend *backend, float *out, float *device, const float *normed, size_t n,
                             struct tw_buffers *buffers, struct tw_error *err) {
    const struct tw_matrix *const output = &backend->model->output;
    const bool stream = backend->options.weights == TW_WEIGHTS_STREAM;
    uint8_t *const slab = buffers->buffer[TW_CUDA_SLAB].data;
    const size_t slab_rows = stream ? buffers->buffer[TW_CUDA_SLAB].bytes / output->row_bytes : output->n_rows;
    for (size_t first = 0; first < output->n_rows; first += slab_rows) {
        const size_t rows = tw_min_size(slab_rows, output->n_rows - first);
        const uint8_t *data;
        if (stream) {
            data = slab;
            TW_TRY(
                tw_cuda_upload(backend, slab, output->data + first * output->row_bytes, rows * output->row_bytes, err));
        } else {
            data = (const uint8_t *)backend->open.buffer[TW_CUDA_WEIGHTS].data + tw_cuda_output_offset(backend->model);
        }
        CUDA_TRY(backend,
                 tw_cuda_product(backend->stream, device + first, output->n_rows, normed, (int)n, data,
                                 (int)output->type, output->row_bytes, (int)output->n_columns, (int)rows),
                 "logits", err);
    }
    return tw_cuda_download(backend, out, device, n * output->n_rows * sizeof *out, "logits", err);
}

static tw_status final_logits(struct tw_backend *backend, float *logits, enum tw_cuda_precision precision,
                              const char *hidden, size_t n, enum tw_moment moment, struct tw_error *err) {
    const struct tw_model_config *const config = &backend->model->config;
    struct tw_buffers buffers;
    tw_status status = TW_OK;
    TW_TRY(tw_cuda_moment(backend, &buffers, &(struct tw_moment_of){.moment = moment, .n = n}, err));
    float *const normed = buffers.buffer[TW_CUDA_LOGITS_OUT].data;
    const size_t most = tw_min_size(n, TW_CUDA_LOGITS_ROWS);
    const size_t row_bytes = config->n_embd * (precision == TW_CUDA_F32 ? 4 : 2);
    for (size_t i = 0; i < n && status == TW_OK; i += TW_CUDA_LOGITS_ROWS) {
        const size_t rows = tw_min_size(n - i, TW_CUDA_LOGITS_ROWS);
        const cudaError_t error =
            tw_cuda_norm_to_float(backend->stream, precision, normed, hidden + i * row_bytes, backend->output_norm,
                                  (int)config->n_embd, (float)config->norm_epsilon, (int)rows);
        status = error == cudaSuccess ? output_rows(backend, logits + i * config->n_vocab,
                                                    normed + most * config->n_embd, normed, rows, &buffers, err)
                                      : tw_cuda_fail(backend, error, "the final norm", err);
    }
    tw_buffers_release(&buffers, backend->accountant);
    return status;
}

tw_status tw_cuda_op_decode_logits(struct tw_backend *backend, float *logits, struct tw_error *err) {
    return final_logits(backend, logits, TW_CUDA_F32, (const char *)backend->hidden, 1, TW_MOMENT_DECODE_LOGITS, err);
}

tw_status tw_cuda_op_logits(struct tw_backend *backend, const struct tw_bridge *bridge, size_t first_row, size_t n,
                            float *logits, struct tw_error *err) {
    assert(first_row + n <= bridge->n_rows);
    if (n == 0) return TW_OK;
    return final_logits(backend, logits, backend->precision, tw_cuda_row(backend, bridge, first_row), n,
                        TW_MOMENT_LOGITS, err);
}
