#include "tests/sweeps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/policies.h"

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        struct tw_error err = {0};                                                                                     \
        (void)err;                                                                                                     \
        if ((call) != TW_OK) {                                                                                         \
            fprintf(stderr, "%s: %s\n", #call, err.text);                                                              \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

void tw_oracle_trace_allocate(struct tw_oracle_trace *trace) {
    const size_t n = trace->n_layers * trace->n_steps * trace->n_heads * trace->top_k;
    trace->position = malloc((n + 1) * sizeof *trace->position);
    trace->weight = calloc(n + 1, sizeof *trace->weight);
    if (!trace->position || !trace->weight) abort();
    for (size_t i = 0; i < n; i++) trace->position[i] = -1;
}

void tw_oracle_trace_release(struct tw_oracle_trace *trace) {
    free(trace->position);
    free(trace->weight);
}

static void make_demand(struct tw_demand *demand, const struct tw_oracle_trace *trace,
                        const struct tw_test_sweep *sweep, size_t layer) {
    const struct tw_demand_shape shape = {.n_steps = trace->n_steps,
                                          .n_heads = trace->n_heads,
                                          .n_kv_heads = trace->n_kv_heads,
                                          .top_k = trace->top_k,
                                          .page_size = sweep->page_size,
                                          .unit = sweep->unit,
                                          .scores = true,
                                          .position_limit = (uint64_t)trace->limit};
    const size_t step = trace->n_heads * trace->top_k, first = layer * trace->n_steps * step;
    MUST(tw_demand_begin(demand, &shape, &err));
    for (size_t t = 0; t < trace->n_steps; t += 3) {
        const size_t n = trace->n_steps - t < 3 ? trace->n_steps - t : 3;
        tw_demand_append(demand, trace->position + first + t * step, trace->weight + first + t * step, n);
    }
    MUST(tw_demand_end(demand, &err));
}

void tw_test_sweep_run(struct tw_account *account, const struct tw_oracle_trace *trace,
                       const struct tw_test_sweep *options, const char *policy) {
    struct tw_policy_choice choice;
    struct tw_budgets budgets;
    struct tw_tally tally = {0};
    struct tw_demand demand = {0};
    static const uint64_t nothing = 0;
    MUST(tw_policy_choose(&choice, tw_view_of(policy), &err));
    const bool none = choice.policy->without_budget;
    MUST(tw_budgets_init(&budgets, none ? &nothing : options->budgets, none ? 1 : options->n_budgets, &err));
    const struct tw_account_shape shape = {
        .n_layers = trace->n_layers,
        .n_units = options->unit == TW_UNIT_KV ? trace->n_kv_heads : trace->n_heads,
        .n_steps = trace->n_steps,
        .n_budgets = budgets.n,
        .by = options->by,
    };
    MUST(tw_account_init(account, &shape, &err));
    struct tw_sweep sweep = {
        .budgets = &budgets,
        .options = choice.options,
        .n_layers = shape.n_layers,
        .n_units = shape.n_units,
        .n_steps = shape.n_steps,
        .measure = account->measure,
    };
    /* All layers are swept, then, where the policy settles, all are settled. */
    for (int settling = 0; settling <= (choice.policy->settle != NULL); settling++)
        for (size_t l = 0; l < trace->n_layers; l++) {
            sweep.layer = l;
            sweep.keep = &account->kept[l];
            MUST(tw_tally_begin(&tally, tw_account_sections(&shape), shape.n_steps, budgets.n,
                                tw_account_wants_steps(&shape), &err));
            if (settling) {
                sweep.demand = NULL;
                MUST(choice.policy->settle(&tally, &sweep, &err));
            } else {
                make_demand(&demand, trace, options, l);
                sweep.demand = &demand;
                const uint64_t largest = budgets.n ? budgets.value[budgets.n - 1] : 0;
                sweep.cap = largest < demand.n_pages ? (size_t)largest : demand.n_pages;
                MUST(choice.policy->sweep(&tally, &sweep, &err));
                if (choice.policy->settle) continue;
            }
            MUST(tw_account_add(account, &tally, l, &err));
        }
    MUST(tw_account_finish(account, &err));
    for (size_t l = 0; l < trace->n_layers; l++) {
        if (choice.policy->free_kept) choice.policy->free_kept(account->kept[l]);
        account->kept[l] = NULL;
    }
    tw_demand_release(&demand);
    tw_tally_release(&tally);
    tw_budgets_release(&budgets);
    tw_policy_choice_release(&choice);
}

/* The cells of the units and steps that belong to a group, as a row. */
static struct tw_account_row expected_row(const struct tw_oracle_cell *cells, size_t first_unit, size_t n_units,
                                          size_t first_step, size_t n_steps, size_t stride) {
    struct tw_account_row row = {0};
    for (size_t t = first_step; t < first_step + n_steps; t++) {
        uint64_t resident = 0, fetched = 0;
        for (size_t u = first_unit; u < first_unit + n_units; u++) {
            const struct tw_oracle_cell *cell = &cells[u * stride + t];
            row.misses += cell->misses;
            row.fetches += cell->fetches + cell->prefetch;
            fetched += cell->fetches;
            resident += cell->resident;
        }
        row.stall_steps += fetched != 0;
        row.resident_page_steps += resident;
        if (resident > row.peak_resident) row.peak_resident = resident;
    }
    return row;
}

static bool compare_account(const struct tw_account *account, const struct tw_oracle_cell *cells, size_t b,
                            const char *what, char *difference, size_t size) {
    const struct tw_account_shape *s = &account->shape;
    for (size_t g = 0; g < account->n_groups; g++) {
        const size_t all = s->n_layers * s->n_units;
        const struct tw_account_row *got = &account->rows[g * s->n_budgets + b];
        const struct tw_account_row wanted =
            s->by == TW_REPLAY_BY_STEP    ? expected_row(cells, 0, all, g, 1, s->n_steps)
            : s->by == TW_REPLAY_BY_HEAD  ? expected_row(cells, g, 1, 0, s->n_steps, s->n_steps)
            : s->by == TW_REPLAY_BY_LAYER ? expected_row(cells, g * s->n_units, s->n_units, 0, s->n_steps, s->n_steps)
                                          : expected_row(cells, 0, all, 0, s->n_steps, s->n_steps);
        if (!memcmp(got, &wanted, sizeof wanted)) continue;
        snprintf(difference, size,
                 "%s, split %d, group %zu: misses %llu, fetches %llu, stalls %llu, resident %llu, peak %llu; the plain "
                 "form has %llu, %llu, %llu, %llu, %llu",
                 what, (int)s->by, g, (unsigned long long)got->misses, (unsigned long long)got->fetches,
                 (unsigned long long)got->stall_steps, (unsigned long long)got->resident_page_steps,
                 (unsigned long long)got->peak_resident, (unsigned long long)wanted.misses,
                 (unsigned long long)wanted.fetches, (unsigned long long)wanted.stall_steps,
                 (unsigned long long)wanted.resident_page_steps, (unsigned long long)wanted.peak_resident);
        return false;
    }
    return true;
}

static int by_value(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

bool tw_test_sweep_compare(const struct tw_oracle_trace *trace, const struct tw_test_sweep *sweep, uint64_t every,
                           double unstable, char *difference, size_t size) {
    const size_t n_units = sweep->unit == TW_UNIT_KV ? trace->n_kv_heads : trace->n_heads;
    struct tw_oracle_cell *cells = malloc((trace->n_layers * n_units * trace->n_steps + 1) * sizeof *cells);
    uint64_t *sorted = malloc((sweep->n_budgets + 1) * sizeof *sorted);
    if (!cells || !sorted) abort();
    memcpy(sorted, sweep->budgets, sweep->n_budgets * sizeof *sorted);
    qsort(sorted, sweep->n_budgets, sizeof *sorted, by_value);
    size_t n_distinct = 0;
    for (size_t i = 0; i < sweep->n_budgets; i++)
        if (n_distinct == 0 || sorted[n_distinct - 1] != sorted[i]) sorted[n_distinct++] = sorted[i];
    static const char *const names[] = {"full", "reactive", "evict", "frozen", "snapkv", "rkv", "reasonalloc", "min"};
    bool equal = true;
    for (size_t p = 0; equal && p < sizeof names / sizeof *names; p++) {
        char policy[128];
        snprintf(policy, sizeof policy, "%s", names[p]);
        const unsigned long long n = every;
        if (!strcmp(names[p], "frozen"))
            snprintf(policy, sizeof policy, "frozen:refresh=%llu:unstable=%g", n, unstable);
        if (!strcmp(names[p], "rkv")) snprintf(policy, sizeof policy, "rkv:interval=%llu", n);
        if (!strcmp(names[p], "reasonalloc")) snprintf(policy, sizeof policy, "reasonalloc:delta=%llu", n);
        struct tw_account account;
        tw_test_sweep_run(&account, trace, sweep, policy);
        for (size_t b = 0; equal && b < account.shape.n_budgets; b++) {
            const struct tw_oracle_options options = {.policy = names[p],
                                                      .budget = sorted[b],
                                                      .page_size = sweep->page_size,
                                                      .unit = sweep->unit,
                                                      .every = every,
                                                      .unstable = unstable};
            char what[192];
            snprintf(what, sizeof what, "%s, B = %llu, page size %llu, %s", policy, (unsigned long long)sorted[b],
                     (unsigned long long)sweep->page_size, tw_unit_name(sweep->unit));
            tw_oracle_run(cells, trace, &options);
            equal = compare_account(&account, cells, b, what, difference, size);
        }
        tw_account_release(&account, NULL);
    }
    free(cells);
    free(sorted);
    return equal;
}

static size_t between(struct tw_random *random, size_t low, size_t high) {
    return low + (size_t)tw_random_below(random, high - low + 1);
}

/* Positions with some locality, padding and repetitions; weights from a few values, so that ties abound. */
static void fill(struct tw_oracle_trace *trace, struct tw_random *random) {
    static const uint16_t halves[] = {0x0000, 0x0001, 0x2400, 0x2800, 0x2c00, 0x3400, 0x3c00, 0x03ff};
    const size_t row = trace->top_k, n_rows = trace->n_layers * trace->n_steps * trace->n_heads;
    const size_t padding = between(random, 0, 3), locality = between(random, 0, 4);
    for (size_t r = 0; r < n_rows; r++)
        for (size_t k = 0; k < row; k++) {
            const size_t at = r * row + k;
            if (tw_random_below(random, 8) < padding) continue;
            if (at >= trace->n_heads * row && tw_random_below(random, 5) < locality)
                trace->position[at] = trace->position[at - trace->n_heads * row];
            else
                trace->position[at] = (int32_t)tw_random_below(random, (uint64_t)trace->limit);
            trace->weight[at] = halves[tw_random_below(random, sizeof halves / sizeof *halves)];
        }
}

bool tw_test_sweeps_agree(uint64_t seed, char *difference, size_t size) {
    struct tw_random random;
    tw_random_init(&random, seed, 7);
    struct tw_oracle_trace trace = {0};
    trace.n_layers = between(&random, 1, 2);
    trace.n_kv_heads = between(&random, 1, 3);
    trace.n_heads = trace.n_kv_heads * between(&random, 1, 2);
    trace.top_k = between(&random, 1, 5);
    trace.n_steps = tw_random_below(&random, 16) == 0 ? tw_random_below(&random, 2) : between(&random, 2, 20);
    trace.limit = (int32_t)between(&random, 1, 40);
    tw_oracle_trace_allocate(&trace);
    fill(&trace, &random);
    uint64_t budgets[80];
    struct tw_test_sweep sweep = {.by = (enum tw_replay_by)tw_random_below(&random, 4),
                                  .page_size = between(&random, 1, 4),
                                  .unit = (enum tw_unit)tw_random_below(&random, 2),
                                  .budgets = budgets,
                                  .n_budgets = between(&random, 1, 4)};
    for (size_t b = 0; b < sweep.n_budgets; b++) budgets[b] = tw_random_below(&random, 10);
    if (tw_random_below(&random, 8) == 0) budgets[0] = 1000000000;
    if (tw_random_below(&random, 64) == 0) { /* more budgets than a word has bits */
        sweep.n_budgets = sizeof budgets / sizeof *budgets;
        for (size_t b = 0; b < sweep.n_budgets; b++) budgets[b] = b;
    }
    static const double shares[] = {0, 0.25, 0.5, 1};
    const uint64_t every = between(&random, 1, 7);
    const double unstable = shares[tw_random_below(&random, sizeof shares / sizeof *shares)];
    const bool equal = tw_test_sweep_compare(&trace, &sweep, every, unstable, difference, size);
    tw_oracle_trace_release(&trace);
    return equal;
}
