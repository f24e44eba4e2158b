/* Reads everything that a parser says may be read, so that the sanitizers see whether that is true. */
#ifndef TW_TESTS_FUZZ_ENGINE_TOUCH_H
#define TW_TESTS_FUZZ_ENGINE_TOUCH_H

#include <stdlib.h>
#include <string.h>

#include "engine/model/model_files.h"

static inline void tw_fuzz_touch(const void *data, size_t size) {
    const volatile unsigned char *bytes = data;
    for (size_t i = 0; i < size; i++) (void)bytes[i];
}

/* A model as tw_model_open makes it before it looks at the file. */
static inline struct tw_model *tw_fuzz_model(void) {
    struct tw_model *model = calloc(1, sizeof *model);
    model->files = calloc(1, sizeof *model->files);
    model->path = strdup("fuzz");
    return model;
}

static inline void tw_fuzz_touch_vector(const float *vector, size_t n) {
    if (vector) tw_fuzz_touch(vector, n * sizeof *vector);
}

static inline void tw_fuzz_touch_matrix(const struct tw_matrix *matrix) {
    if (!matrix->data) return;
    float *row = malloc(matrix->n_columns * sizeof *row);
    for (size_t i = 0; i < matrix->n_rows; i++)
        tw_type_traits(matrix->type)->dequantise(row, matrix->data + i * matrix->row_bytes, matrix->n_columns);
    tw_fuzz_touch(row, matrix->n_columns * sizeof *row);
    free(row);
}

static inline void tw_fuzz_touch_model(const struct tw_model *model) {
    const struct tw_model_config *c = &model->config;
    tw_fuzz_touch_matrix(&model->embedding);
    tw_fuzz_touch_matrix(&model->output);
    tw_fuzz_touch_vector(model->output_norm, c->n_embd);
    for (size_t l = 0; l < c->n_layers; l++) {
        const struct tw_layer_weights *layer = &model->layers[l];
        const struct tw_matrix *const matrices[] = {&layer->query, &layer->key, &layer->value, &layer->output,
                                                    &layer->gate,  &layer->up,  &layer->down};
        if (layer->query.data)
            for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) tw_fuzz_touch_matrix(matrices[i]);
        if (l > 0 && !layer->query.data) continue; /* without weights every layer has the same vectors */
        tw_fuzz_touch_vector(layer->attention_norm, c->n_embd);
        tw_fuzz_touch_vector(layer->mlp_norm, c->n_embd);
        tw_fuzz_touch_vector(layer->post_attention_norm, c->n_embd);
        tw_fuzz_touch_vector(layer->post_mlp_norm, c->n_embd);
        tw_fuzz_touch_vector(layer->query_norm, c->head_dim);
        tw_fuzz_touch_vector(layer->key_norm, c->head_dim);
        tw_fuzz_touch_vector(layer->query_bias, c->n_heads * c->head_dim);
        tw_fuzz_touch_vector(layer->key_bias, c->n_kv_heads * c->head_dim);
        tw_fuzz_touch_vector(layer->value_bias, c->n_kv_heads * c->head_dim);
        tw_fuzz_touch(layer->rope_divisor, c->head_dim / 2 * sizeof *layer->rope_divisor);
    }
}

#endif
