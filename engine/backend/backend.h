/*
 * A backend: a table of coarse operations, each with shapes, each tested against `ref`. Schedules, selectors, decoding
 * and the tracer are written once, over this table. Operations are coarse because fusion inside one is what gives speed
 * and small temporaries.
 *
 * Notation: n_embd D, n_heads Hq, n_kv_heads Hkv, head_dim d, window W. All activations live in the backend's memory
 * and precision; only what is said to be host memory crosses.
 *
 * Determinism (design: "Row blocks"): what an operation writes for a row depends on that row's inputs and on absolute
 * positions only; never on how the prompt was cut into chunks, on the block size of a streaming pass, or on the number
 * of threads.
 */
#ifndef TW_ENGINE_BACKEND_BACKEND_H
#define TW_ENGINE_BACKEND_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/team.h"
#include "engine/accountant.h"
#include "engine/cache/kv.h"
#include "engine/model/model.h"

enum tw_dtype { TW_DTYPE_AUTO, TW_DTYPE_BF16, TW_DTYPE_F32 }; /* order of --dtype's choices */
enum tw_attention_kind { TW_ATTENTION_TILED, TW_ATTENTION_EAGER };
enum tw_weights_kind { TW_WEIGHTS_MAPPED, TW_WEIGHTS_STREAM };
enum tw_allocator_kind { TW_ALLOCATOR_NATIVE, TW_ALLOCATOR_ASYNC };

struct tw_backend_image; /* its buffers' sizes in plain C: see backend/image.h */

struct tw_backend_options {
    enum tw_dtype dtype; /* AUTO: bf16 where the processor or device has it and the backend can, else f32 */
    enum tw_attention_kind attention;
    enum tw_weights_kind weights;
    enum tw_allocator_kind allocator; /* cuda */
    size_t n_threads;                 /* 0: as many as there are cores that this process may use */
    size_t window;                    /* W: rows of observation queries to keep, at least 1 */
    bool whole_rows;                  /* temporaries of the whole chunk instead of row blocks (postprefill:rows=all) */
    const struct tw_backend_image *image; /* dry: whose buffers; NULL for the others */
};

/* Hidden states between layers: [n_rows][n_embd], the backend's precision. */
struct tw_bridge {
    size_t n_rows;
    struct tw_buffer data;
};

/*
 * What the last W prompt queries leave behind for the selector and for step 0's log: their rotated queries, and, after
 * the first pass, the softmax normalisers.
 */
struct tw_observation {
    size_t n_queries;         /* rows held, <= W */
    size_t first_position;    /* absolute position of row 0; rows are consecutive */
    struct tw_buffer query;   /* [Hq][W][d], the backend's precision */
    struct tw_buffer maximum; /* [Hq][W] float32: running maximum of the scaled logits */
    struct tw_buffer sum;     /* [Hq][W] float32: running normaliser */
};

/* The kinds of score that a key can get, higher being better kept. */
enum tw_score_kind {
    /*
     * Mean over the observation queries of the softmax weight, mean over the group's query heads (not pooled). Needs
     * the first pass. A query row's weight is 0 for keys beyond it.
     */
    TW_SCORE_ATTENTION,
    TW_SCORE_KEYDIFF,  /* minus the cosine of the key to the mean of the normalised keys; needs key_mean */
    TW_SCORE_KEY_NORM, /* minus the Euclidean length of the key */
};

/* Of a row's neighbours along the sequence; kernel is odd, 1: none. */
struct tw_pooling {
    size_t kernel;
    bool maximum; /* of the neighbours that are there; otherwise their sum over the kernel, absent ones being 0 */
};

struct tw_scored {
    float score;
    int32_t row;  /* or the number of a chunk of rows */
    int32_t head; /* 0 where there is one list a head */
};

/* What `rank` is to find. Of equal scores the lower row is better, then the lower head; no number is the least score.
 */
struct tw_ranking {
    enum tw_score_kind kind;
    const double *key_mean; /* TW_SCORE_KEYDIFF */
    struct tw_pooling pooling;
    const size_t *n_scored; /* [Hkv] rows [0, n_scored[g]) of head g are scored */
    size_t block;           /* keys at a time: bounds memory, changes nothing */
    const size_t *n_best;   /* [Hkv] best rows of each head, at most n_scored */
    size_t n_shared;        /* and then the best over all heads of what is left; there are so many */
    /*
     * 0: rows. Otherwise chunks of so many rows stand in for them, scored by the mean over their rows of the sum over
     * heads (the last may be short): n_best[0] chunks are found, n_shared and the others are 0, n_scored all the same.
     */
    size_t chunk;
};

/*
 * What to log of one attention row, and where to put it. Host memory throughout. Of equal weights the lower position
 * first; rows shorter than top_k are padded with position -1, weight 0.
 */
struct tw_attention_log {
    size_t top_k;
    int32_t *position; /* [Hq][top_k] absolute positions by descending weight */
    float *weight;     /* [Hq][top_k] softmax weights */
    /* Wanted when needle_end > needle_begin (spec: churn, "Logged scores"). */
    size_t needle_begin, needle_end;  /* absolute positions, end exclusive */
    size_t sink_tokens, local_window; /* positions < sink and the last local ones are not in the rest */
    float *needle_mass;               /* [Hq] weight on the needle */
    float *rest_mass;                 /* [Hq] weight on what is neither sink nor local, or is needle */
    int32_t *argmax;                  /* [Hq] absolute position of the largest weight, lowest of equals */
};

struct tw_backend_image; /* its buffers' sizes in plain C: see backend/image.h */
struct tw_backend;       /* an open backend: model, precision, threads, scratch; each implementation has its own */

/*
 * All functions that can fail return tw_status; on failure what they would have created is empty. An open backend is
 * used by one thread at a time and runs its own.
 */
struct tw_backend_ops {
    const char *name;    /* "ref" */
    const char *summary; /* one phrase for `list` */
    const struct tw_backend_image *image;

    /*
     * Opens for `model`, which must outlive it. Allocates the scratch of operations through the accountant (which has
     * been initialised; the backend sets its memory source first, while nothing is held) and keeps a pointer to it.
     * Books mapped weights with tw_accountant_note_mapped.
     */
    tw_status (*open)(struct tw_backend **backend, const struct tw_model *model,
                      const struct tw_backend_options *options, struct tw_accountant *accountant, struct tw_error *err);
    void (*close)(struct tw_backend *backend);
    /* The precision chosen, and one line for `info` and logs: "bf16, AVX-512-BF16 kernels, oneDNN 2.6, 2 threads". */
    enum tw_dtype (*dtype)(const struct tw_backend *backend);
    void (*describe)(const struct tw_backend *backend, struct tw_text *text);
    /* Threads that are the caller's between operations. NULL: the backend has none. */
    struct tw_team *(*team)(const struct tw_backend *backend);

    /* ---- memory ---- */

    /*
     * The activations that chunks of up to `max_rows` rows need (queries, attention output): [max_rows], never S.
     * Called once before the first chunk; a second call replaces the first.
     */
    tw_status (*chunk_create)(struct tw_backend *backend, size_t max_rows, struct tw_error *err);
    void (*chunk_release)(struct tw_backend *backend);

    tw_status (*bridge_create)(struct tw_backend *backend, struct tw_bridge *bridge, size_t n_rows,
                               struct tw_error *err);
    void (*bridge_release)(struct tw_backend *backend, struct tw_bridge *bridge);
    /* Copies rows [from_row, from_row + n) of one bridge to rows [to_row, to_row + n) of another: so that the last
     * row can outlive the prompt's bridge. */
    tw_status (*bridge_copy)(struct tw_backend *backend, struct tw_bridge *to, size_t to_row,
                             const struct tw_bridge *from, size_t from_row, size_t n, struct tw_error *err);

    /*
     * An empty KV with room for `capacity[g]` rows of head g (with_positions: and a position for each row).
     * `category` is ACTIVE_KV, COMPACT_CACHE or COMPRESSION. Sizes from the backend's image, then tw_kv_init.
     */
    tw_status (*kv_create)(struct tw_backend *backend, struct tw_kv *kv, const size_t *capacity, bool with_positions,
                           enum tw_category category, const char *what, struct tw_error *err);
    void (*kv_release)(struct tw_backend *backend, struct tw_kv *kv); /* copes with {0} */

    tw_status (*observation_create)(struct tw_backend *backend, struct tw_observation *observation,
                                    struct tw_error *err);
    void (*observation_release)(struct tw_backend *backend, struct tw_observation *observation);

    /* ---- prefill, one layer over one chunk: embed once, then append, attend, finish for each layer and chunk ---- */

    /* Rows [first_row, first_row + n) of the bridge become the embeddings of tokens[0..n), all < n_vocab. */
    tw_status (*embed)(struct tw_backend *backend, struct tw_bridge *bridge, size_t first_row, const int32_t *tokens,
                       size_t n, struct tw_error *err);

    /*
     * Makes the weights of layer l ready for prefill (unpacks them, or streams them to the device and prefetches those
     * of l + 1). Until the end of the layer only layer l may be run.
     */
    tw_status (*layer_begin)(struct tw_backend *backend, size_t l, struct tw_error *err);
    void (*layer_end)(struct tw_backend *backend, size_t l);

    /*
     * Norm, q, k, v, biases, query and key norms, rotation at positions first_position..+n, appending k and v behind
     * each head's rows; the queries stay in the chunk's activations. Rows come from the bridge at first_row. The query
     * of a position p >= observation->first_position goes to the observation as well, as row p - first_position, and
     * n_queries grows with it (NULL: none do). The caller sees to it that there are at most W such positions.
     */
    tw_status (*append)(struct tw_backend *backend, size_t l, const struct tw_bridge *bridge, size_t first_row,
                        size_t n, size_t first_position, struct tw_kv *kv, struct tw_observation *observation,
                        struct tw_error *err);

    /*
     * The chunk's n queries, the first at first_position, attend the rows of kv at and before their own: query i sees
     * all rows of head g but the last n - 1 - i. Sliding-window layers drop rows whose position is too far back. Writes
     * the chunk's attention output.
     */
    tw_status (*attend)(struct tw_backend *backend, size_t l, const struct tw_kv *kv, size_t n, size_t first_position,
                        struct tw_error *err);

    /* Output projection, residual, norm, gated MLP, residual, back into the bridge's rows [first_row, first_row + n).
     */
    tw_status (*finish)(struct tw_backend *backend, size_t l, struct tw_bridge *bridge, size_t first_row, size_t n,
                        struct tw_error *err);

    /* ---- the end of a layer ---- */

    /*
     * First streaming pass (spec: prefill, "Two-pass streaming compression"): maximum and sum of every observation
     * query over all rows of kv that it may see, in blocks of at most `block` keys.
     */
    tw_status (*observe)(struct tw_backend *backend, size_t l, const struct tw_kv *kv,
                         struct tw_observation *observation, size_t block, struct tw_error *err);

    /*
     * Scores of rows [first, first + n) of every KV head, n at most the block given to observe; rows beyond a head's
     * length get -INFINITY. `score` is host memory [Hkv][n]. TW_SCORE_KEYDIFF takes `key_mean` from the operation
     * below.
     */
    tw_status (*score)(struct tw_backend *backend, size_t l, const struct tw_kv *kv,
                       const struct tw_observation *observation, enum tw_score_kind kind, const double *key_mean,
                       size_t first, size_t n, float *score, struct tw_error *err);

    /*
     * The second pass without its scores: pools them and keeps the best where they are. best (host memory): the heads'
     * lists one after the other, then the shared one, each in any order. Only where the image says so (`ranks`); the
     * others are streamed from `score` (prefill/compress.c), with the same result.
     */
    tw_status (*rank)(struct tw_backend *backend, size_t l, const struct tw_kv *kv,
                      const struct tw_observation *observation, const struct tw_ranking *ranking,
                      struct tw_scored *best, struct tw_error *err);

    /* key_mean[Hkv][d], host memory: sum over a head's rows, in order, of key / max(|key|, tiny). (The scale does not
     * matter to a cosine.) */
    tw_status (*key_mean)(struct tw_backend *backend, const struct tw_kv *kv, double *key_mean, struct tw_error *err);

    /*
     * Copies rows kept[g][0..n_kept[g]) (ascending) of each head of `from` into the empty `to`, positions with them.
     * When `from` has no positions those of `to` are the row numbers. Where `to` has no positions either, kept must be
     * 0, 1, 2, ... (a cache that grows). `to` keeps its capacity.
     */
    tw_status (*gather)(struct tw_backend *backend, struct tw_kv *to, const struct tw_kv *from,
                        const int32_t *const *kept, const size_t *n_kept, struct tw_error *err);

    /* The attention row of the observation's last query over kv: step 0 of the trace. */
    tw_status (*log_row)(struct tw_backend *backend, size_t l, const struct tw_kv *kv,
                         const struct tw_observation *observation, struct tw_attention_log *log, struct tw_error *err);

    /* ---- after the last layer ---- */

    /* logits[n][n_vocab], host memory: final norm and output matrix of bridge rows [first_row, first_row + n). */
    tw_status (*logits)(struct tw_backend *backend, const struct tw_bridge *bridge, size_t first_row, size_t n,
                        float *logits, struct tw_error *err);

    /* ---- decoding, one token, straight from the weights as they are on disk; state is float32 ---- */

    tw_status (*decode_begin)(struct tw_backend *backend, int32_t token, struct tw_error *err);
    /*
     * One layer of the token at absolute `position`: appends its key and value to every head of kv, attends all rows.
     * `log` NULL: nothing is logged.
     */
    tw_status (*decode_layer)(struct tw_backend *backend, size_t l, struct tw_kv *kv, size_t position,
                              struct tw_attention_log *log, struct tw_error *err);
    tw_status (*decode_logits)(struct tw_backend *backend, float *logits,
                               struct tw_error *err); /* [n_vocab] host memory */

    /* ---- looking at what there is: for `logits --hidden`, fidelity, --log keys, and tests ---- */

    /* hidden[n][n_embd], host memory; with `normed`, after the final norm. */
    tw_status (*read_hidden)(struct tw_backend *backend, const struct tw_bridge *bridge, size_t first_row, size_t n,
                             bool normed, float *hidden, struct tw_error *err);
    tw_status (*read_decode_hidden)(struct tw_backend *backend, bool normed, float *hidden, struct tw_error *err);
    /* Rotated keys (or values) of rows [first, first + n) of head g: out[n][head_dim], host memory. */
    tw_status (*read_kv)(struct tw_backend *backend, const struct tw_kv *kv, bool values, size_t head, size_t first,
                         size_t n, float *out, struct tw_error *err);
    /* Fills an empty kv and an observation from host memory (selector goldens): key, value [Hkv][n][d], query
     * [Hq][n_queries][d]. */
    tw_status (*write_kv)(struct tw_backend *backend, struct tw_kv *kv, const float *key, const float *value, size_t n,
                          struct tw_error *err);
    tw_status (*write_observation)(struct tw_backend *backend, struct tw_observation *observation, const float *query,
                                   size_t n_queries, size_t first_position, struct tw_error *err);
};

/* All that are built in, in the order of `list`; ends with NULL. `cuda` is loaded, see backend/load.h. */
extern const struct tw_backend_ops *const tw_backend_table[];
/* Fails with TW_E_OPTION and lists the names. */
tw_status tw_backend_find(const struct tw_backend_ops **ops, const char *name, struct tw_error *err);

#endif
