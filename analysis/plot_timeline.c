/*
 * Memory over a prefill, stacked by category, a panel a schedule on common axes.
 *
 * The table is a log: a row says that from `seconds` (since the prefill began) on, `category` holds `bytes` under
 * `schedule`. Rows of a schedule may come in any order; a category that has no row yet holds nothing. Optional columns
 * `model`, `selector`, `dtype`, `budget`, `context` and `chunk` tell prefills apart as `schedule` does: those that
 * differ stand over the panels, those that all share over the figure.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/plot.h"
#include "analysis/plot_table.h"
#include "base/checked.h"

enum { MAX_POINTS = 1500 }; /* of a curve: more cannot be seen; of several in one place the highest total is drawn */

struct change {
    size_t panel, category, order;
    double seconds, bytes;
};

struct log {
    struct change *changes;
    size_t n;
    struct tw_plot_names panels, categories;
    char common[600]; /* what all panels share */
};

static int by_panel_time(const void *a, const void *b) {
    const struct change *const x = a, *const y = b;
    if (x->panel != y->panel) return x->panel < y->panel ? -1 : 1;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

/* What tells prefills apart. */
static const struct {
    const char *column, *before;
} parts[] = {{"schedule", ""},      {"model", ""},           {"selector", ""},   {"dtype", ""},
             {"budget", "budget "}, {"context", "context "}, {"chunk", "chunk "}};
enum { N_PARTS = sizeof parts / sizeof *parts };

/* Which of them are the same in every row that is drawn. */
static void find_common(bool common[N_PARTS], const struct tw_plot_input *input,
                        const struct tw_plot_options *options) {
    for (size_t i = 0; i < N_PARTS; i++) {
        char first[64], buffer[32];
        bool any = false;
        common[i] = i > 0; /* the schedule stands over its panel in any case */
        for (size_t t = 0; common[i] && t < input->n_tables; t++) {
            const struct tw_table *const table = &input->tables[t];
            const size_t column = tw_table_column(table, parts[i].column);
            for (size_t row = 0; common[i] && row < table->n_rows; row++) {
                if (!tw_plot_row_wanted(table, row, options)) continue;
                const char *const text = tw_plot_cell_text(buffer, table, row, column);
                if (any) common[i] = strncmp(first, text, sizeof first - 1) == 0;
                if (!any) snprintf(first, sizeof first, "%s", text);
                any = true;
            }
        }
    }
}

/* The parts that are, or are not, common, in a row of the table. */
static void describe(char *title, size_t size, const bool common[N_PARTS], bool which, const struct tw_table *table,
                     size_t row) {
    size_t n = 0;
    title[0] = 0;
    for (size_t i = 0; i < N_PARTS; i++) {
        char buffer[32];
        if (common[i] != which) continue;
        const char *const text = tw_plot_cell_text(buffer, table, row, tw_table_column(table, parts[i].column));
        if (*text && n < size)
            n += (size_t)snprintf(title + n, size - n, "%s%s%s", n ? ", " : "", parts[i].before, text);
    }
}

static tw_status collect(struct log *log, const bool common[N_PARTS], const struct tw_table *table, const char *name,
                         const struct tw_plot_options *options, struct tw_error *err) {
    TW_TRY(tw_plot_need_columns(table, name, tw_plot_timeline.columns, err));
    const size_t seconds = tw_table_column(table, "seconds"), bytes = tw_table_column(table, "bytes");
    const size_t category = tw_table_column(table, "category");
    struct change *const changes = realloc(log->changes, (log->n + table->n_rows + 1) * sizeof *changes);
    if (!changes) return TW_FAIL(err, TW_E_MEMORY, "out of memory for the figure of '%s'", name);
    log->changes = changes;
    for (size_t row = 0; row < table->n_rows; row++) {
        char title[600], buffer[32];
        if (!tw_plot_row_wanted(table, row, options)) continue;
        describe(title, sizeof title, common, false, table, row);
        if (!log->common[0]) describe(log->common, sizeof log->common, common, true, table, row);
        struct change c = {.panel = tw_plot_name(&log->panels, title),
                           .category = tw_plot_name(&log->categories, tw_plot_cell_text(buffer, table, row, category)),
                           .order = log->n,
                           .seconds = tw_plot_cell_number(table, row, seconds),
                           .bytes = tw_plot_cell_number(table, row, bytes)};
        if (c.panel == SIZE_MAX || c.category == SIZE_MAX)
            return TW_FAIL(err, TW_E_MEMORY, "out of memory for the figure of '%s'", name);
        if (isnan(c.seconds) || isnan(c.bytes) || c.bytes < 0)
            return TW_FAIL(err, TW_E_INPUT,
                           "table '%s', row %zu: 'seconds' and 'bytes' must be numbers, bytes not negative", name,
                           row + 1);
        log->changes[log->n++] = c;
    }
    return TW_OK;
}

/* The levels of one panel at its times: time, then the running totals over categories. */
struct levels {
    double *time;  /* [n] */
    double *total; /* [n][n_categories] cumulated, the last is the sum */
    size_t n, n_categories;
    double peak, end;
};

static tw_status follow(struct levels *levels, const struct log *log, size_t panel, const size_t *rank,
                        struct tw_error *err) {
    const size_t n_categories = log->categories.n;
    double *const now = calloc(n_categories + 1, sizeof *now);
    *levels = (struct levels){.n_categories = n_categories};
    levels->time = malloc((log->n + 1) * sizeof *levels->time);
    levels->total = malloc((log->n + 1) * (n_categories + 1) * sizeof *levels->total);
    if (!now || !levels->time || !levels->total) {
        free(now);
        return TW_FAIL(err, TW_E_MEMORY, "out of memory for the figure");
    }
    for (size_t i = 0; i < log->n; i++) {
        const struct change *const c = &log->changes[i];
        if (c->panel != panel) continue;
        now[rank[c->category]] = c->bytes;
        if (levels->n == 0 || levels->time[levels->n - 1] < c->seconds) levels->time[levels->n++] = c->seconds;
        double sum = 0;
        for (size_t k = 0; k < n_categories; k++) {
            sum += now[k];
            levels->total[(levels->n - 1) * n_categories + k] = sum;
        }
        levels->end = fmax(levels->end, c->seconds);
    }
    for (size_t i = 0; i < levels->n; i++)
        levels->peak = fmax(levels->peak, levels->total[i * n_categories + n_categories - 1]);
    free(now);
    return TW_OK;
}

/* A level holds until the next change: each point is followed by its own level at the next one's time. */
static size_t write_levels(struct tw_figure *figure, const struct levels *levels, double end, double unit) {
    const size_t n = levels->n_categories, stride = tw_divide_up(levels->n ? levels->n : 1, MAX_POINTS);
    const size_t block = tw_figure_begin_block(figure);
    for (size_t i = 0; i < levels->n; i += stride) {
        size_t highest = i;
        for (size_t j = i; j < levels->n && j < i + stride; j++)
            if (levels->total[j * n + n - 1] > levels->total[highest * n + n - 1]) highest = j;
        const size_t next = i + stride;
        for (int edge = 0; edge < 2; edge++) {
            tw_text_printf(&figure->data, "%.6g ",
                           edge ? next < levels->n ? levels->time[next] : end : levels->time[i]);
            for (size_t k = 0; k < n; k++)
                tw_text_printf(&figure->data, "%.6g ", levels->total[highest * n + k] / unit);
            tw_text_append_char(&figure->data, '\n');
        }
    }
    tw_figure_end_block(figure);
    return block;
}

/* Fills that differ in lightness, so that neighbours can be told apart in grey. */
static const char *const fills[] = {"#08284f", "#9ec5e3", "#2470b4", "#f5c27a", "#d55e00", "#f7e3c1",
                                    "#6b3d00", "#a6d8c4", "#009e73", "#cfcfcf", "#7f7f7f"};
enum { N_FILLS = sizeof fills / sizeof *fills };

static void draw_panel(struct tw_figure *figure, const struct log *log, const struct levels *levels, size_t block,
                       const size_t *by_rank, double end, double top, const char *unit, bool legend) {
    struct tw_text *const script = &figure->script;
    const size_t n = levels->n_categories;
    tw_text_printf(script,
                   "set xlabel 'seconds since the prefill began'\nset ylabel 'memory (%s)'\nset xrange [0:%.6g]\n"
                   "set yrange [0:%.6g]\nplot",
                   unit, end > 0 ? end : 1, top);
    for (size_t k = 0; k < n; k++) {
        if (k == 0)
            tw_text_printf(script, " $d%zu using 1:2 with filledcurves y1=0", block);
        else
            tw_text_printf(script, ", \\\n  $d%zu using 1:%zu:%zu with filledcurves", block, k + 1, k + 2);
        tw_text_printf(script, " fillstyle solid noborder linecolor rgb '%s' notitle", fills[k % N_FILLS]);
    }
    tw_text_printf(script, ", \\\n  $d%zu using 1:%zu with lines linecolor rgb '#202020' linewidth 0.8 notitle", block,
                   n + 1);
    for (size_t k = n; legend && k-- > 0;) { /* the legend reads from top to bottom as the stack does */
        tw_text_printf(script, ", \\\n  keyentry with boxes fillstyle solid noborder linecolor rgb '%s' title ",
                       fills[k % N_FILLS]);
        tw_figure_quote(script, log->categories.items[by_rank[k]]);
    }
    tw_text_append_char(script, '\n');
}

/* Categories that change seldom at the bottom, so that what lies on them is level; of equals the larger one. */
static void rank_categories(size_t *rank, size_t *by_rank, const struct log *log, double *most, size_t *n_changes) {
    for (size_t c = 0; c < log->categories.n; c++) most[c] = 0, n_changes[c] = 0, by_rank[c] = c;
    for (size_t i = 0; i < log->n; i++) {
        const size_t c = log->changes[i].category;
        most[c] = fmax(most[c], log->changes[i].bytes);
        n_changes[c]++;
    }
    for (size_t i = 1; i < log->categories.n; i++)
        for (size_t j = i; j > 0; j--) {
            const size_t above = by_rank[j], below = by_rank[j - 1];
            if (n_changes[above] > n_changes[below] ||
                (n_changes[above] == n_changes[below] && most[above] <= most[below]))
                break;
            by_rank[j] = below;
            by_rank[j - 1] = above;
        }
    for (size_t k = 0; k < log->categories.n; k++) rank[by_rank[k]] = k;
}

static tw_status draw(struct tw_figure *figure, const struct tw_plot_options *options, struct log *log,
                      struct tw_error *err) {
    const size_t n_categories = log->categories.n;
    size_t *const rank = calloc(3 * n_categories + 1, sizeof *rank), *const by_rank = rank ? rank + n_categories : NULL;
    double *const most = calloc(n_categories + 1, sizeof *most);
    struct levels *const levels = calloc(log->panels.n, sizeof *levels);
    tw_status status = rank && most && levels ? TW_OK : TW_FAIL(err, TW_E_MEMORY, "out of memory for the figure");
    double end = 0, peak = 0;
    if (status == TW_OK) rank_categories(rank, by_rank, log, most, rank + 2 * n_categories);
    for (size_t p = 0; p < log->panels.n && status == TW_OK; p++) {
        status = follow(&levels[p], log, p, rank, err);
        end = fmax(end, levels[p].end);
        peak = fmax(peak, levels[p].peak);
    }
    if (status == TW_OK) {
        const bool large = peak >= 4 * 1024.0 * 1024 * 1024;
        const double unit = large ? 1024.0 * 1024 * 1024 : 1024.0 * 1024;
        struct tw_plot_panels places = {
            .n = log->panels.n, .legend_width = 200, .panel_width = 430, .panel_height = 380};
        tw_plot_panels_begin(figure, &places, options->title ? options->title : log->common);
        for (size_t p = 0; p < log->panels.n; p++) {
            char title[700];
            snprintf(title, sizeof title, "%s: peak %.4g %s", log->panels.items[p], levels[p].peak / unit,
                     large ? "GiB" : "MiB");
            tw_plot_panel(figure, &places, p, title);
            const size_t block = write_levels(figure, &levels[p], levels[p].end, unit);
            draw_panel(figure, log, &levels[p], block, by_rank, end, peak > 0 ? peak / unit * 1.08 : 1,
                       large ? "GiB" : "MiB", p == 0);
        }
        tw_plot_panels_end(figure);
    }
    for (size_t p = 0; levels && p < log->panels.n; p++) {
        free(levels[p].time);
        free(levels[p].total);
    }
    free(levels);
    free(rank);
    free(most);
    return status;
}

static tw_status make(struct tw_figure *figure, const struct tw_plot_input *input,
                      const struct tw_plot_options *options, struct tw_error *err) {
    struct log log = {0};
    tw_status status = TW_OK;
    bool common[N_PARTS];
    find_common(common, input, options);
    for (size_t i = 0; i < input->n_tables; i++)
        TW_TRY_GOTO(status, done, collect(&log, common, &input->tables[i], input->names[i], options, err));
    if (!log.n) {
        status = TW_FAIL(err, TW_E_INPUT, "table '%s' has no rows of what was asked for", input->names[0]);
        goto done;
    }
    if (log.panels.n > TW_PLOT_MAX_PANELS) {
        status = TW_FAIL(err, TW_E_INPUT, "table '%s' holds %zu prefills, more than the %d panels of a figure",
                         input->names[0], log.panels.n, TW_PLOT_MAX_PANELS);
        goto done;
    }
    qsort(log.changes, log.n, sizeof *log.changes, by_panel_time);
    status = draw(figure, options, &log, err);
done:
    free(log.changes);
    tw_plot_names_release(&log.panels);
    tw_plot_names_release(&log.categories);
    return status;
}

const struct tw_plot_kind tw_plot_timeline = {
    .name = "timeline",
    .summary = "memory over a prefill by category, schedules side by side, from a memory log",
    .columns = "schedule,seconds,category,bytes",
    .make = make,
};
