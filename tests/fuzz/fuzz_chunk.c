/*
 * A chunk of a trace as a hostile file holds it: any pipeline, shape and element, any bytes as the compressed chunk,
 * through the decoder that stands between libhdf5 and everything else. The box that is asked for is any part of the
 * chunk's grid.
 */
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "tests/fuzz/fuzz.h"
#include "traces/dataset.h"
#include "traces/trace.h"

enum { HEAD = 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < HEAD) return 0;
    static const size_t sizes[] = {1, 2, 4, 8};
    static const size_t kind_size[] = {4, 2, 4, 1};
    _Atomic uint64_t unpacked = 0;
    struct tw_dataset dataset = {.id = -1,
                                 .path = "/fuzz",
                                 .file_path = "fuzz",
                                 .unpacked = &unpacked,
                                 .chunked = true,
                                 .shuffled = data[0] & 1,
                                 .rank = 1 + (data[0] >> 4) % TW_DATASET_MAX_RANK,
                                 .chunk_elements = 1};
    dataset.compression = (data[0] >> 1 & 3) % 3;
    dataset.element = (struct tw_element){.real = data[1] & 1,
                                          .is_signed = (data[1] & 3) == 2,
                                          .big_endian = data[1] & 4,
                                          .size = sizes[data[1] >> 3 & 3]};
    if (dataset.element.real && dataset.element.size != 2) dataset.element.size = 4;
    const enum tw_element_kind kind = dataset.element.real ? (data[1] & 32 ? TW_ELEMENT_HALF : TW_ELEMENT_F32)
                                                           : (data[1] & 32 ? TW_ELEMENT_U8 : TW_ELEMENT_I32);
    struct tw_piece piece = {.size = size - HEAD, .skipped = data[2] & 3};
    struct tw_box box = {.dataset = &dataset, .n_bytes = size - HEAD, .pieces = &piece, .n_pieces = 1};
    size_t out_elements = 1;
    for (unsigned d = 0; d < dataset.rank; d++) {
        dataset.chunk[d] = dataset.extent[d] = 1 + data[3 + d] % 32;
        box.start[d] = data[7 + d] % dataset.chunk[d];
        box.count[d] = 1 + data[11 + d] % (dataset.chunk[d] - box.start[d]);
        dataset.chunk_elements *= dataset.chunk[d];
        out_elements *= box.count[d];
    }
    dataset.chunk_bytes = dataset.chunk_elements * dataset.element.size;
    box.bytes = malloc(tw_max_size(size - HEAD, 1)); /* of exact size, so that a step beyond it is seen */
    void *const out = malloc(out_elements * kind_size[kind]);
    struct tw_trace_scratch *const scratch = tw_trace_scratch_new();
    if (box.bytes && out && scratch) {
        memcpy(box.bytes, data + HEAD, size - HEAD);
        struct tw_error err = {0};
        const tw_status status = tw_box_decode(&box, out, kind, box.start[0], box.count[0], scratch, &err);
        if (status != TW_OK && !err.text[0]) abort();
    }
    tw_trace_scratch_free(scratch);
    free(out);
    free(box.bytes);
    return 0;
}
