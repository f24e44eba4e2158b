/*
 * HDF5's shuffle filter: byte b of every element in one plane behind the other (HDF5 file format specification, filter
 * 2). Plane b of `n` elements of `size` bytes starts at b * n.
 */
#ifndef TW_TRACES_SHUFFLE_H
#define TW_TRACES_SHUFFLE_H

#include <stddef.h>
#include <stdint.h>

/* planes [size][n] from elements [n][size] */
void tw_shuffle(uint8_t *restrict planes, const uint8_t *restrict elements, size_t n, size_t size);

/* Elements [first, first + count) of the n that `planes` holds, to elements [count][size]. */
void tw_unshuffle(uint8_t *restrict elements, const uint8_t *restrict planes, size_t n, size_t first, size_t count,
                  size_t size);

#endif
