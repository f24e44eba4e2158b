/*
 * WakeKV's reactive residency: least recently used pages go to a reservoir, and come back when they are wanted.
 *
 * All budgets in one pass: LRU is a stack algorithm, and stays one when a step serves its whole demand before it trims.
 * The resident set of budget B before a step is the first B pages in the order of recency (last step of use, then the
 * higher id first), so a page that has been seen is missed by exactly the budgets up to its rank there. No set is kept
 * for any budget, only the order, down to the largest budget.
 */
#include <stdlib.h>
#include <string.h>

#include "sim/tally.h"

struct recency {
    uint32_t *order; /* [low, high): the pages in use, most recent last */
    size_t low, high, capacity;
    uint32_t *last; /* [n_pages] 1 + the step of the last use; 0: never */
};

#define TW_RANKS_AT_ONCE 32

/* Bit i: the page with rank from + i is wanted at the step whose stamp this is. */
static inline uint64_t find_wanted(const struct recency *recency, size_t from, size_t n, uint32_t stamp) {
    const uint32_t *const top = recency->order + recency->high - 1 - from;
    uint64_t found = 0;
    for (size_t i = 0; i < n; i++) found |= (uint64_t)(recency->last[*(top - i)] == stamp) << i;
    return found;
}

static void serve(struct recency *recency, struct tw_tally *tally, const struct tw_sweep *sweep, size_t section,
                  size_t step, struct tw_demand_row row, uint64_t *n_seen) {
    const struct tw_budgets *budgets = sweep->budgets;
    const uint32_t stamp = (uint32_t)step + 1;
    uint32_t known = 0;
    for (size_t i = 0; i < row.n; i++) {
        known += recency->last[row.page[i]] != 0;
        recency->last[row.page[i]] = stamp;
    }
    const uint64_t fresh = row.n - known;
    if (fresh) {
        tw_tally_resident_capped(tally, section, step, budgets, *n_seen, *n_seen + fresh);
        *n_seen += fresh;
    }

    /* A page of rank r is missed by the budgets up to r. Most are found near the top; behind the last one nothing is.
     */
    const size_t depth = recency->high - recency->low,
                 least = budgets->value[0] < depth ? (size_t)budgets->value[0] : depth;
    size_t rank = 0;
    while (known > 0 && rank < depth) {
        const size_t n = depth - rank < TW_RANKS_AT_ONCE ? depth - rank : TW_RANKS_AT_ONCE;
        uint64_t found = find_wanted(recency, rank, n, stamp);
        known -= (uint32_t)__builtin_popcountll(found);
        if (rank < least) found &= least - rank >= n ? 0 : ~(uint64_t)0 << (least - rank); /* nobody misses these */
        for (; found; found &= found - 1)
            tw_tally_fetch(tally, section, step, tw_budgets_upto(budgets, rank + (size_t)__builtin_ctzll(found)), 1);
        rank += n;
    }
    if (known) tw_tally_fetch(tally, section, step, budgets->n, known);

    /* What was wanted moves to the recent end; the order of ranks beyond the last one found is as it was. */
    uint32_t *const order = recency->order;
    size_t to = recency->high - rank;
    for (size_t from = to; from < recency->high; from++) {
        const uint32_t page = order[from];
        order[to] = page;
        to += recency->last[page] != stamp;
    }
    memcpy(order + to, row.page, row.n * sizeof *order);
    recency->high = to + row.n;
    if (recency->high - recency->low > sweep->cap) recency->low = recency->high - sweep->cap;
    if (recency->low >= recency->capacity / 2) {
        memmove(order, order + recency->low, (recency->high - recency->low) * sizeof *order);
        recency->high -= recency->low;
        recency->low = 0;
    }
}

static tw_status reactive_sweep(struct tw_tally *tally, const struct tw_sweep *sweep, struct tw_error *err) {
    const struct tw_demand *demand = sweep->demand;
    size_t widest = 0;
    for (size_t u = 0; u < demand->n_units; u++)
        for (size_t t = 0; t < demand->n_steps; t++) {
            const size_t n = tw_demand_row(demand, u, t).n;
            widest = n > widest ? n : widest;
        }
    /* Room for the order of `cap` pages and a row, twice, so that it moves back only now and then. */
    struct recency recency = {.capacity = 4 * (sweep->cap + widest + 16)};
    recency.order = malloc(recency.capacity * sizeof *recency.order);
    recency.last = malloc((demand->n_pages + 1) * sizeof *recency.last);
    tw_status status = TW_OK;
    if (!recency.order || !recency.last) {
        status = TW_FAIL(err, TW_E_MEMORY, "not enough memory for the residency of %zu pages", demand->n_pages);
        goto done;
    }
    for (size_t u = 0; u < demand->n_units; u++) {
        uint64_t n_seen = 0;
        recency.low = recency.high = 0;
        memset(recency.last, 0, demand->n_pages * sizeof *recency.last);
        for (size_t t = 0; t < demand->n_steps; t++)
            serve(&recency, tally, sweep, tw_tally_section(tally, u), t, tw_demand_row(demand, u, t), &n_seen);
    }
done:
    free(recency.order);
    free(recency.last);
    return status;
}

const struct tw_policy tw_policy_reactive = {
    .interface = TW_POLICY_INTERFACE,
    .name = "reactive",
    .summary = "LRU with a reservoir: what leaves is fetched back when it is wanted",
    .source = "WakeKV, section 3",
    .sweep = reactive_sweep,
};
