/*
 * Jaccard over time: how alike adjacent steps are, for page sets (mean over heads) and for the sets of heads that read
 * the needle. A panel a model and task; the runs of one are averaged step by step. Lines are running means over 17
 * steps (49 for sets of heads), or an eighth of the run where that is less; pairs of steps at which no head reads the
 * needle say nothing about such sets and leave gaps.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/churn.h"
#include "analysis/plot.h"
#include "analysis/plot_table.h"
#include "base/checked.h"

/* Sums over runs for each step. */
struct series {
    double *sum;
    uint32_t *n;
};

enum { FEWEST = 4 }; /* values that make a mean */

static const struct {
    const char *name;
    size_t look;
    size_t rule;   /* of tw_activity_rules; SIZE_MAX: page sets */
    size_t smooth; /* steps on either side that a mean takes in */
} curves[] = {
    {"page sets (mean over heads)", 0, SIZE_MAX, 8},
    {"heads with needle score > 0.2", 1, TW_ACTIVITY_FIRST_NEEDLE + 1, 24},
    {"heads that copy the needle", 2, TW_ACTIVITY_COPY_PASTE, 24},
};
enum { N_CURVES = sizeof curves / sizeof *curves };

struct panel {
    char title[512];
    struct series series[N_CURVES]; /* [n_steps - 1] */
    size_t n_steps, n_runs;
};

static void add_run(struct panel *panel, const struct tw_churn *churn) {
    for (size_t t = 0; t + 1 < churn->n_steps; t++)
        for (size_t c = 0; c < N_CURVES; c++) {
            double value;
            if (curves[c].rule == SIZE_MAX) {
                value = churn->pages[0].jaccard[t];
            } else {
                const uint32_t *const size = churn->activity_size[curves[c].rule];
                if (!size || (size[t] == 0 && size[t + 1] == 0)) continue;
                value = churn->activity_jaccard[curves[c].rule][t];
            }
            panel->series[c].sum[t] += value;
            panel->series[c].n[t]++;
        }
    panel->n_runs++;
}

static tw_status measure(struct panel *panels, size_t *n_panels, const struct tw_plot_input *input, uint64_t page_size,
                         struct tw_error *err) {
    size_t longest = 1;
    for (size_t i = 0; i < input->n_traces; i++)
        longest = tw_max_size(longest, tw_trace_info(input->traces[i])->n_steps);
    for (size_t i = 0; i < input->n_traces; i++) {
        char title[512];
        tw_plot_trace_title(title, sizeof title, input->traces[i]);
        size_t p = 0;
        while (p < *n_panels && strcmp(panels[p].title, title) != 0) p++;
        if (p == TW_PLOT_MAX_PANELS)
            return TW_FAIL(err, TW_E_INPUT, "these traces are of more than %d models and tasks, too many for a figure",
                           TW_PLOT_MAX_PANELS);
        struct panel *const panel = &panels[p];
        if (p == *n_panels) {
            ++*n_panels;
            memcpy(panel->title, title, sizeof title);
            for (size_t c = 0; c < N_CURVES; c++) {
                panel->series[c].sum = calloc(longest, sizeof *panel->series[c].sum);
                panel->series[c].n = calloc(longest, sizeof *panel->series[c].n);
                if (!panel->series[c].sum || !panel->series[c].n)
                    return TW_FAIL(err, TW_E_MEMORY, "out of memory for the figure");
            }
        }
        struct tw_churn churn;
        TW_TRY(tw_churn_measure(&churn, input->traces[i], &page_size, 1, input->progress, err));
        panel->n_steps = tw_max_size(panel->n_steps, churn.n_steps);
        add_run(panel, &churn);
        tw_churn_release(&churn);
    }
    return TW_OK;
}

/* One curve as a block: step, running mean, the step's own value. False when nothing is defined. */
static bool write_curve(struct tw_figure *figure, const struct panel *panel, size_t c, size_t *block) {
    const struct series *const s = &panel->series[c];
    size_t n_defined = 0;
    for (size_t t = 0; t + 1 < panel->n_steps; t++) n_defined += s->n[t] > 0;
    if (!n_defined) return false;
    *block = tw_figure_begin_block(figure);
    bool gap = false;
    for (size_t t = 0; t + 1 < panel->n_steps; t++) {
        const size_t smooth = tw_min_size(curves[c].smooth, (panel->n_steps - 1) / 16);
        const size_t from = t < smooth ? 0 : t - smooth, to = tw_min_size(panel->n_steps - 1, t + smooth + 1);
        double sum = 0;
        size_t n = 0;
        for (size_t i = from; i < to; i++)
            if (s->n[i]) sum += s->sum[i] / s->n[i], n++;
        const bool enough = n >= tw_min_size(FEWEST, smooth + 1);
        if (enough) {
            tw_figure_number(figure, (double)t + 1);
            tw_figure_number(figure, sum / (double)n);
            tw_figure_number(figure, s->n[t] ? s->sum[t] / s->n[t] : NAN);
            tw_text_append_char(&figure->data, '\n');
        } else if (!gap) {
            tw_text_append_char(&figure->data, '\n');
        }
        gap = !enough;
    }
    tw_figure_end_block(figure);
    return true;
}

static void append_style(struct tw_text *script, size_t c, size_t n_steps) {
    static const int points[] = {0, 9, 5};
    tw_text_printf(script, " with %s linecolor rgb '%s' linewidth %s", c ? "linespoints" : "lines",
                   tw_figure_colour(curves[c].look), c ? "1.3" : "2.4");
    if (c) tw_text_printf(script, " pointtype %d pointsize 0.8*mark pointinterval %zu", points[c], n_steps / 24 + 1);
}

static void draw_panel(struct tw_figure *figure, const struct panel *panel, bool legend) {
    struct tw_text *const script = &figure->script;
    tw_text_append(script, TW_VIEW("set xlabel 'decode step'\nset ylabel 'Jaccard of adjacent steps'\n"
                                   "set yrange [0:1.02]\n"));
    tw_text_printf(script, "set xrange [0:%zu]\nplot", tw_max_size(panel->n_steps, 2) - 1);
    bool first = true;
    for (size_t c = 0; c < N_CURVES; c++) {
        size_t block;
        if (!write_curve(figure, panel, c, &block)) {
            tw_figure_note(figure, "%s: %s has no steps to compare, so it has no such curve", panel->title,
                           curves[c].name);
            continue;
        }
        if (c == 0) /* faint points: single steps */
            tw_text_printf(
                script,
                " $d%zu using 1:3 with points pointtype 7 pointsize 0.4*mark linecolor rgb '#7fb2d9' notitle, \\\n ",
                block);
        tw_text_printf(script, "%s $d%zu using 1:2", first ? "" : ", \\\n ", block);
        append_style(script, c, panel->n_steps);
        tw_text_append(script, TW_VIEW(" notitle"));
        first = false;
    }
    if (first) tw_text_append(script, TW_VIEW(" NaN notitle"));
    for (size_t c = 0; legend && c < N_CURVES; c++) {
        tw_text_append(script, TW_VIEW(", \\\n  keyentry"));
        append_style(script, c, 0);
        tw_text_append(script, TW_VIEW(" title "));
        tw_figure_quote(script, curves[c].name);
    }
    if (legend)
        tw_text_append(script,
                       TW_VIEW(", \\\n  keyentry with points pointtype 7 pointsize 0.4*mark linecolor rgb '#7fb2d9' "
                               "title 'page sets, single steps'"));
    tw_text_append_char(script, '\n');
}

static tw_status make(struct tw_figure *figure, const struct tw_plot_input *input,
                      const struct tw_plot_options *options, struct tw_error *err) {
    struct panel *const panels = calloc(TW_PLOT_MAX_PANELS, sizeof *panels);
    if (!panels) return TW_FAIL(err, TW_E_MEMORY, "out of memory for the figure");
    size_t n = 0;
    const uint64_t page_size = tw_plot_page_size(options);
    const tw_status status = measure(panels, &n, input, page_size, err);
    if (status == TW_OK) {
        struct tw_plot_panels places = {.n = n, .legend_width = 260};
        tw_plot_panels_begin(figure, &places, options->title);
        for (size_t i = 0; i < n; i++) {
            char title[600];
            snprintf(title, sizeof title, "%s%s", panels[i].title, panels[i].n_runs > 1 ? " (mean over runs)" : "");
            tw_plot_panel(figure, &places, i, title);
            draw_panel(figure, &panels[i], i == 0);
        }
        tw_plot_panels_end(figure);
    }
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < N_CURVES; c++) {
            free(panels[i].series[c].sum);
            free(panels[i].series[c].n);
        }
    free(panels);
    return status;
}

const struct tw_plot_kind tw_plot_churn = {
    .name = "churn",
    .summary = "Jaccard of adjacent steps over time, of page sets and of the heads that read the needle",
    .wants_traces = true,
    .make = make,
};
