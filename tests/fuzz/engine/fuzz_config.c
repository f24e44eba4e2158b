/* config.json, to a model without weights; and the same text as generation_config.json. */
#include "engine/model/model_files.h"
#include "tests/fuzz/engine/touch.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const struct tw_view text = {(const char *)data, size};
    struct tw_model *model = tw_fuzz_model();
    struct tw_error err = {0};
    if (tw_model_finish_config(model, text, &err) == TW_OK) tw_fuzz_touch_model(model);
    tw_model_free(model);
    struct tw_recipe recipe = {0};
    (void)tw_recipe_add_generation(&recipe, text, "fuzz", &err);
    return 0;
}
