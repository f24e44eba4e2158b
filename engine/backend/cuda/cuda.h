/*
 * The CUDA backend's inside, host side. One stream computes, another brings streamed weights; all buffers come from the
 * accountant, whose source is one of two allocators. Private to backend/cuda/; the contract is backend.h.
 */
#ifndef TW_ENGINE_BACKEND_CUDA_CUDA_H
#define TW_ENGINE_BACKEND_CUDA_CUDA_H

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include "engine/backend/cuda/cuda_sizes.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/pool.h"

/* Where device memory comes from. Outlived by nothing: close gives everything back. */
struct tw_cuda_memory {
    bool async; /* cudaMallocAsync instead of the pool */
    cudaStream_t stream;
    struct tw_cuda_pool pool;
    cudaMemPool_t system_pool;
    size_t allocated; /* bytes that the accountant holds */
    char device_name[256];
};

/* A layer that is streamed in: pieces go through pinned memory. */
struct tw_cuda_slot {
    struct tw_buffer buffer;
    size_t layer;      /* that it is for; SIZE_MAX: none */
    size_t queued;     /* bytes of it whose copy has been queued */
    size_t bytes;      /* of the layer */
    cudaEvent_t ready; /* recorded when all is queued */
};

enum { TW_CUDA_N_STAGING = 2 };
#ifndef TW_CUDA_STAGING_BYTES /* the emulated build has smaller ones, so that small models come in several pieces */
#define TW_CUDA_STAGING_BYTES ((size_t)16 << 20)
#endif

struct tw_cuda_streamer {
    cudaStream_t stream;
    cudaEvent_t room; /* what computed in a slot's memory before is done */
    struct tw_cuda_slot slots[2];
    void *staging[TW_CUDA_N_STAGING];
    cudaEvent_t staged[TW_CUDA_N_STAGING];
    bool in_flight[TW_CUDA_N_STAGING];
    size_t turn;
};

struct tw_backend {
    const struct tw_model *model;
    struct tw_backend_options options;
    struct tw_accountant *accountant;
    struct tw_cuda_memory *memory;
    cudaStream_t stream;
    cublasHandle_t products;
    enum tw_cuda_precision precision;
    size_t element; /* bytes */
    bool source_set;

    struct tw_buffers open, chunk;
    struct tw_buffer unpacked; /* the layer's, between layer_begin and layer_end */
    size_t layer;              /* that has begun; SIZE_MAX: none */
    struct tw_cuda_streamer streamer;

    size_t max_rows;       /* chunk_create's */
    size_t query_rows;     /* that the query buffer holds */
    size_t first_position; /* of the chunk that was appended last */

    const float *output_norm;
    const void **vectors; /* [n_layers][TW_CUDA_N_VECTORS] device addresses, NULL where there is none */

    /* Decoding's state, float, device memory. */
    float *hidden, *normed, *query, *attention, *key, *value, *gate, *up, *product, *rotation;

    int capability; /* 90 */
    int driver;     /* 13000 */
};

/* ---- failures: one sentence that names the device, the work and the reason ---- */

tw_status tw_cuda_fail(const struct tw_backend *backend, cudaError_t error, const char *what, struct tw_error *err);
#define CUDA_TRY(backend, call, what, err)                                                                             \
    do {                                                                                                               \
        const cudaError_t cuda_try_ = (call);                                                                          \
        if (cuda_try_ != cudaSuccess) return tw_cuda_fail((backend), cuda_try_, (what), (err));                        \
    } while (0)

/* ---- memory.c ---- */

tw_status tw_cuda_memory_create(struct tw_cuda_memory **memory, bool async, cudaStream_t stream,
                                const char *device_name, struct tw_error *err);
void tw_cuda_memory_free(struct tw_cuda_memory *memory); /* NULL is fine; everything must have been released */
struct tw_memory_source tw_cuda_memory_source(struct tw_cuda_memory *memory);
/* Memory of this process on the device as NVML sees it; 0 and a reason in words where it cannot be had. */
size_t tw_cuda_process_bytes(const char **missing);

/* ---- weights.c ---- */

tw_status tw_cuda_streamer_open(struct tw_backend *backend, struct tw_error *err);
void tw_cuda_streamer_close(struct tw_backend *backend);
/*
 * Makes layer l's matrices readable for work queued from now on, and begins to fetch `next` (SIZE_MAX: none). Mapped
 * weights need nothing.
 */
tw_status tw_cuda_weights_begin(struct tw_backend *backend, size_t l, size_t next, struct tw_error *err);
/* Queues some more of the layer that is being fetched, as far as staging is free: called between pieces of work. */
tw_status tw_cuda_weights_pump(struct tw_backend *backend, struct tw_error *err);
/* Layer l is done with: its slot is given back. `all`: the other one as well. */
void tw_cuda_weights_end(struct tw_backend *backend, size_t l, bool all);
/* Matrix `which` of a layer that has begun, as it lies in the file. */
const uint8_t *tw_cuda_stored_matrix(const struct tw_backend *backend, size_t l, size_t which);
/* Copies host memory (the mapped file) to the device through staging, on the computing stream; any size. */
tw_status tw_cuda_upload(struct tw_backend *backend, void *device, const void *host, size_t bytes,
                         struct tw_error *err);

/* ---- what several files need ---- */

static inline const void *tw_cuda_vector_of(const struct tw_backend *backend, size_t l, enum tw_cuda_vector which) {
    return backend->vectors[l * TW_CUDA_N_VECTORS + which];
}
static inline char *tw_cuda_row(const struct tw_backend *backend, const struct tw_bridge *bridge, size_t row) {
    return (char *)bridge->data.data + row * backend->model->config.n_embd * backend->element;
}
struct tw_cuda_kv tw_cuda_kv_of(const struct tw_backend *backend, const struct tw_kv *kv);
tw_status tw_cuda_moment(struct tw_backend *backend, struct tw_buffers *buffers, const struct tw_moment_of *of,
                         struct tw_error *err);
/* First row of head g whose position is at least `position`: the number of rows before it. */
size_t tw_cuda_rows_before(const struct tw_kv *kv, size_t g, size_t position);
/* Device memory to the host; waits. */
tw_status tw_cuda_download(struct tw_backend *backend, void *host, const void *device, size_t bytes, const char *what,
                           struct tw_error *err);
/*
 * What n queries, the first at first_position, may see of kv. Heads whose rows are not their positions get ranges, in
 * `ranges` (device). `attending`: query i sees all but the last n - 1 - i rows.
 */
tw_status tw_cuda_visible_of(struct tw_backend *backend, struct tw_cuda_visible *visible, void *ranges, size_t l,
                             const struct tw_kv *kv, size_t n, size_t first_position, bool attending,
                             struct tw_error *err);
/* What scoring rows needs beside the rows: made once, used for one block after another. */
struct tw_cuda_scoring {
    size_t l;
    enum tw_score_kind kind;
    const struct tw_observation *observation;
    struct tw_cuda_kv rows;
    struct tw_cuda_visible visible;
    const double *mean;
};
/* `ranges` and `mean`: device memory for what is to be uploaded. */
tw_status tw_cuda_scoring_begin(struct tw_backend *backend, struct tw_cuda_scoring *scoring, size_t l,
                                const struct tw_kv *kv, const struct tw_observation *observation,
                                enum tw_score_kind kind, const double *key_mean, void *ranges, double *mean,
                                struct tw_error *err);
/* scores [n_kv_heads][n] (device) of rows [first, first + n). */
tw_status tw_cuda_score_rows(struct tw_backend *backend, const struct tw_cuda_scoring *scoring, size_t first, size_t n,
                             float *scores, struct tw_error *err);
/* Logs the row of a query (log_row and decode_layer); `row` float [n_heads][stride]. */
struct tw_cuda_logging {
    const void *query;
    size_t query_stride;
    bool query_is_float;
    size_t position;
};
void tw_cuda_row_ranges_of(struct tw_cuda_row_ranges *ranges, const struct tw_backend *backend, size_t l,
                           const struct tw_kv *kv, size_t position, const struct tw_attention_log *log);
/* Brings the lists and sums to the host, waiting. */
tw_status tw_cuda_log_read(struct tw_backend *backend, const struct tw_kv *kv, const uint64_t *best,
                           const struct tw_cuda_row_state *state, struct tw_attention_log *log, struct tw_error *err);
tw_status tw_cuda_log_check(const struct tw_attention_log *log, struct tw_error *err);
/* The running state of each head's row, in the buffer of partial sums. */
struct tw_cuda_row_state *tw_cuda_row_states(const struct tw_backend *backend);

/* ---- the operations; contracts in backend.h ---- */

tw_status tw_cuda_op_embed(struct tw_backend *, struct tw_bridge *, size_t, const int32_t *, size_t, struct tw_error *);
tw_status tw_cuda_op_layer_begin(struct tw_backend *, size_t, struct tw_error *);
void tw_cuda_op_layer_end(struct tw_backend *, size_t);
tw_status tw_cuda_op_append(struct tw_backend *, size_t, const struct tw_bridge *, size_t, size_t, size_t,
                            struct tw_kv *, struct tw_observation *, struct tw_error *);
tw_status tw_cuda_op_attend(struct tw_backend *, size_t, const struct tw_kv *, size_t, size_t, struct tw_error *);
tw_status tw_cuda_op_finish(struct tw_backend *, size_t, struct tw_bridge *, size_t, size_t, struct tw_error *);
tw_status tw_cuda_op_observe(struct tw_backend *, size_t, const struct tw_kv *, struct tw_observation *, size_t,
                             struct tw_error *);
tw_status tw_cuda_op_score(struct tw_backend *, size_t, const struct tw_kv *, const struct tw_observation *,
                           enum tw_score_kind, const double *, size_t, size_t, float *, struct tw_error *);
tw_status tw_cuda_op_rank(struct tw_backend *, size_t, const struct tw_kv *, const struct tw_observation *,
                          const struct tw_ranking *, struct tw_scored *, struct tw_error *);
tw_status tw_cuda_op_key_mean(struct tw_backend *, const struct tw_kv *, double *, struct tw_error *);
tw_status tw_cuda_op_gather(struct tw_backend *, struct tw_kv *, const struct tw_kv *, const int32_t *const *,
                            const size_t *, struct tw_error *);
tw_status tw_cuda_op_log_row(struct tw_backend *, size_t, const struct tw_kv *, const struct tw_observation *,
                             struct tw_attention_log *, struct tw_error *);
tw_status tw_cuda_op_logits(struct tw_backend *, const struct tw_bridge *, size_t, size_t, float *, struct tw_error *);
tw_status tw_cuda_op_decode_begin(struct tw_backend *, int32_t, struct tw_error *);
tw_status tw_cuda_op_decode_layer(struct tw_backend *, size_t, struct tw_kv *, size_t, struct tw_attention_log *,
                                  struct tw_error *);
tw_status tw_cuda_op_decode_logits(struct tw_backend *, float *, struct tw_error *);
tw_status tw_cuda_op_read_hidden(struct tw_backend *, const struct tw_bridge *, size_t, size_t, bool, float *,
                                 struct tw_error *);
tw_status tw_cuda_op_read_decode_hidden(struct tw_backend *, bool, float *, struct tw_error *);
tw_status tw_cuda_op_read_kv(struct tw_backend *, const struct tw_kv *, bool, size_t, size_t, size_t, float *,
                             struct tw_error *);
tw_status tw_cuda_op_write_kv(struct tw_backend *, struct tw_kv *, const float *, const float *, size_t,
                              struct tw_error *);
tw_status tw_cuda_op_write_observation(struct tw_backend *, struct tw_observation *, const float *, size_t, size_t,
                                       struct tw_error *);

#endif
