/*
 * The policies of residency.md, one budget at a time and as plainly as they can be written: what the one-pass forms in
 * sim/ are held against. Nothing here is shared with them, the cutting of rows into pages included.
 */
#ifndef TW_TESTS_ORACLE_H
#define TW_TESTS_ORACLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "traces/demand.h"

/* A small trace in memory. */
struct tw_oracle_trace {
    size_t n_layers, n_heads, n_kv_heads, top_k, n_steps;
    int32_t limit;     /* positions are below it */
    int32_t *position; /* [n_layers][n_steps][n_heads][top_k] */
    uint16_t *weight;  /* the same, bits of halves */
};

/* What one unit did in one step. */
struct tw_oracle_cell {
    uint64_t accesses, misses, fetches, prefetch, resident;
};

struct tw_oracle_options {
    const char *policy; /* a built-in's name */
    uint64_t budget, page_size;
    enum tw_unit unit;
    uint64_t every;  /* interval, delta or refresh */
    double unstable; /* frozen */
};

/* cells [n_layers * units][n_steps], overwritten. */
void tw_oracle_run(struct tw_oracle_cell *cells, const struct tw_oracle_trace *trace,
                   const struct tw_oracle_options *options);

#endif
