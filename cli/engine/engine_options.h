/*
 * The engine's options, as tables that its commands share, and opening a model by them.
 *
 * struct tw_engine_settings begins with struct tw_machine_settings, so that the table of all options
 * (tw_engine_option_rows) fits a command or a study section that has the whole struct, and that of the machine's alone
 * (tw_machine_option_rows) those that run lists of schedules. --dtype is a list there and not among these: measure.h.
 */
#ifndef TW_CLI_ENGINE_ENGINE_OPTIONS_H
#define TW_CLI_ENGINE_ENGINE_OPTIONS_H

#include "cli/command.h"
#include "engine/encode.h"
#include "engine/engine.h"

/* On what the model runs. */
struct tw_machine_settings {
    const char *backend;
    unsigned dtype, attention, weights, allocator; /* the enums of backend.h */
    uint64_t threads, window, block, memory;
};

/* And how a prompt is run. */
struct tw_engine_settings {
    struct tw_machine_settings machine;
    const char *schedule, *selector;
    uint64_t budget, chunk;
};

extern const struct tw_option tw_machine_option_rows[];
extern const struct tw_option tw_planned_option_rows[]; /* the same, with cuda as the default backend */
extern const struct tw_option tw_engine_option_rows[];

/* The engine's own form of the settings. `seed` is the command's. */
void tw_machine_settings_apply(struct tw_engine_options *options, const struct tw_machine_settings *settings);
void tw_engine_settings_apply(struct tw_engine_options *options, const struct tw_engine_settings *settings,
                              uint64_t seed);

/* Input of commands that take one prompt: --prompt, --text, --chat, --raw, --special. */
struct tw_input_settings {
    const char *prompt, *text, *tokens;
    bool chat, raw;
    unsigned special; /* enum tw_special */
};
extern const struct tw_option tw_input_option_rows[];

/*
 * A model and its tokenizer; warnings of both are printed once. `tokenizer` NULL: none is wanted. On failure both are
 * NULL.
 */
tw_status tw_open_model(struct tw_model **model, struct tw_tokenizer **tokenizer, const char *path,
                        struct tw_error *err);

/* Ids separated by white space, from a file or `-`; any number of them, each checked to be a token id. Free *ids. */
tw_status tw_read_token_file(int32_t **ids, size_t *n, const char *path, struct tw_error *err);

/*
 * The prompt that the settings name, encoded; exactly one of --prompt, --text and --tokens has to be there.
 * chat_default: whether the chat template is used when neither --chat nor --raw says. Warnings are printed.
 */
tw_status tw_read_input(struct tw_encoded *encoded, struct tw_tokenizer *tokenizer,
                        const struct tw_input_settings *settings, bool chat_default, struct tw_error *err);
/* Encodes a prompt and prints the warnings that come of it. */
tw_status tw_encode_for_command(struct tw_encoded *encoded, struct tw_tokenizer *tokenizer,
                                const struct tw_prompt *prompt, enum tw_special special, struct tw_error *err);
/* Each line of the text as a warning. */
void tw_warn_lines(struct tw_view lines);

#endif
