/*
 * A model: its configuration, and its weights as they lie on disk, mapped read-only.
 *
 * Containers (GGUF, safetensors) and architectures are hidden behind this: the backends see one normal form. Matrices
 * stay in their file's type; the small vectors (norms, biases, rotary divisors) are converted to float32 when the model
 * is opened.
 */
#ifndef TW_ENGINE_MODEL_MODEL_H
#define TW_ENGINE_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"
#include "engine/model/gguf.h"
#include "engine/model/quant.h"

enum tw_activation { TW_ACTIVATION_SILU, TW_ACTIVATION_GELU_TANH };

/*
 * Which elements of a head rotate together: (2j, 2j+1), as GGUF stores llama and mistral, or (j, j + head_dim/2), as
 * Hugging Face stores everything.
 */
enum tw_rope_pairs { TW_ROPE_INTERLEAVED, TW_ROPE_HALVES };

/* A matrix of n_rows outputs by n_columns inputs, row major; y = W x. `data` lies in the mapped file. */
struct tw_matrix {
    const char *name; /* as in the file, for messages; NULL when the matrix is not there */
    enum tw_type type;
    size_t n_rows, n_columns;
    const uint8_t *data; /* [n_rows][row_bytes]; NULL for a model known by its configuration alone */
    size_t row_bytes;
};

static inline size_t tw_matrix_bytes(const struct tw_matrix *m) { return m->n_rows * m->row_bytes; }

struct tw_layer_weights {
    struct tw_matrix query;      /* [n_heads * head_dim][n_embd] */
    struct tw_matrix key, value; /* [n_kv_heads * head_dim][n_embd] */
    struct tw_matrix output;     /* [n_embd][n_heads * head_dim] */
    struct tw_matrix gate, up;   /* [n_mlp][n_embd] */
    struct tw_matrix down;       /* [n_embd][n_mlp] */
    /* float32, owned by the model. Those that an architecture lacks are NULL. */
    const float *attention_norm;        /* [n_embd] before attention */
    const float *mlp_norm;              /* [n_embd] before the MLP */
    const float *post_attention_norm;   /* [n_embd] on the attention's output, before it is added (gemma3) */
    const float *post_mlp_norm;         /* [n_embd] on the MLP's output, before it is added (gemma3) */
    const float *query_norm, *key_norm; /* [head_dim] on each head, before rotation (qwen3, gemma3) */
    const float *query_bias, *key_bias, *value_bias; /* [n_heads * head_dim], [n_kv_heads * head_dim] (qwen2) */
    /* A query at position p attends keys at positions > p - sliding_window; 0: all. */
    size_t sliding_window;
    /* The angle of pair j at position p is p / rope_divisor[j], the divisor being theta^(2j/head_dim) times the
     * scaling. */
    const double *rope_divisor; /* [head_dim / 2], owned by the model; shared by the layers that agree */
};

struct tw_model_config {
    char architecture[32]; /* "llama", "mistral", "qwen2", "qwen3", "gemma3" */
    char *name;            /* what the file calls the model, or the file's name; owned by the model */
    size_t n_layers;
    size_t n_embd;
    size_t n_heads,
        n_kv_heads;  /* n_heads is a multiple of n_kv_heads; query head h uses KV head h / (n_heads/n_kv_heads) */
    size_t head_dim; /* even; not always n_embd / n_heads */
    size_t n_mlp;
    size_t n_vocab;        /* rows of the embedding and of the output matrix; the tokenizer may have fewer */
    size_t context_length; /* positions that the model was made for */
    double norm_epsilon;
    double rope_theta;       /* of the global layers, for information */
    double rope_theta_local; /* of the sliding-window layers, 0 if the same */
    char rope_scaling[32];   /* "none", "linear", "llama3", for information */
    size_t sliding_window;   /* 0: none */
    enum tw_rope_pairs rope_pairs;
    enum tw_activation activation;
    float embedding_scale; /* multiplies the embedding row (gemma3: sqrt(n_embd), in bf16); 1 otherwise */
    float attention_scale; /* multiplies q.k: 1/sqrt(head_dim), or the configuration's */
    bool tied_embeddings;  /* the output matrix is the embedding */
};

enum { TW_END_TOKENS_MAX = 16 };

struct tw_model {
    struct tw_model_config config;
    struct tw_matrix embedding;      /* [n_vocab][n_embd] */
    struct tw_matrix output;         /* [n_vocab][n_embd]; the embedding again when tied */
    const float *output_norm;        /* [n_embd] */
    struct tw_layer_weights *layers; /* [n_layers] */
    /* The ids that end a text, as the model's files name them; the tokenizer may know more. */
    uint32_t end_tokens[TW_END_TOKENS_MAX];
    size_t n_end_tokens;
    char *path;                   /* as it was opened */
    struct tw_text warnings;      /* one a line: what was understood but may surprise; cli/ prints them */
    struct tw_model_files *files; /* the mappings and what backs the vectors: private to model/ */
};

/*
 * Opens a GGUF file (the first of a split one), a Hugging Face folder, or its config.json alone (a model without
 * weights: every `data` is NULL, for planning). Everything is checked before it is used. On failure *model is NULL.
 */
tw_status tw_model_open(struct tw_model **model, const char *path, struct tw_error *err);
void tw_model_free(struct tw_model *model);

/* The (first) GGUF file that the model came from, for its tokenizer; NULL for a Hugging Face folder. Lives as long as
 * the model. */
const struct tw_gguf *tw_model_gguf(const struct tw_model *model);

/* Bytes of all matrices and vectors as they are on disk, the tied output counted once. */
size_t tw_model_weight_bytes(const struct tw_model *model);
/* Bytes of one layer's matrices. */
size_t tw_layer_weight_bytes(const struct tw_layer_weights *layer);

#endif
