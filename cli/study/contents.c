/* The report of a study, section by section: what was run, claims, figures, and the tables that people read. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parse.h"
#include "cli/study/study.h"
#include "cli/trace_warnings.h"
#include "traces/trace.h"

static void list(struct tw_study *study, struct tw_report *report, enum tw_study_table which, const char *caption,
                 const char *columns) {
    if (study->tables[which].n_columns == 0) return;
    char name[64];
    snprintf(name, sizeof name, "tables/%s.csv", tw_study_table_names[which]);
    tw_report_table(report, &study->tables[which],
                    &(struct tw_report_listing){.caption = caption, .columns = columns, .csv = name});
}

static const char *text_at(const struct tw_table *table, size_t row, const char *column) {
    const size_t c = tw_table_column(table, column);
    return c != SIZE_MAX && tw_table_cell(table, row, c)->type == TW_CELL_TEXT ? tw_table_cell(table, row, c)->text
                                                                               : "";
}

static double number_at(const struct tw_table *table, size_t row, const char *column) {
    double value;
    const size_t c = tw_table_column(table, column);
    return c != SIZE_MAX && tw_cell_number(&value, tw_table_cell(table, row, c)) ? value : NAN;
}

static bool same_text(const struct tw_table *table, const char *column, size_t a, size_t b) {
    return strcmp(text_at(table, a, column), text_at(table, b, column)) == 0;
}

/* ---- what was run ---- */

/* The runs: one row each, from the traces themselves. */
static tw_status describe_runs(struct tw_table *table, const struct tw_study *study, struct tw_error *err) {
    tw_table_init(table,
                  (const char *const[]){"run", "model", "task", "prompt_tokens", "steps", "layers", "heads", "kv_heads",
                                        "schedule", "selector", "budget", "backend", "dtype", "seed", "complete"},
                  15);
    for (size_t i = 0; i < study->n_traces; i++) {
        struct tw_trace *trace = NULL;
        TW_TRY(tw_trace_open(&trace, study->traces[i], err));
        tw_warn_about_trace(trace, false);
        const struct tw_trace_info *info = tw_trace_info(trace);
        const char *const texts[] = {info->run, info->model, info->task};
        tw_table_begin_row(table);
        for (size_t k = 0; k < 3; k++) tw_table_put_text(table, texts[k] ? texts[k] : "");
        const uint64_t numbers[] = {info->prompt_length, info->n_steps, info->n_layers, info->n_heads,
                                    info->n_kv_heads};
        for (size_t k = 0; k < 5; k++) tw_table_put_uint(table, numbers[k]);
        tw_table_put_text(table, info->schedule ? info->schedule : "");
        tw_table_put_text(table, info->selector ? info->selector : "");
        if (info->budget)
            tw_table_put_uint(table, info->budget);
        else
            tw_table_put_text(table, "full");
        tw_table_put_text(table, info->backend ? info->backend : "");
        tw_table_put_text(table, info->dtype ? info->dtype : "");
        tw_table_put_uint(table, info->seed);
        tw_table_put_text(table, info->complete ? "yes" : "no");
        tw_trace_free(trace);
    }
    return TW_OK;
}

/* A row a model and task: how many runs, how long, and how many of their answers were right. */
static void sum_up_runs(struct tw_table *out, const struct tw_table *runs, const struct tw_table *answers) {
    tw_table_init(out,
                  (const char *const[]){"model", "task", "runs", "mean_prompt_tokens", "mean_steps", "answers_right",
                                        "answers_scored"},
                  7);
    for (size_t r = 0; r < runs->n_rows; r++) {
        bool first = true;
        for (size_t q = 0; q < r; q++)
            first = first && !(same_text(runs, "model", q, r) && same_text(runs, "task", q, r));
        if (!first) continue;
        const char *const model = text_at(runs, r, "model"), *const task = text_at(runs, r, "task");
        double n = 0, tokens = 0, steps = 0;
        size_t right = 0, scored = 0;
        for (size_t q = r; q < runs->n_rows; q++) {
            if (!(same_text(runs, "model", q, r) && same_text(runs, "task", q, r))) continue;
            n++;
            tokens += number_at(runs, q, "prompt_tokens");
            steps += number_at(runs, q, "steps");
        }
        for (size_t a = 0; a < answers->n_rows; a++) {
            if (strcmp(text_at(answers, a, "model"), model) != 0 || strcmp(text_at(answers, a, "task"), task) != 0)
                continue;
            scored++;
            right += number_at(answers, a, "score") == 1;
        }
        tw_table_begin_row(out);
        tw_table_put_text(out, model);
        tw_table_put_text(out, task);
        tw_table_put_uint(out, (uint64_t)n);
        tw_table_put_double(out, tokens / n);
        tw_table_put_double(out, steps / n);
        tw_table_put_uint(out, right);
        tw_table_put_uint(out, scored);
    }
}

static tw_status write_runs(struct tw_study *study, struct tw_report *report, struct tw_error *err) {
    struct tw_table runs = {0}, sums = {0};
    const tw_status status = describe_runs(&runs, study, err);
    if (status == TW_OK) {
        tw_report_section(report, "What was run");
        sum_up_runs(&sums, &runs, &study->tables[TW_STUDY_ANSWERS]);
        tw_report_table(report, &sums, &(struct tw_report_listing){.caption = "Runs by task"});
        tw_report_note(report,
                       "A step is one decoded token, the first being the last token of the prompt. An answer is "
                       "right when it contains every string that was expected.");
        struct tw_view note, rest = tw_text_view(&study->notes);
        while (rest.size && tw_parse_next(&note, &rest, '\n'))
            if (note.size) tw_report_note(report, "%.*s", (int)note.size, note.data);
        tw_report_fold(report, "Every run and answer");
        tw_report_table(report, &runs, &(struct tw_report_listing){.caption = "The runs"});
        list(study, report, TW_STUDY_ANSWERS, "Answers, and the share of the expected strings that each contains",
             "run,model,score,expected,answer");
        tw_report_fold_end(report);
    }
    tw_table_release(&runs);
    tw_table_release(&sums);
    return status;
}

/* ---- replay ---- */

enum { SHOWN_BUDGETS = 8, MAX_POLICIES = 24 };

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The budgets that are shown: all when they are few, otherwise the powers of two among them, and the largest. */
static bool shown(const double *budgets, size_t n, double budget) {
    return n <= SHOWN_BUDGETS || log2(budget) == floor(log2(budget)) || budget == budgets[n - 1];
}

/* Miss rates with a column a policy: one row a model, task, unit, page size and budget. */
static tw_status pivot(struct tw_table *out, const struct tw_table *average, struct tw_error *err) {
    static const char *const shared[] = {"model", "task", "unit", "page_size"};
    const char *policies[MAX_POLICIES];
    size_t n_policies = 0, n = 0;
    double *const budgets = malloc((average->n_rows + 1) * sizeof *budgets);
    if (!budgets) return TW_FAIL(err, TW_E_MEMORY, "out of memory for the table of miss rates");
    tw_table_init(out, (const char *const[]){"model", "task", "unit", "page_size", "budget"}, 5);
    for (size_t r = 0; r < average->n_rows; r++) {
        const double budget = number_at(average, r, "budget");
        if (isnan(budget)) continue; /* `full`, which never misses */
        size_t p = 0, b = 0;
        while (p < n_policies && strcmp(policies[p], text_at(average, r, "policy")) != 0) p++;
        if (p == n_policies && p < MAX_POLICIES) {
            policies[n_policies++] = text_at(average, r, "policy");
            tw_table_add_column(out, policies[p]);
        }
        while (b < n && budgets[b] != budget) b++;
        if (b == n) budgets[n++] = budget;
    }
    qsort(budgets, n, sizeof *budgets, ascending);
    for (size_t r = 0; r < average->n_rows && n_policies; r++) { /* the first policy's rows stand for all */
        const double budget = number_at(average, r, "budget");
        if (strcmp(text_at(average, r, "policy"), policies[0]) != 0 || !shown(budgets, n, budget)) continue;
        tw_table_begin_row(out);
        for (size_t k = 0; k < 4; k++)
            tw_table_put_copy(out, tw_table_cell(average, r, tw_table_column(average, shared[k])));
        tw_table_put_uint(out, (uint64_t)budget);
        for (size_t p = 0; p < n_policies; p++) {
            double rate = NAN;
            for (size_t q = 0; q < average->n_rows && isnan(rate); q++)
                if (number_at(average, q, "budget") == budget &&
                    strcmp(text_at(average, q, "policy"), policies[p]) == 0 && same_text(average, "model", q, r) &&
                    same_text(average, "task", q, r) && same_text(average, "unit", q, r) &&
                    number_at(average, q, "page_size") == number_at(average, r, "page_size"))
                    rate = number_at(average, q, "miss_rate");
            tw_table_put_double(out, rate);
        }
    }
    free(budgets);
    return TW_OK;
}

static tw_status write_replay(struct tw_study *study, struct tw_report *report, struct tw_error *err) {
    struct tw_table table = {0};
    const tw_status status = pivot(&table, &study->tables[TW_STUDY_AVERAGE], err);
    if (status == TW_OK && table.n_rows) {
        tw_report_section(report, "Replay");
        tw_report_table(
            report, &table,
            &(struct tw_report_listing){.caption = "Miss rate (misses / accesses) by policy, mean over runs",
                                        .n_keys = 5,
                                        .csv = "tables/average.csv"});
        tw_report_note(report,
                       "The budget is in pages a head (pages a KV head for the unit kv), page_size in tokens. At "
                       "the same budget policies hold different memory: only evict and min are comparable with "
                       "reactive in a row. A policy that prunes every so many steps keeps everything, and misses "
                       "nothing, until it first does.");
    }
    tw_table_release(&table);
    return status;
}

/* ---- the other tables ---- */

static void write_matched(struct tw_study *study, struct tw_report *report) {
    tw_report_section(report, "Matched memory");
    tw_report_paragraph(
        report, "Policies realise different memory at the same nominal budget, so each policy's point is held "
                "against reactive's miss rate interpolated at the same resident memory; evict, which has the same "
                "cap, at equal budget.");
    list(study, report, TW_STUDY_WINS, "How often reactive misses no more", NULL);
    tw_report_note(report,
                   "wins: of the points compared. outside: points whose memory lies outside reactive's range. "
                   "never_pruned: points of runs too short for the policy to prune even once; they count "
                   "nowhere. The miss rates are means over the points compared. Every point: tables/matched.csv.");
}

static void write_churn(struct tw_study *study, struct tw_report *report) {
    tw_report_section(report, "Churn and wake-ups");
    list(study, report, TW_STUDY_CHURN, "How much heads change what they read, means over runs",
         "model,task,runs,page_size,page_jaccard,stability_mean,unstable_fraction,drift_events_mean,heads_with_event,"
         "copy_paste_adjacent_jaccard,copy_paste_empty_share,needle_0.2_adjacent_jaccard,needle_0.2_empty_share");
    tw_report_note(
        report, "page_jaccard: likeness of a head's page sets of adjacent steps (1: the same). stability: overlap with "
                "the next 15 steps, corrected for chance; unstable_fraction: share of the heads below 0.5. "
                "drift_events_mean: how often a head left for good what it read; heads_with_event: share of the heads "
                "that did. copy_paste, needle_0.2: the set of heads that read the needle at a step, by its copying or "
                "by a needle score above 0.2; adjacent_jaccard is the likeness of adjacent steps' sets, and means "
                "little where empty_share, the share of steps without any such head, is high.");
    if (study->tables[TW_STUDY_WAKEUPS].n_columns == 0) return;
    list(study, report, TW_STUDY_WAKEUPS, "Wake-ups, and how well they can be foretold",
         "model,task,runs,steps,events,zscore_signal,zscore_lead,zscore_precision,zscore_recall,"
         "tokens_f1,concentration,concentration_z,trigger_recall");
    tw_report_note(
        report,
        "A head wakes when its needle score exceeds 0.2 after 8 steps below 0.05; events: how many times, over "
        "all runs and their steps. zscore: the signal and lead (in steps) of the best F1 with a threshold that a "
        "running system could use. tokens_f1: of the generated tokens that wake-ups follow, where there are such. concentration: share of the "
        "events in the busiest steps, and how many standard deviations (z) that is above shuffled events. "
        "trigger_recall: share of the events within 4 steps of a busiest one.");
}

/* "full" or tokens, as text. */
static void budget_text(char text[32], const struct tw_table *table, size_t row) {
    const double budget = number_at(table, row, "budget");
    if (isnan(budget))
        snprintf(text, 32, "%s", text_at(table, row, "budget"));
    else
        snprintf(text, 32, "%.0f", budget);
}

/* The row of the same prompts, selector and budget as `row` under `schedule`; SIZE_MAX when there is none. */
static size_t same_way(const struct tw_table *quality, size_t row, const char *schedule) {
    char budget[32], other[32];
    budget_text(budget, quality, row);
    for (size_t r = 0; r < quality->n_rows; r++) {
        budget_text(other, quality, r);
        if (strcmp(text_at(quality, r, "schedule"), schedule) == 0 && same_text(quality, "model", r, row) &&
            same_text(quality, "task", r, row) && same_text(quality, "selector", r, row) &&
            number_at(quality, r, "context") == number_at(quality, row, "context") && strcmp(budget, other) == 0)
            return r;
    }
    return SIZE_MAX;
}

/* A row for the same prompts, selector and budget, a column a schedule: equal scores stand side by side. */
static void pivot_quality(struct tw_table *out, const struct tw_table *quality) {
    const char *schedules[MAX_POLICIES];
    size_t n = 0;
    tw_table_init(out, (const char *const[]){"model", "task", "context", "examples", "selector", "budget"}, 6);
    for (size_t r = 0; r < quality->n_rows; r++) {
        size_t s = 0;
        while (s < n && strcmp(schedules[s], text_at(quality, r, "schedule")) != 0) s++;
        if (s < n || n == MAX_POLICIES) continue;
        schedules[n++] = text_at(quality, r, "schedule");
        tw_table_add_column(out, schedules[s]);
    }
    for (size_t r = 0; r < quality->n_rows; r++) {
        bool first = true; /* of the rows that stand in one */
        for (size_t s = 0; s < n; s++) first = first && same_way(quality, r, schedules[s]) >= r;
        if (!first) continue;
        char text[96];
        tw_table_begin_row(out);
        tw_table_put_text(out, text_at(quality, r, "model"));
        tw_table_put_text(out, text_at(quality, r, "task"));
        tw_table_put_uint(out, (uint64_t)number_at(quality, r, "context"));
        tw_table_put_uint(out, (uint64_t)number_at(quality, r, "examples"));
        tw_table_put_text(out, text_at(quality, r, "selector"));
        budget_text(text, quality, r);
        tw_table_put_text(out, text);
        for (size_t s = 0; s < n; s++) {
            const size_t at = same_way(quality, r, schedules[s]);
            if (at == SIZE_MAX) {
                tw_table_put_text(out, "\u2013");
                continue;
            }
            snprintf(text, sizeof text, "%.3f (%.2f to %.2f)", number_at(quality, at, "score"),
                     number_at(quality, at, "low"), number_at(quality, at, "high"));
            tw_table_put_text(out, text);
        }
    }
}

static void write_quality(struct tw_study *study, struct tw_report *report) {
    if (study->tables[TW_STUDY_QUALITY].n_rows == 0) return;
    struct tw_table table = {0};
    pivot_quality(&table, &study->tables[TW_STUDY_QUALITY]);
    tw_report_section(report, "Answers under compression");
    tw_report_table(report, &table,
                    &(struct tw_report_listing){.caption = "Score of the answers under each schedule",
                                                .n_keys = 6,
                                                .csv = "tables/quality.csv"});
    tw_report_note(report,
                   "The same prompts go to every schedule, selector and budget (in tokens a KV head; without one, "
                   "no selector selects). The score is the mean share of the expected strings that an answer "
                   "contains; in brackets Wilson's interval at 95 %%.");
    tw_table_release(&table);
}

tw_status tw_study_write_report(struct tw_study *study, struct tw_error *err) {
    const struct tw_study_general *general = tw_study_values(study->settings, "study");
    struct tw_report report = {0};
    char *path = NULL;
    tw_status status;
    TW_TRY_GOTO(status, done, write_runs(study, &report, err));
    tw_report_section(&report, "Claims of the papers, beside what was measured here");
    tw_study_claims(study, &report);
    tw_report_section(&report, "Figures");
    TW_TRY_GOTO(status, done, tw_study_draw(study, &report, err));
    write_quality(study, &report);
    if (study->tables[TW_STUDY_WINS].n_columns) write_matched(study, &report);
    TW_TRY_GOTO(status, done, write_replay(study, &report, err));
    write_churn(study, &report);
    path = tw_study_path(study, "report.html", err);
    if (!path) {
        status = TW_E_INPUT;
        goto done;
    }
    status = tw_report_write(&report, path, general && general->title ? general->title : "A Tidewake study",
                             "Attention traced from real models, replayed under residency policies.", err);
    if (status == TW_OK) tw_study_made(study, path);
done:
    free(path);
    tw_report_release(&report);
    return status;
}
