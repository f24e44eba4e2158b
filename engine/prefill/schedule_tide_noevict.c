/* TideKV's order without its eviction: what layer-major chunking alone does. */
#include "engine/prefill/schedule.h"

static tw_status run(struct tw_prefill *prefill, const void *options, struct tw_error *err) {
    (void)options;
    return tw_prefill_layer_major(prefill, prefill->chunk, false, err);
}

const struct tw_schedule tw_schedule_tide_noevict = {
    .name = "tide-noevict",
    .summary = "layer-major in chunks, nothing evicted",
    .source = "TideKV, Tide-NoEvict",
    .evicts = false,
    .layer_major = true,
    .run = run,
};
