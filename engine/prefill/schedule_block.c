/* Immediate eviction: later chunks attend to what is left of the earlier ones. */
#include "engine/prefill/schedule.h"

static tw_status run(struct tw_prefill *prefill, const void *options, struct tw_error *err) {
    (void)options;
    return tw_prefill_chunk_major(prefill, prefill->chunk, prefill->selection.budget != 0, err);
}

const struct tw_schedule tw_schedule_block = {
    .name = "block",
    .summary = "chunk after chunk, every layer trimmed to the budget after every chunk",
    .source = "TideKV, immediate eviction",
    .evicts = true,
    .layer_major = false,
    .run = run,
};
