/*
 * Two traces of the same tokens: how far a backend, a precision or a budget moved attention.
 *
 * For each step, layer and head the logged rows are compared as sets of positions with weights:
 *
 *   overlap      |A n B| / max(|A|, |B|): 1 when both rows hold the same positions; 1 when both are empty
 *   top_equal    whether the most attended position is the same (of equal weights the lowest position)
 *   weight_l1    sum over A u B of |w_A - w_B|, a position that a row lacks counting as 0: at most 2
 *   weight_rms   root mean square of w_A - w_B over the positions in both rows
 *   weight_max   largest |w_A - w_B| over the positions in both rows
 */
#ifndef TW_ANALYSIS_COMPARE_H
#define TW_ANALYSIS_COMPARE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/progress.h"
#include "base/table.h"
#include "traces/trace.h"

/* Sums over rows; add up over heads, layers or steps. */
struct tw_difference {
    size_t rows, top_equal, common; /* common: positions in both rows */
    double overlap, overlap_min, weight_l1, weight_squares, weight_max;
};
/* An empty one: overlap_min is 1. */
struct tw_difference tw_difference_none(void);
void tw_difference_add(struct tw_difference *sum, const struct tw_difference *more);

struct tw_comparison {
    size_t n_layers, n_steps;          /* steps that both traces have */
    struct tw_difference *differences; /* [n_layers][n_steps] */
};

/*
 * Refuses (TW_E_INPUT) traces of different shapes (layers, heads), prompts or context lengths, or whose generated
 * tokens differ before the last common step, naming the first difference. top_k may differ. Otherwise fails as the
 * reader does.
 */
tw_status tw_compare(struct tw_comparison *comparison, struct tw_trace *a, struct tw_trace *b,
                     struct tw_progress *progress, struct tw_error *err);
void tw_comparison_release(struct tw_comparison *comparison); /* copes with {0} */

/* What a row of the table is. */
enum tw_compare_by { TW_COMPARE_BY_LAYER, TW_COMPARE_BY_STEP, TW_COMPARE_BY_BOTH, TW_COMPARE_BY_ALL };

/* layer and step (as far as rows are split by them), then
 * rows,overlap,overlap_min,top_equal,weight_l1,weight_rms,weight_max. `table` is initialised here and released by the
 * caller. */
void tw_comparison_table(struct tw_table *table, const struct tw_comparison *comparison, enum tw_compare_by by);

#endif
