/* The architectures: to add one, its row and its line in the list. */
#include "engine/model/architecture.h"

static const struct tw_architecture llama = {
    .name = "llama",
    .hf_type = "llama",
    .gguf_name = "llama",
    .summary = "Llama 2 and 3, SmolLM2, R1-Distill-Llama; Mistral in GGUF files",
    .gguf_rope_pairs = TW_ROPE_INTERLEAVED,
    .activation = TW_ACTIVATION_SILU,
    .hf_activation = "silu",
    .rope_theta = 10000,
};

static const struct tw_architecture mistral = {
    .name = "mistral",
    .hf_type = "mistral",
    .summary = "Mistral, with its sliding window where the configuration has one",
    .activation = TW_ACTIVATION_SILU,
    .hf_activation = "silu",
    .rope_theta = 10000,
};

static const struct tw_architecture qwen2 = {
    .name = "qwen2",
    .hf_type = "qwen2",
    .gguf_name = "qwen2",
    .summary = "Qwen2, Qwen2.5, R1-Distill-Qwen",
    .gguf_rope_pairs = TW_ROPE_HALVES,
    .activation = TW_ACTIVATION_SILU,
    .hf_activation = "silu",
    .qkv_bias = true,
    .sliding = TW_SLIDING_FROM,
    .rope_theta = 10000,
};

static const struct tw_architecture qwen3 = {
    .name = "qwen3",
    .hf_type = "qwen3",
    .gguf_name = "qwen3",
    .summary = "Qwen3, dense",
    .gguf_rope_pairs = TW_ROPE_HALVES,
    .activation = TW_ACTIVATION_SILU,
    .hf_activation = "silu",
    .qk_norm = true,
    .sliding = TW_SLIDING_FROM,
    .rope_theta = 10000,
};

/* 27B, the one with 62 layers, divides by the root of n_embd / n_heads. */
static double gemma3_query_scalar(const struct tw_model_config *config) {
    return config->n_layers == 62 ? (double)config->n_embd / (double)config->n_heads : (double)config->head_dim;
}

static const struct tw_architecture gemma3 = {
    .name = "gemma3",
    .hf_type = "gemma3_text",
    .gguf_name = "gemma3",
    .summary = "Gemma 3, text",
    .gguf_rope_pairs = TW_ROPE_HALVES,
    .activation = TW_ACTIVATION_GELU_TANH,
    .hf_activation = "gelu_pytorch_tanh",
    .qk_norm = true,
    .post_norms = true,
    .hf_norms_minus_one = true,
    .scaled_embedding = true,
    .tied_by_default = true,
    .sliding = TW_SLIDING_MOST,
    .sliding_pattern = 6,
    .rope_theta = 1000000,
    .rope_theta_local = 10000,
    .gguf_query_scalar = gemma3_query_scalar,
};

#define ARCHITECTURES(X) X(llama) X(mistral) X(qwen2) X(qwen3) X(gemma3)

#define ROW(row) &row,
const struct tw_architecture *const tw_architectures[] = {ARCHITECTURES(ROW) NULL};

#define NAME(row) ", " #row
const char *tw_architecture_list(void) { return &ARCHITECTURES(NAME)[2]; }

const struct tw_architecture *tw_architecture_of_gguf(struct tw_view name) {
    for (const struct tw_architecture *const *row = tw_architectures; *row; row++)
        if ((*row)->gguf_name && tw_view_equal(tw_view_of((*row)->gguf_name), name)) return *row;
    return NULL;
}

const struct tw_architecture *tw_architecture_of_hf(struct tw_view model_type) {
    for (const struct tw_architecture *const *row = tw_architectures; *row; row++)
        if (tw_view_equal(tw_view_of((*row)->hf_type), model_type)) return *row;
    return NULL;
}
