/*
 * Streamed weights: while one layer computes, the next comes over. The file is mapped, so its pages go through two
 * pinned staging areas; a copy is queued whenever one of them is free, between the pieces of work of the layer that
 * runs (tw_cuda_weights_pump), and what is still missing when the next layer begins then.
 */
#include <string.h>

#include "base/checked.h"
#include "engine/backend/cuda/cuda.h"

tw_status tw_cuda_streamer_open(struct tw_backend *backend, struct tw_error *err) {
    struct tw_cuda_streamer *const s = &backend->streamer;
    const char *const what = "opening the stream of weights";
    for (int i = 0; i < 2; i++) s->slots[i].layer = SIZE_MAX;
    for (int i = 0; i < TW_CUDA_N_STAGING; i++) {
        CUDA_TRY(backend, cudaHostAlloc(&s->staging[i], TW_CUDA_STAGING_BYTES, cudaHostAllocDefault), what, err);
        CUDA_TRY(backend, cudaEventCreateWithFlags(&s->staged[i], cudaEventDisableTiming), what, err);
    }
    if (backend->options.weights != TW_WEIGHTS_STREAM) return TW_OK;
    CUDA_TRY(backend, cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), what, err);
    CUDA_TRY(backend, cudaEventCreateWithFlags(&s->room, cudaEventDisableTiming), what, err);
    for (int i = 0; i < 2; i++)
        CUDA_TRY(backend, cudaEventCreateWithFlags(&s->slots[i].ready, cudaEventDisableTiming), what, err);
    return TW_OK;
}

void tw_cuda_streamer_close(struct tw_backend *backend) {
    struct tw_cuda_streamer *const s = &backend->streamer;
    if (s->stream) (void)cudaStreamSynchronize(s->stream);
    for (int i = 0; i < 2; i++) {
        tw_buffer_release(&s->slots[i].buffer, backend->accountant);
        if (s->slots[i].ready) (void)cudaEventDestroy(s->slots[i].ready);
    }
    for (int i = 0; i < TW_CUDA_N_STAGING; i++) {
        if (s->staged[i]) (void)cudaEventDestroy(s->staged[i]);
        if (s->staging[i]) (void)cudaFreeHost(s->staging[i]);
    }
    if (s->room) (void)cudaEventDestroy(s->room);
    if (s->stream) (void)cudaStreamDestroy(s->stream);
    memset(s, 0, sizeof *s);
}

/* A staging area that no copy reads any more; with `wait` false *index is -1 when there is none. */
static tw_status staging(struct tw_backend *backend, int *index, bool wait, struct tw_error *err) {
    struct tw_cuda_streamer *const s = &backend->streamer;
    const size_t turn = s->turn;
    *index = -1;
    if (s->in_flight[turn]) {
        if (!wait) {
            const cudaError_t state = cudaEventQuery(s->staged[turn]);
            if (state == cudaErrorNotReady) return TW_OK;
            CUDA_TRY(backend, state, "streaming weights", err);
        } else {
            CUDA_TRY(backend, cudaEventSynchronize(s->staged[turn]), "streaming weights", err);
        }
        s->in_flight[turn] = false;
    }
    s->turn = (turn + 1) % TW_CUDA_N_STAGING;
    *index = (int)turn;
    return TW_OK;
}

/* Queues one piece through staging area `index`. */
static tw_status copy_piece(struct tw_backend *backend, int index, void *device, const void *host, size_t bytes,
                            cudaStream_t stream, struct tw_error *err) {
    struct tw_cuda_streamer *const s = &backend->streamer;
    memcpy(s->staging[index], host, bytes);
    CUDA_TRY(backend, cudaMemcpyAsync(device, s->staging[index], bytes, cudaMemcpyHostToDevice, stream),
             "copying weights to the device", err);
    CUDA_TRY(backend, cudaEventRecord(s->staged[index], stream), "copying weights to the device", err);
    s->in_flight[index] = true;
    return TW_OK;
}

tw_status tw_cuda_upload(struct tw_backend *backend, void *device, const void *host, size_t bytes,
                         struct tw_error *err) {
    for (size_t at = 0; at < bytes;) {
        int index;
        TW_TRY(staging(backend, &index, true, err));
        const size_t n = tw_min_size(bytes - at, TW_CUDA_STAGING_BYTES);
        TW_TRY(copy_piece(backend, index, (char *)device + at, (const char *)host + at, n, backend->stream, err));
        at += n;
    }
    return TW_OK;
}

/* Queues pieces of a slot's layer: all of them, or as many as staging takes at once. */
static tw_status fill(struct tw_backend *backend, struct tw_cuda_slot *slot, bool all, struct tw_error *err) {
    if (slot->layer == SIZE_MAX || slot->queued == slot->bytes) return TW_OK;
    const struct tw_layer_weights *const layer = &backend->model->layers[slot->layer];
    for (size_t which = 0; which < TW_CUDA_N_MATRICES; which++) {
        const struct tw_matrix *const matrix = tw_cuda_layer_matrix(layer, which);
        const size_t offset = tw_cuda_slot_offset(layer, which), size = tw_matrix_bytes(matrix);
        for (size_t at = slot->queued > offset ? slot->queued - offset : 0; at < size;) {
            int index;
            TW_TRY(staging(backend, &index, all, err));
            if (index < 0) return TW_OK;
            const size_t n = tw_min_size(size - at, TW_CUDA_STAGING_BYTES);
            TW_TRY(copy_piece(backend, index, (char *)slot->buffer.data + offset + at, matrix->data + at, n,
                              backend->streamer.stream, err));
            at += n;
            slot->queued = offset + at;
        }
    }
    slot->queued = slot->bytes; /* the last matrix may be followed by alignment */
    CUDA_TRY(backend, cudaEventRecord(slot->ready, backend->streamer.stream), "streaming weights", err);
    return TW_OK;
}

static struct tw_cuda_slot *slot_of(struct tw_backend *backend, size_t l) {
    for (int i = 0; i < 2; i++)
        if (backend->streamer.slots[i].layer == l) return &backend->streamer.slots[i];
    return NULL;
}

/* Gives a slot's memory back once all that was queued into it has come. */
static void empty(struct tw_backend *backend, struct tw_cuda_slot *slot) {
    if (slot->layer != SIZE_MAX && slot->queued > 0) {
        if (slot->queued < slot->bytes) (void)cudaEventRecord(slot->ready, backend->streamer.stream);
        (void)cudaStreamWaitEvent(backend->stream, slot->ready, 0);
    }
    tw_buffer_release(&slot->buffer, backend->accountant);
    slot->layer = SIZE_MAX;
    slot->queued = slot->bytes = 0;
}

/* A slot for layer l, which is in none, other than `keep`. */
static tw_status begin_slot(struct tw_backend *backend, struct tw_cuda_slot **out, size_t l,
                            const struct tw_cuda_slot *keep, struct tw_error *err) {
    struct tw_cuda_streamer *const s = &backend->streamer;
    struct tw_cuda_slot *slot = s->slots[0].layer == SIZE_MAX ? &s->slots[0] : &s->slots[1];
    if (slot == keep) slot = &s->slots[slot == &s->slots[0]];
    empty(backend, slot);
    const size_t bytes = tw_cuda_slot_bytes(&backend->model->layers[l]);
    TW_TRY(tw_buffer_allocate(&slot->buffer, backend->accountant, bytes, TW_CATEGORY_WEIGHTS, "streamed layer", err));
    slot->layer = l;
    slot->queued = 0;
    slot->bytes = bytes;
    /* The memory may have been something else's, whose work is still queued on the computing stream. */
    CUDA_TRY(backend, cudaEventRecord(s->room, backend->stream), "streaming weights", err);
    CUDA_TRY(backend, cudaStreamWaitEvent(s->stream, s->room, 0), "streaming weights", err);
    *out = slot;
    return TW_OK;
}

tw_status tw_cuda_weights_begin(struct tw_backend *backend, size_t l, size_t next, struct tw_error *err) {
    if (backend->options.weights != TW_WEIGHTS_STREAM) return TW_OK;
    struct tw_cuda_slot *slot = slot_of(backend, l);
    if (!slot) TW_TRY(begin_slot(backend, &slot, l, NULL, err));
    TW_TRY(fill(backend, slot, true, err));
    CUDA_TRY(backend, cudaStreamWaitEvent(backend->stream, slot->ready, 0), "streaming weights", err);
    if (next == SIZE_MAX || next == l || slot_of(backend, next)) return TW_OK;
    return begin_slot(backend, &(struct tw_cuda_slot *){NULL}, next, slot, err);
}

tw_status tw_cuda_weights_pump(struct tw_backend *backend, struct tw_error *err) {
    if (backend->options.weights != TW_WEIGHTS_STREAM) return TW_OK;
    for (int i = 0; i < 2; i++) TW_TRY(fill(backend, &backend->streamer.slots[i], false, err));
    return TW_OK;
}

void tw_cuda_weights_end(struct tw_backend *backend, size_t l, bool all) {
    if (backend->options.weights != TW_WEIGHTS_STREAM) return;
    for (int i = 0; i < 2; i++)
        if (all || backend->streamer.slots[i].layer == l) empty(backend, &backend->streamer.slots[i]);
}

const uint8_t *tw_cuda_stored_matrix(const struct tw_backend *backend, size_t l, size_t which) {
    const size_t offset = tw_cuda_slot_offset(&backend->model->layers[l], which);
    if (backend->options.weights == TW_WEIGHTS_MAPPED)
        return (const uint8_t *)backend->open.buffer[TW_CUDA_WEIGHTS].data + tw_cuda_weights_offset(backend->model, l) +
               offset;
    for (int i = 0; i < 2; i++)
        if (backend->streamer.slots[i].layer == l)
            return (const uint8_t *)backend->streamer.slots[i].buffer.data + offset;
    return NULL;
}
