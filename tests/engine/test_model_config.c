/* Configurations: rotary divisors, head sizes, sliding windows, and what each architecture has. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/model.h"
#include "tests/engine/compare_models.h"
#include "tests/engine/tiny_model.h"
#include "tests/support.h"

Suite *tw_suite_model_config(void);

static const char *write_made(struct tw_gguf_writer *writer) {
    return tw_gguf_write(tw_test_path(tw_test_folder(), "made.gguf"), writer);
}

/* ---- rotary divisors and head sizes
 * ---------------------------------------------------------------------------------- */

/* A config.json of Llama's shape with what the test adds. */
static struct tw_model *open_config(const char *extra, const char *refusal) {
    static const char common[] =
        "{\"model_type\": \"llama\", \"hidden_size\": 2048, \"num_hidden_layers\": 4, \"num_attention_heads\": 32, "
        "\"num_key_value_heads\": 8, \"intermediate_size\": 8192, \"vocab_size\": 128256, \"max_position_embeddings\": "
        "131072, \"rms_norm_eps\": 1e-05, \"tie_word_embeddings\": true";
    struct tw_text text = {0};
    tw_text_printf(&text, "%s%s}", common, extra);
    const char *path = tw_test_path(tw_test_folder(), "config.json");
    tw_test_write_file(path, text.data, text.size);
    tw_text_release(&text);
    if (!refusal) return tw_must_open(path);
    tw_must_refuse(path, refusal);
    return NULL;
}

/* What stands between the plain divisor and the scaled one. */
static double factor(const struct tw_model *model, size_t j) {
    return model->layers[0].rope_divisor[j] /
           pow(model->config.rope_theta, 2 * (double)j / (double)model->config.head_dim);
}

static void check_llama3(const struct tw_model *model) {
    for (size_t j = 0; j < 32; j++) {
        const double expected = j < 15 ? 1 : j == 15 ? 1.6513 : j == 16 ? 3.2921 : j == 17 ? 9.6667 : 32;
        ck_assert_double_eq_tol(factor(model, j), expected, 2e-4);
    }
    ck_assert_str_eq(model->config.rope_scaling, "llama3");
}

START_TEST(llama3_scaling) {
    static const char *const forms[] = {
        ", \"rope_theta\": 500000.0, \"rope_scaling\": {\"factor\": 32.0, \"low_freq_factor\": 1.0, "
        "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\"}",
        ", \"rope_theta\": 500000.0, \"rope_scaling\": {\"factor\": 32.0, \"low_freq_factor\": 1.0, "
        "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192, \"type\": \"llama3\"}",
        ", \"rope_parameters\": {\"rope_theta\": 500000.0, \"factor\": 32.0, \"low_freq_factor\": 1.0, "
        "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\"}",
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct tw_model *model = open_config(forms[i], NULL);
        ck_assert_uint_eq(model->config.head_dim, 64);
        check_llama3(model);
        tw_model_free(model);
    }
    struct tw_model *large = open_config(
        ", \"head_dim\": 128, \"rope_theta\": 500000.0, \"rope_scaling\": {\"factor\": 8.0, \"low_freq_factor\": 1.0, "
        "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\"}",
        NULL);
    for (size_t j = 0; j <= 28; j++) ck_assert_double_eq_tol(factor(large, j), 1, 1e-12);
    for (size_t j = 29; j < 35; j++) ck_assert(factor(large, j) > factor(large, j - 1) && factor(large, j) < 8);
    for (size_t j = 35; j < 64; j++) ck_assert_double_eq_tol(factor(large, j), 8, 1e-12);
    tw_model_free(large);
}
END_TEST

/* In GGUF the divisors are a tensor. */
START_TEST(rope_factors_of_gguf) {
    float factors[32];
    for (int j = 0; j < 32; j++)
        factors[j] = j < 15 ? 1 : j == 15 ? 1.6513f : j == 16 ? 3.2921f : j == 17 ? 9.6667f : 32;
    struct tw_gguf_writer writer;
    tw_tiny_write_gguf(&writer, &(struct tw_tiny){.head_dim = 64});
    tw_gguf_put_tensor(&writer, "rope_freqs.weight", 0, 1, (uint64_t[]){32}, factors, sizeof factors);
    struct tw_model *model = tw_must_open(write_made(&writer));
    check_llama3(model);
    tw_model_free(model);

    factors[3] = 0;
    tw_tiny_write_gguf(&writer, &(struct tw_tiny){.head_dim = 64});
    tw_gguf_put_tensor(&writer, "rope_freqs.weight", 0, 1, (uint64_t[]){32}, factors, sizeof factors);
    tw_must_refuse(write_made(&writer), "value 3 of tensor 'rope_freqs.weight' is 0");
    tw_tiny_write_gguf(&writer, &(struct tw_tiny){.head_dim = 64});
    tw_gguf_put_tensor(&writer, "rope_freqs.weight", 0, 1, (uint64_t[]){16}, factors, 64);
    tw_must_refuse(write_made(&writer), "'rope_freqs.weight'");
}
END_TEST

START_TEST(other_scalings) {
    struct tw_model *model =
        open_config(", \"rope_theta\": 10000.0, \"rope_scaling\": {\"factor\": 4.0, \"type\": \"linear\"}", NULL);
    for (size_t j = 0; j < 32; j++) ck_assert_double_eq_tol(factor(model, j), 4, 1e-12);
    ck_assert_str_eq(model->config.rope_scaling, "linear");
    tw_model_free(model);
    model = open_config(", \"rope_scaling\": null", NULL);
    for (size_t j = 0; j < 32; j++) ck_assert_double_eq_tol(factor(model, j), 1, 1e-12);
    ck_assert_str_eq(model->config.rope_scaling, "none");
    tw_model_free(model);
    open_config(", \"rope_scaling\": {\"factor\": 4.0, \"type\": \"yarn\"}", "rope scaling 'yarn' is not supported");
    open_config(", \"rope_scaling\": {\"factor\": 4.0}", "rope_type is missing");
    open_config(", \"rope_scaling\": \"llama3\"", "rope_scaling is 'llama3', expected an object");
    open_config(", \"rope_scaling\": {\"type\": \"linear\", \"factor\": -1}", "factor is -1");
    open_config(", \"rope_theta\": 0", "rope_theta");
    open_config(", \"partial_rotary_factor\": 0.5", "partial_rotary_factor is 0.5");

    struct tw_gguf_writer writer;
    tw_tiny_write_gguf(&writer, &(struct tw_tiny){0});
    tw_gguf_put_string(&writer, "llama.rope.scaling.type", "linear");
    tw_gguf_put_f32(&writer, "llama.rope.scaling.factor", 2);
    model = tw_must_open(write_made(&writer));
    for (size_t j = 0; j < 4; j++) ck_assert_double_eq_tol(factor(model, j), 2, 1e-12);
    tw_model_free(model);
    tw_tiny_write_gguf(&writer, &(struct tw_tiny){0});
    tw_gguf_put_string(&writer, "llama.rope.scaling.type", "yarn");
    tw_must_refuse(write_made(&writer), "rope scaling 'yarn' is not supported");
    tw_tiny_write_gguf(&writer, &(struct tw_tiny){0});
    tw_gguf_put_u32(&writer, "llama.rope.dimension_count", 4);
    tw_must_refuse(write_made(&writer), "partial rotation is not supported");
}
END_TEST

/* A head size that is not n_embd / n_heads: 16-bit KV bytes a token of Qwen3-0.6B's shape. */
START_TEST(head_size_of_its_own) {
    const char *source = getenv("TW_SOURCE");
    struct tw_model *model =
        tw_must_open(tw_test_path(tw_test_path(source ? source : ".", "data/configs"), "Qwen3-0.6B.json"));
    const struct tw_model_config *c = &model->config;
    ck_assert_uint_eq(c->head_dim, 128);
    ck_assert_uint_eq(2 * 2 * c->n_layers * c->n_kv_heads * c->head_dim, 114688);
    ck_assert_uint_eq(model->layers[0].query.n_rows, 2048);
    ck_assert_uint_eq(model->layers[0].output.n_columns, 2048);
    ck_assert_ptr_null(model->layers[0].query.data);
    ck_assert_ptr_nonnull(model->layers[0].query.name);
    tw_model_free(model);
    model = tw_must_open(tw_tiny_gguf(tw_test_folder(), "wide", &(struct tw_tiny){.head_dim = 32}));
    ck_assert_uint_eq(model->config.head_dim, 32);
    ck_assert_uint_eq(model->layers[1].key.n_rows, 64);
    tw_model_free(model);
    open_config(", \"num_key_value_heads\": 8, \"head_dim\": null", "num_key_value_heads is there twice");
    open_config(", \"head_dim\": 33", "head size is 33, expected an even number");
}
END_TEST

/* ---- architectures
 * ---------------------------------------------------------------------------------------------------- */

static const char *const published[] = {
    "DeepSeek-R1-Distill-Llama-8B",
    "DeepSeek-R1-Distill-Qwen-1.5B",
    "Llama-3.1-8B-Instruct",
    "Mistral-7B-Instruct-v0.2",
    "Qwen2.5-3B",
    "Qwen3-0.6B",
    "SmolLM2-135M-Instruct",
};
/* Parameters as their authors count them, the tied output once. */
static const double published_parameters[] = {8030261248, 1777088000, 8030261248, 7241732096,
                                              3085938688, 596049920,  134515008};

START_TEST(published_configurations) {
    const char *source = getenv("TW_SOURCE");
    char path[512];
    snprintf(path, sizeof path, "%s/data/configs/%s.json", source ? source : ".", published[_i]);
    struct tw_model *model = tw_must_open(path);
    ck_assert_str_eq(model->config.name, published[_i]);
    const struct tw_model_config *c = &model->config;
    double n = (double)c->n_vocab * (double)c->n_embd * (c->tied_embeddings ? 1 : 2) + (double)c->n_embd;
    for (size_t l = 0; l < c->n_layers; l++) {
        const struct tw_layer_weights *w = &model->layers[l];
        n += (double)tw_layer_weight_bytes(w) / 2 + 2 * (double)c->n_embd;
        if (w->query_norm) n += 2 * (double)c->head_dim;
        if (w->query_bias) n += (double)((c->n_heads + 2 * c->n_kv_heads) * c->head_dim);
        ck_assert_uint_eq(w->sliding_window, 0);
    }
    ck_assert_double_eq(n, published_parameters[_i]);
    ck_assert_uint_ge(model->n_end_tokens, 1);
    tw_model_free(model);
}
END_TEST

static const char *const families[] = {"llama_rope3", "llama_tied",   "mistral_gqa",
                                       "qwen2_bias",  "qwen3_qknorm", "gemma3_text"};

static struct tw_model *open_family(const char *family, const char *file) {
    char name[256];
    snprintf(name, sizeof name, file ? "engine/models/%s/%s.%s.gguf" : "engine/models/%s/hf", family, family, file);
    return tw_must_open(tw_test_golden(name));
}

/* Safetensors, f32 and f16 hold the same numbers; llama_tied's f16 and every q8_0 are rounded. */
START_TEST(families_are_equal_in_every_container) {
    const char *family = families[_i];
    struct tw_model *hf = open_family(family, NULL), *f32 = open_family(family, "f32");
    struct tw_model *f16 = open_family(family, "f16"), *q8_0 = open_family(family, "q8_0");
    tw_compare_models(hf, f32, 0);
    tw_compare_models(hf, f16, strcmp(family, "llama_tied") == 0 ? 1e-3 : 0);
    tw_compare_models(hf, q8_0, 1e-2);
    ck_assert_int_eq(q8_0->layers[0].query.type, TW_TYPE_Q8_0);
    ck_assert_uint_eq(hf->n_end_tokens, 1);
    ck_assert_uint_eq(hf->end_tokens[0], f32->end_tokens[0]);
    tw_model_free(hf);
    tw_model_free(f32);
    tw_model_free(f16);
    tw_model_free(q8_0);
}
END_TEST

START_TEST(what_each_family_has) {
    struct tw_model *model = open_family("llama_rope3", "f32");
    ck_assert_str_eq(model->config.architecture, "llama");
    ck_assert_int_eq(model->config.rope_pairs, TW_ROPE_INTERLEAVED);
    ck_assert(model->layers[0].rope_divisor[7] / model->layers[0].rope_divisor[0] > 8);
    tw_model_free(model);
    model = open_family("mistral_gqa", NULL);
    ck_assert_str_eq(model->config.architecture, "mistral");
    ck_assert_int_eq(model->config.rope_pairs, TW_ROPE_HALVES);
    ck_assert_uint_eq(model->config.sliding_window, 0);
    tw_model_free(model);
    model = open_family("qwen2_bias", "q8_0");
    ck_assert_ptr_nonnull(model->layers[1].value_bias);
    ck_assert_ptr_null(model->layers[1].query_norm);
    tw_model_free(model);
    model = open_family("qwen3_qknorm", "q8_0");
    ck_assert_ptr_nonnull(model->layers[1].key_norm);
    ck_assert_ptr_null(model->layers[1].value_bias);
    tw_model_free(model);
    model = open_family("gemma3_text", "f16");
    ck_assert(model->config.embedding_scale == 8);
    ck_assert_int_eq(model->config.activation, TW_ACTIVATION_GELU_TANH);
    for (size_t l = 0; l < 6; l++) {
        ck_assert_uint_eq(model->layers[l].sliding_window, l == 5 ? 0 : 32);
        ck_assert_double_eq_tol(model->layers[l].rope_divisor[15], pow(l == 5 ? 1e6 : 1e4, 15.0 / 16), 1e-6);
        ck_assert_ptr_nonnull(model->layers[l].post_mlp_norm);
    }
    tw_model_free(model);
}
END_TEST

/* Which layers slide, in every form in which configurations say it. */
START_TEST(sliding_windows) {
    static const char common[] =
        "\"hidden_size\": 64, \"num_hidden_layers\": 6, \"num_attention_heads\": 4, \"intermediate_size\": 64, "
        "\"vocab_size\": 96, \"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-05";
    static const struct {
        const char *config, *slides; /* a letter a layer: s slides */
    } forms[] = {
        {"\"model_type\": \"mistral\", \"sliding_window\": 32", "ssssss"},
        {"\"model_type\": \"mistral\", \"sliding_window\": null", "------"},
        {"\"model_type\": \"llama\"", "------"},
        {"\"model_type\": \"qwen2\", \"sliding_window\": 32, \"use_sliding_window\": false, \"max_window_layers\": 2",
         "------"},
        {"\"model_type\": \"qwen2\", \"sliding_window\": 32, \"use_sliding_window\": true, \"max_window_layers\": 2",
         "--ssss"},
        {"\"model_type\": \"qwen3\", \"sliding_window\": 32, \"use_sliding_window\": true, \"max_window_layers\": 28",
         "------"},
        {"\"model_type\": \"gemma3_text\", \"sliding_window\": 32", "sssss-"},
        {"\"model_type\": \"gemma3_text\", \"sliding_window\": 32, \"sliding_window_pattern\": 2", "s-s-s-"},
        {"\"model_type\": \"gemma3_text\", \"sliding_window\": 32, \"layer_types\": [\"full_attention\", "
         "\"sliding_attention\", \"full_attention\", \"sliding_attention\", \"full_attention\", \"full_attention\"]",
         "-s-s--"},
    };
    const char *path = tw_test_path(tw_test_folder(), "config.json");
    struct tw_text text = {0};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        tw_text_clear(&text);
        tw_text_printf(&text, "{%s, %s}", common, forms[i].config);
        tw_test_write_file(path, text.data, text.size);
        struct tw_model *model = tw_must_open(path);
        for (size_t l = 0; l < 6; l++)
            ck_assert_msg(model->layers[l].sliding_window == (forms[i].slides[l] == 's' ? 32 : 0), "%s layer %zu",
                          forms[i].config, l);
        ck_assert_uint_eq(model->config.sliding_window, strchr(forms[i].slides, 's') ? 32 : 0);
        tw_model_free(model);
    }
    static const struct {
        const char *config, *says;
    } bad[] = {
        {"\"model_type\": \"gemma3_text\", \"sliding_window\": 32, \"layer_types\": [\"full_attention\"]",
         "layer_types has 1"},
        {"\"model_type\": \"gemma3_text\", \"sliding_window\": 32, \"layer_types\": [1, 2, 3, 4, 5, 6]",
         "layer_types[0]"},
        {"\"model_type\": \"llama\", \"attention_bias\": true", "attention_bias is true"},
        {"\"model_type\": \"llama\", \"hidden_act\": \"relu\"", "hidden_act is 'relu'"},
        {"\"model_type\": \"gemma3_text\", \"final_logit_softcapping\": 30.0", "final_logit_softcapping"},
        {"\"model_type\": \"llama\", \"quantization_config\": {\"bits\": 4}", "quantization_config"},
        {"\"model_type\": \"llama\", \"eos_token_id\": -1", "eos_token_id is -1"},
        {"\"model_type\": 7", "model_type is 7"},
        {"\"hidden_act\": \"silu\"", "model_type is missing"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tw_text_clear(&text);
        tw_text_printf(&text, "{%s, %s}", common, bad[i].config);
        tw_test_write_file(path, text.data, text.size);
        tw_must_refuse(path, bad[i].says);
    }
    tw_text_release(&text);
}
END_TEST

/* The same in GGUF metadata; the tiny model has llama's row, where a window without more holds for every layer. */
START_TEST(sliding_windows_of_gguf) {
    struct tw_gguf_writer writer;
    static const struct {
        int pattern; /* -1: none, -2: a list of one bool a layer, else the number */
        const char *slides;
    } forms[] = {{-1, "ssss"}, {2, "s-s-"}, {1, "----"}, {-2, "-ss-"}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        tw_tiny_write_gguf(&writer, &(struct tw_tiny){.n_layers = 4});
        tw_gguf_put_u32(&writer, "llama.attention.sliding_window", 16);
        if (forms[i].pattern > 0)
            tw_gguf_put_u32(&writer, "llama.attention.sliding_window_pattern", (uint32_t)forms[i].pattern);
        if (forms[i].pattern == -2)
            tw_gguf_put_bools(&writer, "llama.attention.sliding_window_pattern", (bool[]){false, true, true, false}, 4);
        struct tw_model *model = tw_must_open(write_made(&writer));
        for (size_t l = 0; l < 4; l++)
            ck_assert_uint_eq(model->layers[l].sliding_window, forms[i].slides[l] == 's' ? 16 : 0);
        tw_model_free(model);
    }
    tw_tiny_write_gguf(&writer, &(struct tw_tiny){.n_layers = 4});
    tw_gguf_put_u32(&writer, "llama.attention.sliding_window", 0); /* none */
    struct tw_model *model = tw_must_open(write_made(&writer));
    ck_assert_uint_eq(model->config.sliding_window, 0);
    tw_model_free(model);
    static const bool three[3];
    tw_tiny_write_gguf(&writer, &(struct tw_tiny){.n_layers = 4});
    tw_gguf_put_u32(&writer, "llama.attention.sliding_window", 16);
    tw_gguf_put_bools(&writer, "llama.attention.sliding_window_pattern", three, 3);
    tw_must_refuse(write_made(&writer), "sliding_window_pattern has 3 elements, expected one a layer (4)");
    tw_tiny_write_gguf(&writer, &(struct tw_tiny){.n_layers = 4});
    tw_gguf_put_u32(&writer, "llama.attention.sliding_window", 16);
    tw_gguf_put_u32(&writer, "llama.attention.sliding_window_pattern", 0);
    tw_must_refuse(write_made(&writer), "sliding_window_pattern is 0");
}
END_TEST

/* Arithmetic that we do not do, and tensors that have no place, must not pass unnoticed. */
START_TEST(what_would_change_the_numbers_is_refused) {
    struct tw_gguf_writer writer;
    tw_tiny_write_gguf(&writer, &(struct tw_tiny){0});
    tw_gguf_put_u32(&writer, "llama.expert_count", 8);
    tw_must_refuse(write_made(&writer), "llama.expert_count is 8");
    tw_tiny_write_gguf(&writer, &(struct tw_tiny){0});
    tw_gguf_put_tensor(&writer, "blk.0.attn_q.bias", 0, 1, (uint64_t[]){32}, (float[32]){0}, 128);
    tw_must_refuse(write_made(&writer), "'blk.0.attn_q.bias' has no place");
    tw_tiny_write_gguf(&writer, &(struct tw_tiny){0});
    tw_gguf_put_u32(&writer, "llama.vocab_size", 95);
    tw_must_refuse(write_made(&writer), "'token_embd.weight' has 96 rows of 32, expected 95");
    tw_must_refuse(tw_tiny_gguf(tw_test_folder(), "more", &(struct tw_tiny){.n_vocab = 90}), "id 90");
    struct tw_model *fewer = tw_must_open(tw_tiny_gguf(tw_test_folder(), "fewer", &(struct tw_tiny){.n_tokens = 90}));
    ck_assert_uint_eq(fewer->config.n_vocab, 96);
    tw_model_free(fewer);
}
END_TEST

START_TEST(generation_config_names_the_end) {
    const char *folder = tw_tiny_hf(tw_test_folder(), "ends", &(struct tw_tiny){0});
    const char *path = tw_test_path(folder, "generation_config.json");
    static const char list[] = "{\"eos_token_id\": [5, 6, 7], \"temperature\": 0.6}";
    tw_test_write_file(path, list, sizeof list - 1);
    struct tw_model *model = tw_must_open(folder);
    ck_assert_uint_eq(model->n_end_tokens, 3);
    ck_assert_uint_eq(model->end_tokens[2], 7);
    tw_model_free(model);
    static const char bad[] = "{\"eos_token_id\": [5, \"x\"]}";
    tw_test_write_file(path, bad, sizeof bad - 1);
    tw_must_refuse(folder, "eos_token_id is 'x'");
}
END_TEST

Suite *tw_suite_model_config(void) {
    Suite *suite = suite_create("model_config");
    TCase *config = tcase_create("configuration");
    tcase_set_timeout(config, 30);
    tcase_add_test(config, llama3_scaling);
    tcase_add_test(config, rope_factors_of_gguf);
    tcase_add_test(config, other_scalings);
    tcase_add_test(config, head_size_of_its_own);
    tcase_add_loop_test(config, published_configurations, 0, (int)(sizeof published / sizeof *published));
    tcase_add_test(config, sliding_windows);
    tcase_add_test(config, sliding_windows_of_gguf);
    tcase_add_test(config, what_would_change_the_numbers_is_refused);
    tcase_add_test(config, generation_config_names_the_end);
    suite_add_tcase(suite, config);
    TCase *models = tcase_create("families");
    tcase_set_timeout(models, 30);
    tcase_add_loop_test(models, families_are_equal_in_every_container, 0, (int)(sizeof families / sizeof *families));
    tcase_add_test(models, what_each_family_has);
    suite_add_tcase(suite, models);
    return suite;
}
