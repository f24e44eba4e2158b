/*
 * The running best k of a stream of scored rows, in k places: a heap whose root is the worst that is still kept. Of
 * equal scores the lower row is better, then the lower head. A NaN counts as -INFINITY.
 */
#ifndef TW_ENGINE_PREFILL_TOPK_H
#define TW_ENGINE_PREFILL_TOPK_H

#include "engine/backend/backend.h"

struct tw_topk {
    struct tw_scored *best; /* [k] the caller's memory; [0, n) is the heap */
    size_t k, n;
};

/*
 * Offers one row. Returns true when something is left over: `item` itself, or what it has pushed out, in *left_over
 * (may be NULL).
 */
bool tw_topk_offer(struct tw_topk *topk, struct tw_scored item, struct tw_scored *left_over);
/* Sorts by row, then head, ascending; the heap is no heap afterwards. */
void tw_topk_sort_by_row(struct tw_topk *topk);
/* Sorts best first. */
void tw_topk_sort_by_score(struct tw_topk *topk);

#endif
