/*
 * One array in NumPy's .npy format (versions 1 to 3), parsed from memory: either byte order, either memory order;
 * booleans, integers and floats. Object and structured arrays are refused. Nothing is copied.
 */
#ifndef TW_TRACES_NPY_H
#define TW_TRACES_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"

#define TW_NPY_MAX_RANK 8

struct tw_npy {
    char kind; /* 'b' boolean, 'i' signed, 'u' unsigned, 'f' float */
    size_t item_bytes;
    bool big_endian, column_major;
    unsigned rank;
    size_t shape[TW_NPY_MAX_RANK];
    const uint8_t *data; /* [product of shape * item_bytes] inside what was parsed */
};

/* `name` stands for the array in messages ("'topk_idx' in 'run/log.npz'"). */
tw_status tw_npy_parse(struct tw_npy *npy, const void *bytes, size_t size, const char *name, struct tw_error *err);

/* What elements become. */
enum tw_npy_target { TW_NPY_I32, TW_NPY_F32, TW_NPY_U8 };

/*
 * The elements [index, :, :, ...] in row-major order to out [shape[1] * ...]. False when one does not fit. Integers do
 * not become floats, nor floats integers: the caller has looked at `kind`.
 */
bool tw_npy_slab(const struct tw_npy *npy, void *out, enum tw_npy_target target, size_t index);

/* Appends the head of a little-endian row-major array: descr is "<i4", "<f2", "|b1". */
void tw_npy_append_head(struct tw_text *text, const char *descr, const size_t *shape, unsigned rank);

#endif
