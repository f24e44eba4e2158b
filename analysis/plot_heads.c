/*
 * Heat maps of heads, layer by head: instability (1 - mean temporal stability), drift events, mean needle score. Traces
 * of equally many layers and heads are averaged.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/churn.h"
#include "analysis/plot.h"
#include "analysis/plot_table.h"
#include "base/checked.h"

enum { INSTABILITY, DRIFTS, NEEDLE, N_MAPS };
static const struct {
    const char *title, *unit;
    double top; /* of the colours; 0: by the data */
} maps[N_MAPS] = {
    {"instability", "1 - mean stability", 1},
    {"drift events", "events a run", 0},
    {"needle score", "mean over steps", 0},
};

struct heat {
    size_t n_layers, n_heads;
    double *value[N_MAPS]; /* [n_layers * n_heads] sums over traces */
    size_t n[N_MAPS];
};

static void add_trace(struct heat *heat, const struct tw_churn *churn) {
    const struct tw_page_churn *const pages = &churn->pages[0];
    for (size_t h = 0; churn->n_steps > 1 && h < heat->n_layers * heat->n_heads; h++)
        heat->value[INSTABILITY][h] += 1 - pages->stability[h];
    heat->n[INSTABILITY] += churn->n_steps > 1;
    for (size_t i = 0; i < pages->n_drifts; i++) heat->value[DRIFTS][pages->drift[i].head]++;
    heat->n[DRIFTS]++;
    for (size_t h = 0; churn->needle_mean && h < heat->n_layers * heat->n_heads; h++)
        heat->value[NEEDLE][h] += churn->needle_mean[h];
    heat->n[NEEDLE] += churn->needle_mean != NULL;
}

static tw_status measure(struct heat *heat, const struct tw_plot_input *input, uint64_t page_size,
                         struct tw_error *err) {
    const struct tw_trace_info *const first = tw_trace_info(input->traces[0]);
    heat->n_layers = first->n_layers;
    heat->n_heads = first->n_heads;
    for (size_t m = 0; m < N_MAPS; m++) {
        heat->value[m] = calloc(heat->n_layers * heat->n_heads, sizeof *heat->value[m]);
        if (!heat->value[m]) return TW_FAIL(err, TW_E_MEMORY, "out of memory for the figure");
    }
    for (size_t i = 0; i < input->n_traces; i++) {
        const struct tw_trace_info *const info = tw_trace_info(input->traces[i]);
        if (info->n_layers != heat->n_layers || info->n_heads != heat->n_heads)
            return TW_FAIL(
                err, TW_E_INPUT,
                "trace '%s' has %zu layers of %zu heads, the first one %zu of %zu: a heat map needs equal ones",
                tw_trace_path(input->traces[i]), info->n_layers, info->n_heads, heat->n_layers, heat->n_heads);
        struct tw_churn churn;
        TW_TRY(tw_churn_measure(&churn, input->traces[i], &page_size, 1, input->progress, err));
        add_trace(heat, &churn);
        tw_churn_release(&churn);
    }
    return TW_OK;
}

static void draw_map(struct tw_figure *figure, const struct heat *heat, size_t m) {
    struct tw_text *const script = &figure->script;
    const size_t block = tw_figure_begin_block(figure);
    double top = 0;
    for (size_t l = 0; l < heat->n_layers; l++)
        for (size_t h = 0; h < heat->n_heads; h++) {
            const double value = heat->value[m][l * heat->n_heads + h] / (double)heat->n[m];
            top = fmax(top, value);
            tw_figure_number(figure, (double)h);
            tw_figure_number(figure, (double)l);
            tw_figure_number(figure, value);
            tw_text_append_char(&figure->data, '\n');
        }
    tw_figure_end_block(figure);
    if (maps[m].top > 0) top = maps[m].top;
    tw_text_printf(script,
                   "set xlabel 'query head'\nset ylabel 'layer'\nset cblabel '%s'\n"
                   "set xrange [-0.5:%zu.5]\nset yrange [-0.5:%zu.5]\nset cbrange [0:%.6g]\nunset grid\n"
                   "set xtics %zu\nset ytics %zu\n"
                   "plot $d%zu using 1:2:3 with image pixels notitle\n",
                   maps[m].unit, heat->n_heads - 1, heat->n_layers - 1, top > 0 ? top : 1,
                   tw_divide_up(heat->n_heads, 10), tw_divide_up(heat->n_layers, 12), block);
}

static tw_status make(struct tw_figure *figure, const struct tw_plot_input *input,
                      const struct tw_plot_options *options, struct tw_error *err) {
    struct heat heat = {0};
    const uint64_t page_size = tw_plot_page_size(options);
    const tw_status status = measure(&heat, input, page_size, err);
    if (status == TW_OK) {
        char title[700];
        tw_plot_trace_title(title, sizeof title - 64, input->traces[0]);
        if (input->n_traces > 1) {
            const size_t n = strlen(title);
            snprintf(title + n, sizeof title - n, " (mean of %zu traces)", input->n_traces);
        }
        size_t n_maps = 0;
        for (size_t m = 0; m < N_MAPS; m++) n_maps += heat.n[m] > 0;
        if (!heat.n[NEEDLE]) tw_figure_note(figure, "no trace has needle scores, so there is no map of them");
        struct tw_plot_panels places = {.n = n_maps, .columns = n_maps, .panel_width = 340, .panel_height = 420};
        tw_plot_panels_begin(figure, &places, options->title ? options->title : title);
        tw_plot_ramp(&figure->script);
        tw_text_append(&figure->script, TW_VIEW("set border 15\nset tics out\nunset key\n"));
        for (size_t m = 0, place = 0; m < N_MAPS; m++) {
            if (!heat.n[m]) continue;
            places.colour_box = true;
            tw_plot_panel(figure, &places, place++, maps[m].title);
            draw_map(figure, &heat, m);
        }
        tw_plot_panels_end(figure);
    }
    for (size_t m = 0; m < N_MAPS; m++) free(heat.value[m]);
    return status;
}

const struct tw_plot_kind tw_plot_heads = {
    .name = "heads",
    .summary = "heat maps of layers by heads: instability, drift events, needle score",
    .wants_traces = true,
    .make = make,
};
