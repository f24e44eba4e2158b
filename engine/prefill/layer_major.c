/*
 * Layer after layer (spec: prefill, "Schedule"): a bridge of hidden states of the whole prompt, and at most one layer's
 * full KV where layers are compressed.
 */
#include "base/checked.h"
#include "engine/prefill/steps.h"

/* Begins with an empty KV for layer l: the one active buffer again, or a new one that stays. */
static tw_status layer_kv(struct tw_prefill *p, size_t l, bool evict, struct tw_kv **kv, struct tw_error *err) {
    if (!evict) {
        *kv = &p->cache[l];
        return tw_prefill_kv(p, *kv, p->n_tokens + p->reserve, false, TW_CATEGORY_ACTIVE_KV, l, err);
    }
    *kv = &p->active;
    if (p->active.capacity) {
        tw_kv_clear(&p->active);
        return TW_OK;
    }
    return tw_prefill_kv(p, *kv, p->n_tokens, false, TW_CATEGORY_ACTIVE_KV, l, err);
}

static tw_status run_layer(struct tw_prefill *p, size_t l, size_t chunk, bool evict, struct tw_error *err) {
    struct tw_kv *kv;
    TW_TRY(layer_kv(p, l, evict, &kv, err));
    p->observation.n_queries = 0;
    p->observation.first_position = p->n_tokens - tw_min_size(p->selection.window, p->n_tokens);
    for (size_t first = 0; first < p->n_tokens; first += chunk)
        TW_TRY(tw_prefill_chunk(p, l, first, first, tw_min_size(chunk, p->n_tokens - first), kv, err));
    if (!evict) return tw_prefill_keep(p, l, kv, err);
    const tw_status status = tw_prefill_compress(p, l, kv, p->reserve, true, err);
    tw_accountant_phase(p->accountant, TW_PHASE_PREFILL);
    return status;
}

tw_status tw_prefill_layer_major(struct tw_prefill *prefill, size_t chunk, bool evict, struct tw_error *err) {
    struct tw_prefill *p = prefill;
    const size_t rows = tw_min_size(chunk, p->n_tokens);
    tw_status status = TW_OK;
    p->rows = rows;
    TW_TRY_GOTO(status, done, p->ops->bridge_create(p->backend, &p->bridge, p->n_tokens, err));
    TW_TRY_GOTO(status, done, p->ops->chunk_create(p->backend, rows, err));
    TW_TRY_GOTO(status, done, p->ops->observation_create(p->backend, &p->observation, err));
    for (size_t first = 0; first < p->n_tokens; first += rows)
        TW_TRY_GOTO(status, done, tw_prefill_embed(p, first, first, tw_min_size(rows, p->n_tokens - first), err));
    for (size_t l = 0; l < p->model->config.n_layers; l++) {
        TW_TRY_GOTO(status, done, p->ops->layer_begin(p->backend, l, err));
        status = run_layer(p, l, rows, evict, err);
        p->ops->layer_end(p->backend, l);
        if (status != TW_OK) goto done;
    }
    status = tw_prefill_last_row(p, p->n_tokens - 1, err);
done:
    tw_prefill_release_private(p);
    return status;
}
