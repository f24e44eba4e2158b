/* What a study needs the engine for: making traces of tasks and prompts, and scoring answers under compression. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/output.h"
#include "base/parse.h"
#include "cli/engine/engine_options.h"
#include "cli/engine/prompt_lines.h"
#include "cli/engine/tracing.h"
#include "cli/study/study.h"

const struct tw_option *const tw_study_engine_options = tw_engine_option_rows;
const size_t tw_study_engine_options_size = sizeof(struct tw_engine_settings);

/* The settings of [engine], or their defaults. */
static const struct tw_engine_settings *engine_settings(const struct tw_study *study,
                                                        struct tw_engine_settings *defaults) {
    const struct tw_engine_settings *settings = tw_study_values(study->settings, "engine");
    if (settings) return settings;
    tw_options_init(defaults, sizeof *defaults, tw_engine_option_rows);
    return defaults;
}

/* ---- traces ---- */

/* A model whose runs are being made. It is opened when the first run that is not there yet asks for it. */
struct model_runs {
    struct tw_study *study;
    const struct tw_study_section *section; /* [model NAME] */
    const struct tw_engine_settings *settings;
    struct tw_tracing tracing; /* empty until opened; the tokenizer is there from the beginning */
};

static tw_status open_engine(struct model_runs *m, struct tw_error *err) {
    if (m->tracing.engine) return TW_OK;
    struct tw_engine_options options;
    tw_engine_settings_apply(&options, m->settings, 0);
    return tw_engine_open(&m->tracing.engine, m->tracing.model, &options, err);
}

static void put_answer(struct tw_study *study, const struct tw_prompt *prompt, const char *model,
                       const struct tw_trace_info *info, double score) {
    struct tw_table *table = &study->tables[TW_STUDY_ANSWERS];
    if (table->n_columns == 0)
        tw_table_init(table, (const char *const[]){"run", "model", "task", "score", "expected", "answer"}, 6);
    tw_table_begin_row(table);
    tw_table_put_text(table, tw_text_string(&prompt->run));
    tw_table_put_text(table, model);
    tw_table_put_text(table, tw_text_string(&prompt->task));
    tw_table_put_double(table, score);
    tw_table_put_text(table, info->expected_answer ? info->expected_answer : "");
    tw_table_put_text(table, info->generated_text ? info->generated_text : "");
}

/* The answer is scored from the file, so that a run which was there already counts like one just made. */
static tw_status note_answer(struct model_runs *m, const struct tw_prompt *prompt, const char *path,
                             struct tw_error *err) {
    if (prompt->n_expected == 0) return TW_OK;
    struct tw_trace *trace = NULL;
    TW_TRY(tw_trace_open(&trace, path, err));
    const struct tw_trace_info *info = tw_trace_info(trace);
    put_answer(m->study, prompt, m->section->name, info,
               tw_prompt_score(prompt, tw_view_of(info->generated_text ? info->generated_text : "")));
    tw_trace_free(trace);
    return TW_OK;
}

/* One run: made unless it is there with the same settings. */
static tw_status make_run(struct model_runs *m, struct tw_prompt *prompt, size_t max_new, uint64_t seed,
                          struct tw_error *err) {
    struct tw_text relative = {0}, settings = {0};
    struct stat st = {0};
    const char *model_path = ((const struct tw_study_model *)m->section->values)->path;
    (void)stat(model_path, &st);
    tw_text_printf(&relative, "traces/%s/%s.h5", m->section->name, tw_text_string(&prompt->run));
    tw_text_printf(&settings, "tidewake %s\nmodel %s (%llu bytes)\nrun %s\nmax-new %zu\nseed %llu\nengine", tw_version,
                   model_path, (unsigned long long)st.st_size, tw_text_string(&prompt->run), max_new,
                   (unsigned long long)seed);
    tw_options_describe(&settings, m->settings, tw_engine_option_rows);
    tw_text_append_char(&settings, '\n');

    char *path = tw_study_path(m->study, tw_text_string(&relative), err);
    tw_status status = path ? TW_OK : TW_E_INPUT;
    if (path && !tw_study_is_made(path, tw_text_view(&settings))) {
        struct tw_text beside = {0};
        struct tw_traced traced = {0};
        tw_text_printf(&beside, "%.*s.settings", (int)(strlen(path) - 3), path);
        unlink(tw_text_string(&beside)); /* from here on the trace at `path` is not what it says */
        m->tracing.run = (struct tw_run_options){.max_new = max_new, .top_p = 1, .seed = seed};
        m->tracing.seed = seed;
        m->tracing.tracer = (struct tw_tracer_options){.top_k = 64, .force = true};
        status = open_engine(m, err);
        if (status == TW_OK) status = tw_trace_prompt(&traced, &m->tracing, prompt, path, err);
        if (status == TW_OK) status = tw_output_write(tw_text_string(&beside), tw_text_view(&settings), err);
        if (status == TW_OK)
            tw_note("traced '%s': %zu prompt tokens, %zu steps in %.1f s", path, m->tracing.engine->prompt_length,
                    traced.result.n_tokens, traced.result.times.prefill_seconds + traced.result.times.decode_seconds);
        tw_run_result_release(&traced.result);
        tw_text_release(&beside);
    }
    if (status == TW_OK) status = tw_study_add_trace(m->study, path, err);
    if (status == TW_OK) tw_study_made(m->study, path);
    if (status == TW_OK) status = note_answer(m, prompt, path, err);
    free(path);
    tw_text_release(&relative);
    tw_text_release(&settings);
    return status;
}

static tw_status make_task(struct model_runs *m, const struct tw_study_section *section, struct tw_error *err) {
    const struct tw_study_task *values = section->values;
    const struct tw_token_counter counter = tw_token_counter_of(m->tracing.tokenizer);
    const struct tw_task *task;
    TW_TRY(tw_task_find(&task, section->name, err));
    for (size_t c = 0; c < values->context.n; c++)
        for (size_t d = 0; d < values->depth.n; d++)
            for (uint64_t r = 0; r < values->runs; r++) {
                const struct tw_task_request request = {values->context.values[c], values->depth.values[d],
                                                        values->seed + r};
                struct tw_prompt prompt = {0};
                TW_TRY(tw_task_make(&prompt, task, &request, &counter, err));
                const tw_status status =
                    make_run(m, &prompt, values->max_new ? values->max_new : task->answer_tokens, request.seed, err);
                tw_prompt_release(&prompt);
                TW_TRY(status);
            }
    return TW_OK;
}

static tw_status make_line(void *context, struct tw_prompt *prompt, struct tw_error *err) {
    struct model_runs *m = context;
    return make_run(m, prompt, m->tracing.run.max_new, 0, err);
}

static tw_status make_prompts(struct model_runs *m, const struct tw_study_section *section, struct tw_error *err) {
    const struct tw_study_prompts *values = section->values;
    if (!values->file) return TW_FAIL(err, TW_E_INPUT, "section [prompts %s] has no key 'file'", section->name);
    m->tracing.run.max_new = values->max_new;
    return tw_prompt_lines(values->file, section->name, make_line, m, err);
}

static void close_model(struct model_runs *m) {
    tw_engine_free(m->tracing.engine);
    tw_tokenizer_free(m->tracing.tokenizer);
    tw_model_free(m->tracing.model);
}

static tw_status open_model(struct model_runs *m, struct tw_error *err) {
    const struct tw_study_model *values = m->section->values;
    if (!values->path) return TW_FAIL(err, TW_E_INPUT, "section [model %s] has no key 'path'", m->section->name);
    TW_TRY(tw_open_model(&m->tracing.model, &m->tracing.tokenizer, values->path, err));
    /* Two files may call themselves the same; the study's own names tell them apart. */
    m->tracing.model_name = m->section->name;
    m->tracing.progress = m->study->progress;
    return TW_OK;
}

tw_status tw_study_make_traces(struct tw_study *study, struct tw_error *err) {
    struct tw_engine_settings defaults;
    for (const struct tw_study_section *s = tw_study_next(study->settings, "model", NULL); s;
         s = tw_study_next(study->settings, "model", s)) {
        struct model_runs m = {.study = study, .section = s, .settings = engine_settings(study, &defaults)};
        tw_status status = open_model(&m, err);
        for (const struct tw_study_section *t = tw_study_next(study->settings, "task", NULL); t && status == TW_OK;
             t = tw_study_next(study->settings, "task", t))
            status = make_task(&m, t, err);
        for (const struct tw_study_section *p = tw_study_next(study->settings, "prompts", NULL); p && status == TW_OK;
             p = tw_study_next(study->settings, "prompts", p))
            status = make_prompts(&m, p, err);
        close_model(&m);
        TW_TRY(status);
    }
    return TW_OK;
}

/* ---- answers under compression (TideKV, section 6) ---- */

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

static tw_status score_prompts(struct model_runs *m, const struct way *way, const struct tw_encoded *encoded,
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
static tw_status compare_ways(struct model_runs *m, const struct tw_task *task, size_t context, const struct way *ways,
                              size_t n_ways, const struct tw_study_quality *quality, struct tw_error *err) {
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
        status = score_prompts(m, &ways[w], encoded, prompts, n, task->answer_tokens, &sum, &right, err);
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

static tw_status measure_model(struct model_runs *m, const struct tw_study_quality *quality, struct tw_error *err) {
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
            TW_TRY_GOTO(status, done, compare_ways(m, task, quality->context.values[c], ways, n_ways, quality, err));
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
    struct tw_engine_settings defaults;
    for (const struct tw_study_section *s = tw_study_next(study->settings, "model", NULL); s;
         s = tw_study_next(study->settings, "model", s)) {
        struct model_runs m = {.study = study, .section = s, .settings = engine_settings(study, &defaults)};
        tw_status status = open_model(&m, err);
        if (status == TW_OK) status = measure_model(&m, quality, err);
        close_model(&m);
        TW_TRY(status);
    }
    return TW_OK;
}
