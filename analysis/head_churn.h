/*
 * Churn of one head's page sets over a run: temporal stability, drift events, adjacent-step Jaccard (WakeKV, section 2
 * and appendix B; FlexiCache, arXiv:2511.00868).
 *
 * Pure arithmetic over arrays; nothing here knows of files.
 */
#ifndef TW_ANALYSIS_HEAD_CHURN_H
#define TW_ANALYSIS_HEAD_CHURN_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    TW_STABILITY_WINDOW = 16, /* W: each step is compared with the 15 after it */
    TW_DRIFT_HISTORY = 8,     /* overlaps whose median decides */
    TW_TOP_ACTIVE = 20,       /* the most active heads that active sets are compared with */
};
#define TW_UNSTABLE_BELOW 0.5 /* a head whose mean stability is below is unstable */
#define TW_DRIFT_BELOW    0.5 /* tau */

/* One head's page sets: step t has the distinct pages page[begin[t]..begin[t + 1]), in any order. */
struct tw_page_sets {
    size_t n_steps;
    const uint64_t *begin; /* [n_steps + 1] */
    const uint32_t *page;  /* each < n_pages of the workspace; nothing outside begin[0]..begin[n_steps] is touched */
};

static inline size_t tw_page_sets_size(const struct tw_page_sets *sets, size_t t) {
    return sets->begin[t + 1] - sets->begin[t];
}

/* Scratch for heads whose pages are below n_pages; one a thread. */
struct tw_head_workspace {
    struct tw_page_seen *seen; /* [n_pages] */
    size_t n_pages;
};

/* Fails with TW_E_MEMORY. */
tw_status tw_head_workspace_init(struct tw_head_workspace *workspace, size_t n_pages, struct tw_error *err);
void tw_head_workspace_release(struct tw_head_workspace *workspace); /* copes with {0} */

struct tw_head_churn {
    double stability;        /* mean over s of TS(s); NaN for one step */
    double adjacent_jaccard; /* mean over t of Jaccard(t, t + 1); NaN for one step */
    size_t n_drifts;         /* drift events */
};

/*
 * Measures one head.
 *
 *   pool     [n_steps]      how many pages there were to choose from at each step, >= 1
 *   jaccard  [n_steps - 1]  out: Jaccard(t, t + 1); may be NULL
 *   drift    [n_steps]      out: the steps of the events, numbered from the first after step 0, starting at 0; n_drifts
 *                           of them; may be NULL
 *
 * Cannot fail.
 */
void tw_head_churn_measure(struct tw_head_churn *churn, double *jaccard, uint32_t *drift,
                           const struct tw_page_sets *sets, const size_t *pool, struct tw_head_workspace *workspace);

/*
 * |page set of step t n page set of step 0| for all t: both[n_steps].
 */
void tw_head_overlap_with_first(uint32_t *both, const struct tw_page_sets *sets, struct tw_head_workspace *workspace);

/* |page set of step t n page set of step t - 1| for t >= 1, 0 at t = 0: both[n_steps]. */
void tw_head_overlap_with_previous(uint32_t *both, const struct tw_page_sets *sets,
                                   struct tw_head_workspace *workspace);

#endif
