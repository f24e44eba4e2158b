/* IEEE half precision (binary16) and bfloat16 as bits in a uint16_t. Rounding is to nearest, ties to even. */
#ifndef TW_BASE_HALF_H
#define TW_BASE_HALF_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline float tw_float_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t tw_float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Exact; subnormals, infinities and NaN payloads are kept. */
static inline float tw_float_from_half(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    const uint32_t exponent = half >> 10 & 0x1f;
    const uint32_t fraction = half & 0x3ff;
    if (exponent == 0x1f) return tw_float_from_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0) {
        const float magnitude = (float)fraction * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return tw_float_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

/* Overflow gives infinity; a NaN stays a (quiet) NaN. */
static inline uint16_t tw_half_from_float(float value) {
    const uint32_t bits = tw_float_bits(value);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x47800000) return (uint16_t)(sign | 0x7c00); /* 65536 and more, infinity included */
    if (magnitude < 0x38800000) {                                  /* below 2^-14: the result is subnormal or zero */
        const float scaled = tw_float_from_bits(magnitude) + 0.5f; /* ulp of 0.5 is 2^-24: the addition rounds */
        return (uint16_t)(sign | (tw_float_bits(scaled) - 0x3f000000));
    }
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (rounded - 0x38000000) >> 13);
}

/* n of them, by the processor's own instruction where it has one, with the same result. */
void tw_half_from_floats(uint16_t *restrict half, const float *restrict value, size_t n);

static inline float tw_float_from_bf16(uint16_t bf16) { return tw_float_from_bits((uint32_t)bf16 << 16); }

static inline uint16_t tw_bf16_from_float(float value) {
    const uint32_t bits = tw_float_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
