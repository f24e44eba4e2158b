/* Chunked prefill as it is usually run: every chunk through all layers, all KV kept. */
#include "engine/prefill/schedule.h"

static tw_status run(struct tw_prefill *prefill, const void *options, struct tw_error *err) {
    (void)options;
    return tw_prefill_chunk_major(prefill, prefill->chunk, false, err);
}

const struct tw_schedule tw_schedule_chunked = {
    .name = "chunked",
    .summary = "chunk after chunk through all layers, nothing evicted",
    .source = "TideKV, Full-Chunked",
    .evicts = false,
    .layer_major = false,
    .run = run,
};
