/*
 * Belady's optimum for the reactive setting: after a step the B pages whose next use is soonest stay, of those that
 * were resident and those just served. Of pages that are wanted at the same step next, or never again, the lower id
 * goes first.
 *
 * All budgets in one pass: the sets are nested (sim/nest.h) with the nearness of the next use as their priority. What a
 * step wants leaves its slot and comes in anew, under every budget.
 */
#include "sim/nest.h"
#include "sim/tally.h"

/* next[i]: the step at which the i-th access of the unit wants the same page again, n_steps if never. */
static void find_next_uses(uint32_t *next, uint32_t *upcoming, const struct tw_demand *demand, size_t unit) {
    for (size_t page = 0; page < demand->n_pages; page++) upcoming[page] = (uint32_t)demand->n_steps;
    size_t i = 0;
    for (size_t t = 0; t < demand->n_steps; t++) i += tw_demand_row(demand, unit, t).n;
    for (size_t t = demand->n_steps; t-- > 0;) {
        const struct tw_demand_row row = tw_demand_row(demand, unit, t);
        for (size_t k = row.n; k-- > 0;) {
            next[--i] = upcoming[row.page[k]];
            upcoming[row.page[k]] = (uint32_t)t;
        }
    }
}

static tw_status min_sweep(struct tw_tally *tally, const struct tw_sweep *sweep, struct tw_error *err) {
    const struct tw_demand *demand = sweep->demand;
    const struct tw_budgets *budgets = sweep->budgets;
    size_t longest = 0;
    for (size_t u = 0; u < demand->n_units; u++) {
        size_t n = 0;
        for (size_t t = 0; t < demand->n_steps; t++) n += tw_demand_row(demand, u, t).n;
        longest = n > longest ? n : longest;
    }
    struct tw_nest nest;
    tw_status status = tw_nest_init(&nest, demand->n_pages, sweep->cap, err);
    uint32_t *next = malloc((longest + 1) * sizeof *next);
    uint32_t *upcoming = malloc((demand->n_pages + 1) * sizeof *upcoming);
    if (status == TW_OK && (!next || !upcoming))
        status = TW_FAIL(err, TW_E_MEMORY, "not enough memory for the next uses of %zu accesses", longest);
    for (size_t u = 0; status == TW_OK && u < demand->n_units; u++) {
        const size_t section = tw_tally_section(tally, u);
        uint64_t n_seen = 0;
        const uint32_t *use = next;
        tw_nest_clear(&nest);
        find_next_uses(next, upcoming, demand, u);
        for (size_t t = 0; t < demand->n_steps; t++) {
            const struct tw_demand_row row = tw_demand_row(demand, u, t);
            uint64_t fresh = 0;
            for (size_t i = 0; i < row.n; i++) {
                const uint32_t page = row.page[i], level = nest.level[page];
                if (level == 0)
                    fresh++;
                else
                    tw_tally_fetch(tally, section, t, tw_budgets_upto(budgets, level - 1), 1);
                tw_nest_take(&nest, page);
                nest.priority[page] = demand->n_steps - *use++;
                tw_nest_bring(&nest, page);
            }
            if (fresh) {
                tw_tally_resident_capped(tally, section, t, budgets, n_seen, n_seen + fresh);
                n_seen += fresh;
            }
            tw_nest_put(&nest);
        }
    }
    free(next);
    free(upcoming);
    tw_nest_release(&nest);
    return status;
}

const struct tw_policy tw_policy_min = {
    .interface = TW_POLICY_INTERFACE,
    .name = "min",
    .summary = "Belady's offline optimum: keeps what is wanted soonest; the floor",
    .source = "Belady, 1966",
    .sweep = min_sweep,
};
