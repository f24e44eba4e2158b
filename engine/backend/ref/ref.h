/*
 * The reference backend's inside: plain float32 loops, one file an operation or a small group. It is the oracle of
 * every kernel: clear before quick. Sums run in the order of their index.
 *
 * Private to backend/ref/; its contract is backend.h.
 */
#ifndef TW_ENGINE_BACKEND_REF_REF_H
#define TW_ENGINE_BACKEND_REF_REF_H

#include "engine/backend/image.h"

/* Outputs of a product that stand side by side: a panel of a matrix is [n_columns][TW_REF_LANES]. */
#define TW_REF_LANES 16
/* Rows that go through norm, products and activation together, on the absolute grid of the chunk's rows. */
#define TW_REF_ROWS 64
/* Keys that share one rescaling in attention, on the absolute grid of the KV's rows. */
#define TW_REF_KEYS 64

enum tw_ref_matrix { REF_QUERY, REF_KEY, REF_VALUE, REF_OUTPUT, REF_GATE, REF_UP, REF_DOWN, REF_N_MATRICES };

/* Buffers of the moments, in the order of the image's lists. */
enum { REF_OPEN_WEIGHTS, REF_OPEN_PANELS, REF_OPEN_STATE, REF_N_OPEN };
enum {
    REF_CHUNK_QUERY,
    REF_CHUNK_ATTENTION,
    REF_CHUNK_NORMED,
    REF_CHUNK_KV,
    REF_CHUNK_GATE,
    REF_CHUNK_UP,
    REF_N_CHUNK
};

struct tw_backend {
    const struct tw_model *model;
    struct tw_backend_options options;
    struct tw_accountant *accountant;
    struct tw_buffers open, chunk, layer;
    size_t block_rows; /* rows of the scratch in `chunk` */
    /* Decoding's state. */
    float *hidden, *normed; /* [n_embd], [max(n_embd, n_heads * head_dim)] */
    float *query;           /* [n_heads * head_dim] */
    float *attention;       /* [n_heads * head_dim] */
    float *kv_rows;         /* [n_kv_heads * head_dim] */
    float *gate, *up;       /* [n_mlp] */
};

extern const struct tw_backend_image tw_ref_image;

/* The matrix `which` of a layer. */
const struct tw_matrix *tw_ref_matrix_of(const struct tw_layer_weights *layer, enum tw_ref_matrix which);
/* Floats of a whole matrix in panels, and of a thread's workspace for one panel. */
size_t tw_ref_panels_floats(const struct tw_matrix *matrix);
size_t tw_ref_panel_workspace_floats(const struct tw_model *model);

/* panels [ceil(n_rows / LANES)][n_columns][LANES]: the matrix as float32, missing rows zero. */
void tw_ref_unpack(const struct tw_backend *backend, float *panels, const struct tw_matrix *matrix);
/*
 * y[i * y_stride + o] = sum over c of x[i * x_stride + c] * W[o][c], in the order of c, for n rows i. `panels` is the
 * matrix unpacked, or NULL: then every panel is unpacked as it is needed.
 */
void tw_ref_product(const struct tw_backend *backend, float *y, size_t y_stride, const float *x, size_t x_stride,
                    size_t n, const struct tw_matrix *matrix, const float *panels);

/* y = x / sqrt(mean(x^2) + epsilon) * weight over n numbers; y may be x. */
void tw_ref_rms_norm(float *y, const float *x, const float *weight, size_t n, double epsilon);
/* Rotates one head of one row in place (model.h: enum tw_rope_pairs). */
void tw_ref_rotate(float *head, size_t head_dim, const double *divisor, enum tw_rope_pairs pairs, size_t position);

/*
 * The parts of a layer that prefill and decoding share. `panels` [REF_N_MATRICES]: the unpacked layer, or all NULL.
 *
 * Projections of n rows of `hidden` [n][n_embd] at positions first_position and on: query [n][n_heads * head_dim],
 * rotated; keys and values are written behind the rows of kv (whose lengths the caller raises). normed and
 * kv_rows [n][n_kv_heads * head_dim] are workspace.
 */
void tw_ref_project(const struct tw_backend *backend, size_t l, const float *hidden, size_t n, size_t first_position,
                    const float *const *panels, float *query, struct tw_kv *kv, float *normed, float *kv_rows);
/*
 * The second half: hidden += output projection of attention [n][n_heads * head_dim]; hidden += MLP(hidden). normed,
 * gate and up are workspace.
 */
void tw_ref_finish_rows(const struct tw_backend *backend, size_t l, float *hidden, const float *attention, size_t n,
                        const float *const *panels, float *normed, float *gate, float *up);

/* Row r of head g. */
static inline float *tw_ref_key(const struct tw_kv *kv, size_t g, size_t r) {
    return (float *)kv->key.data + (kv->offset[g] + r) * kv->head_dim;
}
static inline float *tw_ref_value(const struct tw_kv *kv, size_t g, size_t r) {
    return (float *)kv->value.data + (kv->offset[g] + r) * kv->head_dim;
}

/*
 * logit[i] = scale * (q . k) of rows [first, first + n) of head g, -INFINITY where a query at `position` may not look:
 * beyond it, or too far back for a sliding window (0: none).
 */
void tw_ref_logits_of(float *logit, const float *query, const struct tw_kv *kv, size_t g, size_t first, size_t n,
                      size_t position, size_t sliding_window, float scale);
/* Attention of one query head over the first n_rows rows of head g: out [head_dim]. */
void tw_ref_attend_tiled(float *out, const float *query, const struct tw_kv *kv, size_t g, size_t n_rows,
                         size_t position, size_t sliding_window, float scale);
/* Fills the log of the row of `query` (head h at query + h * stride) at `position` over all rows of kv. */
void tw_ref_log_attention(const struct tw_backend *backend, size_t l, const struct tw_kv *kv, const float *query,
                          size_t stride, size_t position, struct tw_attention_log *log);

/* The operations; contracts in backend.h. */
tw_status tw_ref_embed(struct tw_backend *, struct tw_bridge *, size_t, const int32_t *, size_t, struct tw_error *);
tw_status tw_ref_append(struct tw_backend *, size_t, const struct tw_bridge *, size_t, size_t, size_t, struct tw_kv *,
                        struct tw_observation *, struct tw_error *);
tw_status tw_ref_attend(struct tw_backend *, size_t, const struct tw_kv *, size_t, size_t, struct tw_error *);
tw_status tw_ref_finish(struct tw_backend *, size_t, struct tw_bridge *, size_t, size_t, struct tw_error *);
tw_status tw_ref_observe(struct tw_backend *, size_t, const struct tw_kv *, struct tw_observation *, size_t,
                         struct tw_error *);
tw_status tw_ref_score(struct tw_backend *, size_t, const struct tw_kv *, const struct tw_observation *,
                       enum tw_score_kind, const double *, size_t, size_t, float *, struct tw_error *);
tw_status tw_ref_key_mean(struct tw_backend *, const struct tw_kv *, double *, struct tw_error *);
tw_status tw_ref_gather(struct tw_backend *, struct tw_kv *, const struct tw_kv *, const int32_t *const *,
                        const size_t *, struct tw_error *);
tw_status tw_ref_log_row(struct tw_backend *, size_t, const struct tw_kv *, const struct tw_observation *,
                         struct tw_attention_log *, struct tw_error *);
tw_status tw_ref_logits(struct tw_backend *, const struct tw_bridge *, size_t, size_t, float *, struct tw_error *);
tw_status tw_ref_decode_begin(struct tw_backend *, int32_t, struct tw_error *);
tw_status tw_ref_decode_layer(struct tw_backend *, size_t, struct tw_kv *, size_t, struct tw_attention_log *,
                              struct tw_error *);
tw_status tw_ref_decode_logits(struct tw_backend *, float *, struct tw_error *);
tw_status tw_ref_read_hidden(struct tw_backend *, const struct tw_bridge *, size_t, size_t, bool, float *,
                             struct tw_error *);
tw_status tw_ref_read_decode_hidden(struct tw_backend *, bool, float *, struct tw_error *);
tw_status tw_ref_read_kv(struct tw_backend *, const struct tw_kv *, bool, size_t, size_t, size_t, float *,
                         struct tw_error *);
tw_status tw_ref_write_kv(struct tw_backend *, struct tw_kv *, const float *, const float *, size_t, struct tw_error *);
tw_status tw_ref_write_observation(struct tw_backend *, struct tw_observation *, const float *, size_t, size_t,
                                   struct tw_error *);

#endif
