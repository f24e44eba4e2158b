/*
 * Attention of a chunk's queries (tiled, running softmax).
 *
 * A block takes 64 queries of one head, a warp 16 of them. Keys come in tiles on the absolute grid of rows; values of a
 * tile are fetched while its scores are computed, keys of the next while the values are multiplied, with one buffer
 * each: what a second one would cost in shared memory halves the blocks a processor holds. Queries that are kept in
 * registers leave their shared memory to the values (at head size 128: 34 KiB a block, so that processors with 100 KiB
 * hold two).
 */
#include "engine/backend/cuda/tiles.h"

template <class T, int kWidth> struct attend_shared {
    typedef tw_tile<T, kWidth> tile;
    static constexpr size_t rows_bytes = sizeof(T) * TILE_ROWS * tile::stride;
    static constexpr size_t tile_bytes = sizeof(T) * tile::keys * tile::stride;
    /* Values lie behind the queries, or over them once those are in registers. */
    static constexpr size_t value_at = tile::keeps_queries ? 0 : rows_bytes;
    static constexpr size_t key_at =
        value_at + (tile_bytes > rows_bytes || !tile::keeps_queries ? tile_bytes : rows_bytes);
    static constexpr size_t probabilities_at = key_at + tile_bytes;
    static constexpr size_t bytes = probabilities_at + sizeof(float) * TILE_WARPS * tile::probability_floats;
};

template <class T, int kWidth>
__global__ void __launch_bounds__(TILE_THREADS)
    attend(T *query, tw_cuda_kv kv, tw_cuda_visible visible, int n_heads, float scale) {
    typedef tw_tile<T, kWidth> tile;
    TW_DYNAMIC_SHARED(unsigned char, shared);
    typedef attend_shared<T, kWidth> layout;
    T *const rows = (T *)shared, *const value = (T *)(shared + layout::value_at);
    T *const key = (T *)(shared + layout::key_at);
    float *const probabilities =
        (float *)(shared + layout::probabilities_at) + threadIdx.x / 32 * tile::probability_floats;

    /* The longest tiles begin first. */
    const int first_query = (int)(gridDim.x - 1 - blockIdx.x) * TILE_ROWS, h = blockIdx.y, g = h / kv.group;
    const int d = kv.head_dim, n = visible.n_queries;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, t = lane % 4;
    const size_t query_stride = (size_t)n_heads * d;
    T *const first_row = query + (size_t)first_query * query_stride + (size_t)h * d;
    const T *const keys = (const T *)kv.key + (size_t)kv.offset[g] * d;
    const T *const all_values = (const T *)kv.value + (size_t)kv.offset[g] * d;

    /* What this lane's two rows see, and what any of the block does. */
    int begin[2], end[2], block_begin = kv.length[g], block_end = 0;
    TW_UNROLL for (int half = 0; half < 2; half++) {
        const int i = first_query + 16 * warp + row + 8 * half;
        begin[half] = end[half] = 0;
        if (i < n) tw_visible_rows(&begin[half], &end[half], visible, kv, g, i);
    }
    for (int i = first_query; i < n && i < first_query + TILE_ROWS; i++) {
        int b, e;
        tw_visible_rows(&b, &e, visible, kv, g, i);
        block_begin = b < block_begin ? b : block_begin;
        block_end = e > block_end ? e : block_end;
    }

    const int first_tile = block_begin / tile::keys * tile::keys;
    tw_load_tile<T, kWidth>(rows, first_row, query_stride, d, TILE_ROWS, n - first_query);
    tw_load_tile<T, kWidth>(key, keys + (size_t)first_tile * d, d, d, tile::keys, block_end - first_tile);
    tw_copies_wait();
    __syncthreads();
    tile products;
    products.begin(rows + 16 * warp * tile::stride);
    if (tile::keeps_queries) __syncthreads(); /* queries are in registers: values may come in their place */

    const float exponent = scale * 1.44269504088896341f; /* to powers of two */
    float out[kWidth / 8][4], maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
    TW_UNROLL for (int c = 0; c < kWidth / 8; c++) TW_UNROLL for (int e = 0; e < 4; e++) out[c][e] = 0.0f;

    for (int first = first_tile; first < block_end; first += tile::keys) {
        tw_load_tile<T, kWidth>(value, all_values + (size_t)first * d, d, d, tile::keys, block_end - first);
        float score[tile::blocks][4];
        products.scores(score, rows + 16 * warp * tile::stride, key);

        TW_UNROLL for (int half = 0; half < 2; half++) {
            float most = -INFINITY;
            TW_UNROLL for (int c = 0; c < tile::blocks; c++) TW_UNROLL for (int e = 2 * half; e < 2 * half + 2; e++) {
                const int r = first + 8 * c + 2 * t + e % 2;
                if (r < begin[half] || r >= end[half]) score[c][e] = -INFINITY;
                most = fmaxf(most, score[c][e]);
            }
            most = fmaxf(most, __shfl_xor_sync(TW_FULL_WARP, most, 1));
            most = fmaxf(most, __shfl_xor_sync(TW_FULL_WARP, most, 2));
            const float new_maximum = fmaxf(maximum[half], most);
            /* A row that has seen nothing yet stays as it is; masked scores give exactly 0. */
            const float base = new_maximum == -INFINITY ? 0.0f : new_maximum * exponent;
            const float rescale = exp2f(maximum[half] * exponent - base);
            maximum[half] = new_maximum;
            float total = 0.0f;
            TW_UNROLL for (int c = 0; c < tile::blocks; c++) TW_UNROLL for (int e = 2 * half; e < 2 * half + 2; e++) {
                score[c][e] = exp2f(score[c][e] * exponent - base);
                total += score[c][e];
            }
            total += __shfl_xor_sync(TW_FULL_WARP, total, 1);
            total += __shfl_xor_sync(TW_FULL_WARP, total, 2);
            sum[half] = sum[half] * rescale + total;
            TW_UNROLL for (int c = 0; c < kWidth / 8; c++) {
                out[c][2 * half] *= rescale;
                out[c][2 * half + 1] *= rescale;
            }
        }
        tw_copies_wait();
        __syncthreads(); /* values are here, keys are done with */
        const int next = first + tile::keys;
        if (next < block_end) tw_load_tile<T, kWidth>(key, keys + (size_t)next * d, d, d, tile::keys, block_end - next);
        tile::values(out, score, value, probabilities);
        tw_copies_wait();
        __syncthreads(); /* the next keys are here, values are done with */
    }

    TW_UNROLL for (int half = 0; half < 2; half++) {
        const int i = 16 * warp + row + 8 * half;
        if (first_query + i >= n) continue;
        T *const to = first_row + (size_t)i * query_stride;
        TW_UNROLL for (int c = 0; c < kWidth / 8; c++) TW_UNROLL for (int e = 0; e < 2; e++) {
            const int column = 8 * c + 2 * t + e;
            if (column < d) tw_store(to + column, out[c][2 * half + e] / sum[half]);
        }
    }
}

extern "C" cudaError_t tw_cuda_attend(cudaStream_t stream, enum tw_cuda_precision dtype, void *query,
                                      const struct tw_cuda_kv *kv, const struct tw_cuda_visible *visible, float scale) {
    const int n_heads = kv->group * kv->n_kv_heads;
    const dim3 grid((visible->n_queries + TILE_ROWS - 1) / TILE_ROWS, n_heads);
    cudaError_t error = cudaSuccess;
    tw_with_precision(dtype, [&](auto number) {
        typedef decltype(number) T;
        tw_with_width(kv->head_dim, [&](auto width) {
            constexpr int kWidth = decltype(width)::value;
            constexpr size_t bytes = attend_shared<T, kWidth>::bytes;
            error = tw_allow_shared(attend<T, kWidth>, bytes);
            if (error == cudaSuccess)
                TW_LAUNCH((attend<T, kWidth>), grid, TILE_THREADS, bytes, stream, (T *)query, *kv, *visible, n_heads,
                          scale);
        });
    });
    return error != cudaSuccess ? error : cudaGetLastError();
}
