#include "engine/backend/cpu/sizes.h"

#include <stdint.h>

#include "base/checked.h"
#include "engine/backend/cpu/kernels.h"

#define LARGE_MATRIX ((size_t)16 << 20)

static size_t aligned(size_t bytes) { return tw_round_up(bytes, 64); }

/* Puts a piece behind those before it and returns where it starts. */
static size_t place(size_t *end, size_t bytes) {
    const size_t at = *end;
    *end = at + aligned(bytes);
    return at;
}

/*
 * Small blocks keep more threads busy and waste less of a short prompt; on Zen 5, 64 rows are no slower than 128 at any
 * length. A matrix that no cache holds is read anew for every block, and tiles want more rows for it too.
 */
static size_t block_rows(const struct tw_cpu_shape *s, enum tw_cpu_level level) {
    const size_t gate_and_up = tw_cpu_packed_bytes(2 * s->n_mlp, s->n_embd, s->element_bytes);
    return level >= TW_CPU_AMX || gate_and_up > LARGE_MATRIX ? TW_CPU_MOST_BLOCK_ROWS : TW_CPU_MOST_BLOCK_ROWS / 2;
}

void tw_cpu_shape_init(struct tw_cpu_shape *shape, const struct tw_model *model, size_t element_bytes, size_t n_threads,
                       size_t window, bool whole_rows, enum tw_cpu_level level) {
    const struct tw_model_config *config = &model->config;
    *shape = (struct tw_cpu_shape){
        .n_embd = config->n_embd,
        .n_heads = config->n_heads,
        .n_kv_heads = config->n_kv_heads,
        .head_dim = config->head_dim,
        .n_mlp = config->n_mlp,
        .element_bytes = element_bytes,
        .n_threads = n_threads,
        .window = window,
        .whole_rows = whole_rows,
    };
    for (size_t l = 0; l < config->n_layers; l++) {
        size_t other = 0;
        while (other < l && model->layers[other].rope_divisor != model->layers[l].rope_divisor) other++;
        shape->n_rope_tables += other == l;
    }
    shape->block_rows = block_rows(shape, level);
}

static size_t kv_rows(size_t n_kv_heads, const size_t *capacity) {
    size_t rows = 0;
    for (size_t g = 0; g < n_kv_heads; g++) rows += tw_cpu_kv_rows(capacity[g]);
    return rows;
}

size_t tw_cpu_key_bytes(size_t n_kv_heads, const size_t *capacity, size_t head_dim, size_t element_bytes) {
    return kv_rows(n_kv_heads, capacity) * head_dim * element_bytes;
}

size_t tw_cpu_value_bytes(size_t n_kv_heads, const size_t *capacity, size_t head_dim, size_t element_bytes) {
    return kv_rows(n_kv_heads, capacity) * tw_cpu_value_width(head_dim) * element_bytes;
}

size_t tw_cpu_packed_bytes(size_t n_rows, size_t n_columns, size_t element_bytes) {
    return tw_round_up(n_rows, 64) * tw_round_up(n_columns, element_bytes == 2 ? 32 : 16) * element_bytes;
}

size_t tw_cpu_layer_bytes(const struct tw_cpu_shape *s) {
    return tw_cpu_packed_bytes(tw_cpu_qkv_width(s), s->n_embd, s->element_bytes) +
           tw_cpu_packed_bytes(s->n_embd, s->n_heads * s->head_dim, s->element_bytes) +
           tw_cpu_packed_bytes(2 * s->n_mlp, s->n_embd, s->element_bytes) +
           tw_cpu_packed_bytes(s->n_embd, s->n_mlp, s->element_bytes);
}

size_t tw_cpu_tile_bytes(const struct tw_cpu_shape *s) {
    const size_t width = tw_cpu_value_width(s->head_dim);
    /* queries and output [48][width], sums [48][16], maxima [64], logits and weights [16][64], all as float32 */
    return aligned((TW_CPU_TILE_ROWS * (2 * width + 16) + 64 + 2 * 16 * 64) * sizeof(float));
}

size_t tw_cpu_wide_bytes(const struct tw_cpu_shape *s) {
    const size_t products = tw_max_size(tw_cpu_qkv_width(s), s->n_embd) * sizeof(float);
    return tw_max_size(products, 2 * s->n_mlp * s->element_bytes);
}

void tw_cpu_scratch_layout(struct tw_cpu_scratch *scratch, const struct tw_cpu_shape *s, size_t product_bytes) {
    const size_t rows = s->block_rows, size = s->element_bytes;
    size_t end = 0;
    scratch->normed = place(&end, rows * s->n_embd * size);
    scratch->wide = place(&end, rows * tw_cpu_wide_bytes(s));
    scratch->activated = place(&end, rows * s->n_mlp * size);
    scratch->hidden = place(&end, rows * s->n_embd * sizeof(float));
    scratch->rotation = place(&end, (rows * 2 + 2) * s->head_dim * sizeof(float));
    scratch->product = place(&end, product_bytes);
    scratch->attention = place(&end, tw_cpu_tile_bytes(s));
    const size_t longest = tw_max_size(tw_max_size(s->n_embd, s->n_mlp), s->n_heads * s->head_dim);
    scratch->row = place(&end, tw_round_up(longest, 32) * sizeof(float));
    scratch->bytes = end;
}

void tw_cpu_chunk_layout(struct tw_cpu_chunk_layout *layout, const struct tw_cpu_shape *s, size_t max_rows) {
    /* A chunk may begin and end inside a row block. */
    const size_t rows = tw_round_up(max_rows, s->block_rows) + s->block_rows, size = s->element_bytes;
    size_t end = 0;
    *layout = (struct tw_cpu_chunk_layout){0};
    layout->query = place(&end, rows * s->n_heads * s->head_dim * size);
    if (s->whole_rows) {
        layout->normed = place(&end, rows * s->n_embd * size);
        layout->wide = place(&end, rows * tw_cpu_wide_bytes(s));
        layout->activated = place(&end, rows * s->n_mlp * size);
        layout->hidden = place(&end, rows * s->n_embd * sizeof(float));
    }
    layout->bytes = end;
}

static size_t padded(size_t n) { return tw_round_up(n, 32) * sizeof(float); }

void tw_cpu_decode_layout(struct tw_cpu_decode_layout *layout, const struct tw_cpu_shape *s) {
    size_t end = 0;
    layout->hidden = place(&end, padded(s->n_embd));
    layout->normed = place(&end, padded(s->n_embd));
    layout->qkv = place(&end, padded(tw_cpu_qkv_width(s)));
    layout->attended = place(&end, padded(s->n_heads * s->head_dim));
    layout->projected = place(&end, padded(s->n_embd));
    layout->wide = place(&end, padded(2 * s->n_mlp));
    layout->activated = place(&end, padded(s->n_mlp));
    layout->rotation = place(&end, s->n_rope_tables * 2 * s->head_dim * sizeof(float));
    const size_t longest = tw_max_size(tw_max_size(s->n_embd, s->n_mlp), s->n_heads * s->head_dim);
    layout->fixed_bytes = tw_cpu_fixed_bytes(longest);
    layout->fixed = place(&end, s->n_threads * layout->fixed_bytes);
    layout->bytes = end;
}

size_t tw_cpu_logits_row_bytes(const struct tw_cpu_shape *s) {
    return aligned(padded(s->n_embd)) + tw_cpu_fixed_bytes(s->n_embd);
}

void tw_cpu_row_layout(struct tw_cpu_row_layout *layout, const struct tw_cpu_shape *s, size_t rows) {
    size_t end = 0;
    layout->n_ranges = tw_max_size(tw_divide_up(rows, TW_CPU_KEY_RANGE), 1);
    layout->rows = layout->n_ranges * TW_CPU_KEY_RANGE;
    layout->row = place(&end, s->n_heads * layout->rows * sizeof(float));
    layout->peak = place(&end, layout->n_ranges * s->n_heads * sizeof(float));
    layout->sum = place(&end, layout->n_ranges * s->n_heads * sizeof(float));
    layout->output = place(&end, layout->n_ranges * s->n_heads * tw_cpu_value_width(s->head_dim) * sizeof(float));
    layout->bytes = end;
}

void tw_cpu_log_layout(struct tw_cpu_log_layout *layout, const struct tw_cpu_shape *s, size_t top_k) {
    const size_t parts = s->n_heads * TW_CPU_LOG_PARTS;
    size_t end = 0;
    top_k = tw_max_size(top_k, 1); /* the greatest is wanted in any case */
    layout->stream = tw_max_size(TW_CPU_LOG_PARTS * top_k, top_k + 1024);
    layout->workspace_bytes = aligned(tw_cpu_top_bytes(top_k));
    layout->workspace = place(&end, s->n_threads * layout->workspace_bytes);
    layout->stream_weight = place(&end, s->n_threads * layout->stream * sizeof(float));
    layout->stream_row = place(&end, s->n_threads * layout->stream * sizeof(int32_t));
    layout->weight = place(&end, parts * top_k * sizeof(float));
    layout->row = place(&end, parts * top_k * sizeof(int32_t));
    layout->found = place(&end, parts * sizeof(size_t));
    layout->peak = place(&end, parts * sizeof(float));
    layout->sum = place(&end, parts * sizeof(float));
    layout->mass = place(&end, parts * 2 * sizeof(double));
    layout->bytes = end;
}

size_t tw_cpu_log_bytes(const struct tw_cpu_shape *shape, size_t top_k) {
    struct tw_cpu_log_layout layout;
    tw_cpu_log_layout(&layout, shape, top_k);
    return layout.bytes;
}
