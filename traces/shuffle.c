#include "traces/shuffle.h"

#include <string.h>

/* The sizes of weights and positions are spelled out as loops that compilers turn into byte interleaving. */

static void shuffle_2(uint8_t *restrict planes, const uint8_t *restrict elements, size_t n) {
    uint8_t *restrict const p0 = planes, *restrict const p1 = planes + n;
    for (size_t i = 0; i < n; i++) {
        p0[i] = elements[2 * i];
        p1[i] = elements[2 * i + 1];
    }
}

static void shuffle_4(uint8_t *restrict planes, const uint8_t *restrict elements, size_t n) {
    uint8_t *restrict const p0 = planes, *restrict const p1 = planes + n;
    uint8_t *restrict const p2 = planes + 2 * n, *restrict const p3 = planes + 3 * n;
    for (size_t i = 0; i < n; i++) {
        p0[i] = elements[4 * i];
        p1[i] = elements[4 * i + 1];
        p2[i] = elements[4 * i + 2];
        p3[i] = elements[4 * i + 3];
    }
}

void tw_shuffle(uint8_t *restrict planes, const uint8_t *restrict elements, size_t n, size_t size) {
    switch (size) {
    case 1: memcpy(planes, elements, n); return;
    case 2: shuffle_2(planes, elements, n); return;
    case 4: shuffle_4(planes, elements, n); return;
    }
    for (size_t b = 0; b < size; b++)
        for (size_t i = 0; i < n; i++) planes[b * n + i] = elements[i * size + b];
}

static void unshuffle_2(uint8_t *restrict elements, const uint8_t *restrict p0, const uint8_t *restrict p1,
                        size_t count) {
    for (size_t i = 0; i < count; i++) {
        const uint16_t value = (uint16_t)(p0[i] | p1[i] << 8);
        memcpy(elements + 2 * i, &value, 2);
    }
}

static void unshuffle_4(uint8_t *restrict elements, const uint8_t *restrict p0, const uint8_t *restrict p1,
                        const uint8_t *restrict p2, const uint8_t *restrict p3, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const uint32_t value = p0[i] | (uint32_t)p1[i] << 8 | (uint32_t)p2[i] << 16 | (uint32_t)p3[i] << 24;
        memcpy(elements + 4 * i, &value, 4);
    }
}

void tw_unshuffle(uint8_t *restrict elements, const uint8_t *restrict planes, size_t n, size_t first, size_t count,
                  size_t size) {
    const uint8_t *const p = planes + first;
    switch (size) {
    case 1: memcpy(elements, p, count); return;
    case 2: unshuffle_2(elements, p, p + n, count); return;
    case 4: unshuffle_4(elements, p, p + n, p + 2 * n, p + 3 * n, count); return;
    }
    for (size_t b = 0; b < size; b++)
        for (size_t i = 0; i < count; i++) elements[i * size + b] = p[b * n + i];
}
