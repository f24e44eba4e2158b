/*
 * The plain forms: one block after the other, the arithmetic in the order in which ggml does it, so that the bits
 * agree. All products and sums are single float32 operations (the build forbids contraction).
 */
#include "engine/model/quant.h"

#include <string.h>

#include "base/half.h"

static uint16_t load_u16(const uint8_t *at) { return (uint16_t)(at[0] | at[1] << 8); }
static uint32_t load_u32(const uint8_t *at) { return (uint32_t)load_u16(at) | (uint32_t)load_u16(at + 2) << 16; }
static float load_half(const uint8_t *at) { return tw_float_from_half(load_u16(at)); }

static void dequantise_f32(float *restrict values, const uint8_t *restrict blocks, size_t n) {
    memcpy(values, blocks, n * sizeof *values);
}

static void dequantise_f16(float *restrict values, const uint8_t *restrict blocks, size_t n) {
    for (size_t i = 0; i < n; i++) values[i] = load_half(blocks + 2 * i);
}

static void dequantise_bf16(float *restrict values, const uint8_t *restrict blocks, size_t n) {
    for (size_t i = 0; i < n; i++) values[i] = tw_float_from_bf16(load_u16(blocks + 2 * i));
}

/* ---- blocks of 32: {half scale, [half minimum,] [fifth bits,] 16 bytes of two 4-bit numbers}
 * ------------------------- */

/* Value j is in the low half of byte j, value j + 16 in the high half. */
static void dequantise_q4_0(float *restrict values, const uint8_t *restrict block, size_t n) {
    for (; n; n -= 32, values += 32, block += 18) {
        const float scale = load_half(block);
        const uint8_t *quants = block + 2;
        for (int j = 0; j < 16; j++) {
            values[j] = (float)((quants[j] & 15) - 8) * scale;
            values[j + 16] = (float)((quants[j] >> 4) - 8) * scale;
        }
    }
}

static void dequantise_q4_1(float *restrict values, const uint8_t *restrict block, size_t n) {
    for (; n; n -= 32, values += 32, block += 20) {
        const float scale = load_half(block), minimum = load_half(block + 2);
        const uint8_t *quants = block + 4;
        for (int j = 0; j < 16; j++) {
            values[j] = (float)(quants[j] & 15) * scale + minimum;
            values[j + 16] = (float)(quants[j] >> 4) * scale + minimum;
        }
    }
}

/* The fifth bit of value j is bit j of a 32-bit word. */
static void dequantise_q5_0(float *restrict values, const uint8_t *restrict block, size_t n) {
    for (; n; n -= 32, values += 32, block += 22) {
        const float scale = load_half(block);
        const uint32_t fifth = load_u32(block + 2);
        const uint8_t *quants = block + 6;
        for (int j = 0; j < 16; j++) {
            values[j] = (float)((int)((quants[j] & 15) | (fifth >> j & 1) << 4) - 16) * scale;
            values[j + 16] = (float)((int)(quants[j] >> 4 | (fifth >> (j + 16) & 1) << 4) - 16) * scale;
        }
    }
}

static void dequantise_q5_1(float *restrict values, const uint8_t *restrict block, size_t n) {
    for (; n; n -= 32, values += 32, block += 24) {
        const float scale = load_half(block), minimum = load_half(block + 2);
        const uint32_t fifth = load_u32(block + 4);
        const uint8_t *quants = block + 8;
        for (int j = 0; j < 16; j++) {
            values[j] = (float)((quants[j] & 15) | (fifth >> j & 1) << 4) * scale + minimum;
            values[j + 16] = (float)(quants[j] >> 4 | (fifth >> (j + 16) & 1) << 4) * scale + minimum;
        }
    }
}

static void dequantise_q8_0(float *restrict values, const uint8_t *restrict block, size_t n) {
    for (; n; n -= 32, values += 32, block += 34) {
        const float scale = load_half(block);
        for (int j = 0; j < 32; j++) values[j] = (float)(int8_t)block[2 + j] * scale;
    }
}

/* The 16 levels of the IQ4 types, closer together around zero. */
static const int8_t iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void dequantise_iq4_nl(float *restrict values, const uint8_t *restrict block, size_t n) {
    for (; n; n -= 32, values += 32, block += 18) {
        const float scale = load_half(block);
        const uint8_t *quants = block + 2;
        for (int j = 0; j < 16; j++) {
            values[j] = scale * (float)iq4_levels[quants[j] & 15];
            values[j + 16] = scale * (float)iq4_levels[quants[j] >> 4];
        }
    }
}

/* ---- blocks of 256 ------------------------------------------------------------------------------------------------
 */

/*
 * 16 runs of 16 values: {16 bytes: 4-bit scale, 4-bit minimum; 64 bytes of 2-bit numbers; half scale, half minimum}. A
 * byte holds values that are 32 apart.
 */
static void dequantise_q2_k(float *restrict values, const uint8_t *restrict block, size_t n) {
    for (; n; n -= 256, values += 256, block += 84) {
        const uint8_t *scales = block, *quants = block + 16;
        const float scale = load_half(block + 80), minimum = load_half(block + 82);
        for (int i = 0; i < 256; i++) {
            const int run = i / 16, byte = i / 128 * 32 + i % 32, shift = i % 128 / 32 * 2;
            const float run_scale = scale * (float)(scales[run] & 15);
            const float run_minimum = minimum * (float)(scales[run] >> 4);
            values[i] = run_scale * (float)(quants[byte] >> shift & 3) - run_minimum;
        }
    }
}

/*
 * 16 runs of 16 values: {32 bytes of third bits; 64 bytes of 2-bit numbers as in Q2_K; 12 bytes of 6-bit scales; half
 * scale}. A third bit that is clear takes 4 off.
 */
static void dequantise_q3_k(float *restrict values, const uint8_t *restrict block, size_t n) {
    for (; n; n -= 256, values += 256, block += 110) {
        const uint8_t *third = block, *quants = block + 32, *scales = block + 96;
        const float scale = load_half(block + 108);
        for (int i = 0; i < 256; i++) {
            const int run = i / 16, byte = i / 128 * 32 + i % 32, shift = i % 128 / 32 * 2;
            const int low = run < 8 ? scales[run] & 15 : scales[run - 8] >> 4; /* 4 low bits: in the first 8 bytes */
            const int high = scales[8 + run % 4] >> run / 4 * 2 & 3;           /* 2 high bits: in the last 4 */
            const float run_scale = scale * (float)((low | high << 4) - 32);
            const int number = (quants[byte] >> shift & 3) - (third[i % 32] >> i / 32 & 1 ? 0 : 4);
            values[i] = run_scale * (float)number;
        }
    }
}

/* The 6-bit scale and minimum of run 0 to 7 in the 12 bytes of Q4_K and Q5_K. */
static void k4_scale(int *scale, int *minimum, const uint8_t scales[12], int run) {
    if (run < 4) {
        *scale = scales[run] & 63;
        *minimum = scales[run + 4] & 63;
    } else {
        *scale = (scales[run + 4] & 15) | scales[run - 4] >> 6 << 4;
        *minimum = scales[run + 4] >> 4 | scales[run] >> 6 << 4;
    }
}

/* 8 runs of 32 values: {half scale, half minimum, 12 bytes of scales, 128 bytes of 4-bit numbers}, two runs a byte. */
static void dequantise_q4_k(float *restrict values, const uint8_t *restrict block, size_t n) {
    for (; n; n -= 256, values += 256, block += 144) {
        const float scale = load_half(block), minimum = load_half(block + 2);
        const uint8_t *quants = block + 16;
        for (int run = 0; run < 8; run++) {
            int s, m;
            k4_scale(&s, &m, block + 4, run);
            const float run_scale = scale * (float)s, run_minimum = minimum * (float)m;
            for (int j = 0; j < 32; j++)
                values[32 * run + j] = run_scale * (float)(quants[run / 2 * 32 + j] >> run % 2 * 4 & 15) - run_minimum;
        }
    }
}

/* As Q4_K, with 32 bytes of fifth bits (bit `run` of byte j) in front of the 4-bit numbers. */
static void dequantise_q5_k(float *restrict values, const uint8_t *restrict block, size_t n) {
    for (; n; n -= 256, values += 256, block += 176) {
        const float scale = load_half(block), minimum = load_half(block + 2);
        const uint8_t *fifth = block + 16, *quants = block + 48;
        for (int run = 0; run < 8; run++) {
            int s, m;
            k4_scale(&s, &m, block + 4, run);
            const float run_scale = scale * (float)s, run_minimum = minimum * (float)m;
            for (int j = 0; j < 32; j++) {
                const int number = (quants[run / 2 * 32 + j] >> run % 2 * 4 & 15) + (fifth[j] >> run & 1) * 16;
                values[32 * run + j] = run_scale * (float)number - run_minimum;
            }
        }
    }
}

/* 16 runs of 16 values: {128 bytes of low 4 bits, 64 bytes of high 2 bits, 16 signed scales, half scale}. */
static void dequantise_q6_k(float *restrict values, const uint8_t *restrict block, size_t n) {
    for (; n; n -= 256, values += 256, block += 210) {
        const uint8_t *low = block, *high = block + 128;
        const int8_t *scales = (const int8_t *)block + 192;
        const float scale = load_half(block + 208);
        for (int i = 0; i < 256; i++) {
            const int half = i / 128, quarter = i % 128 / 32, j = i % 32;
            const int low_bits = low[half * 64 + quarter % 2 * 32 + j] >> quarter / 2 * 4 & 15;
            const int high_bits = high[half * 32 + j] >> quarter * 2 & 3;
            values[i] = scale * (float)scales[i / 16] * (float)((low_bits | high_bits << 4) - 32);
        }
    }
}

/* 8 runs of 32 values laid out as IQ4_NL: {half scale, 16 bits and 4 bytes of 6-bit scales, 128 bytes}. */
static void dequantise_iq4_xs(float *restrict values, const uint8_t *restrict block, size_t n) {
    for (; n; n -= 256, values += 256, block += 136) {
        const float scale = load_half(block);
        const uint32_t scales_high = load_u16(block + 2);
        const uint8_t *scales_low = block + 4, *quants = block + 8;
        for (int run = 0; run < 8; run++, quants += 16) {
            const int bits = (scales_low[run / 2] >> run % 2 * 4 & 15) | (int)(scales_high >> 2 * run & 3) << 4;
            const float run_scale = scale * (float)(bits - 32);
            for (int j = 0; j < 16; j++) {
                values[32 * run + j] = run_scale * (float)iq4_levels[quants[j] & 15];
                values[32 * run + j + 16] = run_scale * (float)iq4_levels[quants[j] >> 4];
            }
        }
    }
}

/* X(enum and name, values a block, bytes a block, function) */
#define TYPES(X)                                                                                                       \
    X(F32, 1, 4, dequantise_f32)                                                                                       \
    X(F16, 1, 2, dequantise_f16)                                                                                       \
    X(BF16, 1, 2, dequantise_bf16)                                                                                     \
    X(Q4_0, 32, 18, dequantise_q4_0)                                                                                   \
    X(Q4_1, 32, 20, dequantise_q4_1)                                                                                   \
    X(Q5_0, 32, 22, dequantise_q5_0)                                                                                   \
    X(Q5_1, 32, 24, dequantise_q5_1)                                                                                   \
    X(Q8_0, 32, 34, dequantise_q8_0)                                                                                   \
    X(Q2_K, 256, 84, dequantise_q2_k)                                                                                  \
    X(Q3_K, 256, 110, dequantise_q3_k)                                                                                 \
    X(Q4_K, 256, 144, dequantise_q4_k)                                                                                 \
    X(Q5_K, 256, 176, dequantise_q5_k)                                                                                 \
    X(Q6_K, 256, 210, dequantise_q6_k)                                                                                 \
    X(IQ4_NL, 32, 18, dequantise_iq4_nl)                                                                               \
    X(IQ4_XS, 256, 136, dequantise_iq4_xs)

#define ROW(id, values, bytes, function) [TW_TYPE_##id] = {TW_TYPE_##id, #id, values, bytes, function},
static const struct tw_type_traits types[] = {TYPES(ROW)};

const struct tw_type_traits *tw_type_traits(enum tw_type type) {
    const size_t i = type;
    return i < sizeof types / sizeof *types && types[i].name ? &types[i] : NULL;
}

#define NAME(id, values, bytes, function) ", " #id
const char *tw_type_list(void) { return &TYPES(NAME)[2]; }
