/*
 * Time, not only misses (spec: residency.md, "Time"): what fetching over a link costs a step.
 *
 * Compute takes step_seconds a step, in equal shares by layer. A layer that fetches n pages moves n * page_bytes, which
 * takes latency + bytes / bandwidth; one that fetches nothing takes nothing. What a policy brings in without having
 * been asked (frozen's refresh) moves bytes and stalls nothing.
 */
#ifndef TW_SIM_STALL_H
#define TW_SIM_STALL_H

#include <stddef.h>
#include <stdint.h>

enum tw_overlap {
    TW_OVERLAP_NONE,  /* demand is known when the layer runs: the transfers of a step add up */
    TW_OVERLAP_LAYER, /* all transfers of a step queue on the link from its start; a layer waits for its own */
};

struct tw_link {
    double bytes_per_second; /* 0: no model of time */
    double latency_seconds;
    double step_seconds;
    uint64_t page_bytes; /* 0: page_size * head_dim * 2 (K and V) * 2 bytes */
    enum tw_overlap overlap;
};

/*
 * The stall of one step in seconds. pages [n_layers]: fetched on demand by each layer. page_bytes is the size of one.
 */
double tw_stall_step(const struct tw_link *link, double page_bytes, const uint64_t *pages, size_t n_layers);

/* The q-th quantile of n values (0 for none), interpolated linearly between the nearest ranks. Sorts the values. */
double tw_stall_quantile(double *values, size_t n, double q);

#endif
