#include "engine/backend/cuda/pool.h"

#include <assert.h>
#include <stdlib.h>

#include "base/checked.h"

static const size_t ROUNDING = 512, SMALL = 1 << 20, SMALL_SEGMENT = 2 << 20, MIDDLE = 10 << 20,
                    MIDDLE_SEGMENT = 20 << 20;

static bool is_small(size_t bytes) { return bytes <= SMALL; }

static size_t segment_bytes(size_t bytes) {
    if (is_small(bytes)) return SMALL_SEGMENT;
    return bytes < MIDDLE ? MIDDLE_SEGMENT : tw_round_up(bytes, SMALL_SEGMENT);
}

static void list_add(struct tw_cuda_pool *pool, struct tw_cuda_pool_block *block) {
    block->list_prev = NULL;
    block->list_next = pool->blocks;
    if (pool->blocks) pool->blocks->list_prev = block;
    pool->blocks = block;
}

static void list_remove(struct tw_cuda_pool *pool, struct tw_cuda_pool_block *block) {
    if (block->list_prev)
        block->list_prev->list_next = block->list_next;
    else
        pool->blocks = block->list_next;
    if (block->list_next) block->list_next->list_prev = block->list_prev;
    free(block);
}

static bool is_whole_segment(const struct tw_cuda_pool_block *block) { return !block->prev && !block->next; }

/* Small requests share segments with small ones only: what a segment's blocks add up to says which it is. */
static bool in_small_segment(const struct tw_cuda_pool_block *block) {
    size_t bytes = block->bytes;
    for (const struct tw_cuda_pool_block *b = block->prev; b; b = b->prev) bytes += b->bytes;
    for (const struct tw_cuda_pool_block *b = block->next; b; b = b->next) bytes += b->bytes;
    return bytes == SMALL_SEGMENT;
}

static struct tw_cuda_pool_block *best_fit(const struct tw_cuda_pool *pool, size_t bytes) {
    struct tw_cuda_pool_block *best = NULL;
    for (struct tw_cuda_pool_block *block = pool->blocks; block; block = block->list_next) {
        if (block->used || block->bytes < bytes || in_small_segment(block) != is_small(bytes)) continue;
        if (!best || block->bytes < best->bytes || (block->bytes == best->bytes && block->data < best->data))
            best = block;
    }
    return best;
}

static struct tw_cuda_pool_block *new_segment(struct tw_cuda_pool *pool, size_t bytes) {
    const size_t size = segment_bytes(bytes);
    struct tw_cuda_pool_block *const block = calloc(1, sizeof *block);
    if (!block) return NULL;
    block->data = pool->take(pool->context, size);
    if (!block->data) {
        pool->retries++;
        tw_cuda_pool_trim(pool);
        block->data = pool->take(pool->context, size);
    }
    if (!block->data) {
        free(block);
        return NULL;
    }
    block->bytes = size;
    block->segment = pool->n_segments++;
    pool->reserved += size;
    list_add(pool, block);
    return block;
}

/* Cuts what is beyond `bytes` off, where that is worth a block; a block that cannot be cut is used whole. */
static void split(struct tw_cuda_pool *pool, struct tw_cuda_pool_block *block, size_t bytes) {
    const size_t left = block->bytes - bytes;
    if (is_small(bytes) ? left < ROUNDING : left <= SMALL) return;
    struct tw_cuda_pool_block *const rest = calloc(1, sizeof *rest);
    if (!rest) return;
    rest->data = block->data + bytes;
    rest->bytes = left;
    rest->segment = block->segment;
    rest->prev = block;
    rest->next = block->next;
    if (rest->next) rest->next->prev = rest;
    block->next = rest;
    block->bytes = bytes;
    list_add(pool, rest);
}

void *tw_cuda_pool_allocate(struct tw_cuda_pool *pool, size_t bytes) {
    if (bytes > SIZE_MAX - MIDDLE_SEGMENT) return NULL;
    const size_t rounded = tw_round_up(tw_max_size(bytes, 1), ROUNDING);
    struct tw_cuda_pool_block *block = best_fit(pool, rounded);
    if (!block) block = new_segment(pool, rounded);
    if (!block) return NULL;
    split(pool, block, rounded);
    block->used = true;
    pool->allocated += block->bytes;
    return block->data;
}

/* `block` and the one behind it become one. */
static void join(struct tw_cuda_pool *pool, struct tw_cuda_pool_block *block) {
    struct tw_cuda_pool_block *const gone = block->next;
    block->bytes += gone->bytes;
    block->next = gone->next;
    if (block->next) block->next->prev = block;
    list_remove(pool, gone);
}

void tw_cuda_pool_free(struct tw_cuda_pool *pool, void *data) {
    struct tw_cuda_pool_block *block = pool->blocks;
    while (block && block->data != data) block = block->list_next;
    assert(block && block->used);
    block->used = false;
    pool->allocated -= block->bytes;
    if (block->next && !block->next->used) join(pool, block);
    if (block->prev && !block->prev->used) join(pool, block->prev);
}

void tw_cuda_pool_trim(struct tw_cuda_pool *pool) {
    for (struct tw_cuda_pool_block *block = pool->blocks, *next; block; block = next) {
        next = block->list_next;
        if (block->used || !is_whole_segment(block)) continue;
        pool->give(pool->context, block->data);
        pool->reserved -= block->bytes;
        list_remove(pool, block);
    }
}

size_t tw_cuda_pool_largest_split(const struct tw_cuda_pool *pool) {
    size_t largest = 0;
    for (const struct tw_cuda_pool_block *block = pool->blocks; block; block = block->list_next)
        if (!block->used && !is_whole_segment(block)) largest = tw_max_size(largest, block->bytes);
    return largest;
}

size_t tw_cuda_pool_splits(const struct tw_cuda_pool *pool) {
    size_t total = 0;
    for (const struct tw_cuda_pool_block *block = pool->blocks; block; block = block->list_next)
        if (!block->used && !is_whole_segment(block)) total += block->bytes;
    return total;
}
