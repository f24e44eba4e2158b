/* A GGUF file from its first byte to the last weight: header, configuration, tensors, vocabulary. */
#include <stdlib.h>
#include <string.h>

#include "engine/model/model_files.h"
#include "tests/fuzz/engine/touch.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct tw_model *model = tw_fuzz_model();
    struct tw_gguf *gguf = malloc(sizeof *gguf);
    struct tw_error err = {0};
    model->files->gguf = gguf;
    if (tw_gguf_parse(gguf, model->path, data, size, &err) == TW_OK) {
        model->files->n_gguf = 1;
        for (size_t i = 0; i < gguf->n_keys; i++) {
            if (gguf->keys[i].type != TW_GGUF_ARRAY) continue;
            struct tw_gguf_strings strings = tw_gguf_strings(&gguf->keys[i].array);
            struct tw_view string;
            while (tw_gguf_strings_next(&string, &strings)) tw_fuzz_touch(string.data, string.size);
            tw_fuzz_touch(gguf->keys[i].array.data, gguf->keys[i].array.size);
        }
        if (tw_model_finish_gguf(model, &err) == TW_OK) tw_fuzz_touch_model(model);
    }
    tw_model_free(model);
    return 0;
}
