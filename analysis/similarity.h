/*
 * How alike two sets are, from their sizes alone: |A|, |B| and |A n B|. Contract: n_both <= min(n_a, n_b).
 *
 * Sources: Jaccard and the overlap coefficient are the usual ones; RCO is FlexiCache's overlap corrected for chance
 * (arXiv:2511.00868).
 */
#ifndef TW_ANALYSIS_SIMILARITY_H
#define TW_ANALYSIS_SIMILARITY_H

#include <stddef.h>
#include <stdint.h>

/* |A n B| / |A u B|; 1 when both are empty. */
static inline double tw_jaccard(size_t n_both, size_t n_a, size_t n_b) {
    const size_t n_either = n_a + n_b - n_both;
    return n_either ? (double)n_both / (double)n_either : 1;
}

/* |A n B| / min(|A|, |B|); 0 when either is empty. */
static inline double tw_overlap(size_t n_both, size_t n_a, size_t n_b) {
    const size_t smaller = n_a < n_b ? n_a : n_b;
    return smaller ? (double)n_both / (double)smaller : 0;
}

/*
 * Overlap beyond what K = min(|A|, |B|) members drawn from a pool of `n_pool` would share by chance:
 * max(0, (|A n B|/K - K/n) / (1 - K/n)); 1 when K = 0 or n <= K. Multiplied out, so that the numerator is exact.
 */
static inline double tw_rco(size_t n_both, size_t n_a, size_t n_b, size_t n_pool) {
    const size_t smaller = n_a < n_b ? n_a : n_b;
    if (smaller == 0 || n_pool <= smaller) return 1;
    const double k = (double)smaller, n = (double)n_pool;
    const double above_chance = (double)n_both * n - k * k;
    return above_chance > 0 ? above_chance / (k * (n - k)) : 0;
}

#endif
