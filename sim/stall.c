#include "sim/stall.h"

#include <stdlib.h>

double tw_stall_step(const struct tw_link *link, double page_bytes, const uint64_t *pages, size_t n_layers) {
    const double layer_seconds = n_layers ? link->step_seconds / (double)n_layers : 0;
    double moved = 0; /* when the link has moved what the layers so far have asked for */
    double late = 0;  /* how much later than it could a layer so far has started */
    for (size_t l = 0; l < n_layers; l++) {
        if (pages[l] == 0) continue;
        moved += link->latency_seconds + (double)pages[l] * page_bytes / link->bytes_per_second;
        const double own = moved - (double)l * layer_seconds;
        if (own > late) late = own;
    }
    return link->overlap == TW_OVERLAP_NONE ? moved : late;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double tw_stall_quantile(double *values, size_t n, double q) {
    if (n == 0) return 0;
    qsort(values, n, sizeof *values, by_value);
    const double at = q * (double)(n - 1);
    const size_t low = (size_t)at;
    if (low + 1 >= n) return values[n - 1];
    return values[low] + (at - (double)low) * (values[low + 1] - values[low]);
}
