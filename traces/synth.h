/*
 * Synthetic traces that look like a decoder's: attention sinks at the first tokens, a local window of each head's own
 * width, scores of 16-token pages that drift, bursts towards far pages, and a needle to which some heads turn, some of
 * them copying it token by token. For benchmarks and for trying things out; no model stands behind them.
 *
 * Defaults of the shape of an 8B model's chain of thought (2048 steps, 32 layers, 32 heads, 64 positions a row) demand
 * about 20 pages of 16 tokens a step and head, and `reactive` misses about 0.6, 0.35, 0.08 and 0.01 of them with
 * budgets of 8, 16, 32 and 64 pages.
 */
#ifndef TW_TRACES_SYNTH_H
#define TW_TRACES_SYNTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/progress.h"

struct tw_synth_options {
    uint64_t n_steps, n_layers, n_heads, n_kv_heads, top_k;
    uint64_t prompt_length; /* at least 1 */
    uint64_t seed;
    bool force; /* overwrite a complete trace */
    bool weight_float;
};

/*
 * Writes a whole trace; the same options give the same bytes whatever the number of threads. Polls tw_stop_requested:
 * TW_E_INTERRUPTED, the steps so far kept and marked incomplete.
 */
tw_status tw_synth_write(const char *path, const struct tw_synth_options *options, struct tw_progress *progress,
                         struct tw_error *err);

#endif
