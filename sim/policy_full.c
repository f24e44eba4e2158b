/* Everything stays: never a miss. The memory that the others are measured against. */
#include <stdlib.h>
#include <string.h>

#include "sim/tally.h"

static tw_status full_sweep(struct tw_tally *tally, const struct tw_sweep *sweep, struct tw_error *err) {
    const struct tw_demand *demand = sweep->demand;
    uint8_t *seen = malloc(demand->n_pages + 1);
    if (!seen) return TW_FAIL(err, TW_E_MEMORY, "not enough memory for the residency of %zu pages", demand->n_pages);
    for (size_t u = 0; u < demand->n_units; u++) {
        const size_t section = tw_tally_section(tally, u);
        memset(seen, 0, demand->n_pages);
        for (size_t t = 0; t < demand->n_steps; t++) {
            const struct tw_demand_row row = tw_demand_row(demand, u, t);
            int64_t fresh = 0;
            for (size_t i = 0; i < row.n; i++) {
                fresh += !seen[row.page[i]];
                seen[row.page[i]] = 1;
            }
            if (fresh) tw_tally_resident(tally, section, t, 0, fresh);
        }
    }
    free(seen);
    return TW_OK;
}

const struct tw_policy tw_policy_full = {
    .interface = TW_POLICY_INTERFACE,
    .name = "full",
    .summary = "keeps every page; never misses",
    .source = "",
    .without_budget = 1,
    .sweep = full_sweep,
};
