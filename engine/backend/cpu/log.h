/* The log of an attention row: its greatest weights and where they stand. */
#ifndef TW_ENGINE_BACKEND_CPU_LOG_H
#define TW_ENGINE_BACKEND_CPU_LOG_H

#include "engine/backend/cpu/cpu.h"

/*
 * Fills head h of the log from a whole row: weight[r] of rows [first, end) of KV head g, for a query at `position`.
 * `workspace`: tw_cpu_top_bytes(top_k). Writes to log entries of head h alone, so heads may be filled in parallel.
 */
void tw_cpu_log_head(const struct tw_backend *b, struct tw_attention_log *log, size_t h, const struct tw_kv *kv,
                     size_t g, const float *weight, size_t first, size_t end, size_t position, void *workspace);

#endif
