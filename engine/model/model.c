#include "engine/model/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/checked.h"
#include "engine/model/config.h"
#include "engine/model/model_files.h"
#include "engine/model/weights.h"

tw_status tw_model_out_of_memory(const char *path, struct tw_error *err) {
    return TW_FAIL(err, TW_E_MEMORY, "out of memory while reading model '%s'", path);
}

/* The last part of a path without ".gguf" or ".json". */
static struct tw_view last_part(const char *path) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t start = end;
    while (start > 0 && path[start - 1] != '/') start--;
    static const char *const endings[] = {".gguf", ".json"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const size_t n = strlen(endings[i]);
        if (end - start > n && memcmp(path + end - n, endings[i], n) == 0) end -= n;
    }
    return (struct tw_view){path + start, end - start};
}

tw_status tw_model_set_name(struct tw_model *model, struct tw_view name, struct tw_error *err) {
    enum { LONGEST = 255 };
    if (name.size == 0) name = last_part(model->path);
    name.size = tw_min_size(name.size, LONGEST);
    struct tw_text text = {0};
    tw_text_append_utf8_repaired(&text, name, false);
    if (tw_text_ok(&text)) model->config.name = strdup(tw_text_string(&text));
    tw_text_release(&text);
    return model->config.name ? TW_OK : tw_model_out_of_memory(model->path, err);
}

static bool has_ending(const char *path, const char *ending) {
    const size_t n = strlen(path), m = strlen(ending);
    return n > m && strcmp(path + n - m, ending) == 0;
}

tw_status tw_model_open(struct tw_model **model, const char *path, struct tw_error *err) {
    *model = NULL;
    struct tw_model *opened = calloc(1, sizeof *opened);
    if (!opened) return tw_model_out_of_memory(path, err);
    opened->files = calloc(1, sizeof *opened->files);
    opened->path = strdup(path);
    struct stat st;
    tw_status status = opened->files && opened->path ? TW_OK : tw_model_out_of_memory(path, err);
    if (status == TW_OK) {
        if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
            status = tw_model_open_folder(opened, err);
        else if (has_ending(path, ".json"))
            status = tw_model_open_config(opened, err);
        else if (has_ending(path, ".safetensors"))
            status =
                TW_FAIL(err, TW_E_INPUT, "model '%s' holds weights without their configuration: name its folder", path);
        else
            status = tw_model_open_gguf(opened, err);
    }
    if (status == TW_OK && !tw_text_ok(&opened->warnings)) status = tw_model_out_of_memory(path, err);
    if (status != TW_OK) {
        tw_model_free(opened);
        return status;
    }
    *model = opened;
    return TW_OK;
}

void tw_model_free(struct tw_model *model) {
    if (!model) return;
    if (model->files) {
        struct tw_model_files *files = model->files;
        for (size_t i = 0; i < files->n_gguf; i++) tw_gguf_release(&files->gguf[i]);
        free(files->gguf);
        for (size_t i = 0; i < files->n_safetensors; i++) tw_safetensors_release(&files->safetensors[i]);
        free(files->safetensors);
        tw_owned_release(&files->owned);
        free(files);
    }
    tw_text_release(&model->warnings);
    free(model->config.name);
    free(model->path);
    free(model);
}

const struct tw_gguf *tw_model_gguf(const struct tw_model *model) {
    return model->files->n_gguf ? &model->files->gguf[0] : NULL;
}

size_t tw_layer_weight_bytes(const struct tw_layer_weights *layer) {
    return tw_matrix_bytes(&layer->query) + tw_matrix_bytes(&layer->key) + tw_matrix_bytes(&layer->value) +
           tw_matrix_bytes(&layer->output) + tw_matrix_bytes(&layer->gate) + tw_matrix_bytes(&layer->up) +
           tw_matrix_bytes(&layer->down);
}

size_t tw_model_weight_bytes(const struct tw_model *model) {
    const struct tw_model_config *config = &model->config;
    size_t bytes = tw_matrix_bytes(&model->embedding) + config->n_embd * sizeof(float);
    if (!config->tied_embeddings) bytes += tw_matrix_bytes(&model->output);
    for (size_t l = 0; l < config->n_layers; l++) {
        const struct tw_layer_weights *layer = &model->layers[l];
        size_t floats = 2 * config->n_embd;
        if (layer->post_attention_norm) floats += 2 * config->n_embd;
        if (layer->query_norm) floats += 2 * config->head_dim;
        if (layer->query_bias) floats += (config->n_heads + 2 * config->n_kv_heads) * config->head_dim;
        bytes += tw_layer_weight_bytes(layer) + floats * sizeof(float);
    }
    return bytes;
}
