/* Products with weights, y = W x, and the parts of a layer around them. */
#include <assert.h>
#include <math.h>
#include <omp.h>
#include <string.h>

#include "base/checked.h"
#include "engine/backend/ref/ref.h"

/* Sixteen outputs side by side: the compiler makes of it what the machine has, lane by lane, in the same order. */
typedef float lanes __attribute__((vector_size(TW_REF_LANES * sizeof(float))));

static size_t panel_floats(const struct tw_matrix *matrix) { return matrix->n_columns * TW_REF_LANES; }

/* panel[c][lane] = W[LANES * p + lane][c]; row is workspace of n_columns floats. */
static void unpack_panel(float *restrict panel, float *restrict row, const struct tw_matrix *matrix, size_t p) {
    const struct tw_type_traits *traits = tw_type_traits(matrix->type);
    for (size_t lane = 0; lane < TW_REF_LANES; lane++) {
        const size_t output = p * TW_REF_LANES + lane;
        if (output < matrix->n_rows)
            traits->dequantise(row, matrix->data + output * matrix->row_bytes, matrix->n_columns);
        else
            memset(row, 0, matrix->n_columns * sizeof *row);
        for (size_t c = 0; c < matrix->n_columns; c++) panel[c * TW_REF_LANES + lane] = row[c];
    }
}

static float *panel_workspace(const struct tw_backend *backend) {
    return (float *)backend->open.buffer[REF_OPEN_PANELS].data +
           (size_t)omp_get_thread_num() * tw_ref_panel_workspace_floats(backend->model);
}

void tw_ref_unpack(const struct tw_backend *backend, float *panels, const struct tw_matrix *matrix) {
    const size_t n_panels = tw_divide_up(matrix->n_rows, TW_REF_LANES);
#pragma omp parallel for schedule(dynamic) num_threads((int)backend->options.n_threads)
    for (size_t p = 0; p < n_panels; p++)
        unpack_panel(panels + p * panel_floats(matrix), panel_workspace(backend), matrix, p);
}

/* The first `width` outputs of one panel for n rows, two rows at a time. */
static void panel_product(float *y, size_t y_stride, const float *x, size_t x_stride, size_t n, const float *panel,
                          size_t n_columns, size_t width) {
    const lanes *w = (const lanes *)panel;
    size_t i = 0;
    for (; i + 2 <= n; i += 2) {
        const float *x0 = x + i * x_stride, *x1 = x0 + x_stride;
        lanes sum0 = {0}, sum1 = {0};
        for (size_t c = 0; c < n_columns; c++) {
            sum0 += x0[c] * w[c];
            sum1 += x1[c] * w[c];
        }
        memcpy(y + i * y_stride, &sum0, width * sizeof *y);
        memcpy(y + (i + 1) * y_stride, &sum1, width * sizeof *y);
    }
    if (i < n) {
        const float *x0 = x + i * x_stride;
        lanes sum0 = {0};
        for (size_t c = 0; c < n_columns; c++) sum0 += x0[c] * w[c];
        memcpy(y + i * y_stride, &sum0, width * sizeof *y);
    }
}

void tw_ref_product(const struct tw_backend *backend, float *y, size_t y_stride, const float *x, size_t x_stride,
                    size_t n, const struct tw_matrix *matrix, const float *panels) {
    const size_t n_panels = tw_divide_up(matrix->n_rows, TW_REF_LANES);
#pragma omp parallel for schedule(dynamic) num_threads((int)backend->options.n_threads)
    for (size_t p = 0; p < n_panels; p++) {
        const size_t first = p * TW_REF_LANES;
        const float *panel = panels ? panels + p * panel_floats(matrix) : NULL;
        if (!panel) {
            float *workspace = panel_workspace(backend);
            unpack_panel(workspace, workspace + panel_floats(matrix), matrix, p);
            panel = workspace;
        }
        panel_product(y + first, y_stride, x, x_stride, n, panel, matrix->n_columns,
                      tw_min_size(TW_REF_LANES, matrix->n_rows - first));
    }
}

void tw_ref_rms_norm(float *y, const float *x, const float *weight, size_t n, double epsilon) {
    double square = 0;
    for (size_t i = 0; i < n; i++) square += (double)x[i] * x[i];
    const float scale = (float)(1 / sqrt(square / (double)n + epsilon));
    for (size_t i = 0; i < n; i++) y[i] = x[i] * scale * weight[i];
}

void tw_ref_rotate(float *head, size_t head_dim, const double *divisor, enum tw_rope_pairs pairs, size_t position) {
    for (size_t j = 0; j < head_dim / 2; j++) {
        const double angle = (double)position / divisor[j];
        const float cosine = (float)cos(angle), sine = (float)sin(angle);
        float *a = pairs == TW_ROPE_INTERLEAVED ? &head[2 * j] : &head[j];
        float *b = pairs == TW_ROPE_INTERLEAVED ? &head[2 * j + 1] : &head[j + head_dim / 2];
        const float x = *a, y = *b;
        *a = x * cosine - y * sine;
        *b = x * sine + y * cosine;
    }
}

static void add_bias(float *x, const float *bias, size_t n) {
    if (!bias) return;
    for (size_t i = 0; i < n; i++) x[i] += bias[i];
}

/* Norm and rotation of the n_heads heads of one row. */
static void norm_and_rotate(const struct tw_backend *backend, const struct tw_layer_weights *layer, float *row,
                            size_t n_heads, const float *norm, size_t position) {
    const struct tw_model_config *config = &backend->model->config;
    for (size_t h = 0; h < n_heads; h++) {
        float *head = row + h * config->head_dim;
        if (norm) tw_ref_rms_norm(head, head, norm, config->head_dim, config->norm_epsilon);
        tw_ref_rotate(head, config->head_dim, layer->rope_divisor, config->rope_pairs, position);
    }
}

void tw_ref_project(const struct tw_backend *backend, size_t l, const float *hidden, size_t n, size_t first_position,
                    const float *const *panels, float *query, struct tw_kv *kv, float *normed, float *kv_rows) {
    const struct tw_model_config *config = &backend->model->config;
    const struct tw_layer_weights *layer = &backend->model->layers[l];
    const size_t n_embd = config->n_embd, d = config->head_dim;
    const size_t query_width = config->n_heads * d, kv_width = config->n_kv_heads * d;
    for (size_t i = 0; i < n; i++)
        tw_ref_rms_norm(normed + i * n_embd, hidden + i * n_embd, layer->attention_norm, n_embd, config->norm_epsilon);

    tw_ref_product(backend, query, query_width, normed, n_embd, n, &layer->query, panels[REF_QUERY]);
    for (size_t i = 0; i < n; i++) {
        add_bias(query + i * query_width, layer->query_bias, query_width);
        norm_and_rotate(backend, layer, query + i * query_width, config->n_heads, layer->query_norm,
                        first_position + i);
    }
    tw_ref_product(backend, kv_rows, kv_width, normed, n_embd, n, &layer->key, panels[REF_KEY]);
    for (size_t i = 0; i < n; i++) {
        add_bias(kv_rows + i * kv_width, layer->key_bias, kv_width);
        norm_and_rotate(backend, layer, kv_rows + i * kv_width, config->n_kv_heads, layer->key_norm,
                        first_position + i);
        for (size_t g = 0; g < config->n_kv_heads; g++)
            memcpy(tw_ref_key(kv, g, kv->length[g] + i), kv_rows + i * kv_width + g * d, d * sizeof(float));
    }
    tw_ref_product(backend, kv_rows, kv_width, normed, n_embd, n, &layer->value, panels[REF_VALUE]);
    for (size_t i = 0; i < n; i++) {
        add_bias(kv_rows + i * kv_width, layer->value_bias, kv_width);
        for (size_t g = 0; g < config->n_kv_heads; g++)
            memcpy(tw_ref_value(kv, g, kv->length[g] + i), kv_rows + i * kv_width + g * d, d * sizeof(float));
    }
}

static float activate(float x, enum tw_activation activation) {
    if (activation == TW_ACTIVATION_SILU) return x / (1 + expf(-x));
    return 0.5f * x * (1 + tanhf(0.797884560802865f * (x + 0.044715f * x * x * x))); /* sqrt(2 / pi) */
}

/* hidden += x, x normed first where the architecture says so. */
static void add_residual(float *hidden, float *x, const float *norm, size_t n, double epsilon) {
    if (norm) tw_ref_rms_norm(x, x, norm, n, epsilon);
    for (size_t i = 0; i < n; i++) hidden[i] += x[i];
}

void tw_ref_finish_rows(const struct tw_backend *backend, size_t l, float *hidden, const float *attention, size_t n,
                        const float *const *panels, float *normed, float *gate, float *up) {
    const struct tw_model_config *config = &backend->model->config;
    const struct tw_layer_weights *layer = &backend->model->layers[l];
    const size_t n_embd = config->n_embd, n_mlp = config->n_mlp, query_width = config->n_heads * config->head_dim;
    const double epsilon = config->norm_epsilon;

    tw_ref_product(backend, normed, n_embd, attention, query_width, n, &layer->output, panels[REF_OUTPUT]);
    for (size_t i = 0; i < n; i++) {
        add_residual(hidden + i * n_embd, normed + i * n_embd, layer->post_attention_norm, n_embd, epsilon);
        tw_ref_rms_norm(normed + i * n_embd, hidden + i * n_embd, layer->mlp_norm, n_embd, epsilon);
    }
    tw_ref_product(backend, gate, n_mlp, normed, n_embd, n, &layer->gate, panels[REF_GATE]);
    tw_ref_product(backend, up, n_mlp, normed, n_embd, n, &layer->up, panels[REF_UP]);
    for (size_t i = 0; i < n * n_mlp; i++) gate[i] = activate(gate[i], config->activation) * up[i];
    tw_ref_product(backend, normed, n_embd, gate, n_mlp, n, &layer->down, panels[REF_DOWN]);
    for (size_t i = 0; i < n; i++)
        add_residual(hidden + i * n_embd, normed + i * n_embd, layer->post_mlp_norm, n_embd, epsilon);
}
