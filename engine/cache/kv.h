/*
 * Keys and values of one layer, for every KV head: the active full-prompt KV while a layer is run, and the compact
 * cache that is left of it. One type for both, since `block` turns the one into the other and decoding appends to the
 * latter.
 *
 * Heads may hold different numbers of rows (AdaKV): rows are counted per head, storage is flattened with an offset a
 * head. The layout of the data is the backend's own; its sizes are too (a backend may round a head's capacity up).
 *
 * Row r of head g stands for absolute position `position[g][r]`; rows are in ascending order of position. While nothing
 * has been dropped, row and position are equal and `position` is NULL.
 */
#ifndef TW_ENGINE_CACHE_KV_H
#define TW_ENGINE_CACHE_KV_H

#include <stddef.h>
#include <stdint.h>

#include "engine/accountant.h"

struct tw_kv {
    size_t n_kv_heads, head_dim;
    size_t *capacity;   /* [n_kv_heads] rows that fit */
    size_t *length;     /* [n_kv_heads] rows held */
    size_t *offset;     /* [n_kv_heads] first row of a head in the flattened storage; a backend's unit of rounding */
    int32_t **position; /* [n_kv_heads][capacity] host memory, ascending, or NULL: row == position */
    struct tw_buffer key, value; /* the backend's layout; accounted as active KV or compact cache */
    struct tw_buffer positions;  /* what `position` points into, when it is there */
};

/* Rows over all heads (the paper's S_final when summed over layers). */
size_t tw_kv_rows(const struct tw_kv *kv);

static inline size_t tw_kv_position(const struct tw_kv *kv, size_t head, size_t row) {
    return kv->position ? (size_t)kv->position[head][row] : row;
}

#endif
