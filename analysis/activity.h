/*
 * Active sets: which heads attend to the needle at each step, and how the set changes (WakeKV, section 2; "Retrieval
 * Heads are Dynamic", arXiv:2602.11162, eq. 1-2, table 1).
 */
#ifndef TW_ANALYSIS_ACTIVITY_H
#define TW_ANALYSIS_ACTIVITY_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* How a head counts as active: by the binary copy-paste score, or by its needle score exceeding a threshold. */
struct tw_activity_rule {
    const char *name; /* "copy_paste", "needle>0.1" */
    float threshold;  /* of needle scores, compared as float32; unused by copy_paste */
};
enum { TW_ACTIVITY_COPY_PASTE, TW_ACTIVITY_FIRST_NEEDLE, TW_N_ACTIVITY_RULES = 4 };
extern const struct tw_activity_rule tw_activity_rules[TW_N_ACTIVITY_RULES];

struct tw_activity {
    double active_mean, active_std; /* heads active a step */
    size_t distinct;                /* heads ever active */
    double adjacent_jaccard;        /* mean over t of Jaccard(A_t, A_t+1); NaN for one step */
    double empty_share;             /* share of steps without an active head */
    double jaccard_top20;           /* mean Jaccard with the 20 most often active heads, over non-empty steps; NaN
                                       without any. Of equal counts the higher head comes first; heads that are never
                                       active fill up to 20 */
    double entropy; /* of the heads' activation counts, natural logarithm; at most ln 20 if 20 heads share it all */
};

/*
 *   active   [n_steps][n_heads]  0 or 1; n_heads over all layers
 *   jaccard  [n_steps - 1]       out: Jaccard(A_t, A_t+1); may be NULL
 *   size     [n_steps]           out: |A_t|; may be NULL
 *
 * n_steps > 0. Fails with TW_E_MEMORY.
 */
tw_status tw_activity_measure(struct tw_activity *activity, double *jaccard, uint32_t *size, const uint8_t *active,
                              size_t n_steps, size_t n_heads, struct tw_error *err);

#endif
