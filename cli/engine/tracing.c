#include "cli/engine/tracing.h"

#include <math.h>
#include <stdio.h>

#include "cli/engine/engine_options.h"
#include "cli/engine/run_options.h"

static tw_status fill_info(struct tw_trace_info *info, const struct tw_tracing *t, const char *task, const char *run,
                           const char *answer, struct tw_error *err) {
    char producer[64];
    snprintf(producer, sizeof producer, "tidewake %s", tw_version);
    TW_TRY(tw_trace_info_set(&info->model, t->model_name ? t->model_name : t->model->config.name, err));
    TW_TRY(tw_trace_info_set(&info->task, task, err));
    TW_TRY(tw_trace_info_set(&info->run, run, err));
    TW_TRY(tw_trace_info_set(&info->producer, producer, err));
    TW_TRY(tw_trace_info_set(&info->special_tokens, t->special == TW_SPECIAL_PARSED ? "parsed" : "literal", err));
    TW_TRY(tw_trace_info_set(&info->pre_tokenizer, tw_tokenizer_split_name(t->tokenizer), err));
    TW_TRY(tw_trace_info_set(&info->expected_answer, answer, err));
    info->seed = t->seed;
    return TW_OK;
}

tw_status tw_trace_encoded(struct tw_traced *traced, const struct tw_tracing *tracing, const struct tw_encoded *prompt,
                           const char *path, const char *task, const char *run, const char *answer,
                           struct tw_error *err) {
    struct tw_trace_info info = {0};
    struct tw_tracer_options tracer = tracing->tracer;
    tracer.path = path;
    traced->score = NAN;
    if (!tracing->log_chosen) tracer.needle = tracer.copy_paste = prompt->needle_end > prompt->needle_begin;
    tw_status status = fill_info(&info, tracing, task, run, answer, err);
    if (status == TW_OK)
        status = tw_run_traced(&traced->result, tracing->engine, tracing->tokenizer, prompt, &tracing->run, &info,
                               &tracer, &traced->trace_bytes, tracing->progress, err);
    if (status == TW_OK) tw_warn_textless(tracing->tokenizer, &traced->result);
    tw_trace_info_release(&info);
    return status;
}

tw_status tw_trace_prompt(struct tw_traced *traced, const struct tw_tracing *tracing, const struct tw_prompt *prompt,
                          const char *path, struct tw_error *err) {
    struct tw_encoded encoded = {0};
    struct tw_text answer = {0};
    for (size_t i = 0; i < prompt->n_expected; i++) {
        if (i) tw_text_append(&answer, TW_VIEW(", "));
        tw_text_append(&answer, tw_text_view(&prompt->expected[i]));
    }
    tw_status status = tw_encode_for_command(&encoded, tracing->tokenizer, prompt, tracing->special, err);
    if (status == TW_OK)
        status =
            tw_trace_encoded(traced, tracing, &encoded, path, tw_text_string(&prompt->task),
                             tw_text_string(&prompt->run), prompt->n_expected ? tw_text_string(&answer) : NULL, err);
    if (status == TW_OK) traced->score = tw_prompt_score(prompt, tw_text_view(&traced->result.text));
    tw_text_release(&answer);
    tw_encoded_release(&encoded);
    return status;
}

static size_t count_tokens(void *context, struct tw_view text) {
    struct tw_tokens tokens = {0};
    const struct tw_encode_options options = {0};
    const tw_status status = tw_tokenizer_encode(&tokens, context, text, &options, NULL, NULL);
    const size_t n = status == TW_OK ? tokens.n : SIZE_MAX / 2;
    tw_tokens_release(&tokens);
    return n;
}

struct tw_token_counter tw_token_counter_of(struct tw_tokenizer *tokenizer) {
    return (struct tw_token_counter){count_tokens, tokenizer};
}
