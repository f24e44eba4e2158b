/*
 * Matched-memory comparison: each comparator's miss rate against the reference's at the same memory (or, for evict, at
 * the same budget). Above the diagonal the reference wins. A panel a model and task; the legend counts the wins.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/plot.h"
#include "analysis/plot_table.h"

struct point {
    size_t panel, curve;
    double x, y;
};

struct chart {
    struct point *points;
    size_t n_points, n_outside; /* outside: rows without a value of the reference */
    struct tw_plot_names panels, curves;
    size_t *wins, *comparisons; /* [curves.n] */
};

static tw_status collect(struct chart *chart, const struct tw_table *table, const char *name,
                         const struct tw_plot_options *options, struct tw_error *err) {
    TW_TRY(tw_plot_need_columns(table, name, tw_plot_matched.columns, err));
    const size_t policy = tw_table_column(table, "policy"), rate = tw_table_column(table, "miss_rate");
    const size_t reference = tw_table_column(table, "reference_miss_rate"), win = tw_table_column(table, "win");
    const size_t model = tw_table_column(table, "model"), task = tw_table_column(table, "task");
    struct point *const points = realloc(chart->points, (chart->n_points + table->n_rows + 1) * sizeof *points);
    if (!points) return TW_FAIL(err, TW_E_MEMORY, "out of memory for the figure of '%s'", name);
    chart->points = points;
    for (size_t row = 0; row < table->n_rows; row++) {
        if (!tw_plot_row_wanted(table, row, options)) continue;
        char panel[512], buffers[3][32];
        const char *const model_name = tw_plot_cell_text(buffers[0], table, row, model);
        const char *const task_name = tw_plot_cell_text(buffers[1], table, row, task);
        snprintf(panel, sizeof panel, "%s%s%s", model_name, *model_name && *task_name ? ", " : "", task_name);
        const double x = tw_plot_cell_number(table, row, reference), y = tw_plot_cell_number(table, row, rate);
        const double won = tw_plot_cell_number(table, row, win);
        if (isnan(x) || isnan(y) || isnan(won)) {
            chart->n_outside++;
            continue;
        }
        const struct point p = {tw_plot_name(&chart->panels, panel),
                                tw_plot_name(&chart->curves, tw_plot_cell_text(buffers[2], table, row, policy)), x, y};
        if (p.panel == SIZE_MAX || p.curve == SIZE_MAX)
            return TW_FAIL(err, TW_E_MEMORY, "out of memory for the figure of '%s'", name);
        chart->points[chart->n_points++] = p;
        size_t *const wins = realloc(chart->wins, chart->curves.n * sizeof *wins);
        if (wins) chart->wins = wins;
        size_t *const comparisons = realloc(chart->comparisons, chart->curves.n * sizeof *comparisons);
        if (comparisons) chart->comparisons = comparisons;
        if (!wins || !comparisons) return TW_FAIL(err, TW_E_MEMORY, "out of memory for the figure of '%s'", name);
        bool fresh = true;
        for (size_t i = 0; i + 1 < chart->n_points; i++) fresh = fresh && chart->points[i].curve != p.curve;
        if (fresh) chart->wins[p.curve] = chart->comparisons[p.curve] = 0;
        chart->wins[p.curve] += won > 0;
        chart->comparisons[p.curve]++;
    }
    return TW_OK;
}

static void draw_panel(struct tw_figure *figure, const struct chart *chart, size_t panel, double top,
                       const size_t *looks) {
    struct tw_text *const script = &figure->script;
    tw_text_printf(script,
                   "set xlabel 'miss rate of the reference'\nset ylabel 'miss rate of the policy'\n"
                   "set xrange [0:%.4g]\nset yrange [0:%.4g]\n"
                   "set label 1 'reference better' at graph 0.04, graph 0.95 textcolor rgb '#707070'\n"
                   "set label 2 'policy better' at graph 0.96, graph 0.06 right textcolor rgb '#707070'\n"
                   "plot x with lines linecolor rgb '#707070' linewidth 1 notitle",
                   top, top);
    for (size_t c = 0; c < chart->curves.n; c++) {
        size_t block = SIZE_MAX;
        for (size_t i = 0; i < chart->n_points; i++) {
            const struct point *const p = &chart->points[i];
            if (p->panel != panel || p->curve != c) continue;
            if (block == SIZE_MAX) block = tw_figure_begin_block(figure);
            tw_figure_number(figure, p->x);
            tw_figure_number(figure, p->y);
            tw_text_append_char(&figure->data, '\n');
        }
        if (block == SIZE_MAX) continue;
        tw_figure_end_block(figure);
        tw_text_printf(script, ", \\\n  $d%zu using 1:2 with points", block);
        tw_figure_look(script, looks[c]);
        tw_text_append(script, TW_VIEW(" pointsize 1*mark notitle"));
    }
    for (size_t c = 0; panel == 0 && c < chart->curves.n; c++) {
        struct tw_text title = {0};
        tw_text_printf(&title, "%s (%zu of %zu)", chart->curves.items[c], chart->wins[c], chart->comparisons[c]);
        tw_text_append(script, TW_VIEW(", \\\n  keyentry with points"));
        tw_figure_look(script, looks[c]);
        tw_text_append(script, TW_VIEW(" pointsize 1*mark title "));
        tw_figure_quote(script, tw_text_string(&title));
        tw_text_release(&title);
    }
    tw_text_append_char(script, '\n');
}

static tw_status make(struct tw_figure *figure, const struct tw_plot_input *input,
                      const struct tw_plot_options *options, struct tw_error *err) {
    struct chart chart = {0};
    size_t *looks = NULL;
    tw_status status = TW_OK;
    for (size_t i = 0; i < input->n_tables; i++)
        TW_TRY_GOTO(status, done, collect(&chart, &input->tables[i], input->names[i], options, err));
    if (!chart.n_points) {
        status = TW_FAIL(err, TW_E_INPUT, "table '%s' has no comparison within the reference's range", input->names[0]);
        goto done;
    }
    if (chart.panels.n > TW_PLOT_MAX_PANELS) {
        status =
            TW_FAIL(err, TW_E_INPUT, "table '%s' would make %zu panels, more than %d; choose with --model or --task",
                    input->names[0], chart.panels.n, TW_PLOT_MAX_PANELS);
        goto done;
    }
    looks = calloc(chart.curves.n + 1, sizeof *looks);
    if (!looks) {
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory for the figure of '%s'", input->names[0]);
        goto done;
    }
    size_t other = 0;
    for (size_t c = 0; c < chart.curves.n; c++) looks[c] = tw_plot_policy_look(chart.curves.items[c], &other);
    double top = 0;
    for (size_t i = 0; i < chart.n_points; i++) top = fmax(top, fmax(chart.points[i].x, chart.points[i].y));
    if (chart.n_outside)
        tw_figure_note(figure, "%zu rows lie outside the reference's range and are not in the figure", chart.n_outside);
    struct tw_plot_panels panels = {.n = chart.panels.n, .legend_width = 240, .panel_width = 400, .panel_height = 400};
    tw_plot_panels_begin(figure, &panels, options->title);
    for (size_t i = 0; i < chart.panels.n; i++) {
        tw_plot_panel(figure, &panels, i, chart.panels.items[i]);
        if (i == 0) tw_text_append(&figure->script, TW_VIEW("set key title 'wins of the reference' left\n"));
        draw_panel(figure, &chart, i, top > 0 ? top * 1.06 : 1, looks);
    }
    tw_plot_panels_end(figure);
done:
    free(chart.points);
    free(chart.wins);
    free(chart.comparisons);
    free(looks);
    tw_plot_names_release(&chart.panels);
    tw_plot_names_release(&chart.curves);
    return status;
}

const struct tw_plot_kind tw_plot_matched = {
    .name = "matched",
    .summary = "miss rates at matched memory against the reference's, from match's table",
    .columns = "policy,miss_rate,reference_miss_rate,win",
    .make = make,
};
