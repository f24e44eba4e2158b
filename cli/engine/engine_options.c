#include "cli/engine/engine_options.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/parse.h"

#define MACHINE(field) offsetof(struct tw_machine_settings, field)
#define ENGINE(field)  offsetof(struct tw_engine_settings, field)

#define BACKEND_ROW(the_default)                                                                                       \
    {                                                                                                                  \
        .name = "backend", .type = TW_OPTION_TEXT, .offset = MACHINE(backend), .default_value = the_default,           \
        .value_name = "NAME", .help = "what computes, of those that 'tidewake list' names"                             \
    }

#define OTHER_MACHINE_ROWS                                                                                             \
    {.name = "attention",                                                                                              \
     .type = TW_OPTION_CHOICE,                                                                                         \
     .offset = MACHINE(attention),                                                                                     \
     .default_value = "tiled",                                                                                         \
     .choices = "tiled|eager",                                                                                         \
     .help = "eager materialises the scores, for comparison"},                                                         \
        {.name = "weights",                                                                                            \
         .type = TW_OPTION_CHOICE,                                                                                     \
         .offset = MACHINE(weights),                                                                                   \
         .default_value = "mapped",                                                                                    \
         .choices = "mapped|stream",                                                                                   \
         .help = "stream: a device holds one layer's weights, and the next one's"},                                    \
        {.name = "allocator",                                                                                          \
         .type = TW_OPTION_CHOICE,                                                                                     \
         .offset = MACHINE(allocator),                                                                                 \
         .default_value = "native",                                                                                    \
         .choices = "native|async",                                                                                    \
         .help = "of a CUDA device's memory"},                                                                         \
        {.name = "threads",                                                                                            \
         .type = TW_OPTION_U64,                                                                                        \
         .offset = MACHINE(threads),                                                                                   \
         .default_value = "0",                                                                                         \
         .minimum = 0,                                                                                                 \
         .maximum = 4096,                                                                                              \
         .value_name = "N",                                                                                            \
         .help = "threads of the host; 0: one a core"},                                                                \
        {.name = "window",                                                                                             \
         .type = TW_OPTION_SIZE,                                                                                       \
         .offset = MACHINE(window),                                                                                    \
         .default_value = "32",                                                                                        \
         .minimum = 1,                                                                                                 \
         .maximum = 65536,                                                                                             \
         .value_name = "N",                                                                                            \
         .help = "last prompt queries that selectors observe"},                                                        \
        {.name = "block",                                                                                              \
         .type = TW_OPTION_SIZE,                                                                                       \
         .offset = MACHINE(block),                                                                                     \
         .default_value = "1024",                                                                                      \
         .minimum = 1,                                                                                                 \
         .maximum = 1 << 30,                                                                                           \
         .value_name = "N",                                                                                            \
         .help = "keys a block of the streaming passes"},                                                              \
    {                                                                                                                  \
        .name = "memory", .type = TW_OPTION_SIZE, .offset = MACHINE(memory), .default_value = "0",                     \
        .value_name = "BYTES", .help = "refuse to hold more than this, mapped weights apart; 0: no limit"              \
    }

const struct tw_option tw_machine_option_rows[] = {BACKEND_ROW("cpu"), OTHER_MACHINE_ROWS, {0}};
const struct tw_option tw_planned_option_rows[] = {BACKEND_ROW("cuda"), OTHER_MACHINE_ROWS, {0}};

const struct tw_option tw_engine_option_rows[] = {
    {.name = "schedule",
     .type = TW_OPTION_TEXT,
     .offset = ENGINE(schedule),
     .default_value = "tide",
     .value_name = "NAME[:OPTION=VALUE]",
     .help = "order of prefill"},
    {.name = "selector",
     .type = TW_OPTION_TEXT,
     .offset = ENGINE(selector),
     .default_value = "snapkv",
     .value_name = "NAME[:OPTION=VALUE]",
     .help = "what decides which positions are kept"},
    {.name = "budget",
     .type = TW_OPTION_BUDGET,
     .offset = ENGINE(budget),
     .default_value = "full",
     .value_name = "full|N",
     .help = "positions that a KV head keeps after prefill"},
    {.name = "chunk",
     .type = TW_OPTION_SIZE,
     .offset = ENGINE(chunk),
     .default_value = "2048",
     .minimum = 1,
     .maximum = 1 << 30,
     .value_name = "N",
     .help = "prompt tokens a chunk"},
    BACKEND_ROW("cpu"),
    {.name = "dtype",
     .type = TW_OPTION_CHOICE,
     .offset = MACHINE(dtype),
     .default_value = "auto",
     .choices = "auto|bf16|f32",
     .help = "precision; auto is bf16 where the processor or device has it"},
    OTHER_MACHINE_ROWS,
    {0},
};

void tw_machine_settings_apply(struct tw_engine_options *options, const struct tw_machine_settings *settings) {
    options->backend = settings->backend;
    options->backend_options.dtype = (enum tw_dtype)settings->dtype;
    options->backend_options.attention = (enum tw_attention_kind)settings->attention;
    options->backend_options.weights = (enum tw_weights_kind)settings->weights;
    options->backend_options.allocator = (enum tw_allocator_kind)settings->allocator;
    options->backend_options.n_threads = settings->threads;
    options->backend_options.window = settings->window;
    options->block = settings->block;
    options->memory_limit = settings->memory;
}

void tw_engine_settings_apply(struct tw_engine_options *options, const struct tw_engine_settings *settings,
                              uint64_t seed) {
    tw_engine_options_init(options);
    tw_machine_settings_apply(options, &settings->machine);
    options->schedule = settings->schedule;
    options->selector = settings->selector;
    options->budget = settings->budget;
    options->chunk = settings->chunk;
    options->seed = seed;
}

void tw_warn_lines(struct tw_view lines) {
    struct tw_view line;
    while (tw_parse_next(&line, &lines, '\n'))
        if (line.size) tw_warn("%.*s", (int)line.size, line.data);
}

tw_status tw_open_model(struct tw_model **model, struct tw_tokenizer **tokenizer, const char *path,
                        struct tw_error *err) {
    if (tokenizer) *tokenizer = NULL;
    TW_TRY(tw_model_open(model, path, err));
    tw_status status = TW_OK;
    if (tokenizer) {
        status = tw_tokenizer_open(tokenizer, path, err);
        if (status == TW_OK) status = tw_tokenizer_check_rows(*tokenizer, (*model)->config.n_vocab, err);
    }
    if (status != TW_OK) {
        if (tokenizer) tw_tokenizer_free(*tokenizer), *tokenizer = NULL;
        tw_model_free(*model);
        *model = NULL;
        return status;
    }
    tw_warn_lines(tw_text_view(&(*model)->warnings));
    if (tokenizer) tw_warn_lines(tw_tokenizer_warnings(*tokenizer));
    return TW_OK;
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\f' || c == '\v'; }

static tw_status parse_tokens(int32_t **ids, size_t *n, struct tw_view text, const char *path, struct tw_error *err) {
    size_t capacity = 0;
    for (size_t at = 0; at < text.size;) {
        if (is_space(text.data[at])) {
            at++;
            continue;
        }
        size_t end = at;
        while (end < text.size && !is_space(text.data[end])) end++;
        uint64_t value;
        const struct tw_view word = {text.data + at, end - at};
        if (!tw_parse_u64(&value, word) || value > INT32_MAX)
            return TW_FAIL(err, TW_E_INPUT, "token file '%s': '%.*s' is not a token id", path,
                           word.size < 40 ? (int)word.size : 40, word.data);
        if (*n == capacity) {
            capacity = capacity ? 2 * capacity : 1024;
            int32_t *larger = realloc(*ids, capacity * sizeof *larger);
            if (!larger) return TW_FAIL(err, TW_E_MEMORY, "out of memory: token file '%s'", path);
            *ids = larger;
        }
        (*ids)[(*n)++] = (int32_t)value;
        at = end;
    }
    return TW_OK;
}

#define MAX_TOKEN_FILE_BYTES ((size_t)1 << 30)

tw_status tw_read_token_file(int32_t **ids, size_t *n, const char *path, struct tw_error *err) {
    struct tw_text text = {0};
    *ids = NULL;
    *n = 0;
    tw_status status = tw_file_read(&text, path, MAX_TOKEN_FILE_BYTES, "token file", err);
    if (status == TW_OK) status = parse_tokens(ids, n, tw_text_view(&text), path, err);
    if (status == TW_OK && *n == 0) status = TW_FAIL(err, TW_E_INPUT, "token file '%s' holds no tokens", path);
    if (status != TW_OK) {
        free(*ids);
        *ids = NULL;
    }
    tw_text_release(&text);
    return status;
}
