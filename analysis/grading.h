/*
 * How well signals predict wake-ups (churn.md, "Grading at lead k"). An event at t is caught if the alarm sounds at
 * some step in [t-k, t); an alarm at s is true if an event lies in (s, s+k].
 */
#ifndef TW_ANALYSIS_GRADING_H
#define TW_ANALYSIS_GRADING_H

#include <stddef.h>
#include <stdint.h>

#include "analysis/wakeups.h"
#include "base/error.h"

enum { TW_N_LEADS = 6 };
extern const size_t tw_leads[TW_N_LEADS]; /* 1, 2, 4, 8, 16, 32 steps */

enum tw_grading {
    TW_GRADING_BEST,   /* each head its best threshold, over the quantiles 0.80, 0.90, 0.95, 0.99 of its own signal */
    TW_GRADING_POOLED, /* one threshold: the 0.9 quantile of the values of all graded heads */
    TW_GRADING_ZSCORE, /* causal z-score above 2; the ensemble above 1.5 */
    TW_N_GRADINGS,
};
extern const char *const tw_grading_names[TW_N_GRADINGS];

/* Counts at all leads; add up over heads and runs. Zero-initialise. */
struct tw_alarms {
    size_t events, alarms;
    size_t caught[TW_N_LEADS], true_alarms[TW_N_LEADS];
};

/*
 * Adds one series.
 *
 *   alarm  [n_steps]   0 or 1
 *   event  [n_events]  ascending, < n_steps
 */
void tw_alarms_add(struct tw_alarms *alarms, const uint8_t *alarm, size_t n_steps, const uint32_t *event,
                   size_t n_events);

/* One entry of the result. */
struct tw_grade {
    enum tw_signal signal;
    enum tw_grading grading;
    size_t lead;
    double threshold;
    size_t events, alarms, caught, true_alarms;
    double precision, recall, f1; /* NaN: no alarms, no events, either */
    size_t run, head;             /* of TW_GRADING_BEST: where it was best; SIZE_MAX otherwise */
};
enum { TW_N_GRADES = TW_N_SIGNALS * TW_N_LEADS * TW_N_GRADINGS };

/* precision, recall and f1 from the counts at lead number `k` of tw_leads. */
void tw_grade_from_alarms(struct tw_grade *grade, const struct tw_alarms *alarms, size_t k);

/*
 * Grades all signals over the runs together, in the order signal, lead, grading. Only heads with events count. Of
 * equally precise heads and thresholds the first by run, head, threshold is the best.
 *
 *   grades  [TW_N_GRADES] out
 *
 * Returns through *n 0 when no run has an event, else TW_N_GRADES. Fails with TW_E_MEMORY.
 */
tw_status tw_grade_runs(struct tw_grade *grades, size_t *n, const struct tw_wakeups *const *runs, size_t n_runs,
                        struct tw_error *err);

#endif
