#include "traces/frame.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>
#include <xxhash.h>

#include "base/checked.h"

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
        const size_t part = tw_min_size(n - at, BLOCK_MOST);
        put_header(frame, BLOCK_STORED, part);
        memcpy(frame->bytes + frame->size, content + at, part);
        frame->size += part;
    }
}

void tw_frame_put_run(struct tw_frame *frame, uint8_t byte, size_t n) {
    for (size_t at = 0; at < n; at += BLOCK_MOST) {
        put_header(frame, BLOCK_RUN, tw_min_size(n - at, BLOCK_MOST));
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
    put(frame->bytes + frame->size, (uint32_t)XXH64(content, content_bytes, 0), CHECKSUM);
    frame->size += CHECKSUM;
}
