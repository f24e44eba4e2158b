/* `tidewake churn`: the churn statistics of traces. */
#include <stdlib.h>

#include "analysis/churn_report.h"
#include "base/output.h"
#include "cli/command.h"
#include "cli/trace_warnings.h"
#include "traces/trace.h"

struct churn_options {
    struct tw_table_options table;
    struct tw_u64_list page_sizes;
    bool average;
};

static const struct tw_option option_rows[] = {
    {.name = "page-size",
     .type = TW_OPTION_SIZE_LIST,
     .offset = offsetof(struct churn_options, page_sizes),
     .default_value = "16",
     .minimum = 1,
     .maximum = 1 << 30,
     .value_name = "LIST",
     .help = "tokens a page; the first is the main one"},
    {.name = "average",
     .type = TW_OPTION_FLAG,
     .offset = offsetof(struct churn_options, average),
     .help = "one row a model and task: the means over its runs"},
    {0},
};

static const struct tw_option_group groups[] = {
    {"Measuring", option_rows, 0},
    {"Output", tw_table_option_rows, offsetof(struct churn_options, table)},
    {0},
};

/* One trace or group is an object by itself; several are a list. */
static tw_status write_json(struct tw_invocation *invocation, const struct churn_options *options,
                            const struct tw_churn *churns, size_t n, struct tw_error *err) {
    struct tw_text text = {0};
    struct tw_json json = {.out = &text};
    size_t *const group = malloc((n + 1) * sizeof *group);
    const struct tw_churn **const members = malloc((n + 1) * sizeof *members);
    tw_status status = TW_OK;
    if (!group || !members) {
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory while writing the churn of %zu traces", n);
        goto done;
    }
    const size_t n_objects = options->average ? tw_trace_names_group(group, &churns[0].name, sizeof *churns, n) : n;
    tw_json_begin_object(&json, NULL);
    tw_json_text(&json, "tidewake", tw_view_of(tw_version));
    tw_json_text(&json, "command", tw_view_of(invocation->command->name));
    if (n_objects != 1) tw_json_begin_array(&json, options->average ? "groups" : "traces");
    for (size_t i = 0; i < n_objects; i++) {
        if (n_objects != 1) tw_json_begin_object(&json, NULL);
        if (options->average) {
            size_t n_members = 0;
            for (size_t j = 0; j < n; j++)
                if (group[j] == i) members[n_members++] = &churns[j];
            tw_churn_average_json(&json, members, n_members);
        } else {
            tw_churn_json(&json, &churns[i]);
        }
        if (n_objects != 1) tw_json_end_object(&json);
    }
    if (n_objects != 1) tw_json_end_array(&json);
    tw_json_end_object(&json);
    status = tw_text_ok(&text) ? tw_output_write(options->table.output, tw_text_view(&text), err)
                               : TW_FAIL(err, TW_E_MEMORY, "out of memory while writing the churn of %zu traces", n);
done:
    tw_text_release(&text);
    free(group);
    free(members);
    return status;
}

static tw_status write_table(struct tw_invocation *invocation, const struct churn_options *options,
                             const struct tw_churn *churns, size_t n, enum tw_table_format format,
                             struct tw_error *err) {
    struct tw_table table;
    (options->average ? tw_churn_average_table : tw_churn_table)(&table, churns, n, format == TW_TABLE_PLAIN);
    const tw_status status = tw_write_table(invocation, &options->table, &table, err);
    tw_table_release(&table);
    return status;
}

/* The page sizes in the order given, each once; returns how many. */
static size_t distinct(uint64_t *sizes, const struct tw_u64_list *list) {
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++) {
        bool again = false;
        for (size_t j = 0; j < n; j++) again = again || sizes[j] == list->values[i];
        if (!again) sizes[n++] = list->values[i];
    }
    return n;
}

static tw_status run(struct tw_invocation *invocation, struct tw_error *err) {
    const struct churn_options *const options = invocation->options;
    struct tw_trace_paths paths = {0};
    struct tw_churn *churns = NULL;
    uint64_t *page_sizes = NULL;
    struct tw_trace_warnings warnings = {0};
    size_t n = 0;
    tw_status status = tw_trace_paths_find(&paths, invocation->operands, invocation->n_operands, err);
    if (status != TW_OK) goto done;
    churns = calloc(paths.n + 1, sizeof *churns);
    page_sizes = calloc(options->page_sizes.n + 1, sizeof *page_sizes);
    if (!churns || !page_sizes) {
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory for the churn of %zu traces", paths.n);
        goto done;
    }
    const size_t n_page_sizes = distinct(page_sizes, &options->page_sizes);
    for (; n < paths.n; n++) {
        struct tw_trace *trace = NULL;
        TW_TRY_GOTO(status, done, tw_trace_open(&trace, paths.paths[n], err));
        tw_trace_warnings_see(&warnings, trace, true);
        status = tw_churn_measure(&churns[n], trace, page_sizes, n_page_sizes, invocation->progress, err);
        tw_trace_free(trace);
        if (status != TW_OK) goto done;
    }
    const enum tw_table_format format = tw_table_format_of(invocation, &options->table);
    status = format == TW_TABLE_JSON ? write_json(invocation, options, churns, n, err)
                                     : write_table(invocation, options, churns, n, format, err);
done:
    tw_trace_warnings_tell(&warnings);
    for (size_t i = 0; churns && i < n; i++) tw_churn_release(&churns[i]);
    free(churns);
    free(page_sizes);
    tw_trace_paths_release(&paths);
    return status;
}

const struct tw_command tw_command_churn = {
    .name = "churn",
    .summary = "how much heads change what they read: stability, drift, activity",
    .usage = "TRACE|FOLDER... [options]",
    .description =
        "One row a trace and page size. page_jaccard: how alike a head's page sets of adjacent steps are (1: the same).\n"
        "stability: FlexiCache's overlap with the next 15 steps, corrected for chance; unstable_fraction: heads below 0.5.\n"
        "drift_events_mean: how often a head left what it read at first; heads_with_event: the share of heads that did.\n"
        "copy_paste_*, needle_*: the set of heads that read the needle; its adjacent-step Jaccard means little where\n"
        "empty_share (steps without such a head) is high. CSV has all columns, JSON every head and event.",
    .example = "tidewake churn tests/golden/replay/study --average\n"
               "tidewake churn tests/golden/replay/plain.h5 --page-size 16,32 -o churn.csv",
    .groups = groups,
    .options_size = sizeof(struct churn_options),
    .min_operands = 1,
    .max_operands = SIZE_MAX,
    .run = run,
};
