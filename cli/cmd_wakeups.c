/* `tidewake wakeups`: when heads wake, and whether that can be predicted. */
#include <stdlib.h>
#include <string.h>

#include "analysis/wakeups_report.h"
#include "base/output.h"
#include "cli/command.h"
#include "cli/trace_warnings.h"
#include "traces/trace.h"

struct wakeups_options {
    struct tw_table_options table;
    uint64_t page_size, seed, page_bytes;
    struct tw_u64_list series;
    unsigned rows;
    bool average;
    double link, step_time, pages;
};
enum { ROWS_SUMMARY, ROWS_GRADING, ROWS_EVENTS };

#define AT(field) .offset = offsetof(struct wakeups_options, field)
static const struct tw_option option_rows[] = {
    {.name = "page-size",
     .type = TW_OPTION_SIZE,
     AT(page_size),
     .default_value = "16",
     .minimum = 1,
     .maximum = 1 << 30,
     .value_name = "N",
     .help = "tokens a page"},
    {.name = "average",
     .type = TW_OPTION_FLAG,
     AT(average),
     .help = "pool the runs of a model and task: thresholds, markers and clustering over all of them"},
    {.name = "rows",
     .type = TW_OPTION_CHOICE,
     AT(rows),
     .default_value = "summary",
     .choices = "summary|grading|events",
     .help = "what a row of the table is: a trace, a grading (signal, lead), or a wake event"},
    {.name = "series",
     .type = TW_OPTION_U64_LIST,
     AT(series),
     .value_name = "HEADS",
     .help = "with --format json: the signals of these heads (layer * heads + head), step by step"},
    {.name = "seed",
     .type = TW_OPTION_U64,
     AT(seed),
     .default_value = "0",
     .value_name = "N",
     .help = "of the shuffles"},
    {0},
};
static const struct tw_option transfer_rows[] = {
    {.name = "link",
     .type = TW_OPTION_RATE,
     AT(link),
     .value_name = "RATE",
     .help = "bandwidth that pages come over, like 25GB/s: how many steps ahead a wake-up must be known"},
    {.name = "step-time",
     .type = TW_OPTION_TIME,
     AT(step_time),
     .value_name = "TIME",
     .help = "of a decode step, like 30ms"},
    {.name = "page-bytes",
     .type = TW_OPTION_SIZE,
     AT(page_bytes),
     .default_value = "0",
     .value_name = "SIZE",
     .help = "of a head's page; 0: page size * head size * 4 bytes (K and V, two bytes each)"},
    {.name = "pages",
     .type = TW_OPTION_DOUBLE,
     AT(pages),
     .default_value = "0",
     .minimum = 0,
     .maximum = 1e12,
     .value_name = "N",
     .help = "pages to bring in; 0: what heads want on average when they wake"},
    {0},
};
static const struct tw_option_group groups[] = {
    {"Measuring", option_rows, 0},
    {"Transfer", transfer_rows, 0},
    {"Output", tw_table_option_rows, offsetof(struct wakeups_options, table)},
    {0},
};

/* One trace or pool is an object by itself; several are a list. */
static tw_status write_json(struct tw_invocation *invocation, const struct wakeups_options *options,
                            const struct tw_wake_report *reports, size_t n, struct tw_error *err) {
    struct tw_text text = {0};
    struct tw_json json = {.out = &text};
    tw_json_begin_object(&json, NULL);
    tw_json_text(&json, "tidewake", tw_view_of(tw_version));
    tw_json_text(&json, "command", tw_view_of(invocation->command->name));
    if (n != 1) tw_json_begin_array(&json, options->average ? "groups" : "traces");
    for (size_t i = 0; i < n; i++) {
        if (n != 1) tw_json_begin_object(&json, NULL);
        tw_wake_report_json(&json, &reports[i]);
        if (n != 1) tw_json_end_object(&json);
    }
    if (n != 1) tw_json_end_array(&json);
    tw_json_end_object(&json);
    const tw_status status = tw_text_ok(&text) ? tw_output_write(options->table.output, tw_text_view(&text), err)
                                               : TW_FAIL(err, TW_E_MEMORY, "out of memory while writing wake-ups");
    tw_text_release(&text);
    return status;
}

static tw_status write_reports(struct tw_invocation *invocation, const struct wakeups_options *options,
                               const struct tw_wake_report *reports, size_t n, struct tw_error *err) {
    const enum tw_table_format format = tw_table_format_of(invocation, &options->table);
    if (format == TW_TABLE_JSON && options->rows == ROWS_SUMMARY)
        return write_json(invocation, options, reports, n, err);
    struct tw_table table;
    if (options->rows == ROWS_GRADING)
        tw_wake_grading_table(&table, reports, n);
    else if (options->rows == ROWS_EVENTS)
        tw_wake_events_table(&table, reports, n);
    else
        tw_wake_summary_table(&table, reports, n, format == TW_TABLE_PLAIN);
    const tw_status status = tw_write_table(invocation, &options->table, &table, err);
    tw_table_release(&table);
    return status;
}

/* Each trace by itself, or those of one model and task together. */
static tw_status report(struct tw_invocation *invocation, const struct wakeups_options *options,
                        const struct tw_wakeups *runs, size_t n, struct tw_error *err) {
    const struct tw_transfer transfer = {options->link, options->step_time, (double)options->page_bytes,
                                         options->pages};
    const struct tw_wakeups **const members = malloc((n + 1) * sizeof *members);
    struct tw_wake_report *const reports = calloc(n + 1, sizeof *reports);
    size_t n_reports = 0;
    tw_status status =
        members && reports ? TW_OK : TW_FAIL(err, TW_E_MEMORY, "out of memory for the wake-ups of %zu traces", n);
    if (status == TW_OK)
        status = tw_wake_reports_measure(reports, &n_reports, members, runs, n, options->average, options->seed,
                                         &transfer, err);
    size_t n_events = 0;
    bool has_needle = false;
    for (size_t i = 0; i < n_reports; i++) {
        n_events += reports[i].n_events;
        has_needle = has_needle || reports[i].has_needle;
    }
    if (status == TW_OK && has_needle && n_events == 0)
        tw_warn("no head wakes up in %s, so there is nothing to grade", n == 1 ? "this trace" : "these traces");
    if (status == TW_OK) status = write_reports(invocation, options, reports, n_reports, err);
    for (size_t i = 0; i < n_reports; i++) tw_wake_report_release(&reports[i]);
    free(reports);
    free(members);
    return status;
}

static tw_status check_options(const struct tw_invocation *invocation, const struct wakeups_options *options,
                               struct tw_error *err) {
    if (options->link > 0 && !(options->step_time > 0))
        return TW_FAIL(err, TW_E_OPTION, "--link needs --step-time: the transfer is counted in steps");
    if (!(options->link > 0) &&
        (options->step_time > 0 || tw_given(invocation, "page-bytes") || tw_given(invocation, "pages")))
        return TW_FAIL(err, TW_E_OPTION, "--step-time, --page-bytes and --pages need --link");
    if (options->series.n &&
        (options->rows != ROWS_SUMMARY || tw_table_format_of(invocation, &options->table) != TW_TABLE_JSON))
        return TW_FAIL(err, TW_E_OPTION, "--series needs --format json, and no --rows");
    if (options->series.n && options->average)
        return TW_FAIL(err, TW_E_OPTION, "--series is of single traces: leave out --average");
    return TW_OK;
}

static tw_status run(struct tw_invocation *invocation, struct tw_error *err) {
    const struct wakeups_options *const options = invocation->options;
    struct tw_trace_paths paths = {0};
    struct tw_wakeups *runs = NULL;
    struct tw_trace_warnings warnings = {0};
    size_t n = 0;
    TW_TRY(check_options(invocation, options, err));
    tw_status status = tw_trace_paths_find(&paths, invocation->operands, invocation->n_operands, err);
    if (status != TW_OK) goto done;
    runs = calloc(paths.n + 1, sizeof *runs);
    if (!runs) {
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory for the wake-ups of %zu traces", paths.n);
        goto done;
    }
    for (; n < paths.n; n++) {
        struct tw_trace *trace = NULL;
        TW_TRY_GOTO(status, done, tw_trace_open(&trace, paths.paths[n], err));
        tw_trace_warnings_see(&warnings, trace, !tw_trace_has(trace, TW_TRACE_NEEDLE));
        status = tw_wakeups_measure(&runs[n], trace, options->page_size, options->series.values, options->series.n,
                                    invocation->progress, err);
        tw_trace_free(trace);
        if (status != TW_OK) goto done;
    }
    status = report(invocation, options, runs, n, err);
done:
    tw_trace_warnings_tell(&warnings);
    for (size_t i = 0; runs && i < n; i++) tw_wakeups_release(&runs[i]);
    free(runs);
    tw_trace_paths_release(&paths);
    return status;
}

const struct tw_command tw_command_wakeups = {
    .name = "wakeups",
    .summary = "when heads wake up, and whether signals, tokens or the clock foretell it",
    .usage = "TRACE|FOLDER... [options]",
    .description =
        "A head wakes when its needle score exceeds 0.2 after 8 quiet steps (below 0.05). zscore_*: the signal and lead\n"
        "(steps ahead) whose causal z-score above 2 foretells it best (by F1). tokens_*: generated tokens that wake-ups follow, found\n"
        "in the first halves of the runs and graded on the second. concentration: share of the events in the busiest\n"
        "steps, its z against 200 shuffles, and the recall of a trigger at those steps. JSON has every event and grade.",
    .example = "tidewake wakeups tests/golden/replay/study --average\n"
               "tidewake wakeups tests/golden/replay/long.h5 --rows grading -o grading.csv\n"
               "tidewake wakeups tests/golden/replay/long.h5 --link 25GB/s --step-time 30ms --page-bytes 8K\n"
               "tidewake wakeups tests/golden/replay/long.h5 --series 1,5 -o wakeups.json",
    .groups = groups,
    .options_size = sizeof(struct wakeups_options),
    .min_operands = 1,
    .max_operands = SIZE_MAX,
    .run = run,
};
