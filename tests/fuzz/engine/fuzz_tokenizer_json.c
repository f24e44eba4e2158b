/* A tokenizer.json; what is accepted encodes and decodes a text, in both readings of special tokens. */
#include <stdlib.h>

#include "engine/tokenizer/chat.h"
#include "tests/fuzz/engine/touch.h"
#include "tests/fuzz/fuzz.h"

static const char text[] =
    "Hello, world! <s> <|im_end|> 123  \n caf\xc3\xa9 cafe\xcc\x81 \xe4\xbd\xa0 \xff\xf0\x9f aaaaaaaaaaaa"
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\xe2\x96\x81 x";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct tw_tokenizer *tokenizer;
    struct tw_error err = {0};
    const struct tw_tokenizer_files files = {.name = "fuzz", .tokenizer = {(const char *)data, size}};
    if (tw_tokenizer_from_json(&tokenizer, &files, &err) != TW_OK) return 0;
    for (int special = TW_SPECIAL_LITERAL; special <= TW_SPECIAL_PARSED; special++) {
        struct tw_tokens tokens = {0};
        struct tw_text decoded = {0};
        const struct tw_encode_options options = {.special = (enum tw_special)special, .add_bos = true};
        if (tw_tokenizer_encode(&tokens, tokenizer, TW_VIEW(text), &options, NULL, &err) != TW_OK) abort();
        for (size_t i = 0; i < tokens.n; i++)
            if (tokens.begin[i] > tokens.end[i] || tokens.end[i] > sizeof text - 1) abort();
        tw_tokenizer_decode(&decoded, tokenizer, tokens.ids, tokens.n, &(struct tw_decode_options){0});
        tw_fuzz_touch(decoded.data, decoded.size);
        tw_text_release(&decoded);
        tw_tokens_release(&tokens);
    }
    for (size_t id = 0; id < tw_tokenizer_size(tokenizer); id++) {
        const struct tw_view bytes = tw_tokenizer_bytes(tokenizer, (int32_t)id);
        tw_fuzz_touch(bytes.data, bytes.size);
    }
    tw_tokenizer_free(tokenizer);
    return 0;
}
