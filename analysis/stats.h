/*
 * Statistics of plain arrays. Undefined results (of no values) are NaN, which tables leave empty and JSON writes as
 * null. Deviations are population ones.
 */
#ifndef TW_ANALYSIS_STATS_H
#define TW_ANALYSIS_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A computed value is above a threshold when it exceeds it by more than this, so that rounding never decides. */
#define TW_ABOVE_BY 1e-9

static inline bool tw_above(double value, double threshold) { return value > threshold + TW_ABOVE_BY; }

double tw_mean(const double *values, size_t n);
double tw_deviation(const double *values, size_t n);

/* Ascending; NaN must not occur. */
void tw_sort_doubles(double *values, size_t n);

/*
 * The q-quantile, 0 <= q <= 1, of ascending values by linear interpolation: a + (b - a)*r between the neighbours a, b
 * of the place q*(n - 1), r its fraction. Percentiles 10 and 90 of 1, 2, 3, 4 are 1.3 and 3.7.
 */
double tw_quantile_sorted(const double *sorted, size_t n, double q);

/* The median of up to TW_MEDIAN_MAX values, in any order; the mean of the two middle ones when n is even. */
#define TW_MEDIAN_MAX 16
double tw_median_small(const double *values, size_t n);

/* -sum p ln p of counts; 0 when their sum is 0. */
double tw_entropy_of_counts(const uint64_t *counts, size_t n);

/* z such that a standard normal exceeds it with probability `tail`, 0 < tail < 1; good to 1e-12. */
double tw_normal_upper(double tail);

/* Harmonic mean of precision and recall: 0 when both are 0, NaN when either is. */
double tw_f1(double precision, double recall);

/* n / d, NaN when d is 0. */
static inline double tw_ratio(size_t n, size_t d) { return d ? (double)n / (double)d : __builtin_nan(""); }

#endif
