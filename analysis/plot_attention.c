/*
 * Attention of one head over time: decode step by page of the context, coloured by the logged weight that falls on the
 * page. Large pictures are reduced to cells of several steps or pages that show the largest value in them. The needle's
 * span is marked, and the end of the prompt.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/plot.h"
#include "analysis/plot_table.h"
#include "base/checked.h"
#include "base/half.h"
#include "traces/demand.h"

enum { MAX_COLUMNS = 1200, MAX_ROWS = 600 };
static const double least = 1e-3; /* weight at the white end of the colours */

struct grid {
    float *cell; /* [n_rows][n_columns] largest weight of a page at a step */
    size_t n_columns, n_rows;
    size_t steps_a_column, pages_a_row;
};

static tw_status fill(struct grid *grid, struct tw_trace *trace, size_t layer, size_t head, uint64_t page_size,
                      struct tw_error *err) {
    const struct tw_trace_info *const info = tw_trace_info(trace);
    const int32_t *const context_length = tw_trace_context_length(trace);
    const struct tw_demand_source source = {
        .page_size = page_size, .unit = TW_UNIT_QUERY, .scores = true, .first_step = 0, .n_steps = info->n_steps};
    int32_t longest = 1;
    for (size_t t = 0; t < info->n_steps; t++) longest = context_length[t] > longest ? context_length[t] : longest;
    const size_t n_pages = (size_t)(((uint64_t)longest - 1) / page_size) + 1;
    grid->steps_a_column = tw_divide_up(info->n_steps, MAX_COLUMNS);
    grid->pages_a_row = tw_divide_up(n_pages, MAX_ROWS);
    grid->n_columns = tw_divide_up(info->n_steps, grid->steps_a_column);
    grid->n_rows = tw_divide_up(n_pages, grid->pages_a_row);
    grid->cell = calloc(grid->n_columns * grid->n_rows, sizeof *grid->cell);
    if (!grid->cell) return TW_FAIL(err, TW_E_MEMORY, "out of memory for the figure");
    struct tw_demand demand = {0};
    const tw_status status = tw_demand_read(&demand, trace, &source, layer, err);
    for (size_t t = 0; status == TW_OK && t < info->n_steps; t++) {
        const struct tw_demand_row row = tw_demand_row(&demand, head, t);
        for (size_t i = 0; i < row.n; i++) {
            const size_t r = tw_demand_true_page(&demand, row.page[i]) / grid->pages_a_row;
            float *const cell = &grid->cell[r * grid->n_columns + t / grid->steps_a_column];
            *cell = fmaxf(*cell, (float)((double)row.score[i] * 0x1p-24));
        }
    }
    tw_demand_release(&demand);
    return status;
}

static void draw(struct tw_figure *figure, const struct grid *grid, const struct tw_trace_info *info,
                 uint64_t page_size) {
    struct tw_text *const script = &figure->script;
    const size_t block = tw_figure_begin_block(figure);
    for (size_t r = 0; r < grid->n_rows; r++) {
        for (size_t c = 0; c < grid->n_columns; c++) {
            const double weight = (double)grid->cell[r * grid->n_columns + c];
            tw_text_printf(&figure->data, "%.3g ", weight > least ? weight : least);
        }
        tw_text_append_char(&figure->data, '\n');
    }
    tw_figure_end_block(figure);
    const double width = (double)grid->steps_a_column, height = (double)grid->pages_a_row;
    const double right = (double)grid->n_columns * width - 0.5, top = (double)grid->n_rows * height - 0.5;
    tw_text_printf(script,
                   "set xlabel 'decode step'\nset ylabel 'page of the context (%llu tokens a page)'\n"
                   "set cblabel 'attention weight on the page (logged part)'\n"
                   "set logscale cb\nset cbrange [%g:1]\nset format cb '%%g'\n"
                   "set xrange [-0.5:%.1f]\nset yrange [-0.5:%.1f]\nunset grid\n",
                   (unsigned long long)page_size, least, right, top);
    const double prompt = (double)info->prompt_length / (double)page_size;
    tw_text_printf(
        script,
        "set arrow 1 from -0.5,%.2f to %.1f,%.2f nohead front linecolor rgb '#d55e00' linewidth 1.6 dashtype 2\n",
        prompt, right, prompt);
    if (info->has_needle)
        tw_text_printf(
            script,
            "set arrow 2 from graph -0.012, first %.2f to graph -0.012, first %.2f nohead front linecolor rgb "
            "'#d55e00' linewidth 4\n",
            (double)info->needle_begin / (double)page_size - 0.5, (double)info->needle_end / (double)page_size + 0.5);
    tw_text_printf(script,
                   "plot $d%zu matrix using (($1+0.5)*%.0f-0.5):(($2+0.5)*%.0f-0.5):3 with image notitle, \\\n"
                   "  keyentry with lines linecolor rgb '#d55e00' linewidth 1.6 dashtype 2 title 'end of the prompt'",
                   block, width, height);
    if (info->has_needle)
        tw_text_append(script,
                       TW_VIEW(", \\\n  keyentry with lines linecolor rgb '#d55e00' linewidth 4 title 'needle'"));
    tw_text_append_char(script, '\n');
}

static tw_status make(struct tw_figure *figure, const struct tw_plot_input *input,
                      const struct tw_plot_options *options, struct tw_error *err) {
    struct tw_trace *const trace = input->traces[0];
    const struct tw_trace_info *const info = tw_trace_info(trace);
    if (input->n_traces != 1)
        return TW_FAIL(err, TW_E_OPTION, "plot attention takes one trace, not %zu", input->n_traces);
    if (options->layer >= info->n_layers || options->head >= info->n_heads)
        return TW_FAIL(err, TW_E_OPTION,
                       "trace '%s' has layers 0..%zu and heads 0..%zu, so there is no layer %zu, head %zu",
                       tw_trace_path(trace), info->n_layers - 1, info->n_heads - 1, options->layer, options->head);
    if (info->n_steps == 0) return TW_FAIL(err, TW_E_INPUT, "trace '%s' holds no steps", tw_trace_path(trace));
    struct grid grid = {0};
    const uint64_t page_size = tw_plot_page_size(options);
    const tw_status status = fill(&grid, trace, options->layer, options->head, page_size, err);
    if (status == TW_OK) {
        char title[700];
        tw_plot_trace_title(title, sizeof title - 64, trace);
        const size_t n = strlen(title);
        snprintf(title + n, sizeof title - n, ": layer %zu, query head %zu", options->layer, options->head);
        struct tw_plot_panels places = {
            .n = 1, .panel_width = 860, .panel_height = 520, .colour_box = true, .key_below = true};
        tw_plot_panels_begin(figure, &places, options->title);
        tw_plot_ramp(&figure->script);
        tw_text_append(&figure->script, TW_VIEW("set border 15\nset tics out\n"));
        tw_plot_panel(figure, &places, 0, title);
        draw(figure, &grid, info, page_size);
        tw_plot_panels_end(figure);
    }
    free(grid.cell);
    return status;
}

const struct tw_plot_kind tw_plot_attention = {
    .name = "attention",
    .summary = "attention of one head over time, step by page (--layer, --head)",
    .wants_traces = true,
    .make = make,
};
