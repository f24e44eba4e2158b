/* The tokenizer in a GGUF's metadata; what is accepted encodes and decodes a text, and renders a conversation. */
#include <stdlib.h>

#include "engine/model/gguf.h"
#include "engine/tokenizer/chat.h"
#include "tests/fuzz/engine/touch.h"
#include "tests/fuzz/fuzz.h"

static const char text[] =
    "Hello, world! <s> <|im_end|> 123  \n caf\xc3\xa9 cafe\xcc\x81 \xe4\xbd\xa0 \xff\xf0\x9f aaaaaaaaaaaa"
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\xe2\x96\x81 x";

static void use(struct tw_tokenizer *tokenizer) {
    struct tw_error err = {0};
    struct tw_tokens tokens = {0};
    struct tw_text decoded = {0};
    const struct tw_encode_options options = {.special = TW_SPECIAL_PARSED, .add_bos = true};
    if (tw_tokenizer_encode(&tokens, tokenizer, TW_VIEW(text), &options, NULL, &err) != TW_OK) abort();
    for (size_t i = 0; i < tokens.n; i++)
        if (tokens.begin[i] > tokens.end[i] || tokens.end[i] > sizeof text - 1) abort();
    tw_tokenizer_decode(&decoded, tokenizer, tokens.ids, tokens.n, &(struct tw_decode_options){.skip_special = true});
    tw_fuzz_touch(decoded.data, decoded.size);

    struct tw_prompt prompt = {0};
    struct tw_chat chat = {0};
    struct tw_text *system = tw_prompt_add_message(&prompt, TW_ROLE_SYSTEM);
    if (system) tw_text_append(system, TW_VIEW(" be brief "));
    struct tw_text *user = tw_prompt_add_message(&prompt, TW_ROLE_USER);
    if (user) tw_text_append(user, TW_VIEW(text));
    if (tw_chat_render(&chat, tokenizer, prompt.messages, prompt.n_messages, true, TW_VIEW("So"), TW_SPECIAL_LITERAL,
                       &err) == TW_OK)
        tw_fuzz_touch(chat.text.data, chat.text.size);
    tw_chat_release(&chat);
    tw_prompt_release(&prompt);
    tw_text_release(&decoded);
    tw_tokens_release(&tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct tw_gguf gguf = {0};
    struct tw_tokenizer *tokenizer;
    struct tw_error err = {0};
    if (tw_gguf_parse(&gguf, "fuzz", data, size, &err) != TW_OK) return 0;
    if (tw_tokenizer_from_gguf(&tokenizer, &gguf, &err) == TW_OK) {
        use(tokenizer);
        tw_tokenizer_free(tokenizer);
    }
    tw_gguf_release(&gguf);
    return 0;
}
