/* What stands behind a struct tw_model, and the ways to open one. Private to engine/model/. */
#ifndef TW_ENGINE_MODEL_MODEL_FILES_H
#define TW_ENGINE_MODEL_MODEL_FILES_H

#include "engine/model/gguf.h"
#include "engine/model/model.h"
#include "engine/model/safetensors.h"
#include "engine/model/weights.h"

struct tw_model_files {
    struct tw_gguf *gguf; /* [n_gguf] the parts of a split file, in order; or one */
    size_t n_gguf;
    struct tw_safetensors *safetensors; /* [n_safetensors] */
    size_t n_safetensors;
    struct tw_owned owned; /* vectors, layers, names */
};

/*
 * Each fills a zeroed model whose `path` and `files` are set. On failure the caller frees the half-filled model.
 */
tw_status tw_model_open_gguf(struct tw_model *model, struct tw_error *err);
tw_status tw_model_open_folder(struct tw_model *model, struct tw_error *err); /* a Hugging Face folder */
tw_status tw_model_open_config(struct tw_model *model, struct tw_error *err); /* config.json alone */

/* The second halves, from what has been read: files->gguf[0], and the text of config.json. */
tw_status tw_model_finish_gguf(struct tw_model *model, struct tw_error *err);
tw_status tw_model_finish_config(struct tw_model *model, struct tw_view json, struct tw_error *err);

tw_status tw_model_out_of_memory(const char *path, struct tw_error *err);
/* Sets config.name: `name`, or where that is empty the last part of the path; valid UTF-8, at most 255 bytes of it. */
tw_status tw_model_set_name(struct tw_model *model, struct tw_view name, struct tw_error *err);

#endif
