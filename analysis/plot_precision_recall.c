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

/* The panel's area in plot units is SPAN wide and high; a label's letters and a point's mark, in the same units. */
#define SPAN 1.06
enum { PANEL = 370, AREA_WIDTH = PANEL - 100, AREA_HEIGHT = PANEL - 96 }; /* in 1/96 inch */
#define LETTER (6.2 * SPAN / AREA_WIDTH)
#define LINE   (12.0 * SPAN / AREA_HEIGHT)
#define MARK   (4.5 * SPAN / AREA_WIDTH)

struct box {
    double left, right, bottom, top;
};

/* What is drawn in one panel: marks, pieces of lines, and labels, which later labels keep clear of. */
enum { PIECES = 12 }; /* of a line between two points */
struct places {
    struct box boxes[(PIECES + 2) * (TW_N_SIGNALS + 1) * TW_N_LEADS];
    size_t n;
};

static bool is_free(const struct places *places, const struct box *box) {
    if (box->left < 0 || box->right > SPAN || box->bottom < 0 || box->top > SPAN) return false;
    for (size_t i = 0; i < places->n; i++) {
        const struct box *const other = &places->boxes[i];
        if (box->left < other->right && other->left < box->right && box->bottom < other->top &&
            other->bottom < box->top)
            return false;
    }
    return true;
}

/* The curve of one signal: a point a lead. */
struct curve {
    double recall[TW_N_LEADS], precision[TW_N_LEADS];
    size_t lead[TW_N_LEADS];
    size_t n;    /* defined points */
    size_t look; /* of its signal */
    bool line;
};

static void add_point(struct places *places, struct curve *curve, const struct tw_grade *grade) {
    if (isnan(grade->precision) || isnan(grade->recall)) return;
    curve->recall[curve->n] = grade->recall;
    curve->precision[curve->n] = grade->precision;
    curve->lead[curve->n++] = grade->lead;
    places->boxes[places->n++] =
        (struct box){grade->recall - MARK, grade->recall + MARK, grade->precision - MARK, grade->precision + MARK};
    const size_t last = curve->n - 1;
    for (size_t i = 1; curve->line && last && i < PIECES; i++) {
        const double share = (double)i / PIECES;
        const double x = curve->recall[last - 1] + share * (curve->recall[last] - curve->recall[last - 1]);
        const double y = curve->precision[last - 1] + share * (curve->precision[last] - curve->precision[last - 1]);
        places->boxes[places->n++] = (struct box){x, x, y, y};
    }
}

/* Labels the points that lie where point `first` does with their leads, "1,2,4", on the first side that is free. Where
 * none is, the point goes without: its curve's other numbers tell. */
static void put_label(struct tw_figure *figure, struct places *places, const struct curve *curve, size_t first,
                      bool *labelled) {
    struct tw_text text = {0};
    for (size_t k = first; k < curve->n; k++) {
        if (labelled[k] || fabs(curve->recall[k] - curve->recall[first]) > MARK ||
            fabs(curve->precision[k] - curve->precision[first]) > MARK)
            continue;
        labelled[k] = true;
        tw_text_printf(&text, "%s%zu", text.size ? "," : "", curve->lead[k]);
    }
    static const struct {
        int x, y; /* which side of the point */
    } sides[] = {{1, 1}, {1, -1}, {-1, 1}, {-1, -1}, {1, 0}, {-1, 0}, {0, 1}, {0, -1}};
    const double width = LETTER * (double)text.size;
    for (size_t s = 0; s < sizeof sides / sizeof *sides; s++) {
        const double x = curve->recall[first] + sides[s].x * (width / 2 + MARK * (sides[s].y ? 1.0 : 1.6));
        const double y = curve->precision[first] + sides[s].y * (LINE / 2 + MARK);
        const struct box box = {x - width / 2, x + width / 2, y - LINE / 2, y + LINE / 2};
        if (!is_free(places, &box)) continue;
        places->boxes[places->n++] = box;
        tw_text_append(&figure->script, TW_VIEW("set label "));
        tw_figure_quote(&figure->script, tw_text_string(&text));
        tw_text_printf(&figure->script, " at first %.4f, first %.4f center font small textcolor rgb '%s' front\n", x, y,
                       tw_figure_colour(curve->look));
        break;
    }
    tw_text_release(&text);
}

/* Leads stand at both ends of a curve. Best thresholds come from another head at every lead, so that a line between
 * them would mean nothing: those are points, each with its lead. */
static void put_labels(struct tw_figure *figure, struct places *places, const struct curve *curve) {
    bool labelled[TW_N_LEADS] = {false};
    for (size_t k = 0; k < curve->n; k++)
        if (!labelled[k] && curve->recall[k] > 0 && (!curve->line || k == 0 || k + 1 == curve->n))
            put_label(figure, places, curve, k, labelled);
}

static void put_curve(struct tw_figure *figure, const struct curve *curve, bool first) {
    const size_t block = tw_figure_begin_block(figure);
    for (size_t k = 0; k < curve->n; k++) {
        tw_figure_number(figure, curve->recall[k]);
        tw_figure_number(figure, curve->precision[k]);
        tw_text_append_char(&figure->data, '\n');
    }
    tw_figure_end_block(figure);
    tw_text_printf(&figure->script, "%s $d%zu using 1:2 with %s", first ? "" : ", \\\n ", block,
                   curve->line ? "linespoints" : "points");
    tw_figure_look(&figure->script, curve->look);
    tw_text_append(&figure->script, TW_VIEW(" linewidth 1.4 pointsize 0.9*mark notitle"));
}

static void draw_grading(struct tw_figure *figure, const struct tw_grade *grades, const struct tw_markers *markers,
                         size_t grading) {
    struct places places = {.n = 0};
    struct curve curves[TW_N_SIGNALS + 1] = {{.n = 0}};
    for (size_t s = 0; s < TW_N_SIGNALS; s++) {
        curves[s].look = s;
        curves[s].line = grading != TW_GRADING_BEST;
        for (size_t k = 0; k < TW_N_LEADS; k++)
            add_point(&places, &curves[s], &grades[(s * TW_N_LEADS + k) * TW_N_GRADINGS + grading]);
    }
    struct curve *const found = &curves[TW_N_SIGNALS];
    found->look = TW_N_SIGNALS + 1;
    found->line = true;
    for (size_t k = 0; grading == TW_GRADING_ZSCORE && markers->n_found && k < TW_N_LEADS; k++) {
        struct tw_grade own = {0};
        tw_grade_from_alarms(&own, &markers->graded[TW_MARKERS_SECOND_HALF], k);
        add_point(&places, found, &own);
    }
    if (grading) tw_text_append(&figure->script, TW_VIEW("unset label\n"));
    for (size_t s = 0; s <= TW_N_SIGNALS; s++) put_labels(figure, &places, &curves[s]);
    tw_text_printf(&figure->script,
                   "set xlabel 'recall (events foretold / events)'\n"
                   "set ylabel 'precision (true alarms / alarms)'\n"
                   "set xrange [0:%g]\nset yrange [0:%g]\nset xtics 0.2\nset ytics 0.2\nplot",
                   SPAN, SPAN);
    bool first = true;
    for (size_t s = 0; s <= TW_N_SIGNALS; s++) {
        if (!curves[s].n) continue;
        put_curve(figure, &curves[s], first);
        first = false;
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
            .n = TW_N_GRADINGS, .columns = 2, .panel_width = PANEL, .panel_height = PANEL, .legend_width = 240};
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
        snprintf(title + length, sizeof title - length, ": %zu wake-up%s in %zu run%s", events, events == 1 ? "" : "s",
                 n, n == 1 ? "" : "s");
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
