/*
 * Sizes of everything that the cpu backend allocates, as plain arithmetic, oneDNN's own scratch apart: the backend and
 * the plan for a model that is not there compute the same bytes.
 */
#ifndef TW_ENGINE_BACKEND_CPU_SIZES_H
#define TW_ENGINE_BACKEND_CPU_SIZES_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/backend/cpu/level.h"
#include "engine/model/model.h"

/* Products run in blocks of at most this many rows on the absolute position grid. */
#define TW_CPU_MOST_BLOCK_ROWS 128
/* Attention walks keys in blocks of this many rows of the cache. */
#define TW_CPU_KEY_BLOCK 64
/* Decoding splits attention into ranges of this many rows, whose results are merged in order. */
#define TW_CPU_KEY_RANGE 256
/* Rows of queries (positions times the heads of a group) that share a tile of attention. */
#define TW_CPU_TILE_ROWS 48
/* Rows of queries that a call of the products kernel takes at most. */
#define TW_CPU_PRODUCT_ROWS 16
/* Parts into which a layer-end row is cut, whatever its length. */
#define TW_CPU_LOG_PARTS 16

struct tw_cpu_shape {
    size_t n_embd, n_heads, n_kv_heads, head_dim, n_mlp;
    size_t element_bytes; /* of activations, keys and values: 2 (bf16) or 4 (float32) */
    size_t n_threads;
    size_t window; /* W */
    bool whole_rows;
    size_t n_rope_tables; /* different rotary divisors among the layers */
    size_t block_rows;    /* of the products: the same for a model at a level, since results depend on it */
};

void tw_cpu_shape_init(struct tw_cpu_shape *shape, const struct tw_model *model, size_t element_bytes, size_t n_threads,
                       size_t window, bool whole_rows, enum tw_cpu_level level);

/* Outputs of the fused q, k, v product. */
static inline size_t tw_cpu_qkv_width(const struct tw_cpu_shape *s) {
    return (s->n_heads + 2 * s->n_kv_heads) * s->head_dim;
}
/* A row of the widest product: q, k, v or an output before its norm in float32, or gate and up in elements. */
size_t tw_cpu_wide_bytes(const struct tw_cpu_shape *shape);
/* Values are stored in rows of whole vectors. */
static inline size_t tw_cpu_value_width(size_t head_dim) { return (head_dim + 15) / 16 * 16; }

/* Rows that a head's storage really has. */
static inline size_t tw_cpu_kv_rows(size_t capacity) {
    return (capacity + TW_CPU_KEY_BLOCK - 1) / TW_CPU_KEY_BLOCK * TW_CPU_KEY_BLOCK;
}
/* Bytes of the keys, or of the values, of all heads. */
size_t tw_cpu_key_bytes(size_t n_kv_heads, const size_t *capacity, size_t head_dim, size_t element_bytes);
size_t tw_cpu_value_bytes(size_t n_kv_heads, const size_t *capacity, size_t head_dim, size_t element_bytes);

/* A matrix (or several, one above the other) in the layout of the products: padded to blocks of 64 x 16 or 64 x 32. */
size_t tw_cpu_packed_bytes(size_t n_rows, size_t n_columns, size_t element_bytes);
/* All matrices of a layer, unpacked. */
size_t tw_cpu_layer_bytes(const struct tw_cpu_shape *shape);

/* Pieces of a thread's scratch, each rounded up to 64 bytes, as offsets from its start. */
struct tw_cpu_scratch {
    size_t normed;    /* [block_rows][n_embd] */
    size_t wide;      /* [block_rows] rows of tw_cpu_wide_bytes: q, k, v in float32, or gate and up */
    size_t activated; /* [block_rows][n_mlp] */
    size_t hidden;    /* [block_rows][n_embd] float32: the hidden states while attention and MLP are added */
    size_t rotation;  /* [block_rows][2][head_dim] float32 */
    size_t product;   /* oneDNN's own */
    size_t attention; /* see tile kernels */
    size_t row;       /* [round_up(max(n_embd, n_mlp, n_heads * head_dim), 32)] float32 */
    size_t bytes;     /* of all */
};
/* product_bytes: tw_cpu_product_scratch_bytes of the shape's products. */
void tw_cpu_scratch_layout(struct tw_cpu_scratch *scratch, const struct tw_cpu_shape *shape, size_t product_bytes);

/* A chunk's queries, which its attention output replaces; with whole rows all temporaries as well. */
struct tw_cpu_chunk_layout {
    size_t query;     /* [rows][n_heads * head_dim] */
    size_t normed;    /* whole rows only: [rows][n_embd] */
    size_t wide;      /* [rows] of tw_cpu_wide_bytes */
    size_t activated; /* [rows][n_mlp] */
    size_t hidden;    /* [rows][n_embd] float32 */
    size_t bytes;
};
void tw_cpu_chunk_layout(struct tw_cpu_chunk_layout *layout, const struct tw_cpu_shape *shape, size_t max_rows);

/* The tile kernels' workspace: see attend.inc. */
size_t tw_cpu_tile_bytes(const struct tw_cpu_shape *shape);

/* A vector of n numbers in fixed point (fixed.inc): groups of 128 numbers. */
#define TW_CPU_FIXED_GROUP 768
static inline size_t tw_cpu_fixed_groups(size_t n) { return (n + 127) / 128; }
static inline size_t tw_cpu_fixed_bytes(size_t n) { return tw_cpu_fixed_groups(n) * TW_CPU_FIXED_GROUP; }

/* Decoding's vectors of one token. All float32, padded to 32. */
struct tw_cpu_decode_layout {
    size_t hidden;    /* [n_embd] */
    size_t normed;    /* [n_embd] */
    size_t qkv;       /* [qkv width] */
    size_t attended;  /* [n_heads * head_dim] */
    size_t projected; /* [n_embd] */
    size_t wide;      /* [2 n_mlp] */
    size_t activated; /* [n_mlp] */
    size_t rotation;  /* [n_rope_tables][2][head_dim] */
    size_t fixed;     /* [n_threads][fixed_bytes]: the input of a product in fixed point */
    size_t fixed_bytes;
    size_t bytes;
};
void tw_cpu_decode_layout(struct tw_cpu_decode_layout *layout, const struct tw_cpu_shape *shape);

/* A row that is multiplied with the output matrix: normed, float32 padded to 32, and in fixed point. */
size_t tw_cpu_logits_row_bytes(const struct tw_cpu_shape *shape);

/* Decoding's attention over up to `rows` rows a head: the softmax row, and each range's maximum, sum and output. */
struct tw_cpu_row_layout {
    size_t row;    /* [n_heads][rows] float32, rows rounded up to ranges */
    size_t peak;   /* [n_ranges][n_heads] */
    size_t sum;    /* [n_ranges][n_heads] */
    size_t output; /* [n_ranges][n_heads][value width] */
    size_t rows, n_ranges;
    size_t bytes;
};
void tw_cpu_row_layout(struct tw_cpu_row_layout *layout, const struct tw_cpu_shape *shape, size_t rows);

/*
 * The selection of the log: a workspace a thread, and, for the row at the end of a layer, what each part of it found.
 * Independent of the length of the row.
 */
struct tw_cpu_log_layout {
    size_t workspace; /* [n_threads] of workspace_bytes: tw_cpu_top_bytes */
    size_t workspace_bytes;
    size_t stream_weight; /* [n_threads][stream] float32: best weights so far, then those of the next blocks */
    size_t stream_row;    /* [n_threads][stream] int32 */
    size_t stream;        /* entries: max(16 top_k, top_k + 1024) */
    size_t weight;        /* [n_heads][16][top_k] float32: what each part found */
    size_t row;           /* [n_heads][16][top_k] int32 */
    size_t found;         /* [n_heads][16] size_t */
    size_t peak, sum;     /* [n_heads][16] float32 */
    size_t mass;          /* [n_heads][16][2] float64: on the needle, on the rest */
    size_t bytes;
};
void tw_cpu_log_layout(struct tw_cpu_log_layout *layout, const struct tw_cpu_shape *shape, size_t top_k);
size_t tw_cpu_log_bytes(const struct tw_cpu_shape *shape, size_t top_k);

#endif
