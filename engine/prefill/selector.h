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
    size_t window;        /* W */
    size_t budget;        /* K of the average layer, window included; 0: full */
    size_t block;         /* keys a block of the streaming passes, at least 1 */
    size_t chunk;         /* C of the prefill, for what works chunk after chunk (keydiff:online=1) */
    size_t prompt_length; /* S: what layer budgets are made for */
    uint64_t seed;
    bool ranks; /* the backend ranks scores itself (its image says so): they do not come to the host */
};

/* The kept rows of each KV head, ascending; accounted as COMPRESSION, in host memory. Zero-initialised it is empty. */
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
    bool windowed;          /* the last W positions are always kept; needs an observation that holds them */
    bool needs_observation; /* scores come from the observation queries */
    bool (*by_chunk)(const void *options); /* whether the choice depends on the chunk; NULL: no */
    /*
     * The budget of layer l for a prompt of context->prompt_length positions: mean over heads, window included, at most
     * the prompt. Fails with TW_E_OPTION when it cannot be met (K < W) or an option is wrong.
     */
    tw_status (*layer_budget)(size_t *budget, const struct tw_selection_context *context, const void *options, size_t l,
                              struct tw_error *err);
    /* The most rows that one head of layer l can keep; NULL: layer_budget. */
    tw_status (*head_budget)(size_t *budget, const struct tw_selection_context *context, const void *options, size_t l,
                             struct tw_error *err);
    /*
     * Chooses among the rows of kv (of head g: kv->length[g]). The observation has its queries, not yet its
     * normalisers; its last row is kv's last. Where kv holds no more than the layer's budget everything is kept. Fills
     * `kept`, whose memory it allocates from the accountant; on failure kept is empty.
     */
    tw_status (*select)(struct tw_kept *kept, const struct tw_selection_context *context, const void *options, size_t l,
                        const struct tw_kv *kv, struct tw_observation *observation, struct tw_error *err);
};

void tw_kept_release(struct tw_kept *kept, struct tw_accountant *accountant); /* copes with {0} */
/* Room for n_rows[g] rows of each head, to be filled. On failure kept is empty. */
tw_status tw_kept_allocate(struct tw_kept *kept, struct tw_accountant *accountant, size_t n_kv_heads,
                           const size_t *n_rows, struct tw_error *err);
/* Every row of kv. */
tw_status tw_kept_all(struct tw_kept *kept, struct tw_accountant *accountant, const struct tw_kv *kv,
                      struct tw_error *err);
/* The uniform budget: K, at most the prompt; refuses K < W < prompt where `windowed`. */
tw_status tw_uniform_budget(size_t *budget, const struct tw_selection_context *context, bool windowed, const char *name,
                            struct tw_error *err);
tw_status tw_selector_head_budget(size_t *budget, const struct tw_selector *selector,
                                  const struct tw_selection_context *context, const void *options, size_t l,
                                  struct tw_error *err);

extern const struct tw_selector *const tw_selector_table[]; /* ends with NULL */

/* A selector with its options, from "snapkv:kernel=7:pool=max". `specification` must outlive it. */
struct tw_selector_choice {
    const struct tw_selector *selector;
    void *options; /* owned; NULL when it has none */
};
/* Fails with TW_E_OPTION and lists the names, or the options. */
tw_status tw_selector_choose(struct tw_selector_choice *choice, const char *specification, struct tw_error *err);
void tw_selector_choice_release(struct tw_selector_choice *choice); /* copes with {0} */
/* Appends the name with every option that is not at its default. */
void tw_selector_choice_describe(struct tw_text *text, const struct tw_selector_choice *choice);

#endif
