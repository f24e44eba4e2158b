/*
 * Chunk after chunk through all layers: a bridge of one chunk, and a KV for every layer, full or trimmed after every
 * chunk.
 */
#include <stdlib.h>

#include "base/checked.h"
#include "engine/prefill/steps.h"

/* The rows of cache[l] in the larger active KV, with room for n more; the cache is empty afterwards. */
static tw_status unpack_cache(struct tw_prefill *p, size_t l, size_t n, struct tw_error *err) {
    struct tw_kv *cache = &p->cache[l];
    if (!cache->capacity) return tw_prefill_kv(p, &p->active, n, true, TW_CATEGORY_ACTIVE_KV, l, err);
    size_t *capacity = malloc(cache->n_kv_heads * sizeof *capacity);
    if (!capacity) return TW_FAIL(err, TW_E_MEMORY, "out of memory: capacities of a cache");
    for (size_t g = 0; g < cache->n_kv_heads; g++) capacity[g] = cache->length[g] + n;
    struct tw_kept all = {0};
    tw_status status =
        p->ops->kv_create(p->backend, &p->active, capacity, true, TW_CATEGORY_ACTIVE_KV, "active KV of a chunk", err);
    if (status == TW_OK) status = tw_kept_all(&all, p->accountant, cache, err);
    if (status == TW_OK)
        status = p->ops->gather(p->backend, &p->active, cache, (const int32_t *const *)all.row, all.n_rows, err);
    tw_kept_release(&all, p->accountant);
    free(capacity);
    if (status == TW_OK) p->ops->kv_release(p->backend, cache);
    return status;
}

/* The window of a chunk: its last W queries, or all if fewer. */
static void observe_chunk(struct tw_prefill *p, size_t first, size_t n) {
    p->observation.n_queries = 0;
    p->observation.first_position = first + n - tw_min_size(p->selection.window, n);
}

static tw_status run_layer(struct tw_prefill *p, size_t l, size_t first, size_t n, bool evict, struct tw_error *err) {
    const bool last = first + n == p->n_tokens;
    observe_chunk(p, first, n);
    if (!evict) {
        TW_TRY(tw_prefill_chunk(p, l, 0, first, n, &p->cache[l], err));
        return last ? tw_prefill_keep(p, l, &p->cache[l], err) : TW_OK;
    }
    TW_TRY(unpack_cache(p, l, n, err));
    TW_TRY(tw_prefill_chunk(p, l, 0, first, n, &p->active, err));
    TW_TRY(tw_prefill_compress(p, l, &p->active, last ? p->reserve : 0, last, err));
    p->ops->kv_release(p->backend, &p->active);
    tw_accountant_phase(p->accountant, TW_PHASE_PREFILL);
    return TW_OK;
}

tw_status tw_prefill_chunk_major(struct tw_prefill *prefill, size_t chunk, bool evict, struct tw_error *err) {
    struct tw_prefill *p = prefill;
    const size_t rows = tw_min_size(chunk, p->n_tokens), n_layers = p->model->config.n_layers;
    tw_status status = TW_OK;
    p->rows = rows;
    TW_TRY_GOTO(status, done, p->ops->bridge_create(p->backend, &p->bridge, rows, err));
    TW_TRY_GOTO(status, done, p->ops->chunk_create(p->backend, rows, err));
    TW_TRY_GOTO(status, done, p->ops->observation_create(p->backend, &p->observation, err));
    for (size_t l = 0; !evict && l < n_layers; l++)
        TW_TRY_GOTO(status, done,
                    tw_prefill_kv(p, &p->cache[l], p->n_tokens + p->reserve, false, TW_CATEGORY_ACTIVE_KV, l, err));
    size_t n = 0;
    for (size_t first = 0; first < p->n_tokens; first += rows) {
        n = tw_min_size(rows, p->n_tokens - first);
        TW_TRY_GOTO(status, done, tw_prefill_embed(p, 0, first, n, err));
        for (size_t l = 0; l < n_layers; l++) {
            TW_TRY_GOTO(status, done, p->ops->layer_begin(p->backend, l, err));
            status = run_layer(p, l, first, n, evict, err);
            p->ops->layer_end(p->backend, l);
            if (status != TW_OK) goto done;
        }
    }
    status = tw_prefill_last_row(p, n - 1, err);
done:
    tw_prefill_release_private(p);
    return status;
}
