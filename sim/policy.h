/*
 * A residency policy: one file, one struct tw_policy, one line in the list of sim/policies.h. A shared object with the
 * same struct under the name `tw_policy_plugin` is a user's own policy (`replay --policy ./mine.so`); it needs this
 * header alone, and docs/replay.md walks through one.
 *
 * There are two ways to write a policy:
 *
 *   serve   one step of one layer under one budget. What all policies share (counting, sampling of memory, steps that
 *           stall) is done by the driver from what serve reports for each unit. This is what a user's policy has.
 *   sweep   one layer under all budgets at once, for policies where one pass can know what every budget would do.
 *           Counts go into the tally (sim/tally.h), as differences along the sorted budgets. All built-in policies
 *           sweep.
 *
 * Rules of the game (spec: residency.md): within a step each unit serves its whole demand in ascending page order, then
 * trims; memory is sampled after trimming. Where pages are equal under a policy's key, the lower page id goes first: it
 * is evicted before one with a higher id. Units do not see each other unless the policy says so, layers never do.
 */
#ifndef TW_SIM_POLICY_H
#define TW_SIM_POLICY_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/options.h"
#include "traces/demand.h"

/* Changes whenever a struct below (or tw_demand_row, tw_option, tw_error) changes its meaning or its layout. */
#define TW_POLICY_INTERFACE 1

/* What a policy that serves is told when a layer begins. */
struct tw_policy_layer {
    size_t layer;       /* of the trace */
    size_t n_units;     /* units of this layer */
    size_t n_steps;     /* steps that will be served, one by one from 0 on */
    size_t n_pages;     /* page ids are in [0, n_pages), in the order of the true pages */
    uint64_t page_size; /* tokens a page */
    uint64_t budget;    /* pages a unit; may be 0, and far above n_pages */
};

/* What happened to one unit in one step. All zero before serve is called. */
struct tw_policy_result {
    uint64_t misses;   /* wanted pages that were not resident; at most the row's length */
    uint64_t fetches;  /* pages brought in because they were wanted: the step stalls */
    uint64_t prefetch; /* pages brought in without having been asked for: fetches that do not stall */
    uint64_t resident; /* pages resident after trimming */
};

struct tw_tally;
struct tw_sweep;

struct tw_policy {
    uint32_t interface;              /* TW_POLICY_INTERFACE: always the first field */
    const char *name;                /* as in --policy; no ':' and no ',' */
    const char *summary;             /* one phrase, for `tidewake list` */
    const char *source;              /* paper and section, or "" */
    const struct tw_option *options; /* NULL: none */
    size_t options_size;             /* of the options struct; 0 when there is none */
    int scores;                      /* 1: it reads scores; 0: the rows may come without */
    int without_budget;              /* 1: the budget means nothing to it; one row, whose budget is empty */
    int prunes_every; /* 1 + index of the row in `options` (a TW_OPTION_U64) that says after how many steps it prunes;
                         0: never prunes */

    /*
     * Serving. `*state` is the policy's own, one for each layer and budget; layers run on different threads. `options`
     * is the filled struct. Open may fail with a status and a sentence in err->text; then close is not called.
     *   demand [n_units]  what each unit wants at this step, pages ascending
     *   result [n_units]
     */
    tw_status (*open)(void **state, const struct tw_policy_layer *layer, const void *options, struct tw_error *err);
    void (*serve)(void *state, size_t step, const struct tw_demand_row *demand, struct tw_policy_result *result);
    void (*close)(void *state);

    /* Sweeping (then open, serve and close are NULL). */
    tw_status (*sweep)(struct tw_tally *tally, const struct tw_sweep *sweep, struct tw_error *err);
    /*
     * For a sweeping policy whose choice needs the whole trace: sweep keeps what it learnt of a layer in
     * sweep->keep (layer's own, freed by the driver through free_kept) and one number for each unit in
     * sweep->measure; when all layers are swept, settle counts from both. NULL otherwise.
     */
    tw_status (*settle)(struct tw_tally *tally, const struct tw_sweep *sweep, struct tw_error *err);
    void (*free_kept)(void *kept);
};

#endif
