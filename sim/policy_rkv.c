/*
 * Uniform R-KV: pages gather the scores of the steps that want them; every `interval` steps the lowest-scored ones over
 * B are destroyed in each unit, and the survivors start again from 0.
 *
 * All budgets in one pass: between two prunings what a resident page gathers does not depend on the budget, so the
 * survivors are nested (sim/nest.h) with the gathered score as their priority. What has come in since is resident
 * everywhere.
 */
#include "sim/nest.h"
#include "sim/tally.h"

struct rkv_options {
    uint64_t interval;
};

static const struct tw_option rkv_options[] = {
    {.name = "interval",
     .type = TW_OPTION_U64,
     .offset = offsetof(struct rkv_options, interval),
     .default_value = "128",
     .minimum = 1,
     .maximum = 1e15,
     .value_name = "STEPS",
     .help = "steps between two prunings"},
    {0},
};

static tw_status rkv_sweep(struct tw_tally *tally, const struct tw_sweep *sweep, struct tw_error *err) {
    const struct tw_demand *demand = sweep->demand;
    const struct tw_budgets *budgets = sweep->budgets;
    const uint64_t interval = ((const struct rkv_options *)sweep->options)->interval;
    struct tw_nest nest;
    tw_status status = tw_nest_init(&nest, demand->n_pages, sweep->cap, err);
    uint32_t *fresh = malloc((demand->n_pages + 1) * sizeof *fresh); /* pages that came in since the last pruning */
    uint8_t *seen = malloc(demand->n_pages + 1);
    if (status == TW_OK && (!fresh || !seen))
        status = TW_FAIL(err, TW_E_MEMORY, "not enough memory for the residency of %zu pages", demand->n_pages);
    for (size_t u = 0; status == TW_OK && u < demand->n_units; u++) {
        const size_t section = tw_tally_section(tally, u);
        uint64_t n_pruned = 0; /* pages that have been through a pruning */
        size_t n_fresh = 0;
        tw_nest_clear(&nest);
        memset(seen, 0, demand->n_pages);
        for (size_t t = 0; t < demand->n_steps; t++) {
            const struct tw_demand_row row = tw_demand_row(demand, u, t);
            const size_t n_before = n_fresh;
            for (size_t i = 0; i < row.n; i++) {
                const uint32_t page = row.page[i], level = nest.level[page];
                nest.priority[page] += row.score[i];
                if (level) {
                    tw_tally_miss(tally, section, t, tw_budgets_upto(budgets, level - 1), 1);
                } else if (!seen[page]) {
                    seen[page] = 1;
                    fresh[n_fresh++] = page;
                }
            }
            if (n_fresh > n_before) tw_tally_resident(tally, section, t, 0, (int64_t)(n_fresh - n_before));
            if ((t + 1) % interval != 0) continue;
            tw_tally_resident(tally, section, t, 0, -(int64_t)n_fresh);
            tw_tally_resident_capped(tally, section, t, budgets, n_pruned, n_pruned + n_fresh);
            n_pruned += n_fresh;
            for (size_t i = 0; i < n_fresh; i++) tw_nest_bring(&nest, fresh[i]);
            n_fresh = 0;
            tw_nest_put(&nest);
            memset(nest.priority, 0, demand->n_pages * sizeof *nest.priority);
        }
    }
    free(fresh);
    free(seen);
    tw_nest_release(&nest);
    return status;
}

const struct tw_policy tw_policy_rkv = {
    .interface = TW_POLICY_INTERFACE,
    .name = "rkv",
    .summary = "every interval the lowest gathered scores over the budget are destroyed",
    .source = "R-KV (Cai et al., 2025), importance alone, as simplified by WakeKV",
    .scores = 1,
    .options = rkv_options,
    .options_size = sizeof(struct rkv_options),
    .prunes_every = 1,
    .sweep = rkv_sweep,
};
