/* An array of a log: parsed, and every element read. */
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "traces/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct tw_npy npy;
    struct tw_error err = {0};
    if (tw_npy_parse(&npy, data, size, "fuzz", &err) != TW_OK) {
        if (!err.text[0]) abort();
        return 0;
    }
    size_t row = 1;
    for (unsigned d = 1; d < npy.rank; d++) row *= npy.shape[d];
    if (npy.rank == 0 || row > size) return 0; /* a row without elements may claim any length */
    void *const out = malloc(row * 4 + 1);
    const enum tw_npy_target target = npy.kind == 'f' ? TW_NPY_F32 : TW_NPY_I32;
    for (size_t i = 0; out && i < npy.shape[0] && i < size; i++) tw_npy_slab(&npy, out, target, i);
    if (out && npy.kind != 'f' && npy.shape[0]) tw_npy_slab(&npy, out, TW_NPY_U8, 0);
    free(out);
    return 0;
}
