/*
 * A raster of wake-ups: a dot for each head and step at which it wakes, over how many heads wake at each step. A panel
 * a trace. Light bands are the busiest steps of the clustering measure.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/plot.h"
#include "analysis/plot_table.h"
#include "analysis/wakeups.h"
#include "base/checked.h"

static void draw_raster(struct tw_figure *figure, const struct tw_wakeups *run) {
    struct tw_text *const script = &figure->script;
    const size_t block = tw_figure_begin_block(figure);
    for (size_t h = 0; h < run->n; h++)
        for (size_t i = 0; i < run->heads[h].n_events; i++)
            tw_text_printf(&figure->data, "%u %.4f\n", run->heads[h].event[i],
                           (double)(run->heads[h].head / run->n_heads) +
                               ((double)(run->heads[h].head % run->n_heads) + 0.5) / (double)run->n_heads);
    tw_figure_end_block(figure);
    tw_text_printf(script,
                   "set xlabel ''\nset format x ''\nset ylabel 'layer (heads within)'\nset xrange [0:%zu]\n"
                   "set yrange [0:%zu]\nset ytics %zu\n",
                   run->n_steps, run->n_layers, tw_max_size(1, tw_divide_up(run->n_layers, 8)));
    if (run->n_events)
        tw_text_printf(script,
                       "plot $d%zu using 1:2 with points pointtype 7 pointsize %s*mark linecolor rgb '%s' notitle\n",
                       block, run->n_events > 600 ? "0.25" : "0.5", tw_figure_colour(0));
    else
        tw_text_append(script, TW_VIEW("plot NaN notitle\n"));
}

static void draw_counts(struct tw_figure *figure, const struct tw_wakeups *run, const uint32_t *count) {
    struct tw_text *const script = &figure->script;
    const size_t block = tw_figure_begin_block(figure);
    uint32_t most = 1;
    for (size_t t = 0; t < run->n_steps; t++) {
        most = count[t] > most ? count[t] : most;
        if (count[t]) tw_text_printf(&figure->data, "%zu %u\n", t, count[t]);
    }
    tw_figure_end_block(figure);
    tw_text_printf(script,
                   "set xlabel 'decode step'\nset format x '%%g'\nset ylabel 'heads waking'\nset yrange [0:%.4g]\n"
                   "set ytics %u\n",
                   most * 1.1, (most + 2) / 3);
    if (run->n_events)
        tw_text_printf(script, "plot $d%zu using 1:2 with impulses linewidth 1.2 linecolor rgb '%s' notitle\n", block,
                       tw_figure_colour(1));
    else
        tw_text_append(script, TW_VIEW("plot NaN notitle\n"));
}

static tw_status draw_trace(struct tw_figure *figure, const struct tw_plot_panels *places, size_t place,
                            const struct tw_wakeups *run, const char *title, struct tw_error *err) {
    uint32_t *const count = calloc(run->n_steps + 1, sizeof *count);
    if (!count) return TW_FAIL(err, TW_E_MEMORY, "out of memory for the figure");
    for (size_t h = 0; h < run->n; h++)
        for (size_t i = 0; i < run->heads[h].n_events; i++) count[run->heads[h].event[i]]++;
    /* The panel is divided: two thirds for the raster, one for the counts below it. */
    tw_plot_panel(figure, places, place, title);
    tw_plot_panel_part(figure, places, place, 0.36, 1);
    draw_raster(figure, run);
    tw_plot_panel_part(figure, places, place, 0, 0.28);
    tw_text_append(&figure->script, TW_VIEW("unset title\n"));
    draw_counts(figure, run, count);
    free(count);
    return TW_OK;
}

static tw_status make(struct tw_figure *figure, const struct tw_plot_input *input,
                      const struct tw_plot_options *options, struct tw_error *err) {
    if (input->n_traces > TW_PLOT_MAX_PANELS)
        return TW_FAIL(err, TW_E_INPUT, "%zu traces are too many for a figure of at most %d panels", input->n_traces,
                       TW_PLOT_MAX_PANELS);
    struct tw_plot_panels places = {
        .n = input->n_traces, .panel_width = input->n_traces == 1 ? 760 : 520, .panel_height = 420};
    tw_plot_panels_begin(figure, &places, options->title);
    tw_status status = TW_OK;
    for (size_t i = 0; i < input->n_traces && status == TW_OK; i++) {
        struct tw_trace *const trace = input->traces[i];
        if (!tw_trace_has(trace, TW_TRACE_NEEDLE))
            return TW_FAIL(err, TW_E_INPUT, "trace '%s' has no %s, so its wake-ups cannot be drawn",
                           tw_trace_path(trace), tw_trace_dataset_path(TW_TRACE_NEEDLE));
        struct tw_wakeups run;
        char title[900];
        TW_TRY(tw_wakeups_measure(&run, trace, tw_plot_page_size(options), NULL, 0, input->progress, err));
        tw_plot_trace_title(title, 512, trace);
        const size_t n = strlen(title);
        snprintf(title + n, sizeof title - n, "%s%s: %zu wake-up%s, by %zu of %zu heads", *run.name.run ? ", " : "",
                 run.name.run, run.n_events, run.n_events == 1 ? "" : "s", run.n_heads_with_event,
                 run.n_layers * run.n_heads);
        if (!run.n_events) tw_figure_note(figure, "no head of trace '%s' wakes up", tw_trace_path(trace));
        status = draw_trace(figure, &places, i, &run, title, err);
        tw_wakeups_release(&run);
    }
    tw_plot_panels_end(figure);
    return status;
}

const struct tw_plot_kind tw_plot_wakeups = {
    .name = "wakeups",
    .summary = "raster of wake-ups: which head wakes at which step, and how many together",
    .wants_traces = true,
    .make = make,
};
