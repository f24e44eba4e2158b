/* The buffers of the cpu backend. */
#include "base/checked.h"
#include "engine/backend/cpu/cpu.h"

bool tw_cpu_has_bias(const struct tw_model *model) {
    for (size_t l = 0; l < model->config.n_layers; l++) {
        const struct tw_layer_weights *layer = &model->layers[l];
        if (layer->query_bias || layer->key_bias || layer->value_bias) return true;
    }
    return false;
}

void tw_cpu_product_shapes(struct tw_cpu_product_shape shapes[TW_CPU_N_MATRICES], const struct tw_cpu_shape *s,
                           bool bias) {
    const bool bf16 = s->element_bytes == 2;
    const size_t rows = s->block_rows, attended = s->n_heads * s->head_dim;
    shapes[TW_CPU_QKV] = (struct tw_cpu_product_shape){bf16, rows, s->n_embd, tw_cpu_qkv_width(s), bias, false, true};
    shapes[TW_CPU_OUTPUT] = (struct tw_cpu_product_shape){bf16, rows, attended, s->n_embd, false, true, true};
    shapes[TW_CPU_GATE_UP] = (struct tw_cpu_product_shape){bf16, rows, s->n_embd, 2 * s->n_mlp, false, false, false};
    shapes[TW_CPU_DOWN] = (struct tw_cpu_product_shape){bf16, rows, s->n_mlp, s->n_embd, false, true, true};
}

void tw_cpu_scratch_of_model(struct tw_cpu_scratch *scratch, const struct tw_model *model, const struct tw_cpu_shape *s,
                             enum tw_cpu_level level) {
    struct tw_cpu_product_shape shapes[TW_CPU_N_MATRICES + 2];
    tw_cpu_product_shapes(shapes, s, tw_cpu_has_bias(model));
    shapes[TW_CPU_N_MATRICES] = shapes[TW_CPU_OUTPUT];
    shapes[TW_CPU_N_MATRICES + 1] = shapes[TW_CPU_DOWN];
    shapes[TW_CPU_N_MATRICES].add = shapes[TW_CPU_N_MATRICES + 1].add = false;
    tw_cpu_scratch_layout(scratch, s, tw_cpu_product_scratch_bytes(level, shapes, TW_CPU_N_MATRICES + 2));
}

static tw_status resolve(struct tw_backend_options *options, const struct tw_model *model, struct tw_error *err) {
    enum tw_cpu_level level;
    TW_TRY(tw_cpu_level_choose(&level, err));
    if (options->weights == TW_WEIGHTS_STREAM)
        return TW_FAIL(err, TW_E_OPTION, "backend 'cpu' maps its weights: --weights stream needs a device");
    if (model->config.head_dim % 2)
        return TW_FAIL(err, TW_E_UNSUPPORTED, "model '%s': head size %zu is odd", model->path, model->config.head_dim);
    if (model->config.n_heads / model->config.n_kv_heads > TW_CPU_TILE_ROWS)
        return TW_FAIL(err, TW_E_UNSUPPORTED, "model '%s': %zu query heads share a KV head, backend 'cpu' takes %d",
                       model->path, model->config.n_heads / model->config.n_kv_heads, TW_CPU_TILE_ROWS);
    /* Without arithmetic for bf16 it would be slower and no more exact than float32: describe says so. */
    if (options->dtype != TW_DTYPE_F32) options->dtype = level >= TW_CPU_AVX512BF16 ? TW_DTYPE_BF16 : TW_DTYPE_F32;
    if (options->n_threads == 0) options->n_threads = tw_host_threads();
    if (options->window == 0) options->window = 1;
    return TW_OK;
}

static void put(struct tw_buffer_size *size, const char *what, enum tw_category category, size_t bytes) {
    *size = (struct tw_buffer_size){.what = what, .category = category, .bytes = bytes};
}

static size_t open_buffers(struct tw_buffer_size *sizes, const struct tw_model *model, const struct tw_cpu_shape *s,
                           enum tw_cpu_level level) {
    struct tw_cpu_scratch scratch;
    struct tw_cpu_decode_layout decode;
    tw_cpu_scratch_of_model(&scratch, model, s, level);
    tw_cpu_decode_layout(&decode, s);
    sizes[TW_CPU_OPEN_WEIGHTS] = (struct tw_buffer_size){
        .what = "weights", .category = TW_CATEGORY_WEIGHTS, .bytes = tw_model_weight_bytes(model), .mapped = true};
    put(&sizes[TW_CPU_OPEN_SCRATCH], "kernels' scratch", TW_CATEGORY_CHUNK, s->n_threads * scratch.bytes);
    put(&sizes[TW_CPU_OPEN_STATE], "decoding state", TW_CATEGORY_OTHER, decode.bytes);
    put(&sizes[TW_CPU_OPEN_ROPE], "rotary angles", TW_CATEGORY_OTHER,
        s->n_rope_tables * TW_CPU_MOST_BLOCK_ROWS * s->head_dim * sizeof(double));
    put(&sizes[TW_CPU_OPEN_BIAS], "biases of a layer", TW_CATEGORY_OTHER,
        tw_cpu_has_bias(model) ? tw_cpu_qkv_width(s) * sizeof(float) : 0);
    return TW_CPU_N_OPEN;
}

static size_t kv_buffers(struct tw_buffer_size *sizes, const struct tw_cpu_shape *s, const struct tw_moment_of *of) {
    size_t rows = 0;
    for (size_t g = 0; g < s->n_kv_heads; g++) {
        of->offset[g] = rows;
        rows += tw_cpu_kv_rows(of->capacity[g]);
    }
    put(&sizes[0], "keys", TW_CATEGORY_ACTIVE_KV,
        tw_cpu_key_bytes(s->n_kv_heads, of->capacity, s->head_dim, s->element_bytes));
    put(&sizes[1], "values", TW_CATEGORY_ACTIVE_KV,
        tw_cpu_value_bytes(s->n_kv_heads, of->capacity, s->head_dim, s->element_bytes));
    return 2;
}

static size_t layer_buffers(struct tw_buffer_size *sizes, const struct tw_cpu_shape *s) {
    const char *what = "unpacked layer";
    const enum tw_category category = TW_CATEGORY_UNPACKED_LAYER;
    const size_t query_width = s->n_heads * s->head_dim, size = s->element_bytes;
    put(&sizes[TW_CPU_QKV], what, category, tw_cpu_packed_bytes(tw_cpu_qkv_width(s), s->n_embd, size));
    put(&sizes[TW_CPU_OUTPUT], what, category, tw_cpu_packed_bytes(s->n_embd, query_width, size));
    put(&sizes[TW_CPU_GATE_UP], what, category, tw_cpu_packed_bytes(2 * s->n_mlp, s->n_embd, size));
    put(&sizes[TW_CPU_DOWN], what, category, tw_cpu_packed_bytes(s->n_embd, s->n_mlp, size));
    return TW_CPU_N_MATRICES;
}

static size_t buffers(struct tw_buffer_size sizes[TW_MOMENT_MAX_BUFFERS], const struct tw_model *model,
                      const struct tw_backend_options *options, const struct tw_moment_of *of) {
    struct tw_cpu_shape s;
    enum tw_cpu_level level;
    struct tw_error ignored;
    if (tw_cpu_level_choose(&level, &ignored) != TW_OK) level = tw_cpu_level_of_machine(); /* resolve has refused it */
    tw_cpu_shape_init(&s, model, options->dtype == TW_DTYPE_BF16 ? 2 : 4, options->n_threads, options->window,
                      options->whole_rows, level);
    switch (of->moment) {
    case TW_MOMENT_OPEN: return open_buffers(sizes, model, &s, level);
    case TW_MOMENT_CHUNK: {
        struct tw_cpu_chunk_layout layout;
        tw_cpu_chunk_layout(&layout, &s, of->n);
        put(&sizes[0], "activations of a chunk", TW_CATEGORY_CHUNK, layout.bytes);
        return 1;
    }
    case TW_MOMENT_BRIDGE:
        put(&sizes[0], "hidden bridge", TW_CATEGORY_BRIDGE, of->n * s.n_embd * s.element_bytes);
        return 1;
    case TW_MOMENT_KV: return kv_buffers(sizes, &s, of);
    case TW_MOMENT_OBSERVATION:
        put(&sizes[0], "observation queries", TW_CATEGORY_COMPRESSION,
            s.n_heads * s.window * s.head_dim * s.element_bytes);
        put(&sizes[1], "observation maxima", TW_CATEGORY_COMPRESSION, s.n_heads * s.window * sizeof(float));
        put(&sizes[2], "observation sums", TW_CATEGORY_COMPRESSION, s.n_heads * s.window * sizeof(float));
        return 3;
    case TW_MOMENT_LAYER: return layer_buffers(sizes, &s);
    case TW_MOMENT_ATTEND:
        put(&sizes[0], "eager attention scores", TW_CATEGORY_CHUNK,
            options->attention == TW_ATTENTION_EAGER
                ? s.n_heads * of->n * tw_round_up(of->n_keys, TW_CPU_KEY_BLOCK) * sizeof(float)
                : 0);
        return 1;
    case TW_MOMENT_LOG_ROW:
        put(&sizes[0], "selection of the log", TW_CATEGORY_COMPRESSION, tw_cpu_log_bytes(&s, of->n));
        return 1;
    case TW_MOMENT_DECODE_LAYER: {
        struct tw_cpu_row_layout layout;
        tw_cpu_row_layout(&layout, &s, of->n_keys);
        put(&sizes[0], "attention row of decoding", TW_CATEGORY_OTHER, layout.bytes);
        return 1;
    }
    case TW_MOMENT_LOGITS:
        put(&sizes[0], "normed rows", TW_CATEGORY_LOGITS, of->n * tw_cpu_logits_row_bytes(&s));
        return 1;
    default: return 0;
    }
}

const struct tw_backend_image tw_cpu_image = {
    .name = "cpu", .dry_source = &tw_memory_dry, .resolve = resolve, .buffers = buffers};
