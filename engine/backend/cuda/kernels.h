/*
 * The kernels' launchers, C on the host side. All pointers are device memory unless said otherwise; all work goes to
 * `stream`; each returns what cudaGetLastError says after the launch. T is float or bfloat16 by `dtype`: the precision
 * of activations and of keys and values.
 *
 * Every kernel writes a row from that row's inputs alone, sums in a fixed order, and keys are tiled on the absolute
 * grid of the KV's rows: results do not depend on chunks, blocks or what runs beside them.
 */
#ifndef TW_ENGINE_BACKEND_CUDA_KERNELS_H
#define TW_ENGINE_BACKEND_CUDA_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TW_CUDA_KEY_TILES = 64, TW_CUDA_HEADS_CAPACITY = 128 };

/* Numbers of TW_DTYPE_..., so that kernel files need no model headers. */
enum tw_cuda_precision { TW_CUDA_BF16, TW_CUDA_F32 };

/* Keys and values of one layer as kernels see them: T [rows][head_dim], head g from row offset[g]. Passed by value. */
struct tw_cuda_kv {
    void *key, *value;
    int n_kv_heads, head_dim, group; /* group: query heads a KV head */
    int32_t length[TW_CUDA_HEADS_CAPACITY];
    int64_t offset[TW_CUDA_HEADS_CAPACITY];
};

/*
 * Which rows a query may see. Where row and position are equal: rows up to its position, and not further back than the
 * window. Otherwise `ranges` [n_kv_heads][n_queries] {first, end}.
 */
struct tw_cuda_visible {
    const int32_t *ranges; /* NULL: by position */
    int first_position;    /* of query 0 */
    int sliding_window;    /* 0: none */
    int n_queries;
};

/* ---- rows (rows.cu) ---- */

/* out T [n_rows][n] = norm(in) * weight. */
cudaError_t tw_cuda_norm(cudaStream_t stream, enum tw_cuda_precision dtype, void *out, const void *in,
                         const float *weight, int n, float epsilon, int n_rows);
/* The same to float. */
cudaError_t tw_cuda_norm_to_float(cudaStream_t stream, enum tw_cuda_precision dtype, float *out, const void *in,
                                  const float *weight, int n, float epsilon, int n_rows);
/*
 * hidden += y for n_rows rows, y normed by post_norm first unless that is NULL; then, unless next_norm is NULL,
 * normed = norm(hidden) * next_norm. `normed` may be `y`.
 */
cudaError_t tw_cuda_add_norm(cudaStream_t stream, enum tw_cuda_precision dtype, void *hidden, const void *y,
                             const float *post_norm, void *normed, const float *next_norm, int n, float epsilon,
                             int n_rows);
/* gate = activation(gate) * up; activation 0: silu, 1: gelu (tanh). */
cudaError_t tw_cuda_gate(cudaStream_t stream, enum tw_cuda_precision dtype, void *gate, const void *up, size_t n,
                         int activation);
/* rotation[i][j] = cosine and sine of (first_position + i) / divisor[j]. */
cudaError_t tw_cuda_rotation(cudaStream_t stream, void *rotation, const double *divisor, int n_pairs, int n_rows,
                             int first_position);

struct tw_cuda_project {
    void *query;             /* [n_rows][n_heads][d], bias, norm and rotation in place; float when decoding, else T */
    const void *key, *value; /* [n_rows][n_kv_heads][d], the like */
    const float *query_bias, *key_bias, *value_bias, *query_norm, *key_norm; /* NULL: none */
    const void *rotation;
    void *observed; /* T [n_heads][window][d] or NULL */
    int n_heads, n_rows, halves, window;
    int observe_from; /* row i goes to observation row i - observe_from when that is in [0, window) */
    float epsilon;
};
/* Keys and values go behind kv's rows (length: those before). `decoding`: query, key and value are float. */
cudaError_t tw_cuda_append(cudaStream_t stream, enum tw_cuda_precision dtype, const struct tw_cuda_project *project,
                           const struct tw_cuda_kv *kv, bool decoding);

/* ---- stored types (quant.cu); `type` as in GGUF ---- */

/* out T [n_rows][n_columns] */
cudaError_t tw_cuda_unpack(cudaStream_t stream, enum tw_cuda_precision dtype, void *out, const uint8_t *data, int type,
                           size_t row_bytes, int n_columns, int n_rows);
/* out T [n_tokens][n_columns] = scale * row tokens[i] of data; tokens NULL: row i. */
cudaError_t tw_cuda_embed(cudaStream_t stream, enum tw_cuda_precision dtype, void *out, const uint8_t *data, int type,
                          size_t row_bytes, int n_columns, const int32_t *tokens, int n_tokens, float scale);
/* y[i * y_stride + o] = W[o] . x[i * n_columns], float, for n_x rows of x and n_rows rows of W; how many rows of x
 * there are changes no bit of any. */
cudaError_t tw_cuda_product(cudaStream_t stream, float *y, size_t y_stride, const float *x, int n_x,
                            const uint8_t *data, int type, size_t row_bytes, int n_columns, int n_rows);

/* ---- attention of many queries (attention.cu) ---- */

/* query T [n_queries][n_heads][d] is replaced by the attention's output. */
cudaError_t tw_cuda_attend(cudaStream_t stream, enum tw_cuda_precision dtype, void *query, const struct tw_cuda_kv *kv,
                           const struct tw_cuda_visible *visible, float scale);
/* The same with scores [n_heads][n_queries][n_keys] materialised. */
cudaError_t tw_cuda_attend_eager(cudaStream_t stream, enum tw_cuda_precision dtype, void *query, float *scores,
                                 int n_keys, const struct tw_cuda_kv *kv, const struct tw_cuda_visible *visible,
                                 float scale);
/* maximum and sum [n_heads][window] over observed T [n_heads][window][d]; partials [splits][n_heads][window][2]. */
cudaError_t tw_cuda_observe(cudaStream_t stream, enum tw_cuda_precision dtype, float *maximum, float *sum,
                            float *partials, const void *observed, int window, const struct tw_cuda_kv *kv,
                            const struct tw_cuda_visible *visible, float scale);
/* score [n_kv_heads][n] of rows [first, first + n). */
cudaError_t tw_cuda_score_attention(cudaStream_t stream, enum tw_cuda_precision dtype, float *score,
                                    const void *observed, const float *maximum, const float *sum, int window,
                                    const struct tw_cuda_kv *kv, const struct tw_cuda_visible *visible, int first,
                                    int n, float scale);

/* ---- keys (keys.cu) ---- */

/* With mean (double [n_kv_heads][d]): minus the cosine; NULL: minus the length. */
cudaError_t tw_cuda_score_keys(cudaStream_t stream, enum tw_cuda_precision dtype, float *score, const double *mean,
                               const struct tw_cuda_kv *kv, int first, int n);
/* mean double [n_kv_heads][d]; partials double [splits][n_kv_heads][d]; mean may be the first of partials. */
cudaError_t tw_cuda_key_mean(cudaStream_t stream, enum tw_cuda_precision dtype, double *partials,
                             const struct tw_cuda_kv *kv);
/* Rows kept [n_kv_heads][most] (the first to->length[g] of each) of `from` become rows 0.. of `to`. */
cudaError_t tw_cuda_gather(cudaStream_t stream, enum tw_cuda_precision dtype, const struct tw_cuda_kv *to,
                           const struct tw_cuda_kv *from, const int32_t *kept, int most);

/* ---- one query (row.cu) ---- */

/* The rows of each KV head that the query may see, and those that the log adds up. Passed by value. */
struct tw_cuda_row_ranges {
    int32_t begin[TW_CUDA_HEADS_CAPACITY], end[TW_CUDA_HEADS_CAPACITY];
    int32_t needle_begin[TW_CUDA_HEADS_CAPACITY], needle_end[TW_CUDA_HEADS_CAPACITY];
    int32_t rest_begin[TW_CUDA_HEADS_CAPACITY], rest_end[TW_CUDA_HEADS_CAPACITY];
};
/* What a row leaves: maximum and sum, weights summed over the needle and the rest, and the heaviest row as a key. */
struct tw_cuda_row_state {
    float maximum, sum;
    double needle, rest;
    uint64_t best;
};
/* An entry of a log: heavier first, then the lower row. 0: empty. */
static inline int32_t tw_cuda_entry_row(uint64_t entry) { return (int32_t)(0xffffffffu - (uint32_t)entry); }

/* row[h * stride + i] = scale * (query h . key first + i), -infinity where not visible, for n rows. `query` is float
 * when query_is_float, else T; head h begins at query_stride * h. */
cudaError_t tw_cuda_row_logits(cudaStream_t stream, enum tw_cuda_precision dtype, float *row, size_t stride,
                               const void *query, size_t query_stride, bool query_is_float, const struct tw_cuda_kv *kv,
                               const struct tw_cuda_row_ranges *ranges, int first, int n, float scale);
/* Folds n logits of each head into state (reset: begins anew). */
cudaError_t tw_cuda_row_fold(cudaStream_t stream, struct tw_cuda_row_state *state, const float *row, size_t stride,
                             int n_heads, int n, bool reset);
/* Logits become weights; with `sums`, needle, rest and best are folded in as well. */
cudaError_t tw_cuda_row_weights(cudaStream_t stream, struct tw_cuda_row_state *state, float *row, size_t stride,
                                const struct tw_cuda_kv *kv, const struct tw_cuda_row_ranges *ranges, int first, int n,
                                bool sums);
/* attention float [n_heads][d] = weights . values; partials [splits][n_heads][d]. */
cudaError_t tw_cuda_row_values(cudaStream_t stream, enum tw_cuda_precision dtype, float *attention, float *partials,
                               const float *row, size_t stride, const struct tw_cuda_kv *kv,
                               const struct tw_cuda_row_ranges *ranges, int n);

/*
 * Merges the weights of rows [first, first + n) into the running list of each head's top_k (select.cu): best
 * [n_heads][top_k] entries, sorted, and candidates [n_heads][piece + top_k] as workspace. `reset`: the list begins
 * empty.
 */
cudaError_t tw_cuda_top(cudaStream_t stream, uint64_t *best, uint64_t *candidates, int top_k, const float *row,
                        size_t stride, const struct tw_cuda_kv *kv, const struct tw_cuda_row_ranges *ranges, int first,
                        int n, int piece, bool reset);

/* ---- the selectors' ranking (select.cu) ---- */

/* Of each head: rows that are ranked, entries of its list and where the list begins. Passed by value. */
struct tw_cuda_lists {
    int n_heads;
    int32_t n_scored[TW_CUDA_HEADS_CAPACITY], k[TW_CUDA_HEADS_CAPACITY];
    int64_t offset[TW_CUDA_HEADS_CAPACITY];
};
/*
 * An entry: a score in its upper half, in an order of whole numbers, and 2^32 - 1 - (row * n_heads + head) in the
 * lower; of equal scores the lower row is greater, then the lower head. 0: empty.
 */
static inline float tw_cuda_entry_score(uint64_t entry) {
    const uint32_t ordered = (uint32_t)(entry >> 32), bits = ordered >> 31 ? ordered & 0x7fffffffu : ~ordered;
    union {
        uint32_t bits;
        float number;
    } score = {bits};
    return score.number;
}

/*
 * pooled [n_heads][n] of rows [first, first + n), -infinity beyond a head's scored rows, from raw [n_heads][stride],
 * whose column 0 is row `from`: over `kernel` neighbours, or those that are there.
 */
cudaError_t tw_cuda_pool_scores(cudaStream_t stream, float *pooled, const float *raw, size_t stride, int from,
                                int first, int n, const struct tw_cuda_lists *lists, int kernel, bool maximum);
/*
 * mean[i]: of chunk first / chunk + i, over its rows and all heads, where the chunk ends in rows [first, first + n).
 * carry [2] takes sums from one piece of rows to the next; `turn` is 0 and 1 by turns.
 */
cudaError_t tw_cuda_chunk_means(cudaStream_t stream, float *mean, double *carry, int turn, const float *pooled,
                                int n_kv_heads, int first, int n, int n_scored, int chunk);
/*
 * The k best of each head in the list `from` (reset: none) and among rows [first, first + n) of score [n_heads][stride]
 * become the list `to`, unsorted. least [n_heads]: the least of each head's k.
 */
cudaError_t tw_cuda_rank(cudaStream_t stream, uint64_t *to, const uint64_t *from, uint64_t *least, const float *score,
                         size_t stride, const struct tw_cuda_lists *lists, int first, int n, bool reset);
/* The same for one list of k that all heads share, over rows that are less than `least`; candidates [n_heads][n]. */
cudaError_t tw_cuda_rank_rest(cudaStream_t stream, uint64_t *to, const uint64_t *from, int k, uint64_t *candidates,
                              const uint64_t *least, const float *score, size_t stride,
                              const struct tw_cuda_lists *lists, int first, int n, bool reset);

#ifdef __cplusplus
}
#endif
#endif
