/*
 * Head churn of a whole trace (WakeKV, section 2 and appendix B): do heads change what they read during generation?
 *
 *     struct tw_churn churn;
 *     TW_TRY(tw_churn_measure(&churn, trace, page_sizes, n_page_sizes, progress, err));
 *     ... churn.pages[0].stability_mean, churn.activity[TW_ACTIVITY_COPY_PASTE].adjacent_jaccard ...
 *     tw_churn_release(&churn);
 *
 * Heads are query heads, numbered layer * n_heads + head over the whole model. NaN is an undefined figure. Layers are
 * measured in parallel; results do not depend on the number of threads.
 */
#ifndef TW_ANALYSIS_CHURN_H
#define TW_ANALYSIS_CHURN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "analysis/activity.h"
#include "analysis/trace_name.h"
#include "base/error.h"
#include "base/progress.h"
#include "traces/trace.h"

struct tw_head_event {
    uint32_t head, step;
};

/* Of page sets at one page size. */
struct tw_page_churn {
    uint64_t page_size; /* tokens */
    /* Temporal stability over heads; a head is unstable below 0.5. */
    double stability_mean, stability_p10, stability_p90, unstable_fraction;
    double *stability; /* [n_layers * n_heads] each head's */
    /* Drift events; their steps are numbered from the first after step 0, starting at 0. */
    double drift_mean;           /* a head */
    double heads_with_drift;     /* fraction of heads with at least one */
    struct tw_head_event *drift; /* [n_drifts] by head, then step */
    size_t n_drifts;
    /* Jaccard of the page sets of adjacent steps. */
    double jaccard_mean; /* over steps and heads */
    double *jaccard;     /* [n_steps - 1] over heads, for each pair of steps (t, t + 1) */
};

struct tw_churn {
    struct tw_trace_name name;
    size_t n_steps, n_layers, n_heads; /* n_heads: of a layer */
    struct tw_page_churn *pages;       /* [n_pages] in the order of the page sizes asked for */
    size_t n_pages;
    bool has_copy_paste, has_needle; /* whether the trace carries the scores */
    /* Defined where has_copy_paste (the first) and has_needle (the others). */
    struct tw_activity activity[TW_N_ACTIVITY_RULES];
    double *activity_jaccard[TW_N_ACTIVITY_RULES]; /* [n_steps - 1]; NULL where not defined */
    uint32_t *activity_size[TW_N_ACTIVITY_RULES];  /* [n_steps] heads active; NULL where not defined */
    double *needle_mean;                           /* [n_layers * n_heads] over steps; NULL without needle scores */
};

/* page_sizes: [n] > 0, n > 0. Fails as the reader does, or with TW_E_MEMORY, TW_E_OPTION, TW_E_INTERRUPTED. */
tw_status tw_churn_measure(struct tw_churn *churn, struct tw_trace *trace, const uint64_t *page_sizes, size_t n,
                           struct tw_progress *progress, struct tw_error *err);
void tw_churn_release(struct tw_churn *churn); /* copes with {0} */

static inline bool tw_churn_has_rule(const struct tw_churn *churn, size_t rule) {
    return rule == TW_ACTIVITY_COPY_PASTE ? churn->has_copy_paste : churn->has_needle;
}

#endif
