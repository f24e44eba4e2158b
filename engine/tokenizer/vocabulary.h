/*
 * The tables behind a tokenizer: the bytes of every token, which token has given bytes, and which pairs of neighbours
 * merge into what. Everything is in terms of the text's own bytes: GPT-2's byte alphabet and U+2581 are undone when the
 * tables are built.
 */
#ifndef TW_ENGINE_TOKENIZER_VOCABULARY_H
#define TW_ENGINE_TOKENIZER_VOCABULARY_H

#include "base/error.h"
#include "engine/tokenizer/spec.h"

#define TW_NO_RANK UINT32_MAX

struct tw_merge_slot {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: empty */
    uint32_t rank;
    int32_t merged;
};

struct tw_vocabulary {
    size_t n_tokens;
    char *bytes;      /* of all tokens, one behind the other */
    uint32_t *offset; /* [n_tokens + 1] into bytes */
    uint8_t *kind;    /* [n_tokens] enum tw_token_kind */

    /* Tokens that text can become, by their bytes: (hash & ~mask_of_ids) | id + 1, open addressing; 0 is empty. */
    uint64_t *slots; /* [slot_mask + 1] */
    size_t slot_mask;
    size_t longest; /* bytes of the longest of them */

    struct tw_merge_slot *merges; /* [merge_mask + 1], open addressing; NULL when scores rule */
    size_t merge_mask;
    uint32_t *score_rank; /* [n_tokens] the score's order turned round, so that the lowest rank merges first */

    int32_t byte_token[256];      /* the token of one byte: byte_level its own, else "<0x0A>"; TW_NO_TOKEN: none */
    int32_t character_token[128]; /* the token of one ASCII character; not used when byte_level */
    bool all_bytes;               /* no byte lacks its token */
    /* Bit a*256 + b: bytes a, b stand side by side inside some token that merging can make. Where the text has a pair
     * that is not here, no merge can ever reach across. */
    uint64_t joins[65536 / 64];
};

/* Checks and builds. On failure `vocabulary` is released. */
tw_status tw_vocabulary_init(struct tw_vocabulary *vocabulary, const struct tw_tokenizer_spec *spec,
                             struct tw_error *err);
void tw_vocabulary_release(struct tw_vocabulary *vocabulary); /* copes with {0} */

/* The token with exactly these bytes that merging can make, or -1. */
int32_t tw_vocabulary_find(const struct tw_vocabulary *vocabulary, const char *data, size_t size);

static inline struct tw_view tw_vocabulary_bytes(const struct tw_vocabulary *v, int32_t id) {
    return (struct tw_view){v->bytes + v->offset[id], v->offset[id + 1] - v->offset[id]};
}

static inline bool tw_vocabulary_joins(const struct tw_vocabulary *v, uint8_t left, uint8_t right) {
    const unsigned bit = left * 256u + right;
    return v->joins[bit / 64] >> bit % 64 & 1;
}

static inline size_t tw_vocabulary_pair_slot(const struct tw_vocabulary *v, uint64_t pair) {
    const uint64_t mixed = pair * 0x9e3779b97f4a7c15;
    return (size_t)(mixed ^ mixed >> 32) & v->merge_mask;
}

/* What ids `left`, `right` merge into, with the rank of the rule; TW_NO_RANK: they do not. */
static inline uint32_t tw_vocabulary_merge(const struct tw_vocabulary *v, int32_t left, int32_t right,
                                           int32_t *merged) {
    const uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (size_t i = tw_vocabulary_pair_slot(v, pair);; i = (i + 1) & v->merge_mask) {
        const struct tw_merge_slot *slot = &v->merges[i];
        if (slot->pair == pair) {
            *merged = slot->merged;
            return slot->rank;
        }
        if (slot->pair == UINT64_MAX) return TW_NO_RANK;
    }
}

/* A mixing hash of short byte strings. Never reads outside [data, data + size). */
uint64_t tw_vocabulary_hash(const char *data, size_t size);

#endif
