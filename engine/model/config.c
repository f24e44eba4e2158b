#include "engine/model/config.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"

#define AT(field) offsetof(struct tw_model_config, field)
const struct tw_config_number tw_config_numbers[] = {
    {"block_count", "num_hidden_layers", AT(n_layers), 4096, false, false},
    {"embedding_length", "hidden_size", AT(n_embd), 1 << 20, false, false},
    {"attention.head_count", "num_attention_heads", AT(n_heads), 1 << 14, false, false},
    {"attention.head_count_kv", "num_key_value_heads", AT(n_kv_heads), 1 << 14, true, true},
    {"attention.key_length", "head_dim", AT(head_dim), 1 << 13, true, true},
    {"feed_forward_length", "intermediate_size", AT(n_mlp), 1 << 24, false, false},
    {"vocab_size", "vocab_size", AT(n_vocab), 1 << 26, true, false},
    {"context_length", "max_position_embeddings", AT(context_length), UINT32_MAX, false, false},
    {"attention.sliding_window", "sliding_window", AT(sliding_window), UINT32_MAX, true, true},
    {0},
};

tw_status tw_config_set_number(struct tw_model_config *config, const struct tw_config_number *row, uint64_t value,
                               const char *path, const char *key, struct tw_error *err) {
    if (value < 1 || value > row->maximum)
        return TW_FAIL(err, TW_E_INPUT, "model '%s': %s is %" PRIu64 ", expected 1 to %" PRIu64, path, key, value,
                       row->maximum);
    *(size_t *)((char *)config + row->offset) = (size_t)value;
    return TW_OK;
}

static tw_status fill_slides(struct tw_recipe *recipe, const char *path, struct tw_error *err) {
    const struct tw_architecture *row = recipe->architecture;
    const size_t n_layers = recipe->config.n_layers;
    const size_t pattern = recipe->sliding_pattern ? recipe->sliding_pattern : row->sliding_pattern;
    recipe->slides = calloc(n_layers, sizeof *recipe->slides);
    if (!recipe->slides) return TW_FAIL(err, TW_E_MEMORY, "out of memory while reading model '%s'", path);
    if (!recipe->config.sliding_window) return TW_OK;
    for (size_t i = 0; i < n_layers; i++)
        recipe->slides[i] = pattern ? (i + 1) % pattern != 0 : i >= recipe->sliding_from;
    return TW_OK;
}

tw_status tw_recipe_finish(struct tw_recipe *recipe, double query_scalar, const char *path, bool gguf,
                           struct tw_error *err) {
    struct tw_model_config *config = &recipe->config;
    const struct tw_architecture *row = recipe->architecture;
    strcpy(config->architecture, row->name);
    if (!config->n_kv_heads) config->n_kv_heads = config->n_heads;
    if (config->n_heads % config->n_kv_heads != 0)
        return TW_FAIL(err, TW_E_INPUT, "model '%s': %s is %zu, which is no multiple of %s %zu", path,
                       gguf ? "attention.head_count" : "num_attention_heads", config->n_heads,
                       gguf ? "attention.head_count_kv" : "num_key_value_heads", config->n_kv_heads);
    if (!config->head_dim) {
        if (config->n_embd % config->n_heads != 0)
            return TW_FAIL(err, TW_E_INPUT, "model '%s': there is no %s, and %s %zu is no multiple of the %zu heads",
                           path, gguf ? "attention.key_length" : "head_dim", gguf ? "embedding_length" : "hidden_size",
                           config->n_embd, config->n_heads);
        config->head_dim = config->n_embd / config->n_heads;
    }
    if (config->head_dim % 2 != 0)
        return TW_FAIL(err, TW_E_INPUT, "model '%s': the head size is %zu, expected an even number", path,
                       config->head_dim);
    if (!(config->norm_epsilon > 0) || !(config->norm_epsilon < 1))
        return TW_FAIL(err, TW_E_INPUT, "model '%s': the epsilon of the norms (%s) is %g, expected between 0 and 1",
                       path, gguf ? "attention.layer_norm_rms_epsilon" : "rms_norm_eps", config->norm_epsilon);
    if (!(config->rope_theta > 0) || !isfinite(config->rope_theta) || !(config->rope_theta_local >= 0) ||
        !isfinite(config->rope_theta_local))
        return TW_FAIL(err, TW_E_INPUT, "model '%s': the base of the rotary positions (%s) is %g, expected above 0",
                       path, gguf ? "rope.freq_base" : "rope_theta",
                       config->rope_theta > 0 && isfinite(config->rope_theta) ? config->rope_theta_local
                                                                              : config->rope_theta);
    static const char *const scalings[] = {"none", "linear", "llama3"};
    strcpy(config->rope_scaling, scalings[recipe->scaling.kind]);
    config->rope_pairs = gguf ? row->gguf_rope_pairs : TW_ROPE_HALVES;
    config->activation = row->activation;
    config->norm_epsilon = (float)config->norm_epsilon; /* as GGUF stores it, and as float32 arithmetic uses it */
    config->embedding_scale = 1;
    if (row->scaled_embedding)
        config->embedding_scale = tw_float_from_bf16(tw_bf16_from_float(sqrtf((float)config->n_embd)));
    config->attention_scale = (float)(1 / sqrt(query_scalar != 0 ? query_scalar : (double)config->head_dim));
    if (!recipe->slides) TW_TRY(fill_slides(recipe, path, err));
    bool any = false;
    for (size_t i = 0; i < config->n_layers; i++) any |= recipe->slides[i];
    if (!any) config->sliding_window = 0;
    return TW_OK;
}

void tw_recipe_release(struct tw_recipe *recipe) {
    free(recipe->slides);
    recipe->slides = NULL;
}
