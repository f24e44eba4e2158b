#include "traces/filter.h"

#include <stdint.h>
#include <stdlib.h>
#include <zstd.h>

/* A chunk of HDF5 is smaller than this; a frame that claims more is hostile. */
static const unsigned long long largest_chunk = UINT32_MAX;

static size_t decompress(size_t n_bytes, size_t *capacity, void **buffer) {
    const unsigned long long content = ZSTD_getFrameContentSize(*buffer, n_bytes);
    if (content == ZSTD_CONTENTSIZE_ERROR) return 0;
    /* Without a size in the frame (streaming writers) the output grows until it fits. */
    const int known = content != ZSTD_CONTENTSIZE_UNKNOWN;
    if (known && content > largest_chunk) return 0;
    size_t size = known ? (size_t)content : n_bytes * 4;
    for (;;) {
        void *const output = malloc(size ? size : 1);
        if (!output) return 0;
        const size_t written = ZSTD_decompress(output, size, *buffer, n_bytes);
        if (!ZSTD_isError(written)) {
            free(*buffer);
            *buffer = output;
            *capacity = size;
            return written;
        }
        free(output);
        if (known || size > largest_chunk / 2) return 0;
        size *= 2;
    }
}

static size_t compress(int level, size_t n_bytes, size_t *capacity, void **buffer) {
    const size_t bound = ZSTD_compressBound(n_bytes);
    void *const output = malloc(bound);
    if (!output) return 0;
    const size_t written = ZSTD_compress(output, bound, *buffer, n_bytes, level);
    if (ZSTD_isError(written)) {
        free(output);
        return 0;
    }
    free(*buffer);
    *buffer = output;
    *capacity = bound;
    return written;
}

/* 0 means failure to libhdf5. Buffers come from and go to malloc, as libhdf5's own do. */
static size_t filter(unsigned flags, size_t n_values, const unsigned values[], size_t n_bytes, size_t *capacity,
                     void **buffer) {
    if (flags & H5Z_FLAG_REVERSE) return decompress(n_bytes, capacity, buffer);
    return compress(n_values ? (int)values[0] : ZSTD_CLEVEL_DEFAULT, n_bytes, capacity, buffer);
}

const H5Z_class2_t tw_filter_zstd = {
    .version = H5Z_CLASS_T_VERS,
    .id = TW_FILTER_ZSTD,
    .encoder_present = 1,
    .decoder_present = 1,
    .name = "zstd",
    .filter = filter,
};
