#include "analysis/clustering.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/stats.h"
#include "base/checked.h"
#include "base/random.h"

/* Of one run: events a step, and the steps from busy to quiet. */
struct counted_step {
    uint32_t count, step;
};

static int busier_first(const void *a, const void *b) {
    const struct counted_step *const x = a, *const y = b;
    if (x->count != y->count) return x->count < y->count ? 1 : -1;
    return x->step < y->step ? 1 : -1; /* of equally busy steps the later one */
}

/* Share of the events in the n_busy busiest steps; ranked [n_steps] is scratch, in the end sorted. */
static double concentration_of(struct counted_step *ranked, const uint32_t *count, size_t n_steps, size_t n_busy,
                               size_t n_events) {
    for (size_t t = 0; t < n_steps; t++) ranked[t] = (struct counted_step){count[t], (uint32_t)t};
    qsort(ranked, n_steps, sizeof *ranked, busier_first);
    size_t in_busy = 0;
    for (size_t i = 0; i < n_busy; i++) in_busy += ranked[i].count;
    return tw_ratio(in_busy, n_events);
}

/* The same without ranking all steps: only how often each count occurs matters. */
static double concentration_of_counts(size_t *of_count, const uint32_t *count, size_t n_steps, size_t n_heads,
                                      size_t n_busy, size_t n_events) {
    memset(of_count, 0, (n_heads + 1) * sizeof *of_count);
    for (size_t t = 0; t < n_steps; t++) of_count[count[t]]++;
    size_t left = n_busy, in_busy = 0;
    for (size_t c = n_heads; c > 0 && left; c--) {
        const size_t taken = tw_min_size(left, of_count[c]);
        in_busy += taken * c;
        left -= taken;
    }
    return tw_ratio(in_busy, n_events);
}

static void count_events(uint32_t *count, const struct tw_wakeups *run) {
    memset(count, 0, run->n_steps * sizeof *count);
    for (size_t h = 0; h < run->n; h++)
        for (size_t i = 0; i < run->heads[h].n_events; i++) count[run->heads[h].event[i]]++;
}

static double trigger_recall(const struct counted_step *busy, size_t n_busy, const uint32_t *count, size_t n_steps,
                             size_t n_events, uint8_t *near) {
    memset(near, 0, n_steps);
    for (size_t i = 0; i < n_busy; i++) {
        const size_t from = busy[i].step < TW_TRIGGER_AROUND ? 0 : busy[i].step - TW_TRIGGER_AROUND;
        const size_t to = tw_min_size(n_steps, (size_t)busy[i].step + TW_TRIGGER_AROUND + 1);
        memset(near + from, 1, to - from);
    }
    size_t caught = 0;
    for (size_t t = 0; t < n_steps; t++)
        if (near[t]) caught += count[t];
    return tw_ratio(caught, n_events);
}

static double fano_of(const uint32_t *count, size_t n_steps, size_t n_events) {
    const double mean = (double)n_events / (double)n_steps;
    double variance = 0;
    for (size_t t = 0; t < n_steps; t++) variance += ((double)count[t] - mean) * ((double)count[t] - mean);
    return variance / (double)n_steps / mean;
}

/* n_events distinct steps of n_steps for each head (Floyd's sampling), added to count. taken [n_steps] is all 0 and
 * left so. */
static void shuffle(uint32_t *count, uint8_t *taken, uint32_t *chosen, const struct tw_wakeups *run,
                    struct tw_random *random) {
    memset(count, 0, run->n_steps * sizeof *count);
    for (size_t h = 0; h < run->n; h++) {
        const size_t n = run->heads[h].n_events;
        for (size_t i = 0; i < n; i++) {
            const size_t highest = run->n_steps - n + i;
            size_t step = tw_random_below(random, highest + 1);
            if (taken[step]) step = highest;
            taken[step] = 1;
            chosen[i] = (uint32_t)step;
            count[step]++;
        }
        for (size_t i = 0; i < n; i++) taken[chosen[i]] = 0;
    }
}

/* concentration [TW_SHUFFLES] of one run's shuffles. */
static tw_status shuffle_run(double *concentration, const struct tw_wakeups *run, size_t n_busy, uint64_t seed,
                             size_t number, struct tw_error *err) {
    tw_status status = TW_OK;
#pragma omp parallel
    {
        uint32_t *const count = malloc((run->n_steps + 1) * sizeof *count);
        uint32_t *const chosen = malloc((run->n_steps + 1) * sizeof *chosen);
        uint8_t *const taken = calloc(run->n_steps + 1, 1);
        size_t *const of_count = malloc((run->n + 1) * sizeof *of_count);
        const bool ok = count && chosen && taken && of_count;
#pragma omp for schedule(static)
        for (size_t i = 0; i < TW_SHUFFLES; i++) {
            if (!ok) {
#pragma omp critical(tw_clustering)
                status = TW_E_MEMORY;
                continue;
            }
            struct tw_random random;
            tw_random_init(&random, seed, number * TW_SHUFFLES + i);
            shuffle(count, taken, chosen, run, &random);
            concentration[i] = concentration_of_counts(of_count, count, run->n_steps, run->n, n_busy, run->n_events);
        }
        free(count);
        free(chosen);
        free(taken);
        free(of_count);
    }
    return status == TW_OK ? TW_OK : TW_FAIL(err, status, "out of memory for shuffling %zu steps", run->n_steps);
}

static double z_of(double value, double mean, double deviation) {
    return deviation > TW_ABOVE_BY ? (value - mean) / deviation : NAN;
}

static double busiest_share(const struct tw_wakeups *const *runs, size_t n_runs) {
    double least = INFINITY;
    for (size_t r = 0; r < n_runs; r++)
        if (runs[r]->n_events) least = fmin(least, ((double)runs[r]->n_events - 0.5) / (double)runs[r]->n_steps);
    return isfinite(least) ? fmin(0.1, fmax(1e-4, 0.8 * least)) : NAN;
}

/* sums [TW_SHUFFLES]: this run's shuffled concentrations are added. */
static tw_status measure_run(struct tw_cluster_run *out, double *sums, const struct tw_wakeups *run, double share,
                             uint64_t seed, struct tw_error *err) {
    const size_t n_steps = run->n_steps;
    uint32_t *const count = malloc((n_steps + 1) * sizeof *count);
    struct counted_step *const ranked = malloc((n_steps + 1) * sizeof *ranked);
    uint8_t *const near = malloc(n_steps + 1);
    double shuffled[TW_SHUFFLES];
    tw_status status = TW_OK;
    if (!count || !ranked || !near) {
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory for the clustering of %zu steps", n_steps);
        goto done;
    }
    count_events(count, run);
    out->steps = n_steps;
    out->events = run->n_events;
    out->busy_steps = tw_max_size(1, (size_t)nearbyint(share * (double)n_steps)); /* halves to even */
    out->concentration = concentration_of(ranked, count, n_steps, out->busy_steps, run->n_events);
    out->fano = fano_of(count, n_steps, run->n_events);
    out->most_together = ranked[0].count;
    out->trigger_recall = trigger_recall(ranked, out->busy_steps, count, n_steps, run->n_events, near);
    TW_TRY_GOTO(status, done, shuffle_run(shuffled, run, out->busy_steps, seed, out->run, err));
    out->shuffled_mean = tw_mean(shuffled, TW_SHUFFLES);
    out->shuffled_deviation = tw_deviation(shuffled, TW_SHUFFLES);
    out->z = z_of(out->concentration, out->shuffled_mean, out->shuffled_deviation);
    for (size_t i = 0; i < TW_SHUFFLES; i++) sums[i] += shuffled[i];
done:
    free(count);
    free(ranked);
    free(near);
    return status;
}

tw_status tw_clustering_measure(struct tw_clustering *clustering, const struct tw_wakeups *const *runs, size_t n_runs,
                                uint64_t seed, struct tw_error *err) {
    *clustering = (struct tw_clustering){.share = busiest_share(runs, n_runs),
                                         .mean_concentration = NAN,
                                         .mean_trigger_recall = NAN,
                                         .shuffled_mean = NAN,
                                         .shuffled_deviation = NAN,
                                         .z = NAN,
                                         .seed = seed};
    clustering->runs = calloc(n_runs + 1, sizeof *clustering->runs);
    if (!clustering->runs) return TW_FAIL(err, TW_E_MEMORY, "out of memory for the clustering of %zu runs", n_runs);
    double sums[TW_SHUFFLES] = {0}, concentration = 0, recall = 0;
    for (size_t r = 0; r < n_runs; r++) {
        if (!runs[r]->n_events) continue;
        struct tw_cluster_run *const run = &clustering->runs[clustering->n_runs++];
        run->run = r;
        const tw_status status = measure_run(run, sums, runs[r], clustering->share, seed, err);
        if (status != TW_OK) {
            tw_clustering_release(clustering);
            return status;
        }
        concentration += run->concentration;
        recall += run->trigger_recall;
    }
    if (!clustering->n_runs) return TW_OK;
    const double n = (double)clustering->n_runs;
    for (size_t i = 0; i < TW_SHUFFLES; i++) sums[i] /= n;
    clustering->mean_concentration = concentration / n;
    clustering->mean_trigger_recall = recall / n;
    clustering->shuffled_mean = tw_mean(sums, TW_SHUFFLES);
    clustering->shuffled_deviation = tw_deviation(sums, TW_SHUFFLES);
    clustering->z = z_of(clustering->mean_concentration, clustering->shuffled_mean, clustering->shuffled_deviation);
    return TW_OK;
}

void tw_clustering_release(struct tw_clustering *clustering) {
    free(clustering->runs);
    *clustering = (struct tw_clustering){0};
}
