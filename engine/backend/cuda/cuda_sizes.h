/*
 * The device buffers of the CUDA backend: what it asks of the accountant, when, and how many bytes. Plain C without
 * CUDA, so that the dry backend books exactly what the real one would, and tests need no device.
 *
 * The backend allocates from these lists and from nothing else but these, all through the accountant:
 *
 *   open          TW_CUDA_OPEN's list; WEIGHTS here are device copies (they count against a limit)
 *   chunk_create  TW_CUDA_CHUNK's list for max_rows
 *   layer_begin   the layer's slot (`tw_cuda_slot_bytes`, streamed weights only; that of layer l + 1 too, where there
 * is one, each unless it is held already), then `tw_cuda_unpacked_bytes` (when not 0) layer_end     releases the slot
 * of l and the unpacked layer attend        eager attention only: `tw_cuda_eager_bytes`, released when the chunk has
 * attended decode_layer  streamed weights: two slots, each of the largest layer's bytes, once, held until the next
 * layer_begin or close; and `tw_cuda_row_bytes` of the largest head capacity, kept and regrown when a larger KV comes
 *   logits        streamed weights only: `tw_cuda_logits_slab_bytes`, released at the end of the call (and of
 *                 decode_logits)
 *   bridge_create, kv_create, observation_create  by the functions below
 *
 * Positions of KV rows and staging areas live in host memory and are not booked.
 */
#ifndef TW_ENGINE_BACKEND_CUDA_SIZES_H
#define TW_ENGINE_BACKEND_CUDA_SIZES_H

#include <stddef.h>

#include "engine/backend/backend.h"

enum {
    /*
     * Rows of a matrix product. Products run in blocks of this many rows on the absolute position grid, short ones
     * padded, so that cuBLAS always sees the same shape and a row's result does not depend on the chunk.
     */
    TW_CUDA_ROW_BLOCK = 512,
    TW_CUDA_ALIGNMENT = 256,             /* bytes, of each matrix inside a layer's buffer */
    TW_CUDA_PRODUCT_WORKSPACE = 8 << 20, /* bytes handed to cuBLAS, which then allocates nothing itself */
    TW_CUDA_SPLITS = 64,                 /* ranges of keys that streaming passes and decoding run side by side */
    TW_CUDA_PIECE = 4096,                /* keys of one piece of scores or of a streamed attention row */
    TW_CUDA_MAX_TOP_K = 1024,            /* largest log */
    TW_CUDA_MAX_KV_HEADS = 128,
    TW_CUDA_MAX_HEAD_DIM = 256,
    TW_CUDA_LOGITS_ROWS = 4,       /* rows that one pass over the output matrix serves */
    TW_CUDA_SLAB_BYTES = 64 << 20, /* of the output matrix, when weights are streamed */
};

enum tw_cuda_moment { TW_CUDA_OPEN, TW_CUDA_CHUNK, TW_CUDA_N_MOMENTS };

enum tw_cuda_buffer {
    /* open */
    TW_CUDA_VECTORS,      /* norms, biases, rotary divisors of all layers */
    TW_CUDA_EMBEDDING,    /* 0 when streamed */
    TW_CUDA_OUTPUT,       /* 0 when streamed or tied */
    TW_CUDA_WORKSPACE,    /* cuBLAS */
    TW_CUDA_PARTIALS,     /* float: per split, query head, window row: maximum, sum; or per split, head, element */
    TW_CUDA_PIECES,       /* [n_heads][TW_CUDA_PIECE] float: scores, or a piece of an attention row */
    TW_CUDA_CANDIDATES,   /* [n_heads][TW_CUDA_PIECE + 2 * TW_CUDA_MAX_TOP_K] of a weight and a row */
    TW_CUDA_DECODE_STATE, /* float: hidden, normed, q, k, v, attention, gate, up */
    TW_CUDA_LOGITS_OUT,   /* [TW_CUDA_LOGITS_ROWS][n_vocab] float, and the normed rows */
    /* chunk */
    TW_CUDA_QUERY,      /* [rows][n_heads * head_dim]: queries, then the attention's output in their place */
    TW_CUDA_NORMED,     /* [block rows][n_embd] */
    TW_CUDA_GATE,       /* [block rows][n_mlp]; k and v of a block before they are appended */
    TW_CUDA_UP,         /* [block rows][n_mlp] */
    TW_CUDA_ROTATION,   /* [block rows][head_dim / 2] cosine, sine */
    TW_CUDA_FIRST_ROWS, /* [n_kv_heads][rows] first row that a query may see */
    TW_CUDA_TOKENS,     /* [rows] */
    TW_CUDA_TOKEN_ROWS, /* [block rows] of embedding rows as they are on disk, when streamed */
    TW_CUDA_N_BUFFERS
};

struct tw_cuda_request {
    enum tw_cuda_buffer buffer;
    enum tw_category category;
    const char *what; /* for messages */
    size_t bytes;     /* never 0: what is not needed is not in the list */
};

/* Bytes of one number of the activations. `dtype` is never AUTO here or below: the dry backend says what a device has.
 */
static inline size_t tw_cuda_element_bytes(enum tw_dtype dtype) { return dtype == TW_DTYPE_F32 ? 4 : 2; }

/*
 * Fills `requests` (room for TW_CUDA_N_BUFFERS) in the order of allocation and returns how many there are. Layers'
 * weights come after OPEN's list when they are mapped: `tw_cuda_slot_bytes` of each layer, category WEIGHTS. `max_rows`
 * matters for CHUNK only.
 */
size_t tw_cuda_requests(struct tw_cuda_request *requests, enum tw_cuda_moment moment, const struct tw_model *model,
                        const struct tw_backend_options *options, size_t max_rows);

/* Rows of the query buffer for chunks of max_rows: whole blocks, and one more when chunks do not start on the grid. */
size_t tw_cuda_query_rows(size_t max_rows);

/* The seven matrices of a layer in this order: query, key, value, output, gate, up, down. */
enum { TW_CUDA_N_MATRICES = 7 };
const struct tw_matrix *tw_cuda_layer_matrix(const struct tw_layer_weights *layer, size_t which);

/* Bytes of a layer as it is on disk, matrices on the alignment grid, and where matrix `which` begins. */
size_t tw_cuda_slot_bytes(const struct tw_layer_weights *layer);
size_t tw_cuda_slot_offset(const struct tw_layer_weights *layer, size_t which);
size_t tw_cuda_largest_slot_bytes(const struct tw_model *model);

/* The same for the matrices that have to be unpacked to `dtype` (those of another type); 0 when there are none. */
size_t tw_cuda_unpacked_bytes(const struct tw_layer_weights *layer, enum tw_dtype dtype);
size_t tw_cuda_unpacked_offset(const struct tw_layer_weights *layer, enum tw_dtype dtype, size_t which);
/* Whether products read the matrix as it lies in the file. */
static inline bool tw_cuda_is_plain(enum tw_type type, enum tw_dtype dtype) {
    return dtype == TW_DTYPE_F32 ? type == TW_TYPE_F32 : type == TW_TYPE_BF16;
}

size_t tw_cuda_bridge_bytes(const struct tw_model_config *config, enum tw_dtype dtype, size_t n_rows);
/* Keys alone, or values alone, of all heads: capacities are not rounded. */
size_t tw_cuda_kv_bytes(const struct tw_model_config *config, enum tw_dtype dtype, const size_t *capacity);
/* query, and maximum or sum. */
size_t tw_cuda_observation_query_bytes(const struct tw_model_config *config, enum tw_dtype dtype, size_t window);
size_t tw_cuda_observation_softmax_bytes(const struct tw_model_config *config, size_t window);

/* [n_heads][n][n_keys] float, category CHUNK. */
size_t tw_cuda_eager_bytes(const struct tw_model_config *config, size_t n, size_t n_keys);
/* [n_heads][capacity] float, category CHUNK: decoding's softmax rows. */
size_t tw_cuda_row_bytes(const struct tw_model_config *config, size_t capacity);
/* Category LOGITS. */
size_t tw_cuda_logits_slab_bytes(const struct tw_model *model);

#endif
