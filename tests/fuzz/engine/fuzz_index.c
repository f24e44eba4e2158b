/* The index of a sharded model. */
#include <stdlib.h>

#include "engine/model/safetensors.h"
#include "tests/fuzz/engine/touch.h"
#include "tests/fuzz/fuzz.h"

static tw_status take(void *context, struct tw_view tensor, struct tw_view file, struct tw_error *err) {
    (void)context;
    (void)err;
    if (file.size == 0 || memchr(file.data, '/', file.size)) abort(); /* only names inside the folder get here */
    tw_fuzz_touch(tensor.data, tensor.size);
    return TW_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct tw_error err = {0};
    (void)tw_safetensors_read_index((struct tw_view){(const char *)data, size}, "fuzz", take, NULL, &err);
    return 0;
}
