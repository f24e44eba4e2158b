#include "analysis/stats.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

double tw_mean(const double *values, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += values[i];
    return n ? sum / (double)n : NAN;
}

double tw_deviation(const double *values, size_t n) {
    const double mean = tw_mean(values, n);
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (values[i] - mean) * (values[i] - mean);
    return n ? sqrt(sum / (double)n) : NAN;
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void tw_sort_doubles(double *values, size_t n) {
    if (n) qsort(values, n, sizeof *values, compare_doubles);
}

double tw_quantile_sorted(const double *sorted, size_t n, double q) {
    assert(q >= 0 && q <= 1);
    if (n == 0) return NAN;
    const double place = q * (double)(n - 1);
    const size_t below = (size_t)place;
    const size_t above = below + 1 < n ? below + 1 : below;
    return sorted[below] + (sorted[above] - sorted[below]) * (place - (double)below);
}

double tw_median_small(const double *values, size_t n) {
    assert(n <= TW_MEDIAN_MAX);
    double sorted[TW_MEDIAN_MAX];
    for (size_t i = 0; i < n; i++) { /* insertion: n is about 8, and this runs once a step and head */
        size_t at = i;
        for (; at > 0 && sorted[at - 1] > values[i]; at--) sorted[at] = sorted[at - 1];
        sorted[at] = values[i];
    }
    if (n == 0) return NAN;
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

double tw_entropy_of_counts(const uint64_t *counts, size_t n) {
    double total = 0, entropy = 0;
    for (size_t i = 0; i < n; i++) total += (double)counts[i];
    for (size_t i = 0; i < n; i++)
        if (counts[i]) entropy -= (double)counts[i] / total * log((double)counts[i] / total);
    return entropy;
}

/* The tail 0.5 erfc(z / sqrt 2) falls with z: halve the interval until it cannot be halved. */
double tw_normal_upper(double tail) {
    double low = -40, high = 40;
    for (;;) {
        const double middle = low + (high - low) / 2;
        if (middle <= low || middle >= high) return middle;
        if (0.5 * erfc(middle / M_SQRT2) > tail)
            low = middle;
        else
            high = middle;
    }
}

double tw_f1(double precision, double recall) {
    if (isnan(precision) || isnan(recall)) return NAN;
    return precision + recall > 0 ? 2 * precision * recall / (precision + recall) : 0;
}
