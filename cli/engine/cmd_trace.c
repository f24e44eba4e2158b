/* `tidewake trace`: prefill, decode, log. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/parse.h"
#include "cli/engine/engine_options.h"
#include "cli/engine/prompt_lines.h"
#include "cli/engine/run_options.h"
#include "cli/engine/tracing.h"

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

/* One invocation: what its runs share, and the command. */
struct tracing {
    struct tw_invocation *invocation;
    const struct trace_options *options;
    struct tw_tracing shared;
    struct tw_continuation continuation;
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

/* What a run came to, on standard error and, with --timing, on standard output. */
static void report(const struct tracing *t, const struct tw_traced *traced, size_t prompt_tokens, const char *path) {
    const struct tw_run_result *result = &traced->result;
    const struct tw_engine_times *times = &result->times;
    const double score = traced->score;
    tw_note("wrote '%s': %zu prompt tokens in %.2f s (%.0f/s), %zu steps in %.2f s (%.1f/s), %.2f MiB%s", path,
            prompt_tokens, times->prefill_seconds, (double)prompt_tokens / times->prefill_seconds, result->n_tokens,
            times->decode_seconds, times->decode_seconds > 0 ? (double)times->n_decoded / times->decode_seconds : 0,
            (double)traced->trace_bytes / 0x1p20,
            isnan(score) ? ""
            : score == 1 ? "; the answer is right"
            : score == 0 ? "; the answer is wrong"
                         : "; the answer is right in part");
    if (t->options->log.timing) print_timing(result, prompt_tokens, traced->trace_bytes);
}

/* Reports and releases. An interrupted run says what it has kept. */
static void finish(const struct tracing *t, struct tw_traced *traced, tw_status status, const char *path) {
    if (status == TW_OK)
        report(t, traced, t->shared.engine->prompt_length, path);
    else if (status == TW_E_INTERRUPTED)
        tw_note("'%s' holds %zu steps", path, traced->result.n_tokens);
    tw_run_result_release(&traced->result);
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
    struct tw_traced traced = {0};
    char *stem = stem_of(path);
    if (!stem) return TW_FAIL(err, TW_E_MEMORY, "out of memory: name of a run");
    tw_status status = tw_read_input(&prompt, t->shared.tokenizer, input, false, err);
    if (status == TW_OK)
        status = tw_trace_encoded(&traced, &t->shared, &prompt, path,
                                  input->text     ? "text"
                                  : input->tokens ? "tokens"
                                                  : "prompt",
                                  stem, NULL, err);
    finish(t, &traced, status, path);
    tw_encoded_release(&prompt);
    free(stem);
    return status;
}

/* Encodes and traces a prompt whose answer is known. */
static tw_status trace_prompt(struct tracing *t, struct tw_prompt *prompt, const char *path, struct tw_error *err) {
    struct tw_traced traced = {0};
    prompt->chat = !t->options->input.raw;
    const tw_status status = tw_trace_prompt(&traced, &t->shared, prompt, path, err);
    finish(t, &traced, status, path);
    return status;
}

static tw_status trace_task(struct tracing *t, struct tw_error *err) {
    const struct log_settings *log = &t->options->log;
    const struct tw_task *task;
    struct tw_prompt prompt = {0};
    const struct tw_task_request request = {
        .context_tokens = log->context, .depth = log->depth, .seed = t->options->run.seed};
    const struct tw_token_counter counter = tw_token_counter_of(t->shared.tokenizer);
    TW_TRY(tw_task_find(&task, log->task, err));
    TW_TRY(tw_task_make(&prompt, task, &request, &counter, err));
    if (!tw_given(t->invocation, "max-new") && !t->continuation.n) t->shared.run.max_new = task->answer_tokens;
    const tw_status status = trace_prompt(t, &prompt, log->output, err);
    tw_prompt_release(&prompt);
    return status;
}

/* A line of --prompts: its trace is named after the run. */
static tw_status trace_line(void *context, struct tw_prompt *prompt, struct tw_error *err) {
    struct tracing *t = context;
    struct tw_text path = {0};
    tw_text_printf(&path, "%s/%s.h5", t->options->log.output, tw_text_string(&prompt->run));
    const tw_status status = trace_prompt(t, prompt, tw_text_string(&path), err);
    tw_text_release(&path);
    return status;
}

static tw_status trace_lines(struct tracing *t, struct tw_error *err) {
    const struct log_settings *log = &t->options->log;
    if (mkdir(log->output, 0777) != 0 && errno != EEXIST)
        return TW_FAIL(err, TW_E_INPUT, "cannot make the folder '%s': %s", log->output, strerror(errno));
    char *stem = stem_of(log->prompts);
    if (!stem) return TW_FAIL(err, TW_E_MEMORY, "out of memory: name of a run");
    const tw_status status = tw_prompt_lines(log->prompts, stem, trace_line, t, err);
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
    struct tracing t = {.invocation = invocation, .options = options};
    t.shared = (struct tw_tracing){.log_chosen = options->log.log != NULL,
                                   .special = (enum tw_special)options->input.special,
                                   .seed = options->run.seed,
                                   .progress = invocation->progress};
    struct tw_engine_options engine_options;
    TW_TRY(check_options(options, err));
    tw_status status;
    t.shared.tracer = (struct tw_tracer_options){
        .top_k = options->log.top_k, .weight_float = options->log.weight_type == 1, .force = options->log.force};
    TW_TRY(parse_log(&t.shared.tracer, options->log.log, err));
    TW_TRY_GOTO(status, done, tw_open_model(&t.shared.model, &t.shared.tokenizer, invocation->operands[0], err));
    TW_TRY_GOTO(status, done, tw_run_settings_apply(&t.shared.run, &t.continuation, invocation, &options->run, err));
    tw_engine_settings_apply(&engine_options, &options->engine, options->run.seed);
    TW_TRY_GOTO(status, done, tw_engine_open(&t.shared.engine, t.shared.model, &engine_options, err));
    if (options->log.prompts)
        status = trace_lines(&t, err);
    else if (options->log.task)
        status = trace_task(&t, err);
    else
        status = trace_input(&t, err);
done:
    tw_continuation_release(&t.continuation);
    tw_engine_free(t.shared.engine);
    tw_tokenizer_free(t.shared.tokenizer);
    tw_model_free(t.shared.model);
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
