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

#include <stdbool.h>
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
    struct tw_buffer positions;  /* what `position` points into, when it is there; host memory, accounted as other */
};

/*
 * What every backend's kv_create does once it knows its sizes: allocates an empty KV whose heads have room for
 * `capacity[g]` rows and begin at `offset[g]` (the backend's unit; both [n_kv_heads], copied), with `key_bytes` and
 * `value_bytes` of storage. On failure kv is empty ({0}).
 */
tw_status tw_kv_init(struct tw_kv *kv, struct tw_accountant *accountant, size_t n_kv_heads, size_t head_dim,
                     const size_t *capacity, const size_t *offset, size_t key_bytes, size_t value_bytes,
                     bool with_positions, enum tw_category category, const char *what, struct tw_error *err);
void tw_kv_release(struct tw_kv *kv, struct tw_accountant *accountant); /* copes with {0} */
/* n rows more in every head, at positions first_position and on; the caller has written or will write the data. */
void tw_kv_extend(struct tw_kv *kv, size_t first_position, size_t n);
/* The books of a gather (lengths and positions) into the empty `to`; the caller copies the data. */
void tw_kv_gather_books(struct tw_kv *to, const struct tw_kv *from, const int32_t *const *kept, const size_t *n_kept);
/* Drops all rows; the memory stays. */
void tw_kv_clear(struct tw_kv *kv);

/* Rows over all heads (the paper's S_final when summed over layers), and of the longest head. */
size_t tw_kv_rows(const struct tw_kv *kv);
size_t tw_kv_longest(const struct tw_kv *kv);

static inline size_t tw_kv_position(const struct tw_kv *kv, size_t head, size_t row) {
    return kv->position ? (size_t)kv->position[head][row] : row;
}

#endif
