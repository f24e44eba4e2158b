/* The figures of a study: which kinds, from what, and what the reader is told about each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/plot.h"
#include "cli/command.h"
#include "cli/study/study.h"
#include "traces/trace.h"

enum source { FROM_REPLAY, FROM_MATCHED, FROM_GRADING, FROM_ALL_TRACES, FROM_FIRST_TRACE };

static const struct figure {
    const char *kind; /* of `plot` */
    enum source source;
    const char *caption, *alt;
} figures[] = {
    {"miss-rate", FROM_REPLAY,
     "Miss rate against resident memory, a curve a policy; the floor is Belady's optimum. Lower and further left is better.",
     "Curves of miss rate against mean resident pages for each residency policy"},
    {"matched", FROM_MATCHED,
     "Each policy against reactive at the same memory: above the diagonal reactive misses less.",
     "Scatter of comparators' miss rates against reactive's at matched memory"},
    {"churn", FROM_ALL_TRACES,
     "How alike the page sets of adjacent steps are, over the run (Jaccard, mean over heads).",
     "Curves of page-set Jaccard over decode steps"},
    {"heads", FROM_FIRST_TRACE, "Heads of the first run, layer by head: instability, drift events, needle score.",
     "Heat maps of heads by layer"},
    {"attention", FROM_FIRST_TRACE,
     "What one head of the first run, the one that reads the needle most, attends to: step by page.",
     "Heat map of attention weight by decode step and page"},
    {"wakeups", FROM_FIRST_TRACE, "Wake-ups of the first run: which head begins to read the needle again, and when.",
     "Raster of wake-ups, head by decode step"},
    {"precision-recall", FROM_GRADING, "How well each signal foretells wake-ups, by how many steps ahead it may alarm.",
     "Precision against recall for each signal and lead"},
};

static const struct tw_plot_kind *find_kind(const char *name) {
    for (const struct tw_plot_kind *const *k = tw_plot_kinds; *k; k++)
        if (strcmp((*k)->name, name) == 0) return *k;
    return NULL;
}

static tw_status draw(struct tw_study *study, const struct figure *figure, const struct tw_plot_kind *kind,
                      const struct tw_plot_input *input, struct tw_report *report, struct tw_error *err) {
    static const char *const endings[] = {"svg", "png"};
    for (size_t e = 0; e < 2; e++) {
        char name[64];
        snprintf(name, sizeof name, "figures/%s.%s", figure->kind, endings[e]);
        char *path = tw_study_path(study, name, err);
        if (!path) return TW_E_INPUT;
        struct tw_text notes = {0};
        const struct tw_plot_options options = {.layer = study->shown_layer, .head = study->shown_head};
        tw_status status = tw_plot(kind, input, &options, path, false, &notes, err);
        if (status == TW_OK) {
            tw_study_made(study, path);
            if (e == 0) status = tw_report_figure(report, path, figure->caption, figure->alt, err);
        }
        if (e == 0 && notes.size) tw_report_paragraph(report, "%s", tw_text_string(&notes));
        tw_text_release(&notes);
        free(path);
        if (status == TW_E_UNSUPPORTED || status == TW_E_INPUT) {
            /* No gnuplot, or data that this kind cannot be drawn from: the rest of the study is worth having. */
            tw_warn("the figure '%s' is left out: %s", name, err->text);
            if (e == 0) tw_report_paragraph(report, "The figure '%s' could not be drawn: %s.", figure->kind, err->text);
            return TW_OK;
        }
        TW_TRY(status);
    }
    return TW_OK;
}

tw_status tw_study_draw(struct tw_study *study, struct tw_report *report, struct tw_error *err) {
    static const char *const names[] = {[FROM_REPLAY] = "tables/replay.csv",
                                        [FROM_MATCHED] = "tables/matched.csv",
                                        [FROM_GRADING] = "tables/grading.csv"};
    static const enum tw_study_table tables[] = {
        [FROM_REPLAY] = TW_STUDY_REPLAY, [FROM_MATCHED] = TW_STUDY_MATCHED, [FROM_GRADING] = TW_STUDY_GRADING};
    struct tw_trace **traces = calloc(study->n_traces + 1, sizeof *traces);
    if (!traces) return TW_FAIL(err, TW_E_MEMORY, "out of memory for the traces of the figures");
    tw_status status = TW_OK;
    for (size_t i = 0; i < study->n_traces && status == TW_OK; i++)
        status = tw_trace_open(&traces[i], study->traces[i], err);
    for (size_t i = 0; i < sizeof figures / sizeof *figures && status == TW_OK; i++) {
        const struct figure *figure = &figures[i];
        const struct tw_plot_kind *kind = find_kind(figure->kind);
        struct tw_plot_input input = {.progress = study->progress};
        if (figure->source < FROM_ALL_TRACES) {
            input.tables = &study->tables[tables[figure->source]];
            input.names = &names[figure->source];
            input.n_tables = 1;
            if (input.tables->n_columns == 0) continue;
        } else {
            input.traces = traces;
            input.n_traces = figure->source == FROM_FIRST_TRACE ? 1 : study->n_traces;
        }
        if (kind) status = draw(study, figure, kind, &input, report, err);
    }
    for (size_t i = 0; i < study->n_traces; i++) tw_trace_free(traces[i]);
    free(traces);
    return status;
}
