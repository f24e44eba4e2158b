/* TideKV: a layer runs over all chunks with its full KV, then only what the selector keeps stays. */
#include "engine/prefill/schedule.h"

static tw_status run(struct tw_prefill *prefill, const void *options, struct tw_error *err) {
    (void)options;
    return tw_prefill_layer_major(prefill, prefill->chunk, prefill->selection.budget != 0, err);
}

const struct tw_schedule tw_schedule_tide = {
    .name = "tide",
    .summary = "layer-major in chunks, each layer compressed when it is done",
    .source = "TideKV, sections 3 and 4",
    .evicts = true,
    .layer_major = true,
    .run = run,
};
