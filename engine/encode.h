/* A prompt as tokens: rendered with the model's chat template or taken as it is, with the needle's token span. */
#ifndef TW_ENGINE_ENCODE_H
#define TW_ENGINE_ENCODE_H

#include "engine/prompt.h"
#include "engine/tokenizer/tokenizer.h"

/* Zero-initialised it is empty. */
struct tw_encoded {
    int32_t *ids; /* [n] */
    size_t n;
    size_t needle_begin, needle_end; /* tokens, end exclusive; equal: none */
    bool chat;                       /* the chat template was used */
};

/*
 * A chat prompt goes through the template where the model has one; otherwise the contents follow one another with a
 * line break between. What should be told is appended to `warnings`, one line each. Fails with TW_E_INPUT when the
 * prompt has no tokens. On failure `encoded` is empty.
 */
tw_status tw_encode_prompt(struct tw_encoded *encoded, struct tw_tokenizer *tokenizer, const struct tw_prompt *prompt,
                           enum tw_special special, struct tw_text *warnings, struct tw_error *err);
void tw_encoded_release(struct tw_encoded *encoded); /* leaves it empty */

#endif
