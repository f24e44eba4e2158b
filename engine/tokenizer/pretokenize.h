/*
 * Split rules: cutting a text into the pieces that merging does not cross, with PCRE2. A rule is a row of the table in
 * pretokenize.c; files name it (GGUF's tokenizer.ggml.pre) or write it out (tokenizer.json).
 */
#ifndef TW_ENGINE_TOKENIZER_PRETOKENIZE_H
#define TW_ENGINE_TOKENIZER_PRETOKENIZE_H

#include "base/error.h"
#include "base/text.h"

struct tw_split_rule {
    const char *name;    /* as the trace records it */
    const char *aliases; /* other names in GGUF, separated by "|"; "" */
    const char *written; /* the expression of tokenizer.json that means this rule */
    const char *pattern; /* ours, for PCRE2 */
    bool digits_alone;   /* in tokenizer.json every digit is split off before `written` is applied */
    bool add_bos;        /* what a GGUF means that does not say whether a BOS goes in front */
    bool ignore_merges;  /* the same of pieces that are tokens */
    bool nfc;            /* the same of normalisation */
};

/* NULL for an unknown name. */
const struct tw_split_rule *tw_split_rule_named(struct tw_view name);
const struct tw_split_rule *tw_split_rule_written(struct tw_view expression, bool digits_alone);
/* Appends the names, separated by commas. */
void tw_split_rule_names(struct tw_text *text);

struct tw_splitter;
tw_status tw_splitter_create(struct tw_splitter **splitter, const struct tw_split_rule *rule, struct tw_error *err);
void tw_splitter_free(struct tw_splitter *splitter);

/*
 * The end of the piece that begins at `from` < text.size; text must be UTF-8. What the rule does not match is a piece
 * of its own. Fails with TW_E_MEMORY when PCRE2 runs out of it.
 */
tw_status tw_splitter_next(size_t *end, struct tw_splitter *splitter, struct tw_view text, size_t from,
                           struct tw_error *err);

#endif
