/*
 * Attention with the scores materialised, kept for comparison: scores of all queries and keys to memory, softmax a row,
 * weights times values. The products are those of the tiles.
 */
#include "engine/backend/cuda/tiles.h"

template <class T, int kWidth> struct eager_shared {
    typedef tw_tile<T, kWidth> tile;
    static constexpr size_t bytes =
        sizeof(T) * (TILE_ROWS + tile::keys) * tile::stride + sizeof(float) * TILE_WARPS * tile::probability_floats;
};

/* scores [n_heads][n][n_keys], -infinity where masked. */
template <class T, int kWidth>
__global__ void __launch_bounds__(TILE_THREADS) eager_scores(float *scores, const T *query, int n_keys, tw_cuda_kv kv,
                                                             tw_cuda_visible visible, int n_heads, float scale) {
    typedef tw_tile<T, kWidth> tile;
    TW_DYNAMIC_SHARED(T, rows);
    T *const key = rows + TILE_ROWS * tile::stride;
    const int first = blockIdx.x * tile::keys, first_query = blockIdx.y * TILE_ROWS, h = blockIdx.z, g = h / kv.group;
    const int d = kv.head_dim, n = visible.n_queries;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, t = lane % 4;
    const size_t query_stride = (size_t)n_heads * d;
    tw_load_tile<T, kWidth>(rows, query + (size_t)first_query * query_stride + (size_t)h * d, query_stride, d,
                            TILE_ROWS, n - first_query);
    tw_load_tile<T, kWidth>(key, (const T *)kv.key + ((size_t)kv.offset[g] + first) * d, d, d, tile::keys,
                            kv.length[g] - first);
    tw_copies_wait();
    __syncthreads();
    tile products;
    products.begin(rows + 16 * warp * tile::stride);
    float score[tile::blocks][4];
    products.scores(score, rows + 16 * warp * tile::stride, key);
    TW_UNROLL for (int half = 0; half < 2; half++) {
        const int i = first_query + 16 * warp + row + 8 * half;
        if (i >= n) continue;
        int begin, end;
        tw_visible_rows(&begin, &end, visible, kv, g, i);
        TW_UNROLL for (int c = 0; c < tile::blocks; c++) TW_UNROLL for (int e = 0; e < 2; e++) {
            const int r = first + 8 * c + 2 * t + e;
            if (r < n_keys)
                scores[((size_t)h * n + i) * n_keys + r] =
                    r >= begin && r < end ? score[c][2 * half + e] * scale : -INFINITY;
        }
    }
}

enum { SOFTMAX_THREADS = 256 };
__global__ void __launch_bounds__(SOFTMAX_THREADS) eager_softmax(float *scores, int n_keys) {
    TW_SHARED_ARRAY(float, part, SOFTMAX_THREADS / 32);
    float *const row = scores + ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * n_keys;
    float most = -INFINITY, sum = 0;
    for (int i = threadIdx.x; i < n_keys; i += SOFTMAX_THREADS) most = fmaxf(most, row[i]);
    most = tw_block_max<SOFTMAX_THREADS>(most, part);
    for (int i = threadIdx.x; i < n_keys; i += SOFTMAX_THREADS) sum += expf(row[i] - most);
    sum = tw_block_sum<SOFTMAX_THREADS>(sum, part);
    for (int i = threadIdx.x; i < n_keys; i += SOFTMAX_THREADS) row[i] = expf(row[i] - most) / sum;
}

template <class T, int kWidth>
__global__ void __launch_bounds__(TILE_THREADS)
    eager_values(T *query, const float *weights, int n_keys, tw_cuda_kv kv, int n, int n_heads) {
    typedef tw_tile<T, kWidth> tile;
    TW_DYNAMIC_SHARED(unsigned char, shared);
    T *const value = (T *)shared;
    float *const probabilities =
        (float *)(value + tile::keys * tile::stride) + threadIdx.x / 32 * tile::probability_floats;
    const int first_query = blockIdx.x * TILE_ROWS, h = blockIdx.y, g = h / kv.group, d = kv.head_dim;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, t = lane % 4;
    float out[kWidth / 8][4];
    TW_UNROLL for (int c = 0; c < kWidth / 8; c++) TW_UNROLL for (int e = 0; e < 4; e++) out[c][e] = 0.0f;
    for (int first = 0; first < kv.length[g]; first += tile::keys) {
        tw_load_tile<T, kWidth>(value, (const T *)kv.value + ((size_t)kv.offset[g] + first) * d, d, d, tile::keys,
                                kv.length[g] - first);
        float probability[tile::blocks][4];
        TW_UNROLL for (int c = 0; c < tile::blocks; c++) TW_UNROLL for (int e = 0; e < 4; e++) {
            const int i = first_query + 16 * warp + row + e / 2 * 8, r = first + 8 * c + 2 * t + e % 2;
            probability[c][e] = i < n && r < n_keys ? weights[((size_t)h * n + i) * n_keys + r] : 0.0f;
        }
        tw_copies_wait();
        __syncthreads();
        tile::values(out, probability, value, probabilities);
        __syncthreads();
    }
    TW_UNROLL for (int half = 0; half < 2; half++) {
        const int i = first_query + 16 * warp + row + 8 * half;
        if (i >= n) continue;
        T *const to = query + ((size_t)i * n_heads + h) * d;
        TW_UNROLL for (int c = 0; c < kWidth / 8; c++) TW_UNROLL for (int e = 0; e < 2; e++) {
            const int column = 8 * c + 2 * t + e;
            if (column < d) tw_store(to + column, out[c][2 * half + e]);
        }
    }
}

extern "C" cudaError_t tw_cuda_attend_eager(cudaStream_t stream, enum tw_cuda_precision dtype, void *query,
                                            float *scores, int n_keys, const struct tw_cuda_kv *kv,
                                            const struct tw_cuda_visible *visible, float scale) {
    const int n_heads = kv->group * kv->n_kv_heads, n = visible->n_queries;
    cudaError_t error = cudaSuccess;
    tw_with_precision(dtype, [&](auto number) {
        typedef decltype(number) T;
        tw_with_width(kv->head_dim, [&](auto width) {
            constexpr int kWidth = decltype(width)::value, keys = tw_tile<T, kWidth>::keys;
            constexpr size_t bytes = eager_shared<T, kWidth>::bytes;
            const int tiles = (n + TILE_ROWS - 1) / TILE_ROWS;
            error = tw_allow_shared(eager_scores<T, kWidth>, bytes);
            if (error == cudaSuccess) error = tw_allow_shared(eager_values<T, kWidth>, bytes);
            if (error != cudaSuccess) return;
            TW_LAUNCH((eager_scores<T, kWidth>), dim3((n_keys + keys - 1) / keys, tiles, n_heads), TILE_THREADS, bytes,
                      stream, scores, (const T *)query, n_keys, *kv, *visible, n_heads, scale);
            TW_LAUNCH(eager_softmax, dim3(n, n_heads), SOFTMAX_THREADS, 0, stream, scores, n_keys);
            TW_LAUNCH((eager_values<T, kWidth>), dim3(tiles, n_heads), TILE_THREADS, bytes, stream, (T *)query, scores,
                      n_keys, *kv, n, n_heads);
        });
    });
    return error != cudaSuccess ? error : cudaGetLastError();
}
