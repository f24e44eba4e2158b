/* IEEE half precision: only the conversion of stored halves. */
#ifndef CUDASIM_CUDA_FP16_H
#define CUDASIM_CUDA_FP16_H

#include "cuda_runtime.h"

struct __half_raw {
    unsigned short x;
};
struct __half {
    unsigned short bits;
    __half(__half_raw raw) : bits(raw.x) {}
};

static inline float __half2float(__half half) {
    const unsigned sign = (unsigned)(half.bits & 0x8000) << 16, exponent = half.bits >> 10 & 0x1f,
                   fraction = half.bits & 0x3ff;
    if (exponent == 0x1f) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * ((float)fraction * 0x1p-24f);
    return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
}

#endif
