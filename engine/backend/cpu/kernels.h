/*
 * The kernels of the cpu backend, as tables of functions: one table an instruction set and precision. Each comes from a
 * template (*.inc) that is compiled once an instruction set, or from a file of its own where the instruction matters.
 *
 * Activations ("elements") are float32, or bf16 in the tables of bf16; everything inside a kernel is float32. Kernels
 * allocate nothing and cannot fail. Pointers need no alignment but that of their type unless it is said.
 *
 * Layout of the cache (rows are counted inside a head; d = head_dim, w = d rounded up to 16):
 *   float32  key [row / 16][d][16]         value [row][w]
 *   bf16     key [row / 16][d / 2][16][2]  value [row / 2][w][2]
 * so that one vector holds a dimension (or a pair of dimensions) of 16 keys, or 16 dimensions of a value (or of a
 * pair).
 */
#ifndef TW_ENGINE_BACKEND_CPU_KERNELS_H
#define TW_ENGINE_BACKEND_CPU_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "engine/backend/cpu/level.h"
#include "engine/model/model.h"

/* ---- rows of activations ---- */

/* What happens to the rows of a fused q, k, v product. */
struct tw_cpu_rotate {
    const float *qkv; /* [n][(n_heads + 2 n_kv_heads) * head_dim] float32, biases added */
    size_t n, n_heads, n_kv_heads, head_dim;
    const float *query_norm, *key_norm; /* [head_dim] or NULL */
    float epsilon;
    enum tw_rope_pairs pairs;
    /*
     * [n][2][head_dim]: for each row the factors of an element itself and of its partner,
     *   interleaved: (cos_0, cos_0, cos_1, ...) and (-sin_0, sin_0, -sin_1, ...)
     *   halves:      (cos_0 ... cos_0 ...)      and (-sin_0 ... , sin_0 ...)
     */
    const float *rotation;
    void *query;                     /* [n][n_heads * head_dim] elements */
    char *const *key, *const *value; /* [n_kv_heads] start of each head's storage */
    const size_t *row;               /* [n_kv_heads] the cache's row that row 0 becomes */
    float *scratch;                  /* [2][head_dim] */
};

/* ---- tiled attention ---- */

/*
 * One tile: n_positions queries of the n_group heads that share a KV head; row r is position r / n_group, head
 * r % n_group; n_positions * n_group <= TW_CPU_TILE_ROWS. Position p sees the cache's rows first[p] <= row < end[p],
 * end[p] > first[p], in blocks of 64 on the absolute grid of rows, by an online softmax that rescales a row, never the
 * tile: a row's result depends on nothing else in the tile. Keys outside get weight 0 exactly, whatever is stored
 * there.
 */
struct tw_cpu_tile {
    void *rows;    /* in: queries, out: attention output. Row r at rows + (r / n_group) * stride + (r % n_group) * d */
    size_t stride; /* elements */
    size_t n_positions, n_group, head_dim;
    const char *key, *value; /* of the KV head */
    const size_t *first, *end;
    float scale;     /* of q.k, times log2(e) */
    void *workspace; /* tw_cpu_tile_bytes, aligned to 64 */
};

/* ---- decoding ---- */

/*
 * One range of the cache for the n_group heads of a KV head: first <= row < end, at most TW_CPU_KEY_RANGE rows of one
 * range of the absolute grid. Leaves 2^(a - peak) for each row in `row`, rows of the range outside being 0.
 */
struct tw_cpu_range {
    const float *query; /* [n_group][head_dim], times scale * log2(e) */
    size_t n_group, head_dim;
    const char *key, *value; /* of the KV head; value NULL: no output is wanted */
    const char *next;        /* what will be read after this range, which may be fetched; or NULL */
    size_t first, end;
    float *row; /* [n_group] at row_stride; element 0 is the first of the range's grid */
    size_t row_stride;
    float *peak, *sum; /* [n_group] */
    float *output;     /* [n_group][value width] */
};

struct tw_cpu_kernels {
    /* out[i] = in[i] / sqrt(mean(in^2) + epsilon) * weight, for each of n rows of `width` elements. */
    void (*norm)(void *restrict out, const void *restrict in, const float *weight, size_t n, size_t width,
                 float epsilon);
    /* The same from float32. */
    void (*norm_float)(void *restrict out, const float *restrict in, const float *weight, size_t n, size_t width,
                       float epsilon);
    /* hidden += norm(in), in float32: a norm behind the attention or the MLP (gemma3). */
    void (*add_normed)(float *restrict hidden, const float *restrict in, const float *weight, size_t n, size_t width,
                       float epsilon);
    /* Norms of heads, rotation, and appending to the cache. */
    void (*rotate)(const struct tw_cpu_rotate *rotate);
    /* out[n][width] = activation(gate) * up, from wide [n][2 width]: gate then up. `out` may not overlap. */
    void (*activate)(void *restrict out, const void *restrict wide, size_t n, size_t width,
                     enum tw_activation activation);
    void (*to_float)(float *restrict out, const void *restrict in, size_t n);
    void (*from_float)(void *restrict out, const float *restrict in, size_t n, float scale);

    /* Keys and values of one row of the cache, in and out. Storing an even row of bf16 values clears its partner. */
    void (*store_key)(char *key, size_t row, const float *in, size_t head_dim);
    void (*store_value)(char *value, size_t row, const float *in, size_t head_dim);
    void (*load_key)(float *out, const char *key, size_t row, size_t head_dim);
    void (*load_value)(float *out, const char *value, size_t row, size_t head_dim);

    void (*tile)(const struct tw_cpu_tile *tile);
    /* logits[n_rows][64] = rows . keys of the block that starts at row `block` (a multiple of 64); rows [n_rows][d]
     * elements, contiguous; n_rows <= TW_CPU_PRODUCT_ROWS. What is stored behind the last key gives whatever it gives.
     */
    void (*products)(float *restrict logits, const void *restrict rows, const char *key, size_t block, size_t n_rows,
                     size_t head_dim);
    /* output[n_rows][value width] += weights[n_rows][64] . values of rows block .. block + n_keys. */
    void (*combine)(float *restrict output, const float *restrict weights, const char *value, size_t block,
                    size_t n_keys, size_t n_rows, size_t head_dim);
    void (*range)(const struct tw_cpu_range *range);
};

/* ---- what works on float32 whatever the activations are ---- */

typedef float tw_cpu_dot_fn(const uint8_t *row, const float *x, size_t n);
typedef void tw_cpu_fix_fn(void *fixed, const float *x, size_t n);
typedef void tw_cpu_fixed_rows_fn(float *out, const uint8_t *rows, size_t row_bytes, size_t n_rows, const void *fixed,
                                  size_t n);
typedef void tw_cpu_expand_fn(float *out, const uint8_t *row, size_t n);
/*
 * Sixteen rows of n_columns numbers of one type into their quarter of a block column of the packed layout (pack.h):
 * dword t of the sixteen goes to out + 256 t, a dword being one number (float32) or two neighbours (bf16). Numbers
 * behind n_columns, up to a multiple of 16 or 32, are 0.
 */
typedef void tw_cpu_pack_fn(char *out, const uint8_t *const *rows, size_t n_columns);

#define TW_CPU_N_TYPES 32 /* numbers of types are below this */

struct tw_cpu_common {
    /* Row . x, exactly the stored weights in float32; x is padded with zeros to a multiple of 32. NULL: generic. */
    tw_cpu_dot_fn *dot[TW_CPU_N_TYPES];
    /*
     * The same for n_rows rows that lie row_bytes apart, out[r] each, with x in fixed point, for types whose products
     * with small whole numbers pay (fixed.inc): fix writes tw_cpu_fixed_bytes(n) bytes, which serve all types with
     * the same function. What a row gives does not depend on those beside it. NULL: there is only dot.
     */
    tw_cpu_fix_fn *fix[TW_CPU_N_TYPES];
    tw_cpu_fixed_rows_fn *fixed_rows[TW_CPU_N_TYPES];
    /* dot for a row that was made float32 before. */
    float (*dot_float)(const float *row, const float *x, size_t n);
    tw_cpu_expand_fn *expand[TW_CPU_N_TYPES]; /* the n numbers of a row as float32; NULL: traits->dequantise */
    tw_cpu_pack_fn *pack_f32[TW_CPU_N_TYPES], *pack_bf16[TW_CPU_N_TYPES]; /* NULL: generic */

    /* (maximum, sum of 2^(a - maximum)) of a query, updated with the 64 logits of a block, times scale; rows outside
     * [first, end) of the absolute grid are left out. */
    void (*fold)(float *maximum, float *sum, const float *logits, size_t block, size_t first, size_t end, float scale);
    /* score[64] += 2^(a * scale - maximum) / sum, 0 outside [first, end). */
    void (*weigh)(float *restrict score, const float *restrict logits, size_t block, size_t first, size_t end,
                  float scale, float maximum, float sum);
    /* row[i] *= factor */
    void (*scale)(float *row, size_t n, float factor);
    /* sum of row[0..n) in float64, of whole vectors in order. */
    double (*sum)(const float *row, size_t n);
    /*
     * The k greatest of row[0..n), none negative, of equals those that come first; descending into weight and index.
     * Returns how many there are: min(k, n). Workspace: tw_cpu_top_bytes(k).
     */
    size_t (*top)(float *weight, int32_t *index, const float *row, size_t n, size_t k, void *workspace);
};

/* Tables by level; bf16 exists only from TW_CPU_AVX512BF16. */
const struct tw_cpu_kernels *tw_cpu_kernels_f32(enum tw_cpu_level level);
const struct tw_cpu_kernels *tw_cpu_kernels_bf16(enum tw_cpu_level level);
const struct tw_cpu_common *tw_cpu_common(enum tw_cpu_level level);

size_t tw_cpu_top_bytes(size_t k);

#endif
