#include <immintrin.h>

#include "base/half_avx2.h"

size_t tw_half_from_floats_avx2(uint16_t *restrict half, const float *restrict value, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(half + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(value + i), _MM_FROUND_TO_NEAREST_INT));
    return i;
}
