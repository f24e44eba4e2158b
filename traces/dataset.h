/*
 * One dataset of a trace, read without libhdf5's filter pipeline: the raw chunks under the lock, then decompressing,
 * unshuffling and converting on any thread. For this floor only.
 *
 * Accepted storage: contiguous, or chunked with at most shuffle followed by deflate or zstd. Accepted elements:
 * integers of 1 to 8 bytes, IEEE half and single floats, either byte order.
 */
#ifndef TW_TRACES_DATASET_H
#define TW_TRACES_DATASET_H

#include <hdf5.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define TW_DATASET_MAX_RANK 4

struct tw_element {
    bool real, is_signed, big_endian;
    size_t size; /* bytes */
};

/* What elements are converted to. */
enum tw_element_kind { TW_ELEMENT_I32, TW_ELEMENT_HALF, TW_ELEMENT_F32, TW_ELEMENT_U8 };

struct tw_dataset {
    hid_t id; /* -1: the file has no such dataset */
    const char *path;
    const char *file_path;
    unsigned rank;
    size_t extent[TW_DATASET_MAX_RANK];
    size_t chunk[TW_DATASET_MAX_RANK]; /* of a contiguous dataset: [1, extent, ...] */
    struct tw_element element;
    bool chunked, shuffled;
    enum { TW_STORED, TW_DEFLATED, TW_ZSTD } compression;
    size_t chunk_elements, chunk_bytes; /* of an unpacked chunk */
    uint64_t file_size;                 /* no chunk is larger */
    _Atomic uint64_t *unpacked;         /* counts unpacked chunks */
};

/*
 * Opens `path` in `file`, or sets id to -1 when it is not there. Refuses another rank than `rank`, another class of
 * elements (`real`), other storage. The strings must outlive the dataset. Close with tw_dataset_close. Takes the lock.
 */
tw_status tw_dataset_open(struct tw_dataset *dataset, hid_t file, const char *path, unsigned rank, bool real,
                          const char *file_path, uint64_t file_size, _Atomic uint64_t *unpacked, struct tw_error *err);
void tw_dataset_close(struct tw_dataset *dataset);

/* Fails unless there are as many chunks in the file as the extent calls for (so that the extent can be believed). */
tw_status tw_dataset_check_chunks(const struct tw_dataset *dataset, struct tw_error *err);
/* The number of chunk rows (along the first dimension) at the front that are all in the file, at most n_rows. */
size_t tw_dataset_stored_rows(const struct tw_dataset *dataset, size_t n_rows);

/* One chunk as it is in the file. */
struct tw_piece {
    size_t offset, size; /* in the box's bytes */
    uint32_t skipped;    /* bit i: filter i was not applied */
    size_t start[TW_DATASET_MAX_RANK];
};

/* A box of a dataset, as raw chunks. Zero-initialise; reuse for other boxes keeps the memory. */
struct tw_box {
    const struct tw_dataset *dataset;
    size_t start[TW_DATASET_MAX_RANK], count[TW_DATASET_MAX_RANK];
    uint8_t *bytes; /* [n_bytes] */
    size_t n_bytes, capacity;
    struct tw_piece *pieces; /* [n_pieces] row major in the grid of chunks */
    size_t n_pieces, pieces_capacity;
};

/* The box must lie inside the extent. Takes the lock. */
tw_status tw_box_read(struct tw_box *box, const struct tw_dataset *dataset, const size_t *start, const size_t *count,
                      struct tw_error *err);
void tw_box_release(struct tw_box *box);

struct tw_trace_scratch;

/*
 * Unpacks rows [first, first + n) (of the dataset's first dimension, inside the box) to out [n][count[1]]...: int32_t,
 * uint16_t, float or uint8_t by `kind`. Pure but for the scratch, which may be used by one thread at a time.
 */
tw_status tw_box_decode(const struct tw_box *box, void *out, enum tw_element_kind kind, size_t first, size_t n,
                        struct tw_trace_scratch *scratch, struct tw_error *err);

/* Reads and decodes at once. */
tw_status tw_dataset_read(const struct tw_dataset *dataset, void *out, enum tw_element_kind kind, const size_t *start,
                          const size_t *count, struct tw_error *err);

#endif
