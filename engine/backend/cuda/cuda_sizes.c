#include "engine/backend/cuda/cuda_sizes.h"

#include "base/checked.h"

size_t tw_cuda_query_rows(size_t max_rows) {
    const size_t rows = tw_round_up(max_rows, TW_CUDA_ROW_BLOCK);
    return max_rows % TW_CUDA_ROW_BLOCK == 0 ? rows : rows + TW_CUDA_ROW_BLOCK;
}

const struct tw_matrix *tw_cuda_layer_matrix(const struct tw_layer_weights *layer, size_t which) {
    const struct tw_matrix *const matrices[TW_CUDA_N_MATRICES] = {
        &layer->query, &layer->key, &layer->value, &layer->output, &layer->gate, &layer->up, &layer->down,
    };
    return matrices[which];
}

size_t tw_cuda_slot_offset(const struct tw_layer_weights *layer, size_t which) {
    size_t offset = 0;
    for (size_t i = 0; i < which; i++)
        offset += tw_round_up(tw_matrix_bytes(tw_cuda_layer_matrix(layer, i)), TW_CUDA_ALIGNMENT);
    return offset;
}

size_t tw_cuda_slot_bytes(const struct tw_layer_weights *layer) {
    return tw_cuda_slot_offset(layer, TW_CUDA_N_MATRICES);
}

size_t tw_cuda_largest_slot_bytes(const struct tw_model *model) {
    size_t largest = 0;
    for (size_t l = 0; l < model->config.n_layers; l++)
        largest = tw_max_size(largest, tw_cuda_slot_bytes(&model->layers[l]));
    return largest;
}

size_t tw_cuda_unpacked_offset(const struct tw_layer_weights *layer, enum tw_dtype dtype, size_t which) {
    size_t offset = 0;
    for (size_t i = 0; i < which; i++) {
        const struct tw_matrix *const matrix = tw_cuda_layer_matrix(layer, i);
        if (tw_cuda_is_plain(matrix->type, dtype)) continue;
        offset += tw_round_up(matrix->n_rows * matrix->n_columns * tw_cuda_element_bytes(dtype), TW_CUDA_ALIGNMENT);
    }
    return offset;
}

size_t tw_cuda_unpacked_bytes(const struct tw_layer_weights *layer, enum tw_dtype dtype) {
    return tw_cuda_unpacked_offset(layer, dtype, TW_CUDA_N_MATRICES);
}

size_t tw_cuda_bridge_bytes(const struct tw_model_config *config, enum tw_dtype dtype, size_t n_rows) {
    return n_rows * config->n_embd * tw_cuda_element_bytes(dtype);
}

size_t tw_cuda_kv_bytes(const struct tw_model_config *config, enum tw_dtype dtype, const size_t *capacity) {
    size_t rows = 0;
    for (size_t g = 0; g < config->n_kv_heads; g++) rows += capacity[g];
    return rows * config->head_dim * tw_cuda_element_bytes(dtype);
}

size_t tw_cuda_observation_query_bytes(const struct tw_model_config *config, enum tw_dtype dtype, size_t window) {
    return config->n_heads * window * config->head_dim * tw_cuda_element_bytes(dtype);
}

size_t tw_cuda_observation_softmax_bytes(const struct tw_model_config *config, size_t window) {
    return config->n_heads * window * sizeof(float);
}

size_t tw_cuda_eager_bytes(const struct tw_model_config *config, size_t n, size_t n_keys) {
    return config->n_heads * n * n_keys * sizeof(float);
}

size_t tw_cuda_row_bytes(const struct tw_model_config *config, size_t capacity) {
    return config->n_heads * capacity * sizeof(float);
}

size_t tw_cuda_logits_slab_bytes(const struct tw_model *model) {
    const size_t rows = tw_max_size(TW_CUDA_SLAB_BYTES / model->output.row_bytes, 1);
    return tw_min_size(rows, model->output.n_rows) * model->output.row_bytes;
}

/* Norms, biases and divisors, each on the alignment grid; what an architecture lacks takes no room. */
static size_t vector_bytes(const struct tw_model *model) {
    const struct tw_model_config *const config = &model->config;
    const size_t d = config->head_dim;
    size_t bytes = tw_round_up(config->n_embd * sizeof(float), TW_CUDA_ALIGNMENT);
    for (size_t l = 0; l < config->n_layers; l++) {
        const struct tw_layer_weights *const layer = &model->layers[l];
        const struct {
            const void *data;
            size_t bytes;
        } vectors[] = {
            {layer->attention_norm, config->n_embd * sizeof(float)},
            {layer->mlp_norm, config->n_embd * sizeof(float)},
            {layer->post_attention_norm, config->n_embd * sizeof(float)},
            {layer->post_mlp_norm, config->n_embd * sizeof(float)},
            {layer->query_norm, d * sizeof(float)},
            {layer->key_norm, d * sizeof(float)},
            {layer->query_bias, config->n_heads * d * sizeof(float)},
            {layer->key_bias, config->n_kv_heads * d * sizeof(float)},
            {layer->value_bias, config->n_kv_heads * d * sizeof(float)},
            {layer->rope_divisor, d / 2 * sizeof(double)},
        };
        for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
            if (vectors[i].data) bytes += tw_round_up(vectors[i].bytes, TW_CUDA_ALIGNMENT);
    }
    return bytes;
}

size_t tw_cuda_requests(struct tw_cuda_request *requests, enum tw_cuda_moment moment, const struct tw_model *model,
                        const struct tw_backend_options *options, size_t max_rows) {
    const struct tw_model_config *const config = &model->config;
    const bool mapped = options->weights == TW_WEIGHTS_MAPPED;
    const size_t element = tw_cuda_element_bytes(options->dtype), d = config->head_dim;
    const size_t n_heads = config->n_heads, n_kv_heads = config->n_kv_heads, n_embd = config->n_embd;
    const size_t rows = tw_cuda_query_rows(max_rows);
    const size_t block_rows = options->whole_rows ? rows : TW_CUDA_ROW_BLOCK;
    const size_t gate_columns = tw_max_size(config->n_mlp, 2 * n_kv_heads * d);
    /* Splits hold a maximum and a sum for each observation query; a partial output for each decoding query; or, in
     * double, a sum of keys for each KV head. */
    const size_t partials =
        TW_CUDA_SPLITS *
        tw_max_size(n_heads * tw_max_size(2 * options->window, d + 2) * sizeof(float), n_kv_heads * d * sizeof(double));
    const size_t state = (3 * n_embd + 2 * n_heads * d + 2 * n_kv_heads * d + 2 * config->n_mlp) * sizeof(float);
    const struct tw_cuda_request open[] = {
        {TW_CUDA_VECTORS, TW_CATEGORY_WEIGHTS, "norms, biases and divisors", vector_bytes(model)},
        {TW_CUDA_EMBEDDING, TW_CATEGORY_WEIGHTS, "the embedding", mapped ? tw_matrix_bytes(&model->embedding) : 0},
        {TW_CUDA_OUTPUT, TW_CATEGORY_WEIGHTS, "the output matrix",
         mapped && !config->tied_embeddings ? tw_matrix_bytes(&model->output) : 0},
        {TW_CUDA_WORKSPACE, TW_CATEGORY_CHUNK, "workspace of matrix products", TW_CUDA_PRODUCT_WORKSPACE},
        {TW_CUDA_PARTIALS, TW_CATEGORY_COMPRESSION, "partial sums of key ranges", partials},
        {TW_CUDA_PIECES, TW_CATEGORY_COMPRESSION, "a piece of scores", n_heads * TW_CUDA_PIECE * sizeof(float)},
        {TW_CUDA_CANDIDATES, TW_CATEGORY_COMPRESSION, "candidates of the log",
         n_heads * (TW_CUDA_PIECE + 2 * TW_CUDA_MAX_TOP_K) * (sizeof(float) + sizeof(int32_t))},
        {TW_CUDA_DECODE_STATE, TW_CATEGORY_CHUNK, "decoding state", state},
        {TW_CUDA_LOGITS_OUT, TW_CATEGORY_LOGITS, "logits",
         TW_CUDA_LOGITS_ROWS * (config->n_vocab + n_embd) * sizeof(float)},
    };
    const struct tw_cuda_request chunk[] = {
        {TW_CUDA_QUERY, TW_CATEGORY_CHUNK, "queries of a chunk", rows * n_heads * d * element},
        {TW_CUDA_NORMED, TW_CATEGORY_CHUNK, "normed rows of a block", block_rows * n_embd * element},
        {TW_CUDA_GATE, TW_CATEGORY_CHUNK, "gate of a block", block_rows * gate_columns * element},
        {TW_CUDA_UP, TW_CATEGORY_CHUNK, "up projection of a block", block_rows * config->n_mlp * element},
        {TW_CUDA_ROTATION, TW_CATEGORY_CHUNK, "rotation of a block", TW_CUDA_ROW_BLOCK * d * sizeof(float)},
        {TW_CUDA_FIRST_ROWS, TW_CATEGORY_CHUNK, "first visible rows",
         config->sliding_window ? n_kv_heads * tw_max_size(max_rows, options->window) * sizeof(int32_t) : 0},
        {TW_CUDA_TOKENS, TW_CATEGORY_CHUNK, "token ids", tw_min_size(max_rows, TW_CUDA_ROW_BLOCK) * sizeof(int32_t)},
        {TW_CUDA_TOKEN_ROWS, TW_CATEGORY_CHUNK, "embedding rows of a block",
         mapped ? 0 : tw_min_size(max_rows, TW_CUDA_ROW_BLOCK) * model->embedding.row_bytes},
    };
    const struct tw_cuda_request *const lists[TW_CUDA_N_MOMENTS] = {open, chunk};
    const size_t sizes[TW_CUDA_N_MOMENTS] = {sizeof open / sizeof *open, sizeof chunk / sizeof *chunk};
    size_t n = 0;
    for (size_t i = 0; i < sizes[moment]; i++)
        if (lists[moment][i].bytes > 0) requests[n++] = lists[moment][i];
    return n;
}
