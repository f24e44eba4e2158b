/* What `wakeups` writes: rows of a table, or nested JSON, of one trace or of the runs of one model and task pooled. */
#ifndef TW_ANALYSIS_WAKEUPS_REPORT_H
#define TW_ANALYSIS_WAKEUPS_REPORT_H

#include "analysis/clustering.h"
#include "analysis/grading.h"
#include "analysis/markers.h"
#include "analysis/wakeups.h"
#include "base/json.h"
#include "base/table.h"

/* How long it takes to bring in what a waking head wants. All zero: not asked for. */
struct tw_transfer {
    double bytes_per_second, step_seconds;
    double page_bytes; /* 0: from the trace, page_size * head_dim * 2 * 2 */
    double pages;      /* 0: what heads want on average when they wake */
};

/* Everything that is measured over one or several runs. */
struct tw_wake_report {
    const struct tw_wakeups *const *runs; /* [n_runs] borrowed */
    size_t n_runs;
    bool pooled;     /* a model and task, rather than a trace */
    bool has_needle; /* all runs have scores; without, nothing below is defined */
    size_t n_events, n_heads_with_event;
    struct tw_grade grades[TW_N_GRADES];
    size_t n_grades; /* 0 without events */
    struct tw_markers markers;
    struct tw_clustering clustering;
    double pages, page_bytes, transfer_seconds, transfer_steps; /* NaN: not asked for or not known */
};

/* Runs without needle scores make has_needle false. Fails with TW_E_MEMORY. */
tw_status tw_wake_report_measure(struct tw_wake_report *report, const struct tw_wakeups *const *runs, size_t n_runs,
                                 bool pooled, uint64_t seed, const struct tw_transfer *transfer, struct tw_error *err);
void tw_wake_report_release(struct tw_wake_report *report); /* copes with {0} */

/*
 * A report for each of n runs or, `pooled`, one for the runs of each model and task, in the order of first appearance.
 * reports [n] are zero before; members [n] is what the reports' runs point into. n_reports is right on failure, too.
 */
tw_status tw_wake_reports_measure(struct tw_wake_report *reports, size_t *n_reports, const struct tw_wakeups **members,
                                  const struct tw_wakeups *runs, size_t n, bool pooled, uint64_t seed,
                                  const struct tw_transfer *transfer, struct tw_error *err);

/* The zscore grading of the highest F1 over signals and leads (the first of equal ones); NULL when none is defined. */
const struct tw_grade *tw_wake_report_best_zscore(const struct tw_wake_report *report);

/*
 * Tables of reports that are all pooled or all not; initialised here, released by the caller.
 *
 * summary: one row a report; `brief` for reading on a terminal.
 * grading: one row a report, signal, lead and grading; then the token markers as signal `tokens`.
 * events:  one row an event: trace,layer,head,step,token_id.
 */
void tw_wake_summary_table(struct tw_table *table, const struct tw_wake_report *reports, size_t n, bool brief);
void tw_wake_grading_table(struct tw_table *table, const struct tw_wake_report *reports, size_t n);
void tw_wake_events_table(struct tw_table *table, const struct tw_wake_report *reports, size_t n);

/* The members of one report's object (inside an open object): of a trace trace, steps, layers, heads, page_size, wake,
 * series; of a pool model, task, page_size, runs, wakes; of both tokens, grading, clustering, transfer. */
void tw_wake_report_json(struct tw_json *json, const struct tw_wake_report *report);

#endif
