#include "cli/engine/run_options.h"

#include <stdlib.h>
#include <string.h>

#include "cli/engine/engine_options.h"

#define RUN(field) offsetof(struct tw_run_settings, field)

const struct tw_option tw_run_option_rows[] = {
    {.name = "max-new",
     .type = TW_OPTION_SIZE,
     .offset = RUN(max_new),
     .default_value = "128",
     .minimum = 1,
     .maximum = 1 << 30,
     .value_name = "N",
     .help = "tokens to generate at most"},
    {.name = "ignore-eos",
     .type = TW_OPTION_FLAG,
     .offset = RUN(ignore_eos),
     .help = "go on behind a token that ends the text"},
    {.name = "continue",
     .type = TW_OPTION_TEXT,
     .offset = RUN(continued),
     .value_name = "FILE",
     .help = "token ids to be fed instead of the generated ones"},
    {.name = "temperature",
     .type = TW_OPTION_DOUBLE,
     .offset = RUN(temperature),
     .default_value = "0",
     .minimum = 0,
     .maximum = 1000,
     .value_name = "T",
     .help = "0 takes the likeliest token"},
    {.name = "top-p",
     .type = TW_OPTION_DOUBLE,
     .offset = RUN(top_p),
     .default_value = "1",
     .minimum = 0,
     .maximum = 1,
     .value_name = "P",
     .help = "sample among the likeliest tokens that have this probability together"},
    {.name = "seed",
     .type = TW_OPTION_U64,
     .offset = RUN(seed),
     .default_value = "0",
     .value_name = "N",
     .help = "of everything random"},
    {0},
};

void tw_continuation_release(struct tw_continuation *continuation) {
    free(continuation->ids);
    memset(continuation, 0, sizeof *continuation);
}

tw_status tw_run_settings_apply(struct tw_run_options *options, struct tw_continuation *continuation,
                                const struct tw_invocation *invocation, const struct tw_run_settings *settings,
                                struct tw_error *err) {
    memset(continuation, 0, sizeof *continuation);
    if (settings->continued) TW_TRY(tw_read_token_file(&continuation->ids, &continuation->n, settings->continued, err));
    *options = (struct tw_run_options){
        .max_new = settings->continued && !tw_given(invocation, "max-new") ? continuation->n : settings->max_new,
        .ignore_eos = settings->ignore_eos,
        .continued = continuation->ids,
        .n_continued = continuation->n,
        .temperature = settings->temperature,
        .top_p = settings->top_p,
        .seed = settings->seed,
    };
    return TW_OK;
}

void tw_warn_textless(const struct tw_tokenizer *tokenizer, const struct tw_run_result *result) {
    for (size_t t = 0; t < result->n_tokens; t++)
        if (!tw_tokenizer_bytes(tokenizer, result->tokens[t]).data) {
            tw_warn("token %d was generated, but the tokenizer has no text for it: the model has more rows than tokens",
                    (int)result->tokens[t]);
            return;
        }
}
