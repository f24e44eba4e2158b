#include "engine/prefill/topk.h"

#include <math.h>

typedef bool before_fn(const struct tw_scored *a, const struct tw_scored *b);

static bool by_row(const struct tw_scored *a, const struct tw_scored *b) {
    return a->row != b->row ? a->row < b->row : a->head < b->head;
}

static bool better(const struct tw_scored *a, const struct tw_scored *b) {
    return a->score != b->score ? a->score > b->score : by_row(a, b);
}

/* Sinks heap[at] until none of its children comes later in the order `before`: the root is the last of all. */
static void sink(struct tw_scored *heap, size_t n, size_t at, before_fn *before) {
    const struct tw_scored item = heap[at];
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(&heap[child], &heap[child + 1])) child++;
        if (!before(&item, &heap[child])) break;
        heap[at] = heap[child];
    }
    heap[at] = item;
}

bool tw_topk_offer(struct tw_topk *topk, struct tw_scored item, struct tw_scored *left_over) {
    if (isnan(item.score)) item.score = -INFINITY;
    struct tw_scored *best = topk->best;
    if (topk->n < topk->k) {
        size_t at = topk->n++;
        for (; at > 0 && better(&best[(at - 1) / 2], &item); at = (at - 1) / 2) best[at] = best[(at - 1) / 2];
        best[at] = item;
        return false;
    }
    if (topk->k == 0 || !better(&item, &best[0])) {
        if (left_over) *left_over = item;
        return true;
    }
    if (left_over) *left_over = best[0];
    best[0] = item;
    sink(best, topk->n, 0, better);
    return true;
}

/* In place, without memory of its own (qsort takes some). */
static void heap_sort(struct tw_scored *items, size_t n, before_fn *before) {
    for (size_t at = n / 2; at-- > 0;) sink(items, n, at, before);
    for (size_t end = n; end-- > 1;) {
        const struct tw_scored last = items[0];
        items[0] = items[end];
        items[end] = last;
        sink(items, end, 0, before);
    }
}

void tw_topk_sort_by_row(struct tw_topk *topk) { heap_sort(topk->best, topk->n, by_row); }
void tw_topk_sort_by_score(struct tw_topk *topk) { heap_sort(topk->best, topk->n, better); }
