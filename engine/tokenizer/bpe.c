#include "engine/tokenizer/bpe.h"

#include <assert.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/text.h"
#include "engine/tokenizer/tokenizer.h"

#define NOBODY UINT32_MAX

/* Above this many symbols the heap is faster. */
enum { PLAIN_LIMIT = 40 };

void tw_merger_release(struct tw_merger *m) {
    free(m->symbols);
    free(m->heap);
    *m = (struct tw_merger){0};
}

static bool reserve(struct tw_merger *m, size_t n) {
    if (n <= m->capacity) return true;
    const size_t capacity = tw_max_size(n, 2 * m->capacity);
    struct tw_symbol *symbols = realloc(m->symbols, capacity * sizeof *symbols);
    if (!symbols) return false;
    m->symbols = symbols;
    m->capacity = capacity;
    return true;
}

static void push(struct tw_merger *m, int32_t id, size_t begin, size_t end) {
    m->symbols[m->n++] = (struct tw_symbol){.id = id, .begin = (uint32_t)begin, .end = (uint32_t)end};
}

static void start_bytes(struct tw_merger *m, const struct tw_vocabulary *v, struct tw_view piece, int32_t unknown) {
    for (size_t i = 0; i < piece.size; i++) {
        int32_t id = v->byte_token[(uint8_t)piece.data[i]];
        if (id == TW_NO_TOKEN) id = unknown;
        if (id != TW_NO_TOKEN) push(m, id, i, i + 1);
    }
}

/* Whether all bytes of a character have byte tokens: else none of them is used. */
static bool has_bytes(const struct tw_vocabulary *v, const char *data, size_t size) {
    if (v->all_bytes) return true;
    for (size_t i = 0; i < size; i++)
        if (v->byte_token[(uint8_t)data[i]] == TW_NO_TOKEN) return false;
    return true;
}

static void start_characters(struct tw_merger *m, const struct tw_vocabulary *v, struct tw_view piece,
                             const struct tw_symbol_rules *rules) {
    for (size_t i = 0, end; i < piece.size; i = end) {
        const uint8_t lead = (uint8_t)piece.data[i];
        int32_t id;
        if (lead < 0x80) {
            end = i + 1;
            id = v->character_token[lead];
        } else {
            end = i + (lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4);
            id = tw_vocabulary_find(v, piece.data + i, end - i);
        }
        if (id != TW_NO_TOKEN) {
            push(m, id, i, end);
        } else if (v->score_rank) {
            push(m, TW_NO_TOKEN, i, end); /* may still be part of a token */
        } else if (rules->byte_fallback && has_bytes(v, piece.data + i, end - i)) {
            for (size_t b = i; b < end; b++) push(m, v->byte_token[(uint8_t)piece.data[b]], b, b + 1);
        } else if (rules->unknown != TW_NO_TOKEN) {
            push(m, rules->unknown, i, end);
        }
    }
}

/*
 * Under scores, a symbol that is no token falls apart: into byte tokens, character by character, or unknown tokens.
 * (With merge rules this is decided before merging.)
 */
static bool fall_back(struct tw_merger *m, const struct tw_vocabulary *v, struct tw_view piece,
                      const struct tw_symbol_rules *rules) {
    size_t missing = 0;
    for (size_t i = 0; i < m->n; i++)
        if (m->symbols[i].id == TW_NO_TOKEN) missing += m->symbols[i].end - m->symbols[i].begin;
    if (!missing) return true;
    const size_t n = m->n;
    if (!reserve(m, n + n + missing)) return false;
    for (size_t i = 0; i < n; i++) {
        const struct tw_symbol symbol = m->symbols[i];
        if (symbol.id != TW_NO_TOKEN) {
            push(m, symbol.id, symbol.begin, symbol.end);
        } else if (rules->byte_fallback && has_bytes(v, piece.data + symbol.begin, symbol.end - symbol.begin)) {
            for (size_t b = symbol.begin; b < symbol.end; b++) push(m, v->byte_token[(uint8_t)piece.data[b]], b, b + 1);
        } else if (rules->unknown != TW_NO_TOKEN) {
            push(m, rules->unknown, symbol.begin, symbol.end);
        }
    }
    m->n -= n;
    memmove(m->symbols, m->symbols + n, m->n * sizeof *m->symbols);
    return true;
}

/* The rank of symbols `left` and the one after it, and what they make. */
static inline void rank_pair(struct tw_symbol *left, const struct tw_symbol *right, const struct tw_vocabulary *v,
                             struct tw_view piece) {
    if (v->score_rank) {
        left->merged = tw_vocabulary_find(v, piece.data + left->begin, right->end - left->begin);
        left->rank = left->merged == TW_NO_TOKEN ? TW_NO_RANK : v->score_rank[left->merged];
    } else {
        left->rank = tw_vocabulary_merge(v, left->id, right->id, &left->merged);
    }
}

static void merge_plain(struct tw_merger *m, const struct tw_vocabulary *v, struct tw_view piece) {
    struct tw_symbol *s = m->symbols;
    size_t n = m->n;
    for (size_t i = 0; i + 1 < n; i++) rank_pair(&s[i], &s[i + 1], v, piece);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (s[i].rank < s[best].rank) best = i;
        if (s[best].rank == TW_NO_RANK) break;
        s[best].id = s[best].merged;
        s[best].end = s[best + 1].end;
        n--;
        memmove(&s[best + 1], &s[best + 2], (n - best - 1) * sizeof *s);
        if (best + 1 < n) rank_pair(&s[best], &s[best + 1], v, piece);
        if (best > 0) rank_pair(&s[best - 1], &s[best], v, piece);
    }
    m->n = n;
}

/* A heap of four children a node: its levels are half as many, and a node's children share a cache line or two. */
static void sift_down(uint64_t *heap, size_t n, size_t at) {
    const uint64_t value = heap[at];
    for (;;) {
        const size_t first = 4 * at + 1;
        if (first >= n) break;
        size_t least = first;
        const size_t past = tw_min_size(first + 4, n);
        for (size_t child = first + 1; child < past; child++)
            if (heap[child] < heap[least]) least = child;
        if (heap[least] >= value) break;
        heap[at] = heap[least];
        at = least;
    }
    heap[at] = value;
}

static void sift_up(uint64_t *heap, size_t at) {
    const uint64_t value = heap[at];
    while (at > 0 && heap[(at - 1) / 4] > value) {
        heap[at] = heap[(at - 1) / 4];
        at = (at - 1) / 4;
    }
    heap[at] = value;
}

/*
 * The heap holds the rank and left symbol of every pair that merges, and of pairs that are no more: an entry counts if
 * its symbol still has that rank. (A symbol that was swallowed has none.)
 */
static bool merge_heap(struct tw_merger *m, const struct tw_vocabulary *v, struct tw_view piece) {
    struct tw_symbol *s = m->symbols;
    const size_t n = m->n;
    /* Each merge takes its own entry out and puts at most two in: never more than 2n at once. */
    if (2 * n > m->heap_capacity) {
        uint64_t *heap = realloc(m->heap, 2 * n * sizeof *heap);
        if (!heap) return false;
        m->heap = heap;
        m->heap_capacity = 2 * n;
    }
    uint64_t *heap = m->heap;
    size_t size = 0;
    for (size_t i = 0; i < n; i++) {
        s[i].previous = i ? (uint32_t)i - 1 : NOBODY;
        s[i].next = i + 1 < n ? (uint32_t)i + 1 : NOBODY;
        s[i].rank = TW_NO_RANK;
        if (i + 1 < n) rank_pair(&s[i], &s[i + 1], v, piece);
        if (s[i].rank != TW_NO_RANK) heap[size++] = (uint64_t)s[i].rank << 32 | i;
    }
    for (size_t i = size / 4 + 1; i-- > 0;)
        if (i < size) sift_down(heap, size, i);

    while (size > 0) {
        const uint64_t top = heap[0];
        heap[0] = heap[--size];
        if (size) sift_down(heap, size, 0);
        const uint32_t at = (uint32_t)top;
        struct tw_symbol *left = &s[at];
        if (left->rank != top >> 32) continue;
        struct tw_symbol *right = &s[left->next];
        left->id = left->merged;
        left->end = right->end;
        left->next = right->next;
        right->rank = TW_NO_RANK;
        left->rank = TW_NO_RANK;
        if (left->next != NOBODY) {
            s[left->next].previous = at;
            rank_pair(left, &s[left->next], v, piece);
            if (left->rank != TW_NO_RANK) {
                heap[size] = (uint64_t)left->rank << 32 | at;
                sift_up(heap, size++);
            }
        }
        if (left->previous != NOBODY) {
            struct tw_symbol *before = &s[left->previous];
            const uint32_t old = before->rank;
            rank_pair(before, left, v, piece);
            /* With the old rank its entry is still there. */
            if (before->rank != TW_NO_RANK && before->rank != old) {
                heap[size] = (uint64_t)before->rank << 32 | left->previous;
                sift_up(heap, size++);
            }
        }
        assert(size <= m->heap_capacity);
    }
    size_t kept = 0;
    for (uint32_t i = 0; i != NOBODY && n > 0; i = s[i].next) s[kept++] = s[i];
    m->n = kept;
    return true;
}

bool tw_merger_encode(struct tw_merger *m, const struct tw_vocabulary *v, const struct tw_symbol_rules *rules,
                      struct tw_view piece, enum tw_merge_way way) {
    if (!reserve(m, piece.size)) return false;
    m->n = 0;
    if (rules->kind == TW_SYMBOLS_BYTES)
        start_bytes(m, v, piece, rules->unknown);
    else
        start_characters(m, v, piece, rules);
    if (way == TW_MERGE_PLAIN || (way == TW_MERGE_BY_LENGTH && m->n <= PLAIN_LIMIT))
        merge_plain(m, v, piece);
    else if (!merge_heap(m, v, piece))
        return false;
    return !v->score_rank || fall_back(m, v, piece, rules);
}
