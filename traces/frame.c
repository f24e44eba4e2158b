#include "traces/frame.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

enum { BLOCK_STORED, BLOCK_RUN };
enum { BLOCK_HEADER = 3, BLOCK_MOST = 1 << 17, FRAME_HEADER = 9, CHECKSUM = 4, PARTS = 4 };

static uint32_t get(const uint8_t *bytes, unsigned n) {
    uint32_t value = 0;
    for (unsigned b = 0; b < n; b++) value |= (uint32_t)bytes[b] << 8 * b;
    return value;
}

static void put(uint8_t *bytes, uint32_t value, unsigned n) {
    for (unsigned b = 0; b < n; b++) bytes[b] = (uint8_t)(value >> 8 * b);
}

/* ---- XXH64, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md, with seed 0 ---- */

static const uint64_t prime[5] = {0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
                                  0x27D4EB2F165667C5};

static uint64_t rotate(uint64_t value, unsigned bits) { return value << bits | value >> (64 - bits); }

static uint64_t load_64(const uint8_t *bytes) {
    uint64_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

static uint64_t mix(uint64_t lane, uint64_t input) { return rotate(lane + input * prime[1], 31) * prime[0]; }

static uint64_t xxh64(const uint8_t *bytes, size_t n) {
    const uint8_t *const end = bytes + n;
    uint64_t hash = prime[4];
    if (n >= 32) {
        uint64_t lane[4] = {prime[0] + prime[1], prime[1], 0, -prime[0]};
        for (; end - bytes >= 32; bytes += 32)
            for (unsigned i = 0; i < 4; i++) lane[i] = mix(lane[i], load_64(bytes + 8 * i));
        hash = rotate(lane[0], 1) + rotate(lane[1], 7) + rotate(lane[2], 12) + rotate(lane[3], 18);
        for (unsigned i = 0; i < 4; i++) hash = (hash ^ mix(0, lane[i])) * prime[0] + prime[3];
    }
    hash += n;
    for (; end - bytes >= 8; bytes += 8) hash = rotate(hash ^ mix(0, load_64(bytes)), 27) * prime[0] + prime[3];
    if (end - bytes >= 4) {
        hash = rotate(hash ^ get(bytes, 4) * prime[0], 23) * prime[1] + prime[2];
        bytes += 4;
    }
    for (; bytes < end; bytes++) hash = rotate(hash ^ *bytes * prime[4], 11) * prime[0];
    hash = (hash ^ hash >> 33) * prime[1];
    hash = (hash ^ hash >> 29) * prime[2];
    return hash ^ hash >> 32;
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "load_64 takes words as they are in memory");

/* ---- the frame ---- */

/* zstd adds no more than a header to a block that it cannot compress, and nothing to a frame but what is here. */
size_t tw_frame_bound(size_t content_bytes) {
    return FRAME_HEADER + content_bytes + (content_bytes / BLOCK_MOST + PARTS) * BLOCK_HEADER + CHECKSUM;
}

void tw_frame_begin(struct tw_frame *frame, uint8_t *bytes, size_t content_bytes) {
    assert(content_bytes <= UINT32_MAX);
    *frame = (struct tw_frame){.bytes = bytes, .size = FRAME_HEADER, .last = FRAME_HEADER};
    put(bytes, 0xFD2FB528, 4);
    bytes[4] = 2 << 6 | 1 << 5 | 1 << 2; /* 4 bytes of content size; a single segment; a checksum */
    put(bytes + 5, (uint32_t)content_bytes, 4);
}

static void put_header(struct tw_frame *frame, unsigned type, size_t n) {
    frame->last = frame->size;
    put(frame->bytes + frame->size, (uint32_t)(n << 3 | type << 1), BLOCK_HEADER);
    frame->size += BLOCK_HEADER;
}

void tw_frame_put_stored(struct tw_frame *frame, const uint8_t *content, size_t n) {
    for (size_t at = 0; at < n; at += BLOCK_MOST) {
        const size_t part = n - at < BLOCK_MOST ? n - at : BLOCK_MOST;
        put_header(frame, BLOCK_STORED, part);
        memcpy(frame->bytes + frame->size, content + at, part);
        frame->size += part;
    }
}

void tw_frame_put_run(struct tw_frame *frame, uint8_t byte, size_t n) {
    for (size_t at = 0; at < n; at += BLOCK_MOST) {
        put_header(frame, BLOCK_RUN, n - at < BLOCK_MOST ? n - at : BLOCK_MOST);
        frame->bytes[frame->size++] = byte;
    }
}

void tw_frame_put_frame(struct tw_frame *frame, const uint8_t *other, size_t other_size) {
    const unsigned descriptor = other[4], single = descriptor >> 5 & 1, size_flag = descriptor >> 6;
    assert(!(descriptor & 7)); /* neither a dictionary nor a checksum */
    size_t at = 5 + !single + (size_flag ? (size_t)1 << size_flag : single);
    for (bool last = false; !last;) {
        const uint32_t header = get(other + at, BLOCK_HEADER);
        const size_t size = BLOCK_HEADER + ((header >> 1 & 3) == BLOCK_RUN ? 1 : header >> 3);
        assert(size <= other_size - at);
        last = header & 1;
        memcpy(frame->bytes + frame->size, other + at, size);
        frame->last = frame->size;
        frame->bytes[frame->last] &= (uint8_t)~1u;
        frame->size += size;
        at += size;
    }
    assert(at == other_size);
}

void tw_frame_end(struct tw_frame *frame, const uint8_t *content, size_t content_bytes) {
    if (frame->size == FRAME_HEADER) put_header(frame, BLOCK_STORED, 0);
    frame->bytes[frame->last] |= 1;
    put(frame->bytes + frame->size, (uint32_t)xxh64(content, content_bytes), CHECKSUM);
    frame->size += CHECKSUM;
}
