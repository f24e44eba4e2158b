/*
 * The backend's caching allocator (`--allocator native`): device memory is taken from the driver in segments, cut into
 * blocks and kept. Requests of up to 1 MiB come from segments of 2 MiB, larger ones of under 10 MiB from segments of 20
 * MiB, the rest from segments of their own size in steps of 2 MiB: the sizes that the published figures were measured
 * with (PyTorch's allocator). Plain C over two functions, so that it is tested without a device.
 *
 * Blocks come back in the order of the work queued on one stream; who uses one on another stream orders the two with an
 * event.
 */
#ifndef TW_ENGINE_BACKEND_CUDA_POOL_H
#define TW_ENGINE_BACKEND_CUDA_POOL_H

#include <stdbool.h>
#include <stddef.h>

struct tw_cuda_pool_block {
    char *data;
    size_t bytes;
    bool used;
    size_t segment;                         /* number of the segment that it lies in */
    struct tw_cuda_pool_block *prev, *next; /* in address order inside the segment */
    struct tw_cuda_pool_block *list_prev, *list_next;
};

struct tw_cuda_pool {
    void *context;
    void *(*take)(void *context, size_t bytes); /* NULL: there is no more */
    void (*give)(void *context, void *data);
    struct tw_cuda_pool_block *blocks; /* all of them, the newest first */
    size_t n_segments;                 /* ever made: the next one's number */
    size_t reserved, allocated;        /* bytes in segments; in blocks that are used (rounded to 512) */
    size_t retries;                    /* how often memory ran out and unused segments were given back */
};

/* At least 512-byte aligned when the segments are; NULL when there is no memory, unused segments given back. */
void *tw_cuda_pool_allocate(struct tw_cuda_pool *pool, size_t bytes);
void tw_cuda_pool_free(struct tw_cuda_pool *pool, void *data);
/* Gives back every segment that holds no used block. */
void tw_cuda_pool_trim(struct tw_cuda_pool *pool);
/* The largest unused block of a segment that is in use, and the sum of such blocks ("inactive splits"). */
size_t tw_cuda_pool_largest_split(const struct tw_cuda_pool *pool);
size_t tw_cuda_pool_splits(const struct tw_cuda_pool *pool);

#endif
