/*
 * Chat templates. The template that comes with a model (Jinja) is recognised by what it is and rendered natively:
 * ChatML (SmolLM2, Qwen2, Qwen2.5), Qwen3, Llama-2, Llama-3, Llama-3.1, Mistral-Instruct v0.1 and v0.2, Gemma-2,
 * Gemma-3, DeepSeek-R1-Distill. What varies within a family (default system message, spaces, dates) is read from the
 * template's text. Any other template is refused.
 */
#ifndef TW_ENGINE_TOKENIZER_CHAT_H
#define TW_ENGINE_TOKENIZER_CHAT_H

#include "engine/prompt.h"
#include "engine/tokenizer/tokenizer.h"

/* The name of the recognised family ("chatml", "llama-3.1"); NULL without a template or when it is not known. */
const char *tw_chat_family(const struct tw_tokenizer *tokenizer);
/* The template's text; empty when the file has none. */
struct tw_view tw_chat_template(const struct tw_tokenizer *tokenizer);

/* Where a message's content lies: byte i of the content is byte begin + i - trimmed_before of the text. */
struct tw_chat_span {
    size_t begin, end;     /* bytes of the text that hold the content, as rendered */
    size_t trimmed_before; /* bytes that the template dropped from the content's front */
    bool rendered;         /* false: the template leaves this message out */
};

/* A rendered conversation. Zero-initialise. */
struct tw_chat {
    struct tw_text text;
    struct tw_tokens tokens;       /* begin and end are bytes of `text` */
    struct tw_chat_span *messages; /* [n_messages] where each content lies in `text` */
    size_t n_messages;
};

/*
 * Renders and encodes. The template's own markers are always parsed; `special` says what markers inside the messages
 * are. With `generation_prompt` the opening of the assistant's turn is put behind, and `answer_opening` (may be empty)
 * behind that. The template alone says whether a BOS is in front, as in Hugging Face's apply_chat_template.
 *
 * Fails with TW_E_UNSUPPORTED when there is no template or it is not known (the message names --raw), and with
 * TW_E_INPUT when the template refuses the conversation (roles that do not alternate, a system message it has no place
 * for). Release `chat` either way.
 */
tw_status tw_chat_render(struct tw_chat *chat, struct tw_tokenizer *tokenizer, const struct tw_message *messages,
                         size_t n_messages, bool generation_prompt, struct tw_view answer_opening,
                         enum tw_special special, struct tw_error *err);
void tw_chat_release(struct tw_chat *chat); /* leaves it empty */

#endif
