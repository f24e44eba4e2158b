#include "engine/cache/kv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

tw_status tw_kv_init(struct tw_kv *kv, struct tw_accountant *accountant, size_t n_kv_heads, size_t head_dim,
                     const size_t *capacity, const size_t *offset, size_t key_bytes, size_t value_bytes,
                     bool with_positions, enum tw_category category, const char *what, struct tw_error *err) {
    tw_status status = TW_OK;
    memset(kv, 0, sizeof *kv);
    kv->n_kv_heads = n_kv_heads;
    kv->head_dim = head_dim;
    kv->capacity = calloc(3 * n_kv_heads, sizeof *kv->capacity);
    if (!kv->capacity) return TW_FAIL(err, TW_E_MEMORY, "out of memory: '%s'", what);
    kv->length = kv->capacity + n_kv_heads;
    kv->offset = kv->length + n_kv_heads;
    memcpy(kv->capacity, capacity, n_kv_heads * sizeof *capacity);
    memcpy(kv->offset, offset, n_kv_heads * sizeof *offset);
    TW_TRY_GOTO(status, fail, tw_buffer_allocate(&kv->key, accountant, key_bytes, category, what, err));
    TW_TRY_GOTO(status, fail, tw_buffer_allocate(&kv->value, accountant, value_bytes, category, what, err));
    if (with_positions) {
        size_t rows = 0;
        for (size_t g = 0; g < n_kv_heads; g++) rows += capacity[g];
        TW_TRY_GOTO(status, fail,
                    tw_buffer_allocate_host(&kv->positions, accountant, rows * sizeof(int32_t), TW_CATEGORY_OTHER,
                                            "positions of the cache's rows", err));
        kv->position = calloc(n_kv_heads, sizeof *kv->position);
        if (!kv->position) {
            status = TW_FAIL(err, TW_E_MEMORY, "out of memory: '%s'", what);
            goto fail;
        }
        int32_t *at = kv->positions.data;
        for (size_t g = 0; g < n_kv_heads; g++) {
            kv->position[g] = at;
            at += capacity[g];
        }
    }
    return TW_OK;
fail:
    tw_kv_release(kv, accountant);
    return status;
}

void tw_kv_release(struct tw_kv *kv, struct tw_accountant *accountant) {
    tw_buffer_release(&kv->key, accountant);
    tw_buffer_release(&kv->value, accountant);
    tw_buffer_release(&kv->positions, accountant);
    free(kv->position);
    free(kv->capacity);
    memset(kv, 0, sizeof *kv);
}

void tw_kv_extend(struct tw_kv *kv, size_t first_position, size_t n) {
    for (size_t g = 0; g < kv->n_kv_heads; g++) {
        assert(kv->length[g] + n <= kv->capacity[g]);
        assert(kv->position || kv->length[g] == first_position);
        if (kv->position)
            for (size_t i = 0; i < n; i++) kv->position[g][kv->length[g] + i] = (int32_t)(first_position + i);
        kv->length[g] += n;
    }
}

void tw_kv_gather_books(struct tw_kv *to, const struct tw_kv *from, const int32_t *const *kept, const size_t *n_kept) {
    for (size_t g = 0; g < to->n_kv_heads; g++) {
        assert(to->length[g] == 0 && n_kept[g] <= to->capacity[g]);
        for (size_t r = 0; r < n_kept[g]; r++) {
            assert((size_t)kept[g][r] < from->length[g] && (r == 0 || kept[g][r] > kept[g][r - 1]));
            const size_t position = tw_kv_position(from, g, (size_t)kept[g][r]);
            assert(to->position || position == r);
            if (to->position) to->position[g][r] = (int32_t)position;
        }
        to->length[g] = n_kept[g];
    }
}

void tw_kv_clear(struct tw_kv *kv) {
    for (size_t g = 0; g < kv->n_kv_heads; g++) kv->length[g] = 0;
}

size_t tw_kv_rows(const struct tw_kv *kv) {
    size_t rows = 0;
    for (size_t g = 0; g < kv->n_kv_heads; g++) rows += kv->length[g];
    return rows;
}

size_t tw_kv_longest(const struct tw_kv *kv) {
    size_t longest = 0;
    for (size_t g = 0; g < kv->n_kv_heads; g++)
        if (kv->length[g] > longest) longest = kv->length[g];
    return longest;
}
