/*
 * One vocabulary of float vectors for the kernel templates (*.inc): each is compiled once an instruction set, and the
 * compiler's flags choose what these names mean. Nothing here leaves the file that includes it.
 *
 *   AVX-512: 16 floats. AVX2 with FMA: 8. Otherwise 4, in the compiler's own vectors (SSE2 on any x86-64).
 */
#ifndef TW_ENGINE_BACKEND_CPU_VECTOR_H
#define TW_ENGINE_BACKEND_CPU_VECTOR_H

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/half.h"

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#define TW_INLINE static inline __attribute__((always_inline, unused))

#if defined(__AVX512F__)

#define VW 16
typedef __m512 vf;

TW_INLINE vf v_set1(float x) { return _mm512_set1_ps(x); }
TW_INLINE vf v_zero(void) { return _mm512_setzero_ps(); }
TW_INLINE vf v_load(const float *p) { return _mm512_loadu_ps(p); }
TW_INLINE void v_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
TW_INLINE vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
TW_INLINE vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
TW_INLINE vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
TW_INLINE vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
TW_INLINE vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
TW_INLINE vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
TW_INLINE vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
TW_INLINE float v_reduce_add(vf a) { return _mm512_reduce_add_ps(a); }
TW_INLINE float v_reduce_max(vf a) { return _mm512_reduce_max_ps(a); }
/* Lanes 2j and 2j + 1 change places. */
TW_INLINE vf v_swap_pairs(vf a) { return _mm512_permute_ps(a, 0xb1); }
/* Lanes below n, the others 0 (or not written); n may be beyond the width. */
TW_INLINE __mmask16 v_mask_(size_t n) { return n >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1); }
TW_INLINE vf v_load_first(const float *p, size_t n) { return _mm512_maskz_loadu_ps(v_mask_(n), p); }
TW_INLINE void v_store_first(float *p, vf x, size_t n) { _mm512_mask_storeu_ps(p, v_mask_(n), x); }
/* Lane i is kept when first <= at + i < end, else it becomes `other`. */
TW_INLINE vf v_between(vf a, float other, ptrdiff_t at, ptrdiff_t first, ptrdiff_t end) {
    const ptrdiff_t low = first - at, high = end - at;
    const __mmask16 below = low <= 0 ? 0 : v_mask_((size_t)low);
    const __mmask16 inside = high <= 0 ? 0 : v_mask_((size_t)high);
    return _mm512_mask_mov_ps(_mm512_set1_ps(other), (__mmask16)(inside & ~below), a);
}
/* 2^n for whole n >= -126, times a. */
TW_INLINE vf v_scale_(vf a, vf n) { return _mm512_scalef_ps(a, n); }
TW_INLINE vf v_round(vf a) { return _mm512_roundscale_ps(a, 8); }
TW_INLINE vf v_zero_below(vf value, vf x, float limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_GE_OQ), value);
}
TW_INLINE vf v_load_bf16(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
TW_INLINE vf v_load_half(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
TW_INLINE vf v_load_i8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
TW_INLINE vf v_load_u8_nibbles(const uint8_t *p, int shift) {
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(bytes, (unsigned)shift), _mm512_set1_epi32(15)));
}

#elif defined(__AVX2__)

#define VW 8
typedef __m256 vf;

TW_INLINE vf v_set1(float x) { return _mm256_set1_ps(x); }
TW_INLINE vf v_zero(void) { return _mm256_setzero_ps(); }
TW_INLINE vf v_load(const float *p) { return _mm256_loadu_ps(p); }
TW_INLINE void v_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
TW_INLINE vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
TW_INLINE vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
TW_INLINE vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
TW_INLINE vf v_div(vf a, vf b) { return _mm256_div_ps(a, b); }
TW_INLINE vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
TW_INLINE vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); }
TW_INLINE vf v_min(vf a, vf b) { return _mm256_min_ps(a, b); }
TW_INLINE float v_reduce_add(vf a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
TW_INLINE float v_reduce_max(vf a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
TW_INLINE vf v_swap_pairs(vf a) { return _mm256_permute_ps(a, 0xb1); }
TW_INLINE __m256i v_mask_(size_t n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n >= 8 ? 8 : (int)n), lane);
}
TW_INLINE vf v_load_first(const float *p, size_t n) { return _mm256_maskload_ps(p, v_mask_(n)); }
TW_INLINE void v_store_first(float *p, vf x, size_t n) { _mm256_maskstore_ps(p, v_mask_(n), x); }
TW_INLINE vf v_between(vf a, float other, ptrdiff_t at, ptrdiff_t first, ptrdiff_t end) {
    const ptrdiff_t low = first - at, high = end - at;
    const __m256i below = v_mask_(low <= 0 ? 0 : (size_t)low), inside = v_mask_(high <= 0 ? 0 : (size_t)high);
    return _mm256_blendv_ps(_mm256_set1_ps(other), a, _mm256_castsi256_ps(_mm256_andnot_si256(below, inside)));
}
TW_INLINE vf v_scale_(vf a, vf n) {
    const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(a, _mm256_castsi256_ps(power));
}
TW_INLINE vf v_round(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
TW_INLINE vf v_zero_below(vf value, vf x, float limit) {
    return _mm256_and_ps(value, _mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_GE_OQ));
}
TW_INLINE vf v_load_bf16(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
TW_INLINE vf v_load_half(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
TW_INLINE vf v_load_i8(const int8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
TW_INLINE vf v_load_u8_nibbles(const uint8_t *p, int shift) {
    const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(bytes, shift), _mm256_set1_epi32(15)));
}

#else

#define VW 4
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi_ __attribute__((vector_size(16)));

TW_INLINE vf v_set1(float x) { return (vf){x, x, x, x}; }
TW_INLINE vf v_zero(void) { return v_set1(0); }
TW_INLINE vf v_load(const float *p) {
    vf x;
    memcpy(&x, p, sizeof x);
    return x;
}
TW_INLINE void v_store(float *p, vf x) { memcpy(p, &x, sizeof x); }
TW_INLINE vf v_add(vf a, vf b) { return a + b; }
TW_INLINE vf v_sub(vf a, vf b) { return a - b; }
TW_INLINE vf v_mul(vf a, vf b) { return a * b; }
TW_INLINE vf v_div(vf a, vf b) { return a / b; }
TW_INLINE vf v_fma(vf a, vf b, vf c) { return a * b + c; }
TW_INLINE vf v_choose_(vi_ mask, vf a, vf b) { return (vf)(((vi_)a & mask) | ((vi_)b & ~mask)); }
TW_INLINE vf v_max(vf a, vf b) { return v_choose_(a > b, a, b); }
TW_INLINE vf v_min(vf a, vf b) { return v_choose_(a < b, a, b); }
TW_INLINE float v_reduce_add(vf a) { return (a[0] + a[2]) + (a[1] + a[3]); }
TW_INLINE float v_reduce_max(vf a) {
    const float x = a[0] > a[2] ? a[0] : a[2], y = a[1] > a[3] ? a[1] : a[3];
    return x > y ? x : y;
}
TW_INLINE vf v_swap_pairs(vf a) { return (vf){a[1], a[0], a[3], a[2]}; }
TW_INLINE vf v_load_first(const float *p, size_t n) {
    vf x = v_zero();
    memcpy(&x, p, (n < 4 ? n : 4) * sizeof *p);
    return x;
}
TW_INLINE void v_store_first(float *p, vf x, size_t n) { memcpy(p, &x, (n < 4 ? n : 4) * sizeof *p); }
TW_INLINE vf v_between(vf a, float other, ptrdiff_t at, ptrdiff_t first, ptrdiff_t end) {
    for (int i = 0; i < 4; i++) a[i] = at + i >= first && at + i < end ? a[i] : other;
    return a;
}
TW_INLINE vf v_scale_(vf a, vf n) {
    const vi_ whole = {(int32_t)n[0], (int32_t)n[1], (int32_t)n[2], (int32_t)n[3]};
    return a * (vf)((whole + 127) << 23);
}
/* To nearest, for magnitudes below 2^22: adding 1.5 * 2^23 leaves no bits behind the point. */
TW_INLINE vf v_round(vf a) {
    const vf magic = v_set1(12582912.0f);
    return (a + magic) - magic;
}
TW_INLINE vf v_zero_below(vf value, vf x, float limit) { return (vf)((vi_)value & (x >= v_set1(limit))); }
TW_INLINE vf v_load_bf16(const uint16_t *p) {
    return (vf){tw_float_from_bf16(p[0]), tw_float_from_bf16(p[1]), tw_float_from_bf16(p[2]), tw_float_from_bf16(p[3])};
}
TW_INLINE vf v_load_half(const uint16_t *p) {
    return (vf){tw_float_from_half(p[0]), tw_float_from_half(p[1]), tw_float_from_half(p[2]), tw_float_from_half(p[3])};
}
TW_INLINE vf v_load_i8(const int8_t *p) { return (vf){(float)p[0], (float)p[1], (float)p[2], (float)p[3]}; }
TW_INLINE vf v_load_u8_nibbles(const uint8_t *p, int shift) {
    return (vf){(float)(p[0] >> shift & 15), (float)(p[1] >> shift & 15), (float)(p[2] >> shift & 15),
                (float)(p[3] >> shift & 15)};
}

#endif

/*
 * 2^x for x <= 128, to 1e-7; exactly 1 at 0, exactly 0 below -126 and for -infinity. The polynomial is the one of its
 * degree whose greatest relative error on [-1/2, 1/2] is least, 9.2e-8, with the value 1 at 0.
 */
TW_INLINE vf v_exp2(vf x) {
    const vf clamped = v_max(x, v_set1(-126.0f)), n = v_round(clamped), r = v_sub(clamped, n);
    vf p = v_set1(1.326472731e-3f);
    p = v_fma(p, r, v_set1(9.671512991e-3f));
    p = v_fma(p, r, v_set1(5.550733581e-2f));
    p = v_fma(p, r, v_set1(2.402224243e-1f));
    p = v_fma(p, r, v_set1(6.931470037e-1f));
    p = v_fma(p, r, v_set1(1.0f));
    return v_zero_below(v_scale_(p, n), x, -126.0f);
}

#define TW_LOG2_E 1.44269504088896340736

/* 1 / (1 + e^-x): both e^-x = infinity and e^-x = 0 come out right. */
TW_INLINE vf v_sigmoid(vf x) {
    const vf power = v_min(v_mul(x, v_set1((float)-TW_LOG2_E)), v_set1(127.0f));
    return v_div(v_set1(1.0f), v_add(v_set1(1.0f), v_exp2(power)));
}

#endif
