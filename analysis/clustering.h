/* Do heads wake together? (churn.md, "Clustering") */
#ifndef TW_ANALYSIS_CLUSTERING_H
#define TW_ANALYSIS_CLUSTERING_H

#include <stddef.h>
#include <stdint.h>

#include "analysis/wakeups.h"
#include "base/error.h"

enum { TW_SHUFFLES = 200, TW_TRIGGER_AROUND = 4 };

struct tw_cluster_run {
    size_t run; /* which of the runs given */
    size_t steps, events, busy_steps;
    double concentration;                        /* share of the events in the busiest steps */
    double fano;                                 /* variance / mean of the events a step */
    size_t most_together;                        /* heads waking at one step */
    double trigger_recall;                       /* share of the events within 4 steps of a busiest one */
    double shuffled_mean, shuffled_deviation, z; /* of the concentration; z is NaN without deviation */
};

struct tw_clustering {
    double share;                /* of the steps, called busiest; NaN without events */
    struct tw_cluster_run *runs; /* [n_runs] those with events */
    size_t n_runs;
    double mean_concentration, mean_trigger_recall; /* over those runs */
    double shuffled_mean, shuffled_deviation, z;    /* of the mean concentration */
    uint64_t seed;
};

/*
 * Each shuffle moves every head's events to distinct random steps of its run; the same seed gives the same figures,
 * whatever the number of threads. Fails with TW_E_MEMORY.
 */
tw_status tw_clustering_measure(struct tw_clustering *clustering, const struct tw_wakeups *const *runs, size_t n_runs,
                                uint64_t seed, struct tw_error *err);
void tw_clustering_release(struct tw_clustering *clustering); /* copes with {0} */

#endif
