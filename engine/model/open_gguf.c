/* A model from a GGUF file, or from the parts of a split one. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/config.h"
#include "engine/model/model_files.h"

/* The name of part `number` (from 0) of `n`, given that of the first; false when that does not end as it must. */
static bool part_name(struct tw_text *name, const char *first, size_t number, size_t n) {
    char ending[64];
    const int size = snprintf(ending, sizeof ending, "-%05zu-of-%05zu.gguf", (size_t)1, n);
    const size_t length = strlen(first);
    if (length <= (size_t)size || strcmp(first + length - (size_t)size, ending) != 0) return false;
    tw_text_append(name, (struct tw_view){first, length - (size_t)size});
    tw_text_printf(name, "-%05zu-of-%05zu.gguf", number + 1, n);
    return true;
}

static tw_status open_part(struct tw_model *model, size_t number, size_t n, struct tw_error *err) {
    struct tw_model_files *files = model->files;
    struct tw_text name = {0};
    if (!part_name(&name, model->path, number, n)) {
        tw_text_release(&name);
        return TW_FAIL(err, TW_E_INPUT,
                       "model '%s' is the first of %zu parts, but its name does not end in '-00001-of-%05zu.gguf'",
                       model->path, n, n);
    }
    if (!tw_text_ok(&name)) {
        tw_text_release(&name);
        return tw_model_out_of_memory(model->path, err);
    }
    struct tw_gguf *part = &files->gguf[files->n_gguf];
    tw_status status = tw_gguf_open(part, name.data, err);
    if (status == TW_OK) {
        files->n_gguf++;
        uint64_t own_number = UINT64_MAX, own_count = UINT64_MAX;
        status = tw_gguf_get_uint(&own_number, part, "split.no", true, err);
        if (status == TW_OK) status = tw_gguf_get_uint(&own_count, part, "split.count", true, err);
        if (status == TW_OK && (own_number != number || own_count != n))
            status = TW_FAIL(err, TW_E_INPUT,
                             "model '%s' says that it is part %" PRIu64 " of %" PRIu64
                             " (counted from 0), expected %zu of %zu",
                             name.data, own_number, own_count, number, n);
    } else {
        status = tw_fail_prefix(err, status, "part %zu of %zu of model '%s': ", number + 1, n, model->path);
    }
    tw_text_release(&name);
    return status;
}

/* Opens the other parts, if it is a split file, and checks that together they have the tensors that they should. */
static tw_status open_parts(struct tw_model *model, struct tw_error *err) {
    struct tw_model_files *files = model->files;
    uint64_t n = 1, number = 0, expected = 0;
    TW_TRY(tw_gguf_get_uint(&n, &files->gguf[0], "split.count", false, err));
    if (n <= 1) return TW_OK;
    if (n > 99999)
        return TW_FAIL(err, TW_E_INPUT, "model '%s': split.count is %" PRIu64 ", expected up to 99999", model->path, n);
    TW_TRY(tw_gguf_get_uint(&number, &files->gguf[0], "split.no", true, err));
    TW_TRY(tw_gguf_get_uint(&expected, &files->gguf[0], "split.tensors.count", true, err));
    if (number != 0)
        return TW_FAIL(err, TW_E_INPUT, "model '%s' is part %" PRIu64 " of %" PRIu64 ": name the first", model->path,
                       number + 1, n);
    for (size_t i = 1; i < n; i++) {
        /* One by one: a false count fails at the first part that is not there. */
        struct tw_gguf *moved = realloc(files->gguf, (i + 1) * sizeof *moved);
        if (!moved) return tw_model_out_of_memory(model->path, err);
        files->gguf = moved;
        TW_TRY(open_part(model, i, (size_t)n, err));
    }
    size_t total = 0;
    for (size_t i = 0; i < n; i++) total += files->gguf[i].n_tensors;
    if (total != expected)
        return TW_FAIL(err, TW_E_INPUT, "model '%s': its %" PRIu64 " parts have %zu tensors, expected %" PRIu64,
                       model->path, n, total, expected);
    return TW_OK;
}

static tw_status list_tensors(struct tw_catalogue *catalogue, const struct tw_model_files *files, const char *path,
                              struct tw_error *err) {
    for (size_t f = 0; f < files->n_gguf; f++)
        for (size_t i = 0; i < files->gguf[f].n_tensors; i++) {
            const struct tw_gguf_tensor *tensor = &files->gguf[f].tensors[i];
            const struct tw_type_traits *traits = tw_type_traits((enum tw_type)tensor->type);
            TW_TRY(tw_catalogue_add(
                catalogue,
                &(struct tw_stored_tensor){.name = tensor->name,
                                           .path = files->gguf[f].path,
                                           .traits = traits,
                                           .type_name = traits->name,
                                           .n_dims = tensor->n_dims,
                                           .n_columns = tensor->dims[0],
                                           .n_rows = tensor->dims[1] * tensor->dims[2] * tensor->dims[3],
                                           .data = tensor->data},
                err));
        }
    return tw_catalogue_close(catalogue, path, err);
}

/* The token list must not go beyond the embedding, and what stands beside each token must be there for each. */
static tw_status check_vocabulary(const struct tw_model *model, struct tw_error *err) {
    const struct tw_gguf *gguf = &model->files->gguf[0];
    struct tw_gguf_array tokens = {0}, beside = {0};
    if (!tw_gguf_find(gguf, "tokenizer.ggml.tokens")) return TW_OK;
    TW_TRY(tw_gguf_get_array(&tokens, gguf, "tokenizer.ggml.tokens", TW_GGUF_STRINGS, true, err));
    if (tokens.n > model->config.n_vocab)
        return TW_FAIL(
            err, TW_E_INPUT,
            "model '%s': tokenizer.ggml.tokens has %zu tokens, but tensor '%s' has only %zu rows: id %zu has none",
            model->path, tokens.n, model->embedding.name, model->config.n_vocab, model->config.n_vocab);
    static const struct {
        const char *name;
        enum tw_gguf_elements elements;
    } lists[] = {{"tokenizer.ggml.token_type", TW_GGUF_INTEGERS}, {"tokenizer.ggml.scores", TW_GGUF_FLOATS}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        if (!tw_gguf_find(gguf, lists[i].name)) continue;
        TW_TRY(tw_gguf_get_array(&beside, gguf, lists[i].name, lists[i].elements, true, err));
        if (beside.n != tokens.n)
            return TW_FAIL(err, TW_E_INPUT, "model '%s': %s has %zu entries for %zu tokens", model->path, lists[i].name,
                           beside.n, tokens.n);
    }
    return TW_OK;
}

tw_status tw_model_finish_gguf(struct tw_model *model, struct tw_error *err) {
    struct tw_model_files *files = model->files;
    struct tw_view name = {0};
    TW_TRY(tw_gguf_get_string(&name, &files->gguf[0], "general.name", false, err));
    TW_TRY(tw_model_set_name(model, name, err));

    struct tw_recipe recipe;
    struct tw_catalogue catalogue = {0};
    TW_TRY(tw_recipe_from_gguf(&recipe, &files->gguf[0], err));
    tw_status status = open_parts(model, err);
    if (status == TW_OK) status = list_tensors(&catalogue, files, model->path, err);
    if (status == TW_OK)
        status = tw_weights_bind(model, &files->owned, &recipe, &catalogue, TW_NAMING_GGUF, TW_TIED_IF_ABSENT, err);
    if (status == TW_OK) status = check_vocabulary(model, err);
    memcpy(model->end_tokens, recipe.end_tokens, sizeof model->end_tokens);
    model->n_end_tokens = recipe.n_end_tokens;
    tw_catalogue_release(&catalogue);
    tw_recipe_release(&recipe);
    return status;
}

tw_status tw_model_open_gguf(struct tw_model *model, struct tw_error *err) {
    struct tw_model_files *files = model->files;
    files->gguf = malloc(sizeof *files->gguf);
    if (!files->gguf) return tw_model_out_of_memory(model->path, err);
    TW_TRY(tw_gguf_open(&files->gguf[0], model->path, err));
    files->n_gguf = 1;
    return tw_model_finish_gguf(model, err);
}
