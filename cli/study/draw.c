/* The figures of a study: which kinds, from what, and what the reader is told about each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/plot.h"
#include "base/parse.h"
#include "cli/command.h"
#include "cli/study/study.h"
#include "traces/trace.h"

enum source {
    FROM_REPLAY,
    FROM_COUNTED, /* comparisons at matched memory */
    FROM_ALL_TRACES,
    FROM_FIRST_TRACE,
    FROM_WAKEFUL_TRACE, /* the one with the most wake-ups */
    FROM_WAKEFUL_TASK   /* the runs of the model and task with the most wake-ups */
};

static const struct figure {
    const char *kind; /* of `plot` */
    enum source source;
    const char *caption, *alt;
} figures[] = {
    {"miss-rate", FROM_REPLAY,
     "Miss rate against resident memory, a curve a policy; the floor is Belady's optimum. Lower and further left is better.",
     "Curves of miss rate against mean resident pages for each residency policy"},
    {"matched", FROM_COUNTED,
     "Each policy against reactive (the reference) at the same memory: above the diagonal reactive misses less.",
     "Scatter of comparators' miss rates against reactive's at matched memory"},
    {"churn", FROM_ALL_TRACES,
     "How alike adjacent steps are, over the run (Jaccard; 1: the same): the pages that a head reads, mean over heads, and "
     "the set of heads that read the needle. Lines are running means, over an eighth of the run at most.",
     "Curves of Jaccard of adjacent decode steps"},
    {"heads", FROM_FIRST_TRACE,
     "Heads, layer by head: instability (1 - temporal stability), drift events, needle score.",
     "Heat maps of heads by layer"},
    {"attention", FROM_FIRST_TRACE, "What the head that reads the needle most attends to: step by page.",
     "Heat map of attention weight by decode step and page"},
    {"wakeups", FROM_WAKEFUL_TRACE,
     "Wake-ups of the run that has the most: which head begins to read the needle again, and when.",
     "Raster of wake-ups, head by decode step"},
    {"precision-recall", FROM_WAKEFUL_TASK,
     "How well each signal foretells the wake-ups of the task that has the most, by how many steps ahead it may alarm "
     "(the numbers at points).",
     "Precision against recall for each signal and lead"},
};

static const struct tw_plot_kind *find_kind(const char *name) {
    for (const struct tw_plot_kind *const *k = tw_plot_kinds; *k; k++)
        if (strcmp((*k)->name, name) == 0) return *k;
    return NULL;
}

/* The caption, the run that is shown when it is one alone, and what the figure itself has to say. */
static void caption_of(struct tw_text *caption, const struct figure *figure, const struct tw_plot_input *input,
                       const struct tw_text *notes) {
    tw_text_append(caption, tw_view_of(figure->caption));
    if (input->n_traces == 1 && tw_trace_info(input->traces[0])->run)
        tw_text_printf(caption, " Run: %s.", tw_trace_info(input->traces[0])->run);
    struct tw_view note, rest = tw_text_view(notes);
    while (rest.size && tw_parse_next(&note, &rest, '\n'))
        if (note.size) tw_text_printf(caption, " Note: %.*s.", (int)note.size, note.data);
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
            struct tw_text caption = {0};
            caption_of(&caption, figure, input, &notes);
            if (e == 0) status = tw_report_figure(report, path, tw_text_string(&caption), figure->alt, err);
            tw_text_release(&caption);
        }
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

/* Whether two traces are of one model and task. */
static bool together(const struct tw_trace *a, const struct tw_trace *b) {
    const struct tw_trace_info *const x = tw_trace_info(a), *const y = tw_trace_info(b);
    return strcmp(x->model ? x->model : "", y->model ? y->model : "") == 0 &&
           strcmp(x->task ? x->task : "", y->task ? y->task : "") == 0;
}

tw_status tw_study_draw(struct tw_study *study, struct tw_report *report, struct tw_error *err) {
    static const char *const names[] = {[FROM_REPLAY] = "tables/replay.csv", [FROM_COUNTED] = "tables/matched.csv"};
    static const enum tw_study_table tables[] = {[FROM_REPLAY] = TW_STUDY_REPLAY, [FROM_COUNTED] = TW_STUDY_COUNTED};
    struct tw_trace **traces = calloc(study->n_traces + 1, sizeof *traces);
    struct tw_trace **some = calloc(study->n_traces + 1, sizeof *some);
    tw_status status =
        traces && some ? TW_OK : TW_FAIL(err, TW_E_MEMORY, "out of memory for the traces of the figures");
    for (size_t i = 0; status == TW_OK && i < study->n_traces; i++)
        status = tw_trace_open(&traces[i], study->traces[i], err);
    for (size_t i = 0; i < sizeof figures / sizeof *figures && status == TW_OK; i++) {
        const struct figure *figure = &figures[i];
        const struct tw_plot_kind *kind = find_kind(figure->kind);
        struct tw_plot_input input = {.progress = study->progress, .traces = traces, .n_traces = study->n_traces};
        if (figure->source < FROM_ALL_TRACES) {
            input = (struct tw_plot_input){.progress = study->progress,
                                           .tables = &study->tables[tables[figure->source]],
                                           .names = &names[figure->source],
                                           .n_tables = 1};
            if (input.tables->n_columns == 0) continue;
        } else if (figure->source == FROM_WAKEFUL_TASK) {
            input.traces = some;
            input.n_traces = 0;
            for (size_t k = 0; k < study->n_traces; k++)
                if (together(traces[k], traces[study->wakeful_task])) some[input.n_traces++] = traces[k];
        } else if (figure->source != FROM_ALL_TRACES) {
            input.traces = &traces[figure->source == FROM_WAKEFUL_TRACE ? study->wakeful_run : 0];
            input.n_traces = 1;
        }
        if (kind) status = draw(study, figure, kind, &input, report, err);
    }
    for (size_t i = 0; traces && i < study->n_traces; i++) tw_trace_free(traces[i]);
    free(traces);
    free(some);
    return status;
}
