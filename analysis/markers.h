/*
 * Token markers: generated tokens after which heads wake more often than usual (churn.md). Found in the first half of
 * every run, graded on the second halves.
 */
#ifndef TW_ANALYSIS_MARKERS_H
#define TW_ANALYSIS_MARKERS_H

#include <stddef.h>
#include <stdint.h>

#include "analysis/grading.h"
#include "analysis/wakeups.h"
#include "base/error.h"

enum { TW_MARKER_WITHIN = 8, TW_MARKER_AT_LEAST = 5 };
#define TW_MARKER_SIGNIFICANCE 0.05

struct tw_marker {
    int32_t token;
    size_t count, hits; /* in the first halves; hits: an event of any head follows within 8 steps */
    double z;           /* two-proportion z against the base rate, pooled standard error; NaN when that is 0 */
    bool more_often;    /* its rate exceeds the base rate */
    bool found;         /* that, and z above the bar */
};

enum { TW_MARKERS_SECOND_HALF, TW_MARKERS_WHOLE_RUN, TW_N_MARKER_GRADINGS };
extern const char *const tw_marker_grading_names[TW_N_MARKER_GRADINGS];

struct tw_markers {
    size_t steps, steps_before_event; /* of the first halves: the base rate */
    struct tw_marker *tested;         /* [n_tested] ascending by token */
    size_t n_tested, n_found;
    double z_bar; /* one-sided 0.05, Bonferroni-corrected over the tokens tested */
    /* Events are the steps of the second halves at which any head wakes; alarms are those of the second halves, or of
     * the whole runs. */
    struct tw_alarms graded[TW_N_MARKER_GRADINGS];
};

/* Fails with TW_E_MEMORY. */
tw_status tw_markers_find(struct tw_markers *markers, const struct tw_wakeups *const *runs, size_t n_runs,
                          struct tw_error *err);
void tw_markers_release(struct tw_markers *markers); /* copes with {0} */

#endif
