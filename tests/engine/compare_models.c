#include "tests/engine/compare_models.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "tests/support.h"

void tw_matrix_row(float *values, const struct tw_matrix *matrix, size_t row) {
    tw_type_traits(matrix->type)->dequantise(values, matrix->data + row * matrix->row_bytes, matrix->n_columns);
}

/* Where row `row` of a matrix of heads lies when elements 2j and 2j+1 of a head rotate together. */
static size_t stored_row(size_t row, size_t head_dim, enum tw_rope_pairs pairs) {
    if (pairs == TW_ROPE_HALVES || head_dim == 0) return row;
    const size_t i = row % head_dim, half = head_dim / 2;
    return row - i + (i < half ? 2 * i : 2 * (i - half) + 1);
}

/* `head_dim` 0: rows have no rotary order. */
static void compare_matrices(const struct tw_matrix *x, enum tw_rope_pairs x_pairs, const struct tw_matrix *y,
                             enum tw_rope_pairs y_pairs, size_t head_dim, double tolerance) {
    ck_assert_ptr_nonnull(x->data);
    ck_assert_ptr_nonnull(y->data);
    ck_assert_uint_eq(x->n_rows, y->n_rows);
    ck_assert_uint_eq(x->n_columns, y->n_columns);
    float *a = malloc(x->n_columns * sizeof *a), *b = malloc(x->n_columns * sizeof *b);
    double difference = 0, size = 0;
    for (size_t row = 0; row < x->n_rows; row++) {
        tw_matrix_row(a, x, stored_row(row, head_dim, x_pairs));
        tw_matrix_row(b, y, stored_row(row, head_dim, y_pairs));
        for (size_t i = 0; i < x->n_columns; i++) {
            difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
            size += (double)a[i] * a[i];
        }
        ck_assert_msg(tolerance != 0 || memcmp(a, b, x->n_columns * sizeof *a) == 0, "%s row %zu differs from %s",
                      x->name, row, y->name);
    }
    ck_assert_msg(sqrt(difference) <= tolerance * sqrt(size), "%s differs from %s by %g", x->name, y->name,
                  sqrt(difference / size));
    free(a);
    free(b);
}

static void compare_vectors(const char *name, const float *a, const float *b, size_t n) {
    ck_assert_msg((a == NULL) == (b == NULL), "only one model has %s", name);
    ck_assert_msg(!a || memcmp(a, b, n * sizeof *a) == 0, "%s differs", name);
}

/* The biases of queries and keys are permuted as their rows are; only architectures with halves have them. */
void tw_compare_models(const struct tw_model *a, const struct tw_model *b, double tolerance) {
    const struct tw_model_config *x = &a->config, *y = &b->config;
    ck_assert_uint_eq(x->n_layers, y->n_layers);
    ck_assert_uint_eq(x->n_embd, y->n_embd);
    ck_assert_uint_eq(x->n_heads, y->n_heads);
    ck_assert_uint_eq(x->n_kv_heads, y->n_kv_heads);
    ck_assert_uint_eq(x->head_dim, y->head_dim);
    ck_assert_uint_eq(x->n_mlp, y->n_mlp);
    ck_assert_uint_eq(x->n_vocab, y->n_vocab);
    ck_assert_uint_eq(x->context_length, y->context_length);
    ck_assert(x->norm_epsilon == y->norm_epsilon);
    ck_assert(x->rope_theta == y->rope_theta && x->rope_theta_local == y->rope_theta_local);
    ck_assert_str_eq(x->rope_scaling, y->rope_scaling);
    ck_assert_uint_eq(x->sliding_window, y->sliding_window);
    ck_assert_int_eq(x->activation, y->activation);
    ck_assert(x->embedding_scale == y->embedding_scale && x->attention_scale == y->attention_scale);
    ck_assert_int_eq(x->tied_embeddings, y->tied_embeddings);

    compare_matrices(&a->embedding, 0, &b->embedding, 0, 0, tolerance);
    compare_matrices(&a->output, 0, &b->output, 0, 0, tolerance);
    compare_vectors("output_norm", a->output_norm, b->output_norm, x->n_embd);
    for (size_t l = 0; l < x->n_layers; l++) {
        const struct tw_layer_weights *p = &a->layers[l], *q = &b->layers[l];
        compare_matrices(&p->query, x->rope_pairs, &q->query, y->rope_pairs, x->head_dim, tolerance);
        compare_matrices(&p->key, x->rope_pairs, &q->key, y->rope_pairs, x->head_dim, tolerance);
        compare_matrices(&p->value, 0, &q->value, 0, 0, tolerance);
        compare_matrices(&p->output, 0, &q->output, 0, 0, tolerance);
        compare_matrices(&p->gate, 0, &q->gate, 0, 0, tolerance);
        compare_matrices(&p->up, 0, &q->up, 0, 0, tolerance);
        compare_matrices(&p->down, 0, &q->down, 0, 0, tolerance);
        compare_vectors("attention_norm", p->attention_norm, q->attention_norm, x->n_embd);
        compare_vectors("mlp_norm", p->mlp_norm, q->mlp_norm, x->n_embd);
        compare_vectors("post_attention_norm", p->post_attention_norm, q->post_attention_norm, x->n_embd);
        compare_vectors("post_mlp_norm", p->post_mlp_norm, q->post_mlp_norm, x->n_embd);
        compare_vectors("query_norm", p->query_norm, q->query_norm, x->head_dim);
        compare_vectors("key_norm", p->key_norm, q->key_norm, x->head_dim);
        compare_vectors("query_bias", p->query_bias, q->query_bias, x->n_heads * x->head_dim);
        compare_vectors("key_bias", p->key_bias, q->key_bias, x->n_kv_heads * x->head_dim);
        compare_vectors("value_bias", p->value_bias, q->value_bias, x->n_kv_heads * x->head_dim);
        ck_assert_uint_eq(p->sliding_window, q->sliding_window);
        for (size_t j = 0; j < x->head_dim / 2; j++)
            ck_assert_msg(fabs(p->rope_divisor[j] / q->rope_divisor[j] - 1) <= 1e-6, "divisor %zu: %.9g and %.9g", j,
                          p->rope_divisor[j], q->rope_divisor[j]);
    }
}

struct tw_model *tw_must_open(const char *path) {
    struct tw_model *model;
    struct tw_error err = {0};
    const tw_status status = tw_model_open(&model, path, &err);
    ck_assert_msg(status == TW_OK, "%s", err.text);
    return model;
}

void tw_must_refuse(const char *path, const char *fragment) {
    struct tw_model *model;
    struct tw_error err = {0};
    const tw_status status = tw_model_open(&model, path, &err);
    ck_assert_msg(status == TW_E_INPUT || status == TW_E_UNSUPPORTED, "%s: status %d, %s", path, status, err.text);
    ck_assert_ptr_null(model);
    ck_assert_msg(strstr(err.text, fragment) != NULL, "'%s' does not say '%s'", err.text, fragment);
    ck_assert_msg(strchr(err.text, '\n') == NULL, "more than one line: %s", err.text);
    const char *name = strrchr(path, '/');
    ck_assert_msg(strstr(err.text, name ? name + 1 : path) != NULL, "'%s' does not name the file %s", err.text, path);
}

double tw_cpu_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Address space beyond which allocations fail: what there is, and 10 MiB. (Sanitizers map too much for that.) */
static void limit_memory(void) {
    if (TW_SANITIZED) return;
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long pages = 0;
    ck_assert(file && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    struct rlimit limit;
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = pages * (unsigned long)sysconf(_SC_PAGESIZE) + (10ul << 20);
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
}

void tw_must_refuse_cheaply(const char *path, const char *fragment) {
    limit_memory();
    const double before = tw_cpu_seconds();
    tw_must_refuse(path, fragment);
    const double seconds = tw_cpu_seconds() - before;
    ck_assert_msg(TW_SANITIZED || seconds < 0.01, "%s took %g ms", path, 1e3 * seconds);
}
