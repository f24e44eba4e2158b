/* One generation: prefill, then token after token, logged by a tracer or not. */
#ifndef TW_ENGINE_RUN_H
#define TW_ENGINE_RUN_H

#include "engine/encode.h"
#include "engine/engine.h"
#include "engine/tracer.h"

struct tw_run_options {
    size_t max_new;           /* tokens at most, at least 1 */
    bool ignore_eos;          /* go on behind a token that ends a text */
    const int32_t *continued; /* [n_continued] tokens to be taken instead of the generated ones, as far as they go */
    size_t n_continued;
    double temperature, top_p; /* 0: greedy */
    uint64_t seed;
    /* Called with every token as it comes; NULL: nobody listens. */
    void (*on_token)(void *context, int32_t token);
    void *context;
};

/* Zero-initialised it is empty. */
struct tw_run_result {
    int32_t *tokens; /* [n_tokens] generated (or taken) */
    size_t n_tokens;
    bool ended;          /* by a token that ends a text */
    struct tw_text text; /* their bytes; special tokens left out */
    struct tw_engine_times times;
};
void tw_run_result_release(struct tw_run_result *result); /* leaves it empty */

/*
 * Runs `prompt` on the engine. `tokenizer` may be NULL (no end is known, no text is made); `tracer` may be NULL.
 * Between two steps a request to stop is seen: TW_E_INTERRUPTED, and result and tracer hold what has been done. The
 * tracer is not finished here.
 */
tw_status tw_run(struct tw_run_result *result, struct tw_engine *engine, struct tw_tokenizer *tokenizer,
                 const struct tw_encoded *prompt, const struct tw_run_options *options, struct tw_tracer *tracer,
                 struct tw_progress *progress, struct tw_error *err);

/*
 * The same into a trace file: creates the tracer, runs, and finishes the file, also when the run is stopped or fails
 * behind its first step; before that no file is left.
 * `info`: names (model, task, run, expected_answer, producer, special_tokens, pre_tokenizer). trace_bytes may be NULL.
 */
tw_status tw_run_traced(struct tw_run_result *result, struct tw_engine *engine, struct tw_tokenizer *tokenizer,
                        const struct tw_encoded *prompt, const struct tw_run_options *options,
                        const struct tw_trace_info *info, const struct tw_tracer_options *tracer_options,
                        uint64_t *trace_bytes, struct tw_progress *progress, struct tw_error *err);

#endif
