/* `tidewake trace`: prefill, decode, log. */
#include <cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"
#include "base/parse.h"
#include "base/stop.h"
#include "cli/engine/engine_options.h"
#include "cli/engine/run_options.h"
#include "engine/task/task.h"

struct log_settings {
    const char *output, *log, *prompts, *task;
    uint64_t top_k, context;
    double depth;
    unsigned weight_type, timing;
    bool force;
};

struct trace_options {
    struct tw_input_settings input;
    struct tw_run_settings run;
    struct tw_engine_settings engine;
    struct log_settings log;
};

static const struct tw_option task_rows[] = {
    {.name = "prompts",
     .type = TW_OPTION_TEXT,
     .offset = offsetof(struct log_settings, prompts),
     .value_name = "FILE.jsonl",
     .help = "one {\"prompt\", \"answer\"} a line, one trace each, into the folder -o"},
    {.name = "task",
     .type = TW_OPTION_TEXT,
     .offset = offsetof(struct log_settings, task),
     .value_name = "NAME",
     .help = "a prompt made by a task that 'tidewake list' names"},
    {.name = "context",
     .type = TW_OPTION_SIZE,
     .offset = offsetof(struct log_settings, context),
     .default_value = "0",
     .value_name = "N",
     .help = "tokens of the task's prompt, 0: as the task likes"},
    {.name = "depth",
     .type = TW_OPTION_DOUBLE,
     .offset = offsetof(struct log_settings, depth),
     .default_value = "0.5",
     .minimum = 0,
     .maximum = 1,
     .value_name = "D",
     .help = "where the task's needle stands, from 0 to 1"},
    {0},
};

static const struct tw_option log_rows[] = {
    {.name = "output",
     .letter = 'o',
     .type = TW_OPTION_TEXT,
     .offset = offsetof(struct log_settings, output),
     .value_name = "RUN.h5",
     .help = "the trace, or the folder of traces with --prompts"},
    {.name = "top-k",
     .type = TW_OPTION_SIZE,
     .offset = offsetof(struct log_settings, top_k),
     .default_value = "64",
     .minimum = 1,
     .maximum = 1024,
     .value_name = "N",
     .help = "positions logged a step, layer and head"},
    {.name = "log",
     .type = TW_OPTION_TEXT,
     .offset = offsetof(struct log_settings, log),
     .value_name = "LIST",
     .help = "what else: needle,copy,vote,keys,kept or none; needle and copy are on where there is a needle"},
    {.name = "weight-type",
     .type = TW_OPTION_CHOICE,
     .offset = offsetof(struct log_settings, weight_type),
     .default_value = "f16",
     .choices = "f16|f32",
     .help = "how weights are stored"},
    {.name = "force", .type = TW_OPTION_FLAG, .offset = offsetof(struct log_settings, force), .help = "overwrite"},
    {.name = "timing",
     .type = TW_OPTION_CHOICE,
     .offset = offsetof(struct log_settings, timing),
     .default_value = "none",
     .choices = "none|json",
     .help = "json: times and rates, on standard output"},
    {0},
};

static const struct tw_option_group groups[] = {
    {"Input", tw_input_option_rows, offsetof(struct trace_options, input)},
    {NULL, task_rows, offsetof(struct trace_options, log)},
    {"Running", tw_run_option_rows, offsetof(struct trace_options, run)},
    {"Engine", tw_engine_option_rows, offsetof(struct trace_options, engine)},
    {"Log", log_rows, offsetof(struct trace_options, log)},
    {0},
};

/* All that the runs of one invocation share. */
struct tracing {
    struct tw_invocation *invocation;
    const struct trace_options *options;
    struct tw_model *model;
    struct tw_tokenizer *tokenizer;
    struct tw_engine *engine;
    struct tw_run_options run;
    struct tw_continuation continuation;
    struct tw_tracer_options tracer;
    bool log_given; /* --log says what is logged; otherwise the prompt does */
};

static tw_status parse_log(struct tw_tracer_options *tracer, const char *list, struct tw_error *err) {
    struct {
        const char *name;
        bool *wanted;
    } const names[] = {{"needle", &tracer->needle},
                       {"copy", &tracer->copy_paste},
                       {"vote", &tracer->window_vote},
                       {"keys", &tracer->key},
                       {"kept", &tracer->kept}};
    if (!list || strcmp(list, "none") == 0) return TW_OK;
    struct tw_view piece, rest = tw_view_of(list);
    while (tw_parse_next(&piece, &rest, ',')) {
        bool found = false;
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (tw_view_equal(piece, tw_view_of(names[i].name))) found = *names[i].wanted = true;
        if (!found)
            return TW_FAIL(err, TW_E_OPTION,
                           "option '--log': there is no '%.*s'; there are: needle, copy, vote, keys, kept",
                           (int)piece.size, piece.data);
    }
    return TW_OK;
}

static void print_timing(const struct tw_run_result *result, size_t prompt_tokens, uint64_t trace_bytes) {
    const struct tw_engine_times *times = &result->times;
    struct tw_text text = {0};
    struct tw_json json = {.out = &text};
    tw_json_begin_object(&json, NULL);
    tw_json_uint(&json, "prompt_tokens", prompt_tokens);
    tw_json_double(&json, "prefill_seconds", times->prefill_seconds);
    tw_json_double(&json, "prefill_tokens_per_second", (double)prompt_tokens / times->prefill_seconds);
    tw_json_uint(&json, "decode_steps", result->n_tokens);
    tw_json_double(&json, "decode_seconds", times->decode_seconds);
    tw_json_double(&json, "decode_tokens_per_second", (double)times->n_decoded / times->decode_seconds);
    tw_json_uint(&json, "trace_bytes", trace_bytes);
    tw_json_end_object(&json);
    printf("%s\n", tw_text_string(&text));
    tw_text_release(&text);
}

static tw_status fill_info(struct tw_trace_info *info, const struct tracing *t, const char *task, const char *run,
                           const char *answer, struct tw_error *err) {
    const bool parsed = t->options->input.special == TW_SPECIAL_PARSED;
    char producer[64];
    snprintf(producer, sizeof producer, "tidewake %s", tw_version);
    TW_TRY(tw_trace_info_set(&info->model, t->model->config.name, err));
    TW_TRY(tw_trace_info_set(&info->task, task, err));
    TW_TRY(tw_trace_info_set(&info->run, run, err));
    TW_TRY(tw_trace_info_set(&info->producer, producer, err));
    TW_TRY(tw_trace_info_set(&info->special_tokens, parsed ? "parsed" : "literal", err));
    TW_TRY(tw_trace_info_set(&info->pre_tokenizer, tw_tokenizer_split_name(t->tokenizer), err));
    TW_TRY(tw_trace_info_set(&info->expected_answer, answer, err));
    info->seed = t->options->run.seed;
    return TW_OK;
}

/* One trace. */
static tw_status trace_one(struct tracing *t, const struct tw_encoded *prompt, const char *path, const char *task,
                           const char *run, const char *answer, const struct tw_prompt *scored, struct tw_error *err) {
    struct tw_trace_info info = {0};
    struct tw_run_result result = {0};
    struct tw_tracer_options tracer = t->tracer;
    uint64_t bytes = 0;
    tracer.path = path;
    if (!t->log_given) tracer.needle = tracer.copy_paste = prompt->needle_end > prompt->needle_begin;
    tw_status status = fill_info(&info, t, task, run, answer, err);
    if (status == TW_OK)
        status = tw_run_traced(&result, t->engine, t->tokenizer, prompt, &t->run, &info, &tracer, &bytes,
                               t->invocation->progress, err);
    if (status == TW_OK) {
        const struct tw_engine_times *times = &result.times;
        tw_warn_textless(t->tokenizer, &result);
        const double score = scored ? tw_prompt_score(scored, tw_text_view(&result.text)) : NAN;
        tw_note("wrote '%s': %zu prompt tokens in %.2f s (%.0f/s), %zu steps in %.2f s (%.1f/s), %.2f MiB%s", path,
                prompt->n, times->prefill_seconds, (double)prompt->n / times->prefill_seconds, result.n_tokens,
                times->decode_seconds, times->decode_seconds > 0 ? (double)times->n_decoded / times->decode_seconds : 0,
                (double)bytes / 0x1p20,
                isnan(score) ? ""
                : score == 1 ? "; the answer is right"
                : score == 0 ? "; the answer is wrong"
                             : "; the answer is right in part");
        if (t->options->log.timing) print_timing(&result, prompt->n, bytes);
    } else if (status == TW_E_INTERRUPTED) {
        tw_note("'%s' holds %zu steps", path, result.n_tokens);
    }
    tw_run_result_release(&result);
    tw_trace_info_release(&info);
    return status;
}

/* The part of a path between the last '/' and the last '.', for naming a run. */
static char *stem_of(const char *path) {
    const char *slash = strrchr(path, '/');
    char *stem = strdup(slash ? slash + 1 : path);
    char *dot = stem ? strrchr(stem, '.') : NULL;
    if (dot && dot != stem) *dot = 0;
    return stem;
}

static tw_status trace_input(struct tracing *t, struct tw_error *err) {
    const struct tw_input_settings *input = &t->options->input;
    const char *path = t->options->log.output;
    struct tw_encoded prompt = {0};
    char *stem = stem_of(path);
    if (!stem) return TW_FAIL(err, TW_E_MEMORY, "out of memory: name of a run");
    tw_status status = tw_read_input(&prompt, t->tokenizer, input, false, err);
    if (status == TW_OK)
        status = trace_one(t, &prompt, path,
                           input->text     ? "text"
                           : input->tokens ? "tokens"
                                           : "prompt",
                           stem, NULL, NULL, err);
    tw_encoded_release(&prompt);
    free(stem);
    return status;
}

static bool wants_chat(const struct tracing *t) { return !t->options->input.raw; }

/* Encodes and traces a prompt whose answer is known. */
static tw_status trace_prompt(struct tracing *t, struct tw_prompt *prompt, const char *path, struct tw_error *err) {
    struct tw_encoded encoded = {0};
    struct tw_text answer = {0};
    for (size_t i = 0; i < prompt->n_expected; i++) {
        if (i) tw_text_append(&answer, TW_VIEW(", "));
        tw_text_append(&answer, tw_text_view(&prompt->expected[i]));
    }
    prompt->chat = wants_chat(t);
    tw_status status =
        tw_encode_for_command(&encoded, t->tokenizer, prompt, (enum tw_special)t->options->input.special, err);
    if (status == TW_OK)
        status = trace_one(t, &encoded, path, tw_text_string(&prompt->task), tw_text_string(&prompt->run),
                           prompt->n_expected ? tw_text_string(&answer) : NULL, prompt, err);
    tw_text_release(&answer);
    tw_encoded_release(&encoded);
    return status;
}

static size_t count_tokens(void *context, struct tw_view text) {
    struct tw_tokens tokens = {0};
    const struct tw_encode_options options = {0};
    const tw_status status = tw_tokenizer_encode(&tokens, context, text, &options, NULL, NULL);
    const size_t n = status == TW_OK ? tokens.n : SIZE_MAX / 2;
    tw_tokens_release(&tokens);
    return n;
}

static tw_status trace_task(struct tracing *t, struct tw_error *err) {
    const struct log_settings *log = &t->options->log;
    const struct tw_task *task;
    struct tw_prompt prompt = {0};
    const struct tw_task_request request = {
        .context_tokens = log->context, .depth = log->depth, .seed = t->options->run.seed};
    const struct tw_token_counter counter = {count_tokens, t->tokenizer};
    TW_TRY(tw_task_find(&task, log->task, err));
    TW_TRY(tw_task_make(&prompt, task, &request, &counter, err));
    if (!tw_given(t->invocation, "max-new") && !t->continuation.n) t->run.max_new = task->answer_tokens;
    const tw_status status = trace_prompt(t, &prompt, log->output, err);
    tw_prompt_release(&prompt);
    return status;
}

#define MAX_PROMPTS_BYTES ((size_t)1 << 32)

static tw_status prompt_of_line(struct tw_prompt *prompt, struct tw_view line, size_t number, const char *path,
                                struct tw_error *err) {
    cJSON *json = cJSON_ParseWithLength(line.data, line.size);
    const cJSON *text = json ? cJSON_GetObjectItemCaseSensitive(json, "prompt") : NULL;
    const cJSON *answer = json ? cJSON_GetObjectItemCaseSensitive(json, "answer") : NULL;
    tw_status status = TW_OK;
    if (!json)
        status = TW_FAIL(err, TW_E_INPUT, "prompts '%s', line %zu: not JSON", path, number);
    else if (!cJSON_IsString(text) || (answer && !cJSON_IsString(answer)))
        status = TW_FAIL(err, TW_E_INPUT, "prompts '%s', line %zu: expected {\"prompt\": text, \"answer\": text}", path,
                         number);
    if (status == TW_OK) {
        struct tw_text *content = tw_prompt_add_message(prompt, TW_ROLE_USER);
        if (!content) status = TW_FAIL(err, TW_E_MEMORY, "out of memory: prompt");
        if (content) tw_text_append(content, tw_view_of(text->valuestring));
        if (status == TW_OK && answer && *answer->valuestring)
            status = tw_prompt_expect(prompt, tw_view_of(answer->valuestring), err);
    }
    cJSON_Delete(json);
    return status;
}

static tw_status trace_line(struct tracing *t, struct tw_view line, size_t number, const char *stem,
                            struct tw_error *err) {
    const struct log_settings *log = &t->options->log;
    struct tw_prompt prompt = {0};
    struct tw_text path = {0};
    tw_text_printf(&prompt.task, "%s", stem);
    tw_text_printf(&prompt.run, "%s-%04zu", stem, number);
    tw_text_printf(&path, "%s/%s-%04zu.h5", log->output, stem, number);
    tw_status status = prompt_of_line(&prompt, line, number, log->prompts, err);
    if (status == TW_OK) {
        status = trace_prompt(t, &prompt, tw_text_string(&path), err);
        if (status != TW_OK && status != TW_E_INTERRUPTED)
            status = tw_fail_prefix(err, status, "prompts '%s', line %zu: ", log->prompts, number);
    }
    tw_text_release(&path);
    tw_prompt_release(&prompt);
    return status;
}

static tw_status trace_lines(struct tracing *t, struct tw_error *err) {
    const struct log_settings *log = &t->options->log;
    if (mkdir(log->output, 0777) != 0 && errno != EEXIST)
        return TW_FAIL(err, TW_E_INPUT, "cannot make the folder '%s': %s", log->output, strerror(errno));
    struct tw_text text = {0};
    char *stem = stem_of(log->prompts);
    if (!stem) return TW_FAIL(err, TW_E_MEMORY, "out of memory: name of a run");
    tw_status status = tw_file_read(&text, log->prompts, MAX_PROMPTS_BYTES, "prompts", err);
    struct tw_view line, rest = tw_text_view(&text);
    size_t n_runs = 0;
    for (size_t number = 1; status == TW_OK && tw_parse_next(&line, &rest, '\n'); number++) {
        while (line.size && (line.data[line.size - 1] == '\r' || line.data[line.size - 1] == ' ')) line.size--;
        if (line.size == 0) continue;
        n_runs++;
        status = trace_line(t, line, number, stem, err);
    }
    if (status == TW_OK && n_runs == 0) status = TW_FAIL(err, TW_E_INPUT, "prompts '%s': no lines", log->prompts);
    tw_text_release(&text);
    free(stem);
    return status;
}

static tw_status check_options(const struct trace_options *options, struct tw_error *err) {
    const struct tw_input_settings *input = &options->input;
    const struct log_settings *log = &options->log;
    if (!log->output) return TW_FAIL(err, TW_E_OPTION, "trace needs -o RUN.h5");
    if (!!input->prompt + !!input->text + !!input->tokens + !!log->prompts + !!log->task != 1)
        return TW_FAIL(err, TW_E_OPTION, "trace needs one of --prompt, --text, --tokens, --prompts and --task");
    if (input->chat && input->raw) return TW_FAIL(err, TW_E_OPTION, "--chat and --raw exclude one another");
    return TW_OK;
}

static tw_status run(struct tw_invocation *invocation, struct tw_error *err) {
    const struct trace_options *options = invocation->options;
    struct tracing t = {.invocation = invocation, .options = options, .log_given = options->log.log != NULL};
    struct tw_engine_options engine_options;
    TW_TRY(check_options(options, err));
    tw_status status;
    t.tracer = (struct tw_tracer_options){
        .top_k = options->log.top_k, .weight_float = options->log.weight_type == 1, .force = options->log.force};
    TW_TRY(parse_log(&t.tracer, options->log.log, err));
    TW_TRY_GOTO(status, done, tw_open_model(&t.model, &t.tokenizer, invocation->operands[0], err));
    TW_TRY_GOTO(status, done, tw_run_settings_apply(&t.run, &t.continuation, invocation, &options->run, err));
    tw_engine_settings_apply(&engine_options, &options->engine, options->run.seed);
    TW_TRY_GOTO(status, done, tw_engine_open(&t.engine, t.model, &engine_options, err));
    if (options->log.prompts)
        status = trace_lines(&t, err);
    else if (options->log.task)
        status = trace_task(&t, err);
    else
        status = trace_input(&t, err);
done:
    tw_continuation_release(&t.continuation);
    tw_engine_free(t.engine);
    tw_tokenizer_free(t.tokenizer);
    tw_model_free(t.model);
    return status;
}

const struct tw_command tw_command_trace = {
    .name = "trace",
    .summary = "runs a model and writes what every head attends to, step by step",
    .usage = "MODEL -o RUN.h5 (--text STRING | --prompt FILE | --tokens FILE | --prompts FILE | --task NAME) [options]",
    .description =
        "Prefills the prompt with the chosen schedule, decodes, and logs the most attended positions and their\n"
        "weights for every step, layer and head. Interrupted, it keeps what has been logged.",
    .example =
        "tidewake trace data/models/SmolLM2-135M-Instruct.Q4_1.gguf --chat --text 'Why are there tides?' -o run.h5\n"
        "tidewake trace MODEL.gguf --task niah --context 2K --depth 0.3 --budget 512 -o niah.h5",
    .groups = groups,
    .options_size = sizeof(struct trace_options),
    .min_operands = 1,
    .max_operands = 1,
    .run = run,
};
