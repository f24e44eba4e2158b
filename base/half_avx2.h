/* For half.c alone. */
#ifndef TW_BASE_HALF_AVX2_H
#define TW_BASE_HALF_AVX2_H

#include <stddef.h>
#include <stdint.h>

/* Converts the first values, as many as fill whole vectors, and returns their number. */
size_t tw_half_from_floats_avx2(uint16_t *restrict half, const float *restrict value, size_t n);

#endif
