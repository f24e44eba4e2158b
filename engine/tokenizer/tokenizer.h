/*
 * Text to token ids and back, as the model's own tokenizer does it: byte-level BPE and SentencePiece BPE.
 *
 * Reference behaviour: Hugging Face `tokenizers` for tokenizer.json, the same vocabulary's tokenizer.json for GGUF.
 * Bytes that are not UTF-8 are data: every maximal invalid part is encoded as U+FFFD.
 *
 * A tokenizer keeps caches and scratch memory: one thread at a time may use it.
 */
#ifndef TW_ENGINE_TOKENIZER_TOKENIZER_H
#define TW_ENGINE_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"

struct tw_tokenizer;
struct tw_gguf;
struct tw_tokenizer_spec;

/*
 * From a file: a GGUF (with or without tensors), a Hugging Face folder, or a tokenizer.json (the files beside it are
 * read as those of its folder). On failure *tokenizer is NULL. TW_E_UNSUPPORTED names the kind of tokenizer or rule
 * that we do not have, TW_E_INPUT what is broken.
 */
tw_status tw_tokenizer_open(struct tw_tokenizer **tokenizer, const char *path, struct tw_error *err);
/* From an open GGUF (tokenizer_gguf.c); nothing of it is needed afterwards. */
tw_status tw_tokenizer_from_gguf(struct tw_tokenizer **tokenizer, const struct tw_gguf *gguf, struct tw_error *err);
/*
 * From the text of a tokenizer.json alone (tokenizer_json.c). `name` stands for the file in messages; `config` and
 * `generation_config` are the texts of tokenizer_config.json and generation_config.json, `chat_template` that of
 * chat_template.jinja; each empty when there is none.
 */
struct tw_tokenizer_files {
    const char *name;
    struct tw_view tokenizer, config, generation_config, chat_template;
};
tw_status tw_tokenizer_from_json(struct tw_tokenizer **tokenizer, const struct tw_tokenizer_files *files,
                                 struct tw_error *err);
/* From a description (spec.h); nothing of it is needed afterwards. */
tw_status tw_tokenizer_create(struct tw_tokenizer **tokenizer, const struct tw_tokenizer_spec *spec,
                              struct tw_error *err);
void tw_tokenizer_free(struct tw_tokenizer *tokenizer);

/* What the user should know about the file, one line each (a missing split rule); empty when nothing. For cli/. */
struct tw_view tw_tokenizer_warnings(const struct tw_tokenizer *tokenizer);

/* ---- vocabulary ----------------------------------------------------------------------------------------------------
 */

#define TW_NO_TOKEN (-1)

/* One more than the highest id. Ids below it may have no token. */
size_t tw_tokenizer_size(const struct tw_tokenizer *tokenizer);
/* Refuses a tokenizer whose ids reach beyond the `n_rows` rows of the embedding, naming the token. */
tw_status tw_tokenizer_check_rows(const struct tw_tokenizer *tokenizer, size_t n_rows, struct tw_error *err);
/* The split rule as the trace records it: "gpt2", "llama-bpe", "qwen2", "smollm", "none" or "custom". */
const char *tw_tokenizer_split_name(const struct tw_tokenizer *tokenizer);
int32_t tw_tokenizer_bos(const struct tw_tokenizer *tokenizer); /* TW_NO_TOKEN: there is none; so for the others */
int32_t tw_tokenizer_eos(const struct tw_tokenizer *tokenizer);
bool tw_tokenizer_adds_bos(const struct tw_tokenizer *tokenizer); /* whether the model expects it in front of a text */
/* Whether the id ends a generation: end of text, of turn, of message, whatever the file names or its markers mean. */
bool tw_tokenizer_is_end(const struct tw_tokenizer *tokenizer, int32_t id);
/* Control tokens: markers that are no text. */
bool tw_tokenizer_is_special(const struct tw_tokenizer *tokenizer, int32_t id);
/* The id of the token that is written exactly so in the file ("<|im_end|>", markers only), or TW_NO_TOKEN. */
int32_t tw_tokenizer_marker(const struct tw_tokenizer *tokenizer, struct tw_view text);
/* The bytes a token stands for (a part of a character, perhaps). data is NULL for an id that has no token. */
struct tw_view tw_tokenizer_bytes(const struct tw_tokenizer *tokenizer, int32_t id);

/* ---- encoding ------------------------------------------------------------------------------------------------------
 */

/* Token ids with the part of the text that each stands for. Zero-initialise. */
struct tw_tokens {
    int32_t *ids;          /* [n] */
    uint32_t *begin, *end; /* [n] bytes [begin, end) of the encoded text, ascending; empty for an added token */
    size_t n, capacity;
};
void tw_tokens_release(struct tw_tokens *tokens); /* leaves it empty and usable */

/*
 * The tokens that hold bytes [begin, end) of the text: [*first, *past). Tokens without bytes (those put in front) are
 * never part of it; first == past when there are none.
 */
void tw_tokens_span(const struct tw_tokens *tokens, size_t begin, size_t end, size_t *first, size_t *past);

enum tw_special {
    TW_SPECIAL_LITERAL, /* the text of a special token inside the text is ordinary text */
    TW_SPECIAL_PARSED,  /* it is that token */
};

struct tw_byte_span {
    size_t begin, end;
};

struct tw_encode_options {
    enum tw_special special;
    bool add_bos; /* put the BOS in front if the model expects one, and the text does not begin with it already */
    /* Parts of the text in which special tokens are parsed even when `special` is literal: what a chat template wrote.
     * Ascending, disjoint; a marker must lie within one of them. */
    const struct tw_byte_span *parsed_spans;
    size_t n_parsed_spans;
};

/*
 * Encodes `text` (any bytes, less than 4 GiB) and appends to `tokens`. What the caller should tell the user (a BOS that
 * was there already) is appended to `warnings`, one line each; NULL: not wanted. Fails with TW_E_MEMORY, and
 * TW_E_INPUT for a text that is too long; `tokens` then holds what it held before.
 */
tw_status tw_tokenizer_encode(struct tw_tokens *tokens, struct tw_tokenizer *tokenizer, struct tw_view text,
                              const struct tw_encode_options *options, struct tw_text *warnings, struct tw_error *err);

/* ---- decoding ------------------------------------------------------------------------------------------------------
 */

/*
 * Appends the bytes of one token as it comes: no character is completed, no leading space dropped. An id without a
 * token is written as a visible placeholder, "[token 93]".
 */
void tw_tokenizer_append(struct tw_text *text, const struct tw_tokenizer *tokenizer, int32_t id);

struct tw_decode_options {
    bool skip_special; /* leave control tokens out */
    bool continued;    /* the ids go on after others: keep the leading space that SentencePiece puts before a text */
};
/* Appends a whole text: bytes, perhaps with a torn character at its end (tw_text_append_utf8_repaired mends it). */
void tw_tokenizer_decode(struct tw_text *text, const struct tw_tokenizer *tokenizer, const int32_t *ids, size_t n_ids,
                         const struct tw_decode_options *options);

#endif
