/*
 * A selector decides which positions of a layer's KV are kept. One file each; the schedules know none of them.
 *
 * Source: spec, prefill, "Selectors"; SnapKV, PyramidKV, AdaKV, ChunkKV, KeyDiff.
 */
#ifndef TW_ENGINE_PREFILL_SELECTOR_H
#define TW_ENGINE_PREFILL_SELECTOR_H

#include "base/options.h"
#include "engine/backend/backend.h"

/* What a selector may know and use. */
struct tw_selection_context {
    const struct tw_backend_ops *ops;
    struct tw_backend *backend;
    struct tw_accountant *accountant;
    size_t n_layers, n_heads, n_kv_heads, head_dim;
    size_t window; /* W */
    size_t budget; /* K of the average layer, window included; 0: full */
    size_t block;  /* keys a block of the streaming passes */
    uint64_t seed;
};

/* The kept rows of each KV head, ascending; accounted as COMPRESSION. */
struct tw_kept {
    size_t n_kv_heads;
    size_t *n_rows; /* [n_kv_heads] */
    int32_t **row;  /* [n_kv_heads][n_rows[g]] */
    struct tw_buffer data;
};

struct tw_selector {
    const char *name, *summary, *source;
    const struct tw_option *options; /* NULL: none */
    size_t options_size;
    bool windowed;          /* the last W positions are always kept */
    bool needs_observation; /* scores come from the observation queries */
    /*
     * The budget of layer l for a prompt of n_rows positions (mean over heads, window included), for reports and for
     * creating caches of the right size. n_rows or more: everything is kept. Fails when the budget cannot be met (K <
     * W).
     */
    tw_status (*layer_budget)(size_t *budget, const struct tw_selection_context *context, const void *options, size_t l,
                              size_t n_rows, struct tw_error *err);
    /*
     * Chooses among the rows of kv (of head g: kv->length[g]). The observation has its queries, not yet its
     * normalisers. Fills `kept`, whose memory it allocates from the accountant; on failure kept is empty.
     */
    tw_status (*select)(struct tw_kept *kept, const struct tw_selection_context *context, const void *options, size_t l,
                        const struct tw_kv *kv, struct tw_observation *observation, struct tw_error *err);
};

void tw_kept_release(struct tw_kept *kept, struct tw_accountant *accountant);

extern const struct tw_selector *const tw_selector_table[]; /* ends with NULL */
tw_status tw_selector_find(const struct tw_selector **selector, struct tw_view name, struct tw_error *err);

#endif
