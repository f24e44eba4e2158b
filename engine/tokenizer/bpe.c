#include "engine/tokenizer/bpe.h"

#include <stdlib.h>

#include "base/checked.h"
#include "base/text.h"
#include "engine/tokenizer/tokenizer.h"

#define NOBODY UINT32_MAX

/* Above this many symbols the queues are faster. */
enum { PLAIN_LIMIT = 40 };

void tw_merger_release(struct tw_merger *m) {
    free(m->symbols);
    free(m->nodes);
    free(m->queues);
    free(m->queue_slots);
    free(m->ranks);
    free(m->late);
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

/* Heaps of four children a node: half the levels, and a node's children share a cache line or two. */
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
 * The pairs that merge, and pairs that are no more, by rank and then place. Places mostly come in ascending order for
 * each rank, so each rank has a queue that is kept in order by appending alone, and a heap holds the ranks that have
 * one; what comes out of order goes into a heap of its own. Long runs of one character, where all places share few
 * ranks, thus take constant time a merge. (With a heap alone they took 5 times as long.)
 */
struct tw_merge_queue {
    uint32_t rank;
    uint32_t first, last; /* nodes; NOBODY: empty */
};
struct tw_merge_node {
    uint32_t place, next;
};

static bool reserve_queues(struct tw_merger *m, size_t n) {
    size_t n_slots = 64;
    while (n_slots < 2 * n) n_slots *= 2;
    if (n > m->queue_capacity) {
        free(m->nodes);
        free(m->queues);
        free(m->queue_slots);
        free(m->ranks);
        free(m->late);
        m->queue_capacity = n;
        /* Each merge takes an entry out and puts at most two in: 3n in all, never more than 2n at once. */
        m->nodes = malloc(2 * n * sizeof *m->nodes);
        m->queues = malloc(3 * n * sizeof *m->queues);
        m->queue_slots = malloc(2 * n_slots * sizeof *m->queue_slots);
        m->ranks = malloc(2 * n * sizeof *m->ranks);
        m->late = malloc(2 * n * sizeof *m->late);
        if (!m->nodes || !m->queues || !m->queue_slots || !m->ranks || !m->late) {
            m->queue_capacity = 0;
            return false;
        }
    }
    m->slot_mask = 2 * n_slots - 1;
    memset(m->queue_slots, 0xff, 2 * n_slots * sizeof *m->queue_slots);
    m->n_queues = m->n_nodes = m->n_ranks = m->n_late = 0;
    m->free_node = NOBODY;
    return true;
}

static struct tw_merge_queue *queue_of(struct tw_merger *m, uint32_t rank) {
    size_t slot = (rank * 0x9e3779b1u >> 7) & m->slot_mask;
    for (; m->queue_slots[slot] != NOBODY; slot = (slot + 1) & m->slot_mask)
        if (m->queues[m->queue_slots[slot]].rank == rank) return &m->queues[m->queue_slots[slot]];
    m->queue_slots[slot] = (uint32_t)m->n_queues;
    m->queues[m->n_queues] = (struct tw_merge_queue){rank, NOBODY, NOBODY};
    return &m->queues[m->n_queues++];
}

static void enqueue(struct tw_merger *m, uint32_t rank, uint32_t place) {
    struct tw_merge_queue *q = queue_of(m, rank);
    if (q->first != NOBODY && m->nodes[q->last].place > place) {
        m->late[m->n_late] = (uint64_t)rank << 32 | place;
        sift_up(m->late, m->n_late++);
        return;
    }
    uint32_t node = m->free_node;
    if (node != NOBODY)
        m->free_node = m->nodes[node].next;
    else
        node = (uint32_t)m->n_nodes++;
    m->nodes[node] = (struct tw_merge_node){place, NOBODY};
    if (q->first == NOBODY) {
        q->first = node;
        m->ranks[m->n_ranks] = (uint64_t)rank << 32 | (uint32_t)(q - m->queues);
        sift_up(m->ranks, m->n_ranks++);
    } else {
        m->nodes[q->last].next = node;
    }
    q->last = node;
}

/* Takes out the entry of the lowest rank, of those the leftmost. False: there is none. */
static bool dequeue(struct tw_merger *m, uint32_t *rank, uint32_t *place) {
    uint64_t key = UINT64_MAX;
    if (m->n_ranks) {
        const struct tw_merge_queue *q = &m->queues[(uint32_t)m->ranks[0]];
        key = (uint64_t)q->rank << 32 | m->nodes[q->first].place;
    }
    if (m->n_late && m->late[0] < key) {
        key = m->late[0];
        m->late[0] = m->late[--m->n_late];
        if (m->n_late) sift_down(m->late, m->n_late, 0);
    } else if (m->n_ranks) {
        struct tw_merge_queue *q = &m->queues[(uint32_t)m->ranks[0]];
        const uint32_t node = q->first;
        q->first = m->nodes[node].next;
        m->nodes[node].next = m->free_node;
        m->free_node = node;
        if (q->first == NOBODY) {
            m->ranks[0] = m->ranks[--m->n_ranks];
            if (m->n_ranks) sift_down(m->ranks, m->n_ranks, 0);
        }
    } else {
        return false;
    }
    *rank = (uint32_t)(key >> 32);
    *place = (uint32_t)key;
    return true;
}

/* An entry counts if its symbol still has that rank; a symbol that was swallowed has none. */
static bool merge_queued(struct tw_merger *m, const struct tw_vocabulary *v, struct tw_view piece) {
    struct tw_symbol *s = m->symbols;
    const size_t n = m->n;
    if (n == 0) return true;
    if (!reserve_queues(m, n)) return false;
    for (size_t i = 0; i < n; i++) {
        s[i].previous = i ? (uint32_t)i - 1 : NOBODY;
        s[i].next = i + 1 < n ? (uint32_t)i + 1 : NOBODY;
        s[i].rank = TW_NO_RANK;
        if (i + 1 < n) rank_pair(&s[i], &s[i + 1], v, piece);
        if (s[i].rank != TW_NO_RANK) enqueue(m, s[i].rank, (uint32_t)i);
    }
    for (uint32_t rank, at; dequeue(m, &rank, &at);) {
        struct tw_symbol *left = &s[at];
        if (left->rank != rank) continue;
        struct tw_symbol *right = &s[left->next];
        left->id = left->merged;
        left->end = right->end;
        left->next = right->next;
        right->rank = TW_NO_RANK;
        left->rank = TW_NO_RANK;
        /* The pair before goes in first, so that places ascend. */
        if (left->previous != NOBODY) {
            struct tw_symbol *before = &s[left->previous];
            const uint32_t old = before->rank;
            rank_pair(before, left, v, piece);
            /* With the old rank its entry is still there. */
            if (before->rank != TW_NO_RANK && before->rank != old) enqueue(m, before->rank, left->previous);
        }
        if (left->next != NOBODY) {
            s[left->next].previous = at;
            rank_pair(left, &s[left->next], v, piece);
            if (left->rank != TW_NO_RANK) enqueue(m, left->rank, at);
        }
    }
    size_t kept = 0;
    for (uint32_t i = 0; i != NOBODY; i = s[i].next) s[kept++] = s[i];
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
    else if (!merge_queued(m, v, piece))
        return false;
    return !v->score_rank || fall_back(m, v, piece, rules);
}
