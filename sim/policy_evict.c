/*
 * LRU whose victims are destroyed: a page that has left never comes back, and every later wish for it is a miss.
 *
 * All budgets in one pass: the survivors are nested (sim/nest.h), with the step of last use as their priority. A page
 * that is resident under some budget was touched at its last wish under every budget that still has it, so one time of
 * last use serves them all. Touching moves nothing between slots: a page keeps its slot as long as nothing new comes
 * in, since every set is then no larger than before. Only pages never seen before push others down, and each page is
 * new once.
 */
#include "sim/nest.h"
#include "sim/tally.h"

static tw_status evict_sweep(struct tw_tally *tally, const struct tw_sweep *sweep, struct tw_error *err) {
    const struct tw_demand *demand = sweep->demand;
    const struct tw_budgets *budgets = sweep->budgets;
    struct tw_nest nest;
    const tw_status status = tw_nest_init(&nest, demand->n_pages, sweep->cap, err);
    for (size_t u = 0; status == TW_OK && u < demand->n_units; u++) {
        const size_t section = tw_tally_section(tally, u);
        uint64_t n_seen = 0;
        tw_nest_clear(&nest);
        for (size_t t = 0; t < demand->n_steps; t++) {
            const struct tw_demand_row row = tw_demand_row(demand, u, t);
            for (size_t i = 0; i < row.n; i++) {
                const uint32_t page = row.page[i], level = nest.level[page];
                nest.priority[page] = t;
                if (level == 0)
                    tw_nest_bring(&nest, page);
                else
                    tw_tally_miss(tally, section, t, tw_budgets_upto(budgets, level - 1), 1);
            }
            if (nest.n_heap == 0) continue;
            tw_tally_resident_capped(tally, section, t, budgets, n_seen, n_seen + nest.n_heap);
            n_seen += nest.n_heap;
            tw_nest_put(&nest);
        }
    }
    tw_nest_release(&nest);
    return status;
}

const struct tw_policy tw_policy_evict = {
    .interface = TW_POLICY_INTERFACE,
    .name = "evict",
    .summary = "LRU; what leaves is destroyed",
    .source = "WakeKV, section 3",
    .sweep = evict_sweep,
};
