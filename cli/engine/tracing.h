/* Tracing one prompt into one file: what `trace` and `study` share. */
#ifndef TW_CLI_ENGINE_TRACING_H
#define TW_CLI_ENGINE_TRACING_H

#include "base/progress.h"
#include "engine/run.h"
#include "engine/task/task.h"

/* All that the runs of one invocation share. */
struct tw_tracing {
    struct tw_model *model;
    const char *model_name; /* for the trace's attribute; NULL: what the file calls it */
    struct tw_tokenizer *tokenizer;
    struct tw_engine *engine;
    struct tw_run_options run;
    struct tw_tracer_options tracer; /* path is each run's own */
    bool log_chosen; /* tracer says what is logged; otherwise needle and copy are where the prompt has a needle */
    enum tw_special special; /* of markers inside the prompt's text */
    uint64_t seed;           /* for the trace's attribute */
    struct tw_progress *progress;
};

/* How a run went. Zero-initialise; release with tw_run_result_release(&outcome->result). */
struct tw_traced {
    struct tw_run_result result;
    uint64_t trace_bytes;
    double score; /* of the answer, NaN when it is not scored */
};

/* Traces an encoded prompt into `path`. answer (may be NULL) is what is expected, for the attribute. */
tw_status tw_trace_encoded(struct tw_traced *traced, const struct tw_tracing *tracing, const struct tw_encoded *prompt,
                           const char *path, const char *task, const char *run, const char *answer,
                           struct tw_error *err);

/* Encodes a prompt (by prompt->chat with the model's template), prints the warnings that come of it, traces, and
 * scores. */
tw_status tw_trace_prompt(struct tw_traced *traced, const struct tw_tracing *tracing, const struct tw_prompt *prompt,
                          const char *path, struct tw_error *err);

/* Counts by a tokenizer. */
struct tw_token_counter tw_token_counter_of(struct tw_tokenizer *tokenizer);

#endif
