/*
 * The two streaming passes of compression: maximum and sum of every observation query over all keys it may see, then
 * every key's score. The queries of a KV head's group stand one after the other as rows; keys come in the tiles of
 * attention. The first pass cuts the keys into a fixed number of ranges that run side by side and are merged in order,
 * so its workspace does not depend on the prompt.
 */
#include "engine/backend/cuda/tiles.h"

enum { SPLITS = 64 };

template <class T, int kWidth> struct observe_shared {
    typedef tw_tile<T, kWidth> tile;
    static constexpr size_t bytes = sizeof(T) * (TILE_ROWS + tile::keys) * tile::stride;
};

/* Rows of a split: whole tiles. */
static __host__ __device__ __forceinline__ int split_rows(int length, int keys) {
    const int rows = (length + SPLITS - 1) / SPLITS;
    return (rows + keys - 1) / keys * keys;
}

/* What this lane's two rows see; rows of missing queries see nothing. */
static __device__ __forceinline__ void row_ranges(int begin[2], int end[2], const tw_cuda_visible &visible,
                                                  const tw_cuda_kv &kv, int g, int first_row, int window) {
    const int warp = threadIdx.x / 32, row = threadIdx.x % 32 / 4;
    TW_UNROLL for (int half = 0; half < 2; half++) {
        const int i = first_row + 16 * warp + row + 8 * half, w = i % window;
        begin[half] = end[half] = 0;
        if (i < kv.group * window && w < visible.n_queries)
            tw_visible_rows(&begin[half], &end[half], visible, kv, g, w);
    }
}

/* Loads the rows of observation queries; those that are missing are zero. */
template <class T, int kWidth>
static __device__ __forceinline__ void load_queries(T *rows, const T *observed, int n_observed, int window,
                                                    const tw_cuda_kv &kv, int g, int first_row) {
    const T *const from = observed + ((size_t)g * kv.group * window + first_row) * kv.head_dim;
    constexpr int stride = tw_tile<T, kWidth>::stride;
    for (int i = threadIdx.x; i < TILE_ROWS * kWidth; i += TILE_THREADS) {
        const int row = i / kWidth, column = i % kWidth;
        const bool there =
            first_row + row < kv.group * window && (first_row + row) % window < n_observed && column < kv.head_dim;
        tw_store(rows + row * stride + column, there ? tw_load(from + (size_t)row * kv.head_dim + column) : 0.0f);
    }
}

template <class T, int kWidth>
__global__ void __launch_bounds__(TILE_THREADS)
    observe(float *partials, const T *observed, int window, tw_cuda_kv kv, tw_cuda_visible visible, float scale) {
    typedef tw_tile<T, kWidth> tile;
    TW_DYNAMIC_SHARED(T, rows);
    T *const key = rows + TILE_ROWS * tile::stride;
    const int split = blockIdx.x, first_row = blockIdx.y * TILE_ROWS, g = blockIdx.z, d = kv.head_dim;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, t = lane % 4;
    const T *const keys = (const T *)kv.key + (size_t)kv.offset[g] * d;
    int begin[2], end[2];
    row_ranges(begin, end, visible, kv, g, first_row, window);

    load_queries<T, kWidth>(rows, observed, visible.n_queries, window, kv, g, first_row);
    __syncthreads();
    tile products;
    products.begin(rows + 16 * warp * tile::stride);

    const int per_split = split_rows(kv.length[g], tile::keys);
    const int stop = (split + 1) * per_split < kv.length[g] ? (split + 1) * per_split : kv.length[g];
    float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
    for (int first = split * per_split; first < stop; first += tile::keys) {
        tw_load_tile<T, kWidth>(key, keys + (size_t)first * d, d, d, tile::keys, kv.length[g] - first);
        tw_copies_wait();
        __syncthreads();
        float score[tile::blocks][4];
        products.scores(score, rows + 16 * warp * tile::stride, key);
        TW_UNROLL for (int half = 0; half < 2; half++) {
            float most = -INFINITY;
            TW_UNROLL for (int c = 0; c < tile::blocks; c++) TW_UNROLL for (int e = 2 * half; e < 2 * half + 2; e++) {
                const int r = first + 8 * c + 2 * t + e % 2;
                score[c][e] = r < begin[half] || r >= end[half] ? -INFINITY : score[c][e] * scale;
                most = fmaxf(most, score[c][e]);
            }
            most = fmaxf(most, __shfl_xor_sync(TW_FULL_WARP, most, 1));
            most = fmaxf(most, __shfl_xor_sync(TW_FULL_WARP, most, 2));
            const float new_maximum = fmaxf(maximum[half], most);
            const float base = new_maximum == -INFINITY ? 0.0f : new_maximum;
            float total = 0.0f;
            TW_UNROLL for (int c = 0; c < tile::blocks; c++) TW_UNROLL for (int e = 2 * half; e < 2 * half + 2; e++)
                total += expf(score[c][e] - base);
            total += __shfl_xor_sync(TW_FULL_WARP, total, 1);
            total += __shfl_xor_sync(TW_FULL_WARP, total, 2);
            sum[half] = sum[half] * expf(maximum[half] - base) + total;
            maximum[half] = new_maximum;
        }
        __syncthreads(); /* the keys are done with */
    }
    TW_UNROLL for (int half = 0; half < 2; half++) {
        const int i = first_row + 16 * warp + row + 8 * half;
        if (t != 0 || i >= kv.group * window) continue;
        float *const to = partials + (((size_t)split * kv.n_kv_heads + g) * kv.group * window + i) * 2;
        to[0] = maximum[half];
        to[1] = sum[half];
    }
}

/* Merges the splits of one query row, in their order. */
__global__ void observe_merge(float *maximum, float *sum, const float *partials, int n_rows, int window,
                              int n_queries) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n_rows || i % window >= n_queries) return;
    float most = -INFINITY, total = 0.0f;
    for (int split = 0; split < SPLITS; split++) {
        const float *const part = partials + ((size_t)split * n_rows + i) * 2;
        if (part[0] == -INFINITY) continue;
        const float merged = fmaxf(most, part[0]);
        total = total * expf(most - merged) + part[1] * expf(part[0] - merged);
        most = merged;
    }
    maximum[i] = most;
    sum[i] = total;
}

template <class T, int kWidth>
__global__ void __launch_bounds__(TILE_THREADS)
    score_attention(float *score_out, const T *observed, const float *maximum, const float *sum, int window,
                    tw_cuda_kv kv, tw_cuda_visible visible, int first, int n, float scale) {
    typedef tw_tile<T, kWidth> tile;
    TW_DYNAMIC_SHARED(T, rows);
    TW_SHARED_ARRAY(float, column_sums, TILE_WARPS *tile::keys);
    T *const key = rows + TILE_ROWS * tile::stride;
    const int g = blockIdx.y, d = kv.head_dim, n_rows = kv.group * window;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, t = lane % 4;
    const int first_key = first + (int)blockIdx.x * tile::keys;
    const int valid = kv.length[g] - first_key; /* may be negative: then every key is missing */

    tw_load_tile<T, kWidth>(key, (const T *)kv.key + ((size_t)kv.offset[g] + first_key) * d, d, d, tile::keys, valid);
    float columns[tile::blocks][2] = {};
    for (int first_row = 0; first_row < n_rows; first_row += TILE_ROWS) {
        int begin[2], end[2];
        row_ranges(begin, end, visible, kv, g, first_row, window);
        __syncthreads(); /* the rows before are done with */
        load_queries<T, kWidth>(rows, observed, visible.n_queries, window, kv, g, first_row);
        tw_copies_wait();
        __syncthreads();
        tile products;
        products.begin(rows + 16 * warp * tile::stride);
        float score[tile::blocks][4];
        products.scores(score, rows + 16 * warp * tile::stride, key);
        TW_UNROLL for (int half = 0; half < 2; half++) {
            const int i = first_row + 16 * warp + row + 8 * half;
            const bool there = i < n_rows && i % window < visible.n_queries;
            const float base = there ? maximum[(size_t)g * n_rows + i] : 0.0f;
            const float share = there ? 1.0f / sum[(size_t)g * n_rows + i] : 0.0f;
            TW_UNROLL for (int c = 0; c < tile::blocks; c++) TW_UNROLL for (int e = 0; e < 2; e++) {
                const int r = first_key + 8 * c + 2 * t + e;
                if (r >= begin[half] && r < end[half])
                    columns[c][e] += expf(score[c][2 * half + e] * scale - base) * share;
            }
        }
    }
    TW_UNROLL for (int c = 0; c < tile::blocks; c++) TW_UNROLL for (int e = 0; e < 2; e++) {
        float total = columns[c][e]; /* over the eight rows g, for each t */
        total += __shfl_xor_sync(TW_FULL_WARP, total, 4);
        total += __shfl_xor_sync(TW_FULL_WARP, total, 8);
        total += __shfl_xor_sync(TW_FULL_WARP, total, 16);
        if (row == 0) column_sums[warp * tile::keys + 8 * c + 2 * t + e] = total;
    }
    __syncthreads();
    const float mean = 1.0f / (float)(kv.group * visible.n_queries);
    for (int i = threadIdx.x; i < tile::keys; i += TILE_THREADS) {
        const int at = (int)blockIdx.x * tile::keys + i;
        if (at >= n) continue;
        float total = 0.0f;
        for (int w = 0; w < TILE_WARPS; w++) total += column_sums[w * tile::keys + i];
        score_out[(size_t)g * n + at] = i < valid ? total * mean : -INFINITY;
    }
}

extern "C" cudaError_t tw_cuda_observe(cudaStream_t stream, enum tw_cuda_precision dtype, float *maximum, float *sum,
                                       float *partials, const void *observed, int window, const struct tw_cuda_kv *kv,
                                       const struct tw_cuda_visible *visible, float scale) {
    const int n_rows = kv->group * window, all_rows = n_rows * kv->n_kv_heads;
    cudaError_t error = cudaSuccess;
    tw_with_precision(dtype, [&](auto number) {
        typedef decltype(number) T;
        tw_with_width(kv->head_dim, [&](auto width) {
            constexpr int kWidth = decltype(width)::value;
            constexpr size_t bytes = observe_shared<T, kWidth>::bytes;
            const dim3 grid(SPLITS, (n_rows + TILE_ROWS - 1) / TILE_ROWS, kv->n_kv_heads);
            error = tw_allow_shared(observe<T, kWidth>, bytes);
            if (error == cudaSuccess)
                TW_LAUNCH((observe<T, kWidth>), grid, TILE_THREADS, bytes, stream, partials, (const T *)observed,
                          window, *kv, *visible, scale);
        });
    });
    if (error == cudaSuccess) error = cudaGetLastError();
    if (error != cudaSuccess) return error;
    TW_LAUNCH(observe_merge, (all_rows + 127) / 128, 128, 0, stream, maximum, sum, partials, all_rows, window,
              visible->n_queries);
    return cudaGetLastError();
}

extern "C" cudaError_t tw_cuda_score_attention(cudaStream_t stream, enum tw_cuda_precision dtype, float *score,
                                               const void *observed, const float *maximum, const float *sum, int window,
                                               const struct tw_cuda_kv *kv, const struct tw_cuda_visible *visible,
                                               int first, int n, float scale) {
    cudaError_t error = cudaSuccess;
    tw_with_precision(dtype, [&](auto number) {
        typedef decltype(number) T;
        tw_with_width(kv->head_dim, [&](auto width) {
            constexpr int kWidth = decltype(width)::value, keys = tw_tile<T, kWidth>::keys;
            constexpr size_t bytes = observe_shared<T, kWidth>::bytes;
            const dim3 grid((n + keys - 1) / keys, kv->n_kv_heads);
            error = tw_allow_shared(score_attention<T, kWidth>, bytes);
            if (error == cudaSuccess)
                TW_LAUNCH((score_attention<T, kWidth>), grid, TILE_THREADS, bytes, stream, score, (const T *)observed,
                          maximum, sum, window, *kv, *visible, first, n, scale);
        });
    });
    return error != cudaSuccess ? error : cudaGetLastError();
}
