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

size_t tw_cuda_weights_offset(const struct tw_model *model, size_t l) {
    size_t offset = 0;
    for (size_t i = 0; i < l; i++) offset += tw_cuda_slot_bytes(&model->layers[i]);
    return offset;
}

size_t tw_cuda_embedding_offset(const struct tw_model *model) {
    return tw_cuda_weights_offset(model, model->config.n_layers);
}

size_t tw_cuda_output_offset(const struct tw_model *model) {
    const size_t embedding = tw_cuda_embedding_offset(model);
    return model->config.tied_embeddings
               ? embedding
               : embedding + tw_round_up(tw_matrix_bytes(&model->embedding), TW_CUDA_ALIGNMENT);
}

static size_t mapped_bytes(const struct tw_model *model) {
    return tw_cuda_output_offset(model) + tw_matrix_bytes(&model->output);
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

const void *tw_cuda_vector(const struct tw_model *model, size_t l, enum tw_cuda_vector which, size_t *bytes) {
    const struct tw_model_config *const config = &model->config;
    const struct tw_layer_weights *const layer = &model->layers[l];
    const size_t d = config->head_dim;
    const struct {
        const void *data;
        size_t bytes;
    } vectors[TW_CUDA_N_VECTORS] = {
        [TW_CUDA_ATTENTION_NORM] = {layer->attention_norm, config->n_embd * sizeof(float)},
        [TW_CUDA_MLP_NORM] = {layer->mlp_norm, config->n_embd * sizeof(float)},
        [TW_CUDA_POST_ATTENTION_NORM] = {layer->post_attention_norm, config->n_embd * sizeof(float)},
        [TW_CUDA_POST_MLP_NORM] = {layer->post_mlp_norm, config->n_embd * sizeof(float)},
        [TW_CUDA_QUERY_NORM] = {layer->query_norm, d * sizeof(float)},
        [TW_CUDA_KEY_NORM] = {layer->key_norm, d * sizeof(float)},
        [TW_CUDA_QUERY_BIAS] = {layer->query_bias, config->n_heads * d * sizeof(float)},
        [TW_CUDA_KEY_BIAS] = {layer->key_bias, config->n_kv_heads * d * sizeof(float)},
        [TW_CUDA_VALUE_BIAS] = {layer->value_bias, config->n_kv_heads * d * sizeof(float)},
        [TW_CUDA_ROPE_DIVISOR] = {layer->rope_divisor, d / 2 * sizeof(double)},
    };
    *bytes = vectors[which].bytes;
    return vectors[which].data;
}

static size_t vector_bytes(const struct tw_model *model) {
    size_t total = tw_cuda_vector_span(model->config.n_embd * sizeof(float)), bytes;
    for (size_t l = 0; l < model->config.n_layers; l++)
        for (int which = 0; which < TW_CUDA_N_VECTORS; which++)
            if (tw_cuda_vector(model, l, (enum tw_cuda_vector)which, &bytes)) total += tw_cuda_vector_span(bytes);
    return total;
}

size_t tw_cuda_state_floats(const struct tw_model_config *config) {
    return config->head_dim + 3 * config->n_embd + 2 * config->n_heads * config->head_dim +
           2 * config->n_kv_heads * config->head_dim + 2 * config->n_mlp;
}

/*
 * What each split of the keys leaves behind: maximum and sum of each observation query, or a maximum, a sum and an
 * output of each decoding head, or, in double, a sum of keys of each KV head.
 */
static size_t partial_bytes(const struct tw_model_config *config, const struct tw_backend_options *options) {
    const size_t d = config->head_dim;
    const size_t floats = config->n_heads * tw_max_size(2 * options->window, d + 2);
    return TW_CUDA_SPLITS * tw_max_size(floats * sizeof(float), config->n_kv_heads * d * sizeof(double));
}

size_t tw_cuda_row_bytes(const struct tw_model_config *config, size_t n_keys) {
    return config->n_heads * n_keys * sizeof(float);
}

static void put(struct tw_buffer_size *size, const char *what, enum tw_category category, size_t bytes) {
    *size = (struct tw_buffer_size){.what = what, .category = category, .bytes = bytes};
}

static size_t kv_sizes(struct tw_buffer_size *sizes, const struct tw_model_config *config, size_t element,
                       const struct tw_moment_of *of) {
    size_t rows = 0;
    for (size_t g = 0; g < config->n_kv_heads; g++) {
        of->offset[g] = rows;
        rows += of->capacity[g];
    }
    put(&sizes[0], "keys", TW_CATEGORY_ACTIVE_KV, rows * config->head_dim * element);
    put(&sizes[1], "values", TW_CATEGORY_ACTIVE_KV, rows * config->head_dim * element);
    return 2;
}

/* First and last row that each of n queries may see, for each KV head. */
static size_t range_bytes(const struct tw_model_config *config, size_t n) {
    return config->n_kv_heads * n * 2 * sizeof(int32_t);
}

static size_t logits_sizes(struct tw_buffer_size *sizes, const struct tw_model *model, bool stream, size_t n) {
    const size_t rows = tw_min_size(n, TW_CUDA_LOGITS_ROWS);
    const size_t slab_rows = tw_max_size(TW_CUDA_SLAB_BYTES / tw_max_size(model->output.row_bytes, 1), 1);
    put(&sizes[TW_CUDA_LOGITS_OUT], "logits", TW_CATEGORY_LOGITS,
        rows * (model->config.n_vocab + model->config.n_embd) * sizeof(float));
    put(&sizes[TW_CUDA_SLAB], "a slab of the output matrix", TW_CATEGORY_LOGITS,
        stream ? tw_min_size(slab_rows, model->output.n_rows) * model->output.row_bytes : 0);
    return TW_CUDA_N_LOGITS;
}

size_t tw_cuda_rank_entries(const struct tw_ranking *ranking, size_t n_kv_heads) {
    size_t total = ranking->n_shared;
    for (size_t g = 0; g < n_kv_heads; g++) total += ranking->n_best[g];
    return total;
}

static size_t rank_sizes(struct tw_buffer_size *sizes, const struct tw_model_config *config,
                         const struct tw_backend_options *options, const struct tw_moment_of *of) {
    const struct tw_ranking *const ranking = of->ranking;
    const size_t n_kv_heads = config->n_kv_heads, total = tw_cuda_rank_entries(ranking, n_kv_heads);
    const enum tw_category category = TW_CATEGORY_COMPRESSION;
    put(&sizes[TW_CUDA_SCORE_RANGES], "visible rows", category, range_bytes(config, options->window));
    put(&sizes[TW_CUDA_SCORES], "scores of a block", category,
        n_kv_heads * tw_cuda_rank_columns(ranking, of->n, of->n_keys) * sizeof(float));
    put(&sizes[TW_CUDA_KEY_MEAN_IN], "mean of keys", category, n_kv_heads * config->head_dim * sizeof(double));
    put(&sizes[TW_CUDA_POOLED], "pooled scores of a block", category, n_kv_heads * of->n * sizeof(float));
    put(&sizes[TW_CUDA_LISTS], "running top-k", category, 2 * total * sizeof(uint64_t));
    put(&sizes[TW_CUDA_LEAST], "least of each running top-k", category, n_kv_heads * sizeof(uint64_t));
    put(&sizes[TW_CUDA_REST], "candidates of the shared top-k", category,
        n_kv_heads * tw_min_size(ranking->n_shared, of->n) * sizeof(uint64_t));
    put(&sizes[TW_CUDA_CHUNKS], "means of chunks", category,
        ranking->chunk ? 2 * sizeof(double) + (of->n / ranking->chunk + 2) * sizeof(float) : 0);
    return TW_CUDA_N_RANK;
}

static size_t buffers(struct tw_buffer_size sizes[TW_MOMENT_MAX_BUFFERS], const struct tw_model *model,
                      const struct tw_backend_options *options, const struct tw_moment_of *of) {
    const struct tw_model_config *const config = &model->config;
    const bool stream = options->weights == TW_WEIGHTS_STREAM;
    const size_t element = tw_cuda_element_bytes(options->dtype), d = config->head_dim;
    const size_t n_heads = config->n_heads, n_embd = config->n_embd, n_layers = config->n_layers;
    switch (of->moment) {
    case TW_MOMENT_OPEN:
        put(&sizes[TW_CUDA_VECTORS], "norms, biases and divisors", TW_CATEGORY_WEIGHTS, vector_bytes(model));
        put(&sizes[TW_CUDA_WEIGHTS], "weights", TW_CATEGORY_WEIGHTS, stream ? 0 : mapped_bytes(model));
        put(&sizes[TW_CUDA_WORKSPACE], "workspace of products", TW_CATEGORY_CHUNK, TW_CUDA_PRODUCT_WORKSPACE);
        put(&sizes[TW_CUDA_PARTIALS], "partial sums of key ranges", TW_CATEGORY_COMPRESSION,
            partial_bytes(config, options));
        put(&sizes[TW_CUDA_STATE], "decoding state", TW_CATEGORY_OTHER, tw_cuda_state_floats(config) * sizeof(float));
        return TW_CUDA_N_OPEN;
    case TW_MOMENT_CHUNK: {
        const size_t rows = tw_cuda_query_rows(of->n);
        const size_t block_rows = options->whole_rows ? rows : TW_CUDA_ROW_BLOCK;
        const size_t gate_columns = tw_max_size(config->n_mlp, 2 * config->n_kv_heads * d);
        put(&sizes[TW_CUDA_QUERY], "queries of a chunk", TW_CATEGORY_CHUNK, rows * n_heads * d * element);
        put(&sizes[TW_CUDA_NORMED], "normed rows", TW_CATEGORY_CHUNK, block_rows * n_embd * element);
        put(&sizes[TW_CUDA_GATE], "MLP gate", TW_CATEGORY_CHUNK, block_rows * gate_columns * element);
        put(&sizes[TW_CUDA_UP], "MLP up", TW_CATEGORY_CHUNK, block_rows * config->n_mlp * element);
        put(&sizes[TW_CUDA_ROTATION], "rotation of a block", TW_CATEGORY_CHUNK, TW_CUDA_ROW_BLOCK * d * sizeof(float));
        return TW_CUDA_N_CHUNK;
    }
    case TW_MOMENT_BRIDGE: put(&sizes[0], "hidden bridge", TW_CATEGORY_BRIDGE, of->n * n_embd * element); return 1;
    case TW_MOMENT_KV: return kv_sizes(sizes, config, element, of);
    case TW_MOMENT_OBSERVATION:
        put(&sizes[0], "observation queries", TW_CATEGORY_COMPRESSION, n_heads * options->window * d * element);
        put(&sizes[1], "observation maxima", TW_CATEGORY_COMPRESSION, n_heads * options->window * sizeof(float));
        put(&sizes[2], "observation sums", TW_CATEGORY_COMPRESSION, n_heads * options->window * sizeof(float));
        return 3;
    case TW_MOMENT_LAYER:
        put(&sizes[TW_CUDA_SLOT], "streamed layer", TW_CATEGORY_WEIGHTS,
            stream ? tw_cuda_slot_bytes(&model->layers[of->layer]) : 0);
        put(&sizes[TW_CUDA_NEXT_SLOT], "next streamed layer", TW_CATEGORY_WEIGHTS,
            stream && of->layer + 1 < n_layers ? tw_cuda_slot_bytes(&model->layers[of->layer + 1]) : 0);
        put(&sizes[TW_CUDA_UNPACKED], "unpacked layer", TW_CATEGORY_UNPACKED_LAYER,
            tw_cuda_unpacked_bytes(&model->layers[of->layer], options->dtype));
        return TW_CUDA_N_LAYER;
    case TW_MOMENT_EMBED:
        put(&sizes[TW_CUDA_TOKENS], "token ids", TW_CATEGORY_CHUNK,
            tw_min_size(of->n, TW_CUDA_ROW_BLOCK) * sizeof(int32_t));
        put(&sizes[TW_CUDA_TOKEN_ROWS], "embedding rows", TW_CATEGORY_CHUNK,
            stream ? tw_min_size(of->n, TW_CUDA_ROW_BLOCK) * model->embedding.row_bytes : 0);
        return TW_CUDA_N_EMBED;
    case TW_MOMENT_ATTEND:
        put(&sizes[TW_CUDA_RANGES], "visible rows", TW_CATEGORY_CHUNK, range_bytes(config, of->n));
        put(&sizes[TW_CUDA_EAGER], "eager attention scores", TW_CATEGORY_CHUNK,
            options->attention == TW_ATTENTION_EAGER ? n_heads * of->n * of->n_keys * sizeof(float) : 0);
        return TW_CUDA_N_ATTEND;
    case TW_MOMENT_OBSERVE:
        put(&sizes[TW_CUDA_RANGES], "visible rows", TW_CATEGORY_COMPRESSION, range_bytes(config, options->window));
        return 1;
    case TW_MOMENT_SCORE:
        put(&sizes[TW_CUDA_SCORE_RANGES], "visible rows", TW_CATEGORY_COMPRESSION,
            range_bytes(config, options->window));
        put(&sizes[TW_CUDA_SCORES], "scores of a block", TW_CATEGORY_COMPRESSION,
            config->n_kv_heads * of->n * sizeof(float));
        put(&sizes[TW_CUDA_KEY_MEAN_IN], "mean of keys", TW_CATEGORY_COMPRESSION,
            config->n_kv_heads * d * sizeof(double));
        return TW_CUDA_N_SCORE;
    case TW_MOMENT_RANK: return rank_sizes(sizes, config, options, of);
    case TW_MOMENT_GATHER:
        put(&sizes[0], "kept rows", TW_CATEGORY_COMPRESSION, config->n_kv_heads * of->n * sizeof(int32_t));
        return 1;
    case TW_MOMENT_LOG_ROW:
        put(&sizes[TW_CUDA_PIECES], "a piece of an attention row", TW_CATEGORY_COMPRESSION,
            n_heads * TW_CUDA_PIECE * sizeof(float));
        put(&sizes[TW_CUDA_CANDIDATES], "candidates of the log", TW_CATEGORY_COMPRESSION,
            n_heads * tw_cuda_candidates(of->n) * (sizeof(float) + sizeof(int32_t)));
        return TW_CUDA_N_LOG;
    case TW_MOMENT_LOGITS: return logits_sizes(sizes, model, stream, of->n);
    case TW_MOMENT_DECODE_LOGITS: return logits_sizes(sizes, model, stream, 1);
    case TW_MOMENT_DECODE_LAYER:
        put(&sizes[TW_CUDA_ROWS], "attention rows", TW_CATEGORY_CHUNK, tw_cuda_row_bytes(config, of->n_keys));
        put(&sizes[TW_CUDA_DECODE_SLOT], "streamed layer", TW_CATEGORY_WEIGHTS,
            stream ? tw_cuda_slot_bytes(&model->layers[of->layer]) : 0);
        put(&sizes[TW_CUDA_DECODE_NEXT_SLOT], "next streamed layer", TW_CATEGORY_WEIGHTS,
            stream ? tw_cuda_slot_bytes(&model->layers[(of->layer + 1) % n_layers]) : 0);
        return TW_CUDA_N_DECODE;
    case TW_MOMENT_APPEND:
    case TW_MOMENT_FINISH:
    case TW_MOMENT_KEY_MEAN: break;
    }
    return 0;
}

static tw_status resolve(struct tw_backend_options *options, const struct tw_model *model, struct tw_error *err) {
    const struct tw_model_config *const config = &model->config;
    if (config->n_kv_heads > TW_CUDA_MAX_KV_HEADS || config->head_dim > TW_CUDA_MAX_HEAD_DIM)
        return TW_FAIL(err, TW_E_UNSUPPORTED,
                       "backend 'cuda' takes up to %d KV heads of up to %d numbers, model '%s' has %zu of %zu: use "
                       "'--backend cpu'",
                       TW_CUDA_MAX_KV_HEADS, TW_CUDA_MAX_HEAD_DIM, config->name ? config->name : "", config->n_kv_heads,
                       config->head_dim);
    if (config->n_heads / config->n_kv_heads * config->head_dim > TW_CUDA_MAX_GROUP_NUMBERS)
        return TW_FAIL(err, TW_E_UNSUPPORTED,
                       "backend 'cuda' takes up to %d query numbers a KV head, model '%s' has %zu: use '--backend cpu'",
                       TW_CUDA_MAX_GROUP_NUMBERS, config->name ? config->name : "",
                       config->n_heads / config->n_kv_heads * config->head_dim);
    if (config->context_length > UINT32_MAX / config->n_kv_heads) /* a row and a head are one 32-bit number */
        return TW_FAIL(err, TW_E_UNSUPPORTED,
                       "backend 'cuda' ranks up to %zu rows of %zu KV heads, model '%s' has a context of %zu: use "
                       "'--backend cpu'",
                       (size_t)UINT32_MAX / config->n_kv_heads, config->n_kv_heads, config->name ? config->name : "",
                       config->context_length);
    if (options->dtype == TW_DTYPE_AUTO) options->dtype = TW_DTYPE_BF16;
    options->n_threads = 1; /* the host only hands out work */
    if (options->window == 0) options->window = 1;
    return TW_OK;
}

const struct tw_backend_image tw_cuda_image = {
    .name = "cuda", .dry_source = &tw_memory_dry_device, .ranks = true, .resolve = resolve, .buffers = buffers};
