/*
 * What a tokenizer is, told without its container: tokenizer_gguf.c and tokenizer_json.c fill this in, and
 * tw_tokenizer_create builds from it. All memory is the caller's and needed only during that call; nothing in it is
 * believed before it is checked there.
 */
#ifndef TW_ENGINE_TOKENIZER_SPEC_H
#define TW_ENGINE_TOKENIZER_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/view.h"

/* GGUF's numbers (tokenizer.ggml.token_type); 0 is an id without a token. */
enum tw_token_kind {
    TW_TOKEN_MISSING = 0,
    TW_TOKEN_NORMAL = 1,
    TW_TOKEN_UNKNOWN = 2,
    TW_TOKEN_CONTROL = 3,      /* a marker: matched in the text only where special tokens are parsed */
    TW_TOKEN_USER_DEFINED = 4, /* matched in the text always, before anything else */
    TW_TOKEN_UNUSED = 5,
    TW_TOKEN_BYTE = 6, /* "<0x0A>" */
};

struct tw_merge_rule {
    struct tw_view left, right; /* as written in the file; earlier rules go first */
};

/* How an added token eats the white space around it, or asks for none of a word. Tokens without a rule do neither. */
struct tw_added_rule {
    int32_t id;
    bool strip_left, strip_right, single_word;
};

/* Whether a space is put in front of a text (SentencePiece's dummy prefix). */
enum tw_prefix {
    TW_PREFIX_NEVER,
    TW_PREFIX_EACH,   /* in front of every stretch between added tokens */
    TW_PREFIX_ALWAYS, /* the same, unless it begins with a space */
    TW_PREFIX_FIRST,  /* only at the very beginning of the text, unless that is a space */
};

struct tw_tokenizer_spec {
    const char *name; /* of the file, for messages */

    size_t n_tokens;              /* one more than the highest id */
    const struct tw_view *tokens; /* [n_tokens] as written in the file */
    const uint8_t *kinds;         /* [n_tokens] enum tw_token_kind */
    const float *scores;          /* [n_tokens], the higher the earlier; NULL: the merges say it */
    const struct tw_merge_rule *merges;
    size_t n_merges;
    const struct tw_added_rule *added_rules;
    size_t n_added_rules;

    bool byte_level;      /* tokens and merges are written in GPT-2's alphabet of bytes */
    bool space_marks;     /* U+2581 stands for a space */
    bool byte_fallback;   /* characters without a token become byte tokens */
    bool fuse_unknown;    /* neighbouring unknown characters are one unknown token */
    bool ignore_merges;   /* a piece that is a token is that token */
    bool nfc;             /* text is normalised to NFC first */
    bool split_at_spaces; /* nothing merges across the front of a space (Metaspace with "split") */
    enum tw_prefix prefix;
    const char *split; /* name of the split rule (pretokenize.h); "none": the text is one piece */

    bool add_bos;
    int32_t bos, eos, unknown; /* TW_NO_TOKEN: none */
    const int32_t *ends;       /* [n_ends] ids that end a generation, besides eos and what the markers' names say */
    size_t n_ends;
    struct tw_view chat_template; /* may be empty */
    struct tw_view warnings;      /* what the reader of the file has to say, one line each */
};

#endif
