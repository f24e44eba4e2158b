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
    [TW_STUDY_WAKEUPS] = "wakeups", [TW_STUDY_COUNTED] = "counted", [TW_STUDY_ANSWERS] = "answers",
    [TW_STUDY_QUALITY] = "quality",
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

static tw_status replay(struct tw_study *study, const struct tw_study_replay *settings, struct tw_error *err) {
    struct tw_policy_list policies = {0};
    struct tw_replay_report report = {0};
    enum tw_unit units[2];
    size_t n_units = 0;
    if (!tw_replay_units_parse(units, &n_units, tw_view_of(settings->unit)))
        return TW_FAIL(err, TW_E_INPUT, "section [replay]: unit '%s' is not query, kv or query,kv", settings->unit);
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

/* Of one policy on one task of one model. */
struct wins {
    size_t row; /* its first row in the matched table */
    size_t wins, compared, outside, never_pruned;
    double miss_rate, reference_miss_rate; /* sums over what was compared */
};

static bool same_in(const struct tw_table *table, const char *column, size_t a, size_t b) {
    const size_t c = tw_table_column(table, column);
    const struct tw_cell *const x = tw_table_cell(table, a, c), *const y = tw_table_cell(table, b, c);
    double p, q;
    if (x->type == TW_CELL_TEXT && y->type == TW_CELL_TEXT) return strcmp(x->text, y->text) == 0;
    return x->type == y->type &&
           (x->type == TW_CELL_EMPTY || (tw_cell_number(&p, x) && tw_cell_number(&q, y) && p == q));
}

/* A row for each policy on each task of each model, from the comparisons budget by budget. */
static tw_status count_wins(struct tw_study *study, const bool *unpruned, struct tw_error *err) {
    static const char *const shared[] = {"model", "task", "unit", "page_size", "policy"};
    enum { N_SHARED = sizeof shared / sizeof *shared };
    const struct tw_table *const matched = &study->tables[TW_STUDY_MATCHED];
    struct wins *const all = calloc(matched->n_rows + 1, sizeof *all);
    if (!all) return TW_FAIL(err, TW_E_MEMORY, "out of memory for %zu comparisons", matched->n_rows);
    size_t n = 0;
    for (size_t r = 0; r < matched->n_rows; r++) {
        size_t i = 0;
        for (; i < n; i++) {
            bool same = true;
            for (size_t k = 0; k < N_SHARED; k++) same = same && same_in(matched, shared[k], all[i].row, r);
            if (same) break;
        }
        if (i == n) all[n++].row = r;
        double win, rate = 0, reference = 0;
        if (unpruned[r]) {
            all[i].never_pruned++;
        } else if (!tw_cell_number(&win, tw_table_cell(matched, r, tw_table_column(matched, "win")))) {
            all[i].outside++;
        } else {
            (void)tw_cell_number(&rate, tw_table_cell(matched, r, tw_table_column(matched, "miss_rate")));
            (void)tw_cell_number(&reference,
                                 tw_table_cell(matched, r, tw_table_column(matched, "reference_miss_rate")));
            all[i].compared++;
            all[i].wins += win > 0;
            all[i].miss_rate += rate;
            all[i].reference_miss_rate += reference;
        }
    }
    struct tw_table *const table = &study->tables[TW_STUDY_WINS];
    tw_table_init(table,
                  (const char *const[]){"model", "task", "unit", "page_size", "policy", "wins", "compared", "outside",
                                        "never_pruned", "miss_rate", "reactive_miss_rate"},
                  11);
    for (size_t i = 0; i < n; i++) {
        tw_table_begin_row(table);
        for (size_t k = 0; k < N_SHARED; k++)
            tw_table_put_copy(table, tw_table_cell(matched, all[i].row, tw_table_column(matched, shared[k])));
        const size_t counts[] = {all[i].wins, all[i].compared, all[i].outside, all[i].never_pruned};
        for (size_t k = 0; k < 4; k++) tw_table_put_uint(table, counts[k]);
        tw_table_put_double(table, all[i].miss_rate / (double)all[i].compared); /* of nothing: NaN, empty */
        tw_table_put_double(table, all[i].reference_miss_rate / (double)all[i].compared);
    }
    free(all);
    return tw_study_save_table(study, TW_STUDY_WINS, err);
}

/* The comparisons that count, for the figure. */
static void keep_counted(struct tw_study *study, const bool *unpruned) {
    const struct tw_table *const matched = &study->tables[TW_STUDY_MATCHED];
    struct tw_table *const counted = &study->tables[TW_STUDY_COUNTED];
    tw_table_init(counted, (const char *const *)matched->columns, matched->n_columns);
    for (size_t r = 0; r < matched->n_rows; r++) {
        if (unpruned[r]) continue;
        tw_table_begin_row(counted);
        for (size_t c = 0; c < matched->n_columns; c++) tw_table_put_copy(counted, tw_table_cell(matched, r, c));
    }
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
    if (status == TW_OK) status = count_wins(study, summaries.unpruned, err);
    if (status == TW_OK) keep_counted(study, summaries.unpruned);
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
    status = tw_study_write_report(study, err);
done:
    tw_study_settings_release(&defaults);
    return status;
}
