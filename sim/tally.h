/*
 * What a sweep counts: one layer of one policy, all budgets at once.
 *
 * Counts are kept as differences along the sorted budgets, so that an access costs one addition however many budgets
 * there are. Rows have n_budgets + 1 elements and are read in one of two ways:
 *
 *   "below"  element i counts for the budgets with an index below i:      value[b] = sum of d[i] over i > b
 *   "from"   element i counts for the budgets with an index from i on:    value[b] = sum of d[i] over i <= b
 *
 * Differences wrap around (they are unsigned); values do not. All sums are of whole numbers and so do not depend on the
 * order in which layers, threads and ranks are added up.
 *
 * Rows by step are wide where there are many budgets, and most of their elements stay 0: a page that comes in changes
 * one, and most policies never fetch. So each row knows where it was touched, and clearing and adding up look only
 * there: otherwise they would cost more than the policies.
 */
#ifndef TW_SIM_TALLY_H
#define TW_SIM_TALLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "sim/policy.h"

/* Budgets in pages a unit, ascending, each once. */
struct tw_budgets {
    uint64_t *value; /* [n] */
    size_t n;
    uint32_t *upto; /* [upto_n] how many budgets are <= the index */
    size_t upto_n;
};

/* Copies, sorts, drops duplicates. Fails with TW_E_MEMORY. */
tw_status tw_budgets_init(struct tw_budgets *budgets, const uint64_t *values, size_t n, struct tw_error *err);
void tw_budgets_release(struct tw_budgets *budgets);                    /* copes with {0} */
size_t tw_budgets_search(const struct tw_budgets *budgets, uint64_t x); /* how many are <= x, by bisection */

/* How many budgets are <= x: the index of the first one above x. */
static inline size_t tw_budgets_upto(const struct tw_budgets *budgets, uint64_t x) {
    return x < budgets->upto_n ? budgets->upto[x] : tw_budgets_search(budgets, x);
}

/* What a sweep works on. */
struct tw_sweep {
    const struct tw_demand *demand; /* of the layer; NULL in settle */
    const struct tw_budgets *budgets;
    size_t cap;          /* in sweep: the largest budget, but at most n_pages: no page's rank matters beyond it */
    const void *options; /* the policy's */
    size_t layer;        /* among the layers replayed */
    size_t n_layers, n_units, n_steps;
    double *measure; /* [n_layers][n_units]; sweep fills its layer's row, settle reads all */
    void **keep;     /* the layer's own */
};

/* Elements [low, high) of a row may differ from 0, all others are 0. Nothing: high = 0. */
struct tw_span {
    uint32_t low, high;
};

struct tw_tally {
    size_t n_sections; /* 1, or one for each unit */
    size_t n_steps;
    size_t width;            /* n_budgets + 1 */
    uint64_t *misses;        /* below [n_sections][width] */
    uint64_t *prefetch;      /* below [n_sections][width] pages brought in without stalling */
    uint64_t *resident;      /* from  [n_sections][n_steps][width] change of the resident pages at the step */
    uint32_t *fetches;       /* below [n_sections][n_steps][width] pages fetched on demand */
    struct tw_span *moved;   /* [n_sections][n_steps] of the rows of `resident` */
    struct tw_span *fetched; /* [n_sections][n_steps] of the rows of `fetches` */
    uint32_t *step_misses;   /* below [n_sections][n_steps][width], or NULL when nobody asks */
    uint32_t *step_prefetch; /* below [n_sections][n_steps][width], or NULL likewise */
    size_t capacity;         /* bytes allocated */
    void *memory;
};

/* Empty, with the given sections; memory is reused, and cleared where it was touched. `steps`: misses and prefetches
 * are wanted by step too. */
tw_status tw_tally_begin(struct tw_tally *tally, size_t n_sections, size_t n_steps, size_t n_budgets, bool steps,
                         struct tw_error *err);
void tw_tally_release(struct tw_tally *tally); /* copes with {0} */

static inline size_t tw_tally_section(const struct tw_tally *tally, size_t unit) {
    return tally->n_sections == 1 ? 0 : unit;
}

/* The row of a step in an array [n_sections][n_steps][width]; NULL stays NULL. */
#define tw_tally_row(tally, array, section, step)                                                                      \
    ((array) ? (array) + ((section) * (tally)->n_steps + (step)) * (tally)->width : NULL)

/* n misses at the step by the budgets below index `below`. */
static inline void tw_tally_miss(struct tw_tally *tally, size_t section, size_t step, size_t below, uint32_t n) {
    tally->misses[section * tally->width + below] += n;
    if (tally->step_misses) tw_tally_row(tally, tally->step_misses, section, step)[below] += n;
}

/* The row of `resident` or `fetches` will be touched in elements [low, high). */
static inline void tw_span_touch(struct tw_span *span, size_t low, size_t high) {
    if (span->high == 0 || low < span->low) span->low = (uint32_t)low;
    if (high > span->high) span->high = (uint32_t)high;
}

/* n pages fetched on demand, each of them a miss. */
static inline void tw_tally_fetch(struct tw_tally *tally, size_t section, size_t step, size_t below, uint32_t n) {
    tw_tally_miss(tally, section, step, below, n);
    tw_span_touch(&tally->fetched[section * tally->n_steps + step], below, below + 1);
    tw_tally_row(tally, tally->fetches, section, step)[below] += n;
}

/* From this step on, `change` resident pages more under the budgets from index `from` on. */
static inline void tw_tally_resident(struct tw_tally *tally, size_t section, size_t step, size_t from, int64_t change) {
    tw_span_touch(&tally->moved[section * tally->n_steps + step], from, from + 1);
    tw_tally_row(tally, tally->resident, section, step)[from] += (uint64_t)change;
}

/* The resident pages go from min(B, before) to min(B, after) at this step, for every budget B. */
void tw_tally_resident_capped(struct tw_tally *tally, size_t section, size_t step, const struct tw_budgets *budgets,
                              uint64_t before, uint64_t after);

#endif
