#include "analysis/plot_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parse.h"

const char *tw_plot_cell_text(char buffer[32], const struct tw_table *table, size_t row, size_t column) {
    if (column == SIZE_MAX) return "";
    const struct tw_cell *const cell = tw_table_cell(table, row, column);
    switch (cell->type) {
    case TW_CELL_TEXT: return cell->text;
    case TW_CELL_UINT: snprintf(buffer, 32, "%llu", (unsigned long long)cell->u); return buffer;
    case TW_CELL_INT: snprintf(buffer, 32, "%lld", (long long)cell->i); return buffer;
    case TW_CELL_DOUBLE: snprintf(buffer, 32, "%.10g", cell->d); return buffer;
    case TW_CELL_EMPTY: break;
    }
    return "";
}

double tw_plot_cell_number(const struct tw_table *table, size_t row, size_t column) {
    double value;
    return column != SIZE_MAX && tw_cell_number(&value, tw_table_cell(table, row, column)) && isfinite(value) ? value
                                                                                                              : NAN;
}

tw_status tw_plot_need_columns(const struct tw_table *table, const char *name, const char *columns,
                               struct tw_error *err) {
    struct tw_view piece, rest = tw_view_of(columns);
    while (tw_parse_next(&piece, &rest, ',')) {
        char column[64];
        snprintf(column, sizeof column, "%.*s", (int)piece.size, piece.data);
        if (tw_table_column(table, column) == SIZE_MAX)
            return TW_FAIL(err, TW_E_INPUT, "table '%s' has no column '%s'; this figure needs %s", name, column,
                           columns);
    }
    return TW_OK;
}

static bool matches(const struct tw_table *table, size_t row, const char *column, const char *wanted) {
    char buffer[32];
    const size_t c = tw_table_column(table, column);
    return !wanted || c == SIZE_MAX || strcmp(tw_plot_cell_text(buffer, table, row, c), wanted) == 0;
}

bool tw_plot_row_wanted(const struct tw_table *table, size_t row, const struct tw_plot_options *options) {
    const size_t page_size = tw_table_column(table, "page_size");
    return matches(table, row, "model", options->model) && matches(table, row, "task", options->task) &&
           matches(table, row, "unit", options->unit) &&
           (!options->page_size || page_size == SIZE_MAX ||
            tw_plot_cell_number(table, row, page_size) == (double)options->page_size);
}

size_t tw_plot_name(struct tw_plot_names *names, const char *text) {
    for (size_t i = 0; i < names->n; i++)
        if (strcmp(names->items[i], text) == 0) return i;
    char **const items = realloc(names->items, (names->n + 1) * sizeof *items);
    if (!items) return SIZE_MAX;
    names->items = items;
    if (!(items[names->n] = strdup(text))) return SIZE_MAX;
    return names->n++;
}

void tw_plot_names_release(struct tw_plot_names *names) {
    for (size_t i = 0; i < names->n; i++) free(names->items[i]);
    free(names->items);
    *names = (struct tw_plot_names){0};
}

size_t tw_plot_policy_look(const char *policy, size_t *other) {
    static const char *const own[] = {"reactive", "evict", "frozen", "snapkv", "rkv", "reasonalloc", "min", "full"};
    const char *const colon = strchr(policy, ':');
    const struct tw_view name = {policy, colon ? (size_t)(colon - policy) : strlen(policy)};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (tw_view_equal(name, tw_view_of(own[i])) && !colon) return i;
    return TW_N_LOOKS + (*other)++;
}

void tw_plot_panels_begin(struct tw_figure *figure, struct tw_plot_panels *panels, const char *title) {
    if (!panels->columns) panels->columns = panels->n <= 1 ? 1 : panels->n <= 4 ? 2 : 3;
    if (!panels->panel_width) panels->panel_width = panels->columns == 1 ? 560 : 430;
    if (!panels->panel_height) panels->panel_height = panels->n == 1 ? 430 : 330;
    panels->rows = (panels->n + panels->columns - 1) / panels->columns;
    panels->top = title && *title ? 34 : 6;
    panels->key_in_cell = panels->rows > 1 && panels->n % panels->columns && panels->legend_width &&
                          panels->legend_width <= panels->panel_width;
    figure->width = (unsigned)panels->columns * panels->panel_width + (panels->key_in_cell ? 0 : panels->legend_width);
    figure->height = (unsigned)panels->rows * panels->panel_height + panels->top;
    tw_text_append(&figure->script, TW_VIEW("set multiplot\n"));
    if (title && *title) {
        tw_text_append(&figure->script, TW_VIEW("set label 1000 "));
        tw_figure_quote(&figure->script, title);
        tw_text_printf(&figure->script, " at screen 0.5, screen %.4f center noenhanced\n", 1 - 18.0 / figure->height);
    }
}

/* Where panel i lies, in 1/96 inch from the left and the top. */
struct box {
    double left, right, top, bottom;
};

static struct box box_of(const struct tw_plot_panels *panels, size_t i) {
    const double column = (double)(i % panels->columns), row = (double)(i / panels->columns);
    return (struct box){.left = column * panels->panel_width + 80,
                        .right = (column + 1) * panels->panel_width - (panels->colour_box ? 116 : 20),
                        .top = panels->top + row * panels->panel_height + 32,
                        .bottom = panels->top + (row + 1) * panels->panel_height - (panels->key_below ? 96 : 64)};
}

void tw_plot_panel_part(struct tw_figure *figure, const struct tw_plot_panels *panels, size_t i, double low,
                        double high) {
    const struct box box = box_of(panels, i);
    const double height = box.bottom - box.top;
    tw_text_printf(&figure->script, "set tmargin at screen %.4f\nset bmargin at screen %.4f\n",
                   1 - (box.bottom - high * height) / figure->height, 1 - (box.bottom - low * height) / figure->height);
}

void tw_plot_panel(struct tw_figure *figure, const struct tw_plot_panels *panels, size_t i, const char *title) {
    const double w = figure->width, h = figure->height;
    const struct box box = box_of(panels, i);
    struct tw_text *const script = &figure->script;
    tw_text_printf(script, "set lmargin at screen %.4f\nset rmargin at screen %.4f\n", box.left / w, box.right / w);
    tw_plot_panel_part(figure, panels, i, 0, 1);
    if (panels->colour_box)
        tw_text_printf(script, "set colorbox user origin screen %.4f, screen %.4f size screen %.4f, screen %.4f\n",
                       (box.right + 12) / w, 1 - box.bottom / h, 12 / w, (box.bottom - box.top) / h);
    if (i == 0 && panels->key_below)
        tw_text_printf(script, "set key at screen %.4f, screen %.4f left bottom Left reverse horizontal\n",
                       box.left / w, 10 / h);
    else if (i == 0 && panels->key_in_cell)
        tw_text_printf(script, "set key at screen %.4f, screen %.4f left top Left reverse vertical\n",
                       box_of(panels, panels->n).left / w, 1 - box_of(panels, panels->n).top / h);
    else if (i == 0 && panels->legend_width)
        tw_text_printf(script, "set key at screen %.4f, screen %.4f left top Left reverse vertical\n",
                       (double)(panels->columns * panels->panel_width) / w, 1 - box.top / h);
    else
        tw_text_append(script, TW_VIEW("unset key\n"));
    if (i > 0) tw_text_append(script, TW_VIEW("unset label 1000\n"));
    tw_text_append(script, TW_VIEW("set title "));
    tw_figure_quote(script, title);
    tw_text_append(script, TW_VIEW(" noenhanced offset 0,-0.4\n"));
}

void tw_plot_panels_end(struct tw_figure *figure) { tw_text_append(&figure->script, TW_VIEW("unset multiplot\n")); }

void tw_plot_trace_title(char *title, size_t size, const struct tw_trace *trace) {
    const struct tw_trace_info *const info = tw_trace_info(trace);
    const char *const model = info->model ? info->model : "", *const task = info->task ? info->task : "";
    const char *const slash = strrchr(tw_trace_path(trace), '/');
    if (*model || *task)
        snprintf(title, size, "%s%s%s", model, *model && *task ? ", " : "", task);
    else
        snprintf(title, size, "%s", slash ? slash + 1 : tw_trace_path(trace));
}

void tw_plot_ramp(struct tw_text *script) {
    tw_text_append(script,
                   TW_VIEW("set palette defined (0 '#ffffff', 1 '#d3e3f3', 2 '#9ec5e3', 3 '#5a9fd0', 4 '#2470b4', "
                           "5 '#0b4a8c', 6 '#08284f')\n"));
}
