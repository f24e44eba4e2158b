#include "engine/prefill/steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/stop.h"

static tw_status tell_hidden(struct tw_prefill *p, size_t index, size_t first_row, size_t first_position, size_t n,
                             struct tw_error *err) {
    if (!p->watch || !p->watch->hidden) return TW_OK;
    return p->watch->hidden(p->watch->context, index, &p->bridge, first_row, first_position, n, err);
}

tw_status tw_prefill_embed(struct tw_prefill *prefill, size_t first_row, size_t first_position, size_t n,
                           struct tw_error *err) {
    TW_TRY(
        prefill->ops->embed(prefill->backend, &prefill->bridge, first_row, prefill->tokens + first_position, n, err));
    return tell_hidden(prefill, 0, first_row, first_position, n, err);
}

/* Append, attend and finish take about a third of a chunk each; `part` of them are done. */
static void report(struct tw_prefill *p, size_t l, size_t first_position, size_t n, unsigned part) {
    char detail[96];
    snprintf(detail, sizeof detail, "layer %zu/%zu, chunk %zu/%zu", l + 1, p->model->config.n_layers,
             first_position / p->rows + 1, tw_divide_up(p->n_tokens, p->rows));
    /* In tokens: a token is done when it has gone through all layers. */
    tw_progress_update(p->progress, "prefill", (p->done + n * part / 3) / p->model->config.n_layers, p->n_tokens,
                       "tokens", detail);
}

tw_status tw_prefill_chunk(struct tw_prefill *prefill, size_t l, size_t first_row, size_t first_position, size_t n,
                           struct tw_kv *kv, struct tw_error *err) {
    struct tw_prefill *p = prefill;
    if (tw_stop_requested()) return TW_FAIL(err, TW_E_INTERRUPTED, "interrupted in prefill, layer %zu", l);
    report(p, l, first_position, n, 0);
    TW_TRY(p->ops->append(p->backend, l, &p->bridge, first_row, n, first_position, kv, &p->observation, err));
    report(p, l, first_position, n, 1);
    TW_TRY(p->ops->attend(p->backend, l, kv, n, first_position, err));
    report(p, l, first_position, n, 2);
    TW_TRY(p->ops->finish(p->backend, l, &p->bridge, first_row, n, err));
    p->done += n;
    report(p, l, first_position, 0, 0);
    return tell_hidden(p, l + 1, first_row, first_position, n, err);
}

static tw_status tell_layer_end(struct tw_prefill *p, size_t l, const struct tw_kv *kv, const struct tw_kept *kept,
                                struct tw_error *err) {
    if (!p->watch || !p->watch->layer_end) return TW_OK;
    return p->watch->layer_end(p->watch->context, l, kv, &p->observation, kept, err);
}

tw_status tw_prefill_compress(struct tw_prefill *prefill, size_t l, const struct tw_kv *kv, size_t reserve, bool last,
                              struct tw_error *err) {
    struct tw_prefill *p = prefill;
    struct tw_kept kept = {0};
    const double began = tw_clock_seconds();
    double watched = 0;
    tw_accountant_phase(p->accountant, TW_PHASE_LAYER_END);
    tw_status status =
        p->selector->selector->select(&kept, &p->selection, p->selector->options, l, kv, &p->observation, err);
    if (status != TW_OK) return status;
    size_t *capacity = malloc(kept.n_kv_heads * sizeof *capacity);
    if (!capacity) {
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory: capacities of a cache");
        goto done;
    }
    if (last) {
        /* Logging is no part of a layer's end. */
        watched = tw_clock_seconds();
        TW_TRY_GOTO(status, done, tell_layer_end(p, l, kv, &kept, err));
        watched = tw_clock_seconds() - watched;
    }
    for (size_t g = 0; g < kept.n_kv_heads; g++) capacity[g] = kept.n_rows[g] + reserve;
    char what[64];
    snprintf(what, sizeof what, "compact cache, layer %zu", l);
    TW_TRY_GOTO(status, done,
                p->ops->kv_create(p->backend, &p->cache[l], capacity, true, TW_CATEGORY_COMPACT_CACHE, what, err));
    status = p->ops->gather(p->backend, &p->cache[l], kv, (const int32_t *const *)kept.row, kept.n_rows, err);
done:
    free(capacity);
    tw_kept_release(&kept, p->accountant);
    p->layer_end_seconds += tw_clock_seconds() - began - watched;
    return status;
}

tw_status tw_prefill_keep(struct tw_prefill *prefill, size_t l, const struct tw_kv *kv, struct tw_error *err) {
    return tell_layer_end(prefill, l, kv, NULL, err);
}

tw_status tw_prefill_kv(struct tw_prefill *prefill, struct tw_kv *kv, size_t capacity, bool with_positions,
                        enum tw_category category, size_t l, struct tw_error *err) {
    const size_t n_kv_heads = prefill->model->config.n_kv_heads;
    size_t *capacities = malloc(n_kv_heads * sizeof *capacities);
    if (!capacities) return TW_FAIL(err, TW_E_MEMORY, "out of memory: capacities of a cache");
    for (size_t g = 0; g < n_kv_heads; g++) capacities[g] = capacity;
    char what[64];
    snprintf(what, sizeof what, "%s, layer %zu", tw_category_names[category], l);
    const tw_status status =
        prefill->ops->kv_create(prefill->backend, kv, capacities, with_positions, category, what, err);
    free(capacities);
    return status;
}

tw_status tw_prefill_last_row(struct tw_prefill *prefill, size_t row, struct tw_error *err) {
    struct tw_prefill *p = prefill;
    /* Everything of the prompt but the caches is gone before logits are made: they are as large as many rows. */
    p->ops->kv_release(p->backend, &p->active);
    p->ops->observation_release(p->backend, &p->observation);
    p->ops->chunk_release(p->backend);
    TW_TRY(p->ops->bridge_create(p->backend, &p->last, 1, err));
    TW_TRY(p->ops->bridge_copy(p->backend, &p->last, 0, &p->bridge, row, 1, err));
    p->ops->bridge_release(p->backend, &p->bridge);
    return TW_OK;
}

void tw_prefill_release_private(struct tw_prefill *prefill) {
    struct tw_prefill *p = prefill;
    p->ops->kv_release(p->backend, &p->active);
    p->ops->observation_release(p->backend, &p->observation);
    p->ops->chunk_release(p->backend);
    p->ops->bridge_release(p->backend, &p->bridge);
}
