/*
 * Miss rate against resident memory, a curve a policy, a panel a model, task, unit and page size. The floor `min`
 * (Belady) is a black line. Error bars are the standard deviation over runs.
 *
 * Where a policy has no value at a budget that others have, its curve breaks; a policy without any value is named in a
 * note and left out of the legend.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/plot.h"
#include "analysis/plot_table.h"

/* All rows of one panel, curve and budget. */
struct point {
    size_t panel, curve;
    double budget; /* INFINITY where there is none: `full` */
    double memory, misses, squares;
    double deviation; /* from a column miss_rate_sd, for rows that are averages already */
    size_t n;         /* rows with values */
    double runs;      /* what they stand for */
};

struct chart {
    struct point *points;
    size_t n_points, capacity;
    struct tw_plot_names panels, curves; /* a panel: its title, a line break, its x axis */
    bool *has_value;                     /* [curves.n] */
    bool any_deviation;
};

static int by_panel_curve_budget(const void *a, const void *b) {
    const struct point *const x = a, *const y = b;
    if (x->panel != y->panel) return x->panel < y->panel ? -1 : 1;
    if (x->curve != y->curve) return x->curve < y->curve ? -1 : 1;
    return (x->budget > y->budget) - (x->budget < y->budget);
}

static struct point *find_point(struct chart *chart, size_t panel, size_t curve, double budget) {
    for (size_t i = 0; i < chart->n_points; i++) {
        struct point *const p = &chart->points[i];
        if (p->panel == panel && p->curve == curve && p->budget == budget) return p;
    }
    if (chart->n_points == chart->capacity) {
        const size_t capacity = chart->capacity ? chart->capacity * 2 : 64;
        struct point *const points = realloc(chart->points, capacity * sizeof *points);
        if (!points) return NULL;
        chart->points = points;
        chart->capacity = capacity;
    }
    struct point *const p = &chart->points[chart->n_points++];
    *p = (struct point){.panel = panel, .curve = curve, .budget = budget, .deviation = NAN};
    return p;
}

static void describe_panel(char *panel, size_t panel_size, char *label, size_t label_size, const struct tw_table *table,
                           size_t row) {
    char buffers[4][32];
    const char *const model = tw_plot_cell_text(buffers[0], table, row, tw_table_column(table, "model"));
    const char *const task = tw_plot_cell_text(buffers[1], table, row, tw_table_column(table, "task"));
    const char *const unit = tw_plot_cell_text(buffers[2], table, row, tw_table_column(table, "unit"));
    const char *const size = tw_plot_cell_text(buffers[3], table, row, tw_table_column(table, "page_size"));
    snprintf(panel, panel_size, "%s%s%s", model, *model && *task ? ", " : "", task);
    const bool units = !isnan(tw_plot_cell_number(table, row, tw_table_column(table, "units")));
    const char *const head = !strcmp(unit, "kv") ? "KV head" : !strcmp(unit, "query") ? "query head" : "unit";
    snprintf(label, label_size, "mean resident pages%s%s%s%s%s", units ? " per " : "", units ? head : "",
             *size ? " (" : "", size, *size ? " tokens a page)" : "");
}

static tw_status collect(struct chart *chart, const struct tw_table *table, const char *name,
                         const struct tw_plot_options *options, struct tw_error *err) {
    TW_TRY(tw_plot_need_columns(table, name, tw_plot_miss_rate.columns, err));
    static const char *const split[] = {"layer", "head", "step"};
    for (size_t i = 0; i < sizeof split / sizeof *split; i++)
        if (tw_table_column(table, split[i]) != SIZE_MAX)
            return TW_FAIL(err, TW_E_INPUT,
                           "table '%s' is split by %s; this figure needs whole traces (replay without --by)", name,
                           split[i]);
    const size_t policy = tw_table_column(table, "policy"), budget = tw_table_column(table, "budget");
    const size_t resident = tw_table_column(table, "mean_resident"), rate = tw_table_column(table, "miss_rate");
    const size_t units = tw_table_column(table, "units"), runs = tw_table_column(table, "runs");
    const size_t deviation = tw_table_column(table, "miss_rate_sd");
    for (size_t row = 0; row < table->n_rows; row++) {
        if (!tw_plot_row_wanted(table, row, options)) continue;
        char panel[512], label[128], key[700], buffer[32];
        describe_panel(panel, sizeof panel, label, sizeof label, table, row);
        snprintf(key, sizeof key, "%s\n%s", panel, label);
        const size_t panel_index = tw_plot_name(&chart->panels, key);
        const size_t curve = tw_plot_name(&chart->curves, tw_plot_cell_text(buffer, table, row, policy));
        const double at = tw_plot_cell_number(table, row, budget);
        struct point *const p = find_point(chart, panel_index, curve, isnan(at) ? INFINITY : at);
        if (panel_index == SIZE_MAX || curve == SIZE_MAX || !p)
            return TW_FAIL(err, TW_E_MEMORY, "out of memory for the figure of '%s'", name);
        const double y = tw_plot_cell_number(table, row, rate), n_units = tw_plot_cell_number(table, row, units);
        const double x = tw_plot_cell_number(table, row, resident) / (n_units > 0 ? n_units : 1);
        if (isnan(x) || isnan(y)) continue;
        const double weight = tw_plot_cell_number(table, row, runs);
        p->memory += x;
        p->misses += y;
        p->squares += y * y;
        p->n++;
        p->runs += isnan(weight) ? 1 : weight;
        if (p->n == 1) p->deviation = tw_plot_cell_number(table, row, deviation);
    }
    return TW_OK;
}

static void finish_points(struct chart *chart) {
    for (size_t i = 0; i < chart->n_points; i++) {
        struct point *const p = &chart->points[i];
        if (!p->n) continue;
        chart->has_value[p->curve] = true;
        const double n = (double)p->n;
        p->memory /= n;
        p->misses /= n;
        if (p->n > 1) p->deviation = sqrt(fmax(0, p->squares - n * p->misses * p->misses) / (n - 1)); /* as replay's */
        if (p->runs > 1 && !isnan(p->deviation)) chart->any_deviation = true;
    }
    qsort(chart->points, chart->n_points, sizeof *chart->points, by_panel_curve_budget);
}

/* Whether another curve of the panel has a point at a budget strictly between two of this one's neighbours. */
static bool gap_between(const struct chart *chart, size_t panel, double low, double high) {
    for (size_t i = 0; i < chart->n_points; i++) {
        const struct point *const p = &chart->points[i];
        if (p->panel == panel && p->n && p->budget > low && p->budget < high) return true;
    }
    return false;
}

/* The memory that a panel's points span, and its highest miss rate with its bar; low is INFINITY without points. */
struct extent {
    double low, high, top;
    bool octaves; /* memory spans octaves when budgets do: a logarithmic axis then shows the small ones too */
};

static struct extent extent_of(const struct chart *chart, size_t panel) {
    struct extent extent = {.low = INFINITY};
    for (size_t i = 0; i < chart->n_points; i++) {
        const struct point *const p = &chart->points[i];
        if (p->panel != panel || !p->n) continue;
        extent.low = fmin(extent.low, p->memory);
        extent.high = fmax(extent.high, p->memory);
        extent.top = fmax(extent.top, p->misses + (p->runs > 1 && !isnan(p->deviation) ? p->deviation : 0));
    }
    extent.octaves = extent.low > 0 && extent.high >= 6 * extent.low;
    return extent;
}

/* How far along the horizontal axis a point lies, from 0 to 1. */
static double place_of(const struct extent *extent, double memory) {
    if (!(extent->high > extent->low)) return 0;
    return extent->octaves ? log(memory / extent->low) / log(extent->high / extent->low)
                           : (memory - extent->low) / (extent->high - extent->low);
}

/*
 * The points of one curve in one panel as a block: memory, miss rate, and the same again with its bar where the point
 * is marked; false when there are none. Of points close to each other only some are marked, so that the marks stay
 * apart.
 */
static bool write_curve(struct tw_figure *figure, const struct chart *chart, size_t panel, size_t curve, size_t *block,
                        bool *deviates) {
    static const double apart = 0.055; /* of the axis */
    const struct extent extent = extent_of(chart, panel);
    bool begun = false;
    double last = NAN, marked_x = NAN, marked_y = NAN;
    *deviates = false;
    for (size_t i = 0; i < chart->n_points; i++) {
        const struct point *const p = &chart->points[i];
        if (p->panel != panel || p->curve != curve || !p->n) continue;
        if (!begun) *block = tw_figure_begin_block(figure);
        if (begun && gap_between(chart, panel, last, p->budget)) tw_text_append_char(&figure->data, '\n');
        begun = true;
        last = p->budget;
        const double x = place_of(&extent, p->memory), y = extent.top > 0 ? p->misses / extent.top : 0;
        const bool marked = !(fabs(x - marked_x) < apart && fabs(y - marked_y) < apart);
        if (marked) marked_x = x, marked_y = y;
        tw_figure_number(figure, p->memory);
        tw_figure_number(figure, p->misses);
        tw_figure_number(figure, marked ? p->misses : NAN);
        tw_figure_number(figure, marked && p->runs > 1 ? p->deviation : NAN);
        tw_text_append_char(&figure->data, '\n');
        *deviates = *deviates || (p->runs > 1 && !isnan(p->deviation));
    }
    if (begun) tw_figure_end_block(figure);
    return begun;
}

static void set_axes(struct tw_figure *figure, const struct chart *chart, size_t panel, const char *label) {
    const struct extent extent = extent_of(chart, panel);
    const double low = extent.low, high = extent.high, top = extent.top;
    struct tw_text *const script = &figure->script;
    tw_text_append(script, TW_VIEW("set xlabel "));
    tw_figure_quote(script, label);
    tw_text_printf(script, " noenhanced\nset ylabel 'miss rate (misses / accesses)'\nset yrange [0:%.6g]\n",
                   top > 0 ? fmin(1, top * 1.06) : 1);
    tw_text_append(script, tw_view_of(extent.octaves ? "set logscale x 2\n" : "unset logscale x\n"));
    if (isfinite(low) && high > 0)
        tw_text_printf(script, "set xrange [%.6g:%.6g]\n", extent.octaves ? low / 1.1 : low - 0.04 * (high - low),
                       extent.octaves ? high * 1.1 : high + 0.04 * (high - low) + (high > low ? 0 : 1));
    else
        tw_text_append(script, TW_VIEW("set xrange [0:1]\n"));
}

/* A curve is drawn as a line and as the marks on it; the legend shows both. */
enum part { LINE = 1, MARKS = 2 };

static bool has_part(const char *policy, enum part part) {
    return part == LINE ? strcmp(policy, "full") != 0 : strcmp(policy, "min") != 0;
}

static void write_style(struct tw_text *script, const char *policy, size_t look, int parts) {
    if (!has_part(policy, MARKS)) {
        tw_text_printf(script, " with lines linecolor rgb '%s' linewidth 2.2", tw_figure_colour(look));
        return;
    }
    const bool line = parts & LINE && has_part(policy, LINE);
    tw_text_append(script, tw_view_of(!(parts & MARKS) ? " with lines" : line ? " with linespoints" : " with points"));
    (parts & MARKS ? tw_figure_look : tw_figure_line_look)(script, look);
    tw_text_append(script, TW_VIEW(" linewidth 1.6"));
    /* rkv and reasonalloc often coincide: one shape shows around the other */
    if (parts & MARKS) tw_text_printf(script, " pointsize %s*mark", !strcmp(policy, "rkv") ? "1.5" : "1");
}

/* What people read in the legend. */
static const char *legend_of(const char *policy) {
    return !strcmp(policy, "min") ? "min (Belady's floor)" : !strcmp(policy, "full") ? "full (keeps all)" : policy;
}

static void draw_panel(struct tw_figure *figure, const struct chart *chart, size_t panel, const size_t *looks) {
    bool first = true;
    tw_text_append(&figure->script, TW_VIEW("plot"));
    for (int floor = 1; floor >= 0; floor--) /* the floor lies under the others */
        for (size_t c = 0; c < chart->curves.n; c++) {
            const char *const policy = chart->curves.items[c];
            size_t block;
            bool deviates;
            if ((strcmp(policy, "min") == 0) != (floor == 1) ||
                !write_curve(figure, chart, panel, c, &block, &deviates))
                continue;
            if (deviates)
                tw_text_printf(
                    &figure->script,
                    "%s $d%zu using 1:3:4 with yerrorbars linecolor rgb '%s' pointtype 0 linewidth 1 notitle",
                    first ? "" : ", \\\n ", block, tw_figure_colour(looks[c]));
            if (deviates) first = false;
            for (int part = LINE; part <= MARKS; part++) {
                if (!has_part(policy, (enum part)part)) continue;
                tw_text_printf(&figure->script, "%s $d%zu using 1:%d", first ? "" : ", \\\n ", block,
                               part == LINE ? 2 : 3);
                write_style(&figure->script, policy, looks[c], part);
                tw_text_append(&figure->script, TW_VIEW(" notitle"));
                first = false;
            }
        }
    if (first) tw_text_append(&figure->script, TW_VIEW(" NaN notitle"));
    for (size_t look = 0; panel == 0 && look < TW_N_LOOKS + chart->curves.n; look++)
        for (size_t c = 0; c < chart->curves.n; c++) {
            if (!chart->has_value[c] || looks[c] != look) continue;
            tw_text_append(&figure->script, TW_VIEW(", \\\n  keyentry"));
            write_style(&figure->script, chart->curves.items[c], looks[c], LINE | MARKS);
            tw_text_append(&figure->script, TW_VIEW(" title "));
            tw_figure_quote(&figure->script, legend_of(chart->curves.items[c]));
            tw_text_append(&figure->script, TW_VIEW(" noenhanced"));
        }
    tw_text_append_char(&figure->script, '\n');
}

static tw_status make(struct tw_figure *figure, const struct tw_plot_input *input,
                      const struct tw_plot_options *options, struct tw_error *err) {
    struct chart chart = {0};
    size_t *looks = NULL;
    tw_status status = TW_OK;
    for (size_t i = 0; i < input->n_tables; i++)
        TW_TRY_GOTO(status, done, collect(&chart, &input->tables[i], input->names[i], options, err));
    chart.has_value = calloc(chart.curves.n + 1, sizeof *chart.has_value);
    looks = calloc(chart.curves.n + 1, sizeof *looks);
    if (!chart.has_value || !looks) {
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory for the figure of '%s'", input->names[0]);
        goto done;
    }
    finish_points(&chart);
    if (chart.panels.n == 0) {
        status = TW_FAIL(err, TW_E_INPUT, "table '%s' has no rows of what was asked for", input->names[0]);
        goto done;
    }
    if (chart.panels.n > TW_PLOT_MAX_PANELS) {
        status = TW_FAIL(err, TW_E_INPUT,
                         "table '%s' would make %zu panels, more than %d; choose with --model, --task, --unit or "
                         "--page-size",
                         input->names[0], chart.panels.n, TW_PLOT_MAX_PANELS);
        goto done;
    }
    size_t other = 0, n_curves = 0;
    for (size_t c = 0; c < chart.curves.n; c++) {
        looks[c] = tw_plot_policy_look(chart.curves.items[c], &other);
        n_curves += chart.has_value[c];
        if (!chart.has_value[c])
            tw_figure_note(figure, "policy '%s' has no miss rate anywhere and is left out of the figure",
                           chart.curves.items[c]);
    }
    if (!n_curves) {
        status = TW_FAIL(err, TW_E_INPUT, "table '%s' has no miss rate in any row", input->names[0]);
        goto done;
    }
    struct tw_plot_panels panels = {.n = chart.panels.n, .legend_width = 200};
    tw_plot_panels_begin(figure, &panels, options->title);
    for (size_t i = 0; i < chart.panels.n; i++) {
        char *const line_break = strchr(chart.panels.items[i], '\n');
        *line_break = 0;
        tw_plot_panel(figure, &panels, i, chart.panels.items[i]);
        set_axes(figure, &chart, i, line_break + 1);
        if (i == 0 && chart.any_deviation)
            tw_text_append(&figure->script, TW_VIEW("set key title 'bars: ± 1 s.d. over runs' left\n"));
        draw_panel(figure, &chart, i, looks);
    }
    tw_plot_panels_end(figure);
done:
    free(chart.points);
    free(chart.has_value);
    free(looks);
    tw_plot_names_release(&chart.panels);
    tw_plot_names_release(&chart.curves);
    return status;
}

const struct tw_plot_kind tw_plot_miss_rate = {
    .name = "miss-rate",
    .summary = "miss rate against resident memory, a curve a policy, from replay's table",
    .columns = "policy,budget,mean_resident,miss_rate",
    .make = make,
};
