/*
 * Nested survivors: the resident sets of all budgets at once, for a policy that keeps, after each trimming, the B best
 * of what it had and of what came in.
 *
 * Claim: with one order of priorities for all budgets the sets are nested and each differs from the next by at most one
 * page (Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for storage hierarchies", 1970). So a list of slots
 * says it all: the page in slot i (from 0) is resident under exactly the budgets > i.
 *
 * Trimming: let X come in. The new set of budget B is the B best of X and the pages in the first B slots. One walk down
 * the slots with X in a heap builds all of them: at slot i the page there joins the heap, and the best of the heap
 * takes the slot; what is left over in the heap has been evicted under every budget up to i + 1. It is exact, since the
 * B best of a set and one page more are the B - 1 best of the set and the best of the rest.
 */
#ifndef TW_SIM_NEST_H
#define TW_SIM_NEST_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define TW_NEST_HOLE UINT32_MAX

struct tw_nest_item {
    uint64_t priority;
    uint32_t page;
};

/*
 * level[page]: 0 when it has not come in (or has just come in and is not yet trimmed: resident everywhere), otherwise
 * resident under the budgets >= level; cap + 1 is under none.
 * priority[page]: the larger stays; of equal ones the higher id. Read for pages in slots whenever something is put in.
 */
struct tw_nest {
    uint32_t *slot; /* [cap] */
    size_t n;       /* slots in use; holes among them until the next put */
    size_t cap;
    uint32_t *level;           /* [n_pages] */
    uint64_t *priority;        /* [n_pages] */
    struct tw_nest_item *heap; /* [n_pages] */
    size_t n_heap;
    size_t n_pages;
};

static inline tw_status tw_nest_init(struct tw_nest *nest, size_t n_pages, size_t cap, struct tw_error *err) {
    *nest = (struct tw_nest){.cap = cap, .n_pages = n_pages};
    nest->slot = malloc((cap + 1) * sizeof *nest->slot);
    nest->level = malloc((n_pages + 1) * sizeof *nest->level);
    nest->priority = malloc((n_pages + 1) * sizeof *nest->priority);
    nest->heap = malloc((n_pages + 1) * sizeof *nest->heap);
    if (nest->slot && nest->level && nest->priority && nest->heap) return TW_OK;
    return TW_FAIL(err, TW_E_MEMORY, "not enough memory for the residency of %zu pages", n_pages);
}

static inline void tw_nest_release(struct tw_nest *nest) {
    free(nest->slot);
    free(nest->level);
    free(nest->priority);
    free(nest->heap);
    *nest = (struct tw_nest){0};
}

/* Nothing has come in yet: for the next unit. */
static inline void tw_nest_clear(struct tw_nest *nest) {
    nest->n = 0;
    nest->n_heap = 0;
    memset(nest->level, 0, nest->n_pages * sizeof *nest->level);
    memset(nest->priority, 0, nest->n_pages * sizeof *nest->priority);
}

static inline int tw_nest_better(struct tw_nest_item a, struct tw_nest_item b) {
    return a.priority > b.priority || (a.priority == b.priority && a.page > b.page);
}

static inline void tw_nest_sift(struct tw_nest *nest, size_t i) {
    struct tw_nest_item *const heap = nest->heap;
    const struct tw_nest_item item = heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= nest->n_heap) break;
        if (child + 1 < nest->n_heap && tw_nest_better(heap[child + 1], heap[child])) child++;
        if (!tw_nest_better(heap[child], item)) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = item;
}

/* The page will take part in the next put, with its priority of now. It must not be in a slot. */
static inline void tw_nest_bring(struct tw_nest *nest, uint32_t page) {
    nest->heap[nest->n_heap++] = (struct tw_nest_item){nest->priority[page], page};
}

/* Takes the page out of its slot, if it has one. */
static inline void tw_nest_take(struct tw_nest *nest, uint32_t page) {
    const uint32_t level = nest->level[page];
    if (level != 0 && level <= nest->cap) nest->slot[level - 1] = TW_NEST_HOLE;
}

/* Trims under every budget: what was brought gets its level, what it pushes down too. */
static inline void tw_nest_put(struct tw_nest *nest) {
    struct tw_nest_item *const heap = nest->heap;
    for (size_t i = nest->n_heap / 2; i-- > 0;) tw_nest_sift(nest, i);
    for (size_t i = 0; nest->n_heap > 0 && i < nest->cap; i++) {
        const uint32_t page = i < nest->n ? nest->slot[i] : TW_NEST_HOLE;
        const struct tw_nest_item best = heap[0];
        if (page == TW_NEST_HOLE) {
            heap[0] = heap[--nest->n_heap];
            if (i >= nest->n) nest->n = i + 1;
        } else {
            const struct tw_nest_item there = {nest->priority[page], page};
            if (tw_nest_better(there, best)) continue;
            heap[0] = there;
        }
        if (nest->n_heap > 1) tw_nest_sift(nest, 0);
        nest->slot[i] = best.page;
        nest->level[best.page] = (uint32_t)i + 1;
    }
    for (size_t i = 0; i < nest->n_heap; i++) nest->level[heap[i].page] = (uint32_t)nest->cap + 1;
    nest->n_heap = 0;
}

#endif
