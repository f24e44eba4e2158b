/*
 * Precision and recall of the signals that might foretell wake-ups, by lead: a curve a signal, a point a lead (1 to 32
 * steps, the lead growing along the curve). One panel for each grading; token markers stand in the last. Runs of one
 * model and task are pooled; several such are refused, since a figure of one is full already.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/grading.h"
#include "analysis/markers.h"
#include "analysis/plot.h"
#include "analysis/plot_table.h"

static const char *const signal_titles[TW_N_SIGNALS] = {"page sets change", "drift from step 0", "entropy rises",
                                                        "needle score rises", "ensemble of four"};
static const char *const grading_titles[TW_N_GRADINGS] = {"best threshold of the best head",
                                                          "one threshold for all heads", "causal z-score above 2"};

static size_t write_block(struct tw_figure *figure, const struct tw_grade *const points[TW_N_LEADS], size_t *block) {
    size_t n = 0;
    *block = tw_figure_begin_block(figure);
    for (size_t k = 0; k < TW_N_LEADS; k++) {
        if (isnan(points[k]->precision) || isnan(points[k]->recall)) continue;
        tw_figure_number(figure, points[k]->recall);
        tw_figure_number(figure, points[k]->precision);
        tw_text_printf(&figure->data, "%zu\n", points[k]->lead);
        n++;
    }
    if (!n) tw_text_append(&figure->data, TW_VIEW("NaN NaN 0\n"));
    tw_figure_end_block(figure);
    return n;
}

/* The lead stands at both ends of a curve. Best thresholds come from another head at every lead, so that a line between
 * them would mean nothing: those are points, each with its lead. */
static void add_curve(struct tw_figure *figure, size_t block, size_t look, bool line, bool *first) {
    tw_text_printf(&figure->script, "%s $d%zu using 1:2 with %s", *first ? "" : ", \\\n ", block,
                   line ? "linespoints" : "points");
    tw_figure_look(&figure->script, look);
    tw_text_printf(
        &figure->script,
        " linewidth 1.4 pointsize 0.9*mark notitle, \\\n  $d%zu using 1:2:(%s?sprintf('%%d',$3):'') with labels font "
        "small offset 0.9,0.5 textcolor rgb '%s' notitle",
        block, line ? "$1>0&&($3==1||$3==32)" : "$1>0", tw_figure_colour(look));
    *first = false;
}

static void draw_grading(struct tw_figure *figure, const struct tw_grade *grades, const struct tw_markers *markers,
                         size_t grading) {
    bool first = true;
    tw_text_append(&figure->script,
                   TW_VIEW("set xlabel 'recall (events foretold / events)'\n"
                           "set ylabel 'precision (true alarms / alarms)'\n"
                           "set xrange [0:1.06]\nset yrange [0:1.06]\nset xtics 0.2\nset ytics 0.2\nplot"));
    for (size_t s = 0; s < TW_N_SIGNALS; s++) {
        const struct tw_grade *points[TW_N_LEADS];
        size_t block;
        for (size_t k = 0; k < TW_N_LEADS; k++) points[k] = &grades[(s * TW_N_LEADS + k) * TW_N_GRADINGS + grading];
        if (write_block(figure, points, &block)) add_curve(figure, block, s, grading != TW_GRADING_BEST, &first);
    }
    if (grading == TW_GRADING_ZSCORE && markers->n_found) {
        struct tw_grade own[TW_N_LEADS] = {0};
        const struct tw_grade *points[TW_N_LEADS];
        size_t block;
        for (size_t k = 0; k < TW_N_LEADS; k++) {
            tw_grade_from_alarms(&own[k], &markers->graded[TW_MARKERS_SECOND_HALF], k);
            points[k] = &own[k];
        }
        if (write_block(figure, points, &block)) add_curve(figure, block, TW_N_SIGNALS + 1, true, &first);
    }
    if (first) tw_text_append(&figure->script, TW_VIEW(" NaN notitle"));
    if (grading == 0) {
        for (size_t s = 0; s <= TW_N_SIGNALS; s++) {
            const bool tokens = s == TW_N_SIGNALS;
            tw_text_append(&figure->script, TW_VIEW(", \\\n  keyentry with linespoints"));
            tw_figure_look(&figure->script, tokens ? TW_N_SIGNALS + 1 : s);
            tw_text_append(&figure->script, TW_VIEW(" linewidth 1.4 pointsize 0.9*mark title "));
            char title[96];
            snprintf(title, sizeof title, "%s",
                     !tokens            ? signal_titles[s]
                     : markers->n_found ? "token markers (2nd halves)"
                                        : "token markers: none found");
            tw_figure_quote(&figure->script, title);
        }
    }
    tw_text_append_char(&figure->script, '\n');
}

static tw_status draw(struct tw_figure *figure, const struct tw_plot_options *options,
                      const struct tw_wakeups *const *runs, size_t n_runs, const char *title, struct tw_error *err) {
    struct tw_grade *const grades = calloc(TW_N_GRADES, sizeof *grades);
    struct tw_markers markers = {0};
    size_t n = 0;
    tw_status status = grades ? TW_OK : TW_FAIL(err, TW_E_MEMORY, "out of memory for the figure");
    if (status == TW_OK) status = tw_grade_runs(grades, &n, runs, n_runs, err);
    if (status == TW_OK && n == 0)
        status = TW_FAIL(err, TW_E_INPUT, "no head wakes up in these traces, so there is nothing to grade");
    if (status == TW_OK) status = tw_markers_find(&markers, runs, n_runs, err);
    if (status == TW_OK) {
        struct tw_plot_panels places = {
            .n = TW_N_GRADINGS, .columns = TW_N_GRADINGS, .panel_width = 370, .panel_height = 370, .legend_width = 240};
        tw_plot_panels_begin(figure, &places, options->title ? options->title : title);
        for (size_t g = 0; g < TW_N_GRADINGS; g++) {
            tw_plot_panel(figure, &places, g, grading_titles[g]);
            if (g == 0) tw_text_append(&figure->script, TW_VIEW("set key title 'numbers: lead in steps' left\n"));
            draw_grading(figure, grades, &markers, g);
        }
        tw_plot_panels_end(figure);
    }
    tw_markers_release(&markers);
    free(grades);
    return status;
}

static tw_status make(struct tw_figure *figure, const struct tw_plot_input *input,
                      const struct tw_plot_options *options, struct tw_error *err) {
    struct tw_wakeups *const runs = calloc(input->n_traces + 1, sizeof *runs);
    const struct tw_wakeups **const pointers = calloc(input->n_traces + 1, sizeof *pointers);
    tw_status status = runs && pointers ? TW_OK : TW_FAIL(err, TW_E_MEMORY, "out of memory for the figure");
    char title[700] = "";
    size_t n = 0;
    for (; status == TW_OK && n < input->n_traces; n++) {
        struct tw_trace *const trace = input->traces[n];
        char other[512];
        tw_plot_trace_title(other, sizeof other, trace);
        if (n == 0)
            memcpy(title, other, sizeof other);
        else if (strcmp(title, other) != 0)
            status = TW_FAIL(err, TW_E_INPUT,
                             "trace '%s' is of '%s', the first of '%s': this figure pools runs of one model and task",
                             tw_trace_path(trace), other, title);
        if (status == TW_OK && !tw_trace_has(trace, TW_TRACE_NEEDLE))
            status = TW_FAIL(err, TW_E_INPUT, "trace '%s' has no %s, so its wake-ups cannot be graded",
                             tw_trace_path(trace), tw_trace_dataset_path(TW_TRACE_NEEDLE));
        if (status == TW_OK)
            status = tw_wakeups_measure(&runs[n], trace, tw_plot_page_size(options), NULL, 0, input->progress, err);
        if (status != TW_OK) break;
        pointers[n] = &runs[n];
    }
    if (status == TW_OK) {
        size_t events = 0;
        for (size_t i = 0; i < n; i++) events += runs[i].n_events;
        const size_t length = strlen(title);
        snprintf(title + length, sizeof title - length, ": %zu wake-ups in %zu run%s", events, n, n == 1 ? "" : "s");
        status = draw(figure, options, pointers, n, title, err);
    }
    for (size_t i = 0; runs && i < n; i++) tw_wakeups_release(&runs[i]);
    free(runs);
    free(pointers);
    return status;
}

const struct tw_plot_kind tw_plot_precision_recall = {
    .name = "precision-recall",
    .summary = "how well signals foretell wake-ups: precision and recall by lead",
    .wants_traces = true,
    .make = make,
};
