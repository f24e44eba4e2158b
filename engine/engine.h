/*
 * The engine: a model on a backend, with a schedule and a selector. Runs one prompt at a time: prefill, then decoding
 * token by token from true absolute positions. Commands and studies use this; what is below it (backend, schedule,
 * selector) they only name.
 *
 *     struct tw_engine *engine;
 *     tw_engine_open(&engine, model, &options, &err);
 *     tw_engine_prefill(engine, tokens, n_tokens, reserve, NULL, progress, &err);    logits of the last position
 *     for (...) tw_engine_decode(engine, token, NULL, &err);                         logits of the next
 *     tw_engine_reset(engine);                                                       ready for the next prompt
 *     tw_engine_free(engine);
 */
#ifndef TW_ENGINE_ENGINE_H
#define TW_ENGINE_ENGINE_H

#include "base/progress.h"
#include "engine/backend/backend.h"
#include "engine/prefill/schedule.h"

struct tw_engine_options {
    const char *backend;                       /* a name of the table, or "cuda" */
    const char *image;                         /* of the dry backend: whose buffers; NULL otherwise */
    struct tw_backend_options backend_options; /* whole_rows is the schedule's to say */
    const char *schedule, *selector;           /* specifications: "tide", "snapkv:kernel=7"; must outlive the engine */
    size_t budget;                             /* K, 0: full */
    size_t chunk;                              /* C, at least 1 */
    size_t block;                              /* keys a block of the streaming passes, at least 1 */
    size_t memory_limit;                       /* bytes, 0: none */
    uint64_t seed;                             /* of the `random` selector */
    bool record;                               /* keep the accountant's events */
};

/* tide, snapkv, full budget, chunks of 2048, blocks of 1024, a window of 32, no limit, backend ref. */
void tw_engine_options_init(struct tw_engine_options *options);

/* What one prompt's run has taken. */
struct tw_engine_times {
    double prefill_seconds;   /* until the logits of the last position are there */
    double layer_end_seconds; /* of these, spent on scores, selection and gathering */
    double decode_seconds;
    size_t n_decoded;
};

struct tw_engine {
    const struct tw_model *model;
    struct tw_engine_options options;
    const struct tw_backend_ops *ops;
    struct tw_backend *backend;
    struct tw_accountant accountant;
    struct tw_schedule_choice schedule;
    struct tw_selector_choice selector;

    /* The prompt that is being run. */
    struct tw_kv *cache;     /* [n_layers] */
    struct tw_buffer logits; /* [n_vocab] float, host memory: of the last position */
    size_t prompt_length;
    size_t position; /* of the next token to be decoded: prompt_length after prefill */
    struct tw_engine_times times;
    size_t steady_bytes;  /* held after prefill, logits included */
    size_t cache_bytes;   /* of keys and values after prefill, as they lie in memory */
    size_t retained_rows; /* S_final: rows over all layers and heads after prefill */
};

/*
 * `model` is borrowed. Fails with TW_E_OPTION on names, options or combinations that cannot be used. On failure *engine
 * is NULL.
 */
tw_status tw_engine_open(struct tw_engine **engine, const struct tw_model *model,
                         const struct tw_engine_options *options, struct tw_error *err);
void tw_engine_free(struct tw_engine *engine); /* NULL is fine */

/* What prefill of `prompt_length` tokens would refuse: prompts that are empty or longer than the model's context
 * (with what is to be decoded), budgets that cannot be met. */
tw_status tw_engine_check(const struct tw_engine *engine, size_t prompt_length, size_t n_decode, struct tw_error *err);
/* What a selector is told about a prompt of that length. */
struct tw_selection_context tw_engine_selection(const struct tw_engine *engine, size_t prompt_length);

/*
 * Runs the prompt. `reserve`: how many tokens will be decoded, so that caches have room for them; more still work
 * (caches grow). Resets first. After a failure the engine is reset.
 */
tw_status tw_engine_prefill(struct tw_engine *engine, const int32_t *tokens, size_t n_tokens, size_t reserve,
                            const struct tw_watch *watch, struct tw_progress *progress, struct tw_error *err);

/*
 * Feeds one token at the next absolute position; its logits replace those in engine->logits. `log` [n_layers] or NULL:
 * each layer's attention row.
 */
tw_status tw_engine_decode(struct tw_engine *engine, int32_t token, struct tw_attention_log *log, struct tw_error *err);

/* Room for n more rows in every cache, by moving them layer by layer. */
tw_status tw_engine_reserve(struct tw_engine *engine, size_t n, struct tw_error *err);

void tw_engine_reset(struct tw_engine *engine); /* drops the prompt's caches */

static inline const float *tw_engine_logits(const struct tw_engine *engine) { return engine->logits.data; }

#endif
