/* `tidewake replay`: traces under residency policies, to a table. */
#include <stdlib.h>
#include <string.h>

#include "base/parse.h"
#include "cli/command.h"
#include "sim/ranks.h"
#include "sim/replay.h"
#include "traces/trace.h"

struct replay_options {
    const char *policy, *unit, *layers, *steps, *page_bytes;
    struct tw_u64_list budgets, page_sizes;
    unsigned by, overlap;
    bool average;
    uint64_t threads;
    double link, latency, step_time;
    struct tw_table_options table;
};

#define FIELD(name) .offset = offsetof(struct replay_options, name)

static const struct tw_option option_rows[] = {
    {.name = "policy",
     .type = TW_OPTION_TEXT,
     FIELD(policy),
     .default_value = "all",
     .value_name = "LIST",
     .help = "policies, options behind a colon (rkv:interval=8); all: the paper's seven; a path to a .so: your own"},
    {.name = "budget",
     .type = TW_OPTION_U64_LIST,
     FIELD(budgets),
     .default_value = "8,16,32,64",
     .value_name = "LIST",
     .help = "pages a unit: 8,16 or 1..64; 0 is a budget too"},
    {.name = "page-size",
     .type = TW_OPTION_U64_LIST,
     FIELD(page_sizes),
     .default_value = "16",
     .minimum = 1,
     .value_name = "LIST",
     .help = "tokens a page"},
    {.name = "unit",
     .type = TW_OPTION_TEXT,
     FIELD(unit),
     .default_value = "query",
     .value_name = "LIST",
     .help = "whose residency is managed: query heads (the paper's), kv heads, or query,kv"},
    {.name = "by",
     .type = TW_OPTION_CHOICE,
     FIELD(by),
     .default_value = "run",
     .choices = "run|layer|head|step",
     .help = "a row for each run, or for each layer, head (unit) or step of it"},
    {.name = "layers", .type = TW_OPTION_TEXT, FIELD(layers), .value_name = "A..B", .help = "only these layers"},
    {.name = "steps", .type = TW_OPTION_TEXT, FIELD(steps), .value_name = "A..B", .help = "only these steps"},
    {.name = "average",
     .type = TW_OPTION_FLAG,
     FIELD(average),
     .help = "one row a model and task: means over its runs, and the miss rate's spread"},
    {.name = "threads",
     .type = TW_OPTION_U64,
     FIELD(threads),
     .default_value = "0",
     .maximum = 4096,
     .value_name = "N",
     .help = "threads; 0: one a core. Results do not depend on it"},
    {0},
};

static const struct tw_option time_rows[] = {
    {.name = "link",
     .type = TW_OPTION_RATE,
     FIELD(link),
     .value_name = "RATE",
     .help = "bandwidth over which pages are fetched, like 25GB/s: adds bytes and stall time"},
    {.name = "latency",
     .type = TW_OPTION_TIME,
     FIELD(latency),
     .default_value = "10us",
     .value_name = "TIME",
     .help = "of every layer's transfer"},
    {.name = "step-time",
     .type = TW_OPTION_TIME,
     FIELD(step_time),
     .default_value = "30ms",
     .value_name = "TIME",
     .help = "what a decode step computes, in equal shares by layer"},
    {.name = "page-bytes",
     .type = TW_OPTION_TEXT,
     FIELD(page_bytes),
     .default_value = "auto",
     .value_name = "SIZE",
     .help = "bytes of a unit's page; auto: page size x head size x 2 (K and V) x 2 bytes"},
    {.name = "overlap",
     .type = TW_OPTION_CHOICE,
     FIELD(overlap),
     .default_value = "none",
     .choices = "none|layer",
     .help = "none: a layer's demand is known when it runs; layer: all of a step's is known at its start"},
    {0},
};

static tw_status parse_range(struct tw_replay_range *range, const char *text, const char *name, struct tw_error *err) {
    if (text && !tw_replay_range_parse(range, tw_view_of(text)))
        return TW_FAIL(err, TW_E_OPTION, "option '--%s': '%s' is not a number or a range like 2..5", name, text);
    return TW_OK;
}

static tw_status parse_link(struct tw_link *link, const struct tw_invocation *invocation,
                            const struct replay_options *options, struct tw_error *err) {
    static const char *const needs_link[] = {"latency", "step-time", "page-bytes", "overlap"};
    if (!tw_given(invocation, "link")) {
        for (size_t i = 0; i < sizeof needs_link / sizeof *needs_link; i++)
            if (tw_given(invocation, needs_link[i]))
                return TW_FAIL(err, TW_E_OPTION, "option '--%s' means nothing without --link", needs_link[i]);
        return TW_OK;
    }
    *link = (struct tw_link){.bytes_per_second = options->link,
                             .latency_seconds = options->latency,
                             .step_seconds = options->step_time,
                             .overlap = (enum tw_overlap)options->overlap};
    if (strcmp(options->page_bytes, "auto") != 0 &&
        (!tw_parse_size(&link->page_bytes, tw_view_of(options->page_bytes)) || link->page_bytes == 0))
        return TW_FAIL(err, TW_E_OPTION, "option '--page-bytes': '%s' is not auto or a size like 4K",
                       options->page_bytes);
    if (!(link->step_seconds > 0)) return TW_FAIL(err, TW_E_OPTION, "option '--step-time': a step takes more than 0 s");
    return TW_OK;
}

static tw_status run(struct tw_invocation *invocation, struct tw_error *err) {
    const struct replay_options *options = invocation->options;
    struct tw_policy_list policies = {0};
    struct tw_trace_paths paths = {0};
    struct tw_replay_report report = {0};
    struct tw_table table = {0}, average = {0};
    enum tw_unit units[2];
    struct tw_replay_options replay = {.policies = &policies,
                                       .budgets = options->budgets.values,
                                       .n_budgets = options->budgets.n,
                                       .page_sizes = options->page_sizes.values,
                                       .n_page_sizes = options->page_sizes.n,
                                       .units = units,
                                       .by = (enum tw_replay_by)options->by,
                                       .n_threads = options->threads};
    if (!tw_replay_units_parse(units, &replay.n_units, tw_view_of(options->unit)))
        return TW_FAIL(err, TW_E_OPTION, "option '--unit': '%s' is not query, kv or query,kv", options->unit);
    TW_TRY(parse_range(&replay.layers, options->layers, "layers", err));
    TW_TRY(parse_range(&replay.steps, options->steps, "steps", err));
    TW_TRY(parse_link(&replay.link, invocation, options, err));
    TW_TRY(tw_ranks_join(err));
    const bool speaks = tw_ranks_own() == 0; /* the rank that has the whole table */
    tw_status status;
    TW_TRY_GOTO(status, done, tw_policy_list_parse(&policies, tw_view_of(options->policy), err));
    TW_TRY_GOTO(status, done, tw_trace_paths_find(&paths, invocation->operands, invocation->n_operands, err));
    TW_TRY_GOTO(status, done,
                tw_replay_run(&table, &report, (const char *const *)paths.paths, paths.n, &replay,
                              speaks ? invocation->progress : NULL, err));
    if (!speaks) goto done;
    if (report.n_limited == 1)
        tw_warn(
            "trace '%s' was recorded with a budget: what was evicted then cannot be wanted, so its demand is limited",
            report.first_limited);
    else if (report.n_limited)
        tw_warn(
            "%zu traces, the first '%s', were recorded with a budget: what was evicted then cannot be wanted, so their "
            "demand is limited",
            report.n_limited, report.first_limited);
    if (options->average) TW_TRY_GOTO(status, done, tw_replay_average(&average, &table, err));
    status = tw_write_table(invocation, &options->table, options->average ? &average : &table, err);
done:
    tw_table_release(&table);
    tw_table_release(&average);
    tw_replay_report_release(&report);
    tw_trace_paths_release(&paths);
    tw_policy_list_release(&policies);
    return status;
}

const struct tw_command tw_command_replay = {
    .name = "replay",
    .summary = "replays traces under residency policies: misses, fetches, stalls, resident memory",
    .usage = "TRACE|FOLDER... [options]",
    .description =
        "One row a trace, policy, unit, page size and budget. Policies realise different memory at the same budget:\n"
        "compare them at matched memory ('tidewake match') or draw them ('tidewake plot miss-rate').",
    .example = "tidewake replay tests/golden/replay/plain.h5 --budget 1..64 -o plain.csv\n"
               "tidewake replay tests/golden/replay/study --policy reactive,rkv:interval=8,min --average\n"
               "tidewake replay tests/golden/replay/gqa.h5 --policy reactive --unit kv --by layer\n"
               "tidewake replay tests/golden/replay/gqa.h5 --link 25GB/s --latency 10us --step-time 30ms",
    .groups = (const struct tw_option_group[]){{"Replaying", option_rows, 0},
                                               {"Time", time_rows, 0},
                                               {"Output", tw_table_option_rows, offsetof(struct replay_options, table)},
                                               {0}},
    .options_size = sizeof(struct replay_options),
    .min_operands = 1,
    .max_operands = SIZE_MAX,
    .run = run,
};
