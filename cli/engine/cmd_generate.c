/* `tidewake generate`: text out, no trace. */
#include <stdio.h>

#include "cli/engine/engine_options.h"
#include "cli/engine/run_options.h"
#include "cli/progress_line.h"

struct generate_options {
    struct tw_input_settings input;
    struct tw_run_settings run;
    struct tw_engine_settings engine;
};

static const struct tw_option_group groups[] = {
    {"Input", tw_input_option_rows, offsetof(struct generate_options, input)},
    {"Running", tw_run_option_rows, offsetof(struct generate_options, run)},
    {"Engine", tw_engine_option_rows, offsetof(struct generate_options, engine)},
    {0},
};

static void print_token(void *context, int32_t token) {
    const struct tw_tokenizer *tokenizer = context;
    if (tw_tokenizer_is_special(tokenizer, token)) return;
    struct tw_text text = {0};
    tw_tokenizer_append(&text, tokenizer, token);
    tw_progress_line_clear();
    fwrite(tw_text_string(&text), 1, text.size, stdout);
    fflush(stdout);
    tw_text_release(&text);
}

static tw_status run(struct tw_invocation *invocation, struct tw_error *err) {
    const struct generate_options *options = invocation->options;
    struct tw_model *model = NULL;
    struct tw_tokenizer *tokenizer = NULL;
    struct tw_engine *engine = NULL;
    struct tw_encoded prompt = {0};
    struct tw_engine_options engine_options;
    struct tw_continuation continuation = {0};
    struct tw_run_options run_options;
    struct tw_run_result result = {0};
    tw_status status;
    TW_TRY_GOTO(status, done, tw_open_model(&model, &tokenizer, invocation->operands[0], err));
    TW_TRY_GOTO(status, done, tw_read_input(&prompt, tokenizer, &options->input, false, err));
    TW_TRY_GOTO(status, done, tw_run_settings_apply(&run_options, &continuation, invocation, &options->run, err));
    tw_engine_settings_apply(&engine_options, &options->engine, options->run.seed);
    TW_TRY_GOTO(status, done, tw_engine_open(&engine, model, &engine_options, err));
    run_options.on_token = print_token;
    run_options.context = tokenizer;
    status = tw_run(&result, engine, tokenizer, &prompt, &run_options, NULL, invocation->progress, err);
    if (result.n_tokens) putchar('\n');
    if (status == TW_OK) tw_warn_textless(tokenizer, &result);
done:
    tw_run_result_release(&result);
    tw_continuation_release(&continuation);
    tw_encoded_release(&prompt);
    tw_engine_free(engine);
    tw_tokenizer_free(tokenizer);
    tw_model_free(model);
    return status;
}

const struct tw_command tw_command_generate = {
    .name = "generate",
    .summary = "text out of a prompt, token by token, without a trace",
    .usage = "MODEL --text STRING [options]",
    .example = "tidewake generate data/models/SmolLM2-135M-Instruct.Q4_1.gguf --chat --text 'Why are there tides?'\n"
               "tidewake generate MODEL.gguf --prompt book.txt --budget 1024 --max-new 200",
    .groups = groups,
    .options_size = sizeof(struct generate_options),
    .min_operands = 1,
    .max_operands = 1,
    .run = run,
};
