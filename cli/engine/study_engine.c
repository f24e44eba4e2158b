/* What a study needs the engine for: making traces of tasks and prompts. Answers under compression: study_quality.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/output.h"
#include "base/parse.h"
#include "cli/engine/prompt_lines.h"
#include "cli/engine/study_engine.h"

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

tw_status tw_study_model_open(struct tw_study_model_runs *m, struct tw_study *study,
                              const struct tw_study_section *section, struct tw_error *err) {
    const struct tw_study_model *values = section->values;
    *m = (struct tw_study_model_runs){.study = study, .section = section};
    m->settings = engine_settings(study, &m->defaults);
    if (!values->path) return TW_FAIL(err, TW_E_INPUT, "section [model %s] has no key 'path'", section->name);
    TW_TRY(tw_open_model(&m->tracing.model, &m->tracing.tokenizer, values->path, err));
    /* Two files may call themselves the same; the study's own names tell them apart. */
    m->tracing.model_name = section->name;
    m->tracing.progress = study->progress;
    return TW_OK;
}

void tw_study_model_release(struct tw_study_model_runs *m) {
    tw_engine_free(m->tracing.engine);
    tw_tokenizer_free(m->tracing.tokenizer);
    tw_model_free(m->tracing.model);
}

void tw_study_describe_model(struct tw_text *text, const struct tw_study_model_runs *m) {
    const char *const path = ((const struct tw_study_model *)m->section->values)->path;
    struct stat st = {0};
    (void)stat(path, &st);
    tw_text_printf(text, "model %s (%llu bytes)", path, (unsigned long long)st.st_size);
}

/* ---- traces ---- */

static tw_status open_engine(struct tw_study_model_runs *m, struct tw_error *err) {
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
static tw_status note_answer(struct tw_study_model_runs *m, const struct tw_prompt *prompt, const char *path,
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
static tw_status make_run(struct tw_study_model_runs *m, struct tw_prompt *prompt, size_t max_new, uint64_t seed,
                          struct tw_error *err) {
    struct tw_text relative = {0}, settings = {0};
    tw_text_printf(&relative, "traces/%s/%s.h5", m->section->name, tw_text_string(&prompt->run));
    tw_text_printf(&settings, "tidewake %s\n", tw_version);
    tw_study_describe_model(&settings, m);
    tw_text_printf(&settings, "\nrun %s\nmax-new %zu\nseed %llu\nengine", tw_text_string(&prompt->run), max_new,
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

static tw_status make_task(struct tw_study_model_runs *m, const struct tw_study_section *section,
                           struct tw_error *err) {
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
    struct tw_study_model_runs *m = context;
    return make_run(m, prompt, m->tracing.run.max_new, 0, err);
}

static tw_status make_prompts(struct tw_study_model_runs *m, const struct tw_study_section *section,
                              struct tw_error *err) {
    const struct tw_study_prompts *values = section->values;
    if (!values->file) return TW_FAIL(err, TW_E_INPUT, "section [prompts %s] has no key 'file'", section->name);
    m->tracing.run.max_new = values->max_new;
    return tw_prompt_lines(values->file, section->name, make_line, m, err);
}

tw_status tw_study_make_traces(struct tw_study *study, struct tw_error *err) {
    for (const struct tw_study_section *s = tw_study_next(study->settings, "model", NULL); s;
         s = tw_study_next(study->settings, "model", s)) {
        struct tw_study_model_runs m;
        tw_status status = tw_study_model_open(&m, study, s, err);
        for (const struct tw_study_section *t = tw_study_next(study->settings, "task", NULL); t && status == TW_OK;
             t = tw_study_next(study->settings, "task", t))
            status = make_task(&m, t, err);
        for (const struct tw_study_section *p = tw_study_next(study->settings, "prompts", NULL); p && status == TW_OK;
             p = tw_study_next(study->settings, "prompts", p))
            status = make_prompts(&m, p, err);
        tw_study_model_release(&m);
        TW_TRY(status);
    }
    return TW_OK;
}
