/* The configuration in config.json, in the form that is published and in that which transformers 5 writes. */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "engine/model/config.h"

struct document {
    cJSON *root;
    const char *path;
    struct tw_error *err;
};

/* Checks grammar, UTF-8 and depth before cJSON, which is lenient, builds its tree. */
static tw_status parse(struct document *document, struct tw_view json, const char *path, struct tw_error *err) {
    *document = (struct document){.path = path, .err = err};
    struct tw_json_reader reader = tw_json_reader(json);
    tw_json_skip(&reader);
    tw_json_finish(&reader);
    if (reader.fault)
        return TW_FAIL(err, TW_E_INPUT, "model '%s' is not JSON: %s at byte %zu", path, reader.fault, reader.fault_at);
    document->root = cJSON_ParseWithLength(json.data, json.size);
    if (!document->root) return TW_FAIL(err, TW_E_MEMORY, "out of memory while reading model '%s'", path);
    if (!cJSON_IsObject(document->root)) {
        cJSON_Delete(document->root);
        document->root = NULL;
        return TW_FAIL(err, TW_E_INPUT, "model '%s': expected an object", path);
    }
    return TW_OK;
}

/* The member `name`; NULL when it is absent or null. A name that is there twice is a fault. */
static tw_status member(const cJSON **value, const struct document *document, const cJSON *object, const char *name) {
    *value = NULL;
    for (const cJSON *child = object ? object->child : NULL; child; child = child->next) {
        if (!child->string || strcmp(child->string, name) != 0) continue;
        if (*value) return TW_FAIL(document->err, TW_E_INPUT, "model '%s': %s is there twice", document->path, name);
        *value = child;
    }
    if (*value && cJSON_IsNull(*value)) *value = NULL;
    return TW_OK;
}

static tw_status wrong(const struct document *document, const char *name, const cJSON *value, const char *expected) {
    if (cJSON_IsNumber(value))
        return TW_FAIL(document->err, TW_E_INPUT, "model '%s': %s is %.17g, expected %s", document->path, name,
                       value->valuedouble, expected);
    if (cJSON_IsString(value))
        return TW_FAIL(document->err, TW_E_INPUT, "model '%s': %s is '%.40s', expected %s", document->path, name,
                       value->valuestring, expected);
    return TW_FAIL(document->err, TW_E_INPUT, "model '%s': %s is %s, expected %s", document->path, name,
                   cJSON_IsBool(value)    ? cJSON_IsTrue(value) ? "true" : "false"
                   : cJSON_IsArray(value) ? "a list"
                                          : "an object",
                   expected);
}

static tw_status missing(const struct document *document, const char *name) {
    return TW_FAIL(document->err, TW_E_INPUT, "model '%s': %s is missing", document->path, name);
}

/* All of these leave *value as it is when the member is absent. */
static tw_status get_uint(uint64_t *value, const struct document *document, const cJSON *object, const char *name) {
    const cJSON *found;
    TW_TRY(member(&found, document, object, name));
    if (!found) return TW_OK;
    if (!cJSON_IsNumber(found) || !(found->valuedouble >= 0) || found->valuedouble > 0x1p53 ||
        floor(found->valuedouble) != found->valuedouble)
        return wrong(document, name, found, "a whole number from 0 on");
    *value = (uint64_t)found->valuedouble;
    return TW_OK;
}

static tw_status get_double(double *value, const struct document *document, const cJSON *object, const char *name) {
    const cJSON *found;
    TW_TRY(member(&found, document, object, name));
    if (!found) return TW_OK;
    if (!cJSON_IsNumber(found) || !isfinite(found->valuedouble)) return wrong(document, name, found, "a number");
    *value = found->valuedouble;
    return TW_OK;
}

static tw_status get_bool(bool *value, const struct document *document, const char *name) {
    const cJSON *found;
    TW_TRY(member(&found, document, document->root, name));
    if (!found) return TW_OK;
    if (!cJSON_IsBool(found)) return wrong(document, name, found, "true or false");
    *value = cJSON_IsTrue(found);
    return TW_OK;
}

static tw_status get_string(const char **value, const struct document *document, const cJSON *object,
                            const char *name) {
    const cJSON *found;
    TW_TRY(member(&found, document, object, name));
    if (!found) return TW_OK;
    if (!cJSON_IsString(found)) return wrong(document, name, found, "a string");
    *value = found->valuestring;
    return TW_OK;
}

static tw_status read_numbers(struct tw_recipe *recipe, const struct document *document) {
    for (const struct tw_config_number *row = tw_config_numbers; row->hf; row++) {
        const cJSON *found;
        TW_TRY(member(&found, document, document->root, row->hf));
        if (!found) {
            if (!row->hf_optional) return missing(document, row->hf);
            continue;
        }
        uint64_t value = 0;
        TW_TRY(get_uint(&value, document, document->root, row->hf));
        TW_TRY(tw_config_set_number(&recipe->config, row, value, document->path, row->hf, document->err));
    }
    return TW_OK;
}

/* What changes the arithmetic in a way that we do not do must not pass unnoticed. */
static tw_status refuse_unsupported(const struct tw_recipe *recipe, const struct document *document) {
    static const char *const must_be_absent[] = {"attn_logit_softcapping", "final_logit_softcapping",
                                                 "quantization_config"};
    static const char *const must_be_false[] = {"mlp_bias", "attention_bias", "use_bidirectional_attention"};
    for (size_t i = 0; i < sizeof must_be_absent / sizeof *must_be_absent; i++) {
        const cJSON *found;
        TW_TRY(member(&found, document, document->root, must_be_absent[i]));
        if (found)
            return TW_FAIL(document->err, TW_E_UNSUPPORTED, "model '%s': there is %s, which is not supported",
                           document->path, must_be_absent[i]);
    }
    for (size_t i = 0; i < sizeof must_be_false / sizeof *must_be_false; i++) {
        bool value = false;
        TW_TRY(get_bool(&value, document, must_be_false[i]));
        if (value)
            return TW_FAIL(document->err, TW_E_UNSUPPORTED, "model '%s': %s is true, which is not supported for %s",
                           document->path, must_be_false[i], recipe->architecture->name);
    }
    double partial = 1;
    TW_TRY(get_double(&partial, document, document->root, "partial_rotary_factor"));
    if (partial != 1)
        return TW_FAIL(document->err, TW_E_UNSUPPORTED,
                       "model '%s': partial_rotary_factor is %g: partial rotation is not supported", document->path,
                       partial);
    static const char *const names[] = {"hidden_act", "hidden_activation"};
    for (size_t i = 0; i < 2; i++) {
        const char *activation = recipe->architecture->hf_activation;
        TW_TRY(get_string(&activation, document, document->root, names[i]));
        if (strcmp(activation, recipe->architecture->hf_activation) != 0)
            return TW_FAIL(document->err, TW_E_UNSUPPORTED,
                           "model '%s': %s is '%.40s', but only '%s' is supported for %s", document->path, names[i],
                           activation, recipe->architecture->hf_activation, recipe->architecture->name);
    }
    return TW_OK;
}

static tw_status required_positive(double *value, const struct document *document, const cJSON *object,
                                   const char *name) {
    *value = NAN;
    TW_TRY(get_double(value, document, object, name));
    if (isnan(*value))
        return TW_FAIL(document->err, TW_E_INPUT, "model '%s': the rope scaling has no %s", document->path, name);
    if (!(*value > 0) || *value > 1e12)
        return TW_FAIL(document->err, TW_E_INPUT, "model '%s': %s is %g, expected above 0", document->path, name,
                       *value);
    return TW_OK;
}

/* `object` is rope_scaling, or rope_parameters, which has rope_theta beside what rope_scaling has. */
static tw_status read_scaling(struct tw_rope_scaling *scaling, const struct document *document, const cJSON *object) {
    const char *type = NULL;
    *scaling = (struct tw_rope_scaling){.kind = TW_ROPE_UNSCALED};
    TW_TRY(get_string(&type, document, object, "type"));
    TW_TRY(get_string(&type, document, object, "rope_type"));
    if (!type) return missing(document, "rope_type");
    double partial = 1;
    TW_TRY(get_double(&partial, document, object, "partial_rotary_factor"));
    if (partial != 1)
        return TW_FAIL(document->err, TW_E_UNSUPPORTED,
                       "model '%s': partial_rotary_factor is %g: partial rotation is not supported", document->path,
                       partial);
    if (strcmp(type, "default") == 0) return TW_OK;
    if (strcmp(type, "linear") == 0) {
        scaling->kind = TW_ROPE_LINEAR;
        return required_positive(&scaling->factor, document, object, "factor");
    }
    if (strcmp(type, "llama3") != 0)
        return TW_FAIL(document->err, TW_E_UNSUPPORTED,
                       "model '%s': the rope scaling '%.40s' is not supported; known are default, linear, llama3",
                       document->path, type);
    scaling->kind = TW_ROPE_LLAMA3;
    TW_TRY(required_positive(&scaling->factor, document, object, "factor"));
    TW_TRY(required_positive(&scaling->low_frequency, document, object, "low_freq_factor"));
    TW_TRY(required_positive(&scaling->high_frequency, document, object, "high_freq_factor"));
    TW_TRY(required_positive(&scaling->original_length, document, object, "original_max_position_embeddings"));
    if (!(scaling->low_frequency < scaling->high_frequency))
        return TW_FAIL(document->err, TW_E_INPUT, "model '%s': low_freq_factor %g is not below high_freq_factor %g",
                       document->path, scaling->low_frequency, scaling->high_frequency);
    return TW_OK;
}

static tw_status get_object(const cJSON **object, const struct document *document, const cJSON *parent,
                            const char *name) {
    TW_TRY(member(object, document, parent, name));
    if (*object && !cJSON_IsObject(*object)) return wrong(document, name, *object, "an object");
    return TW_OK;
}

static tw_status read_rope(struct tw_recipe *recipe, const struct document *document) {
    struct tw_model_config *config = &recipe->config;
    const cJSON *parameters, *full, *sliding, *scaling;
    struct tw_rope_scaling sliding_scaling;
    config->rope_theta = recipe->architecture->rope_theta;
    config->rope_theta_local = recipe->architecture->rope_theta_local;
    TW_TRY(get_double(&config->rope_theta, document, document->root, "rope_theta"));
    TW_TRY(get_double(&config->rope_theta_local, document, document->root, "rope_local_base_freq"));
    TW_TRY(get_object(&parameters, document, document->root, "rope_parameters"));
    TW_TRY(get_object(&scaling, document, document->root, "rope_scaling"));
    if (!parameters) return scaling ? read_scaling(&recipe->scaling, document, scaling) : TW_OK;

    TW_TRY(get_object(&full, document, parameters, "full_attention"));
    TW_TRY(get_object(&sliding, document, parameters, "sliding_attention"));
    if (!full && !sliding) {
        TW_TRY(get_double(&config->rope_theta, document, parameters, "rope_theta"));
        return read_scaling(&recipe->scaling, document, parameters);
    }
    if (full) {
        TW_TRY(get_double(&config->rope_theta, document, full, "rope_theta"));
        TW_TRY(read_scaling(&recipe->scaling, document, full));
    }
    if (sliding) {
        TW_TRY(get_double(&config->rope_theta_local, document, sliding, "rope_theta"));
        TW_TRY(read_scaling(&sliding_scaling, document, sliding));
        if (sliding_scaling.kind != TW_ROPE_UNSCALED)
            return TW_FAIL(document->err, TW_E_UNSUPPORTED,
                           "model '%s': rope scaling of the sliding_attention layers is not supported", document->path);
    }
    return TW_OK;
}

static tw_status read_layer_types(struct tw_recipe *recipe, const struct document *document, const cJSON *types) {
    const size_t n_layers = recipe->config.n_layers;
    if (!cJSON_IsArray(types)) return wrong(document, "layer_types", types, "a list");
    const size_t n = (size_t)cJSON_GetArraySize(types);
    if (n != n_layers)
        return TW_FAIL(document->err, TW_E_INPUT, "model '%s': layer_types has %zu entries, expected one a layer (%zu)",
                       document->path, n, n_layers);
    recipe->slides = calloc(n_layers, sizeof *recipe->slides);
    if (!recipe->slides)
        return TW_FAIL(document->err, TW_E_MEMORY, "out of memory while reading model '%s'", document->path);
    const cJSON *type;
    size_t i = 0;
    cJSON_ArrayForEach(type, types) {
        const char *name = cJSON_IsString(type) ? type->valuestring : "";
        recipe->slides[i] = strcmp(name, "sliding_attention") == 0;
        if (!recipe->slides[i] && strcmp(name, "full_attention") != 0)
            return TW_FAIL(document->err, TW_E_UNSUPPORTED,
                           "model '%s': layer_types[%zu] is '%.40s'; known are full_attention and sliding_attention",
                           document->path, i, name);
        if (recipe->slides[i] && !recipe->config.sliding_window) return missing(document, "sliding_window");
        i++;
    }
    return TW_OK;
}

static tw_status read_sliding(struct tw_recipe *recipe, const struct document *document) {
    const struct tw_architecture *row = recipe->architecture;
    if (row->sliding == TW_SLIDING_FROM) {
        bool used = false;
        uint64_t from = 28; /* the default of the configuration classes of qwen2 and qwen3 */
        TW_TRY(get_bool(&used, document, "use_sliding_window"));
        TW_TRY(get_uint(&from, document, document->root, "max_window_layers"));
        recipe->sliding_from = (size_t)from;
        if (!used) recipe->config.sliding_window = 0;
    }
    if (row->sliding == TW_SLIDING_MOST) {
        uint64_t pattern = row->sliding_pattern;
        TW_TRY(get_uint(&pattern, document, document->root, "_sliding_window_pattern"));
        TW_TRY(get_uint(&pattern, document, document->root, "sliding_window_pattern"));
        if (pattern < 1)
            return TW_FAIL(document->err, TW_E_INPUT, "model '%s': sliding_window_pattern is 0, expected 1 or more",
                           document->path);
        recipe->sliding_pattern = (size_t)pattern;
    }
    const cJSON *types;
    TW_TRY(member(&types, document, document->root, "layer_types"));
    return types ? read_layer_types(recipe, document, types) : TW_OK;
}

static tw_status read_type(struct tw_recipe *recipe, const struct document *document) {
    static const struct {
        const char *name;
        enum tw_type type;
    } types[] = {{"bfloat16", TW_TYPE_BF16}, {"float16", TW_TYPE_F16}, {"float32", TW_TYPE_F32}};
    const char *name = "bfloat16";
    TW_TRY(get_string(&name, document, document->root, "torch_dtype"));
    TW_TRY(get_string(&name, document, document->root, "dtype"));
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0) {
            recipe->type = types[i].type;
            return TW_OK;
        }
    return TW_FAIL(document->err, TW_E_UNSUPPORTED,
                   "model '%s': the dtype '%.40s' is not supported; known are bfloat16, float16, float32",
                   document->path, name);
}

/* A token id or a list of them. */
static tw_status read_end_tokens(struct tw_recipe *recipe, const struct document *document) {
    const cJSON *found;
    TW_TRY(member(&found, document, document->root, "eos_token_id"));
    if (!found) return TW_OK;
    recipe->n_end_tokens = 0;
    const bool list = cJSON_IsArray(found);
    for (const cJSON *id = list ? found->child : found; id; id = list ? id->next : NULL) {
        if (!cJSON_IsNumber(id) || !(id->valuedouble >= 0) || id->valuedouble > UINT32_MAX ||
            floor(id->valuedouble) != id->valuedouble)
            return wrong(document, "eos_token_id", id, "token ids");
        if (recipe->n_end_tokens == TW_END_TOKENS_MAX)
            return TW_FAIL(document->err, TW_E_INPUT, "model '%s': eos_token_id has more than %d ids", document->path,
                           TW_END_TOKENS_MAX);
        recipe->end_tokens[recipe->n_end_tokens++] = (uint32_t)id->valuedouble;
    }
    return TW_OK;
}

static tw_status read_all(struct tw_recipe *recipe, const struct document *document) {
    const char *type = NULL;
    double query_scalar = 0;
    TW_TRY(get_string(&type, document, document->root, "model_type"));
    if (!type) return missing(document, "model_type");
    recipe->architecture = tw_architecture_of_hf(tw_view_of(type));
    if (!recipe->architecture)
        return TW_FAIL(document->err, TW_E_UNSUPPORTED,
                       "model '%s': the architecture '%.40s' is not supported; known are %s", document->path, type,
                       tw_architecture_list());
    TW_TRY(read_numbers(recipe, document));
    TW_TRY(refuse_unsupported(recipe, document));
    recipe->config.norm_epsilon = NAN;
    TW_TRY(get_double(&recipe->config.norm_epsilon, document, document->root, "rms_norm_eps"));
    if (isnan(recipe->config.norm_epsilon)) return missing(document, "rms_norm_eps");
    TW_TRY(read_rope(recipe, document));
    TW_TRY(read_sliding(recipe, document));
    TW_TRY(read_type(recipe, document));
    TW_TRY(read_end_tokens(recipe, document));
    recipe->tied = recipe->architecture->tied_by_default;
    TW_TRY(get_bool(&recipe->tied, document, "tie_word_embeddings"));
    TW_TRY(get_double(&query_scalar, document, document->root, "query_pre_attn_scalar"));
    if (query_scalar < 0)
        return TW_FAIL(document->err, TW_E_INPUT, "model '%s': query_pre_attn_scalar is %g, expected above 0",
                       document->path, query_scalar);
    return tw_recipe_finish(recipe, query_scalar, document->path, false, document->err);
}

tw_status tw_recipe_from_json(struct tw_recipe *recipe, struct tw_view json, const char *path, struct tw_error *err) {
    struct document document;
    *recipe = (struct tw_recipe){0};
    TW_TRY(parse(&document, json, path, err));
    const tw_status status = read_all(recipe, &document);
    if (status != TW_OK) tw_recipe_release(recipe);
    cJSON_Delete(document.root);
    return status;
}

tw_status tw_recipe_add_generation(struct tw_recipe *recipe, struct tw_view json, const char *path,
                                   struct tw_error *err) {
    struct document document;
    TW_TRY(parse(&document, json, path, err));
    const tw_status status = read_end_tokens(recipe, &document);
    cJSON_Delete(document.root);
    return status;
}
