/* The header of a safetensors file. */
#include "engine/model/safetensors.h"
#include "tests/fuzz/engine/touch.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct tw_safetensors file;
    struct tw_error err = {0};
    if (tw_safetensors_parse(&file, "fuzz", data, size, &err) != TW_OK) return 0;
    for (size_t i = 0; i < file.n_tensors; i++) {
        const struct tw_safetensors_tensor *tensor = &file.tensors[i];
        tw_fuzz_touch(tensor->name.data, tensor->name.size);
        tw_fuzz_touch(tensor->data, tensor->end - tensor->begin);
    }
    tw_safetensors_release(&file);
    return 0;
}
