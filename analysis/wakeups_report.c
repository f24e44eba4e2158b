#include "analysis/wakeups_report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "analysis/stats.h"

static void measure_transfer(struct tw_wake_report *report, const struct tw_transfer *transfer) {
    report->pages = report->page_bytes = report->transfer_seconds = report->transfer_steps = NAN;
    if (!(transfer->bytes_per_second > 0)) return;
    const struct tw_wakeups *const first = report->runs[0];
    double pages = 0;
    for (size_t r = 0; r < report->n_runs; r++)
        if (report->runs[r]->n_events) pages += report->runs[r]->pages_at_event * (double)report->runs[r]->n_events;
    report->pages = transfer->pages > 0 ? transfer->pages : report->n_events ? pages / (double)report->n_events : NAN;
    report->page_bytes = transfer->page_bytes > 0 ? transfer->page_bytes
                         : first->head_dim        ? (double)first->page_size * (double)first->head_dim * 2 * 2
                                                  : NAN;
    report->transfer_seconds = report->pages * report->page_bytes / transfer->bytes_per_second;
    report->transfer_steps =
        tw_transfer_steps(report->pages, report->page_bytes, transfer->bytes_per_second, transfer->step_seconds);
}

tw_status tw_wake_report_measure(struct tw_wake_report *report, const struct tw_wakeups *const *runs, size_t n_runs,
                                 bool pooled, uint64_t seed, const struct tw_transfer *transfer, struct tw_error *err) {
    *report = (struct tw_wake_report){.runs = runs, .n_runs = n_runs, .pooled = pooled, .has_needle = true};
    for (size_t r = 0; r < n_runs; r++) {
        report->has_needle = report->has_needle && runs[r]->has_needle;
        report->n_events += runs[r]->n_events;
        report->n_heads_with_event += runs[r]->n_heads_with_event;
    }
    measure_transfer(report, transfer);
    if (!report->has_needle) return TW_OK;
    tw_status status = tw_grade_runs(report->grades, &report->n_grades, runs, n_runs, err);
    if (status == TW_OK) status = tw_markers_find(&report->markers, runs, n_runs, err);
    if (status == TW_OK) status = tw_clustering_measure(&report->clustering, runs, n_runs, seed, err);
    if (status != TW_OK) tw_wake_report_release(report);
    return status;
}

void tw_wake_report_release(struct tw_wake_report *report) {
    tw_markers_release(&report->markers);
    tw_clustering_release(&report->clustering);
    *report = (struct tw_wake_report){0};
}

tw_status tw_wake_reports_measure(struct tw_wake_report *reports, size_t *n_reports, const struct tw_wakeups **members,
                                  const struct tw_wakeups *runs, size_t n, bool pooled, uint64_t seed,
                                  const struct tw_transfer *transfer, struct tw_error *err) {
    size_t *const group = malloc((n + 1) * sizeof *group);
    *n_reports = 0;
    if (!group) return TW_FAIL(err, TW_E_MEMORY, "out of memory for the wake-ups of %zu traces", n);
    size_t n_groups = n;
    for (size_t i = 0; i < n; i++) group[i] = i;
    if (pooled && n) n_groups = tw_trace_names_group(group, &runs[0].name, sizeof *runs, n);
    tw_status status = TW_OK;
    for (size_t g = 0; g < n_groups && status == TW_OK; g++) {
        size_t n_members = 0;
        for (size_t i = 0; i < n; i++)
            if (group[i] == g) members[n_members++] = &runs[i];
        status = tw_wake_report_measure(&reports[*n_reports], members, n_members, pooled, seed, transfer, err);
        ++*n_reports;
        members += n_members;
    }
    free(group);
    return status;
}

const struct tw_grade *tw_wake_report_best_zscore(const struct tw_wake_report *report) {
    const struct tw_grade *best = NULL;
    for (size_t i = 0; i < report->n_grades; i++) {
        const struct tw_grade *const g = &report->grades[i];
        if (g->grading != TW_GRADING_ZSCORE || isnan(g->f1)) continue;
        if (!best || g->f1 > best->f1) best = g;
    }
    return best;
}

static struct tw_grade marker_grade(const struct tw_wake_report *report, size_t grading, size_t k) {
    struct tw_grade grade = {.threshold = report->markers.z_bar, .run = SIZE_MAX, .head = SIZE_MAX};
    tw_grade_from_alarms(&grade, &report->markers.graded[grading], k);
    return grade;
}

static void put_names(struct tw_table *table, const struct tw_wake_report *report, bool brief) {
    const struct tw_wakeups *const first = report->runs[0];
    if (!report->pooled) tw_table_put_text(table, first->name.trace);
    if (report->pooled || !brief) {
        tw_table_put_text(table, first->name.model);
        tw_table_put_text(table, first->name.task);
    }
    if (report->pooled)
        tw_table_put_uint(table, report->n_runs);
    else if (!brief)
        tw_table_put_text(table, first->name.run);
}

static void init_table(struct tw_table *table, bool pooled, bool brief, const char *const *columns, size_t n) {
    static const char *const of_pool[] = {"model", "task", "runs"}, *const of_trace[] = {"trace", "model", "task",
                                                                                         "run"};
    if (pooled)
        tw_table_init(table, of_pool, 3);
    else
        tw_table_init(table, of_trace, brief ? 1 : 4);
    for (size_t i = 0; i < n; i++) tw_table_add_column(table, columns[i]);
}

static void put_size(struct tw_table *table, bool defined, size_t value) {
    if (defined)
        tw_table_put_uint(table, value);
    else
        tw_table_put_empty(table);
}

/* Signal, lead, precision, recall and F1 of the best z-scored signal. */
static void put_zscore(struct tw_table *table, const struct tw_grade *best) {
    if (best)
        tw_table_put_text(table, tw_signal_names[best->signal]);
    else
        tw_table_put_empty(table);
    put_size(table, best, best ? best->lead : 0);
    tw_table_put_double(table, best ? best->precision : NAN);
    tw_table_put_double(table, best ? best->recall : NAN);
    tw_table_put_double(table, best ? best->f1 : NAN);
}

static void put_markers(struct tw_table *table, const struct tw_wake_report *report, bool brief) {
    struct tw_grade best = {.f1 = NAN, .precision = NAN, .recall = NAN};
    for (size_t k = 0; report->has_needle && k < TW_N_LEADS; k++) {
        const struct tw_grade grade = marker_grade(report, TW_MARKERS_SECOND_HALF, k);
        if (!isnan(grade.f1) && !(best.f1 >= grade.f1)) best = grade;
    }
    if (!brief) put_size(table, report->has_needle, report->markers.n_tested);
    put_size(table, report->has_needle, report->markers.n_found);
    if (!brief) {
        put_size(table, !isnan(best.f1), best.lead);
        tw_table_put_double(table, best.precision);
        tw_table_put_double(table, best.recall);
    }
    tw_table_put_double(table, best.f1);
}

void tw_wake_summary_table(struct tw_table *table, const struct tw_wake_report *reports, size_t n, bool brief) {
    static const char *const columns[] = {"page_size",        "steps",
                                          "layers",           "heads",
                                          "events",           "heads_with_event",
                                          "zscore_signal",    "zscore_lead",
                                          "zscore_precision", "zscore_recall",
                                          "zscore_f1",        "tokens_tested",
                                          "tokens_found",     "tokens_lead",
                                          "tokens_precision", "tokens_recall",
                                          "tokens_f1",        "busy_share",
                                          "concentration",    "shuffled_concentration",
                                          "concentration_z",  "trigger_recall",
                                          "pages_at_event",   "transfer_steps"};
    static const char *const brief_columns[] = {
        "steps",          "events",        "heads_with_event", "zscore_signal", "zscore_lead",   "zscore_precision",
        "zscore_recall",  "zscore_f1",     "tokens_found",     "tokens_f1",     "concentration", "concentration_z",
        "trigger_recall", "transfer_steps"};
    const bool pooled = n && reports[0].pooled;
    bool transfer = !brief; /* people see it where it was asked for */
    for (size_t i = 0; i < n; i++) transfer = transfer || !isnan(reports[i].transfer_steps);
    if (brief)
        init_table(table, pooled, true, brief_columns, sizeof brief_columns / sizeof *brief_columns - !transfer);
    else
        init_table(table, pooled, false, columns, sizeof columns / sizeof *columns);
    for (size_t i = 0; i < n; i++) {
        const struct tw_wake_report *const r = &reports[i];
        const bool has = r->has_needle;
        size_t steps = 0;
        for (size_t j = 0; j < r->n_runs; j++) steps += r->runs[j]->n_steps;
        tw_table_begin_row(table);
        put_names(table, r, brief);
        if (!brief) tw_table_put_uint(table, r->runs[0]->page_size);
        tw_table_put_uint(table, steps);
        if (!brief) {
            tw_table_put_uint(table, r->runs[0]->n_layers);
            tw_table_put_uint(table, r->runs[0]->n_heads);
        }
        put_size(table, has, r->n_events);
        put_size(table, has, r->n_heads_with_event);
        put_zscore(table, tw_wake_report_best_zscore(r));
        put_markers(table, r, brief);
        if (!brief) tw_table_put_double(table, has ? r->clustering.share : NAN);
        tw_table_put_double(table, has ? r->clustering.mean_concentration : NAN);
        if (!brief) tw_table_put_double(table, has ? r->clustering.shuffled_mean : NAN);
        tw_table_put_double(table, has ? r->clustering.z : NAN);
        tw_table_put_double(table, has ? r->clustering.mean_trigger_recall : NAN);
        if (!brief) {
            const bool one = r->n_runs == 1;
            tw_table_put_double(table, one ? r->runs[0]->pages_at_event : r->pages);
        }
        if (transfer) tw_table_put_double(table, r->transfer_steps);
    }
}

static void put_grade(struct tw_table *table, const struct tw_wake_report *report, const char *signal,
                      const char *grading, const struct tw_grade *g) {
    tw_table_begin_row(table);
    put_names(table, report, false);
    tw_table_put_text(table, signal);
    tw_table_put_text(table, grading);
    tw_table_put_uint(table, g->lead);
    tw_table_put_double(table, g->threshold);
    tw_table_put_uint(table, g->events);
    tw_table_put_uint(table, g->alarms);
    tw_table_put_uint(table, g->caught);
    tw_table_put_uint(table, g->true_alarms);
    tw_table_put_double(table, g->precision);
    tw_table_put_double(table, g->recall);
    tw_table_put_double(table, g->f1);
    if (g->run == SIZE_MAX)
        tw_table_put_empty(table);
    else
        tw_table_put_text(table, report->runs[g->run]->name.trace);
    put_size(table, g->head != SIZE_MAX, g->head);
}

void tw_wake_grading_table(struct tw_table *table, const struct tw_wake_report *reports, size_t n) {
    static const char *const columns[] = {"signal", "grading",  "lead",        "threshold", "events",
                                          "alarms", "caught",   "true_alarms", "precision", "recall",
                                          "f1",     "best_run", "best_head"};
    init_table(table, n && reports[0].pooled, false, columns, sizeof columns / sizeof *columns);
    for (size_t i = 0; i < n; i++) {
        for (size_t g = 0; g < reports[i].n_grades; g++)
            put_grade(table, &reports[i], tw_signal_names[reports[i].grades[g].signal],
                      tw_grading_names[reports[i].grades[g].grading], &reports[i].grades[g]);
        for (size_t m = 0; reports[i].n_grades && m < TW_N_MARKER_GRADINGS; m++)
            for (size_t k = 0; k < TW_N_LEADS; k++) {
                const struct tw_grade grade = marker_grade(&reports[i], m, k);
                put_grade(table, &reports[i], "tokens", tw_marker_grading_names[m], &grade);
            }
    }
}

void tw_wake_events_table(struct tw_table *table, const struct tw_wake_report *reports, size_t n) {
    static const char *const columns[] = {"trace", "layer", "head", "step", "token_id"};
    tw_table_init(table, columns, sizeof columns / sizeof *columns);
    for (size_t i = 0; i < n; i++)
        for (size_t r = 0; r < reports[i].n_runs; r++) {
            const struct tw_wakeups *const run = reports[i].runs[r];
            for (size_t h = 0; h < run->n; h++)
                for (size_t e = 0; e < run->heads[h].n_events; e++) {
                    tw_table_begin_row(table);
                    tw_table_put_text(table, run->name.trace);
                    tw_table_put_uint(table, run->heads[h].head / run->n_heads);
                    tw_table_put_uint(table, run->heads[h].head % run->n_heads);
                    tw_table_put_uint(table, run->heads[h].event[e]);
                    tw_table_put_int(table, run->token_id[run->heads[h].event[e]]);
                }
        }
}

/* ---- JSON ---- */

static void json_counts(struct tw_json *json, const struct tw_grade *g) {
    tw_json_uint(json, "events", g->events);
    tw_json_uint(json, "alarms", g->alarms);
    tw_json_uint(json, "caught", g->caught);
    tw_json_uint(json, "true_alarms", g->true_alarms);
    tw_json_double(json, "precision", g->precision);
    tw_json_double(json, "recall", g->recall);
    tw_json_double(json, "f1", g->f1);
}

static void json_wake(struct tw_json *json, const struct tw_wakeups *run) {
    tw_json_begin_object(json, "wake");
    tw_json_uint(json, "count", run->n_events);
    tw_json_uint(json, "heads", run->n_heads_with_event);
    tw_json_begin_array(json, "events");
    for (size_t h = 0; h < run->n; h++)
        for (size_t i = 0; i < run->heads[h].n_events; i++) {
            tw_json_begin_array(json, NULL);
            tw_json_uint(json, NULL, run->heads[h].head);
            tw_json_uint(json, NULL, run->heads[h].event[i]);
            tw_json_end_array(json);
        }
    tw_json_end_array(json);
    tw_json_end_object(json);
}

static void json_tokens(struct tw_json *json, const struct tw_wake_report *report) {
    const struct tw_markers *const m = &report->markers;
    tw_json_begin_object(json, "tokens");
    tw_json_uint(json, "steps", m->steps);
    tw_json_uint(json, "steps_before_event", m->steps_before_event);
    tw_json_begin_array(json, "tested");
    for (size_t i = 0; i < m->n_tested; i++) {
        tw_json_begin_object(json, NULL);
        tw_json_int(json, "token", m->tested[i].token);
        tw_json_uint(json, "count", m->tested[i].count);
        tw_json_uint(json, "hits", m->tested[i].hits);
        tw_json_double(json, "z", m->tested[i].z);
        tw_json_bool(json, "lift_above_1", m->tested[i].more_often);
        tw_json_end_object(json);
    }
    tw_json_end_array(json);
    tw_json_double(json, "z_bar", m->z_bar);
    tw_json_begin_array(json, "found");
    for (size_t i = 0; i < m->n_tested; i++)
        if (m->tested[i].found) tw_json_int(json, NULL, m->tested[i].token);
    tw_json_end_array(json);
    tw_json_begin_object(json, "graded");
    for (size_t g = 0; g < TW_N_MARKER_GRADINGS; g++) {
        tw_json_begin_array(json, tw_marker_grading_names[g]);
        for (size_t k = 0; k < TW_N_LEADS; k++) {
            const struct tw_grade grade = marker_grade(report, g, k);
            tw_json_begin_object(json, NULL);
            tw_json_uint(json, "lead", grade.lead);
            json_counts(json, &grade);
            tw_json_end_object(json);
        }
        tw_json_end_array(json);
    }
    tw_json_end_object(json);
    tw_json_end_object(json);
}

static void json_grading(struct tw_json *json, const struct tw_wake_report *report) {
    tw_json_begin_array(json, "grading");
    for (size_t i = 0; i < report->n_grades; i++) {
        const struct tw_grade *const g = &report->grades[i];
        tw_json_begin_object(json, NULL);
        tw_json_text(json, "signal", tw_view_of(tw_signal_names[g->signal]));
        tw_json_text(json, "grading", tw_view_of(tw_grading_names[g->grading]));
        tw_json_uint(json, "lead", g->lead);
        tw_json_double(json, "threshold", g->threshold);
        json_counts(json, g);
        if (g->run == SIZE_MAX) {
            tw_json_null(json, "run");
            tw_json_null(json, "head");
        } else {
            tw_json_text(json, "run", tw_view_of(report->runs[g->run]->name.trace));
            tw_json_uint(json, "head", g->head);
        }
        tw_json_end_object(json);
    }
    tw_json_end_array(json);
}

static void json_clustering(struct tw_json *json, const struct tw_wake_report *report) {
    const struct tw_clustering *const c = &report->clustering;
    tw_json_begin_object(json, "clustering");
    tw_json_double(json, "share", c->share);
    tw_json_begin_array(json, "runs");
    for (size_t i = 0; i < c->n_runs; i++) {
        const struct tw_cluster_run *const r = &c->runs[i];
        tw_json_begin_object(json, NULL);
        tw_json_text(json, "run", tw_view_of(report->runs[r->run]->name.trace));
        tw_json_uint(json, "steps", r->steps);
        tw_json_uint(json, "events", r->events);
        tw_json_uint(json, "busy_steps", r->busy_steps);
        tw_json_double(json, "concentration", r->concentration);
        tw_json_double(json, "fano", r->fano);
        tw_json_uint(json, "most_together", r->most_together);
        tw_json_double(json, "trigger_recall", r->trigger_recall);
        tw_json_double(json, "shuffled_mean", r->shuffled_mean);
        tw_json_double(json, "shuffled_deviation", r->shuffled_deviation);
        tw_json_double(json, "z", r->z);
        tw_json_end_object(json);
    }
    tw_json_end_array(json);
    tw_json_double(json, "mean_concentration", c->mean_concentration);
    tw_json_double(json, "mean_trigger_recall", c->mean_trigger_recall);
    tw_json_uint(json, "shuffles", TW_SHUFFLES);
    tw_json_uint(json, "seed", c->seed);
    tw_json_double(json, "shuffled_mean", c->shuffled_mean);
    tw_json_double(json, "shuffled_deviation", c->shuffled_deviation);
    tw_json_double(json, "z", c->z);
    tw_json_end_object(json);
}

static void json_doubles(struct tw_json *json, const char *name, const double *values, size_t n) {
    tw_json_begin_array(json, name);
    for (size_t i = 0; i < n; i++) tw_json_double(json, NULL, values[i]);
    tw_json_end_array(json);
}

static void json_series(struct tw_json *json, const struct tw_wakeups *run) {
    bool any = false;
    for (size_t h = 0; h < run->n; h++) any = any || run->heads[h].asked;
    if (!any) return;
    tw_json_begin_array(json, "series");
    for (size_t h = 0; h < run->n; h++) {
        const struct tw_wake_head *const head = &run->heads[h];
        if (!head->asked) continue;
        tw_json_begin_object(json, NULL);
        tw_json_uint(json, "head", head->head);
        tw_json_begin_object(json, "signals");
        for (size_t s = 0; s < TW_N_PLAIN_SIGNALS; s++)
            json_doubles(json, tw_signal_names[s], head->value[s], run->n_steps);
        tw_json_end_object(json);
        tw_json_begin_object(json, "z");
        for (size_t s = 0; s < TW_N_PLAIN_SIGNALS; s++)
            json_doubles(json, tw_signal_names[s], head->z[s], run->n_steps);
        tw_json_end_object(json);
        json_doubles(json, "ensemble", head->value[TW_SIGNAL_ENSEMBLE], run->n_steps);
        tw_json_end_object(json);
    }
    tw_json_end_array(json);
}

void tw_wake_report_json(struct tw_json *json, const struct tw_wake_report *report) {
    const struct tw_wakeups *const first = report->runs[0];
    if (!report->pooled) tw_json_text(json, "trace", tw_view_of(first->name.trace));
    tw_json_text(json, "model", tw_view_of(first->name.model));
    tw_json_text(json, "task", tw_view_of(first->name.task));
    if (!report->pooled) {
        tw_json_text(json, "run", tw_view_of(first->name.run));
        tw_json_uint(json, "steps", first->n_steps);
        tw_json_uint(json, "layers", first->n_layers);
        tw_json_uint(json, "heads", first->n_heads);
    }
    tw_json_uint(json, "page_size", first->page_size);
    if (report->pooled) {
        tw_json_begin_array(json, "runs");
        for (size_t r = 0; r < report->n_runs; r++) tw_json_text(json, NULL, tw_view_of(report->runs[r]->name.trace));
        tw_json_end_array(json);
    }
    if (!report->has_needle) return;
    if (report->pooled)
        tw_json_uint(json, "wakes", report->n_events);
    else
        json_wake(json, first);
    json_tokens(json, report);
    if (report->n_grades) {
        json_grading(json, report);
        json_clustering(json, report);
    }
    if (!isnan(report->page_bytes)) {
        tw_json_begin_object(json, "transfer");
        tw_json_double(json, "pages", report->pages);
        tw_json_double(json, "page_bytes", report->page_bytes);
        tw_json_double(json, "seconds", report->transfer_seconds);
        tw_json_double(json, "steps", report->transfer_steps);
        tw_json_end_object(json);
    }
    if (!report->pooled) json_series(json, first);
}
