#include "analysis/grading.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/stats.h"

const size_t tw_leads[TW_N_LEADS] = {1, 2, 4, 8, 16, 32};
const char *const tw_grading_names[TW_N_GRADINGS] = {"best", "pooled", "zscore"};

static const double best_quantiles[] = {0.80, 0.90, 0.95, 0.99};
enum { N_BEST_QUANTILES = sizeof best_quantiles / sizeof *best_quantiles };
static const double pooled_quantile = 0.9;

void tw_alarms_add(struct tw_alarms *alarms, const uint8_t *alarm, size_t n_steps, const uint32_t *event,
                   size_t n_events) {
    size_t next = 0, last_alarm = SIZE_MAX;
    alarms->events += n_events;
    for (size_t t = 0; t < n_steps; t++) {
        if (next < n_events && event[next] == t) { /* before this step's own alarm, which comes too late */
            for (size_t k = 0; k < TW_N_LEADS; k++)
                alarms->caught[k] += last_alarm != SIZE_MAX && t - last_alarm <= tw_leads[k];
            next++;
        }
        if (!alarm[t]) continue;
        alarms->alarms++;
        last_alarm = t;
        for (size_t k = 0; k < TW_N_LEADS; k++)
            alarms->true_alarms[k] += next < n_events && event[next] - t <= tw_leads[k];
    }
}

void tw_grade_from_alarms(struct tw_grade *grade, const struct tw_alarms *alarms, size_t k) {
    grade->lead = tw_leads[k];
    grade->events = alarms->events;
    grade->alarms = alarms->alarms;
    grade->caught = alarms->caught[k];
    grade->true_alarms = alarms->true_alarms[k];
    grade->precision = tw_ratio(grade->true_alarms, grade->alarms);
    grade->recall = tw_ratio(grade->caught, grade->events);
    grade->f1 = tw_f1(grade->precision, grade->recall);
}

static struct tw_grade *place_of(struct tw_grade *grades, size_t signal, size_t lead, size_t grading) {
    return &grades[(signal * TW_N_LEADS + lead) * TW_N_GRADINGS + grading];
}

static void raise_alarms(uint8_t *alarm, const double *value, size_t n_steps, double threshold) {
    for (size_t t = 0; t < n_steps; t++) alarm[t] = tw_above(value[t], threshold);
}

/* Scratch: alarm and sorted hold the longest run. */
static void grade_best(struct tw_grade *grades, size_t signal, const struct tw_wakeups *const *runs, size_t n_runs,
                       uint8_t *alarm, double *sorted) {
    bool found = false;
    for (size_t r = 0; r < n_runs; r++)
        for (size_t h = 0; h < runs[r]->n; h++) {
            const struct tw_wake_head *const head = &runs[r]->heads[h];
            const size_t n_steps = runs[r]->n_steps;
            if (!head->n_events) continue;
            memcpy(sorted, head->value[signal], n_steps * sizeof *sorted);
            tw_sort_doubles(sorted, n_steps);
            double last = NAN;
            for (size_t q = 0; q < N_BEST_QUANTILES; q++) {
                const double threshold = tw_quantile_sorted(sorted, n_steps, best_quantiles[q]);
                if (threshold == last) continue;
                last = threshold;
                struct tw_alarms counts = {0};
                raise_alarms(alarm, head->value[signal], n_steps, threshold);
                tw_alarms_add(&counts, alarm, n_steps, head->event, head->n_events);
                for (size_t k = 0; k < TW_N_LEADS; k++) {
                    struct tw_grade candidate = {.signal = (enum tw_signal)signal,
                                                 .grading = TW_GRADING_BEST,
                                                 .threshold = threshold,
                                                 .run = r,
                                                 .head = head->head};
                    tw_grade_from_alarms(&candidate, &counts, k);
                    struct tw_grade *const best = place_of(grades, signal, k, TW_GRADING_BEST);
                    const double precision = isnan(candidate.precision) ? 0 : candidate.precision;
                    if (!found || precision > (isnan(best->precision) ? 0 : best->precision)) *best = candidate;
                }
                found = true;
            }
        }
}

static void grade_pooled(struct tw_grade *grades, size_t signal, const struct tw_wakeups *const *runs, size_t n_runs,
                         uint8_t *alarm, double *pool) {
    size_t n = 0;
    for (size_t r = 0; r < n_runs; r++)
        for (size_t h = 0; h < runs[r]->n; h++) {
            if (!runs[r]->heads[h].n_events) continue;
            memcpy(pool + n, runs[r]->heads[h].value[signal], runs[r]->n_steps * sizeof *pool);
            n += runs[r]->n_steps;
        }
    tw_sort_doubles(pool, n);
    const double threshold = tw_quantile_sorted(pool, n, pooled_quantile);
    struct tw_alarms pooled = {0}, zscore = {0};
    for (size_t r = 0; r < n_runs; r++)
        for (size_t h = 0; h < runs[r]->n; h++) {
            const struct tw_wake_head *const head = &runs[r]->heads[h];
            if (!head->n_events) continue;
            raise_alarms(alarm, head->value[signal], runs[r]->n_steps, threshold);
            tw_alarms_add(&pooled, alarm, runs[r]->n_steps, head->event, head->n_events);
            tw_alarms_add(&zscore, head->fires[signal], runs[r]->n_steps, head->event, head->n_events);
        }
    for (size_t k = 0; k < TW_N_LEADS; k++) {
        struct tw_grade *const p = place_of(grades, signal, k, TW_GRADING_POOLED);
        struct tw_grade *const z = place_of(grades, signal, k, TW_GRADING_ZSCORE);
        *p = (struct tw_grade){.signal = (enum tw_signal)signal,
                               .grading = TW_GRADING_POOLED,
                               .threshold = threshold,
                               .run = SIZE_MAX,
                               .head = SIZE_MAX};
        *z = *p;
        z->grading = TW_GRADING_ZSCORE;
        z->threshold = signal == TW_SIGNAL_ENSEMBLE ? TW_ENSEMBLE_ABOVE : TW_Z_ABOVE;
        tw_grade_from_alarms(p, &pooled, k);
        tw_grade_from_alarms(z, &zscore, k);
    }
}

tw_status tw_grade_runs(struct tw_grade *grades, size_t *n, const struct tw_wakeups *const *runs, size_t n_runs,
                        struct tw_error *err) {
    size_t n_values = 0, longest = 0;
    for (size_t r = 0; r < n_runs; r++) {
        if (runs[r]->n_events) n_values += runs[r]->n_heads_with_event * runs[r]->n_steps;
        if (runs[r]->n_steps > longest) longest = runs[r]->n_steps;
    }
    *n = 0;
    if (!n_values) return TW_OK;
    tw_status status = TW_OK;
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t signal = 0; signal < TW_N_SIGNALS; signal++) {
        uint8_t *const alarm = malloc(longest);
        double *const values = malloc((n_values > longest ? n_values : longest) * sizeof *values);
        if (alarm && values) {
            grade_best(grades, signal, runs, n_runs, alarm, values);
            grade_pooled(grades, signal, runs, n_runs, alarm, values);
        } else {
#pragma omp critical(tw_grading)
            status = TW_E_MEMORY;
        }
        free(alarm);
        free(values);
    }
    if (status != TW_OK) return TW_FAIL(err, status, "out of memory for grading %zu values of a signal", n_values);
    *n = TW_N_GRADES;
    return TW_OK;
}
