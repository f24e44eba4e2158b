#include "tests/engine/tiny.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"

const struct tw_tiny_shape tw_tiny_llama = {.n_layers = 2,
                                            .n_embd = 32,
                                            .n_heads = 4,
                                            .n_kv_heads = 2,
                                            .head_dim = 8,
                                            .n_mlp = 64,
                                            .n_vocab = 96,
                                            .context_length = 4096};
const struct tw_tiny_shape tw_tiny_zero_key = {.n_layers = 2,
                                               .n_embd = 32,
                                               .n_heads = 4,
                                               .n_kv_heads = 2,
                                               .head_dim = 8,
                                               .n_mlp = 64,
                                               .n_vocab = 96,
                                               .context_length = 4096,
                                               .zero_keys = true};

/* Everything that the model points to hangs on a list that begins behind the model. */
struct owner {
    struct tw_model model;
    void *blocks[512];
    size_t n_blocks;
    struct tw_random random;
};

static void *own(struct owner *owner, size_t bytes) {
    ck_assert_uint_lt(owner->n_blocks, sizeof owner->blocks / sizeof *owner->blocks);
    void *block = calloc(1, bytes);
    ck_assert_ptr_nonnull(block);
    owner->blocks[owner->n_blocks++] = block;
    return block;
}

static float normal(struct tw_random *random) {
    const double u = 1 - tw_random_unit(random), v = tw_random_unit(random);
    return (float)(sqrt(-2 * log(u)) * cos(2 * M_PI * v));
}

static float *vector(struct owner *owner, size_t n, float centre, float spread) {
    float *x = own(owner, n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = centre + spread * normal(&owner->random);
    return x;
}

static struct tw_matrix matrix(struct owner *owner, const char *name, size_t n_rows, size_t n_columns, float scale) {
    const float *x = vector(owner, n_rows * n_columns, 0, scale / sqrtf((float)n_columns));
    return (struct tw_matrix){name, TW_TYPE_F32, n_rows, n_columns, (const uint8_t *)x, n_columns * sizeof *x};
}

struct tw_model *tw_tiny_model(const struct tw_tiny_shape *shape, uint64_t seed) {
    struct owner *owner = calloc(1, sizeof *owner);
    ck_assert_ptr_nonnull(owner);
    tw_random_init(&owner->random, seed, 0);
    struct tw_model *model = &owner->model;
    const size_t d = shape->head_dim, query = shape->n_heads * d, key = shape->n_kv_heads * d;
    model->config = (struct tw_model_config){
        .architecture = "llama",
        .n_layers = shape->n_layers,
        .n_embd = shape->n_embd,
        .n_heads = shape->n_heads,
        .n_kv_heads = shape->n_kv_heads,
        .head_dim = d,
        .n_mlp = shape->n_mlp,
        .n_vocab = shape->n_vocab,
        .context_length = shape->context_length,
        .norm_epsilon = 1e-5,
        .rope_theta = 10000,
        .rope_scaling = "none",
        .sliding_window = shape->sliding_window,
        .rope_pairs = shape->extras ? TW_ROPE_HALVES : TW_ROPE_INTERLEAVED,
        .activation = shape->extras ? TW_ACTIVATION_GELU_TANH : TW_ACTIVATION_SILU,
        .embedding_scale = shape->extras ? 1.5f : 1,
        .attention_scale = 1 / sqrtf((float)d),
    };
    model->config.name = strcpy(own(owner, 8), "tiny");
    model->path = strcpy(own(owner, 8), "tiny");
    model->embedding = matrix(owner, "token_embd", shape->n_vocab, shape->n_embd, sqrtf((float)shape->n_embd));
    model->output = matrix(owner, "output", shape->n_vocab, shape->n_embd, 3);
    model->output_norm = vector(owner, shape->n_embd, 1, 0.1f);
    double *divisor = own(owner, d / 2 * sizeof *divisor);
    for (size_t j = 0; j < d / 2; j++) divisor[j] = pow(10000, 2.0 * (double)j / (double)d);
    model->layers = own(owner, shape->n_layers * sizeof *model->layers);
    for (size_t l = 0; l < shape->n_layers; l++) {
        struct tw_layer_weights *layer = &model->layers[l];
        layer->query = matrix(owner, "q", query, shape->n_embd, 2);
        layer->key = matrix(owner, "k", key, shape->n_embd, shape->zero_keys ? 0 : 2);
        layer->value = matrix(owner, "v", key, shape->n_embd, 1);
        layer->output = matrix(owner, "o", shape->n_embd, query, 1);
        layer->gate = matrix(owner, "gate", shape->n_mlp, shape->n_embd, 1);
        layer->up = matrix(owner, "up", shape->n_mlp, shape->n_embd, 1);
        layer->down = matrix(owner, "down", shape->n_embd, shape->n_mlp, 1);
        layer->attention_norm = vector(owner, shape->n_embd, 1, 0.1f);
        layer->mlp_norm = vector(owner, shape->n_embd, 1, 0.1f);
        layer->rope_divisor = divisor;
        layer->sliding_window = l % 2 ? shape->sliding_window : 0;
        if (!shape->extras) continue;
        layer->post_attention_norm = vector(owner, shape->n_embd, 1, 0.1f);
        layer->post_mlp_norm = vector(owner, shape->n_embd, 1, 0.1f);
        layer->query_norm = vector(owner, d, 1, 0.1f);
        layer->key_norm = vector(owner, d, 1, 0.1f);
        layer->query_bias = vector(owner, query, 0, 0.1f);
        layer->key_bias = vector(owner, key, 0, 0.1f);
        layer->value_bias = vector(owner, key, 0, 0.1f);
    }
    return model;
}

void tw_tiny_free(struct tw_model *model) {
    struct owner *owner = (struct owner *)model;
    for (size_t i = 0; i < owner->n_blocks; i++) free(owner->blocks[i]);
    free(owner);
}

int32_t *tw_tiny_tokens(const struct tw_model *model, size_t n, uint64_t seed) {
    struct tw_random random;
    tw_random_init(&random, seed, 1);
    int32_t *tokens = malloc((n + 1) * sizeof *tokens);
    ck_assert_ptr_nonnull(tokens);
    for (size_t i = 0; i < n; i++) tokens[i] = (int32_t)tw_random_below(&random, model->config.n_vocab);
    return tokens;
}

struct tw_engine *tw_tiny_engine(const struct tw_model *model, const struct tw_engine_options *options) {
    struct tw_error err = {0};
    struct tw_engine *engine;
    ck_assert_msg(tw_engine_open(&engine, model, options, &err) == TW_OK, "%s", err.text);
    return engine;
}

static tw_status log_hidden(void *context, size_t index, const struct tw_bridge *bridge, size_t first_row,
                            size_t first_position, size_t n, struct tw_error *err) {
    const struct tw_hidden_log *log = context;
    const size_t n_embd = log->engine->model->config.n_embd;
    return log->engine->ops->read_hidden(log->engine->backend, bridge, first_row, n, false,
                                         log->hidden + (index * log->n_tokens + first_position) * n_embd, err);
}

float *tw_tiny_hidden(struct tw_engine *engine, const int32_t *tokens, size_t n, size_t reserve) {
    const size_t floats = (engine->model->config.n_layers + 1) * n * engine->model->config.n_embd;
    struct tw_hidden_log log = {engine, n, malloc(floats * sizeof(float))};
    ck_assert_ptr_nonnull(log.hidden);
    for (size_t i = 0; i < floats; i++) log.hidden[i] = NAN;
    struct tw_error err = {0};
    const struct tw_watch watch = {.context = &log, .hidden = log_hidden};
    ck_assert_msg(tw_engine_prefill(engine, tokens, n, reserve, &watch, NULL, &err) == TW_OK, "%s", err.text);
    for (size_t i = 0; i < floats; i++) ck_assert(isfinite(log.hidden[i]));
    return log.hidden;
}

int32_t *tw_tiny_kept(const struct tw_engine *engine, size_t *n) {
    *n = engine->retained_rows;
    int32_t *positions = malloc((*n + 1) * sizeof *positions);
    size_t at = 0;
    for (size_t l = 0; l < engine->model->config.n_layers; l++)
        for (size_t g = 0; g < engine->model->config.n_kv_heads; g++)
            for (size_t r = 0; r < engine->cache[l].length[g]; r++)
                positions[at++] = (int32_t)tw_kv_position(&engine->cache[l], g, r);
    return positions;
}
