/*
 * The cpu backend's inside: what its files share. Its contract is backend.h.
 *
 * Prefill runs in blocks of shape.block_rows rows on the absolute position grid: whatever the chunk, a row stands at
 * the same place of the same product, so that hidden states do not depend on how the prompt was cut; a block that the
 * prompt or the chunk fills in part is computed whole, and what stands in its other rows is never used.
 *
 * Private to backend/cpu/.
 */
#ifndef TW_ENGINE_BACKEND_CPU_CPU_H
#define TW_ENGINE_BACKEND_CPU_CPU_H

#include "base/team.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/pack.h"
#include "engine/backend/cpu/product.h"
#include "engine/backend/cpu/sizes.h"
#include "engine/backend/image.h"

enum tw_cpu_matrix { TW_CPU_QKV, TW_CPU_OUTPUT, TW_CPU_GATE_UP, TW_CPU_DOWN, TW_CPU_N_MATRICES };

/* Rotary angles of one set of divisors: cosines and sines of positions 0 .. TW_CPU_MOST_BLOCK_ROWS - 1, float64. */
struct tw_cpu_rope {
    const double *divisor; /* [head_dim / 2] */
    const double *table;   /* [TW_CPU_MOST_BLOCK_ROWS][2][head_dim / 2] */
};

/* A vector that rows of matrices are multiplied with: n numbers, padded with zeros to a multiple of 32. */
struct tw_cpu_input {
    const float *x;
    size_t n;
    void *fixed;         /* tw_cpu_fixed_bytes(n) of space, 64-byte aligned */
    tw_cpu_fix_fn *made; /* what wrote it last; NULL at first */
};

/* Decoding: a thread's form of the vector of that number. */
struct tw_cpu_thread_input {
    _Alignas(64) struct tw_cpu_input input;
    uint64_t vector;
};

struct tw_backend {
    const struct tw_model *model;
    struct tw_backend_options options;
    struct tw_accountant *accountant;
    enum tw_cpu_level level;
    struct tw_cpu_shape shape;
    const struct tw_cpu_kernels *kernels;       /* of the activations */
    const struct tw_cpu_kernels *float_kernels; /* of decoding's float32 state */
    const struct tw_cpu_common *common;
    float scale; /* attention_scale * log2(e): softmaxes run in powers of two */

    struct tw_cpu_products *products;
    struct tw_cpu_product *product[TW_CPU_N_MATRICES];       /* output and down add to the hidden states */
    struct tw_cpu_product *plain_product[TW_CPU_N_MATRICES]; /* output and down before a post-norm; NULL without */
    bool bias;                                               /* of q, k, v, in every layer's product if in any */

    struct tw_buffers open, chunk, layer, decode_row, decode_log;
    struct tw_cpu_scratch scratch;
    struct tw_cpu_decode_layout decode;
    struct tw_cpu_chunk_layout chunk_layout;
    struct tw_cpu_row_layout row_layout; /* of decode_row, when it is held */
    size_t decode_top_k;                 /* of decode_log, when it is held */
    struct tw_cpu_rope *rope;            /* [shape.n_rope_tables] */
    size_t *rope_of_layer;               /* [n_layers] */
    size_t chunk_position;               /* of the chunk that is being run: its first row's */
    size_t rotated_position;             /* decoding: the position of the rotation tables, SIZE_MAX: none */
    struct tw_team *team;
    struct tw_cpu_thread_input *inputs; /* [n_threads] decoding: of the vector that rows are multiplied with now, */
    const float *vector;                /* [vector_length] */
    size_t vector_length;
    uint64_t n_vectors; /* so far: its number */
};

/* Buffers of the moments, in the order of the image's lists. */
enum { TW_CPU_OPEN_WEIGHTS, TW_CPU_OPEN_SCRATCH, TW_CPU_OPEN_STATE, TW_CPU_OPEN_ROPE, TW_CPU_OPEN_BIAS, TW_CPU_N_OPEN };

extern const struct tw_backend_image tw_cpu_image;

/* Whether q, k and v have biases in any layer. */
bool tw_cpu_has_bias(const struct tw_model *model);
/* The products of a layer; behind a norm of their outputs, output and down are written instead of added. */
void tw_cpu_product_shapes(struct tw_cpu_product_shape shapes[TW_CPU_N_MATRICES], const struct tw_cpu_shape *shape,
                           bool bias);
/* The pieces of a thread's scratch at `level`. */
void tw_cpu_scratch_of_model(struct tw_cpu_scratch *scratch, const struct tw_model *model,
                             const struct tw_cpu_shape *shape, enum tw_cpu_level level);

/* ---- small things that all need ---- */

static inline size_t tw_cpu_group(const struct tw_backend *b) { return b->shape.n_heads / b->shape.n_kv_heads; }
static inline char *tw_cpu_scratch_of(const struct tw_backend *b, size_t thread) {
    return (char *)b->open.buffer[TW_CPU_OPEN_SCRATCH].data + thread * b->scratch.bytes;
}
static inline char *tw_cpu_bridge_row(const struct tw_backend *b, const struct tw_bridge *bridge, size_t row) {
    return (char *)bridge->data.data + row * b->shape.n_embd * b->shape.element_bytes;
}
static inline char *tw_cpu_key_of(const struct tw_backend *b, const struct tw_kv *kv, size_t g) {
    return (char *)kv->key.data + kv->offset[g] * kv->head_dim * b->shape.element_bytes;
}
static inline char *tw_cpu_value_of(const struct tw_backend *b, const struct tw_kv *kv, size_t g) {
    return (char *)kv->value.data + kv->offset[g] * tw_cpu_value_width(kv->head_dim) * b->shape.element_bytes;
}
/* First row of head g whose position is >= position; rows are in ascending order of position. */
size_t tw_cpu_row_at(const struct tw_kv *kv, size_t g, size_t position);
/* Rows that a query at `position` may see among rows [0, n_rows) of head g: [*first, *end), empty if first >= end. */
void tw_cpu_visible(size_t *first, size_t *end, const struct tw_kv *kv, size_t g, size_t n_rows, size_t position,
                    size_t sliding_window);
/* bf16 values lie in pairs of rows: clears the partner of the last row, where that is the first of its pair. */
void tw_cpu_seal(const struct tw_backend *b, struct tw_kv *kv);
/* rotation[2][head_dim] (kernels.h) of n positions from `position`, which lie in one row block. */
void tw_cpu_rotation(const struct tw_backend *b, float *rotation, size_t rope, size_t position, size_t n);
/* Row `row` of a matrix as float32. */
void tw_cpu_expand_row(const struct tw_backend *b, float *out, const struct tw_matrix *matrix, size_t row);
/* Puts the input into the form that rows of this matrix want, unless it has it; before the first row of each matrix. */
void tw_cpu_input_for(const struct tw_backend *b, struct tw_cpu_input *input, const struct tw_matrix *matrix);
/* out[i]: row first + i of a matrix, exactly as stored, times the input, of n rows. */
void tw_cpu_rows(const struct tw_backend *b, float *out, const struct tw_matrix *matrix, size_t first, size_t n,
                 const struct tw_cpu_input *input);

/* The operations; contracts in backend.h. */
tw_status tw_cpu_embed(struct tw_backend *, struct tw_bridge *, size_t, const int32_t *, size_t, struct tw_error *);
tw_status tw_cpu_layer_begin(struct tw_backend *, size_t, struct tw_error *);
void tw_cpu_layer_end(struct tw_backend *, size_t);
tw_status tw_cpu_append(struct tw_backend *, size_t, const struct tw_bridge *, size_t, size_t, size_t, struct tw_kv *,
                        struct tw_observation *, struct tw_error *);
tw_status tw_cpu_attend(struct tw_backend *, size_t, const struct tw_kv *, size_t, size_t, struct tw_error *);
tw_status tw_cpu_finish(struct tw_backend *, size_t, struct tw_bridge *, size_t, size_t, struct tw_error *);
tw_status tw_cpu_observe(struct tw_backend *, size_t, const struct tw_kv *, struct tw_observation *, size_t,
                         struct tw_error *);
tw_status tw_cpu_score(struct tw_backend *, size_t, const struct tw_kv *, const struct tw_observation *,
                       enum tw_score_kind, const double *, size_t, size_t, float *, struct tw_error *);
tw_status tw_cpu_key_mean(struct tw_backend *, const struct tw_kv *, double *, struct tw_error *);
tw_status tw_cpu_gather(struct tw_backend *, struct tw_kv *, const struct tw_kv *, const int32_t *const *,
                        const size_t *, struct tw_error *);
tw_status tw_cpu_log_row(struct tw_backend *, size_t, const struct tw_kv *, const struct tw_observation *,
                         struct tw_attention_log *, struct tw_error *);
tw_status tw_cpu_logits(struct tw_backend *, const struct tw_bridge *, size_t, size_t, float *, struct tw_error *);
tw_status tw_cpu_decode_begin(struct tw_backend *, int32_t, struct tw_error *);
tw_status tw_cpu_decode_layer(struct tw_backend *, size_t, struct tw_kv *, size_t, struct tw_attention_log *,
                              struct tw_error *);
tw_status tw_cpu_decode_logits(struct tw_backend *, float *, struct tw_error *);
tw_status tw_cpu_read_hidden(struct tw_backend *, const struct tw_bridge *, size_t, size_t, bool, float *,
                             struct tw_error *);
tw_status tw_cpu_read_decode_hidden(struct tw_backend *, bool, float *, struct tw_error *);
tw_status tw_cpu_read_kv(struct tw_backend *, const struct tw_kv *, bool, size_t, size_t, size_t, float *,
                         struct tw_error *);
tw_status tw_cpu_write_kv(struct tw_backend *, struct tw_kv *, const float *, const float *, size_t, struct tw_error *);
tw_status tw_cpu_write_observation(struct tw_backend *, struct tw_observation *, const float *, size_t, size_t,
                                   struct tw_error *);

#endif
