/*
 * Where replay's time goes: reading, building the demand, each policy, adding up. Times are processor seconds of the
 * threads, summed, so that neighbours on the machine do not count; rates are a core's.
 *
 *     build/gcc/bench/replay TRACE.h5 [BUDGETS [POLICIES [PAGE_SIZE [UNIT]]]]
 */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/clock.h"
#include "base/parse.h"
#include "sim/account.h"
#include "sim/policies.h"

static double thread_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void must(tw_status status, const struct tw_error *err) {
    if (status == TW_OK) return;
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

struct stages {
    double reading, demand, adding, *policy;
};

struct bench {
    struct tw_trace *trace;
    struct tw_demand_source source;
    struct tw_policy_list policies;
    struct tw_budgets budgets, one;
    struct tw_account *accounts; /* [n_policies] */
    struct stages stages;
    uint64_t n_accesses;
};

/* One layer; adds its times up under a lock. */
static void bench_layer(struct bench *bench, size_t layer) {
    struct tw_error err = {0};
    const struct tw_trace_info *info = tw_trace_info(bench->trace);
    struct tw_demand demand = {0};
    struct tw_demand_shape shape;
    struct tw_tally tally = {0};
    struct tw_trace_raw *raw = tw_trace_raw_new();
    struct tw_trace_scratch *scratch = tw_trace_scratch_new();
    double *policy = calloc(bench->policies.n + 1, sizeof *policy);
    double reading = 0, building = 0, adding = 0, before = thread_seconds(), now;
    must(tw_trace_raw_read(raw, bench->trace, layer, 0, info->n_steps, &err), &err);
    const size_t block = tw_trace_raw_block_steps(raw) * info->n_heads * info->top_k;
    int32_t *position = malloc((block + 1) * sizeof *position);
    uint16_t *weight = malloc((block + 1) * sizeof *weight);
    must(tw_demand_shape_of(&shape, bench->trace, &bench->source, &err), &err);
    must(tw_demand_begin(&demand, &shape, &err), &err);
#define LAP(sum) now = thread_seconds(), (sum) += now - before, before = now
    for (size_t b = 0; b < tw_trace_raw_n_blocks(raw); b++) {
        size_t first, n;
        must(tw_trace_raw_decode(raw, b, position, shape.scores ? weight : NULL, scratch, &err), &err);
        tw_trace_raw_block_range(raw, b, &first, &n);
        LAP(reading);
        tw_demand_append(&demand, position, weight, n);
        LAP(building);
    }
    must(tw_demand_end(&demand, &err), &err);
    LAP(building);
    for (size_t p = 0; p < bench->policies.n; p++) {
        const struct tw_policy_choice *choice = &bench->policies.choices[p];
        const struct tw_budgets *budgets = choice->policy->without_budget ? &bench->one : &bench->budgets;
        struct tw_account *account = &bench->accounts[p];
        const uint64_t largest = budgets->value[budgets->n - 1];
        const struct tw_sweep sweep = {.demand = &demand,
                                       .budgets = budgets,
                                       .cap = largest < demand.n_pages ? (size_t)largest : demand.n_pages,
                                       .options = choice->options,
                                       .layer = layer,
                                       .n_layers = info->n_layers,
                                       .n_units = demand.n_units,
                                       .n_steps = demand.n_steps,
                                       .measure = account->measure,
                                       .keep = &account->kept[layer]};
        must(tw_tally_begin(&tally, 1, demand.n_steps, budgets->n, false, &err), &err);
        LAP(adding);
        must(choice->policy->sweep(&tally, &sweep, &err), &err);
        LAP(policy[p]);
        must(tw_account_add(account, &tally, layer, &err), &err);
        LAP(adding);
    }
#pragma omp critical(bench)
    {
        bench->stages.reading += reading;
        bench->stages.demand += building;
        bench->stages.adding += adding;
        for (size_t p = 0; p < bench->policies.n; p++) bench->stages.policy[p] += policy[p];
        bench->n_accesses += demand.n_accesses;
    }
    free(policy);
    free(position);
    free(weight);
    tw_tally_release(&tally);
    tw_demand_release(&demand);
    tw_trace_raw_free(raw);
    tw_trace_scratch_free(scratch);
}

int main(int argc, char **argv) {
    struct tw_error err = {0};
    struct bench bench = {0};
    static const uint64_t nothing = 0;
    if (argc < 2) {
        fprintf(stderr, "usage: replay TRACE.h5 [BUDGETS [POLICIES [PAGE_SIZE [UNIT]]]]\n");
        return 2;
    }
    uint64_t *budgets = NULL;
    size_t n_budgets = 0;
    if (!tw_parse_u64_list(&budgets, &n_budgets, tw_view_of(argc > 2 ? argv[2] : "8,16,32,64")) || n_budgets == 0) {
        fprintf(stderr, "'%s' is no list of budgets\n", argv[2]);
        return 2;
    }
    must(tw_policy_list_parse(&bench.policies, tw_view_of(argc > 3 ? argv[3] : "all,min"), &err), &err);
    must(tw_budgets_init(&bench.budgets, budgets, n_budgets, &err), &err);
    must(tw_budgets_init(&bench.one, &nothing, 1, &err), &err);
    must(tw_trace_open(&bench.trace, argv[1], &err), &err);
    const struct tw_trace_info *info = tw_trace_info(bench.trace);
    bench.source = (struct tw_demand_source){
        .page_size = argc > 4 ? strtoull(argv[4], NULL, 10) : 16,
        .unit = argc > 5 && !strcmp(argv[5], "kv") ? TW_UNIT_KV : TW_UNIT_QUERY,
        .n_steps = info->n_steps,
    };
    bench.accounts = calloc(bench.policies.n, sizeof *bench.accounts);
    bench.stages.policy = calloc(bench.policies.n, sizeof *bench.stages.policy);
    for (size_t p = 0; p < bench.policies.n; p++) {
        const struct tw_policy *policy = bench.policies.choices[p].policy;
        bench.source.scores |= policy->scores != 0;
        const struct tw_account_shape shape = {.n_layers = info->n_layers,
                                               .n_units =
                                                   bench.source.unit == TW_UNIT_KV ? info->n_kv_heads : info->n_heads,
                                               .n_steps = info->n_steps,
                                               .n_budgets = policy->without_budget ? 1 : bench.budgets.n};
        must(tw_account_init(&bench.accounts[p], &shape, &err), &err);
    }
    const double begin = tw_clock_seconds();
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t l = 0; l < info->n_layers; l++) bench_layer(&bench, l);
    const double wall = tw_clock_seconds() - begin;
    const double positions =
        (double)info->n_steps * (double)info->n_layers * (double)info->n_heads * (double)info->top_k;
    const double bytes = positions * (bench.source.scores ? 6 : 4), accesses = (double)bench.n_accesses;
    printf("%zu budgets, %d threads: %.0f positions, %.0f accesses, %.2f s wall\n", bench.budgets.n,
           omp_get_max_threads(), positions, accesses, wall);
    printf("  %-12s %7.3f s  %7.2f GB/s a core\n", "reading", bench.stages.reading, bytes / bench.stages.reading / 1e9);
    printf("  %-12s %7.3f s  %7.1f M positions/s a core\n", "demand", bench.stages.demand,
           positions / bench.stages.demand / 1e6);
    for (size_t p = 0; p < bench.policies.n; p++)
        printf("  %-12s %7.3f s  %7.1f M accesses/s a core, times budgets %.0f M\n", bench.policies.choices[p].label,
               bench.stages.policy[p], accesses / bench.stages.policy[p] / 1e6,
               accesses * (double)bench.accounts[p].shape.n_budgets / bench.stages.policy[p] / 1e6);
    printf("  %-12s %7.3f s\n", "adding up", bench.stages.adding);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("  peak memory  %.0f MB\n", (double)usage.ru_maxrss * 1024 / 1e6);
    for (size_t p = 0; p < bench.policies.n; p++)
        tw_account_release(&bench.accounts[p], bench.policies.choices[p].policy->free_kept);
    free(bench.accounts);
    free(bench.stages.policy);
    free(budgets);
    tw_budgets_release(&bench.budgets);
    tw_budgets_release(&bench.one);
    tw_policy_list_release(&bench.policies);
    tw_trace_free(bench.trace);
    return 0;
}
