/* Checked arithmetic for sizes that come from outside: true on success, false when the result would wrap. */
#ifndef TW_BASE_CHECKED_H
#define TW_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool tw_add_size(size_t *sum, size_t a, size_t b) { return !__builtin_add_overflow(a, b, sum); }
static inline bool tw_mul_size(size_t *product, size_t a, size_t b) { return !__builtin_mul_overflow(a, b, product); }
static inline bool tw_add_u64(uint64_t *sum, uint64_t a, uint64_t b) { return !__builtin_add_overflow(a, b, sum); }
static inline bool tw_mul_u64(uint64_t *product, uint64_t a, uint64_t b) {
    return !__builtin_mul_overflow(a, b, product);
}

/* Smallest multiple of `step` that is >= n; `step` > 0. The caller knows that it does not wrap. */
static inline size_t tw_round_up(size_t n, size_t step) { return (n + step - 1) / step * step; }
static inline size_t tw_divide_up(size_t n, size_t step) { return n / step + (n % step != 0); }
static inline size_t tw_min_size(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t tw_max_size(size_t a, size_t b) { return a > b ? a : b; }

#endif
