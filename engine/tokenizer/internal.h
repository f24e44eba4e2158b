/* The inside of a tokenizer, for the files of this folder. */
#ifndef TW_ENGINE_TOKENIZER_INTERNAL_H
#define TW_ENGINE_TOKENIZER_INTERNAL_H

#include "engine/tokenizer/added.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/normalize.h"
#include "engine/tokenizer/pretokenize.h"
#include "engine/tokenizer/spec.h"
#include "engine/tokenizer/tokenizer.h"

/* A piece that was encoded before. Only pieces whose tokens hold all its bytes are kept: the lengths give the offsets.
 */
struct tw_cached_piece {
    uint8_t size, n; /* bytes, tokens; size 0: empty */
    char text[26];
    int32_t ids[9];
};

struct tw_tokenizer {
    char *name; /* of the file, for messages */
    struct tw_vocabulary vocabulary;
    struct tw_added added;
    struct tw_splitter *splitter; /* NULL: the text is one piece */
    const char *split_name;
    struct tw_normalize_rules normalize;
    struct tw_symbol_rules symbols;
    enum tw_prefix prefix;
    bool fuse_unknown, ignore_merges, split_at_spaces, strip_first_space;
    bool may_cut; /* whether a pair of bytes that no token joins parts the text (see encode.c) */
    bool add_bos;
    int32_t bos, eos;
    uint8_t *is_end; /* [n_tokens] */
    struct tw_text chat_template, warnings;

    struct tw_merger merger;
    struct tw_normalized normalized;
    struct tw_cached_piece *cache; /* [TW_CACHED_PIECES] */
};

enum { TW_CACHED_PIECES = 8192 };

#endif
