/*
 * A policy of one's own: first in, first out, with a reservoir like reactive's.
 *
 *     gcc -O2 -shared -fPIC -I . -o fifo.so data/policies/fifo.c
 *     tidewake replay --policy reactive,./fifo.so tests/golden/replay/plain.h5
 */
#include <stdlib.h>

#include "sim/policy.h"

struct fifo {
    struct tw_policy_layer layer;
    uint64_t *came;     /* [n_units][n_pages] when the page came in, 0 while it is away */
    uint8_t *seen;      /* [n_units][n_pages] */
    uint64_t *resident; /* [n_units] */
    uint64_t clock;
};

static void fifo_close(void *state) {
    struct fifo *fifo = state;
    free(fifo->came), free(fifo->seen), free(fifo->resident), free(fifo);
}

static tw_status fifo_open(void **state, const struct tw_policy_layer *layer, const void *options,
                           struct tw_error *err) {
    struct fifo *fifo = *state = calloc(1, sizeof *fifo);
    const size_t n = layer->n_units * layer->n_pages;
    (void)options, (void)err;
    if (!fifo) return TW_E_MEMORY;
    *fifo = (struct fifo){*layer, calloc(n + 1, 8), calloc(n + 1, 1), calloc(layer->n_units + 1, 8), 0};
    if (fifo->came && fifo->seen && fifo->resident) return TW_OK;
    fifo_close(fifo);
    return TW_E_MEMORY;
}

static void fifo_serve(void *state, size_t step, const struct tw_demand_row *demand, struct tw_policy_result *result) {
    struct fifo *fifo = state;
    (void)step;
    for (size_t u = 0; u < fifo->layer.n_units; u++) {
        uint64_t *came = fifo->came + u * fifo->layer.n_pages;
        uint8_t *seen = fifo->seen + u * fifo->layer.n_pages;
        for (size_t i = 0; i < demand[u].n; i++) {
            const uint32_t page = demand[u].page[i];
            if (came[page]) continue;
            result[u].misses += seen[page]; /* seen before and not here: fetched back */
            result[u].fetches += seen[page];
            seen[page] = 1;
            came[page] = ++fifo->clock;
            fifo->resident[u]++;
        }
        for (; fifo->resident[u] > fifo->layer.budget; fifo->resident[u]--) {
            size_t first = SIZE_MAX;
            for (size_t p = 0; p < fifo->layer.n_pages; p++)
                if (came[p] && (first == SIZE_MAX || came[p] < came[first])) first = p;
            came[first] = 0;
        }
        result[u].resident = fifo->resident[u];
    }
}

__attribute__((visibility("default"))) const struct tw_policy tw_policy_plugin = {
    .interface = TW_POLICY_INTERFACE,
    .name = "fifo",
    .summary = "first in, first out; what leaves is fetched back when it is wanted",
    .open = fifo_open,
    .serve = fifo_serve,
    .close = fifo_close,
};
