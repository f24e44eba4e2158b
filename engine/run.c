#include "engine/run.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/stop.h"
#include "engine/sample.h"

void tw_run_result_release(struct tw_run_result *result) {
    free(result->tokens);
    tw_text_release(&result->text);
    memset(result, 0, sizeof *result);
}

/* The token of this step, out of the engine's logits or the caller's list. */
static tw_status next_token(int32_t *token, struct tw_engine *engine, struct tw_sampler *sampler,
                            const struct tw_run_options *options, size_t step, struct tw_error *err) {
    if (step < options->n_continued) {
        *token = options->continued[step];
        if (*token < 0 || (size_t)*token >= engine->model->config.n_vocab)
            return TW_FAIL(err, TW_E_INPUT, "token %d, the %zu. of those to be fed, is not in the vocabulary of %zu",
                           (int)*token, step + 1, engine->model->config.n_vocab);
        return TW_OK;
    }
    return tw_sample(token, sampler, tw_engine_logits(engine), engine->model->config.n_vocab, err);
}

static tw_status decode(struct tw_run_result *result, struct tw_engine *engine, struct tw_tokenizer *tokenizer,
                        const struct tw_run_options *options, struct tw_sampler *sampler, struct tw_tracer *tracer,
                        struct tw_progress *progress, struct tw_error *err) {
    for (size_t step = 0;; step++) {
        int32_t token;
        TW_TRY(next_token(&token, engine, sampler, options, step, err));
        if (tracer) TW_TRY(tw_tracer_step(tracer, token, err));
        result->tokens[result->n_tokens++] = token;
        if (options->on_token) options->on_token(options->context, token);
        result->ended =
            tokenizer && !options->ignore_eos && step >= options->n_continued && tw_tokenizer_is_end(tokenizer, token);
        tw_progress_update(progress, "decode", step + 1, options->max_new, "tokens", NULL);
        if (step + 1 == options->max_new || result->ended) return TW_OK;
        if (tw_stop_requested()) return TW_FAIL(err, TW_E_INTERRUPTED, "interrupted after %zu tokens", step + 1);
        TW_TRY(tw_engine_decode(engine, token, tracer ? tw_tracer_log(tracer) : NULL, err));
    }
}

tw_status tw_run(struct tw_run_result *result, struct tw_engine *engine, struct tw_tokenizer *tokenizer,
                 const struct tw_encoded *prompt, const struct tw_run_options *options, struct tw_tracer *tracer,
                 struct tw_progress *progress, struct tw_error *err) {
    memset(result, 0, sizeof *result);
    TW_TRY(tw_engine_check(engine, prompt->n, options->max_new, err));
    result->tokens = malloc(options->max_new * sizeof *result->tokens);
    if (!result->tokens) return TW_FAIL(err, TW_E_MEMORY, "out of memory: %zu generated tokens", options->max_new);
    struct tw_sampler sampler;
    tw_sampler_init(&sampler, options->temperature, options->top_p, options->seed);
    tw_status status = tw_engine_prefill(engine, prompt->ids, prompt->n, options->max_new - 1,
                                         tracer ? tw_tracer_watch(tracer) : NULL, progress, err);
    const double began = tw_clock_seconds();
    if (status == TW_OK) status = decode(result, engine, tokenizer, options, &sampler, tracer, progress, err);
    result->times = engine->times;
    result->times.decode_seconds = tw_clock_seconds() - began; /* sampling and logging included */
    tw_sampler_release(&sampler);
    if (tokenizer)
        tw_tokenizer_decode(&result->text, tokenizer, result->tokens, result->n_tokens,
                            &(struct tw_decode_options){.skip_special = true, .continued = true});
    return status;
}

tw_status tw_run_traced(struct tw_run_result *result, struct tw_engine *engine, struct tw_tokenizer *tokenizer,
                        const struct tw_encoded *prompt, const struct tw_run_options *options,
                        const struct tw_trace_info *info, const struct tw_tracer_options *tracer_options,
                        uint64_t *trace_bytes, struct tw_progress *progress, struct tw_error *err) {
    memset(result, 0, sizeof *result);
    TW_TRY(tw_engine_check(engine, prompt->n, options->max_new, err));
    struct tw_tracer *tracer;
    TW_TRY(tw_tracer_create(&tracer, engine, prompt, info, tracer_options, options->max_new, err));
    const tw_status run = tw_run(result, engine, tokenizer, prompt, options, tracer, progress, err);
    tw_status finished = TW_OK;
    if (run != TW_OK && result->n_tokens == 0) {
        /* Nothing has been logged: no empty file is left. */
        unlink(tracer_options->path);
    } else {
        /* What has been appended is kept, whatever ended the run; the first sentence counts. */
        finished = tw_tracer_finish(tracer, run == TW_OK, tw_text_view(&result->text), run == TW_OK ? err : NULL);
    }
    if (trace_bytes) *trace_bytes = tw_tracer_bytes(tracer);
    tw_tracer_free(tracer);
    return run != TW_OK ? run : finished;
}
