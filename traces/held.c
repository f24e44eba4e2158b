#include "traces/held.h"

#include <stdlib.h>
#include <string.h>

bool tw_held_put(struct tw_held *held, enum tw_held_kind kind, uint64_t address, size_t size, const void *bytes) {
    size_t i = 0;
    while (i < held->n && held->block[i].address != address) i++;
    if (i == held->n) {
        if (held->n == held->capacity) {
            const size_t capacity = held->capacity ? 2 * held->capacity : 32;
            struct tw_held_block *const larger = realloc(held->block, capacity * sizeof *larger);
            if (!larger) return false;
            held->block = larger;
            held->capacity = capacity;
        }
        uint8_t *const room = malloc(size ? size : 1);
        if (!room) return false;
        held->block[held->n++] = (struct tw_held_block){.address = address, .size = size, .bytes = room};
    }
    held->block[i].kind = kind;
    memcpy(held->block[i].bytes, bytes, size);
    return true;
}

static bool meets(const struct tw_held_block *block, uint64_t address, size_t size) {
    return block->address < address + size && address < block->address + block->size;
}

bool tw_held_overlaps(const struct tw_held *held, uint64_t address, size_t size) {
    for (size_t i = 0; i < held->n; i++) {
        const struct tw_held_block *const block = &held->block[i];
        if (meets(block, address, size) && (block->address != address || block->size != size)) return true;
    }
    return false;
}

void tw_held_overlay(const struct tw_held *held, uint8_t *bytes, uint64_t address, size_t size) {
    for (size_t i = 0; i < held->n; i++) {
        const struct tw_held_block *const block = &held->block[i];
        if (!meets(block, address, size)) continue;
        const uint64_t from = block->address > address ? block->address : address;
        const uint64_t block_end = block->address + block->size, end = address + size;
        const uint64_t to = block_end < end ? block_end : end;
        memcpy(bytes + (from - address), block->bytes + (from - block->address), (size_t)(to - from));
    }
}

enum { LEVELS = 256 };

static uint32_t turn_of(const struct tw_held_block *block, uint64_t end) {
    if (block->kind == TW_HELD_SUPERBLOCK) return 1;
    if (block->address >= end) return 0;
    /* HDF5 file format, III.A.1: "TREE", the type of node, its level. (A group's list of symbols, "SNOD", has none.) */
    if (block->kind == TW_HELD_TREE)
        return 2 + LEVELS - (block->size > 5 && !memcmp(block->bytes, "TREE", 4) ? block->bytes[5] : 0u);
    return 3 + LEVELS;
}

static int by_turn(const void *a, const void *b) {
    const struct tw_held_block *x = a, *y = b;
    if (x->turn != y->turn) return x->turn < y->turn ? -1 : 1;
    return (x->address < y->address) - (x->address > y->address);
}

void tw_held_order(struct tw_held *held, uint64_t end) {
    for (size_t i = 0; i < held->n; i++) held->block[i].turn = turn_of(&held->block[i], end);
    if (held->n) qsort(held->block, held->n, sizeof *held->block, by_turn);
}

void tw_held_clear(struct tw_held *held) {
    for (size_t i = 0; i < held->n; i++) free(held->block[i].bytes);
    free(held->block);
    *held = (struct tw_held){0};
}
