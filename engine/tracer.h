/*
 * The tracer: what a run leaves in its trace file (spec: trace.md). Step 0 is the row of the last prompt token, taken
 * at the end of every layer while its KV is as that token saw it, in every schedule; every decoded token adds a step.
 */
#ifndef TW_ENGINE_TRACER_H
#define TW_ENGINE_TRACER_H

#include "engine/encode.h"
#include "engine/engine.h"
#include "traces/writer.h"

/* Positions below the first, and the last of the second, are not in a needle score's denominator (spec: churn.md). */
enum { TW_SINK_TOKENS = 4, TW_LOCAL_WINDOW = 32 };

struct tw_tracer_options {
    const char *path;
    size_t top_k; /* at least 1 */
    bool needle, copy_paste, window_vote, key, kept;
    bool weight_float, force;
};

struct tw_tracer; /* one run's */

/*
 * Checks what is asked for against engine and prompt (TW_E_OPTION), estimates the file's size for n_steps and compares
 * it with what the disk has (TW_E_IO), and creates the file. `info` has the names (model, task, ...); what the engine
 * knows is filled in here. On failure *tracer is NULL and no file has been made.
 */
tw_status tw_tracer_create(struct tw_tracer **tracer, struct tw_engine *engine, const struct tw_encoded *prompt,
                           const struct tw_trace_info *info, const struct tw_tracer_options *options, size_t n_steps,
                           struct tw_error *err);
/* To be handed to tw_engine_prefill. */
const struct tw_watch *tw_tracer_watch(const struct tw_tracer *tracer);
/* [n_layers], to be handed to tw_engine_decode. */
struct tw_attention_log *tw_tracer_log(struct tw_tracer *tracer);
/* Appends a step: its row is in the log, `token` is what it generated. */
tw_status tw_tracer_step(struct tw_tracer *tracer, int32_t token, struct tw_error *err);
/* Closes the file; everything appended is in it. generated_text: bytes as they came. */
tw_status tw_tracer_finish(struct tw_tracer *tracer, bool complete, struct tw_view generated_text,
                           struct tw_error *err);
uint64_t tw_tracer_bytes(const struct tw_tracer *tracer); /* in the file so far */
void tw_tracer_free(struct tw_tracer *tracer);            /* NULL is fine */

#endif
