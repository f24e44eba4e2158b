#include "cli/study/study.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "analysis/churn_report.h"
#include "base/file.h"
#include "base/output.h"
#include "base/parse.h"
#include "cli/command.h"
#include "cli/trace_warnings.h"
#include "sim/match.h"
#include "sim/replay.h"
#include "traces/trace.h"

const char *const tw_study_table_names[TW_STUDY_N_TABLES] = {
    [TW_STUDY_REPLAY] = "replay",   [TW_STUDY_AVERAGE] = "average", [TW_STUDY_MATCHED] = "matched",
    [TW_STUDY_WINS] = "wins",       [TW_STUDY_CHURN] = "churn",     [TW_STUDY_GRADING] = "grading",
    [TW_STUDY_WAKEUPS] = "wakeups", [TW_STUDY_ANSWERS] = "answers", [TW_STUDY_QUALITY] = "quality",
};

void tw_study_release(struct tw_study *study) {
    for (size_t i = 0; i < study->n_traces; i++) free(study->traces[i]);
    free(study->traces);
    for (size_t i = 0; i < TW_STUDY_N_TABLES; i++) tw_table_release(&study->tables[i]);
    tw_text_release(&study->files);
    tw_text_release(&study->notes);
    *study = (struct tw_study){0};
}

/* Makes every folder of `path` but the last component. */
static tw_status make_folders(char *path, struct tw_error *err) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        const bool failed = mkdir(path, 0777) != 0 && errno != EEXIST;
        const tw_status status =
            failed ? TW_FAIL(err, TW_E_INPUT, "cannot make the folder '%s': %s", path, strerror(errno)) : TW_OK;
        *slash = '/';
        TW_TRY(status);
    }
    return TW_OK;
}

char *tw_study_path(const struct tw_study *study, const char *relative, struct tw_error *err) {
    struct tw_text path = {0};
    tw_text_printf(&path, "%s/%s", study->folder, relative);
    if (!tw_text_ok(&path)) {
        tw_text_release(&path);
        tw_fail(err, TW_E_MEMORY, "out of memory for the path of '%s'", relative);
        return NULL;
    }
    if (make_folders(path.data, err) != TW_OK) {
        tw_text_release(&path);
        return NULL;
    }
    return path.data;
}

void tw_study_made(struct tw_study *study, const char *path) { tw_text_printf(&study->files, "%s\n", path); }

tw_status tw_study_add_trace(struct tw_study *study, const char *path, struct tw_error *err) {
    char **traces = realloc(study->traces, (study->n_traces + 1) * sizeof *traces);
    if (traces) study->traces = traces;
    char *copy = traces ? strdup(path) : NULL;
    if (!copy) return TW_FAIL(err, TW_E_MEMORY, "out of memory for a list of %zu traces", study->n_traces + 1);
    study->traces[study->n_traces++] = copy;
    return TW_OK;
}

bool tw_study_is_made(const char *path, struct tw_view settings) {
    struct tw_text beside = {0}, content = {0};
    tw_text_printf(&beside, "%.*s.settings", (int)(strlen(path) - strlen(".h5")), path);
    bool made = tw_file_read(&content, tw_text_string(&beside), 1 << 20, "settings", NULL) == TW_OK &&
                tw_view_equal(tw_text_view(&content), settings);
    if (made) {
        struct tw_trace *trace = NULL;
        made = tw_trace_open(&trace, path, NULL) == TW_OK && tw_trace_info(trace)->complete;
        tw_trace_free(trace);
    }
    tw_text_release(&beside);
    tw_text_release(&content);
    return made;
}

tw_status tw_study_save_table(struct tw_study *study, enum tw_study_table which, struct tw_error *err) {
    char name[64];
    snprintf(name, sizeof name, "tables/%s.csv", tw_study_table_names[which]);
    char *path = tw_study_path(study, name, err);
    if (!path) return TW_E_INPUT;
    struct tw_text csv = {0};
    tw_status status = tw_table_write(&csv, &study->tables[which], TW_TABLE_CSV, err);
    if (status == TW_OK) status = tw_output_write(path, tw_text_view(&csv), err);
    if (status == TW_OK) tw_study_made(study, path);
    tw_text_release(&csv);
    free(path);
    return status;
}

/* [traces]: what is there already. */
static tw_status find_traces(struct tw_study *study, struct tw_error *err) {
    for (const struct tw_study_section *s = tw_study_next(study->settings, "traces", NULL); s;
         s = tw_study_next(study->settings, "traces", s)) {
        const struct tw_study_traces *values = s->values;
        if (!values->path) return TW_FAIL(err, TW_E_INPUT, "section [traces %s] has no key 'path'", s->name);
        struct tw_trace_paths paths = {0};
        tw_status status = tw_trace_paths_find(&paths, &values->path, 1, err);
        for (size_t i = 0; i < paths.n && status == TW_OK; i++) status = tw_study_add_trace(study, paths.paths[i], err);
        tw_trace_paths_release(&paths);
        TW_TRY(status);
    }
    return TW_OK;
}

static tw_status parse_units(enum tw_unit *units, size_t *n, const char *text, struct tw_error *err) {
    static const struct {
        const char *name;
        size_t n;
        enum tw_unit units[2];
    } choices[] = {{"query", 1, {TW_UNIT_QUERY}},
                   {"kv", 1, {TW_UNIT_KV}},
                   {"query,kv", 2, {TW_UNIT_QUERY, TW_UNIT_KV}},
                   {"kv,query", 2, {TW_UNIT_KV, TW_UNIT_QUERY}}};
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        if (strcmp(text, choices[i].name) == 0) {
            memcpy(units, choices[i].units, sizeof choices[i].units);
            *n = choices[i].n;
            return TW_OK;
        }
    return TW_FAIL(err, TW_E_INPUT, "section [replay]: unit '%s' is not query, kv or query,kv", text);
}

static tw_status replay(struct tw_study *study, const struct tw_study_replay *settings, struct tw_error *err) {
    struct tw_policy_list policies = {0};
    struct tw_replay_report report = {0};
    enum tw_unit units[2];
    size_t n_units = 0;
    TW_TRY(parse_units(units, &n_units, settings->unit, err));
    TW_TRY(tw_policy_list_parse(&policies, tw_view_of(settings->policy), err));
    const struct tw_replay_options options = {
        .policies = &policies,
        .budgets = settings->budget.values,
        .n_budgets = settings->budget.n,
        .page_sizes = settings->page_size.values,
        .n_page_sizes = settings->page_size.n,
        .units = units,
        .n_units = n_units,
    };
    tw_status status = tw_replay_run(&study->tables[TW_STUDY_REPLAY], &report, (const char *const *)study->traces,
                                     study->n_traces, &options, study->progress, err);
    if (status == TW_OK && report.n_limited)
        tw_text_printf(
            &study->notes,
            "%zu of the traces were recorded with a budget: what was evicted then cannot be wanted, so their demand is "
            "limited.\n",
            report.n_limited);
    if (status == TW_OK) status = tw_study_save_table(study, TW_STUDY_REPLAY, err);
    if (status == TW_OK)
        status = tw_replay_average(&study->tables[TW_STUDY_AVERAGE], &study->tables[TW_STUDY_REPLAY], err);
    if (status == TW_OK) status = tw_study_save_table(study, TW_STUDY_AVERAGE, err);
    tw_replay_report_release(&report);
    tw_policy_list_release(&policies);
    return status;
}

/* Whether the study replays `reactive`, without which nothing can be compared with it. */
static bool has_reference(const struct tw_table *table) {
    const size_t policy = tw_table_column(table, "policy");
    for (size_t r = 0; r < table->n_rows; r++)
        if (strcmp(tw_table_cell(table, r, policy)->text, "reactive") == 0) return true;
    return false;
}

static tw_status match(struct tw_study *study, struct tw_error *err) {
    const struct tw_table *average = &study->tables[TW_STUDY_AVERAGE];
    if (!has_reference(average)) {
        tw_text_printf(&study->notes,
                       "The policy 'reactive' was not replayed, so nothing is compared at matched memory.\n");
        return TW_OK;
    }
    struct tw_match_summaries summaries = {0};
    tw_status status =
        tw_match_run(&study->tables[TW_STUDY_MATCHED], &summaries, average, "average.csv", "reactive", err);
    if (status == TW_OK) status = tw_study_save_table(study, TW_STUDY_MATCHED, err);
    if (status == TW_OK) {
        struct tw_table *wins = &study->tables[TW_STUDY_WINS];
        tw_table_init(wins, (const char *const[]){"policy", "wins", "compared", "left_out"}, 4);
        for (size_t i = 0; i < summaries.n; i++) {
            tw_table_begin_row(wins);
            tw_table_put_text(wins, summaries.policies[i].policy);
            tw_table_put_uint(wins, summaries.policies[i].wins);
            tw_table_put_uint(wins, summaries.policies[i].compared);
            tw_table_put_uint(wins, summaries.policies[i].left_out);
        }
        status = tw_study_save_table(study, TW_STUDY_WINS, err);
    }
    tw_match_summaries_release(&summaries);
    return status;
}

static tw_status churn(struct tw_study *study, const uint64_t *page_sizes, size_t n_page_sizes, struct tw_error *err) {
    struct tw_churn *churns = calloc(study->n_traces + 1, sizeof *churns);
    if (!churns) return TW_FAIL(err, TW_E_MEMORY, "out of memory for the churn of %zu traces", study->n_traces);
    tw_status status = TW_OK;
    size_t n = 0;
    for (; n < study->n_traces && status == TW_OK; n++) {
        struct tw_trace *trace = NULL;
        status = tw_trace_open(&trace, study->traces[n], err);
        if (status == TW_OK)
            status = tw_churn_measure(&churns[n], trace, page_sizes, n_page_sizes, study->progress, err);
        tw_trace_free(trace);
    }
    if (status == TW_OK && n && churns[0].needle_mean) {
        size_t best = 0;
        for (size_t h = 1; h < churns[0].n_layers * churns[0].n_heads; h++)
            if (churns[0].needle_mean[h] > churns[0].needle_mean[best]) best = h;
        study->shown_layer = best / churns[0].n_heads;
        study->shown_head = best % churns[0].n_heads;
    }
    if (status == TW_OK) {
        tw_churn_average_table(&study->tables[TW_STUDY_CHURN], churns, n, false);
        status = tw_study_save_table(study, TW_STUDY_CHURN, err);
    }
    for (size_t i = 0; i < n; i++) tw_churn_release(&churns[i]);
    free(churns);
    return status;
}

/* The runs: one row each, from the traces themselves. */
static tw_status describe_runs(struct tw_study *study, struct tw_report *report, struct tw_error *err) {
    struct tw_table table;
    tw_table_init(&table,
                  (const char *const[]){"run", "model", "task", "prompt_tokens", "steps", "layers", "heads", "kv_heads",
                                        "schedule", "selector", "budget", "backend", "dtype", "seed", "complete"},
                  15);
    tw_status status = TW_OK;
    for (size_t i = 0; i < study->n_traces && status == TW_OK; i++) {
        struct tw_trace *trace = NULL;
        status = tw_trace_open(&trace, study->traces[i], err);
        if (status != TW_OK) break;
        tw_warn_about_trace(trace, false);
        const struct tw_trace_info *info = tw_trace_info(trace);
        const char *const texts[] = {info->run, info->model, info->task};
        tw_table_begin_row(&table);
        for (size_t k = 0; k < 3; k++) tw_table_put_text(&table, texts[k] ? texts[k] : "");
        const uint64_t numbers[] = {info->prompt_length, info->n_steps, info->n_layers, info->n_heads,
                                    info->n_kv_heads};
        for (size_t k = 0; k < 5; k++) tw_table_put_uint(&table, numbers[k]);
        tw_table_put_text(&table, info->schedule ? info->schedule : "");
        tw_table_put_text(&table, info->selector ? info->selector : "");
        if (info->budget)
            tw_table_put_uint(&table, info->budget);
        else
            tw_table_put_text(&table, "full");
        tw_table_put_text(&table, info->backend ? info->backend : "");
        tw_table_put_text(&table, info->dtype ? info->dtype : "");
        tw_table_put_uint(&table, info->seed);
        tw_table_put_text(&table, info->complete ? "yes" : "no");
        tw_trace_free(trace);
    }
    if (status == TW_OK) tw_report_table(report, &table, "The runs", 60, NULL);
    tw_table_release(&table);
    return status;
}

static void report_table(struct tw_study *study, struct tw_report *report, enum tw_study_table which,
                         const char *caption, size_t max_rows) {
    if (study->tables[which].n_columns == 0) return;
    char name[64];
    snprintf(name, sizeof name, "tables/%s.csv", tw_study_table_names[which]);
    tw_report_table(report, &study->tables[which], caption, max_rows, name);
}

static tw_status write_report(struct tw_study *study, struct tw_error *err) {
    const struct tw_study_general *general = tw_study_values(study->settings, "study");
    struct tw_report report = {0};
    tw_status status = TW_OK;
    char *path = NULL;

    tw_report_section(&report, "What was run");
    TW_TRY_GOTO(status, done, describe_runs(study, &report, err));
    struct tw_view note, rest = tw_text_view(&study->notes);
    while (rest.size && tw_parse_next(&note, &rest, '\n'))
        if (note.size) tw_report_paragraph(&report, "%.*s", (int)note.size, note.data);
    report_table(study, &report, TW_STUDY_ANSWERS,
                 "Answers: the share of the expected strings that the answer contains", 60);

    tw_report_section(&report, "Claims of the papers, beside what was measured here");
    tw_study_claims(study, &report);

    tw_report_section(&report, "Figures");
    TW_TRY_GOTO(status, done, tw_study_draw(study, &report, err));

    tw_report_section(&report, "Matched memory");
    tw_report_paragraph(
        &report, "Policies realise different memory at the same nominal budget, so each policy's point is held "
                 "against reactive's miss rate interpolated at the same resident memory; evict, which has the same "
                 "cap, at equal budget. Points outside reactive's range are left out.");
    report_table(study, &report, TW_STUDY_WINS, "Wins of reactive", 60);
    report_table(study, &report, TW_STUDY_MATCHED, "Every comparison", 40);

    tw_report_section(&report, "Churn");
    report_table(study, &report, TW_STUDY_CHURN, "Means over the runs of a model and task", 60);
    report_table(study, &report, TW_STUDY_WAKEUPS, "Wake-ups and how well they can be predicted", 60);
    if (study->tables[TW_STUDY_QUALITY].n_columns) {
        tw_report_section(&report, "Answers under compression");
        report_table(study, &report, TW_STUDY_QUALITY, "Answers right, by schedule, selector and budget", 200);
    }
    tw_report_section(&report, "Replay");
    report_table(study, &report, TW_STUDY_AVERAGE, "Means over runs", 40);

    path = tw_study_path(study, "report.html", err);
    if (!path) {
        status = TW_E_INPUT;
        goto done;
    }
    status = tw_report_write(&report, path, general ? general->title : "A Tidewake study",
                             "Attention traced from real models, replayed under residency policies.", err);
    if (status == TW_OK) tw_study_made(study, path);
done:
    free(path);
    tw_report_release(&report);
    return status;
}

tw_status tw_study_run(struct tw_study *study, struct tw_error *err) {
    struct tw_study_replay fallback; /* a file without [replay] gets its defaults */
    const struct tw_study_replay *settings = tw_study_values(study->settings, "replay");
    struct tw_study_settings defaults = {0};
    if (!settings) {
        TW_TRY(tw_study_settings_parse(&defaults, "[replay]\nunit = query\n", "defaults", NULL, 0, err));
        fallback = *(const struct tw_study_replay *)tw_study_values(&defaults, "replay");
        settings = &fallback;
    }
    tw_status status = TW_OK;
    TW_TRY_GOTO(status, done, tw_study_make_traces(study, err));
    TW_TRY_GOTO(status, done, find_traces(study, err));
    if (study->n_traces == 0) {
        status = TW_FAIL(err, TW_E_INPUT, "the study has neither tasks to be traced nor [traces] that are there");
        goto done;
    }
    TW_TRY_GOTO(status, done, replay(study, settings, err));
    TW_TRY_GOTO(status, done, match(study, err));
    TW_TRY_GOTO(status, done, churn(study, settings->page_size.values, settings->page_size.n, err));
    TW_TRY_GOTO(status, done, tw_study_wakeups(study, settings->page_size.values[0], err));
    TW_TRY_GOTO(status, done, tw_study_measure_quality(study, err));
    if (study->tables[TW_STUDY_ANSWERS].n_columns)
        TW_TRY_GOTO(status, done, tw_study_save_table(study, TW_STUDY_ANSWERS, err));
    if (study->tables[TW_STUDY_QUALITY].n_columns)
        TW_TRY_GOTO(status, done, tw_study_save_table(study, TW_STUDY_QUALITY, err));
    status = write_report(study, err);
done:
    tw_study_settings_release(&defaults);
    return status;
}
