/*
 * A zstd frame (RFC 8878, 3.1.1) put together block by block. zstd itself tries to compress all that it is given; here
 * the caller, who knows which bytes are noise, says so. Any decompressor reads the result. For this floor only.
 */
#ifndef TW_TRACES_FRAME_H
#define TW_TRACES_FRAME_H

#include <stddef.h>
#include <stdint.h>

struct tw_frame {
    uint8_t *bytes; /* the caller's */
    size_t size;    /* so far */
    size_t last;    /* where the last block's header is */
};

/* What a frame of so many bytes of content takes at most, in up to 4 parts. */
size_t tw_frame_bound(size_t content_bytes);

/* Begins a frame in bytes [tw_frame_bound(content_bytes)]. content_bytes < 2^32; it is stated at the frame's head. */
void tw_frame_begin(struct tw_frame *frame, uint8_t *bytes, size_t content_bytes);

/* The parts of the content, in order. */
void tw_frame_put_stored(struct tw_frame *frame, const uint8_t *content, size_t n);
void tw_frame_put_run(struct tw_frame *frame, uint8_t byte, size_t n);
/*
 * A frame that zstd made, without a checksum: its blocks. One of a frame's parts at most is such a one, since blocks
 * refer to the offsets of matches in compressed blocks before them.
 */
void tw_frame_put_frame(struct tw_frame *frame, const uint8_t *other, size_t other_size);

/* Marks the end and adds the content's checksum: readers notice flipped bits. */
void tw_frame_end(struct tw_frame *frame, const uint8_t *content, size_t content_bytes);

#endif
