/*
 * Comparison at matched memory (spec: residency.md, "Fair comparison"): policies realise different memory under the
 * same budget, so a comparator is held against the reference's miss rate interpolated at the comparator's memory.
 */
#ifndef TW_SIM_MATCH_H
#define TW_SIM_MATCH_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/table.h"

/* A comparator's policy over everything that was compared. */
struct tw_match_summary {
    char *policy;    /* owned */
    size_t wins;     /* of the reference */
    size_t compared; /* comparisons that could be made */
    size_t left_out; /* points outside the reference's range, or without a miss rate */
    size_t unpruned; /* points of runs too short for the policy to prune: neither wins nor comparisons */
};

struct tw_match_summaries {
    struct tw_match_summary *policies; /* [n] in the order of their first row */
    size_t n;
    bool *unpruned; /* [rows of the comparison] those that count as `unpruned` above */
};
void tw_match_summaries_release(struct tw_match_summaries *summaries); /* copes with {0} */

/*
 * Compares the rows of `in` (a table of `replay`, averaged or not, or of other programs: found by column names, of
 * which policy, budget, miss_rate and mean_resident must be there; model, task, unit and page_size may be). Rows of
 * several runs of one model and task are averaged first. `reference` is a policy's label.
 *
 * Out: model,task,policy,unit,page_size,budget,mean_resident,miss_rate,reference_miss_rate,win, one row for each
 * comparator's point, in the order of `in`. The reference itself, `full` and `min` are left out; `evict` is compared at
 * equal budget; `win` is 1, 0, or empty where there is nothing to compare with. `out` is released on failure.
 *
 * A policy with an interval that never came round (`prunes` of `in` is 0 in every run) kept everything, which is not
 * what its name says: the paper leaves such points out of its counts of wins, and so do the summaries. Their rows stay.
 *
 * Fails with TW_E_INPUT when a column is missing or the reference has no rows; `name` stands for the table in messages.
 */
tw_status tw_match_run(struct tw_table *out, struct tw_match_summaries *summaries, const struct tw_table *in,
                       const char *name, const char *reference, struct tw_error *err);

/* A point of a policy's curve. */
struct tw_match_point {
    double memory, miss_rate;
};

/*
 * The miss rate of a curve at `memory`: points [n] in any order (sorted here by memory, then miss rate; of points of
 * equal memory the lowest miss rate counts), linear within the first segment that contains it. NAN outside.
 */
double tw_match_interpolate(struct tw_match_point *points, size_t n, double memory);

/* Miss rates closer than this are equal: a win. */
#define TW_MATCH_TOLERANCE 1e-9

#endif
