/*
 * Answers under compression (TideKV, section 6): the same prompts for every schedule, selector and budget, and how many
 * are answered right.
 *
 * What was found is kept in FOLDER/quality.kept as it is found, a line for each task, length and way of compressing, so
 * that an interrupted study goes on where it stopped.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/parse.h"
#include "cli/command.h"
#include "cli/engine/study_engine.h"

/* Splits "a,b:c=1" at commas into strings of its own. */
struct names {
    char **names; /* [n] */
    size_t n;
};

static void names_release(struct names *names) {
    for (size_t i = 0; i < names->n; i++) free(names->names[i]);
    free(names->names);
    *names = (struct names){0};
}

static tw_status names_split(struct names *names, const char *text, struct tw_error *err) {
    struct tw_view piece, rest = tw_view_of(text);
    while (tw_parse_next(&piece, &rest, ',')) {
        char **larger = realloc(names->names, (names->n + 1) * sizeof *larger);
        if (larger) names->names = larger;
        char *copy = larger ? strndup(piece.data, piece.size) : NULL;
        if (!copy) return TW_FAIL(err, TW_E_MEMORY, "out of memory for the list '%s'", text);
        names->names[names->n++] = copy;
    }
    return TW_OK;
}

/* One way of running the prompts, and how its answers came out. */
struct way {
    const char *schedule, *selector, *budget_text;
    uint64_t budget;
};

static tw_status parse_budget(uint64_t *budget, const char *text, struct tw_error *err) {
    static const struct tw_option row = {.name = "budget", .type = TW_OPTION_BUDGET, .help = ""};
    return tw_options_set(budget, &row, text, "[quality] ", err);
}

/* Wilson's interval at 95 % for a mean of n scores in [0, 1]. */
static void interval(double *low, double *high, double mean, double n) {
    const double z = 1.959963984540054, centre = (mean + z * z / (2 * n)) / (1 + z * z / n);
    const double half = z / (1 + z * z / n) * sqrt(mean * (1 - mean) / n + z * z / (4 * n * n));
    *low = fmax(0, centre - half);
    *high = fmin(1, centre + half);
}

/* ---- what is kept ---- */

struct kept {
    const char *path;
    struct tw_view known; /* what the file held when the study began */
};

/* What a line begins with: everything that its figures depend on. */
static void describe_way(struct tw_text *key, const struct tw_study_model_runs *m, const struct way *way,
                         const struct tw_task *task, size_t context, const struct tw_study_quality *quality) {
    tw_text_printf(key, "tidewake %s, ", tw_version);
    tw_study_describe_model(key, m);
    tw_text_printf(key, ", engine");
    tw_options_describe(key, m->settings, tw_engine_option_rows);
    tw_text_printf(key, ", task %s, context %zu, runs %llu, seed %llu, schedule %s, selector %s, budget %s\t",
                   task->name, context, (unsigned long long)quality->runs, (unsigned long long)quality->seed,
                   way->schedule, way->budget ? way->selector : "any", way->budget_text);
}

static bool find_kept(double *sum, size_t *right, struct tw_view kept, const struct tw_text *key) {
    struct tw_view line, rest = kept;
    while (rest.size && tw_parse_next(&line, &rest, '\n')) {
        /* A line without its end was cut short. */
        if (!rest.data || line.size <= key->size || memcmp(line.data, key->data, key->size) != 0) continue;
        struct tw_view number, figures = {line.data + key->size, line.size - key->size};
        uint64_t n;
        if (tw_parse_next(&number, &figures, '\t') && tw_parse_double(sum, number) && tw_parse_u64(&n, figures)) {
            *right = n;
            return true;
        }
    }
    return false;
}

static tw_status keep(const char *path, const struct tw_text *key, double sum, size_t right, struct tw_error *err) {
    FILE *const file = fopen(path, "a");
    if (file) fprintf(file, "%s%.17g\t%zu\n", tw_text_string(key), sum, right);
    if (!file || (ferror(file) | fclose(file)) != 0) return TW_FAIL(err, TW_E_IO, "cannot write to '%s'", path);
    return TW_OK;
}

/* ---- measuring ---- */

static tw_status score_prompts(struct tw_study_model_runs *m, const struct way *way, const struct tw_encoded *encoded,
                               const struct tw_prompt *prompts, size_t n, size_t max_new, double *sum, size_t *right,
                               struct tw_error *err) {
    struct tw_engine_options options;
    tw_engine_settings_apply(&options, m->settings, 0);
    options.schedule = way->schedule;
    options.selector = way->selector;
    options.budget = way->budget;
    struct tw_engine *engine = NULL;
    TW_TRY(tw_engine_open(&engine, m->tracing.model, &options, err));
    tw_status status = TW_OK;
    for (size_t i = 0; i < n && status == TW_OK; i++) {
        struct tw_run_result result = {0};
        const struct tw_run_options run = {.max_new = max_new, .top_p = 1};
        status = tw_run(&result, engine, m->tracing.tokenizer, &encoded[i], &run, NULL, m->study->progress, err);
        if (status == TW_OK) {
            const double score = tw_prompt_score(&prompts[i], tw_text_view(&result.text));
            *sum += score;
            *right += score == 1;
        }
        tw_run_result_release(&result);
    }
    tw_engine_free(engine);
    return status;
}

/* A row of the table for every way, over the prompts of one task and length. */
static tw_status compare_ways(struct tw_study_model_runs *m, const struct tw_task *task, size_t context,
                              const struct way *ways, size_t n_ways, const struct tw_study_quality *quality,
                              const struct kept *kept, struct tw_error *err) {
    const struct tw_token_counter counter = tw_token_counter_of(m->tracing.tokenizer);
    const size_t n = quality->runs;
    struct tw_prompt *prompts = calloc(n, sizeof *prompts);
    struct tw_encoded *encoded = calloc(n, sizeof *encoded);
    tw_status status = prompts && encoded ? TW_OK : TW_FAIL(err, TW_E_MEMORY, "out of memory for %zu prompts", n);
    for (size_t i = 0; i < n && status == TW_OK; i++) {
        /* Depths are spread evenly over the runs. */
        const struct tw_task_request request = {context, ((double)i + 0.5) / (double)n, quality->seed + i};
        status = tw_task_make(&prompts[i], task, &request, &counter, err);
        if (status == TW_OK)
            status = tw_encode_for_command(&encoded[i], m->tracing.tokenizer, &prompts[i], TW_SPECIAL_LITERAL, err);
    }
    struct tw_table *table = &m->study->tables[TW_STUDY_QUALITY];
    for (size_t w = 0; w < n_ways && status == TW_OK; w++) {
        double sum = 0, low, high;
        size_t right = 0;
        struct tw_text key = {0};
        describe_way(&key, m, &ways[w], task, context, quality);
        if (!find_kept(&sum, &right, kept->known, &key)) {
            const double begin = tw_clock_seconds();
            status = score_prompts(m, &ways[w], encoded, prompts, n, task->answer_tokens, &sum, &right, err);
            if (status == TW_OK) status = keep(kept->path, &key, sum, right, err);
            if (status == TW_OK)
                tw_note("%s, %zu tokens, %s, %s%s%s: %zu of %zu right, in %.1f s", task->name, context,
                        ways[w].schedule, ways[w].budget ? ways[w].selector : "", ways[w].budget ? ", " : "",
                        ways[w].budget_text, right, n, tw_clock_seconds() - begin);
        }
        tw_text_release(&key);
        if (status == TW_E_OPTION || status == TW_E_UNSUPPORTED) { /* a selector that this schedule does not have */
            tw_text_printf(&m->study->notes, "Left out of the comparison of answers: %s.\n", err->text);
            status = TW_OK;
            continue;
        }
        if (status != TW_OK) break;
        interval(&low, &high, sum / (double)n, (double)n);
        tw_table_begin_row(table);
        tw_table_put_text(table, m->section->name);
        tw_table_put_text(table, task->name);
        tw_table_put_uint(table, context);
        tw_table_put_text(table, ways[w].schedule);
        tw_table_put_text(table, ways[w].budget ? ways[w].selector : "any");
        if (ways[w].budget)
            tw_table_put_uint(table, ways[w].budget);
        else
            tw_table_put_text(table, "full");
        tw_table_put_uint(table, n);
        tw_table_put_uint(table, right);
        tw_table_put_double(table, sum / (double)n);
        tw_table_put_double(table, low);
        tw_table_put_double(table, high);
    }
    for (size_t i = 0; i < n; i++) {
        if (prompts) tw_prompt_release(&prompts[i]);
        if (encoded) tw_encoded_release(&encoded[i]);
    }
    free(prompts);
    free(encoded);
    return status;
}

static tw_status measure_model(struct tw_study_model_runs *m, const struct tw_study_quality *quality,
                               const struct kept *kept, struct tw_error *err) {
    struct names tasks = {0}, schedules = {0}, selectors = {0}, budgets = {0};
    struct way *ways = NULL;
    size_t n_ways = 0;
    tw_status status;
    TW_TRY_GOTO(status, done, names_split(&tasks, quality->task, err));
    TW_TRY_GOTO(status, done, names_split(&schedules, quality->schedule, err));
    TW_TRY_GOTO(status, done, names_split(&selectors, quality->selector, err));
    TW_TRY_GOTO(status, done, names_split(&budgets, quality->budget, err));
    ways = calloc(schedules.n * selectors.n * budgets.n, sizeof *ways);
    if (!ways) {
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory for the comparison of answers");
        goto done;
    }
    for (size_t s = 0; s < schedules.n; s++)
        for (size_t b = 0; b < budgets.n; b++) {
            uint64_t budget = 0;
            TW_TRY_GOTO(status, done, parse_budget(&budget, budgets.names[b], err));
            /* With a full budget no selector selects: one row stands for all. */
            for (size_t k = 0; k < (budget ? selectors.n : 1); k++)
                ways[n_ways++] = (struct way){schedules.names[s], selectors.names[k], budgets.names[b], budget};
        }
    for (size_t t = 0; t < tasks.n; t++) {
        const struct tw_task *task;
        TW_TRY_GOTO(status, done, tw_task_find(&task, tasks.names[t], err));
        for (size_t c = 0; c < quality->context.n; c++) {
            char detail[96];
            snprintf(detail, sizeof detail, "%s, %llu tokens", task->name,
                     (unsigned long long)quality->context.values[c]);
            tw_progress_update(m->study->progress, "answers", t * quality->context.n + c, tasks.n * quality->context.n,
                               "lengths", detail);
            TW_TRY_GOTO(status, done,
                        compare_ways(m, task, quality->context.values[c], ways, n_ways, quality, kept, err));
        }
    }
done:
    free(ways);
    names_release(&tasks);
    names_release(&schedules);
    names_release(&selectors);
    names_release(&budgets);
    return status;
}

tw_status tw_study_measure_quality(struct tw_study *study, struct tw_error *err) {
    const struct tw_study_quality *quality = tw_study_values(study->settings, "quality");
    if (!quality) return TW_OK;
    tw_table_init(&study->tables[TW_STUDY_QUALITY],
                  (const char *const[]){"model", "task", "context", "schedule", "selector", "budget", "examples",
                                        "right", "score", "low", "high"},
                  11);
    struct tw_text known = {0};
    char *const path = tw_study_path(study, "quality.kept", err);
    if (!path) return TW_E_INPUT;
    if (access(path, F_OK) == 0) (void)tw_file_read(&known, path, (size_t)1 << 30, "answers kept", NULL);
    const struct kept kept = {path, tw_text_view(&known)};
    tw_status status = TW_OK;
    for (const struct tw_study_section *s = tw_study_next(study->settings, "model", NULL); s && status == TW_OK;
         s = tw_study_next(study->settings, "model", s)) {
        struct tw_study_model_runs m;
        status = tw_study_model_open(&m, study, s, err);
        if (status == TW_OK) status = measure_model(&m, quality, &kept, err);
        tw_study_model_release(&m);
    }
    tw_text_release(&known);
    free(path);
    return status;
}
