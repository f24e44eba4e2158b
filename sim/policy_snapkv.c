/*
 * SnapKV at the granularity of pages: the B pages with the highest scores of step 0 stay, and whatever is generated
 * later.
 *
 * All budgets in one pass: a page of step 0 is resident under the budgets above its rank by score.
 */
#include <stdlib.h>
#include <string.h>

#include "sim/tally.h"

struct candidate {
    uint64_t score;
    uint32_t page;
};

/* The highest score first; of equal ones the higher id. */
static int by_score(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return (x->page < y->page) - (x->page > y->page);
}

static tw_status snapkv_sweep(struct tw_tally *tally, const struct tw_sweep *sweep, struct tw_error *err) {
    const struct tw_demand *demand = sweep->demand;
    const struct tw_budgets *budgets = sweep->budgets;
    if (demand->n_steps == 0) return TW_OK;
    uint32_t *below = malloc((demand->n_pages + 1) * sizeof *below); /* missed by the budgets below this index */
    uint8_t *joined = malloc(demand->n_pages + 1);                   /* generated pages that are in the set */
    struct candidate *candidate = malloc((demand->n_pages + 1) * sizeof *candidate);
    tw_status status = TW_OK;
    if (!below || !joined || !candidate) {
        status = TW_FAIL(err, TW_E_MEMORY, "not enough memory for the residency of %zu pages", demand->n_pages);
        goto done;
    }
    for (size_t u = 0; u < demand->n_units; u++) {
        const size_t section = tw_tally_section(tally, u);
        const struct tw_demand_row first = tw_demand_row(demand, u, 0);
        const uint32_t boundary = first.n ? first.page[first.n - 1] + 1 : 0;
        for (size_t page = 0; page < demand->n_pages; page++) below[page] = (uint32_t)budgets->n;
        memset(joined, 0, demand->n_pages);
        for (size_t i = 0; i < first.n; i++) candidate[i] = (struct candidate){first.score[i], first.page[i]};
        qsort(candidate, first.n, sizeof *candidate, by_score);
        for (size_t i = 0; i < first.n; i++) below[candidate[i].page] = (uint32_t)tw_budgets_upto(budgets, i);
        tw_tally_resident_capped(tally, section, 0, budgets, 0, first.n);
        for (size_t t = 0; t < demand->n_steps; t++) {
            const struct tw_demand_row row = tw_demand_row(demand, u, t);
            int64_t fresh = 0;
            for (size_t i = 0; i < row.n; i++) {
                const uint32_t page = row.page[i];
                if (page < boundary) {
                    tw_tally_miss(tally, section, t, below[page], 1);
                } else {
                    fresh += !joined[page];
                    joined[page] = 1;
                }
            }
            if (fresh) tw_tally_resident(tally, section, t, 0, fresh);
        }
    }
done:
    free(below);
    free(joined);
    free(candidate);
    return status;
}

const struct tw_policy tw_policy_snapkv = {
    .interface = TW_POLICY_INTERFACE,
    .name = "snapkv",
    .summary = "the pages that step 0 attends to most, chosen once, and all generated ones",
    .source = "Li et al., 2024, as simplified by WakeKV",
    .scores = 1,
    .sweep = snapkv_sweep,
};
