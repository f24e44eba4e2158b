/*
 * Replay: traces under residency policies, to a table (spec: residency.md; columns: cli.md).
 *
 * Every layer of a trace is read once, and once for all policies, budgets, page sizes and units. Layers are shared out
 * to threads (and, in an MPI build, to ranks); all that is added up is whole numbers, so the table does not depend on
 * their number. Memory is a few layers' demand and the counts, however long the list of traces.
 */
#ifndef TW_SIM_REPLAY_H
#define TW_SIM_REPLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/progress.h"
#include "base/table.h"
#include "sim/policies.h"
#include "sim/stall.h"
#include "traces/demand.h"

/* How rows are split: one a trace, policy, unit, page size and budget, or one for each layer, unit or step of it. */
enum tw_replay_by { TW_REPLAY_BY_RUN, TW_REPLAY_BY_LAYER, TW_REPLAY_BY_HEAD, TW_REPLAY_BY_STEP };

/* A range of layers or steps, both ends included. */
struct tw_replay_range {
    bool given; /* otherwise all */
    size_t first, last;
};

struct tw_replay_options {
    const struct tw_policy_list *policies;
    const uint64_t *budgets; /* [n_budgets] in any order */
    size_t n_budgets;
    const uint64_t *page_sizes; /* [n_page_sizes] tokens */
    size_t n_page_sizes;
    const enum tw_unit *units; /* [n_units] */
    size_t n_units;
    enum tw_replay_by by;
    struct tw_replay_range layers, steps; /* the trace is replayed as if it held nothing else */
    struct tw_link link;
    size_t n_threads; /* 0: as many as OpenMP has */
};

/* "3", "2..5". False when it is neither, or empty. */
bool tw_replay_range_parse(struct tw_replay_range *range, struct tw_view text);

/* "query", "kv", "query,kv": a list as all are, repeated units kept once. False when a part is no unit. */
bool tw_replay_units_parse(enum tw_unit units[2], size_t *n, struct tw_view text);

struct tw_replay_report {
    size_t n_limited;    /* traces recorded with a budget other than 0: they hold limited demand */
    char *first_limited; /* the path of the first one, owned */
};
void tw_replay_report_release(struct tw_replay_report *report); /* copes with {0} */

/*
 * Replays the traces at `paths`, in that order. `table` is initialised here, and released on failure; its rows are in
 * the order of traces, page sizes, units, policies, budgets, and then layers, heads or steps. Columns:
 *
 *   trace,model,task,run,policy,unit,page_size,budget,steps,units,accesses,misses,miss_rate,fetches,stall_steps,
 *   resident_page_steps,mean_resident,peak_resident,prunes
 *
 * then `layer`; `layer` and `head`; or `step` (their numbers in the trace) when rows are split, and bytes_fetched,
 * stall_seconds, stall_seconds_p99, slowdown with a link. `budget` is empty for a policy without one, `miss_rate` where
 * nothing was wanted. In an MPI build the table is whole on rank 0 only. `report` and `progress` may be NULL.
 *
 * Fails as tw_trace_open and the policies do, with TW_E_OPTION for ranges beyond a trace, and TW_E_INTERRUPTED.
 */
tw_status tw_replay_run(struct tw_table *table, struct tw_replay_report *report, const char *const *paths,
                        size_t n_paths, const struct tw_replay_options *options, struct tw_progress *progress,
                        struct tw_error *err);

/*
 * One row a model and task (and policy, unit, page size, budget, layer, head, step) from the rows of its runs: `runs`
 * behind `task` says of how many, numbers are unweighted means, `miss_rate_sd` behind `miss_rate` is the standard
 * deviation over the runs (n - 1; empty for fewer than two). Columns `trace` and `run` are left out. An empty cell
 * takes no part in its mean. Groups stand in the order of their first row. Works on any table that has `policy` and
 * `budget`.
 */
tw_status tw_replay_average(struct tw_table *out, const struct tw_table *in, struct tw_error *err);

#endif
