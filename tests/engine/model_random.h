/* Random models in memory: any shape, any type of weights, for comparing backends without a file. */
#ifndef TW_TESTS_ENGINE_MODEL_RANDOM_H
#define TW_TESTS_ENGINE_MODEL_RANDOM_H

#include "base/random.h"
#include "engine/model/model.h"

struct tw_random_model {
    size_t n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_mlp, n_vocab;
    /* Types of the matrices: matrix i of a layer (q, k, v, output, gate, up, down) has type[i % n_types]. */
    enum tw_type types[8];
    size_t n_types;
    bool biases, head_norms, post_norms;
    size_t sliding_window; /* of the odd layers */
    enum tw_rope_pairs rope_pairs;
    enum tw_activation activation;
};

/* Free with tw_random_model_free. */
struct tw_model *tw_random_model_make(const struct tw_random_model *shape, uint64_t seed);
void tw_random_model_free(struct tw_model *model);

/* Uniform in [-1, 1). */
float tw_random_float(struct tw_random *random);
/* A row of `type` holding n numbers of magnitude about `scale`. */
void tw_random_row(uint8_t *row, enum tw_type type, size_t n, float scale, struct tw_random *random);

#endif
