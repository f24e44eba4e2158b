/*
 * Tiles of attention: a warp holds 16 query rows, a block's shared memory a tile of keys (and values). Scores and
 * outputs are accumulators in mma.sync's layout (device.h): with g = lane / 4 and t = lane % 4, element e of column
 * block c is row g + 8 (e / 2), column 8 c + 2t + e % 2. In bfloat16 the products run on tensor cores; in float32,
 * where there are none without loss, each lane computes its own elements: softmax and masks are the same code.
 */
#ifndef TW_ENGINE_BACKEND_CUDA_TILES_H
#define TW_ENGINE_BACKEND_CUDA_TILES_H

#include "engine/backend/cuda/device.h"
#include "engine/backend/cuda/kernels.h"

/*
 * kWidth: head size rounded up to what kernels are built for; columns beyond the head are zero. A shared row is 16
 * bytes longer, so that the eight rows that ldmatrix reads at once lie in different banks.
 */
template <class T, int kWidth> struct tw_tile;

template <int kWidth> struct tw_tile<tw_bf16, kWidth> {
    static constexpr int keys = kWidth > 128 ? 32 : 64; /* of a tile */
    static constexpr int stride = kWidth + 8;
    static constexpr int blocks = keys / 8;
    static constexpr bool keeps_queries = kWidth <= 128; /* in registers; wider heads read them from shared memory */
    static constexpr int probability_floats = 0;
    unsigned query[keeps_queries ? kWidth / 16 : 1][4];

    static __device__ __forceinline__ void load_query(unsigned q[4], const tw_bf16 *rows, int step) {
        const int lane = threadIdx.x % 32, m = lane / 8;
        tw_ldmatrix_x4(q, rows + (m % 2 * 8 + lane % 8) * stride + step * 16 + m / 2 * 8);
    }
    __device__ __forceinline__ void begin(const tw_bf16 *rows) {
        if (keeps_queries) TW_UNROLL for (int step = 0; step < kWidth / 16; step++) load_query(query[step], rows, step);
    }
    /* score = queries . keys */
    __device__ __forceinline__ void scores(float score[blocks][4], const tw_bf16 *rows, const tw_bf16 *key) {
        const int lane = threadIdx.x % 32, m = lane / 8;
        TW_UNROLL for (int c = 0; c < blocks; c++) TW_UNROLL for (int e = 0; e < 4; e++) score[c][e] = 0.0f;
        TW_UNROLL for (int step = 0; step < kWidth / 16; step++) {
            unsigned loaded[4];
            const unsigned *q = query[keeps_queries ? step : 0];
            if (!keeps_queries) {
                load_query(loaded, rows, step);
                q = loaded;
            }
            TW_UNROLL for (int c = 0; c < blocks; c += 2) {
                unsigned k[4]; /* two column blocks of eight keys */
                tw_ldmatrix_x4(k, key + (c * 8 + m / 2 * 8 + lane % 8) * stride + step * 16 + m % 2 * 8);
                tw_mma_16x8x16(score[c], q, k);
                tw_mma_16x8x16(score[c + 1], q, k + 2);
            }
        }
    }
    /* out += probability . values */
    static __device__ __forceinline__ void values(float out[kWidth / 8][4], const float probability[blocks][4],
                                                  const tw_bf16 *value, float *) {
        const int lane = threadIdx.x % 32, m = lane / 8;
        TW_UNROLL for (int step = 0; step < keys / 16; step++) {
            const float *const low = probability[2 * step], *const high = probability[2 * step + 1];
            const unsigned p[4] = {tw_pack_bf16(low[0], low[1]), tw_pack_bf16(low[2], low[3]),
                                   tw_pack_bf16(high[0], high[1]), tw_pack_bf16(high[2], high[3])};
            TW_UNROLL for (int c = 0; c < kWidth / 8; c += 2) {
                unsigned v[4];
                tw_ldmatrix_x4_transposed(v, value + (step * 16 + m % 2 * 8 + lane % 8) * stride + c * 8 + m / 2 * 8);
                tw_mma_16x8x16(out[c], p, v);
                tw_mma_16x8x16(out[c + 1], p, v + 2);
            }
        }
    }
};

template <int kWidth> struct tw_tile<float, kWidth> {
    static constexpr int keys = kWidth > 128 ? 8 : 32; /* what 99 KiB of shared memory hold */
    static constexpr int stride = kWidth + 4;
    static constexpr int blocks = keys / 8;
    static constexpr bool keeps_queries = false;
    static constexpr int probability_floats = 16 * (keys + 1); /* a warp's probabilities, for other lanes to read */

    __device__ __forceinline__ void begin(const float *) {}
    __device__ __forceinline__ void scores(float score[blocks][4], const float *rows, const float *key) {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        TW_UNROLL for (int c = 0; c < blocks; c++) {
            const float *const q = rows + g * stride, *const k = key + (8 * c + 2 * t) * stride;
            float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            TW_UNROLL_4 for (int j = 0; j < kWidth; j++) {
                const float low = q[j], high = q[8 * stride + j], left = k[j], right = k[stride + j];
                sum[0] += low * left;
                sum[1] += low * right;
                sum[2] += high * left;
                sum[3] += high * right;
            }
            TW_UNROLL for (int e = 0; e < 4; e++) score[c][e] = sum[e];
        }
    }
    static __device__ __forceinline__ void values(float out[kWidth / 8][4], const float probability[blocks][4],
                                                  const float *value, float *shared) {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        TW_UNROLL for (int c = 0; c < blocks; c++) TW_UNROLL for (int e = 0; e < 4; e++)
            shared[(g + 8 * (e / 2)) * (keys + 1) + 8 * c + 2 * t + e % 2] = probability[c][e];
        __syncwarp(TW_FULL_WARP);
        TW_UNROLL_4 for (int i = 0; i < keys; i++) {
            const float low = shared[g * (keys + 1) + i], high = shared[(g + 8) * (keys + 1) + i];
            TW_UNROLL for (int c = 0; c < kWidth / 8; c++) {
                const float left = value[i * stride + 8 * c + 2 * t], right = value[i * stride + 8 * c + 2 * t + 1];
                out[c][0] += low * left;
                out[c][1] += low * right;
                out[c][2] += high * left;
                out[c][3] += high * right;
            }
        }
        __syncwarp(TW_FULL_WARP);
    }
};

enum { TILE_WARPS = 4, TILE_THREADS = 32 * TILE_WARPS, TILE_ROWS = 16 * TILE_WARPS };

/*
 * Rows [0, n_rows) of shared memory from rows of head_dim numbers at `from`; rows from `valid` on, and columns beyond
 * the head, become zero. The copies are on their way when this returns: tw_copies_wait, then a barrier.
 */
template <class T, int kWidth>
static __device__ __forceinline__ void tw_load_tile(T *shared, const T *from, size_t from_stride, int head_dim,
                                                    int n_rows, int valid) {
    constexpr int stride = tw_tile<T, kWidth>::stride, vector = 16 / (int)sizeof(T);
    const bool vectors = head_dim % vector == 0 && from_stride % vector == 0;
    for (int i = threadIdx.x; i < n_rows * (kWidth / vector); i += TILE_THREADS) {
        const int row = i / (kWidth / vector), column = i % (kWidth / vector) * vector;
        T *const to = shared + row * stride + column;
        if (vectors && row < valid && column < head_dim) {
            tw_copy16_later(to, from + (size_t)row * from_stride + column);
            continue;
        }
        for (int j = 0; j < vector; j++) {
            const bool there = row < valid && column + j < head_dim;
            tw_store(to + j, there ? tw_load(from + (size_t)row * from_stride + column + j) : 0.0f);
        }
    }
}

/* First row and end of what query i may see of head g. */
static __device__ __forceinline__ void tw_visible_rows(int *begin, int *end, const tw_cuda_visible &visible,
                                                       const tw_cuda_kv &kv, int g, int i) {
    if (visible.ranges) {
        const int32_t *const range = visible.ranges + ((size_t)g * visible.n_queries + i) * 2;
        *begin = range[0];
        *end = range[1];
        return;
    }
    const int position = visible.first_position + i;
    *begin = visible.sliding_window && position >= visible.sliding_window ? position + 1 - visible.sliding_window : 0;
    *end = position + 1 < kv.length[g] ? position + 1 : kv.length[g];
}

/* Calls f(width) with the head size rounded up to one that kernels are built for, as a compile-time constant. */
template <int kWidth> struct tw_width { static constexpr int value = kWidth; };
template <class F> static inline void tw_with_width(int head_dim, F f) {
    if (head_dim <= 16)
        f(tw_width<16>());
    else if (head_dim <= 32)
        f(tw_width<32>());
    else if (head_dim <= 64)
        f(tw_width<64>());
    else if (head_dim <= 128)
        f(tw_width<128>());
    else
        f(tw_width<256>());
}
template <class F> static inline void tw_with_precision(enum tw_cuda_precision dtype, F f) {
    if (dtype == TW_CUDA_F32)
        f(float());
    else
        f(tw_bf16());
}

#endif
