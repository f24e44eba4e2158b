/*
 * Byte pair encoding of one piece of text: the pair of neighbours with the lowest rank merges first, of equal ranks the
 * leftmost, until no pair of neighbours merges. Ranks come from merge rules (GPT-2's kind) or from the scores of the
 * tokens (SentencePiece's kind: a pair merges when its text is a token).
 */
#ifndef TW_ENGINE_TOKENIZER_BPE_H
#define TW_ENGINE_TOKENIZER_BPE_H

#include "engine/tokenizer/vocabulary.h"

struct tw_symbol {
    int32_t id;          /* TW_NO_TOKEN: a character without a token, under scores */
    uint32_t begin, end; /* bytes of the piece */
    uint32_t rank;       /* of this symbol and the next; TW_NO_RANK: they do not merge */
    int32_t merged;      /* what they merge into */
    uint32_t previous, next;
};

/* Zero-initialise; memory is kept from piece to piece. */
struct tw_merger {
    struct tw_symbol *symbols; /* [capacity] */
    size_t n, capacity;
    /* Pairs that merge, in the order of their turn (bpe.c). */
    struct tw_merge_node *nodes;   /* [2 * queue_capacity] */
    struct tw_merge_queue *queues; /* [3 * queue_capacity] one a rank */
    uint32_t *queue_slots;         /* [slot_mask + 1] queues by rank, open addressing */
    uint64_t *ranks, *late;        /* [2 * queue_capacity] heaps */
    size_t queue_capacity, slot_mask, n_queues, n_nodes, n_ranks, n_late;
    uint32_t free_node;
};
void tw_merger_release(struct tw_merger *merger);

/* What a piece's bytes or characters are, before merging. */
enum tw_symbol_kind {
    TW_SYMBOLS_BYTES,      /* every byte is its token; bytes without one vanish, or are `unknown` */
    TW_SYMBOLS_CHARACTERS, /* every character is its token, or its bytes' tokens (`byte_fallback`), or `unknown` */
};

struct tw_symbol_rules {
    enum tw_symbol_kind kind;
    bool byte_fallback;
    int32_t unknown; /* TW_NO_TOKEN: what has no token vanishes */
};

/*
 * How to look for the best pair: again and again (the oracle, and the faster for short pieces) or with queues and
 * heaps, in O(n log n). The result is the same.
 */
enum tw_merge_way { TW_MERGE_BY_LENGTH, TW_MERGE_PLAIN, TW_MERGE_QUEUED };

/*
 * Encodes `piece` (UTF-8 where characters count): the tokens are symbols [0, n). False: no memory.
 */
bool tw_merger_encode(struct tw_merger *merger, const struct tw_vocabulary *vocabulary,
                      const struct tw_symbol_rules *rules, struct tw_view piece, enum tw_merge_way way);

#endif
