/*
 * Making text ready for a vocabulary: U+FFFD for what is not UTF-8, NFC, U+2581 as a space, a space in front; with the
 * way back from every byte of the result to the bytes of the text that it came from.
 */
#ifndef TW_ENGINE_TOKENIZER_NORMALIZE_H
#define TW_ENGINE_TOKENIZER_NORMALIZE_H

#include <stdint.h>

#include "base/text.h"

struct tw_source {
    uint32_t begin, end; /* bytes of the text */
};

/* Zero-initialise; memory is kept from text to text. */
struct tw_normalized {
    struct tw_view view; /* the result: the text itself if nothing had to change, else in `text` */
    size_t shift;        /* 1 if a space stands in front, else 0 */
    bool changed;        /* false: byte i of the result is byte i - shift of the text */
    struct tw_text text;
    struct tw_source *sources; /* [view.size] only if changed */
    size_t n_sources, capacity;
    int32_t *run; /* scratch: code points */
    size_t run_capacity;
    bool failed; /* memory ran out */
};
void tw_normalized_release(struct tw_normalized *normalized);

struct tw_normalize_rules {
    bool nfc;         /* Unicode Standard Annex 15 */
    bool space_marks; /* U+2581 becomes a space */
};

/* Normalises `text`, with a space in front if `prefix`. On failure (memory) `failed` is set and false returned. */
bool tw_normalize(struct tw_normalized *normalized, struct tw_view text, const struct tw_normalize_rules *rules,
                  bool prefix);

/* Unicode's White_Space. */
bool tw_is_space(uint32_t code_point);

#endif
