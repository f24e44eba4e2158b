/* `tidewake plot`: figures from tables and traces. */
#include <stdlib.h>
#include <string.h>

#include "analysis/plot.h"
#include "base/parse.h"
#include "cli/command.h"
#include "cli/trace_warnings.h"

struct plot_options {
    const char *output, *title, *model, *task, *unit;
    uint64_t page_size, layer, head;
    bool keep_script;
};

#define AT(field) .offset = offsetof(struct plot_options, field)
static const struct tw_option option_rows[] = {
    {.name = "output",
     .letter = 'o',
     .type = TW_OPTION_TEXT,
     AT(output),
     .value_name = "FIG",
     .help = "the figure, .svg, .png or .pdf by its ending"},
    {.name = "keep-script",
     .type = TW_OPTION_FLAG,
     AT(keep_script),
     .help = "keep the gnuplot script beside it, as FIG.gp"},
    {.name = "title", .type = TW_OPTION_TEXT, AT(title), .value_name = "TEXT", .help = "a title over the figure"},
    {0},
};
static const struct tw_option choice_rows[] = {
    {.name = "model", .type = TW_OPTION_TEXT, AT(model), .value_name = "NAME", .help = "only rows of this model"},
    {.name = "task", .type = TW_OPTION_TEXT, AT(task), .value_name = "NAME", .help = "only rows of this task"},
    {.name = "unit", .type = TW_OPTION_TEXT, AT(unit), .value_name = "query|kv", .help = "only rows of this unit"},
    {.name = "page-size",
     .type = TW_OPTION_SIZE,
     AT(page_size),
     .minimum = 1,
     .maximum = 1 << 30,
     .value_name = "N",
     .help = "only rows of this page size; of traces, the page size to use (16 if not given)"},
    {.name = "layer",
     .type = TW_OPTION_U64,
     AT(layer),
     .default_value = "0",
     .value_name = "N",
     .help = "of 'attention': which layer"},
    {.name = "head",
     .type = TW_OPTION_U64,
     AT(head),
     .default_value = "0",
     .value_name = "N",
     .help = "of 'attention': which query head of the layer"},
    {0},
};
static const struct tw_option_group groups[] = {{"Figure", option_rows, 0}, {"What is drawn", choice_rows, 0}, {0}};

static tw_status find_kind(const struct tw_plot_kind **kind, const char *name, struct tw_error *err) {
    struct tw_text known = {0};
    for (const struct tw_plot_kind *const *k = tw_plot_kinds; *k; k++) {
        if (strcmp((*k)->name, name) == 0) {
            *kind = *k;
            tw_text_release(&known);
            return TW_OK;
        }
        tw_text_printf(&known, "%s%s", known.size ? ", " : "", (*k)->name);
    }
    const tw_status status =
        TW_FAIL(err, TW_E_OPTION, "there is no figure '%s'; there are %s", name, tw_text_string(&known));
    tw_text_release(&known);
    return status;
}

static void warn_notes(const struct tw_text *notes) {
    struct tw_view line, rest = tw_text_view(notes);
    while (tw_parse_next(&line, &rest, '\n'))
        if (line.size) tw_warn("%.*s", (int)line.size, line.data);
}

static tw_status run(struct tw_invocation *invocation, struct tw_error *err) {
    const struct plot_options *const options = invocation->options;
    const char *const *const operands = invocation->operands + 1;
    const size_t n_operands = invocation->n_operands - 1;
    const struct tw_plot_kind *kind = NULL;
    TW_TRY(find_kind(&kind, invocation->operands[0], err));
    TW_TRY(tw_figure_check_path(options->output, err));
    if (n_operands == 0)
        return TW_FAIL(err, TW_E_OPTION, "plot %s needs %s", kind->name,
                       kind->wants_traces ? "traces or folders of them" : "a table, as CSV or JSON");

    struct tw_trace_paths paths = {0};
    struct tw_table *tables = NULL;
    struct tw_trace **traces = NULL;
    struct tw_text notes = {0};
    struct tw_trace_warnings warnings = {0};
    size_t n = 0;
    tw_status status = TW_OK;
    if (kind->wants_traces) {
        TW_TRY_GOTO(status, done, tw_trace_paths_find(&paths, operands, n_operands, err));
        traces = calloc(paths.n + 1, sizeof *traces);
        for (; traces && n < paths.n; n++) {
            TW_TRY_GOTO(status, done, tw_trace_open(&traces[n], paths.paths[n], err));
            tw_trace_warnings_see(&warnings, traces[n], false);
        }
    } else {
        tables = calloc(n_operands + 1, sizeof *tables);
        for (; tables && n < n_operands; n++)
            TW_TRY_GOTO(status, done, tw_plot_read_table(&tables[n], operands[n], err));
    }
    if (!traces && !tables) {
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory for the input of plot %s", kind->name);
        goto done;
    }
    const struct tw_plot_input input = {.tables = tables,
                                        .names = operands,
                                        .n_tables = tables ? n : 0,
                                        .traces = traces,
                                        .n_traces = traces ? n : 0,
                                        .progress = invocation->progress};
    const struct tw_plot_options choice = {.title = options->title,
                                           .model = options->model,
                                           .task = options->task,
                                           .unit = options->unit,
                                           .page_size = options->page_size,
                                           .layer = options->layer,
                                           .head = options->head};
    status = tw_plot(kind, &input, &choice, options->output, options->keep_script, &notes, err);
done:
    tw_trace_warnings_tell(&warnings);
    warn_notes(&notes);
    for (size_t i = 0; i < n; i++) {
        if (tables) tw_table_release(&tables[i]);
        if (traces) tw_trace_free(traces[i]);
    }
    free(tables);
    free(traces);
    tw_trace_paths_release(&paths);
    tw_text_release(&notes);
    return status;
}

const struct tw_command tw_command_plot = {
    .name = "plot",
    .summary = "figures: miss rates, matched memory, churn, heads, wake-ups, memory over time",
    .usage = "KIND INPUT... -o FIG.svg [options]",
    .description =
        "From tables (CSV or JSON):\n"
        "  miss-rate         miss rate against resident memory, a curve a policy; replay's table\n"
        "  matched           miss rates at matched memory against the reference's; match's table\n"
        "  timeline          memory over a prefill by category; a log of schedule, seconds, category, bytes\n"
        "  pareto            time to first token against peak memory over chunks; prefill's table\n"
        "From traces:\n"
        "  churn             Jaccard of adjacent steps over time\n"
        "  heads             heat maps, layer by head: instability, drift events, needle score\n"
        "  attention         attention of one head (--layer, --head), step by page\n"
        "  wakeups           raster of wake-ups, head by step\n"
        "  precision-recall  how well signals foretell wake-ups, by lead\n"
        "Names appear as they are typed. Needs gnuplot; without it the script and its data are still written.",
    .example = "tidewake plot heads tests/golden/replay/k16.h5 -o heads.svg\n"
               "tidewake plot attention tests/golden/replay/long.h5 --layer 1 --head 1 -o attention.png\n"
               "tidewake plot churn tests/golden/replay/study -o churn.pdf --keep-script",
    .groups = groups,
    .options_size = sizeof(struct plot_options),
    .min_operands = 1,
    .max_operands = SIZE_MAX,
    .run = run,
};
