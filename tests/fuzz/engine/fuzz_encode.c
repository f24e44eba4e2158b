/*
 * Encoding arbitrary bytes with two small vocabularies: byte-level with NFC and Llama-3's split, and SentencePiece's.
 * The first byte chooses how special tokens are read. Decoding gives the text back wherever nothing is normalised.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer/spec.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

enum { N_EXTRA = 6, N_TOKENS = 256 + N_EXTRA };

static struct tw_tokenizer *make(bool byte_level) {
    static char names[256][8];
    struct tw_view tokens[N_TOKENS];
    uint8_t kinds[N_TOKENS];
    float scores[N_TOKENS] = {0};
    static const char *const extra[N_EXTRA] = {"<|end|>", "<s>", "ab", "abab", "aa", "<user>"};
    for (unsigned b = 0; b < 256; b++) {
        /* GPT-2's alphabet: bytes that are no visible character are U+0100 upwards. */
        const bool visible = (b > 32 && b < 127) || (b > 160 && b != 173);
        const unsigned shifted = b <= 32 ? b : b == 173 ? 67 : b - 127 + 33;
        const unsigned c = visible ? b : 256 + shifted;
        if (!byte_level)
            snprintf(names[b], sizeof names[b], "<0x%02X>", b);
        else if (c < 128)
            snprintf(names[b], sizeof names[b], "%c", (char)c);
        else
            snprintf(names[b], sizeof names[b], "%c%c", (char)(0xc0 | c >> 6), (char)(0x80 | (c & 63)));
        tokens[b] = tw_view_of(names[b]);
        kinds[b] = byte_level ? TW_TOKEN_NORMAL : TW_TOKEN_BYTE;
    }
    for (int i = 0; i < N_EXTRA; i++) {
        tokens[256 + i] = tw_view_of(extra[i]);
        kinds[256 + i] = i < 2 ? TW_TOKEN_CONTROL : i == 5 ? TW_TOKEN_USER_DEFINED : TW_TOKEN_NORMAL;
        scores[256 + i] = -(float)(i / 2);
    }
    const struct tw_merge_rule merges[] = {
        {TW_VIEW("a"), TW_VIEW("b")}, {TW_VIEW("a"), TW_VIEW("a")}, {TW_VIEW("ab"), TW_VIEW("ab")}};
    const struct tw_tokenizer_spec spec = {.name = "fuzz",
                                           .n_tokens = N_TOKENS,
                                           .tokens = tokens,
                                           .kinds = kinds,
                                           .scores = byte_level ? NULL : scores,
                                           .merges = merges,
                                           .n_merges = 3,
                                           .byte_level = byte_level,
                                           .nfc = byte_level,
                                           .space_marks = !byte_level,
                                           .byte_fallback = !byte_level,
                                           .prefix = byte_level ? TW_PREFIX_NEVER : TW_PREFIX_EACH,
                                           .split = byte_level ? "llama-bpe" : "none",
                                           .bos = 257,
                                           .eos = 256,
                                           .unknown = TW_NO_TOKEN};
    struct tw_tokenizer *tokenizer;
    struct tw_error err = {0};
    if (tw_tokenizer_create(&tokenizer, &spec, &err) != TW_OK) abort();
    return tokenizer;
}

static void check(struct tw_tokenizer *tokenizer, struct tw_view text, enum tw_special special) {
    struct tw_tokens tokens = {0};
    struct tw_error err = {0};
    const struct tw_encode_options options = {.special = special};
    if (tw_tokenizer_encode(&tokens, tokenizer, text, &options, NULL, &err) != TW_OK) abort();
    bool ascii = true;
    for (size_t i = 0; i < text.size; i++) ascii &= (uint8_t)text.data[i] < 0x80;
    for (size_t i = 0; i < tokens.n; i++) {
        if (tokens.begin[i] > tokens.end[i] || tokens.end[i] > text.size) abort();
        if (i && tokens.begin[i] < tokens.begin[i - 1]) abort();
        if (special == TW_SPECIAL_LITERAL && tw_tokenizer_is_special(tokenizer, tokens.ids[i])) abort();
    }
    struct tw_text decoded = {0};
    tw_tokenizer_decode(&decoded, tokenizer, tokens.ids, tokens.n, &(struct tw_decode_options){0});
    /* Behind an added token SentencePiece puts a space in front again, which stays. */
    const bool stretches = text.size && (memchr(text.data, '<', text.size) != NULL);
    if (ascii && !stretches && !tw_view_equal(tw_text_view(&decoded), text)) abort();
    tw_text_release(&decoded);
    tw_tokens_release(&tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct tw_tokenizer *bytes, *pieces;
    if (!bytes) {
        bytes = make(true);
        pieces = make(false);
    }
    if (size == 0) return 0;
    const struct tw_view text = {(const char *)data + 1, size - 1};
    const enum tw_special special = data[0] & 1 ? TW_SPECIAL_PARSED : TW_SPECIAL_LITERAL;
    check(bytes, text, special);
    check(pieces, text, special);
    return 0;
}
