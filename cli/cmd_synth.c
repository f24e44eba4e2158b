/* `tidewake synth`: a synthetic trace. */
#include <stddef.h>

#include "cli/command.h"
#include "traces/synth.h"

struct options {
    const char *output;
    uint64_t steps, layers, heads, kv_heads, top_k, context, seed;
    unsigned weight_type;
    bool force;
};

#define FIELD(name) offsetof(struct options, name)
static const struct tw_option rows[] = {
    {"output", 'o', TW_OPTION_TEXT, FIELD(output), NULL, 0, 0, NULL, "RUN.h5", "the trace to write"},
    {"steps", 0, TW_OPTION_U64, FIELD(steps), "256", 1, 1 << 24, NULL, "N", "decode steps"},
    {"layers", 0, TW_OPTION_U64, FIELD(layers), "2", 1, 4096, NULL, "N", "layers"},
    {"heads", 0, TW_OPTION_U64, FIELD(heads), "4", 1, 4096, NULL, "N", "query heads a layer"},
    {"kv-heads", 0, TW_OPTION_U64, FIELD(kv_heads), "2", 1, 4096, NULL, "N", "KV heads a layer"},
    {"top-k", 0, TW_OPTION_U64, FIELD(top_k), "64", 1, 1 << 16, NULL, "N", "positions logged a row"},
    {"context", 0, TW_OPTION_SIZE, FIELD(context), "900", 1, 1 << 24, NULL, "N", "prompt tokens"},
    {"seed", 0, TW_OPTION_U64, FIELD(seed), "0", 0, 0, NULL, "N", "seed: the same gives the same file"},
    {"weight-type", 0, TW_OPTION_CHOICE, FIELD(weight_type), "f16", 0, 0, "f16|f32", NULL, "type of the weights"},
    {"force", 0, TW_OPTION_FLAG, FIELD(force), NULL, 0, 0, NULL, NULL, "overwrite a complete trace"},
    {0},
};

static tw_status run(struct tw_invocation *invocation, struct tw_error *err) {
    const struct options *const options = invocation->options;
    if (!options->output) return TW_FAIL(err, TW_E_OPTION, "synth needs an output: -o RUN.h5");
    if (options->heads % options->kv_heads)
        return TW_FAIL(err, TW_E_OPTION, "--heads %llu does not divide among --kv-heads %llu",
                       (unsigned long long)options->heads, (unsigned long long)options->kv_heads);
    if (options->seed > INT64_MAX) return TW_FAIL(err, TW_E_OPTION, "option '--seed': must be below 2^63");
    const struct tw_synth_options how = {
        .n_steps = options->steps,
        .n_layers = options->layers,
        .n_heads = options->heads,
        .n_kv_heads = options->kv_heads,
        .top_k = options->top_k,
        .prompt_length = options->context,
        .seed = options->seed,
        .force = options->force,
        .weight_float = options->weight_type == 1,
    };
    return tw_synth_write(options->output, &how, invocation->progress, err);
}

static const struct tw_option_group groups[] = {
    {NULL, rows, 0},
    {0},
};

const struct tw_command tw_command_synth = {
    .name = "synth",
    .summary = "makes a synthetic trace: sinks, local windows, drifting and bursting far pages, a needle",
    .usage = "-o RUN.h5 [options]",
    .description = "No model stands behind it: for benchmarks and for trying out policies. The shape of an 8B model's\n"
                   "chain of thought is the second example.",
    .example = "tidewake synth -o small.h5 --steps 300 --layers 2 --heads 8 --kv-heads 2\n"
               "tidewake synth -o 8b.h5 --steps 2048 --layers 32 --heads 32 --kv-heads 8 --context 300",
    .groups = groups,
    .options_size = sizeof(struct options),
    .max_operands = 0,
    .run = run,
};
