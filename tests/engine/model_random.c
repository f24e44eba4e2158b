#include "tests/engine/model_random.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"

float tw_random_float(struct tw_random *random) { return (float)(2 * tw_random_unit(random) - 1); }

static void put_half(uint8_t *at, float value) {
    const uint16_t bits = tw_half_from_float(value);
    memcpy(at, &bits, sizeof bits);
}

/* Where a block keeps its scales, and what a number is worth at most beside them. */
static const struct {
    enum tw_type type;
    size_t scale, least; /* offsets of half-precision scale and of minimum; least 0: none */
    float most;
} blocks[] = {
    {TW_TYPE_Q4_0, 0, 0, 8},        {TW_TYPE_Q4_1, 0, 2, 15},         {TW_TYPE_Q5_0, 0, 0, 16},
    {TW_TYPE_Q5_1, 0, 2, 31},       {TW_TYPE_Q8_0, 0, 0, 128},        {TW_TYPE_Q4_K, 0, 2, 15 * 63},
    {TW_TYPE_Q5_K, 0, 2, 31 * 63},  {TW_TYPE_Q6_K, 208, 0, 32 * 128}, {TW_TYPE_IQ4_NL, 0, 0, 127},
    {TW_TYPE_Q2_K, 80, 82, 3 * 15}, {TW_TYPE_Q3_K, 108, 0, 4 * 32},   {TW_TYPE_IQ4_XS, 0, 0, 32 * 127},
};

void tw_random_row(uint8_t *row, enum tw_type type, size_t n, float scale, struct tw_random *random) {
    const struct tw_type_traits *traits = tw_type_traits(type);
    ck_assert_ptr_nonnull(traits);
    ck_assert_uint_eq(n % traits->block_values, 0);
    if (traits->block_values == 1) {
        for (size_t i = 0; i < n; i++) {
            const float value = tw_random_float(random) * scale;
            const uint16_t half = tw_half_from_float(value), bf16 = tw_bf16_from_float(value);
            if (type == TW_TYPE_F32) memcpy(row + i * 4, &value, 4);
            if (type == TW_TYPE_F16) memcpy(row + i * 2, &half, 2);
            if (type == TW_TYPE_BF16) memcpy(row + i * 2, &bf16, 2);
        }
        return;
    }
    const size_t bytes = tw_type_row_bytes(traits, n);
    for (size_t i = 0; i < bytes; i++) row[i] = (uint8_t)tw_random_next(random);
    size_t b = 0;
    while (b < sizeof blocks / sizeof *blocks && blocks[b].type != type) b++;
    ck_assert_uint_lt(b, sizeof blocks / sizeof *blocks);
    for (size_t at = 0; at < bytes; at += traits->block_bytes) {
        const float d = scale * (0.5f + (float)tw_random_unit(random)) / blocks[b].most;
        put_half(row + at + blocks[b].scale, tw_random_below(random, 2) ? d : -d);
        /* A minimum of half the range centres the numbers; K types multiply it by up to 63. */
        if (blocks[b].least)
            put_half(row + at + blocks[b].least,
                     traits->block_values == 256 ? scale / 126 : -scale / 2 * (float)tw_random_unit(random));
    }
}

static void make_matrix(struct tw_matrix *m, const char *name, enum tw_type type, size_t n_rows, size_t n_columns,
                        struct tw_random *random) {
    const struct tw_type_traits *traits = tw_type_traits(type);
    *m = (struct tw_matrix){.name = name, .type = type, .n_rows = n_rows, .n_columns = n_columns};
    m->row_bytes = tw_type_row_bytes(traits, n_columns);
    uint8_t *data = malloc(n_rows * m->row_bytes + 1);
    ck_assert_ptr_nonnull(data);
    for (size_t r = 0; r < n_rows; r++)
        tw_random_row(data + r * m->row_bytes, type, n_columns, 2.0f / sqrtf((float)n_columns), random);
    m->data = data;
}

static float *make_vector(size_t n, float centre, float spread, struct tw_random *random) {
    float *v = malloc(n * sizeof *v);
    ck_assert_ptr_nonnull(v);
    for (size_t i = 0; i < n; i++) v[i] = centre + spread * tw_random_float(random);
    return v;
}

static double *make_divisors(size_t head_dim, double theta) {
    double *d = malloc(head_dim / 2 * sizeof *d);
    ck_assert_ptr_nonnull(d);
    for (size_t j = 0; j < head_dim / 2; j++) d[j] = pow(theta, 2.0 * (double)j / (double)head_dim);
    return d;
}

struct tw_model *tw_random_model_make(const struct tw_random_model *s, uint64_t seed) {
    struct tw_random random;
    tw_random_init(&random, seed, 77);
    struct tw_model *model = calloc(1, sizeof *model);
    ck_assert_ptr_nonnull(model);
    model->config = (struct tw_model_config){
        .architecture = "llama",
        .n_layers = s->n_layers,
        .n_embd = s->n_embd,
        .n_heads = s->n_heads,
        .n_kv_heads = s->n_kv_heads,
        .head_dim = s->head_dim,
        .n_mlp = s->n_mlp,
        .n_vocab = s->n_vocab,
        .context_length = 1 << 20,
        .norm_epsilon = 1e-5,
        .rope_theta = 10000,
        .sliding_window = s->sliding_window,
        .rope_pairs = s->rope_pairs,
        .activation = s->activation,
        .embedding_scale = s->post_norms ? 3.5f : 1.0f,
        .attention_scale = 1.0f / sqrtf((float)s->head_dim),
    };
    model->path = strdup("random");
    model->layers = calloc(s->n_layers, sizeof *model->layers);
    ck_assert_ptr_nonnull(model->layers);
    make_matrix(&model->embedding, "embedding", s->types[0], s->n_vocab, s->n_embd, &random);
    make_matrix(&model->output, "output", s->types[s->n_types - 1], s->n_vocab, s->n_embd, &random);
    model->output_norm = make_vector(s->n_embd, 1, 0.3f, &random);
    double *divisors[2] = {make_divisors(s->head_dim, 10000), make_divisors(s->head_dim, 500)};
    const size_t query_width = s->n_heads * s->head_dim, kv_width = s->n_kv_heads * s->head_dim;
    for (size_t l = 0; l < s->n_layers; l++) {
        struct tw_layer_weights *w = &model->layers[l];
        struct tw_matrix *const m[] = {&w->query, &w->key, &w->value, &w->output, &w->gate, &w->up, &w->down};
        const size_t rows[] = {query_width, kv_width, kv_width, s->n_embd, s->n_mlp, s->n_mlp, s->n_embd};
        const size_t columns[] = {s->n_embd, s->n_embd, s->n_embd, query_width, s->n_embd, s->n_embd, s->n_mlp};
        for (size_t i = 0; i < 7; i++) {
            enum tw_type type = s->types[(i + l) % s->n_types];
            if (columns[i] % tw_type_traits(type)->block_values) type = TW_TYPE_F16;
            make_matrix(m[i], "matrix", type, rows[i], columns[i], &random);
        }
        w->attention_norm = make_vector(s->n_embd, 1, 0.3f, &random);
        w->mlp_norm = make_vector(s->n_embd, 1, 0.3f, &random);
        if (s->post_norms) {
            w->post_attention_norm = make_vector(s->n_embd, 1, 0.3f, &random);
            w->post_mlp_norm = make_vector(s->n_embd, 1, 0.3f, &random);
        }
        if (s->head_norms) {
            w->query_norm = make_vector(s->head_dim, 1, 0.3f, &random);
            w->key_norm = make_vector(s->head_dim, 1, 0.3f, &random);
        }
        if (s->biases) {
            w->query_bias = make_vector(query_width, 0, 0.5f, &random);
            w->key_bias = make_vector(kv_width, 0, 0.5f, &random);
            w->value_bias = make_vector(kv_width, 0, 0.5f, &random);
        }
        w->sliding_window = l % 2 ? s->sliding_window : 0;
        w->rope_divisor = divisors[l % 2];
    }
    if (s->n_layers < 2) free(divisors[1]);
    return model;
}

static void free_const(const void *p) { free((void *)(size_t)p); }

void tw_random_model_free(struct tw_model *model) {
    if (!model) return;
    for (size_t l = 0; l < model->config.n_layers; l++) {
        struct tw_layer_weights *w = &model->layers[l];
        const struct tw_matrix *const m[] = {&w->query, &w->key, &w->value, &w->output, &w->gate, &w->up, &w->down};
        for (size_t i = 0; i < 7; i++) free_const(m[i]->data);
        free_const(w->attention_norm);
        free_const(w->mlp_norm);
        free_const(w->post_attention_norm);
        free_const(w->post_mlp_norm);
        free_const(w->query_norm);
        free_const(w->key_norm);
        free_const(w->query_bias);
        free_const(w->key_bias);
        free_const(w->value_bias);
        if (l < 2) free_const(w->rope_divisor);
    }
    free_const(model->embedding.data);
    free_const(model->output.data);
    free_const(model->output_norm);
    free(model->layers);
    free(model->path);
    free(model);
}
