#include "engine/encode.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "engine/tokenizer/chat.h"

void tw_encoded_release(struct tw_encoded *encoded) {
    free(encoded->ids);
    memset(encoded, 0, sizeof *encoded);
}

/* The ids change hands; byte offsets are no longer needed once the needle has been found. */
static void take_ids(struct tw_encoded *encoded, struct tw_tokens *tokens) {
    encoded->ids = tokens->ids;
    encoded->n = tokens->n;
    tokens->ids = NULL;
}

static tw_status encode_chat(struct tw_encoded *encoded, struct tw_tokenizer *tokenizer, const struct tw_prompt *prompt,
                             enum tw_special special, struct tw_error *err) {
    struct tw_chat chat = {0};
    const tw_status status = tw_chat_render(&chat, tokenizer, prompt->messages, prompt->n_messages, true,
                                            tw_text_view(&prompt->answer_opening), special, err);
    if (status == TW_OK) {
        if (prompt->needle_end > prompt->needle_begin && prompt->needle_message < chat.n_messages &&
            chat.messages[prompt->needle_message].rendered) {
            const struct tw_chat_span *span = &chat.messages[prompt->needle_message];
            const size_t trimmed = span->trimmed_before;
            const size_t begin = span->begin + prompt->needle_begin - tw_min_size(trimmed, prompt->needle_begin);
            const size_t end = span->begin + prompt->needle_end - tw_min_size(trimmed, prompt->needle_end);
            tw_tokens_span(&chat.tokens, begin, tw_min_size(end, span->end), &encoded->needle_begin,
                           &encoded->needle_end);
        }
        encoded->chat = true;
        take_ids(encoded, &chat.tokens);
    }
    tw_chat_release(&chat);
    return status;
}

static tw_status encode_plain(struct tw_encoded *encoded, struct tw_tokenizer *tokenizer,
                              const struct tw_prompt *prompt, enum tw_special special, struct tw_text *warnings,
                              struct tw_error *err) {
    struct tw_text text = {0};
    struct tw_tokens tokens = {0};
    size_t begin = 0, end = 0;
    for (size_t m = 0; m < prompt->n_messages; m++) {
        if (m) tw_text_append_char(&text, '\n');
        if (m == prompt->needle_message) {
            begin = text.size + prompt->needle_begin;
            end = text.size + prompt->needle_end;
        }
        tw_text_append(&text, tw_text_view(&prompt->messages[m].content));
    }
    if (prompt->answer_opening.size) {
        if (prompt->n_messages) tw_text_append_char(&text, '\n');
        tw_text_append(&text, tw_text_view(&prompt->answer_opening));
    }
    const struct tw_encode_options options = {.special = special, .add_bos = true};
    tw_status status = tw_text_ok(&text) ? TW_OK : TW_FAIL(err, TW_E_MEMORY, "out of memory: text of a prompt");
    if (status == TW_OK) status = tw_tokenizer_encode(&tokens, tokenizer, tw_text_view(&text), &options, warnings, err);
    if (status == TW_OK) {
        if (end > begin) tw_tokens_span(&tokens, begin, end, &encoded->needle_begin, &encoded->needle_end);
        take_ids(encoded, &tokens);
    }
    tw_tokens_release(&tokens);
    tw_text_release(&text);
    return status;
}

tw_status tw_encode_prompt(struct tw_encoded *encoded, struct tw_tokenizer *tokenizer, const struct tw_prompt *prompt,
                           enum tw_special special, struct tw_text *warnings, struct tw_error *err) {
    memset(encoded, 0, sizeof *encoded);
    size_t bytes = prompt->answer_opening.size;
    for (size_t m = 0; m < prompt->n_messages; m++) bytes += prompt->messages[m].content.size;
    if (bytes == 0) return TW_FAIL(err, TW_E_INPUT, "the prompt is empty");
    tw_status status = prompt->chat && tw_chat_template(tokenizer).size
                           ? encode_chat(encoded, tokenizer, prompt, special, err)
                           : encode_plain(encoded, tokenizer, prompt, special, warnings, err);
    if (status == TW_OK && encoded->n == 0)
        status = TW_FAIL(err, TW_E_INPUT, "the prompt has no tokens: the tokenizer knows none of its bytes");
    if (status != TW_OK) tw_encoded_release(encoded);
    return status;
}
