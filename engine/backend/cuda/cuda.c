/* The CUDA backend: opening, memory, what the operations share, and the table. */
#include "engine/backend/cuda/cuda.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

extern const struct tw_backend_ops tw_cuda_ops;

tw_status tw_cuda_fail(const struct tw_backend *backend, cudaError_t error, const char *what, struct tw_error *err) {
    (void)cudaGetLastError();
    return TW_FAIL(err, error == cudaErrorMemoryAllocation ? TW_E_MEMORY : TW_E_DEVICE, "device '%s': %s failed: %s",
                   backend->memory ? backend->memory->device_name : "0", what, cudaGetErrorString(error));
}

/* ---- shared by the operations ---- */

tw_status tw_cuda_moment(struct tw_backend *backend, struct tw_buffers *buffers, const struct tw_moment_of *of,
                         struct tw_error *err) {
    return tw_buffers_allocate(buffers, backend->accountant, &tw_cuda_image, backend->model, &backend->options, of,
                               err);
}

struct tw_cuda_kv tw_cuda_kv_of(const struct tw_backend *backend, const struct tw_kv *kv) {
    struct tw_cuda_kv out = {.key = kv->key.data,
                             .value = kv->value.data,
                             .n_kv_heads = (int)kv->n_kv_heads,
                             .head_dim = (int)kv->head_dim,
                             .group = (int)(backend->model->config.n_heads / kv->n_kv_heads)};
    for (size_t g = 0; g < kv->n_kv_heads; g++) {
        out.length[g] = (int32_t)kv->length[g];
        out.offset[g] = (int64_t)kv->offset[g];
    }
    return out;
}

size_t tw_cuda_rows_before(const struct tw_kv *kv, size_t g, size_t position) {
    if (!kv->position) return tw_min_size(position, kv->length[g]);
    size_t low = 0, high = kv->length[g];
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if ((size_t)kv->position[g][middle] < position)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

tw_status tw_cuda_download(struct tw_backend *backend, void *host, const void *device, size_t bytes, const char *what,
                           struct tw_error *err) {
    CUDA_TRY(backend, cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, backend->stream), what, err);
    CUDA_TRY(backend, cudaStreamSynchronize(backend->stream), what, err);
    return TW_OK;
}

tw_status tw_cuda_visible_of(struct tw_backend *backend, struct tw_cuda_visible *visible, void *ranges, size_t l,
                             const struct tw_kv *kv, size_t n, size_t first_position, bool attending,
                             struct tw_error *err) {
    const size_t window = backend->model->layers[l].sliding_window;
    *visible = (struct tw_cuda_visible){
        .first_position = (int)first_position, .sliding_window = (int)window, .n_queries = (int)n};
    if (!kv->position) return TW_OK;
    int32_t *const list = malloc(kv->n_kv_heads * n * 2 * sizeof *list);
    if (!list) return TW_FAIL(err, TW_E_MEMORY, "out of memory: visible rows");
    for (size_t g = 0; g < kv->n_kv_heads; g++)
        for (size_t i = 0; i < n; i++) {
            const size_t position = first_position + i;
            int32_t *const range = list + (g * n + i) * 2;
            range[0] = window && position + 1 > window ? (int32_t)tw_cuda_rows_before(kv, g, position + 1 - window) : 0;
            range[1] = (int32_t)(attending ? kv->length[g] - (n - 1 - i) : tw_cuda_rows_before(kv, g, position + 1));
        }
    const tw_status status = tw_cuda_upload(backend, ranges, list, kv->n_kv_heads * n * 2 * sizeof *list, err);
    free(list);
    visible->ranges = ranges;
    return status;
}

/* ---- opening ---- */

static tw_status find_device(struct tw_backend *backend, struct cudaDeviceProp *properties, struct tw_error *err) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    (void)cudaGetLastError();
    if (error == cudaErrorInsufficientDriver)
        return TW_FAIL(err, TW_E_DEVICE,
                       "backend 'cuda' finds no NVIDIA driver, or one that is too old: install a driver for CUDA 13 "
                       "(580 or newer), or use '--backend cpu'");
    if (error != cudaSuccess || count == 0)
        return TW_FAIL(err, TW_E_DEVICE,
                       "backend 'cuda' finds no device (%s): look with nvidia-smi and at CUDA_VISIBLE_DEVICES, or use "
                       "'--backend cpu'",
                       error == cudaSuccess ? "none is visible" : cudaGetErrorString(error));
    CUDA_TRY(backend, cudaSetDevice(0), "choosing the device", err);
    CUDA_TRY(backend, cudaGetDeviceProperties(properties, 0), "asking the device what it is", err);
    CUDA_TRY(backend, cudaDriverGetVersion(&backend->driver), "asking for the driver's version", err);
    backend->capability = properties->major * 10 + properties->minor;
    if (backend->capability < 80)
        return TW_FAIL(err, TW_E_DEVICE,
                       "device '%s' has compute capability %d.%d, backend 'cuda' needs 8.0 (bfloat16 tensor cores): "
                       "use '--backend cpu'",
                       properties->name, properties->major, properties->minor);
    return TW_OK;
}

static tw_status open_products(struct tw_backend *backend, struct tw_error *err) {
    cublasStatus_t status = cublasCreate(&backend->products);
    /* The workspace comes after the stream: setting a stream takes it away again. */
    if (status == CUBLAS_STATUS_SUCCESS) status = cublasSetStream(backend->products, backend->stream);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasSetWorkspace(backend->products, backend->open.buffer[TW_CUDA_WORKSPACE].data,
                                    TW_CUDA_PRODUCT_WORKSPACE);
    if (status == CUBLAS_STATUS_SUCCESS) status = cublasSetAtomicsMode(backend->products, CUBLAS_ATOMICS_NOT_ALLOWED);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasSetMathMode(backend->products, backend->precision == TW_CUDA_F32
                                                          ? CUBLAS_PEDANTIC_MATH
                                                          : CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
    if (status == CUBLAS_STATUS_SUCCESS) return TW_OK;
    (void)cudaGetLastError();
    return TW_FAIL(err, status == CUBLAS_STATUS_ALLOC_FAILED ? TW_E_MEMORY : TW_E_DEVICE,
                   "device '%s': cuBLAS does not start: %s", backend->memory->device_name,
                   cublasGetStatusString(status));
}

/* Norms, biases and divisors: a few kilobytes a layer, always on the device. */
static tw_status upload_vectors(struct tw_backend *backend, struct tw_error *err) {
    const struct tw_model *const model = backend->model;
    char *at = backend->open.buffer[TW_CUDA_VECTORS].data;
    size_t bytes = model->config.n_embd * sizeof(float);
    backend->vectors = calloc(model->config.n_layers * TW_CUDA_N_VECTORS, sizeof *backend->vectors);
    if (!backend->vectors) return TW_FAIL(err, TW_E_MEMORY, "out of memory: backend 'cuda'");
    TW_TRY(tw_cuda_upload(backend, at, model->output_norm, bytes, err));
    backend->output_norm = (const float *)at;
    at += tw_cuda_vector_span(bytes);
    for (size_t l = 0; l < model->config.n_layers; l++)
        for (int which = 0; which < TW_CUDA_N_VECTORS; which++) {
            const void *const host = tw_cuda_vector(model, l, (enum tw_cuda_vector)which, &bytes);
            if (!host) continue;
            TW_TRY(tw_cuda_upload(backend, at, host, bytes, err));
            backend->vectors[l * TW_CUDA_N_VECTORS + (size_t)which] = at;
            at += tw_cuda_vector_span(bytes);
        }
    return TW_OK;
}

static tw_status upload_weights(struct tw_backend *backend, struct tw_error *err) {
    const struct tw_model *const model = backend->model;
    char *const device = backend->open.buffer[TW_CUDA_WEIGHTS].data;
    for (size_t l = 0; l < model->config.n_layers; l++)
        for (size_t which = 0; which < TW_CUDA_N_MATRICES; which++) {
            const struct tw_matrix *const matrix = tw_cuda_layer_matrix(&model->layers[l], which);
            TW_TRY(tw_cuda_upload(
                backend, device + tw_cuda_weights_offset(model, l) + tw_cuda_slot_offset(&model->layers[l], which),
                matrix->data, tw_matrix_bytes(matrix), err));
        }
    TW_TRY(tw_cuda_upload(backend, device + tw_cuda_embedding_offset(model), model->embedding.data,
                          tw_matrix_bytes(&model->embedding), err));
    if (model->config.tied_embeddings) return TW_OK;
    return tw_cuda_upload(backend, device + tw_cuda_output_offset(model), model->output.data,
                          tw_matrix_bytes(&model->output), err);
}

static void lay_out_state(struct tw_backend *backend) {
    const struct tw_model_config *const config = &backend->model->config;
    const size_t query_width = config->n_heads * config->head_dim, kv_width = config->n_kv_heads * config->head_dim;
    float *at = backend->open.buffer[TW_CUDA_STATE].data;
    /* float2 first: it wants 8 bytes. */
    const struct {
        float **field;
        size_t n;
    } fields[] = {
        {&backend->rotation, config->head_dim},
        {&backend->hidden, config->n_embd},
        {&backend->normed, config->n_embd},
        {&backend->product, config->n_embd},
        {&backend->query, query_width},
        {&backend->attention, query_width},
        {&backend->key, kv_width},
        {&backend->value, kv_width},
        {&backend->gate, config->n_mlp},
        {&backend->up, config->n_mlp},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        *fields[i].field = at;
        at += fields[i].n;
    }
}

static void close_backend(struct tw_backend *backend);

static tw_status open_backend(struct tw_backend **out, const struct tw_model *model,
                              const struct tw_backend_options *options, struct tw_accountant *accountant,
                              struct tw_error *err) {
    struct cudaDeviceProp properties;
    tw_status status;
    *out = NULL;
    if (!model->embedding.data)
        return TW_FAIL(err, TW_E_UNSUPPORTED, "model '%s' has no weights, only its configuration", model->path);
    struct tw_backend *const backend = calloc(1, sizeof *backend);
    if (!backend) return TW_FAIL(err, TW_E_MEMORY, "out of memory: backend 'cuda'");
    backend->model = model;
    backend->options = *options;
    backend->accountant = accountant;
    backend->layer = SIZE_MAX;
    TW_TRY_GOTO(status, fail, tw_cuda_image.resolve(&backend->options, model, err));
    backend->precision = backend->options.dtype == TW_DTYPE_F32 ? TW_CUDA_F32 : TW_CUDA_BF16;
    backend->element = tw_cuda_element_bytes(backend->options.dtype);
    TW_TRY_GOTO(status, fail, find_device(backend, &properties, err));
    const cudaError_t error = cudaStreamCreateWithFlags(&backend->stream, cudaStreamNonBlocking);
    if (error != cudaSuccess) {
        status = tw_cuda_fail(backend, error, "opening a stream", err);
        goto fail;
    }
    TW_TRY_GOTO(status, fail,
                tw_cuda_memory_create(&backend->memory, options->allocator == TW_ALLOCATOR_ASYNC, backend->stream,
                                      properties.name, err));
    accountant->source = tw_cuda_memory_source(backend->memory);
    backend->source_set = true;
    TW_TRY_GOTO(status, fail, tw_cuda_streamer_open(backend, err));
    TW_TRY_GOTO(status, fail,
                tw_cuda_moment(backend, &backend->open, &(struct tw_moment_of){.moment = TW_MOMENT_OPEN}, err));
    lay_out_state(backend);
    TW_TRY_GOTO(status, fail, open_products(backend, err));
    TW_TRY_GOTO(status, fail, upload_vectors(backend, err));
    if (backend->options.weights == TW_WEIGHTS_MAPPED) TW_TRY_GOTO(status, fail, upload_weights(backend, err));
    *out = backend;
    return TW_OK;
fail:
    close_backend(backend);
    return status;
}

static void chunk_release(struct tw_backend *backend) {
    tw_buffers_release(&backend->chunk, backend->accountant);
    backend->query_rows = backend->max_rows = 0;
}

static void close_backend(struct tw_backend *backend) {
    if (!backend) return;
    if (backend->stream) (void)cudaStreamSynchronize(backend->stream);
    chunk_release(backend);
    tw_buffer_release(&backend->unpacked, backend->accountant);
    tw_cuda_streamer_close(backend);
    if (backend->products) (void)cublasDestroy(backend->products);
    tw_buffers_release(&backend->open, backend->accountant);
    /* What is freed in the stream's order is free when the stream is done. */
    if (backend->stream) (void)cudaStreamSynchronize(backend->stream);
    if (backend->source_set) backend->accountant->source.context = NULL;
    tw_cuda_memory_free(backend->memory);
    if (backend->stream) (void)cudaStreamDestroy(backend->stream);
    (void)cudaGetLastError();
    free(backend->vectors);
    free(backend);
}

static enum tw_dtype dtype(const struct tw_backend *backend) { return backend->options.dtype; }

static void describe(const struct tw_backend *backend, struct tw_text *text) {
    int version = 0;
    (void)cublasGetVersion(backend->products, &version);
    tw_text_printf(text, "%s, %s (sm_%d), CUDA %d.%d, cuBLAS %d.%d, %s allocator%s",
                   backend->precision == TW_CUDA_F32 ? "float32" : "bf16", backend->memory->device_name,
                   backend->capability, backend->driver / 1000, backend->driver % 1000 / 10, version / 10000,
                   version % 10000 / 100, backend->memory->async ? "stream-ordered" : "caching",
                   backend->options.weights == TW_WEIGHTS_STREAM ? ", weights streamed" : "");
}

/* ---- memory ---- */

static tw_status chunk_create(struct tw_backend *backend, size_t max_rows, struct tw_error *err) {
    chunk_release(backend);
    TW_TRY(tw_cuda_moment(backend, &backend->chunk, &(struct tw_moment_of){.moment = TW_MOMENT_CHUNK, .n = max_rows},
                          err));
    backend->max_rows = max_rows;
    backend->query_rows = tw_cuda_query_rows(max_rows);
    return TW_OK;
}

static tw_status bridge_create(struct tw_backend *backend, struct tw_bridge *bridge, size_t n_rows,
                               struct tw_error *err) {
    return tw_image_bridge_create(bridge, backend->accountant, &tw_cuda_image, backend->model, &backend->options,
                                  n_rows, err);
}

static void bridge_release(struct tw_backend *backend, struct tw_bridge *bridge) {
    tw_buffer_release(&bridge->data, backend->accountant);
    memset(bridge, 0, sizeof *bridge);
}

static tw_status bridge_copy(struct tw_backend *backend, struct tw_bridge *to, size_t to_row,
                             const struct tw_bridge *from, size_t from_row, size_t n, struct tw_error *err) {
    assert(to_row + n <= to->n_rows && from_row + n <= from->n_rows);
    if (n == 0) return TW_OK;
    CUDA_TRY(backend,
             cudaMemcpyAsync(tw_cuda_row(backend, to, to_row), tw_cuda_row(backend, from, from_row),
                             n * backend->model->config.n_embd * backend->element, cudaMemcpyDeviceToDevice,
                             backend->stream),
             "copying hidden states", err);
    return TW_OK;
}

static tw_status kv_create(struct tw_backend *backend, struct tw_kv *kv, const size_t *capacity, bool with_positions,
                           enum tw_category category, const char *what, struct tw_error *err) {
    return tw_image_kv_create(kv, backend->accountant, &tw_cuda_image, backend->model, &backend->options, capacity,
                              with_positions, category, what, err);
}

static void kv_release(struct tw_backend *backend, struct tw_kv *kv) { tw_kv_release(kv, backend->accountant); }

static tw_status observation_create(struct tw_backend *backend, struct tw_observation *observation,
                                    struct tw_error *err) {
    return tw_image_observation_create(observation, backend->accountant, &tw_cuda_image, backend->model,
                                       &backend->options, err);
}

static void observation_release(struct tw_backend *backend, struct tw_observation *observation) {
    tw_image_observation_release(observation, backend->accountant);
}

const struct tw_backend_ops tw_cuda_ops = {
    .name = "cuda",
    .summary = "NVIDIA GPUs from compute capability 8.0, cuBLAS and own kernels",
    .image = &tw_cuda_image,
    .open = open_backend,
    .close = close_backend,
    .dtype = dtype,
    .describe = describe,
    .chunk_create = chunk_create,
    .chunk_release = chunk_release,
    .bridge_create = bridge_create,
    .bridge_release = bridge_release,
    .bridge_copy = bridge_copy,
    .kv_create = kv_create,
    .kv_release = kv_release,
    .observation_create = observation_create,
    .observation_release = observation_release,
    .embed = tw_cuda_op_embed,
    .layer_begin = tw_cuda_op_layer_begin,
    .layer_end = tw_cuda_op_layer_end,
    .append = tw_cuda_op_append,
    .attend = tw_cuda_op_attend,
    .finish = tw_cuda_op_finish,
    .observe = tw_cuda_op_observe,
    .score = tw_cuda_op_score,
    .rank = tw_cuda_op_rank,
    .key_mean = tw_cuda_op_key_mean,
    .gather = tw_cuda_op_gather,
    .log_row = tw_cuda_op_log_row,
    .logits = tw_cuda_op_logits,
    .decode_begin = tw_cuda_op_decode_begin,
    .decode_layer = tw_cuda_op_decode_layer,
    .decode_logits = tw_cuda_op_decode_logits,
    .read_hidden = tw_cuda_op_read_hidden,
    .read_decode_hidden = tw_cuda_op_read_decode_hidden,
    .read_kv = tw_cuda_op_read_kv,
    .write_kv = tw_cuda_op_write_kv,
    .write_observation = tw_cuda_op_write_observation,
};
