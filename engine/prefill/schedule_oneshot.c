/* The whole prompt at once, layer after layer, every layer's KV kept: what the others are compared with. */
#include "engine/prefill/schedule.h"

static tw_status run(struct tw_prefill *prefill, const void *options, struct tw_error *err) {
    (void)options;
    return tw_prefill_layer_major(prefill, prefill->n_tokens, false, err);
}

const struct tw_schedule tw_schedule_oneshot = {
    .name = "oneshot",
    .summary = "whole prompt, layer after layer, nothing evicted",
    .source = "TideKV, Full-OneShot",
    .evicts = false,
    .whole_prompt = true,
    .layer_major = true,
    .run = run,
};
