/* What `churn` writes: rows of a table, or nested JSON. Also the averages over the runs of one model and task. */
#ifndef TW_ANALYSIS_CHURN_REPORT_H
#define TW_ANALYSIS_CHURN_REPORT_H

#include "analysis/churn.h"
#include "base/json.h"
#include "base/table.h"

/*
 * One row a trace and page size. Columns: trace,model,task,run,page_size,steps,layers,heads, then the figures:
 * page_jaccard, stability_mean, stability_p10, stability_p90, unstable_fraction, drift_events_mean, heads_with_event
 * and, for each rule R of copy_paste, needle_0.1, needle_0.2, needle_0.3: R_adjacent_jaccard, R_empty_share and, unless
 * `brief`, R_active_mean, R_active_std, R_distinct, R_jaccard_top20, R_entropy. `brief` is for reading on a terminal:
 * it also leaves out run, layers, heads and the percentiles, and of the needle rules keeps 0.2.
 * `table` is initialised here and released by the caller.
 */
void tw_churn_table(struct tw_table *table, const struct tw_churn *churns, size_t n, bool brief);
/* One row a model, task and page size: model,task,runs,page_size and the means of the same figures over the runs that
 * define them. */
void tw_churn_average_table(struct tw_table *table, const struct tw_churn *churns, size_t n, bool brief);

/*
 * The members of one trace's object (inside an open object): trace, steps, layers, heads, page_size,
 * temporal_stability, drift, page_jaccard, activity; further page sizes N as pages_N.
 */
void tw_churn_json(struct tw_json *json, const struct tw_churn *churn);
/* The members of one group's object: model, task, page_size, runs, mean_over_runs. churns: those of the group, n > 0.
 */
void tw_churn_average_json(struct tw_json *json, const struct tw_churn *const *churns, size_t n);

#endif
