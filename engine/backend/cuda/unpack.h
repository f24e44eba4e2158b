/*
 * Stored types on the device: eight neighbouring numbers of a block at a time, bit for bit what model/quant.c gives
 * (its comments explain the layouts). Products are rounded before anything is added, so nothing may be contracted.
 */
#ifndef TW_ENGINE_BACKEND_CUDA_UNPACK_H
#define TW_ENGINE_BACKEND_CUDA_UNPACK_H

#include "engine/backend/cuda/device.h"

static __device__ __forceinline__ unsigned tw_u16(const uint8_t *at) { return at[0] | (unsigned)at[1] << 8; }
static __device__ __forceinline__ unsigned tw_u32(const uint8_t *at) { return tw_u16(at) | tw_u16(at + 2) << 16; }
static __device__ __forceinline__ float tw_half(const uint8_t *at) {
    __half_raw raw;
    raw.x = (unsigned short)tw_u16(at);
    return __half2float(__half(raw));
}
static __device__ __forceinline__ float tw_scaled(float number, float scale, float minimum) {
    return __fadd_rn(__fmul_rn(number, scale), minimum);
}

/* The GGUF numbers of the types. */
enum {
    TW_F32 = 0,
    TW_F16 = 1,
    TW_Q4_0 = 2,
    TW_Q4_1 = 3,
    TW_Q5_0 = 6,
    TW_Q5_1 = 7,
    TW_Q8_0 = 8,
    TW_Q2_K = 10,
    TW_Q3_K = 11,
    TW_Q4_K = 12,
    TW_Q5_K = 13,
    TW_Q6_K = 14,
    TW_IQ4_NL = 20,
    TW_IQ4_XS = 23,
    TW_BF16 = 30
};

/* The 16 levels of the IQ4 types. */
static __device__ __forceinline__ float tw_iq4_level(unsigned i) {
    constexpr signed char levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return (float)levels[i];
}

/* Scale and minimum of run 0 to 7 in the 12 bytes of Q4_K and Q5_K. */
static __device__ __forceinline__ void tw_k4_scale(float *scale, float *minimum, const uint8_t *block, int run) {
    const uint8_t *const scales = block + 4;
    int s, m;
    if (run < 4) {
        s = scales[run] & 63;
        m = scales[run + 4] & 63;
    } else {
        s = (scales[run + 4] & 15) | scales[run - 4] >> 6 << 4;
        m = scales[run + 4] >> 4 | scales[run] >> 6 << 4;
    }
    *scale = __fmul_rn(tw_half(block), (float)s);
    *minimum = __fmul_rn(tw_half(block + 2), (float)m);
}

/* Numbers and bytes a block; unpack(out[8], block, i): numbers 8 i to 8 i + 7 of a block. */
template <int kType> struct tw_stored;

template <> struct tw_stored<TW_F32> {
    static constexpr int values = 8, bytes = 32;
    static __device__ __forceinline__ void unpack(float out[8], const uint8_t *block, int) {
        TW_UNROLL for (int j = 0; j < 8; j++) out[j] = __uint_as_float(tw_u32(block + 4 * j));
    }
};
template <> struct tw_stored<TW_F16> {
    static constexpr int values = 8, bytes = 16;
    static __device__ __forceinline__ void unpack(float out[8], const uint8_t *block, int) {
        TW_UNROLL for (int j = 0; j < 8; j++) out[j] = tw_half(block + 2 * j);
    }
};
template <> struct tw_stored<TW_BF16> {
    static constexpr int values = 8, bytes = 16;
    static __device__ __forceinline__ void unpack(float out[8], const uint8_t *block, int) {
        TW_UNROLL for (int j = 0; j < 8; j++) out[j] = __uint_as_float(tw_u16(block + 2 * j) << 16);
    }
};

/* Blocks of 32: 16 bytes hold numbers j and j + 16; i = 0, 1 read low halves, 2, 3 high ones. */
template <> struct tw_stored<TW_Q4_0> {
    static constexpr int values = 32, bytes = 18;
    static __device__ __forceinline__ void unpack(float out[8], const uint8_t *block, int i) {
        const float scale = tw_half(block);
        const uint8_t *const quants = block + 2 + i % 2 * 8;
        TW_UNROLL for (int j = 0; j < 8; j++) out[j] =
            __fmul_rn((float)((int)(quants[j] >> i / 2 * 4 & 15) - 8), scale);
    }
};
template <> struct tw_stored<TW_Q4_1> {
    static constexpr int values = 32, bytes = 20;
    static __device__ __forceinline__ void unpack(float out[8], const uint8_t *block, int i) {
        const float scale = tw_half(block), minimum = tw_half(block + 2);
        const uint8_t *const quants = block + 4 + i % 2 * 8;
        TW_UNROLL for (int j = 0; j < 8; j++) out[j] = tw_scaled((float)(quants[j] >> i / 2 * 4 & 15), scale, minimum);
    }
};
template <> struct tw_stored<TW_Q5_0> {
    static constexpr int values = 32, bytes = 22;
    static __device__ __forceinline__ void unpack(float out[8], const uint8_t *block, int i) {
        const float scale = tw_half(block);
        const unsigned fifth = tw_u32(block + 2) >> 8 * i;
        const uint8_t *const quants = block + 6 + i % 2 * 8;
        TW_UNROLL for (int j = 0; j < 8; j++) out[j] =
            __fmul_rn((float)((int)((quants[j] >> i / 2 * 4 & 15) | (fifth >> j & 1) << 4) - 16), scale);
    }
};
template <> struct tw_stored<TW_Q5_1> {
    static constexpr int values = 32, bytes = 24;
    static __device__ __forceinline__ void unpack(float out[8], const uint8_t *block, int i) {
        const float scale = tw_half(block), minimum = tw_half(block + 2);
        const unsigned fifth = tw_u32(block + 4) >> 8 * i;
        const uint8_t *const quants = block + 8 + i % 2 * 8;
        TW_UNROLL for (int j = 0; j < 8; j++) out[j] =
            tw_scaled((float)((quants[j] >> i / 2 * 4 & 15) | (fifth >> j & 1) << 4), scale, minimum);
    }
};
template <> struct tw_stored<TW_Q8_0> {
    static constexpr int values = 32, bytes = 34;
    static __device__ __forceinline__ void unpack(float out[8], const uint8_t *block, int i) {
        const float scale = tw_half(block);
        TW_UNROLL for (int j = 0; j < 8; j++) out[j] = __fmul_rn((float)(signed char)block[2 + 8 * i + j], scale);
    }
};
template <> struct tw_stored<TW_IQ4_NL> {
    static constexpr int values = 32, bytes = 18;
    static __device__ __forceinline__ void unpack(float out[8], const uint8_t *block, int i) {
        const float scale = tw_half(block);
        const uint8_t *const quants = block + 2 + i % 2 * 8;
        TW_UNROLL for (int j = 0; j < 8; j++) out[j] = __fmul_rn(scale, tw_iq4_level(quants[j] >> i / 2 * 4 & 15));
    }
};

/* Blocks of 256. */
template <> struct tw_stored<TW_Q2_K> {
    static constexpr int values = 256, bytes = 84;
    static __device__ __forceinline__ void unpack(float out[8], const uint8_t *block, int i) {
        const int first = 8 * i, run = first / 16, shift = first % 128 / 32 * 2;
        const uint8_t *const quants = block + 16 + first / 128 * 32 + first % 32;
        const float scale = __fmul_rn(tw_half(block + 80), (float)(block[run] & 15));
        const float minimum = __fmul_rn(tw_half(block + 82), (float)(block[run] >> 4));
        TW_UNROLL for (int j = 0; j < 8; j++) out[j] = tw_scaled((float)(quants[j] >> shift & 3), scale, -minimum);
    }
};
template <> struct tw_stored<TW_Q3_K> {
    static constexpr int values = 256, bytes = 110;
    static __device__ __forceinline__ void unpack(float out[8], const uint8_t *block, int i) {
        const int first = 8 * i, run = first / 16, shift = first % 128 / 32 * 2;
        const uint8_t *const quants = block + 32 + first / 128 * 32 + first % 32;
        const uint8_t *const third = block + first % 32, *const scales = block + 96;
        const int low = run < 8 ? scales[run] & 15 : scales[run - 8] >> 4,
                  high = scales[8 + run % 4] >> run / 4 * 2 & 3;
        const float scale = __fmul_rn(tw_half(block + 108), (float)((low | high << 4) - 32));
        TW_UNROLL for (int j = 0; j < 8; j++) out[j] =
            __fmul_rn(scale, (float)((quants[j] >> shift & 3) - (third[j] >> first / 32 & 1 ? 0 : 4)));
    }
};
template <> struct tw_stored<TW_Q4_K> {
    static constexpr int values = 256, bytes = 144;
    static __device__ __forceinline__ void unpack(float out[8], const uint8_t *block, int i) {
        const int run = i / 4;
        const uint8_t *const quants = block + 16 + run / 2 * 32 + i % 4 * 8;
        float scale, minimum;
        tw_k4_scale(&scale, &minimum, block, run);
        TW_UNROLL for (int j = 0; j < 8; j++) out[j] =
            tw_scaled((float)(quants[j] >> run % 2 * 4 & 15), scale, -minimum);
    }
};
template <> struct tw_stored<TW_Q5_K> {
    static constexpr int values = 256, bytes = 176;
    static __device__ __forceinline__ void unpack(float out[8], const uint8_t *block, int i) {
        const int run = i / 4;
        const uint8_t *const fifth = block + 16 + i % 4 * 8, *const quants = block + 48 + run / 2 * 32 + i % 4 * 8;
        float scale, minimum;
        tw_k4_scale(&scale, &minimum, block, run);
        TW_UNROLL for (int j = 0; j < 8; j++) out[j] =
            tw_scaled((float)((quants[j] >> run % 2 * 4 & 15) + (fifth[j] >> run & 1) * 16), scale, -minimum);
    }
};
template <> struct tw_stored<TW_Q6_K> {
    static constexpr int values = 256, bytes = 210;
    static __device__ __forceinline__ void unpack(float out[8], const uint8_t *block, int i) {
        const int first = 8 * i, half = first / 128, quarter = first % 128 / 32, column = first % 32;
        const uint8_t *const low = block + half * 64 + quarter % 2 * 32 + column;
        const uint8_t *const high = block + 128 + half * 32 + column;
        const float scale = __fmul_rn(tw_half(block + 208), (float)(signed char)block[192 + first / 16]);
        TW_UNROLL for (int j = 0; j < 8; j++) {
            const int bits = (low[j] >> quarter / 2 * 4 & 15) | (high[j] >> quarter * 2 & 3) << 4;
            out[j] = __fmul_rn(scale, (float)(bits - 32));
        }
    }
};
template <> struct tw_stored<TW_IQ4_XS> {
    static constexpr int values = 256, bytes = 136;
    static __device__ __forceinline__ void unpack(float out[8], const uint8_t *block, int i) {
        const int run = i / 4, part = i % 4;
        const int bits = (block[4 + run / 2] >> run % 2 * 4 & 15) | (int)(tw_u16(block + 2) >> 2 * run & 3) << 4;
        const float scale = __fmul_rn(tw_half(block), (float)(bits - 32));
        const uint8_t *const quants = block + 8 + run * 16 + part % 2 * 8;
        TW_UNROLL for (int j = 0; j < 8; j++) out[j] = __fmul_rn(scale, tw_iq4_level(quants[j] >> part / 2 * 4 & 15));
    }
};

/* Calls f(tw_stored<type>()) for a type known at run time; false when there is none of that number. */
template <class F> static inline bool tw_with_stored(int type, F f) {
    switch (type) {
#define TW_CASE(id)                                                                                                    \
    case id: f(tw_stored<id>()); return true;
        TW_CASE(TW_F32)
        TW_CASE(TW_F16)
        TW_CASE(TW_BF16)
        TW_CASE(TW_Q4_0)
        TW_CASE(TW_Q4_1)
        TW_CASE(TW_Q5_0)
        TW_CASE(TW_Q5_1)
        TW_CASE(TW_Q8_0)
        TW_CASE(TW_Q2_K)
        TW_CASE(TW_Q3_K)
        TW_CASE(TW_Q4_K)
        TW_CASE(TW_Q5_K)
        TW_CASE(TW_Q6_K)
        TW_CASE(TW_IQ4_NL)
        TW_CASE(TW_IQ4_XS)
#undef TW_CASE
    }
    return false;
}

#endif
