/*
 * Time against memory over chunks: a curve a schedule (and selector, where there is such a column), a point a chunk,
 * labelled; a panel a model and context. Left and down is better. Rows of equal schedule, context and chunk (repeats)
 * are averaged.
 *
 * Columns: schedule, chunk, prefill_seconds (time to first token), peak_bytes; optional: model, context, selector,
 * budget.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/plot.h"
#include "analysis/plot_table.h"

struct point {
    size_t panel, curve;
    double chunk, seconds, bytes, n;
};

struct chart {
    struct point *points;
    size_t n;
    struct tw_plot_names panels, curves;
};

static int by_panel_curve_chunk(const void *a, const void *b) {
    const struct point *const x = a, *const y = b;
    if (x->panel != y->panel) return x->panel < y->panel ? -1 : 1;
    if (x->curve != y->curve) return x->curve < y->curve ? -1 : 1;
    return (x->chunk > y->chunk) - (x->chunk < y->chunk);
}

/* Joins what the columns hold: the texts that are there, each behind its word. */
static void describe(char *text, size_t size, const struct tw_table *table, size_t row, const char *const (*parts)[2],
                     size_t n_parts) {
    size_t n = 0;
    text[0] = 0;
    for (size_t i = 0; i < n_parts; i++) {
        char buffer[32];
        const char *const cell = tw_plot_cell_text(buffer, table, row, tw_table_column(table, parts[i][0]));
        if (*cell && n < size) n += (size_t)snprintf(text + n, size - n, "%s%s%s", n ? ", " : "", parts[i][1], cell);
    }
}

static tw_status collect(struct chart *chart, const struct tw_table *table, const char *name,
                         const struct tw_plot_options *options, struct tw_error *err) {
    static const char *const panel_parts[][2] = {{"model", ""}, {"context", "context "}};
    static const char *const curve_parts[][2] = {{"schedule", ""}, {"selector", ""}, {"budget", "budget "}};
    TW_TRY(tw_plot_need_columns(table, name, tw_plot_pareto.columns, err));
    const size_t chunk = tw_table_column(table, "chunk"), seconds = tw_table_column(table, "prefill_seconds");
    const size_t bytes = tw_table_column(table, "peak_bytes");
    struct point *const points = realloc(chart->points, (chart->n + table->n_rows + 1) * sizeof *points);
    if (!points) return TW_FAIL(err, TW_E_MEMORY, "out of memory for the figure of '%s'", name);
    chart->points = points;
    for (size_t row = 0; row < table->n_rows; row++) {
        if (!tw_plot_row_wanted(table, row, options)) continue;
        char panel[600], curve[600];
        describe(panel, sizeof panel, table, row, panel_parts, 2);
        describe(curve, sizeof curve, table, row, curve_parts, 3);
        const struct point p = {.panel = tw_plot_name(&chart->panels, panel),
                                .curve = tw_plot_name(&chart->curves, curve),
                                .chunk = tw_plot_cell_number(table, row, chunk),
                                .seconds = tw_plot_cell_number(table, row, seconds),
                                .bytes = tw_plot_cell_number(table, row, bytes),
                                .n = 1};
        if (p.panel == SIZE_MAX || p.curve == SIZE_MAX)
            return TW_FAIL(err, TW_E_MEMORY, "out of memory for the figure of '%s'", name);
        if (isnan(p.seconds) || isnan(p.bytes)) continue; /* a run that did not fit */
        size_t i = 0;
        while (i < chart->n &&
               !(chart->points[i].panel == p.panel && chart->points[i].curve == p.curve &&
                 (chart->points[i].chunk == p.chunk || (isnan(chart->points[i].chunk) && isnan(p.chunk)))))
            i++;
        if (i == chart->n) {
            chart->points[chart->n++] = p;
        } else {
            chart->points[i].seconds += p.seconds;
            chart->points[i].bytes = fmax(chart->points[i].bytes, p.bytes);
            chart->points[i].n++;
        }
    }
    return TW_OK;
}

static void draw_panel(struct tw_figure *figure, const struct chart *chart, size_t panel, double unit,
                       const bool *drawn) {
    struct tw_text *const script = &figure->script;
    double left = INFINITY, right = 0, low = INFINITY, high = 0;
    for (size_t i = 0; i < chart->n; i++) {
        const struct point *const p = &chart->points[i];
        if (p->panel != panel) continue;
        left = fmin(left, p->seconds / p->n), right = fmax(right, p->seconds / p->n);
        low = fmin(low, p->bytes / unit), high = fmax(high, p->bytes / unit);
    }
    const double x_margin = right > left ? 0.14 * (right - left) : 0.1 * right + 1e-9;
    const double y_margin = high > low ? 0.12 * (high - low) : 0.1 * high + 1e-9;
    tw_text_printf(script,
                   "set xlabel 'time to first token (s)'\nset ylabel 'peak memory (%s)'\nset xrange [%.6g:%.6g]\n"
                   "set yrange [%.6g:%.6g]\nplot",
                   unit > 1024.0 * 1024 ? "GiB" : "MiB", fmax(0, left - x_margin), right + x_margin,
                   fmax(0, low - y_margin), high + y_margin);
    bool first = true;
    for (size_t c = 0; c < chart->curves.n; c++) {
        size_t block = SIZE_MAX;
        bool above = false;
        for (size_t i = 0; i < chart->n; i++) {
            const struct point *const p = &chart->points[i];
            if (p->panel != panel || p->curve != c) continue;
            if (block == SIZE_MAX) block = tw_figure_begin_block(figure);
            tw_figure_number(figure, p->seconds / p->n);
            tw_figure_number(figure, p->bytes / unit);
            /* Labels above and below the curve in turns: points of neighbouring chunks lie close. */
            char label[32] = "";
            if (!isnan(p->chunk)) snprintf(label, sizeof label, "%.0f", p->chunk);
            above = !above;
            tw_text_printf(&figure->data, "\"%s\" \"%s\"\n", above ? label : "", above ? "" : label);
        }
        if (block == SIZE_MAX) continue;
        tw_figure_end_block(figure);
        tw_text_printf(script, "%s $d%zu using 1:2 with linespoints", first ? "" : ", \\\n ", block);
        tw_figure_look(script, c);
        tw_text_append(script, TW_VIEW(" linewidth 1.4 pointsize 1*mark notitle"));
        for (int below = 0; below < 2; below++)
            tw_text_printf(
                script,
                ", \\\n  $d%zu using 1:2:%d with labels left font small offset 0.8,%s textcolor rgb '%s' notitle",
                block, 3 + below, below ? "-0.6" : "0.55", tw_figure_colour(c));
        first = false;
    }
    if (first) tw_text_append(script, TW_VIEW(" NaN notitle"));
    for (size_t c = 0; panel == 0 && c < chart->curves.n; c++) {
        if (!drawn[c]) continue;
        tw_text_append(script, TW_VIEW(", \\\n  keyentry with linespoints"));
        tw_figure_look(script, c);
        tw_text_append(script, TW_VIEW(" linewidth 1.4 pointsize 1*mark title "));
        tw_figure_quote(script, chart->curves.items[c]);
    }
    tw_text_append_char(script, '\n');
}

static tw_status make(struct tw_figure *figure, const struct tw_plot_input *input,
                      const struct tw_plot_options *options, struct tw_error *err) {
    struct chart chart = {0};
    bool *drawn = NULL;
    tw_status status = TW_OK;
    for (size_t i = 0; i < input->n_tables; i++)
        TW_TRY_GOTO(status, done, collect(&chart, &input->tables[i], input->names[i], options, err));
    if (!chart.n) {
        status = TW_FAIL(err, TW_E_INPUT, "table '%s' has no row with a time and a peak of what was asked for",
                         input->names[0]);
        goto done;
    }
    if (chart.panels.n > TW_PLOT_MAX_PANELS) {
        status = TW_FAIL(err, TW_E_INPUT, "table '%s' would make %zu panels, more than %d; choose with --model",
                         input->names[0], chart.panels.n, TW_PLOT_MAX_PANELS);
        goto done;
    }
    drawn = calloc(chart.curves.n + 1, sizeof *drawn);
    if (!drawn) {
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory for the figure of '%s'", input->names[0]);
        goto done;
    }
    double top = 0;
    for (size_t i = 0; i < chart.n; i++) {
        drawn[chart.points[i].curve] = true;
        top = fmax(top, chart.points[i].bytes);
    }
    for (size_t c = 0; c < chart.curves.n; c++)
        if (!drawn[c])
            tw_figure_note(figure, "'%s' has no time and peak anywhere and is left out of the figure",
                           chart.curves.items[c]);
    qsort(chart.points, chart.n, sizeof *chart.points, by_panel_curve_chunk);
    struct tw_plot_panels panels = {.n = chart.panels.n, .legend_width = 240};
    tw_plot_panels_begin(figure, &panels, options->title);
    for (size_t i = 0; i < chart.panels.n; i++) {
        tw_plot_panel(figure, &panels, i, chart.panels.items[i]);
        if (i == 0) tw_text_append(&figure->script, TW_VIEW("set key title 'numbers: chunk, tokens' left\n"));
        draw_panel(figure, &chart, i, top >= 4 * 1024.0 * 1024 * 1024 ? 1024.0 * 1024 * 1024 : 1024.0 * 1024, drawn);
    }
    tw_plot_panels_end(figure);
done:
    free(chart.points);
    free(drawn);
    tw_plot_names_release(&chart.panels);
    tw_plot_names_release(&chart.curves);
    return status;
}

const struct tw_plot_kind tw_plot_pareto = {
    .name = "pareto",
    .summary = "time to first token against peak memory over chunks, from prefill's table",
    .columns = "schedule,chunk,prefill_seconds,peak_bytes",
    .make = make,
};
