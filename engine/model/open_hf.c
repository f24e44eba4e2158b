/* A model from a Hugging Face folder, or its shape from a config.json alone. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "engine/model/config.h"
#include "engine/model/model_files.h"

/* Real ones have a few kilobytes. */
enum { CONFIG_BYTES_MAX = 1 << 20 };

static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

/* folder + "/" + name, owned by the model; NULL when memory runs out. */
static char *in_folder(struct tw_model *model, struct tw_view name) {
    const size_t length = strlen(model->path);
    char *path = tw_owned_alloc(&model->files->owned, length + name.size + 2);
    if (!path) return NULL;
    memcpy(path, model->path, length);
    path[length] = '/';
    memcpy(path + length + 1, name.data, name.size);
    return path;
}

static bool is_there(const char *path) { return access(path, F_OK) == 0; }

/* Appends the text of a small file, which must not be empty. */
static tw_status read_text(struct tw_text *text, const char *path, struct tw_error *err) {
    TW_TRY(tw_file_read(text, path, CONFIG_BYTES_MAX, "model", err));
    return text->size ? TW_OK : TW_FAIL(err, TW_E_INPUT, "model '%s' is empty", path);
}

static tw_status add_generation(struct tw_recipe *recipe, struct tw_model *model, struct tw_error *err) {
    const char *path = in_folder(model, TW_VIEW("generation_config.json"));
    if (!path) return tw_model_out_of_memory(model->path, err);
    if (!is_there(path)) return TW_OK;
    struct tw_text text = {0};
    tw_status status = read_text(&text, path, err);
    if (status == TW_OK) status = tw_recipe_add_generation(recipe, tw_text_view(&text), path, err);
    tw_text_release(&text);
    return status;
}

/* ---- weights ------------------------------------------------------------------------------------------------------
 */

static tw_status open_shard(struct tw_safetensors **shard, struct tw_model *model, const char *path,
                            struct tw_error *err) {
    struct tw_model_files *files = model->files;
    struct tw_safetensors *moved = realloc(files->safetensors, (files->n_safetensors + 1) * sizeof *moved);
    if (!moved) return tw_model_out_of_memory(model->path, err);
    files->safetensors = moved;
    TW_TRY(tw_safetensors_open(&moved[files->n_safetensors], path, err));
    *shard = &moved[files->n_safetensors++];
    return TW_OK;
}

#define NAME(view) (int)tw_min_size((view).size, 80), (view).data

struct index {
    struct tw_model *model;
    const char *path;
};

/* Opens the shard if this is the first tensor in it, and checks that it has the tensor. */
static tw_status follow_index(void *context, struct tw_view name, struct tw_view file, struct tw_error *err) {
    const struct index *index = context;
    struct tw_model *model = index->model;
    struct tw_model_files *files = model->files;
    struct tw_safetensors *shard = NULL;
    const size_t prefix = strlen(model->path) + 1;
    for (size_t i = 0; i < files->n_safetensors && !shard; i++)
        if (tw_view_equal(tw_view_of(files->safetensors[i].path + prefix), file)) shard = &files->safetensors[i];
    if (!shard) {
        const char *path = in_folder(model, file);
        if (!path) return tw_model_out_of_memory(model->path, err);
        if (!is_there(path))
            return TW_FAIL(err, TW_E_INPUT, "model '%s' says that tensor '%.*s' is in '%.*s', which is not there",
                           index->path, NAME(name), NAME(file));
        TW_TRY(open_shard(&shard, model, path, err));
    }
    if (!tw_safetensors_find(shard, name))
        return TW_FAIL(err, TW_E_INPUT, "model '%s' says that tensor '%.*s' is in '%.*s', which lacks it", index->path,
                       NAME(name), NAME(file));
    return TW_OK;
}

static tw_status open_index(struct tw_model *model, const char *path, struct tw_error *err) {
    struct tw_file mapped;
    TW_TRY(tw_file_map(&mapped, path, "model", err));
    struct index index = {model, path};
    const struct tw_view json = {(const char *)mapped.data, mapped.size};
    const tw_status status = tw_safetensors_read_index(json, path, follow_index, &index, err);
    tw_file_unmap(&mapped);
    return status;
}

static tw_status open_weights(struct tw_model *model, struct tw_error *err) {
    const char *single = in_folder(model, tw_view_of(single_name));
    const char *index = in_folder(model, tw_view_of(index_name));
    if (!single || !index) return tw_model_out_of_memory(model->path, err);
    struct tw_safetensors *shard;
    if (is_there(single)) return open_shard(&shard, model, single, err);
    if (is_there(index)) return open_index(model, index, err);
    return TW_FAIL(err, TW_E_INPUT, "model '%s' has neither %s nor %s: weights in other formats are not read",
                   model->path, single_name, index_name);
}

static tw_status list_tensors(struct tw_catalogue *catalogue, const struct tw_model_files *files, const char *path,
                              struct tw_error *err) {
    for (size_t f = 0; f < files->n_safetensors; f++)
        for (size_t i = 0; i < files->safetensors[f].n_tensors; i++) {
            const struct tw_safetensors_tensor *tensor = &files->safetensors[f].tensors[i];
            TW_TRY(tw_catalogue_add(catalogue,
                                    &(struct tw_stored_tensor){.name = tensor->name,
                                                               .path = files->safetensors[f].path,
                                                               .traits = tensor->traits,
                                                               .type_name = tensor->type_name,
                                                               .n_dims = tensor->n_dims,
                                                               .n_rows = tensor->n_rows,
                                                               .n_columns = tensor->n_columns,
                                                               .data = tensor->data},
                                    err));
        }
    return tw_catalogue_close(catalogue, path, err);
}

/* ---- models -------------------------------------------------------------------------------------------------------
 */

static void take_end_tokens(struct tw_model *model, const struct tw_recipe *recipe) {
    memcpy(model->end_tokens, recipe->end_tokens, sizeof model->end_tokens);
    model->n_end_tokens = recipe->n_end_tokens;
}

tw_status tw_model_open_folder(struct tw_model *model, struct tw_error *err) {
    TW_TRY(tw_model_set_name(model, (struct tw_view){0}, err));
    const char *config = in_folder(model, TW_VIEW("config.json"));
    if (!config) return tw_model_out_of_memory(model->path, err);
    if (!is_there(config))
        return TW_FAIL(err, TW_E_INPUT,
                       "model '%s' is a directory without config.json: expected a GGUF file or a Hugging Face folder",
                       model->path);
    struct tw_recipe recipe;
    struct tw_catalogue catalogue = {0};
    struct tw_text text = {0};
    tw_status status = read_text(&text, config, err);
    if (status == TW_OK) status = tw_recipe_from_json(&recipe, tw_text_view(&text), config, err);
    tw_text_release(&text);
    if (status != TW_OK) return status;
    status = add_generation(&recipe, model, err);
    if (status == TW_OK) status = open_weights(model, err);
    if (status == TW_OK) status = list_tensors(&catalogue, model->files, model->path, err);
    if (status == TW_OK)
        status = tw_weights_bind(model, &model->files->owned, &recipe, &catalogue, TW_NAMING_HF,
                                 recipe.tied ? TW_TIED_YES : TW_TIED_NO, err);
    take_end_tokens(model, &recipe);
    tw_catalogue_release(&catalogue);
    tw_recipe_release(&recipe);
    return status;
}

tw_status tw_model_finish_config(struct tw_model *model, struct tw_view json, struct tw_error *err) {
    struct tw_recipe recipe;
    TW_TRY(tw_model_set_name(model, (struct tw_view){0}, err));
    TW_TRY(tw_recipe_from_json(&recipe, json, model->path, err));
    const tw_status status = tw_weights_bind(model, &model->files->owned, &recipe, NULL, TW_NAMING_HF,
                                             recipe.tied ? TW_TIED_YES : TW_TIED_NO, err);
    take_end_tokens(model, &recipe);
    tw_recipe_release(&recipe);
    return status;
}

tw_status tw_model_open_config(struct tw_model *model, struct tw_error *err) {
    struct tw_text text = {0};
    tw_status status = read_text(&text, model->path, err);
    if (status == TW_OK) status = tw_model_finish_config(model, tw_text_view(&text), err);
    tw_text_release(&text);
    return status;
}
