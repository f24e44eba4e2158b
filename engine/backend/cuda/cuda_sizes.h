/*
 * The image of the CUDA backend (backend/image.h): all device buffers that it asks of the accountant, when, and how
 * many bytes. Plain C without CUDA, so that `plan` books exactly what a device would hold, and tests need none.
 *
 * Weights are booked as WEIGHTS when the device holds a copy of the file's bytes. Streamed (`--weights stream`), the
 * device holds the layer that runs and the one that is being fetched; the latter stays, now as the running one, when
 * the layer ends. Staging areas are pinned host memory and are not booked.
 */
#ifndef TW_ENGINE_BACKEND_CUDA_SIZES_H
#define TW_ENGINE_BACKEND_CUDA_SIZES_H

#include <stddef.h>

#include "engine/backend/image.h"

enum {
    /*
     * Rows of a matrix product. Products run in blocks of this many rows on the absolute position grid, short ones
     * padded, so that cuBLAS always sees the same shape and a row's result does not depend on the chunk.
     */
    TW_CUDA_ROW_BLOCK = 512,
    TW_CUDA_ALIGNMENT = 256,             /* bytes, of each matrix inside a buffer of weights */
    TW_CUDA_PRODUCT_WORKSPACE = 4 << 20, /* bytes handed to cuBLAS, which then allocates nothing itself */
    TW_CUDA_SPLITS = 64,                 /* ranges of keys that streaming passes and decoding run side by side */
    TW_CUDA_PIECE = 4096,                /* keys of one piece of scores or of a streamed attention row */
    TW_CUDA_MAX_TOP_K = 1024,            /* largest log */
    TW_CUDA_MAX_KV_HEADS = 128,
    TW_CUDA_MAX_HEAD_DIM = 256,
    TW_CUDA_MAX_GROUP_NUMBERS = 12288, /* decoding's queries of a KV head: floats in 48 KiB of shared memory */
    TW_CUDA_LOGITS_ROWS = 8,           /* rows that one pass over the output matrix serves */
    TW_CUDA_SLAB_BYTES = 64 << 20,     /* of the output matrix, when weights are streamed */
};

/* Places in the lists of the moments. */
enum { TW_CUDA_VECTORS, TW_CUDA_WEIGHTS, TW_CUDA_WORKSPACE, TW_CUDA_PARTIALS, TW_CUDA_STATE, TW_CUDA_N_OPEN };
enum {
    TW_CUDA_QUERY,    /* [rows][n_heads * head_dim]: queries, then the attention's output in their place */
    TW_CUDA_NORMED,   /* [block rows][n_embd] */
    TW_CUDA_GATE,     /* [block rows][n_mlp]; keys and values of a block before they are appended */
    TW_CUDA_UP,       /* [block rows][n_mlp] */
    TW_CUDA_ROTATION, /* [TW_CUDA_ROW_BLOCK][head_dim / 2] cosine, sine */
    TW_CUDA_N_CHUNK
};
enum { TW_CUDA_SLOT, TW_CUDA_NEXT_SLOT, TW_CUDA_UNPACKED, TW_CUDA_N_LAYER };
enum { TW_CUDA_TOKENS, TW_CUDA_TOKEN_ROWS, TW_CUDA_N_EMBED };
enum { TW_CUDA_RANGES, TW_CUDA_EAGER, TW_CUDA_N_ATTEND }; /* OBSERVE: RANGES alone */
enum { TW_CUDA_SCORE_RANGES, TW_CUDA_SCORES, TW_CUDA_KEY_MEAN_IN, TW_CUDA_N_SCORE };
/* RANK: those of SCORE in the same places, with room for the neighbours that pooling takes, then */
enum {
    TW_CUDA_POOLED = TW_CUDA_N_SCORE, /* [n_kv_heads][block] */
    TW_CUDA_LISTS,                    /* twice: the running lists, and those that come of them */
    TW_CUDA_LEAST,                    /* [n_kv_heads] */
    TW_CUDA_REST,                     /* candidates of the shared list */
    TW_CUDA_CHUNKS,                   /* two sums that go on, means of a block's chunks */
    TW_CUDA_N_RANK
};
enum { TW_CUDA_PIECES, TW_CUDA_CANDIDATES, TW_CUDA_N_LOG };                             /* LOG_ROW */
enum { TW_CUDA_LOGITS_OUT, TW_CUDA_SLAB, TW_CUDA_N_LOGITS };                            /* LOGITS and DECODE_LOGITS */
enum { TW_CUDA_ROWS, TW_CUDA_DECODE_SLOT, TW_CUDA_DECODE_NEXT_SLOT, TW_CUDA_N_DECODE }; /* DECODE_LAYER */

extern const struct tw_backend_image tw_cuda_image;

static inline size_t tw_cuda_element_bytes(enum tw_dtype dtype) { return dtype == TW_DTYPE_F32 ? 4 : 2; }

/*
 * Rows of the query buffer for chunks of up to max_rows: whole blocks, and one more where chunks need not start on the
 * grid. A chunk that still does not fit (one that starts off the grid though max_rows is a multiple of the block) makes
 * the backend ask for one block more.
 */
size_t tw_cuda_query_rows(size_t max_rows);

/* The seven matrices of a layer in this order: query, key, value, output, gate, up, down. */
enum { TW_CUDA_N_MATRICES = 7 };
const struct tw_matrix *tw_cuda_layer_matrix(const struct tw_layer_weights *layer, size_t which);

/* Bytes of a layer as it is on disk, matrices on the alignment grid, and where matrix `which` begins. */
size_t tw_cuda_slot_bytes(const struct tw_layer_weights *layer);
size_t tw_cuda_slot_offset(const struct tw_layer_weights *layer, size_t which);
/* In the buffer of mapped weights: the layers, then the embedding, then the output matrix unless it is the embedding.
 */
size_t tw_cuda_weights_offset(const struct tw_model *model, size_t l);
size_t tw_cuda_embedding_offset(const struct tw_model *model);
size_t tw_cuda_output_offset(const struct tw_model *model);

/* Bytes of the matrices that have to be unpacked to `dtype` (those of another type), 0 when there are none. */
size_t tw_cuda_unpacked_bytes(const struct tw_layer_weights *layer, enum tw_dtype dtype);
size_t tw_cuda_unpacked_offset(const struct tw_layer_weights *layer, enum tw_dtype dtype, size_t which);
/* Whether products read the matrix as it lies in the file. */
static inline bool tw_cuda_is_plain(enum tw_type type, enum tw_dtype dtype) {
    return dtype == TW_DTYPE_F32 ? type == TW_TYPE_F32 : type == TW_TYPE_BF16;
}

/* Where a vector lies in the buffer of vectors; `which` counts the fields below in each layer, the output norm is
 * first. */
enum tw_cuda_vector {
    TW_CUDA_ATTENTION_NORM,
    TW_CUDA_MLP_NORM,
    TW_CUDA_POST_ATTENTION_NORM,
    TW_CUDA_POST_MLP_NORM,
    TW_CUDA_QUERY_NORM,
    TW_CUDA_KEY_NORM,
    TW_CUDA_QUERY_BIAS,
    TW_CUDA_KEY_BIAS,
    TW_CUDA_VALUE_BIAS,
    TW_CUDA_ROPE_DIVISOR,
    TW_CUDA_N_VECTORS
};
/* The vector on the host (NULL: the architecture lacks it) and its bytes. */
const void *tw_cuda_vector(const struct tw_model *model, size_t l, enum tw_cuda_vector which, size_t *bytes);
static inline size_t tw_cuda_vector_span(size_t bytes) {
    return (bytes + TW_CUDA_ALIGNMENT - 1) / TW_CUDA_ALIGNMENT * TW_CUDA_ALIGNMENT;
}

/* Entries of all lists of a ranking, and columns of its raw scores: a block of `n` of `n_rows` rows and its neighbours.
 */
size_t tw_cuda_rank_entries(const struct tw_ranking *ranking, size_t n_kv_heads);
static inline size_t tw_cuda_rank_columns(const struct tw_ranking *ranking, size_t n, size_t n_rows) {
    const size_t columns = n + ranking->pooling.kernel - 1;
    return columns < n_rows ? columns : n_rows;
}
/* Attention rows of decoding, [n_heads][n_keys]. */
size_t tw_cuda_row_bytes(const struct tw_model_config *config, size_t n_keys);
/* Floats of decoding's state: rotation (head_dim), hidden, normed (2 n_embd), query, attention (2 n_heads * head_dim),
 * key, value (2 n_kv_heads * head_dim), gate, up (2 n_mlp), output of a product (n_embd). */
size_t tw_cuda_state_floats(const struct tw_model_config *config);
/* Entries of a weight and a row a head that the log's selection holds: those of a piece's ranges, and two lists. */
static inline size_t tw_cuda_candidates(size_t top_k) { return TW_CUDA_PIECE + 2 * top_k; }

#endif
