/* The configuration in GGUF metadata. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "engine/model/config.h"

/* "llama" + "." + "block_count": architecture names come from our table and are short. */
struct key {
    char name[96];
};
static const char *key(struct key *buffer, const struct tw_recipe *recipe, const char *rest) {
    snprintf(buffer->name, sizeof buffer->name, "%s.%s", recipe->architecture->gguf_name, rest);
    return buffer->name;
}

static tw_status read_numbers(struct tw_recipe *recipe, const struct tw_gguf *gguf, struct tw_error *err) {
    for (const struct tw_config_number *row = tw_config_numbers; row->gguf; row++) {
        struct key buffer;
        const char *name = key(&buffer, recipe, row->gguf);
        if (!tw_gguf_find(gguf, name) && row->gguf_optional) continue;
        uint64_t value = 0;
        TW_TRY(tw_gguf_get_uint(&value, gguf, name, true, err));
        if (value == 0 && row->offset == offsetof(struct tw_model_config, sliding_window)) continue;
        TW_TRY(tw_config_set_number(&recipe->config, row, value, gguf->path, name, err));
    }
    return TW_OK;
}

/* What changes the arithmetic in a way that we do not do must not pass unnoticed. */
static tw_status refuse_unsupported(const struct tw_recipe *recipe, const struct tw_gguf *gguf, struct tw_error *err) {
    static const char *const must_be_zero[] = {
        "expert_count",   "attn_logit_softcapping", "final_logit_softcapping", "logit_scale",
        "residual_scale", "embedding_scale",        "attention.clamp_kqv",
    };
    for (size_t i = 0; i < sizeof must_be_zero / sizeof *must_be_zero; i++) {
        struct key buffer;
        const char *name = key(&buffer, recipe, must_be_zero[i]);
        double value = 0;
        TW_TRY(tw_gguf_get_double(&value, gguf, name, false, err));
        if (value != 0)
            return TW_FAIL(err, TW_E_UNSUPPORTED, "model '%s': %s is %g, which is not supported", gguf->path, name,
                           value);
    }
    return TW_OK;
}

static tw_status read_rope(struct tw_recipe *recipe, const struct tw_gguf *gguf, struct tw_error *err) {
    struct tw_model_config *config = &recipe->config;
    struct key buffer;
    config->rope_theta = recipe->architecture->rope_theta;
    TW_TRY(tw_gguf_get_double(&config->rope_theta, gguf, key(&buffer, recipe, "rope.freq_base"), false, err));
    config->rope_theta_local = recipe->architecture->rope_theta_local;
    TW_TRY(tw_gguf_get_double(&config->rope_theta_local, gguf, key(&buffer, recipe, "rope.freq_base_swa"), false, err));

    struct tw_view type = TW_VIEW("none");
    TW_TRY(tw_gguf_get_string(&type, gguf, key(&buffer, recipe, "rope.scaling.type"), false, err));
    double factor = 1;
    TW_TRY(tw_gguf_get_double(&factor, gguf, key(&buffer, recipe, "rope.scale_linear"), false, err));
    const bool old_linear = factor != 1;
    TW_TRY(tw_gguf_get_double(&factor, gguf, key(&buffer, recipe, "rope.scaling.factor"), false, err));
    if (tw_view_equal(type, TW_VIEW("linear")) || old_linear) {
        if (!(factor > 0) || !(factor < 1e6))
            return TW_FAIL(err, TW_E_INPUT, "model '%s': %s is %g, expected above 0", gguf->path,
                           key(&buffer, recipe, "rope.scaling.factor"), factor);
        recipe->scaling = (struct tw_rope_scaling){.kind = TW_ROPE_LINEAR, .factor = factor};
    } else if (!tw_view_equal(type, TW_VIEW("none"))) {
        return TW_FAIL(
            err, TW_E_UNSUPPORTED,
            "model '%s': the rope scaling '%.*s' is not supported; known are none, linear and a tensor rope_freqs.weight",
            gguf->path, (int)tw_min_size(type.size, 40), type.data);
    }
    return TW_OK;
}

static tw_status read_sliding(struct tw_recipe *recipe, const struct tw_gguf *gguf, struct tw_error *err) {
    struct key buffer;
    const char *name = key(&buffer, recipe, "attention.sliding_window_pattern");
    const struct tw_gguf_key *pattern = tw_gguf_find(gguf, name);
    const size_t n_layers = recipe->config.n_layers;
    if (!recipe->config.sliding_window) return TW_OK;
    if (pattern && pattern->type == TW_GGUF_ARRAY) {
        struct tw_gguf_array array;
        TW_TRY(tw_gguf_get_array(&array, gguf, name, TW_GGUF_BOOLS, true, err));
        if (array.n != n_layers)
            return TW_FAIL(err, TW_E_INPUT, "model '%s': %s has %zu elements, expected one a layer (%zu)", gguf->path,
                           name, array.n, n_layers);
        recipe->slides = calloc(n_layers, sizeof *recipe->slides);
        if (!recipe->slides) return TW_FAIL(err, TW_E_MEMORY, "out of memory while reading model '%s'", gguf->path);
        for (size_t i = 0; i < n_layers; i++) recipe->slides[i] = array.data[i] != 0;
    } else if (pattern) {
        uint64_t value = 0;
        TW_TRY(tw_gguf_get_uint(&value, gguf, name, true, err));
        if (value < 1 || value > n_layers)
            return TW_FAIL(err, TW_E_INPUT, "model '%s': %s is %" PRIu64 ", expected 1 to %zu", gguf->path, name, value,
                           n_layers);
        recipe->sliding_pattern = (size_t)value;
    } else if (recipe->architecture->sliding == TW_SLIDING_FROM) {
        return TW_FAIL(err, TW_E_UNSUPPORTED,
                       "model '%s': there is a sliding window but no %s, so which layers have it is not known",
                       gguf->path, name);
    }
    return TW_OK;
}

/* Every end-of-something token that generation stops at. */
static tw_status read_end_tokens(struct tw_recipe *recipe, const struct tw_gguf *gguf, struct tw_error *err) {
    static const char *const names[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!tw_gguf_find(gguf, names[i])) continue;
        uint64_t id = 0;
        TW_TRY(tw_gguf_get_uint(&id, gguf, names[i], true, err));
        if (id > UINT32_MAX)
            return TW_FAIL(err, TW_E_INPUT, "model '%s': %s is %" PRIu64 ", which is no token id", gguf->path, names[i],
                           id);
        recipe->end_tokens[recipe->n_end_tokens++] = (uint32_t)id;
    }
    return TW_OK;
}

static tw_status read_all(struct tw_recipe *recipe, const struct tw_gguf *gguf, struct tw_error *err) {
    struct tw_view name;
    struct key buffer;
    TW_TRY(tw_gguf_get_string(&name, gguf, "general.architecture", true, err));
    recipe->architecture = tw_architecture_of_gguf(name);
    if (!recipe->architecture)
        return TW_FAIL(err, TW_E_UNSUPPORTED, "model '%s': the architecture '%.*s' is not supported; known are %s",
                       gguf->path, (int)tw_min_size(name.size, 40), name.data, tw_architecture_list());
    TW_TRY(read_numbers(recipe, gguf, err));
    TW_TRY(refuse_unsupported(recipe, gguf, err));
    TW_TRY(tw_gguf_get_double(&recipe->config.norm_epsilon, gguf,
                              key(&buffer, recipe, "attention.layer_norm_rms_epsilon"), true, err));
    TW_TRY(read_rope(recipe, gguf, err));
    TW_TRY(read_sliding(recipe, gguf, err));
    TW_TRY(read_end_tokens(recipe, gguf, err));

    double query_scalar = 0, attention_scale = 0;
    if (recipe->architecture->gguf_query_scalar && !recipe->config.head_dim)
        return TW_FAIL(err, TW_E_INPUT, "model '%s': the metadata key '%s' is missing", gguf->path,
                       key(&buffer, recipe, "attention.key_length"));
    if (recipe->architecture->gguf_query_scalar)
        query_scalar = recipe->architecture->gguf_query_scalar(&recipe->config);
    TW_TRY(tw_recipe_finish(recipe, query_scalar, gguf->path, true, err));
    TW_TRY(tw_gguf_get_double(&attention_scale, gguf, key(&buffer, recipe, "attention.scale"), false, err));
    if (attention_scale < 0 || attention_scale > 1e3 || attention_scale != attention_scale)
        return TW_FAIL(err, TW_E_INPUT, "model '%s': %s is %g, expected above 0", gguf->path, buffer.name,
                       attention_scale);
    if (attention_scale != 0) recipe->config.attention_scale = (float)attention_scale;

    uint64_t value_length = recipe->config.head_dim, rotary = recipe->config.head_dim;
    TW_TRY(tw_gguf_get_uint(&value_length, gguf, key(&buffer, recipe, "attention.value_length"), false, err));
    if (value_length != recipe->config.head_dim)
        return TW_FAIL(err, TW_E_UNSUPPORTED,
                       "model '%s': %s is %" PRIu64 ", but keys have %zu: different sizes are not supported",
                       gguf->path, buffer.name, value_length, recipe->config.head_dim);
    TW_TRY(tw_gguf_get_uint(&rotary, gguf, key(&buffer, recipe, "rope.dimension_count"), false, err));
    if (rotary > recipe->config.head_dim)
        return TW_FAIL(err, TW_E_INPUT, "model '%s': %s is %" PRIu64 ", more than the head size %zu", gguf->path,
                       buffer.name, rotary, recipe->config.head_dim);
    if (rotary < recipe->config.head_dim)
        return TW_FAIL(err, TW_E_UNSUPPORTED,
                       "model '%s': %s is %" PRIu64 ", less than the head size %zu: partial rotation is not supported",
                       gguf->path, buffer.name, rotary, recipe->config.head_dim);
    return TW_OK;
}

tw_status tw_recipe_from_gguf(struct tw_recipe *recipe, const struct tw_gguf *gguf, struct tw_error *err) {
    *recipe = (struct tw_recipe){0};
    const tw_status status = read_all(recipe, gguf, err);
    if (status != TW_OK) tw_recipe_release(recipe);
    return status;
}
