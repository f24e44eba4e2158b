/* The reference backend: opening, memory, and the table. */
#include "engine/backend/ref/ref.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

static tw_status ref_open(struct tw_backend **backend, const struct tw_model *model,
                          const struct tw_backend_options *options, struct tw_accountant *accountant,
                          struct tw_error *err) {
    const struct tw_model_config *config = &model->config;
    *backend = NULL;
    if (!model->embedding.data)
        return TW_FAIL(err, TW_E_UNSUPPORTED, "model '%s' has no weights, only its configuration", model->path);
    struct tw_backend *b = calloc(1, sizeof *b);
    if (!b) return TW_FAIL(err, TW_E_MEMORY, "out of memory: backend 'ref'");
    b->model = model;
    b->options = *options;
    b->accountant = accountant;
    tw_status status;
    TW_TRY_GOTO(status, fail, tw_ref_image.resolve(&b->options, model, err));
    accountant->source = tw_memory_host;
    TW_TRY_GOTO(status, fail,
                tw_buffers_allocate(&b->open, accountant, &tw_ref_image, model, &b->options,
                                    &(struct tw_moment_of){.moment = TW_MOMENT_OPEN}, err));
    const size_t query_width = config->n_heads * config->head_dim;
    b->hidden = b->open.buffer[REF_OPEN_STATE].data;
    b->normed = b->hidden + config->n_embd;
    b->query = b->normed + tw_max_size(config->n_embd, query_width);
    b->attention = b->query + query_width;
    b->kv_rows = b->attention + query_width;
    b->gate = b->kv_rows + config->n_kv_heads * config->head_dim;
    b->up = b->gate + config->n_mlp;
    *backend = b;
    return TW_OK;
fail:
    free(b);
    return status;
}

static void chunk_release(struct tw_backend *backend) { tw_buffers_release(&backend->chunk, backend->accountant); }

static void ref_close(struct tw_backend *backend) {
    if (!backend) return;
    chunk_release(backend);
    tw_buffers_release(&backend->layer, backend->accountant);
    tw_buffers_release(&backend->open, backend->accountant);
    free(backend);
}

static enum tw_dtype ref_dtype(const struct tw_backend *backend) { return backend->options.dtype; }

static void describe(const struct tw_backend *backend, struct tw_text *text) {
    tw_text_printf(text, "float32, plain loops, %zu threads", backend->options.n_threads);
}

static tw_status chunk_create(struct tw_backend *backend, size_t max_rows, struct tw_error *err) {
    chunk_release(backend);
    TW_TRY(tw_buffers_allocate(&backend->chunk, backend->accountant, &tw_ref_image, backend->model, &backend->options,
                               &(struct tw_moment_of){.moment = TW_MOMENT_CHUNK, .n = max_rows}, err));
    backend->block_rows = backend->options.whole_rows ? max_rows : tw_min_size(max_rows, TW_REF_ROWS);
    return TW_OK;
}

static tw_status bridge_create(struct tw_backend *backend, struct tw_bridge *bridge, size_t n_rows,
                               struct tw_error *err) {
    return tw_image_bridge_create(bridge, backend->accountant, &tw_ref_image, backend->model, &backend->options, n_rows,
                                  err);
}

static void bridge_release(struct tw_backend *backend, struct tw_bridge *bridge) {
    tw_buffer_release(&bridge->data, backend->accountant);
    memset(bridge, 0, sizeof *bridge);
}

static tw_status bridge_copy(struct tw_backend *backend, struct tw_bridge *to, size_t to_row,
                             const struct tw_bridge *from, size_t from_row, size_t n, struct tw_error *err) {
    (void)err;
    const size_t n_embd = backend->model->config.n_embd;
    assert(to_row + n <= to->n_rows && from_row + n <= from->n_rows);
    memcpy((float *)to->data.data + to_row * n_embd, (const float *)from->data.data + from_row * n_embd,
           n * n_embd * sizeof(float));
    return TW_OK;
}

static tw_status kv_create(struct tw_backend *backend, struct tw_kv *kv, const size_t *capacity, bool with_positions,
                           enum tw_category category, const char *what, struct tw_error *err) {
    return tw_image_kv_create(kv, backend->accountant, &tw_ref_image, backend->model, &backend->options, capacity,
                              with_positions, category, what, err);
}

static void kv_release(struct tw_backend *backend, struct tw_kv *kv) { tw_kv_release(kv, backend->accountant); }

static tw_status observation_create(struct tw_backend *backend, struct tw_observation *observation,
                                    struct tw_error *err) {
    return tw_image_observation_create(observation, backend->accountant, &tw_ref_image, backend->model,
                                       &backend->options, err);
}

static void observation_release(struct tw_backend *backend, struct tw_observation *observation) {
    tw_image_observation_release(observation, backend->accountant);
}

static tw_status layer_begin(struct tw_backend *backend, size_t l, struct tw_error *err) {
    TW_TRY(tw_buffers_allocate(&backend->layer, backend->accountant, &tw_ref_image, backend->model, &backend->options,
                               &(struct tw_moment_of){.moment = TW_MOMENT_LAYER, .layer = l}, err));
    for (size_t m = 0; m < REF_N_MATRICES; m++)
        tw_ref_unpack(backend, backend->layer.buffer[m].data,
                      tw_ref_matrix_of(&backend->model->layers[l], (enum tw_ref_matrix)m));
    return TW_OK;
}

static void layer_end(struct tw_backend *backend, size_t l) {
    (void)l;
    tw_buffers_release(&backend->layer, backend->accountant);
}

const struct tw_backend_ops tw_backend_ref = {
    .name = "ref",
    .summary = "plain C in float32, the oracle of the others",
    .image = &tw_ref_image,
    .open = ref_open,
    .close = ref_close,
    .dtype = ref_dtype,
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
    .embed = tw_ref_embed,
    .layer_begin = layer_begin,
    .layer_end = layer_end,
    .append = tw_ref_append,
    .attend = tw_ref_attend,
    .finish = tw_ref_finish,
    .observe = tw_ref_observe,
    .score = tw_ref_score,
    .key_mean = tw_ref_key_mean,
    .gather = tw_ref_gather,
    .log_row = tw_ref_log_row,
    .logits = tw_ref_logits,
    .decode_begin = tw_ref_decode_begin,
    .decode_layer = tw_ref_decode_layer,
    .decode_logits = tw_ref_decode_logits,
    .read_hidden = tw_ref_read_hidden,
    .read_decode_hidden = tw_ref_read_decode_hidden,
    .read_kv = tw_ref_read_kv,
    .write_kv = tw_ref_write_kv,
    .write_observation = tw_ref_write_observation,
};
