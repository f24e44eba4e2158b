/* The half of dataset.h that needs no lock: raw chunks to elements. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "base/checked.h"
#include "base/half.h"
#include "traces/dataset.h"
#include "traces/shuffle.h"
#include "traces/trace.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "elements are copied as they are in little-endian files");

struct tw_trace_scratch {
    ZSTD_DCtx *zstd;
    uint8_t *plain;    /* a decompressed chunk */
    uint8_t *elements; /* the same, unshuffled */
    size_t plain_capacity, elements_capacity;
};

struct tw_trace_scratch *tw_trace_scratch_new(void) {
    struct tw_trace_scratch *const scratch = calloc(1, sizeof *scratch);
    if (scratch) scratch->zstd = ZSTD_createDCtx();
    if (scratch && !scratch->zstd) {
        free(scratch);
        return NULL;
    }
    return scratch;
}

void tw_trace_scratch_free(struct tw_trace_scratch *scratch) {
    if (!scratch) return;
    ZSTD_freeDCtx(scratch->zstd);
    free(scratch->plain);
    free(scratch->elements);
    free(scratch);
}

#define REFUSE(dataset, ...) REFUSE_(dataset, __VA_ARGS__, "")
#define REFUSE_(dataset, format, ...)                                                                                  \
    TW_FAIL(err, TW_E_INPUT, "trace '%s': '%s' " format "%s", (dataset)->file_path, (dataset)->path, __VA_ARGS__)

static tw_status reserve(uint8_t **memory, size_t *capacity, size_t needed, struct tw_error *err) {
    if (needed <= *capacity) return TW_OK;
    free(*memory);
    *memory = malloc(needed);
    *capacity = *memory ? needed : 0;
    return *memory ? TW_OK : TW_FAIL(err, TW_E_MEMORY, "out of memory for a chunk of %zu bytes", needed);
}

/* Fills plain [chunk_bytes] or fails: neither shorter nor longer output is accepted. */
static const char *inflate_chunk(uint8_t *plain, size_t plain_size, const uint8_t *packed, size_t packed_size) {
    z_stream stream = {.next_in = (Bytef *)(uintptr_t)packed,
                       .avail_in = (uInt)packed_size,
                       .next_out = plain,
                       .avail_out = (uInt)plain_size};
    if (packed_size > UINT32_MAX || plain_size > UINT32_MAX || inflateInit(&stream) != Z_OK)
        return "cannot be inflated";
    const int result = inflate(&stream, Z_FINISH);
    const bool whole = result == Z_STREAM_END && stream.avail_out == 0;
    inflateEnd(&stream);
    return whole ? NULL : "is damaged (deflate)";
}

static const char *unzstd_chunk(struct tw_trace_scratch *scratch, size_t plain_size, const uint8_t *packed,
                                size_t packed_size) {
    const unsigned long long content = ZSTD_getFrameContentSize(packed, packed_size);
    if (content == ZSTD_CONTENTSIZE_ERROR) return "is damaged (no zstd frame)";
    if (content != ZSTD_CONTENTSIZE_UNKNOWN && content != plain_size)
        return "has a zstd frame of another size than its chunk";
    const size_t written = ZSTD_decompressDCtx(scratch->zstd, scratch->plain, plain_size, packed, packed_size);
    if (ZSTD_isError(written)) return ZSTD_getErrorName(written);
    return written == plain_size ? NULL : "has a zstd frame of another size than its chunk";
}

/* The decompressed bytes of a piece, still shuffled if *shuffled. */
static tw_status unpack(const uint8_t **plain, bool *shuffled, const struct tw_box *box, const struct tw_piece *piece,
                        struct tw_trace_scratch *scratch, struct tw_error *err) {
    const struct tw_dataset *const dataset = box->dataset;
    const uint8_t *const packed = box->bytes + piece->offset;
    const unsigned compressor = dataset->shuffled ? 1 : 0; /* its place in the pipeline */
    const bool skipped = dataset->compression == TW_STORED || piece->skipped >> compressor & 1;
    *shuffled = dataset->shuffled && !(piece->skipped & 1);
    atomic_fetch_add_explicit(dataset->unpacked, 1, memory_order_relaxed);
    if (skipped) {
        if (piece->size != dataset->chunk_bytes)
            return REFUSE(dataset, "at row %zu has a chunk of %zu bytes, expected %zu", piece->start[0], piece->size,
                          dataset->chunk_bytes);
        *plain = packed;
        return TW_OK;
    }
    TW_TRY(reserve(&scratch->plain, &scratch->plain_capacity, dataset->chunk_bytes, err));
    const char *const fault = dataset->compression == TW_ZSTD
                                  ? unzstd_chunk(scratch, dataset->chunk_bytes, packed, piece->size)
                                  : inflate_chunk(scratch->plain, dataset->chunk_bytes, packed, piece->size);
    if (fault) return REFUSE(dataset, "cannot be unpacked at row %zu: %s", piece->start[0], fault);
    *plain = scratch->plain;
    return TW_OK;
}

/* ---- conversion ------------------------------------------------------------------------------------------------- */

static const size_t kind_size[] = {
    [TW_ELEMENT_I32] = sizeof(int32_t),
    [TW_ELEMENT_HALF] = sizeof(uint16_t),
    [TW_ELEMENT_F32] = sizeof(float),
    [TW_ELEMENT_U8] = sizeof(uint8_t),
};

/* Whether the element's bytes are already what is wanted. */
static bool same(const struct tw_element *element, enum tw_element_kind kind) {
    const bool order = !element->big_endian || element->size == 1;
    const bool sign = kind == TW_ELEMENT_I32 ? element->is_signed : !element->is_signed;
    return order && sign && element->size == kind_size[kind];
}

static uint64_t load(const uint8_t *bytes, const struct tw_element *element) {
    uint64_t value = 0;
    for (size_t b = 0; b < element->size; b++)
        value |= (uint64_t)bytes[element->big_endian ? element->size - 1 - b : b] << 8 * b;
    return value;
}

/* False when the value does not fit. */
static bool convert_integer(int64_t *value, uint64_t bits, const struct tw_element *element) {
    const unsigned width = (unsigned)(8 * element->size);
    if (!element->is_signed) {
        *value = (int64_t)bits;
        return bits <= INT64_MAX;
    }
    *value = (int64_t)(bits << (64 - width)) >> (64 - width);
    return true;
}

static bool convert(void *out, size_t n, const uint8_t *in, const struct tw_element *element,
                    enum tw_element_kind kind) {
    for (size_t i = 0; i < n; i++, in += element->size) {
        const uint64_t bits = load(in, element);
        int64_t integer = 0;
        float real = 0;
        if (element->real)
            real = element->size == 2 ? tw_float_from_half((uint16_t)bits) : tw_float_from_bits((uint32_t)bits);
        else if (!convert_integer(&integer, bits, element))
            return false;
        switch (kind) {
        case TW_ELEMENT_I32:
            if (integer < INT32_MIN || integer > INT32_MAX) return false;
            ((int32_t *)out)[i] = (int32_t)integer;
            break;
        case TW_ELEMENT_U8:
            if (integer < 0 || integer > UINT8_MAX) return false;
            ((uint8_t *)out)[i] = (uint8_t)integer;
            break;
        case TW_ELEMENT_HALF:
            ((uint16_t *)out)[i] = element->size == 2 ? (uint16_t)bits : tw_half_from_float(real);
            break;
        case TW_ELEMENT_F32: ((float *)out)[i] = real; break;
        }
    }
    return true;
}

/* ---- from a chunk to its place in the output ----------------------------------------------------------------------
 */

/* The part of a piece that is asked for: [from, to) of the dataset along each dimension. */
struct part {
    size_t from[TW_DATASET_MAX_RANK], to[TW_DATASET_MAX_RANK];
};

static bool spans_box(const struct tw_box *box, const struct tw_piece *piece) {
    for (unsigned d = 1; d < box->dataset->rank; d++)
        if (piece->start[d] != box->start[d] || box->dataset->chunk[d] != box->count[d]) return false;
    return true;
}

/* elements [chunk] to out, run by run along the last dimension. */
static bool scatter(const struct tw_box *box, uint8_t *out, enum tw_element_kind kind, size_t first,
                    const struct tw_piece *piece, const struct part *part, const uint8_t *elements) {
    const struct tw_dataset *const dataset = box->dataset;
    const unsigned last = dataset->rank - 1;
    const size_t run = part->to[last] - part->from[last];
    size_t at[TW_DATASET_MAX_RANK];
    memcpy(at, part->from, sizeof at);
    for (;;) {
        size_t in_chunk = 0, in_out = 0;
        for (unsigned d = 0; d < dataset->rank; d++) {
            in_chunk = in_chunk * dataset->chunk[d] + (at[d] - piece->start[d]);
            in_out = in_out * box->count[d] + (at[d] - (d ? box->start[d] : first));
        }
        uint8_t *const to = out + in_out * kind_size[kind];
        const uint8_t *const from = elements + in_chunk * dataset->element.size;
        if (same(&dataset->element, kind))
            memcpy(to, from, run * kind_size[kind]);
        else if (!convert(to, run, from, &dataset->element, kind))
            return false;
        unsigned d = last;
        for (;;) {
            if (d == 0) return true;
            d--;
            if (++at[d] < part->to[d]) break;
            at[d] = part->from[d];
        }
    }
}

static tw_status decode_piece(const struct tw_box *box, uint8_t *out, enum tw_element_kind kind, size_t first, size_t n,
                              const struct tw_piece *piece, struct tw_trace_scratch *scratch, struct tw_error *err) {
    const struct tw_dataset *const dataset = box->dataset;
    const size_t size = dataset->element.size;
    struct part part;
    for (unsigned d = 0; d < dataset->rank; d++) {
        const size_t begin = d ? box->start[d] : first, end = begin + (d ? box->count[d] : n);
        part.from[d] = tw_max_size(begin, piece->start[d]);
        part.to[d] = tw_min_size(end, piece->start[d] + dataset->chunk[d]);
        assert(part.from[d] < part.to[d]);
    }
    const uint8_t *plain = NULL;
    bool shuffled = false;
    TW_TRY(unpack(&plain, &shuffled, box, piece, scratch, err));
    if (same(&dataset->element, kind) && spans_box(box, piece)) { /* our own files: straight to its place */
        const size_t row = dataset->chunk_elements / dataset->chunk[0];
        const size_t skip = (part.from[0] - piece->start[0]) * row, count = (part.to[0] - part.from[0]) * row;
        uint8_t *const to = out + (part.from[0] - first) * row * size;
        if (shuffled)
            tw_unshuffle(to, plain, dataset->chunk_elements, skip, count, size);
        else
            memcpy(to, plain + skip * size, count * size);
        return TW_OK;
    }
    if (shuffled) {
        TW_TRY(reserve(&scratch->elements, &scratch->elements_capacity, dataset->chunk_bytes, err));
        tw_unshuffle(scratch->elements, plain, dataset->chunk_elements, 0, dataset->chunk_elements, size);
        plain = scratch->elements;
    }
    if (!scatter(box, out, kind, first, piece, &part, plain))
        return REFUSE(dataset, "has a value out of range near row %zu", part.from[0]);
    return TW_OK;
}

tw_status tw_box_decode(const struct tw_box *box, void *out, enum tw_element_kind kind, size_t first, size_t n,
                        struct tw_trace_scratch *scratch, struct tw_error *err) {
    const struct tw_dataset *const dataset = box->dataset;
    assert(first >= box->start[0] && first + n <= box->start[0] + box->count[0]);
    size_t row = 1;
    for (unsigned d = 1; d < dataset->rank; d++) row *= box->count[d];
    if (n == 0 || row == 0) return TW_OK;
    if (!dataset->chunked) {
        const uint8_t *const from = box->bytes + (first - box->start[0]) * row * dataset->element.size;
        if (same(&dataset->element, kind))
            memcpy(out, from, n * row * kind_size[kind]);
        else if (!convert(out, n * row, from, &dataset->element, kind))
            return REFUSE(dataset, "has a value out of range near row %zu", first);
        return TW_OK;
    }
    size_t in_row = 1; /* chunks side by side in one row of chunks */
    for (unsigned d = 1; d < dataset->rank; d++)
        in_row *= (box->start[d] + box->count[d] - 1) / dataset->chunk[d] - box->start[d] / dataset->chunk[d] + 1;
    const size_t chunk_steps = dataset->chunk[0], top = box->start[0] / chunk_steps;
    const size_t from = (first / chunk_steps - top) * in_row, to = ((first + n - 1) / chunk_steps - top + 1) * in_row;
    assert(to <= box->n_pieces);
    for (size_t i = from; i < to; i++) TW_TRY(decode_piece(box, out, kind, first, n, &box->pieces[i], scratch, err));
    return TW_OK;
}

tw_status tw_dataset_read(const struct tw_dataset *dataset, void *out, enum tw_element_kind kind, const size_t *start,
                          const size_t *count, struct tw_error *err) {
    struct tw_box box = {0};
    struct tw_trace_scratch *const scratch = tw_trace_scratch_new();
    tw_status status = scratch ? tw_box_read(&box, dataset, start, count, err)
                               : TW_FAIL(err, TW_E_MEMORY, "out of memory for a decompressor");
    if (status == TW_OK) status = tw_box_decode(&box, out, kind, start[0], count[0], scratch, err);
    tw_box_release(&box);
    tw_trace_scratch_free(scratch);
    return status;
}
