/* Small random models in memory, and shorthands for running them. */
#ifndef TW_TESTS_ENGINE_TINY_H
#define TW_TESTS_ENGINE_TINY_H

#include "engine/engine.h"

struct tw_tiny_shape {
    size_t n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_mlp, n_vocab, context_length;
    size_t sliding_window; /* of every second layer; 0: none */
    bool zero_keys;        /* all key projections 0: attention is exactly uniform */
    bool extras;           /* biases, query and key norms, post norms, GELU, halves rotation */
};

/* The tiny model of cases.md, with random float32 weights from `seed`. Free with tw_tiny_free. */
extern const struct tw_tiny_shape tw_tiny_llama, tw_tiny_zero_key;
struct tw_model *tw_tiny_model(const struct tw_tiny_shape *shape, uint64_t seed);
void tw_tiny_free(struct tw_model *model);

/* n random tokens. Free with free(). */
int32_t *tw_tiny_tokens(const struct tw_model *model, size_t n, uint64_t seed);

/* Opens or fails the test. `backend` NULL: ref. */
struct tw_engine *tw_tiny_engine(const struct tw_model *model, const struct tw_engine_options *options);

/* Hidden states of a prefill: [n_layers + 1][n_tokens][n_embd], embedding first. */
struct tw_hidden_log {
    struct tw_engine *engine;
    size_t n_tokens;
    float *hidden;
};
/* Prefills and returns all hidden states; fails the test on errors. Free with free(). */
float *tw_tiny_hidden(struct tw_engine *engine, const int32_t *tokens, size_t n, size_t reserve);

/* Positions kept by every head of every layer after a prefill, as one list. Free with free(). */
int32_t *tw_tiny_kept(const struct tw_engine *engine, size_t *n);

#endif
