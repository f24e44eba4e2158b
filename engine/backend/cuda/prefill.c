/* Prefill of one layer over one chunk: embed, append, attend, finish. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "engine/backend/cuda/cuda.h"

/* Where products find matrix `which` of the layer that has begun, in the activations' precision. */
static const void *product_matrix(const struct tw_backend *backend, size_t l, size_t which) {
    const struct tw_layer_weights *const layer = &backend->model->layers[l];
    if (tw_cuda_is_plain(tw_cuda_layer_matrix(layer, which)->type, backend->options.dtype))
        return tw_cuda_stored_matrix(backend, l, which);
    return (const char *)backend->unpacked.data + tw_cuda_unpacked_offset(layer, backend->options.dtype, which);
}

/*
 * out [ROW_BLOCK][n_rows of the matrix] = x [ROW_BLOCK][n_columns] W^T. To cuBLAS, whose matrices are column-major,
 * that is out^T = W x^T.
 */
static tw_status multiply(struct tw_backend *backend, void *out, const void *x, size_t l, size_t which,
                          struct tw_error *err) {
    const struct tw_matrix *const matrix = tw_cuda_layer_matrix(&backend->model->layers[l], which);
    const cudaDataType_t type = backend->precision == TW_CUDA_F32 ? CUDA_R_32F : CUDA_R_16BF;
    const int m = (int)matrix->n_rows, k = (int)matrix->n_columns;
    const float one = 1, zero = 0;
    const cublasStatus_t status = cublasGemmEx(
        backend->products, CUBLAS_OP_T, CUBLAS_OP_N, m, TW_CUDA_ROW_BLOCK, k, &one, product_matrix(backend, l, which),
        type, k, x, type, k, &zero, out, type, m,
        backend->precision == TW_CUDA_F32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (status == CUBLAS_STATUS_SUCCESS) return TW_OK;
    const cudaError_t error = cudaGetLastError();
    return TW_FAIL(err, TW_E_DEVICE, "device '%s': product with '%s' failed: %s%s%s", backend->memory->device_name,
                   matrix->name ? matrix->name : "a matrix", cublasGetStatusString(status),
                   error == cudaSuccess ? "" : ", ", error == cudaSuccess ? "" : cudaGetErrorString(error));
}

/* One block of rows of a chunk on the absolute grid. */
struct block {
    size_t index;      /* in the chunk */
    size_t begin, end; /* the rows of the block that are the chunk's */
    size_t first;      /* row of the chunk that stands at `begin` */
};

static size_t n_blocks(size_t first_position, size_t n) {
    return tw_divide_up(first_position % TW_CUDA_ROW_BLOCK + n, TW_CUDA_ROW_BLOCK);
}

static struct block block_of(size_t first_position, size_t n, size_t index) {
    const size_t lead = first_position % TW_CUDA_ROW_BLOCK, start = index * TW_CUDA_ROW_BLOCK;
    const size_t begin = index == 0 ? lead : 0;
    const size_t end = tw_min_size(lead + n - start, TW_CUDA_ROW_BLOCK);
    return (struct block){index, begin, end, start + begin - lead};
}

/* Row 0 of a block in a buffer of the chunk; scratch of block rows is one block unless temporaries are whole. */
static char *block_rows(const struct tw_backend *backend, size_t buffer, size_t columns, size_t index) {
    const bool whole = buffer == TW_CUDA_QUERY || backend->options.whole_rows;
    return (char *)backend->chunk.buffer[buffer].data +
           (whole ? index * TW_CUDA_ROW_BLOCK * columns * backend->element : 0);
}

tw_status tw_cuda_op_embed(struct tw_backend *backend, struct tw_bridge *bridge, size_t first_row,
                           const int32_t *tokens, size_t n, struct tw_error *err) {
    const struct tw_model *const model = backend->model;
    const struct tw_matrix *const embedding = &model->embedding;
    struct tw_buffers buffers;
    tw_status status = TW_OK;
    assert(first_row + n <= bridge->n_rows);
    if (n == 0) return TW_OK;
    TW_TRY(tw_cuda_moment(backend, &buffers, &(struct tw_moment_of){.moment = TW_MOMENT_EMBED, .n = n}, err));
    int32_t *const ids = buffers.buffer[TW_CUDA_TOKENS].data;
    uint8_t *const rows = buffers.buffer[TW_CUDA_TOKEN_ROWS].data;
    const bool stream = backend->options.weights == TW_WEIGHTS_STREAM;
    uint8_t *const gathered = stream ? malloc(tw_min_size(n, TW_CUDA_ROW_BLOCK) * embedding->row_bytes) : NULL;
    if (stream && !gathered) status = TW_FAIL(err, TW_E_MEMORY, "out of memory: embedding rows");
    for (size_t i = 0; i < n && status == TW_OK; i += TW_CUDA_ROW_BLOCK) {
        const size_t m = tw_min_size(n - i, TW_CUDA_ROW_BLOCK);
        if (stream) {
            for (size_t j = 0; j < m; j++)
                memcpy(gathered + j * embedding->row_bytes,
                       embedding->data + (size_t)tokens[i + j] * embedding->row_bytes, embedding->row_bytes);
            status = tw_cuda_upload(backend, rows, gathered, m * embedding->row_bytes, err);
        } else {
            status = tw_cuda_upload(backend, ids, tokens + i, m * sizeof *ids, err);
        }
        if (status != TW_OK) break;
        const uint8_t *const table =
            stream ? rows
                   : (const uint8_t *)backend->open.buffer[TW_CUDA_WEIGHTS].data + tw_cuda_embedding_offset(model);
        const cudaError_t error =
            tw_cuda_embed(backend->stream, backend->precision, tw_cuda_row(backend, bridge, first_row + i), table,
                          (int)embedding->type, embedding->row_bytes, (int)model->config.n_embd, stream ? NULL : ids,
                          (int)m, model->config.embedding_scale);
        if (error != cudaSuccess) status = tw_cuda_fail(backend, error, "embedding tokens", err);
    }
    free(gathered);
    tw_buffers_release(&buffers, backend->accountant);
    return status;
}

tw_status tw_cuda_op_layer_begin(struct tw_backend *backend, size_t l, struct tw_error *err) {
    const struct tw_layer_weights *const layer = &backend->model->layers[l];
    const size_t bytes = tw_cuda_unpacked_bytes(layer, backend->options.dtype);
    tw_status status = TW_OK;
    TW_TRY_GOTO(status, fail,
                tw_cuda_weights_begin(backend, l, l + 1 < backend->model->config.n_layers ? l + 1 : SIZE_MAX, err));
    backend->layer = l;
    if (bytes == 0) return TW_OK;
    TW_TRY_GOTO(status, fail,
                tw_buffer_allocate(&backend->unpacked, backend->accountant, bytes, TW_CATEGORY_UNPACKED_LAYER,
                                   "unpacked layer", err));
    for (size_t which = 0; which < TW_CUDA_N_MATRICES; which++) {
        const struct tw_matrix *const matrix = tw_cuda_layer_matrix(layer, which);
        if (tw_cuda_is_plain(matrix->type, backend->options.dtype)) continue;
        const cudaError_t error = tw_cuda_unpack(backend->stream, backend->precision,
                                                 (char *)backend->unpacked.data +
                                                     tw_cuda_unpacked_offset(layer, backend->options.dtype, which),
                                                 tw_cuda_stored_matrix(backend, l, which), (int)matrix->type,
                                                 matrix->row_bytes, (int)matrix->n_columns, (int)matrix->n_rows);
        if (error == cudaSuccess) continue;
        status = tw_cuda_fail(backend, error, "unpacking a layer", err);
        goto fail;
    }
    return TW_OK;
fail:
    tw_cuda_op_layer_end(backend, l);
    tw_cuda_weights_end(backend, l, true);
    return status;
}

void tw_cuda_op_layer_end(struct tw_backend *backend, size_t l) {
    tw_buffer_release(&backend->unpacked, backend->accountant);
    tw_cuda_weights_end(backend, l, l + 1 == backend->model->config.n_layers);
    backend->layer = SIZE_MAX;
}

/* Chunks that begin off the grid may need a block more than chunk_create foresaw. */
static tw_status ensure_query_rows(struct tw_backend *backend, size_t rows, struct tw_error *err) {
    if (rows <= backend->query_rows) return TW_OK;
    const size_t columns = backend->model->config.n_heads * backend->model->config.head_dim;
    struct tw_buffer larger;
    assert(!backend->options.whole_rows);
    TW_TRY(tw_buffer_allocate(&larger, backend->accountant, rows * columns * backend->element, TW_CATEGORY_CHUNK,
                              "queries of a chunk", err));
    tw_buffer_release(&backend->chunk.buffer[TW_CUDA_QUERY], backend->accountant);
    backend->chunk.buffer[TW_CUDA_QUERY] = larger;
    backend->query_rows = rows;
    return TW_OK;
}

static tw_status append_block(struct tw_backend *backend, size_t l, const struct tw_bridge *bridge, size_t first_row,
                              size_t first_position, struct block block, struct tw_kv *kv,
                              const struct tw_observation *observation, struct tw_error *err) {
    const struct tw_model_config *const config = &backend->model->config;
    const size_t n_embd = config->n_embd, d = config->head_dim, n = block.end - block.begin;
    const size_t query_width = config->n_heads * d, kv_width = config->n_kv_heads * d;
    const size_t position = first_position + block.first;
    char *const normed = block_rows(backend, TW_CUDA_NORMED, n_embd, block.index);
    char *const query = block_rows(backend, TW_CUDA_QUERY, query_width, block.index);
    char *const key = block_rows(backend, TW_CUDA_GATE, tw_max_size(config->n_mlp, 2 * kv_width), block.index);
    char *const value = key + TW_CUDA_ROW_BLOCK * kv_width * backend->element;
    /* Rows of the block that are not the chunk's are zero, and so is all that products make of them. */
    const size_t row_bytes = n_embd * backend->element;
    if (block.begin > 0)
        CUDA_TRY(backend, cudaMemsetAsync(normed, 0, block.begin * row_bytes, backend->stream), "padding", err);
    if (block.end < TW_CUDA_ROW_BLOCK)
        CUDA_TRY(backend,
                 cudaMemsetAsync(normed + block.end * row_bytes, 0, (TW_CUDA_ROW_BLOCK - block.end) * row_bytes,
                                 backend->stream),
                 "padding", err);
    CUDA_TRY(backend,
             tw_cuda_norm(backend->stream, backend->precision, normed + block.begin * row_bytes,
                          tw_cuda_row(backend, bridge, first_row + block.first),
                          tw_cuda_vector_of(backend, l, TW_CUDA_ATTENTION_NORM), (int)n_embd,
                          (float)config->norm_epsilon, (int)n),
             "norm before attention", err);
    TW_TRY(multiply(backend, query, normed, l, 0, err));
    TW_TRY(multiply(backend, key, normed, l, 1, err));
    TW_TRY(multiply(backend, value, normed, l, 2, err));
    void *const rotation = backend->chunk.buffer[TW_CUDA_ROTATION].data;
    CUDA_TRY(backend,
             tw_cuda_rotation(backend->stream, rotation, tw_cuda_vector_of(backend, l, TW_CUDA_ROPE_DIVISOR),
                              (int)(d / 2), (int)n, (int)position),
             "rotation", err);
    const struct tw_cuda_project project = {
        .query = query + block.begin * query_width * backend->element,
        .key = key + block.begin * kv_width * backend->element,
        .value = value + block.begin * kv_width * backend->element,
        .query_bias = tw_cuda_vector_of(backend, l, TW_CUDA_QUERY_BIAS),
        .key_bias = tw_cuda_vector_of(backend, l, TW_CUDA_KEY_BIAS),
        .value_bias = tw_cuda_vector_of(backend, l, TW_CUDA_VALUE_BIAS),
        .query_norm = tw_cuda_vector_of(backend, l, TW_CUDA_QUERY_NORM),
        .key_norm = tw_cuda_vector_of(backend, l, TW_CUDA_KEY_NORM),
        .rotation = rotation,
        .observed = observation ? observation->query.data : NULL,
        .n_heads = (int)config->n_heads,
        .n_rows = (int)n,
        .halves = config->rope_pairs == TW_ROPE_HALVES,
        .window = (int)backend->options.window,
        .observe_from = observation ? (int)observation->first_position - (int)position : 0,
        .epsilon = (float)config->norm_epsilon,
    };
    const struct tw_cuda_kv rows = tw_cuda_kv_of(backend, kv);
    CUDA_TRY(backend, tw_cuda_append(backend->stream, backend->precision, &project, &rows, false),
             "appending keys and values", err);
    tw_kv_extend(kv, position, n);
    return TW_OK;
}

tw_status tw_cuda_op_append(struct tw_backend *backend, size_t l, const struct tw_bridge *bridge, size_t first_row,
                            size_t n, size_t first_position, struct tw_kv *kv, struct tw_observation *observation,
                            struct tw_error *err) {
    assert(backend->layer == l && first_row + n <= bridge->n_rows);
    const size_t blocks = n_blocks(first_position, n);
    TW_TRY(ensure_query_rows(backend, blocks * TW_CUDA_ROW_BLOCK, err));
    backend->first_position = first_position;
    for (size_t b = 0; b < blocks; b++) {
        TW_TRY(append_block(backend, l, bridge, first_row, first_position, block_of(first_position, n, b), kv,
                            observation, err));
        TW_TRY(tw_cuda_weights_pump(backend, err));
    }
    if (observation && first_position + n > observation->first_position)
        observation->n_queries += first_position + n - tw_max_size(first_position, observation->first_position);
    return TW_OK;
}

tw_status tw_cuda_op_attend(struct tw_backend *backend, size_t l, const struct tw_kv *kv, size_t n,
                            size_t first_position, struct tw_error *err) {
    const struct tw_model_config *const config = &backend->model->config;
    const size_t n_keys = tw_kv_longest(kv);
    char *const query = block_rows(backend, TW_CUDA_QUERY, config->n_heads * config->head_dim, 0) +
                        first_position % TW_CUDA_ROW_BLOCK * config->n_heads * config->head_dim * backend->element;
    const struct tw_cuda_kv rows = tw_cuda_kv_of(backend, kv);
    struct tw_buffers buffers;
    struct tw_cuda_visible visible;
    TW_TRY(tw_cuda_moment(backend, &buffers,
                          &(struct tw_moment_of){.moment = TW_MOMENT_ATTEND, .n = n, .n_keys = n_keys}, err));
    tw_status status =
        tw_cuda_visible_of(backend, &visible, buffers.buffer[TW_CUDA_RANGES].data, l, kv, n, first_position, true, err);
    if (status == TW_OK) {
        float *const scores = buffers.buffer[TW_CUDA_EAGER].data;
        const cudaError_t error = scores ? tw_cuda_attend_eager(backend->stream, backend->precision, query, scores,
                                                                (int)n_keys, &rows, &visible, config->attention_scale)
                                         : tw_cuda_attend(backend->stream, backend->precision, query, &rows, &visible,
                                                          config->attention_scale);
        if (error != cudaSuccess) status = tw_cuda_fail(backend, error, "attention", err);
    }
    tw_buffers_release(&buffers, backend->accountant);
    return status == TW_OK ? tw_cuda_weights_pump(backend, err) : status;
}

static tw_status finish_block(struct tw_backend *backend, size_t l, struct tw_bridge *bridge, size_t first_row,
                              struct block block, struct tw_error *err) {
    const struct tw_model_config *const config = &backend->model->config;
    const size_t n_embd = config->n_embd, n_mlp = config->n_mlp;
    const size_t gate_columns = tw_max_size(n_mlp, 2 * config->n_kv_heads * config->head_dim);
    const size_t n = block.end - block.begin;
    void *const hidden = tw_cuda_row(backend, bridge, first_row + block.first);
    char *const normed = block_rows(backend, TW_CUDA_NORMED, n_embd, block.index);
    char *const rows = normed + block.begin * n_embd * backend->element; /* those of the chunk; the others stay zero */
    char *const attention = block_rows(backend, TW_CUDA_QUERY, config->n_heads * config->head_dim, block.index);
    char *const gate = block_rows(backend, TW_CUDA_GATE, gate_columns, block.index);
    char *const up = block_rows(backend, TW_CUDA_UP, n_mlp, block.index);
    const size_t skipped = block.begin * n_mlp * backend->element;
    const float epsilon = (float)config->norm_epsilon;
    TW_TRY(multiply(backend, normed, attention, l, 3, err));
    CUDA_TRY(backend,
             tw_cuda_add_norm(backend->stream, backend->precision, hidden, rows,
                              tw_cuda_vector_of(backend, l, TW_CUDA_POST_ATTENTION_NORM), rows,
                              tw_cuda_vector_of(backend, l, TW_CUDA_MLP_NORM), (int)n_embd, epsilon, (int)n),
             "residual after attention", err);
    TW_TRY(multiply(backend, gate, normed, l, 4, err));
    TW_TRY(multiply(backend, up, normed, l, 5, err));
    CUDA_TRY(backend,
             tw_cuda_gate(backend->stream, backend->precision, gate + skipped, up + skipped, n * n_mlp,
                          config->activation == TW_ACTIVATION_SILU ? 0 : 1),
             "gated activation", err);
    TW_TRY(multiply(backend, normed, gate, l, 6, err));
    CUDA_TRY(backend,
             tw_cuda_add_norm(backend->stream, backend->precision, hidden, rows,
                              tw_cuda_vector_of(backend, l, TW_CUDA_POST_MLP_NORM), NULL, NULL, (int)n_embd, epsilon,
                              (int)n),
             "residual after the MLP", err);
    return TW_OK;
}

tw_status tw_cuda_op_finish(struct tw_backend *backend, size_t l, struct tw_bridge *bridge, size_t first_row, size_t n,
                            struct tw_error *err) {
    assert(backend->layer == l && first_row + n <= bridge->n_rows);
    for (size_t b = 0; b < n_blocks(backend->first_position, n); b++) {
        TW_TRY(finish_block(backend, l, bridge, first_row, block_of(backend->first_position, n, b), err));
        TW_TRY(tw_cuda_weights_pump(backend, err));
    }
    return TW_OK;
}
