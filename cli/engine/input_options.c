#include <string.h>

#include "base/file.h"
#include "cli/engine/engine_options.h"
#include "engine/tokenizer/chat.h"

#define INPUT(field)    offsetof(struct tw_input_settings, field)
#define MAX_INPUT_BYTES ((size_t)1 << 30)

const struct tw_option tw_input_option_rows[] = {
    {.name = "prompt",
     .type = TW_OPTION_TEXT,
     .offset = INPUT(prompt),
     .value_name = "FILE",
     .help = "the prompt's text, - for standard input"},
    {.name = "text",
     .type = TW_OPTION_TEXT,
     .offset = INPUT(text),
     .value_name = "STRING",
     .help = "the prompt's text itself"},
    {.name = "tokens",
     .type = TW_OPTION_TEXT,
     .offset = INPUT(tokens),
     .value_name = "FILE",
     .help = "the prompt as token ids separated by white space, - for standard input"},
    {.name = "chat", .type = TW_OPTION_FLAG, .offset = INPUT(chat), .help = "apply the model's chat template"},
    {.name = "raw", .type = TW_OPTION_FLAG, .offset = INPUT(raw), .help = "apply none"},
    {.name = "special",
     .type = TW_OPTION_CHOICE,
     .offset = INPUT(special),
     .default_value = "literal",
     .choices = "literal|parsed",
     .help = "what special tokens inside the text are"},
    {0},
};

tw_status tw_encode_for_command(struct tw_encoded *encoded, struct tw_tokenizer *tokenizer,
                                const struct tw_prompt *prompt, enum tw_special special, struct tw_error *err) {
    struct tw_text warnings = {0};
    const tw_status status = tw_encode_prompt(encoded, tokenizer, prompt, special, &warnings, err);
    if (status == TW_OK) tw_warn_lines(tw_text_view(&warnings));
    tw_text_release(&warnings);
    return status;
}

tw_status tw_read_input(struct tw_encoded *encoded, struct tw_tokenizer *tokenizer,
                        const struct tw_input_settings *settings, bool chat_default, struct tw_error *err) {
    memset(encoded, 0, sizeof *encoded);
    const int n_inputs = !!settings->prompt + !!settings->text + !!settings->tokens;
    if (n_inputs != 1)
        return TW_FAIL(err, TW_E_OPTION,
                       n_inputs ? "--prompt, --text and --tokens exclude one another"
                                : "a prompt is needed: --prompt FILE, --text STRING or --tokens FILE");
    if (settings->chat && settings->raw) return TW_FAIL(err, TW_E_OPTION, "--chat and --raw exclude one another");
    if (settings->tokens) {
        if (settings->chat) return TW_FAIL(err, TW_E_OPTION, "--tokens are taken as they are: not with --chat");
        return tw_read_token_file(&encoded->ids, &encoded->n, settings->tokens, err);
    }
    if (settings->chat && tw_chat_template(tokenizer).size == 0)
        return TW_FAIL(err, TW_E_OPTION, "--chat: the model has no chat template");
    struct tw_prompt prompt = {.chat = settings->chat || (chat_default && !settings->raw)};
    struct tw_text *content = tw_prompt_add_message(&prompt, TW_ROLE_USER);
    tw_status status = content ? TW_OK : TW_FAIL(err, TW_E_MEMORY, "out of memory: prompt");
    if (status == TW_OK && settings->prompt)
        status = tw_file_read(content, settings->prompt, MAX_INPUT_BYTES, "prompt", err);
    if (status == TW_OK && settings->text) tw_text_append(content, tw_view_of(settings->text));
    if (status == TW_OK)
        status = tw_encode_for_command(encoded, tokenizer, &prompt, (enum tw_special)settings->special, err);
    tw_prompt_release(&prompt);
    return status;
}
