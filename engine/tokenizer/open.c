/* Opening a tokenizer by the path of a model: which file it is in, and whether the model has room for its ids. */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "engine/model/gguf.h"
#include "engine/tokenizer/tokenizer.h"

static tw_status open_gguf(struct tw_tokenizer **tokenizer, const char *path, struct tw_error *err) {
    struct tw_gguf gguf = {0};
    TW_TRY(tw_gguf_open(&gguf, path, err));
    tw_status status = tw_tokenizer_from_gguf(tokenizer, &gguf, err);
    const struct tw_gguf_tensor *embedding = tw_gguf_find_tensor(&gguf, "token_embd.weight");
    if (status == TW_OK && embedding) {
        status = tw_tokenizer_check_rows(*tokenizer, embedding->dims[1], err);
        if (status != TW_OK) {
            tw_tokenizer_free(*tokenizer);
            *tokenizer = NULL;
        }
    }
    tw_gguf_release(&gguf);
    return status;
}

/* The files of a folder that have a say. */
enum { TOKENIZER, CONFIG, GENERATION, TEMPLATE, MODEL_CONFIG, N_FILES };
static const char *const file_names[N_FILES] = {"tokenizer.json", "tokenizer_config.json", "generation_config.json",
                                                "chat_template.jinja", "config.json"};

/* The rows of the embedding as config.json has them, or 0: whether that file is sound is the model's affair. */
static size_t embedding_rows(const struct tw_file *file) {
    cJSON *config = file->size ? cJSON_ParseWithLength((const char *)file->data, file->size) : NULL;
    const cJSON *part = cJSON_GetObjectItemCaseSensitive(config, "text_config");
    const cJSON *rows = cJSON_GetObjectItemCaseSensitive(part ? part : config, "vocab_size");
    const double n = cJSON_IsNumber(rows) ? rows->valuedouble : 0;
    cJSON_Delete(config);
    return n >= 1 && n < INT32_MAX ? (size_t)n : 0;
}

/* `tokenizer_path` is NULL for the folder's own tokenizer.json. */
static tw_status open_folder(struct tw_tokenizer **tokenizer, const char *folder, const char *tokenizer_path,
                             struct tw_error *err) {
    struct tw_file files[N_FILES] = {0};
    struct tw_view views[N_FILES] = {0};
    struct tw_text path = {0}, name = {0};
    tw_status status = TW_OK;
    for (int i = 0; i < N_FILES && status == TW_OK; i++) {
        tw_text_clear(&path);
        if (i == TOKENIZER && tokenizer_path)
            tw_text_append(&path, tw_view_of(tokenizer_path));
        else
            tw_text_printf(&path, "%s/%s", folder, file_names[i]);
        if (i == TOKENIZER) tw_text_append(&name, tw_text_view(&path));
        if (!tw_text_ok(&path) || !tw_text_ok(&name)) {
            status = TW_FAIL(err, TW_E_MEMORY, "tokenizer '%s': out of memory", folder);
        } else if (i == TOKENIZER && access(path.data, F_OK) != 0) {
            status = TW_FAIL(err, TW_E_INPUT,
                             "there is no '%s': a folder needs one (tokenizer.model alone will not do)", path.data);
        } else if (i == TOKENIZER || access(path.data, F_OK) == 0) {
            status = tw_file_map(&files[i], path.data, "tokenizer", err);
            views[i] = (struct tw_view){(const char *)files[i].data, files[i].size};
        }
    }
    if (status == TW_OK && views[TOKENIZER].size == 0)
        status = TW_FAIL(err, TW_E_INPUT, "tokenizer '%s': the file is empty", tw_text_string(&name));
    if (status == TW_OK)
        status = tw_tokenizer_from_json(tokenizer,
                                        &(struct tw_tokenizer_files){.name = tw_text_string(&name),
                                                                     .tokenizer = views[TOKENIZER],
                                                                     .config = views[CONFIG],
                                                                     .generation_config = views[GENERATION],
                                                                     .chat_template = views[TEMPLATE]},
                                        err);
    const size_t rows = status == TW_OK ? embedding_rows(&files[MODEL_CONFIG]) : 0;
    if (rows) {
        status = tw_tokenizer_check_rows(*tokenizer, rows, err);
        if (status != TW_OK) {
            tw_tokenizer_free(*tokenizer);
            *tokenizer = NULL;
        }
    }
    for (int i = 0; i < N_FILES; i++) tw_file_unmap(&files[i]);
    tw_text_release(&path);
    tw_text_release(&name);
    return status;
}

tw_status tw_tokenizer_open(struct tw_tokenizer **tokenizer, const char *path, struct tw_error *err) {
    *tokenizer = NULL;
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) return open_folder(tokenizer, path, NULL, err);
    const size_t size = strlen(path);
    if (size < 5 || strcmp(path + size - 5, ".json") != 0) return open_gguf(tokenizer, path, err);
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    if (!folder) return TW_FAIL(err, TW_E_MEMORY, "tokenizer '%s': out of memory", path);
    const tw_status status = open_folder(tokenizer, folder, path, err);
    free(folder);
    return status;
}
