/*
 * FlexiCache-style: units are split once, by how stable their demand is over the whole run. An unstable unit keeps
 * everything. A stable one has a fixed set, remade every `refresh` steps from the pages it wanted most often since.
 *
 * All budgets in one pass: the set of budget B is the first B pages in the order of counts, so a page's rank says which
 * budgets have it. The split is known only when every layer has been seen; so that the trace is read once, a sweep
 * counts each unit as if it were stable, notes when new pages came in for the case that it is not, and settle adds up
 * what holds.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "sim/tally.h"

struct frozen_options {
    uint64_t refresh;
    double unstable;
};

static const struct tw_option frozen_options[] = {
    {.name = "refresh",
     .type = TW_OPTION_U64,
     .offset = offsetof(struct frozen_options, refresh),
     .default_value = "16",
     .minimum = 1,
     .maximum = 1e15,
     .value_name = "STEPS",
     .help = "steps between two choices of the fixed sets"},
    {.name = "unstable",
     .type = TW_OPTION_DOUBLE,
     .offset = offsetof(struct frozen_options, unstable),
     .default_value = "0.25",
     .minimum = 0,
     .maximum = 1,
     .value_name = "SHARE",
     .help = "share of the units that keep everything"},
    {0},
};

/* Stabilities that differ by no more are equal. */
#define TW_STABILITY_TOLERANCE 1e-12

/* What a sweep keeps of one layer. */
struct kept {
    size_t n_refreshes;
    uint64_t *misses;        /* below [n_units][width] */
    uint64_t *prefetch;      /* below [n_units][width] */
    uint32_t *size;          /* [n_units][n_refreshes] pages in the largest fixed set after each refresh */
    uint32_t *fresh;         /* [n_units][n_steps] pages wanted for the first time */
    uint32_t *step_misses;   /* below [n_units][n_steps][width], or NULL */
    uint32_t *step_prefetch; /* below [n_units][n_refreshes][width], or NULL */
    uint64_t memory[];
};

static struct kept *new_kept(const struct tw_tally *tally, const struct tw_sweep *sweep, uint64_t refresh) {
    const size_t n_refreshes = (size_t)(sweep->n_steps / refresh);
    const bool steps = tally->step_misses != NULL;
    size_t cells, words, small, each;
    if (!tw_mul_size(&cells, sweep->n_steps, steps ? 2 * tally->width + 2 : 2) ||
        !tw_mul_size(&small, tally->width, 2 * sizeof(uint64_t)) || !tw_mul_size(&words, cells, sizeof(uint32_t)) ||
        !tw_add_size(&each, small, words) || !tw_mul_size(&each, each, sweep->n_units))
        return NULL;
    struct kept *kept = calloc(1, sizeof *kept + each);
    if (!kept) return NULL;
    kept->n_refreshes = n_refreshes;
    kept->misses = kept->memory;
    kept->prefetch = kept->misses + sweep->n_units * tally->width;
    kept->size = (uint32_t *)(kept->prefetch + sweep->n_units * tally->width);
    kept->fresh = kept->size + sweep->n_units * n_refreshes;
    if (steps) {
        kept->step_misses = kept->fresh + sweep->n_units * sweep->n_steps;
        kept->step_prefetch = kept->step_misses + sweep->n_units * sweep->n_steps * tally->width;
    }
    return kept;
}

/* The state of a unit, as if it were stable. */
struct unit_state {
    uint32_t *below;  /* [n_pages] the page is missed by the budgets below this index */
    uint32_t *count;  /* [n_pages] wishes since the last refresh */
    uint32_t *last;   /* [n_pages] 1 + the step of the last wish; 0: never */
    uint32_t *window; /* pages wanted since the last refresh, in the order of their first wish */
    size_t n_window;
    uint32_t *set; /* pages of the largest fixed set */
    size_t n_set;
    uint64_t *key; /* scratch for sorting */
};

static int descending(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

/* A window holds tens of pages: Shell's method (gaps by Ciura, 2001) beats a call for every comparison. */
static void sort_descending(uint64_t *key, size_t n) {
    static const size_t gaps[] = {132, 57, 23, 10, 4, 1};
    if (n > 1000) {
        qsort(key, n, sizeof *key, descending);
        return;
    }
    for (size_t g = 0; g < sizeof gaps / sizeof *gaps; g++)
        for (size_t i = gaps[g]; i < n; i++) {
            const uint64_t moved = key[i];
            size_t j = i;
            for (; j >= gaps[g] && key[j - gaps[g]] < moved; j -= gaps[g]) key[j] = key[j - gaps[g]];
            key[j] = moved;
        }
}

/* The most often wanted pages become the set; equal counts: the higher id first. */
static void refresh_set(struct unit_state *state, struct kept *kept, const struct tw_sweep *sweep, size_t unit,
                        size_t at) {
    const struct tw_budgets *budgets = sweep->budgets;
    const size_t width = budgets->n + 1;
    if (state->n_window > 0) {
        uint64_t *const prefetch = kept->prefetch + unit * width;
        uint32_t *const row =
            kept->step_prefetch ? kept->step_prefetch + (unit * kept->n_refreshes + at) * width : NULL;
        for (size_t i = 0; i < state->n_window; i++)
            state->key[i] = (uint64_t)state->count[state->window[i]] << 32 | state->window[i];
        sort_descending(state->key, state->n_window);
        /* Pages of the old set that were not wanted have count 0: they are in no set now. */
        for (size_t i = 0; i < state->n_set; i++)
            if (!state->count[state->set[i]]) state->below[state->set[i]] = (uint32_t)budgets->n;
        for (size_t i = 0; i < state->n_window; i++) {
            const uint32_t page = (uint32_t)state->key[i];
            const uint32_t old = state->below[page], new = (uint32_t)tw_budgets_upto(budgets, i);
            if (new < old) { /* brought in under the budgets with indices in [new, old) */
                prefetch[old]++;
                prefetch[new]--;
                if (row) row[old]++, row[new]--;
            }
            state->below[page] = new;
            state->count[page] = 0;
            state->set[i] = page;
        }
        state->n_set = state->n_window;
        state->n_window = 0;
    }
    kept->size[unit * kept->n_refreshes + at] = (uint32_t)state->n_set;
}

/*
 * Returns the unit's stability: the mean overlap (Jaccard) of the demand of adjacent steps, over those where either
 * wants something; 1 if there are none.
 */
static double sweep_unit(struct unit_state *state, struct kept *kept, const struct tw_sweep *sweep, size_t unit) {
    const struct tw_demand *demand = sweep->demand;
    const size_t width = sweep->budgets->n + 1;
    const uint64_t refresh = ((const struct frozen_options *)sweep->options)->refresh;
    uint64_t *const misses = kept->misses + unit * width;
    memset(state->count, 0, demand->n_pages * sizeof *state->count);
    memset(state->last, 0, demand->n_pages * sizeof *state->last);
    for (size_t page = 0; page < demand->n_pages; page++) state->below[page] = (uint32_t)sweep->budgets->n;
    state->n_window = state->n_set = 0;
    double overlap = 0;
    size_t at = 0, n_pairs = 0, n_before = 0;
    for (size_t t = 0; t < demand->n_steps; t++) {
        const struct tw_demand_row row = tw_demand_row(demand, unit, t);
        uint32_t *const step = kept->step_misses ? kept->step_misses + (unit * demand->n_steps + t) * width : NULL;
        uint32_t fresh = 0, common = 0;
        for (size_t i = 0; i < row.n; i++) {
            const uint32_t page = row.page[i];
            misses[state->below[page]]++;
            if (step) step[state->below[page]]++;
            fresh += state->last[page] == 0;
            common += state->last[page] == (uint32_t)t; /* at t = 0 no page: counted only from step 1 on */
            state->last[page] = (uint32_t)t + 1;
            state->window[state->n_window] = page;
            state->n_window += state->count[page]++ == 0;
        }
        kept->fresh[unit * demand->n_steps + t] = fresh;
        if (t > 0 && n_before + row.n > 0) {
            overlap += (double)common / (double)(n_before + row.n - common);
            n_pairs++;
        }
        n_before = row.n;
        if ((t + 1) % refresh == 0) refresh_set(state, kept, sweep, unit, at++);
    }
    return n_pairs ? overlap / (double)n_pairs : 1;
}

static tw_status frozen_sweep(struct tw_tally *tally, const struct tw_sweep *sweep, struct tw_error *err) {
    const struct tw_demand *demand = sweep->demand;
    const size_t n = demand->n_pages + 1;
    struct kept *kept = new_kept(tally, sweep, ((const struct frozen_options *)sweep->options)->refresh);
    struct unit_state state = {
        .below = malloc(n * sizeof *state.below),
        .count = malloc(n * sizeof *state.count),
        .last = malloc(n * sizeof *state.last),
        .window = malloc(n * sizeof *state.window),
        .set = malloc(n * sizeof *state.set),
        .key = malloc(n * sizeof *state.key),
    };
    *sweep->keep = kept;
    tw_status status = TW_OK;
    if (!kept || !state.below || !state.count || !state.last || !state.window || !state.set || !state.key)
        status = TW_FAIL(err, TW_E_MEMORY, "not enough memory for the residency of %zu pages", demand->n_pages);
    for (size_t u = 0; status == TW_OK && u < demand->n_units; u++) {
        sweep->measure[sweep->layer * sweep->n_units + u] = sweep_unit(&state, kept, sweep, u);
    }
    free(state.below);
    free(state.count);
    free(state.last);
    free(state.window);
    free(state.set);
    free(state.key);
    return status;
}

struct ranked {
    double stability;
    size_t unit;
};

static int by_stability(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (x->stability != y->stability) return x->stability < y->stability ? -1 : 1;
    return (x->unit > y->unit) - (x->unit < y->unit);
}

static int by_unit(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    return (x->unit > y->unit) - (x->unit < y->unit);
}

/* unstable[u] = 1 for the least stable share of all units; of equally stable ones the lower number first. */
static tw_status split(uint8_t *unstable, const double *measure, size_t n_units, double share, struct tw_error *err) {
    struct ranked *ranked = malloc((n_units + 1) * sizeof *ranked);
    if (!ranked) return TW_FAIL(err, TW_E_MEMORY, "not enough memory to rank %zu units", n_units);
    for (size_t u = 0; u < n_units; u++) ranked[u] = (struct ranked){measure[u], u};
    qsort(ranked, n_units, sizeof *ranked, by_stability);
    for (size_t begin = 0, end; begin < n_units; begin = end) {
        for (end = begin + 1; end < n_units; end++)
            if (ranked[end].stability - ranked[begin].stability > TW_STABILITY_TOLERANCE) break;
        qsort(ranked + begin, end - begin, sizeof *ranked, by_unit);
    }
    memset(unstable, 0, n_units);
    /* rint rounds halves to even. */
    const size_t n = (size_t)rint((double)n_units * share);
    for (size_t i = 0; i < n; i++) unstable[ranked[i].unit] = 1;
    free(ranked);
    return TW_OK;
}

static void settle_stable(struct tw_tally *tally, const struct tw_sweep *sweep, const struct kept *kept, size_t unit) {
    const size_t width = tally->width, section = tw_tally_section(tally, unit);
    const uint64_t refresh = ((const struct frozen_options *)sweep->options)->refresh;
    for (size_t b = 0; b < width; b++) {
        tally->misses[section * width + b] += kept->misses[unit * width + b];
        tally->prefetch[section * width + b] += kept->prefetch[unit * width + b];
    }
    uint32_t before = 0;
    for (size_t at = 0; at < kept->n_refreshes; at++) {
        const size_t t = (size_t)((at + 1) * refresh - 1);
        const uint32_t after = kept->size[unit * kept->n_refreshes + at];
        tw_tally_resident_capped(tally, section, t, sweep->budgets, before, after);
        before = after;
        if (!kept->step_prefetch) continue;
        uint32_t *const to = tw_tally_row(tally, tally->step_prefetch, section, t);
        const uint32_t *const from = kept->step_prefetch + (unit * kept->n_refreshes + at) * width;
        for (size_t b = 0; b < width; b++) to[b] += from[b];
    }
    if (!kept->step_misses) return;
    for (size_t t = 0; t < sweep->n_steps; t++) {
        uint32_t *const to = tw_tally_row(tally, tally->step_misses, section, t);
        const uint32_t *const from = kept->step_misses + (unit * sweep->n_steps + t) * width;
        for (size_t b = 0; b < width; b++) to[b] += from[b];
    }
}

static tw_status frozen_settle(struct tw_tally *tally, const struct tw_sweep *sweep, struct tw_error *err) {
    const struct kept *kept = *sweep->keep;
    const size_t n_units = sweep->n_layers * sweep->n_units;
    uint8_t *unstable = malloc(n_units + 1);
    if (!unstable) return TW_FAIL(err, TW_E_MEMORY, "not enough memory to rank %zu units", n_units);
    const tw_status status =
        split(unstable, sweep->measure, n_units, ((const struct frozen_options *)sweep->options)->unstable, err);
    for (size_t u = 0; status == TW_OK && u < sweep->n_units; u++) {
        if (!unstable[sweep->layer * sweep->n_units + u]) {
            settle_stable(tally, sweep, kept, u);
            continue;
        }
        for (size_t t = 0; t < sweep->n_steps; t++) {
            const uint32_t fresh = kept->fresh[u * sweep->n_steps + t];
            if (fresh) tw_tally_resident(tally, tw_tally_section(tally, u), t, 0, fresh);
        }
    }
    free(unstable);
    return status;
}

const struct tw_policy tw_policy_frozen = {
    .interface = TW_POLICY_INTERFACE,
    .name = "frozen",
    .summary = "stable heads have a fixed set, remade now and then; unstable heads keep everything",
    .source = "FlexiCache, as simplified by WakeKV",
    .options = frozen_options,
    .options_size = sizeof(struct frozen_options),
    .sweep = frozen_sweep,
    .settle = frozen_settle,
    .free_kept = free,
};
