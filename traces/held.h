/*
 * Metadata of a trace that is being written, held back until a flush and then written in an order in which a kill
 * between any two writes leaves every chunk that was flushed before within reach.
 *
 * What libhdf5 changes between two flushes: nodes of the trees that index the chunks (version 1 B-trees), object
 * headers (extents, attributes), the superblock (the end of the file). A full node is split in two: its own place keeps
 * the left half, the right half goes to a new place, and the parent gets one entry more; a full root moves to a new
 * place, and its own gets a level more. So a node that was there before only ever loses part of its range to new nodes.
 * The order is:
 *
 *   1. blocks at places beyond the end of the file as it was: nothing on the disk refers to them yet;
 *   2. the superblock, since a reader believes in nothing behind the end that it states;
 *   3. nodes of trees, the highest level first: a parent leads either to a new node, which is complete, or to an old
 *      one, which as yet has all that it had; a child loses its right half only when every way there leads past it;
 *   4. the rest, from the end of the file to its beginning: a continued header before what refers to it.
 *
 * Each block lies within one page of memory (traces/h5.c sees to it), so a kill does not cut it.
 */
#ifndef TW_TRACES_HELD_H
#define TW_TRACES_HELD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum tw_held_kind { TW_HELD_SUPERBLOCK, TW_HELD_TREE, TW_HELD_OTHER };

struct tw_held_block {
    uint64_t address;
    size_t size;
    uint8_t *bytes; /* [size] */
    enum tw_held_kind kind;
    uint32_t turn; /* when it is written, relative to the others */
};

struct tw_held {
    struct tw_held_block *block; /* [n] */
    size_t n, capacity;
};

/* Copies a block, or its new contents. False: out of memory. It must not overlap another one in part. */
bool tw_held_put(struct tw_held *held, enum tw_held_kind kind, uint64_t address, size_t size, const void *bytes);
/* Whether some held block shares bytes with the range without being exactly that range. */
bool tw_held_overlaps(const struct tw_held *held, uint64_t address, size_t size);
/* Replaces the bytes of the range that are held: what was read from the file becomes what it will be. */
void tw_held_overlay(const struct tw_held *held, uint8_t *bytes, uint64_t address, size_t size);
/* Sorts the blocks into the order above. `end`: where the file ended at the last flush. */
void tw_held_order(struct tw_held *held, uint64_t end);
void tw_held_clear(struct tw_held *held); /* frees all */

#endif
