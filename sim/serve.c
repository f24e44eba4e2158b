#include "sim/serve.h"

#include <stdlib.h>
#include <string.h>

/* More resident pages in a unit than any context has: a count that has gone wrong. */
#define TW_RESIDENT_LIMIT ((uint64_t)1 << 40)

struct serving {
    struct tw_tally *tally;
    const struct tw_sweep *sweep;
    const struct tw_policy *policy;
    const char *label;
    struct tw_demand_row *rows;      /* [n_units] */
    struct tw_policy_result *result; /* [n_units] */
    uint64_t *resident;              /* [n_units] after the step before */
};

static tw_status count(struct serving *serving, size_t unit, size_t step, size_t b, struct tw_error *err) {
    struct tw_tally *tally = serving->tally;
    const struct tw_policy_result r = serving->result[unit];
    if (r.misses > serving->rows[unit].n || r.fetches > UINT32_MAX || r.prefetch > UINT32_MAX ||
        r.resident > TW_RESIDENT_LIMIT)
        return TW_FAIL(
            err, TW_E_INPUT,
            "policy '%s' reports what cannot be at step %zu, unit %zu: %llu misses of %zu accesses, %llu and "
            "%llu fetches, %llu resident pages",
            serving->label, step, unit, (unsigned long long)r.misses, serving->rows[unit].n,
            (unsigned long long)r.fetches, (unsigned long long)r.prefetch, (unsigned long long)r.resident);
    const size_t section = tw_tally_section(tally, unit);
    /* One budget alone: "below b + 1" less "below b", and "from b" less "from b + 1". */
    if (r.misses) {
        tw_tally_miss(tally, section, step, b + 1, (uint32_t)r.misses);
        tally->misses[section * tally->width + b] -= r.misses;
        if (tally->step_misses) tw_tally_row(tally, tally->step_misses, section, step)[b] -= (uint32_t)r.misses;
    }
    if (r.fetches) {
        uint32_t *const row = tw_tally_row(tally, tally->fetches, section, step);
        tw_span_touch(&tally->fetched[section * tally->n_steps + step], b, b + 2);
        row[b + 1] += (uint32_t)r.fetches;
        row[b] -= (uint32_t)r.fetches;
    }
    if (r.prefetch) {
        uint64_t *const total = tally->prefetch + section * tally->width;
        total[b + 1] += r.prefetch;
        total[b] -= r.prefetch;
        uint32_t *const row = tw_tally_row(tally, tally->step_prefetch, section, step);
        if (row) row[b + 1] += (uint32_t)r.prefetch, row[b] -= (uint32_t)r.prefetch;
    }
    if (r.resident != serving->resident[unit]) {
        const int64_t change = (int64_t)(r.resident - serving->resident[unit]);
        tw_tally_resident(tally, section, step, b, change);
        tw_tally_resident(tally, section, step, b + 1, -change);
        serving->resident[unit] = r.resident;
    }
    return TW_OK;
}

static tw_status serve_budget(struct serving *serving, size_t b, struct tw_error *err) {
    const struct tw_sweep *sweep = serving->sweep;
    const struct tw_demand *demand = sweep->demand;
    const struct tw_policy_layer layer = {
        .layer = sweep->layer,
        .n_units = demand->n_units,
        .n_steps = demand->n_steps,
        .n_pages = demand->n_pages,
        .page_size = demand->shape.page_size,
        .budget = sweep->budgets->value[b],
    };
    void *state = NULL;
    const tw_status opened = serving->policy->open(&state, &layer, sweep->options, err);
    if (opened != TW_OK) {
        if (!err || *err->text) return opened;
        return TW_FAIL(err, opened, "policy '%s' failed to open layer %zu and does not say why", serving->label,
                       sweep->layer);
    }
    tw_status status = TW_OK;
    memset(serving->resident, 0, demand->n_units * sizeof *serving->resident);
    for (size_t t = 0; status == TW_OK && t < demand->n_steps; t++) {
        for (size_t u = 0; u < demand->n_units; u++) serving->rows[u] = tw_demand_row(demand, u, t);
        memset(serving->result, 0, demand->n_units * sizeof *serving->result);
        serving->policy->serve(state, t, serving->rows, serving->result);
        for (size_t u = 0; status == TW_OK && u < demand->n_units; u++) status = count(serving, u, t, b, err);
    }
    serving->policy->close(state);
    return status;
}

tw_status tw_serve_sweep(struct tw_tally *tally, const struct tw_sweep *sweep, const struct tw_policy *policy,
                         const char *label, struct tw_error *err) {
    const size_t n_units = sweep->demand->n_units;
    struct serving serving = {
        .tally = tally,
        .sweep = sweep,
        .policy = policy,
        .label = label,
        .rows = malloc((n_units + 1) * sizeof *serving.rows),
        .result = malloc((n_units + 1) * sizeof *serving.result),
        .resident = malloc((n_units + 1) * sizeof *serving.resident),
    };
    tw_status status = TW_OK;
    if (!serving.rows || !serving.result || !serving.resident)
        status = TW_FAIL(err, TW_E_MEMORY, "not enough memory to serve %zu units", n_units);
    for (size_t b = 0; status == TW_OK && b < sweep->budgets->n; b++) status = serve_budget(&serving, b, err);
    free(serving.rows);
    free(serving.result);
    free(serving.resident);
    return status;
}
