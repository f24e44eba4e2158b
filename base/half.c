#include "base/half.h"

#include "base/half_avx2.h"

/* Every processor with AVX2 has the conversion too. */
void tw_half_from_floats(uint16_t *restrict half, const float *restrict value, size_t n) {
    size_t i = __builtin_cpu_supports("avx2") ? tw_half_from_floats_avx2(half, value, n) : 0;
    for (; i < n; i++) half[i] = tw_half_from_float(value[i]);
}
