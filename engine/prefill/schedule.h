/*
 * A schedule: in which order a prompt goes through layers and chunks, and when what is evicted. One file each, over the
 * backend's table; every pair shares weights, operators, selector and budget (spec: prefill, "Schedules to compare").
 */
#ifndef TW_ENGINE_PREFILL_SCHEDULE_H
#define TW_ENGINE_PREFILL_SCHEDULE_H

#include "base/progress.h"
#include "engine/prefill/selector.h"

/* Who looks on. Each function may be NULL. */
struct tw_watch {
    void *context;
    /*
     * Hidden states of n prompt positions from first_position on lie in the bridge from first_row on: index 0 after
     * embedding, l + 1 after layer l. Layer-major schedules go through an index chunk by chunk, the others through a
     * chunk index by index.
     */
    tw_status (*hidden)(void *context, size_t index, const struct tw_bridge *bridge, size_t first_row,
                        size_t first_position, size_t n, struct tw_error *err);
    /*
     * The prompt's last row has gone through layer l, whose KV is still as the last query saw it. `kept` is what will
     * be left of it, NULL when nothing is dropped. The observation holds the queries at the prompt's end: the last W
     * in layer-major schedules, otherwise those of them that are in the last chunk.
     */
    tw_status (*layer_end)(void *context, size_t l, const struct tw_kv *kv, struct tw_observation *observation,
                           const struct tw_kept *kept, struct tw_error *err);
};

/* One prefill: what goes in, and what comes out. */
struct tw_prefill {
    const struct tw_backend_ops *ops;
    struct tw_backend *backend;
    struct tw_accountant *accountant;
    const struct tw_model *model;
    const struct tw_selector_choice *selector;
    struct tw_selection_context selection; /* prompt_length is n_tokens */
    const int32_t *tokens;                 /* [n_tokens], all < n_vocab */
    size_t n_tokens;                       /* at least 1 */
    size_t chunk;                          /* C, at least 1 */
    size_t reserve;                        /* rows that decoding will append: room for them in every cache */
    const struct tw_watch *watch;          /* may be NULL */
    struct tw_progress *progress;          /* may be NULL */

    /* Out. Owned by the caller once run returns, also after a failure: release what is held. */
    struct tw_kv *cache;      /* [n_layers] the caller's array, all empty before */
    struct tw_bridge last;    /* one row: the last position after the last layer */
    double layer_end_seconds; /* spent on scores, selection and gathering */

    /* Private to the schedules. */
    struct tw_bridge bridge;
    struct tw_kv active;
    struct tw_observation observation;
    size_t rows; /* of a full chunk */
    size_t done; /* rows times layers, for the progress */
};

struct tw_schedule {
    const char *name, *summary, *source;
    const struct tw_option *options; /* NULL: none */
    size_t options_size;
    bool evicts;       /* takes a budget; the others keep everything */
    bool whole_prompt; /* one chunk: takes no --chunk */
    bool layer_major;  /* runs a layer over the whole prompt before the next: the last W queries are seen together */
    /* The backend has to be opened with temporaries of the whole chunk (TW: backend options, whole_rows); NULL: no. */
    bool (*whole_rows)(const void *options);
    /*
     * Fills cache and last. Polls tw_stop_requested once a chunk and layer: TW_E_INTERRUPTED. Leaves nothing but cache
     * and last allocated, whatever happens.
     */
    tw_status (*run)(struct tw_prefill *prefill, const void *options, struct tw_error *err);
};

extern const struct tw_schedule *const tw_schedule_table[]; /* ends with NULL */

/* A schedule with its options, from "postprefill:rows=block". `specification` must outlive it. */
struct tw_schedule_choice {
    const struct tw_schedule *schedule;
    void *options; /* owned; NULL when it has none */
};
tw_status tw_schedule_choose(struct tw_schedule_choice *choice, const char *specification, struct tw_error *err);
void tw_schedule_choice_release(struct tw_schedule_choice *choice); /* copes with {0} */
void tw_schedule_choice_describe(struct tw_text *text, const struct tw_schedule_choice *choice);

/* What schedules are made of: the two orders. Private to prefill/. */

/* Layer after layer, each over the prompt in chunks of `chunk` rows; with `evict`, compressed when it is done. */
tw_status tw_prefill_layer_major(struct tw_prefill *prefill, size_t chunk, bool evict, struct tw_error *err);
/* Chunk after chunk, each through all layers; with `evict`, every layer is trimmed to its budget after every chunk. */
tw_status tw_prefill_chunk_major(struct tw_prefill *prefill, size_t chunk, bool evict, struct tw_error *err);

#endif
