/* `tidewake logits`: logits or hidden states as raw numbers, for comparing with other engines. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/output.h"
#include "cli/engine/engine_options.h"

struct logits_options {
    struct tw_engine_settings engine;
    const char *tokens, *output;
    bool last, hidden;
};

static const struct tw_option option_rows[] = {
    {.name = "tokens",
     .type = TW_OPTION_TEXT,
     .offset = offsetof(struct logits_options, tokens),
     .value_name = "FILE",
     .help = "token ids separated by white space, - for standard input"},
    {.name = "output",
     .letter = 'o',
     .type = TW_OPTION_TEXT,
     .offset = offsetof(struct logits_options, output),
     .value_name = "FILE",
     .help = "where the numbers go, little-endian float32; - is standard output, the default"},
    {.name = "last",
     .type = TW_OPTION_FLAG,
     .offset = offsetof(struct logits_options, last),
     .help = "the last position alone"},
    {.name = "hidden",
     .type = TW_OPTION_FLAG,
     .offset = offsetof(struct logits_options, hidden),
     .help = "hidden states [n_layers + 2, n, n_embd]: embedding, after each layer, after the final norm"},
    {0},
};

static const struct tw_option_group groups[] = {
    {NULL, option_rows, 0},
    {"Engine", tw_engine_option_rows, offsetof(struct logits_options, engine)},
    {0},
};

/* What the prefill shows goes into a file at its place: schedules go through positions in orders of their own. */
struct sink {
    struct tw_engine *engine;
    const struct logits_options *options;
    FILE *file; /* unnamed */
    size_t n_tokens, n_layers, n_embd, n_vocab;
    float *row; /* one row of either */
};

static tw_status put(struct sink *sink, size_t index, const float *row, size_t width, struct tw_error *err) {
    const size_t bytes = width * sizeof *row;
    if (pwrite(fileno(sink->file), row, bytes, (off_t)(index * bytes)) != (ssize_t)bytes)
        return TW_FAIL(err, TW_E_IO, "cannot write a temporary file: is the disk full?");
    return TW_OK;
}

static tw_status put_hidden(struct sink *sink, size_t index, const struct tw_bridge *bridge, size_t row,
                            size_t position, bool normed, struct tw_error *err) {
    const struct tw_engine *e = sink->engine;
    TW_TRY(e->ops->read_hidden(e->backend, bridge, row, 1, normed, sink->row, err));
    return put(sink, sink->options->last ? index : index * sink->n_tokens + position, sink->row, sink->n_embd, err);
}

static tw_status take_hidden(void *context, size_t index, const struct tw_bridge *bridge, size_t first_row,
                             size_t first_position, size_t n, struct tw_error *err) {
    struct sink *sink = context;
    const struct tw_engine *e = sink->engine;
    for (size_t i = 0; i < n; i++) {
        const size_t position = first_position + i;
        if (sink->options->last && position + 1 != sink->n_tokens) continue;
        if (sink->options->hidden) {
            TW_TRY(put_hidden(sink, index, bridge, first_row + i, position, false, err));
            if (index == sink->n_layers)
                TW_TRY(put_hidden(sink, index + 1, bridge, first_row + i, position, true, err));
        } else if (index == sink->n_layers) {
            TW_TRY(e->ops->logits(e->backend, bridge, first_row + i, 1, sink->row, err));
            TW_TRY(put(sink, sink->options->last ? 0 : position, sink->row, sink->n_vocab, err));
        }
    }
    return TW_OK;
}

static tw_status copy_out(FILE *from, const char *path, struct tw_error *err) {
    struct tw_output output = {0};
    static char buffer[1 << 16];
    TW_TRY(tw_output_open(&output, path, err));
    rewind(from);
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, from)) > 0;) fwrite(buffer, 1, n, output.stream);
    if (ferror(from)) {
        tw_output_discard(&output);
        return TW_FAIL(err, TW_E_IO, "cannot read a temporary file back");
    }
    return tw_output_commit(&output, err);
}

static tw_status run(struct tw_invocation *invocation, struct tw_error *err) {
    const struct logits_options *options = invocation->options;
    if (!options->tokens) return TW_FAIL(err, TW_E_OPTION, "logits needs --tokens FILE");
    struct tw_model *model = NULL;
    struct tw_engine *engine = NULL;
    struct tw_engine_options engine_options;
    struct sink sink = {.options = options};
    int32_t *tokens = NULL;
    size_t n = 0;
    tw_status status;
    TW_TRY_GOTO(status, done, tw_open_model(&model, NULL, invocation->operands[0], err));
    TW_TRY_GOTO(status, done, tw_read_token_file(&tokens, &n, options->tokens, err));
    tw_engine_settings_apply(&engine_options, &options->engine, 0);
    TW_TRY_GOTO(status, done, tw_engine_open(&engine, model, &engine_options, err));
    sink.engine = engine;
    sink.n_tokens = n;
    sink.n_layers = model->config.n_layers;
    sink.n_embd = model->config.n_embd;
    sink.n_vocab = model->config.n_vocab;
    sink.row = malloc(tw_max_size(sink.n_embd, sink.n_vocab) * sizeof *sink.row);
    sink.file = tmpfile();
    if (!sink.row || !sink.file) {
        status = TW_FAIL(err, sink.row ? TW_E_IO : TW_E_MEMORY, "cannot make a temporary place for the output");
        goto done;
    }
    const struct tw_watch watch = {.context = &sink, .hidden = take_hidden};
    TW_TRY_GOTO(status, done, tw_engine_prefill(engine, tokens, n, 0, &watch, invocation->progress, err));
    status = copy_out(sink.file, options->output, err);
done:
    if (sink.file) fclose(sink.file);
    free(sink.row);
    free(tokens);
    tw_engine_free(engine);
    tw_model_free(model);
    return status;
}

const struct tw_command tw_command_logits = {
    .name = "logits",
    .summary = "logits or hidden states of given tokens, as raw numbers",
    .usage = "MODEL --tokens FILE [-o OUT] [options]",
    .description =
        "Runs the tokens through the model and writes little-endian float32: logits [n, vocabulary], or with\n"
        "--hidden the states between layers. For comparing with other engines.",
    .example = "tidewake tokenize MODEL.gguf --text 'The tide' | tr -d '[],' > ids\n"
               "tidewake logits MODEL.gguf --tokens ids --last -o logits.bin",
    .groups = groups,
    .options_size = sizeof(struct logits_options),
    .min_operands = 1,
    .max_operands = 1,
    .run = run,
};
