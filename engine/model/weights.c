#include "engine/model/weights.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/file.h"

/* ---- the catalogue ------------------------------------------------------------------------------------------------
 */

static int compare_views(struct tw_view a, struct tw_view b) {
    const int order = memcmp(a.data, b.data, tw_min_size(a.size, b.size));
    return order ? order : (a.size > b.size) - (a.size < b.size);
}
static int compare_tensors(const void *a, const void *b) {
    return compare_views(((const struct tw_stored_tensor *)a)->name, ((const struct tw_stored_tensor *)b)->name);
}

tw_status tw_catalogue_add(struct tw_catalogue *catalogue, const struct tw_stored_tensor *tensor,
                           struct tw_error *err) {
    if (catalogue->n == catalogue->capacity) {
        const size_t more = catalogue->capacity ? 2 * catalogue->capacity : 64;
        size_t bytes;
        void *moved = tw_mul_size(&bytes, more, sizeof *tensor) ? realloc(catalogue->tensors, bytes) : NULL;
        if (!moved) return TW_FAIL(err, TW_E_MEMORY, "out of memory while reading model '%s'", tensor->path);
        catalogue->tensors = moved;
        catalogue->capacity = more;
    }
    catalogue->tensors[catalogue->n++] = *tensor;
    return TW_OK;
}

#define NAME(view) (int)tw_min_size((view).size, 80), (view).data

tw_status tw_catalogue_close(struct tw_catalogue *catalogue, const char *path, struct tw_error *err) {
    if (catalogue->n == 0) return TW_FAIL(err, TW_E_INPUT, "model '%s' has no tensors", path);
    qsort(catalogue->tensors, catalogue->n, sizeof *catalogue->tensors, compare_tensors);
    for (size_t i = 1; i < catalogue->n; i++)
        if (compare_tensors(&catalogue->tensors[i - 1], &catalogue->tensors[i]) == 0)
            return TW_FAIL(err, TW_E_INPUT, "model '%s': tensor '%.*s' is there twice, in '%s' and '%s'", path,
                           NAME(catalogue->tensors[i].name), catalogue->tensors[i - 1].path,
                           catalogue->tensors[i].path);
    return TW_OK;
}

struct tw_stored_tensor *tw_catalogue_find(const struct tw_catalogue *catalogue, const char *name) {
    const struct tw_stored_tensor key = {.name = tw_view_of(name)};
    return catalogue->n ? bsearch(&key, catalogue->tensors, catalogue->n, sizeof key, compare_tensors) : NULL;
}

void tw_catalogue_release(struct tw_catalogue *catalogue) {
    free(catalogue->tensors);
    *catalogue = (struct tw_catalogue){0};
}

void *tw_owned_alloc(struct tw_owned *owned, size_t bytes) {
    if (owned->n == owned->capacity) {
        const size_t more = owned->capacity ? 2 * owned->capacity : 64;
        void **moved = realloc(owned->blocks, more * sizeof *moved);
        if (!moved) return NULL;
        owned->blocks = moved;
        owned->capacity = more;
    }
    void *block = calloc(1, bytes ? bytes : 1);
    if (block) owned->blocks[owned->n++] = block;
    return block;
}

void tw_owned_release(struct tw_owned *owned) {
    for (size_t i = 0; i < owned->n; i++) free(owned->blocks[i]);
    free(owned->blocks);
    *owned = (struct tw_owned){0};
}

/* ---- what a layer holds -------------------------------------------------------------------------------------------
 */

enum dimension { VOCAB, EMBD, QUERY, KV, MLP, HEAD };
static const char *const dimension_names[2][6] = {
    [TW_NAMING_GGUF] = {"vocab_size", "embedding_length", "head_count * key_length", "head_count_kv * key_length",
                        "feed_forward_length", "key_length"},
    [TW_NAMING_HF] = {"vocab_size", "hidden_size", "num_attention_heads * head_dim", "num_key_value_heads * head_dim",
                      "intermediate_size", "head_dim"},
};

static size_t dimension(const struct tw_model_config *config, enum dimension which) {
    switch (which) {
    case VOCAB: return config->n_vocab;
    case EMBD: return config->n_embd;
    case QUERY: return config->n_heads * config->head_dim;
    case KV: return config->n_kv_heads * config->head_dim;
    case MLP: return config->n_mlp;
    case HEAD: return config->head_dim;
    }
    return 0;
}

#define AT(field) offsetof(struct tw_layer_weights, field)
static const struct {
    const char *name[2]; /* by enum tw_naming */
    size_t offset;       /* of a struct tw_matrix */
    enum dimension rows, columns;
} layer_matrices[] = {
    {{"attn_q.weight", "self_attn.q_proj.weight"}, AT(query), QUERY, EMBD},
    {{"attn_k.weight", "self_attn.k_proj.weight"}, AT(key), KV, EMBD},
    {{"attn_v.weight", "self_attn.v_proj.weight"}, AT(value), KV, EMBD},
    {{"attn_output.weight", "self_attn.o_proj.weight"}, AT(output), EMBD, QUERY},
    {{"ffn_gate.weight", "mlp.gate_proj.weight"}, AT(gate), MLP, EMBD},
    {{"ffn_up.weight", "mlp.up_proj.weight"}, AT(up), MLP, EMBD},
    {{"ffn_down.weight", "mlp.down_proj.weight"}, AT(down), EMBD, MLP},
};

static bool always(const struct tw_architecture *row) { return row != NULL; }
static bool with_bias(const struct tw_architecture *row) { return row->qkv_bias; }
static bool with_qk_norm(const struct tw_architecture *row) { return row->qk_norm; }
static bool with_post_norms(const struct tw_architecture *row) { return row->post_norms; }
static bool without_post_norms(const struct tw_architecture *row) { return !row->post_norms; }

static const struct {
    const char *name[2];
    size_t offset; /* of a const float * */
    enum dimension length;
    bool norm; /* one of those that Hugging Face may store minus 1 */
    bool (*has)(const struct tw_architecture *row);
} layer_vectors[] = {
    {{"attn_norm.weight", "input_layernorm.weight"}, AT(attention_norm), EMBD, true, always},
    /* The same name means the norm before the MLP, or the one behind attention where both are there. */
    {{"ffn_norm.weight", "post_attention_layernorm.weight"}, AT(mlp_norm), EMBD, true, without_post_norms},
    {{"ffn_norm.weight", "pre_feedforward_layernorm.weight"}, AT(mlp_norm), EMBD, true, with_post_norms},
    {{"post_attention_norm.weight", "post_attention_layernorm.weight"},
     AT(post_attention_norm),
     EMBD,
     true,
     with_post_norms},
    {{"post_ffw_norm.weight", "post_feedforward_layernorm.weight"}, AT(post_mlp_norm), EMBD, true, with_post_norms},
    {{"attn_q_norm.weight", "self_attn.q_norm.weight"}, AT(query_norm), HEAD, true, with_qk_norm},
    {{"attn_k_norm.weight", "self_attn.k_norm.weight"}, AT(key_norm), HEAD, true, with_qk_norm},
    {{"attn_q.bias", "self_attn.q_proj.bias"}, AT(query_bias), QUERY, false, with_bias},
    {{"attn_k.bias", "self_attn.k_proj.bias"}, AT(key_bias), KV, false, with_bias},
    {{"attn_v.bias", "self_attn.v_proj.bias"}, AT(value_bias), KV, false, with_bias},
};

static const char *const embedding_name[2] = {"token_embd.weight", "model.embed_tokens.weight"};
static const char *const output_name[2] = {"output.weight", "lm_head.weight"};
static const char *const output_norm_name[2] = {"output_norm.weight", "model.norm.weight"};
static const char rope_factors_name[] = "rope_freqs.weight";

/* ---- binding ------------------------------------------------------------------------------------------------------
 */

struct binder {
    struct tw_model *model;
    struct tw_owned *owned;
    const struct tw_recipe *recipe;
    struct tw_catalogue *catalogue; /* NULL: from the configuration alone */
    enum tw_naming naming;
    const float *zeros; /* [the longest vector]: what every vector is without a catalogue */
    struct tw_error *err;
};

static tw_status no_memory(const struct binder *binder) {
    return TW_FAIL(binder->err, TW_E_MEMORY, "out of memory while reading model '%s'", binder->model->path);
}

/* NULL in *tensor when there is none and `required` is false. Marks it as used. */
static tw_status find(struct tw_stored_tensor **tensor, struct binder *binder, const char *name, bool required) {
    *tensor = tw_catalogue_find(binder->catalogue, name);
    if (!*tensor)
        return required
                   ? TW_FAIL(binder->err, TW_E_INPUT, "model '%s': tensor '%s' is missing", binder->model->path, name)
                   : TW_OK;
    (*tensor)->used = true;
    if (!(*tensor)->traits)
        return TW_FAIL(binder->err, TW_E_UNSUPPORTED, "model '%s': tensor '%s' has type %s, which no weight may have",
                       (*tensor)->path, name, (*tensor)->type_name);
    return TW_OK;
}

static tw_status bind_matrix(struct tw_matrix *matrix, struct binder *binder, const char *name, enum dimension rows,
                             enum dimension columns) {
    const struct tw_model_config *config = &binder->model->config;
    char *kept = tw_owned_alloc(binder->owned, strlen(name) + 1);
    if (!kept) return no_memory(binder);
    *matrix = (struct tw_matrix){.name = strcpy(kept, name),
                                 .type = binder->recipe->type,
                                 .n_rows = dimension(config, rows),
                                 .n_columns = dimension(config, columns)};
    const struct tw_type_traits *traits = tw_type_traits(matrix->type);
    if (binder->catalogue) {
        struct tw_stored_tensor *tensor;
        TW_TRY(find(&tensor, binder, name, true));
        const char *const *names = dimension_names[binder->naming];
        if (tensor->n_dims != 2)
            return TW_FAIL(binder->err, TW_E_INPUT, "model '%s': tensor '%s' has %u dimensions, expected 2",
                           tensor->path, name, tensor->n_dims);
        if (tensor->n_rows != matrix->n_rows || tensor->n_columns != matrix->n_columns)
            return TW_FAIL(binder->err, TW_E_INPUT,
                           "model '%s': tensor '%s' has %" PRIu64 " rows of %" PRIu64 ", expected %zu of %zu (%s, %s)",
                           tensor->path, name, tensor->n_rows, tensor->n_columns, matrix->n_rows, matrix->n_columns,
                           names[rows], names[columns]);
        traits = tensor->traits;
        if (traits->block_values == 1 && (uintptr_t)tensor->data % traits->block_bytes != 0)
            return TW_FAIL(
                binder->err, TW_E_UNSUPPORTED,
                "model '%s': the data of tensor '%s' is not aligned to its %zu-byte values: save it again with "
                "an aligned header",
                tensor->path, name, traits->block_bytes);
        matrix->type = traits->type;
        matrix->data = tensor->data;
    }
    matrix->row_bytes = tw_type_row_bytes(traits, matrix->n_columns);
    return TW_OK;
}

/* `name` as float32, plus 1 where that is how norms are stored. */
static tw_status bind_vector(const float **vector, struct binder *binder, const char *name, size_t length, bool norm) {
    *vector = binder->zeros;
    if (!binder->catalogue) return TW_OK;
    struct tw_stored_tensor *tensor;
    TW_TRY(find(&tensor, binder, name, true));
    if (tensor->n_dims != 1 || tensor->n_columns != length)
        return TW_FAIL(binder->err, TW_E_INPUT,
                       "model '%s': tensor '%s' has %u dimensions and %" PRIu64
                       " values a row, expected a vector of %zu",
                       tensor->path, name, tensor->n_dims, tensor->n_columns, length);
    if (tensor->traits->block_values != 1)
        return TW_FAIL(binder->err, TW_E_UNSUPPORTED, "model '%s': tensor '%s' is a quantised vector (%s)",
                       tensor->path, name, tensor->type_name);
    float *values = tw_owned_alloc(binder->owned, length * sizeof *values);
    if (!values) return no_memory(binder);
    tensor->traits->dequantise(values, tensor->data, length);
    if (norm && binder->naming == TW_NAMING_HF && binder->recipe->architecture->hf_norms_minus_one)
        for (size_t i = 0; i < length; i++) values[i] += 1;
    *vector = values;
    return TW_OK;
}

static tw_status bind_layer(struct tw_layer_weights *layer, struct binder *binder, size_t number) {
    static const char *const prefix[2] = {"blk", "model.layers"};
    char name[128];
    for (size_t i = 0; i < sizeof layer_matrices / sizeof *layer_matrices; i++) {
        snprintf(name, sizeof name, "%s.%zu.%s", prefix[binder->naming], number,
                 layer_matrices[i].name[binder->naming]);
        TW_TRY(bind_matrix((struct tw_matrix *)((char *)layer + layer_matrices[i].offset), binder, name,
                           layer_matrices[i].rows, layer_matrices[i].columns));
    }
    for (size_t i = 0; i < sizeof layer_vectors / sizeof *layer_vectors; i++) {
        if (!layer_vectors[i].has(binder->recipe->architecture)) continue;
        snprintf(name, sizeof name, "%s.%zu.%s", prefix[binder->naming], number, layer_vectors[i].name[binder->naming]);
        TW_TRY(bind_vector((const float **)((char *)layer + layer_vectors[i].offset), binder, name,
                           dimension(&binder->model->config, layer_vectors[i].length), layer_vectors[i].norm));
    }
    return TW_OK;
}

static tw_status bind_rope(struct binder *binder) {
    const struct tw_recipe *recipe = binder->recipe;
    struct tw_model_config *config = &binder->model->config;
    const size_t n_pairs = config->head_dim / 2;
    double *everywhere = tw_owned_alloc(binder->owned, n_pairs * sizeof *everywhere);
    double *sliding = tw_owned_alloc(binder->owned, n_pairs * sizeof *sliding);
    if (!everywhere || !sliding) return no_memory(binder);
    tw_rope_divisors(everywhere, config->head_dim, config->rope_theta, &recipe->scaling);
    if (config->rope_theta_local != 0)
        tw_rope_divisors(sliding, config->head_dim, config->rope_theta_local, &(struct tw_rope_scaling){0});
    if (binder->catalogue && binder->naming == TW_NAMING_GGUF &&
        tw_catalogue_find(binder->catalogue, rope_factors_name)) {
        const float *factors;
        TW_TRY(bind_vector(&factors, binder, rope_factors_name, n_pairs, false));
        for (size_t j = 0; j < n_pairs; j++) {
            if (!(factors[j] > 0) || !isfinite(factors[j]))
                return TW_FAIL(binder->err, TW_E_INPUT, "model '%s': value %zu of tensor '%s' is %g, expected above 0",
                               binder->model->path, j, rope_factors_name, (double)factors[j]);
            everywhere[j] *= factors[j];
        }
        strcpy(config->rope_scaling, "llama3"); /* the one rule that GGUF files store as factors */
    }
    for (size_t l = 0; l < config->n_layers; l++) {
        struct tw_layer_weights *layer = &binder->model->layers[l];
        layer->sliding_window = recipe->slides[l] ? config->sliding_window : 0;
        layer->rope_divisor = recipe->slides[l] && config->rope_theta_local != 0 ? sliding : everywhere;
    }
    return TW_OK;
}

static tw_status bind_output(struct binder *binder, enum tw_tied tied) {
    struct tw_model *model = binder->model;
    const char *name = output_name[binder->naming];
    bool there = tied == TW_TIED_NO;
    if (binder->catalogue) {
        struct tw_stored_tensor *tensor;
        TW_TRY(find(&tensor, binder, name, false));
        there = tensor != NULL;
    }
    if (there && tied == TW_TIED_YES)
        tw_text_printf(&model->warnings,
                       "model '%s': tie_word_embeddings is true, but there is a '%s' too: the embedding is used\n",
                       model->path, name);
    if (!there && tied == TW_TIED_NO)
        return TW_FAIL(binder->err, TW_E_INPUT,
                       "model '%s': tensor '%s' is missing and tie_word_embeddings is false: there is no output matrix",
                       model->path, name);
    model->config.tied_embeddings = tied == TW_TIED_YES || !there;
    if (model->config.tied_embeddings) {
        model->output = model->embedding;
        return TW_OK;
    }
    return bind_matrix(&model->output, binder, name, VOCAB, EMBD);
}

/* Old checkpoints carry the rotary frequencies, which follow from the configuration. */
static bool may_be_left(struct tw_view name) {
    const struct tw_view end = TW_VIEW("rotary_emb.inv_freq");
    return name.size >= end.size && memcmp(name.data + name.size - end.size, end.data, end.size) == 0;
}

static tw_status refuse_left_over(const struct binder *binder) {
    for (size_t i = 0; i < binder->catalogue->n; i++) {
        const struct tw_stored_tensor *tensor = &binder->catalogue->tensors[i];
        if (!tensor->used && !may_be_left(tensor->name))
            return TW_FAIL(binder->err, TW_E_UNSUPPORTED,
                           "model '%s': tensor '%.*s' has no place in the architecture %s with %zu layers",
                           tensor->path, NAME(tensor->name), binder->recipe->architecture->name,
                           binder->model->config.n_layers);
    }
    return TW_OK;
}

/* A vocabulary size that only the embedding knows. */
static tw_status take_vocabulary(struct binder *binder) {
    struct tw_model_config *config = &binder->model->config;
    if (config->n_vocab) return TW_OK;
    struct tw_stored_tensor *tensor;
    TW_TRY(find(&tensor, binder, embedding_name[binder->naming], true));
    if (tensor->n_dims != 2 || tensor->n_rows > 1 << 26)
        return TW_FAIL(binder->err, TW_E_INPUT, "model '%s': tensor '%s' is no matrix of up to 2^26 rows", tensor->path,
                       embedding_name[binder->naming]);
    config->n_vocab = (size_t)tensor->n_rows;
    return TW_OK;
}

tw_status tw_weights_bind(struct tw_model *model, struct tw_owned *owned, const struct tw_recipe *recipe,
                          struct tw_catalogue *catalogue, enum tw_naming naming, enum tw_tied tied,
                          struct tw_error *err) {
    struct binder binder = {
        .model = model, .owned = owned, .recipe = recipe, .catalogue = catalogue, .naming = naming, .err = err};
    char *const name = model->config.name;
    model->config = recipe->config;
    model->config.name = name;
    struct tw_model_config *config = &model->config;
    if (catalogue && config->n_layers > catalogue->n)
        return TW_FAIL(err, TW_E_INPUT, "model '%s': %s is %zu, but there are only %zu tensors", model->path,
                       naming == TW_NAMING_GGUF ? "block_count" : "num_hidden_layers", config->n_layers, catalogue->n);
    if (catalogue) TW_TRY(take_vocabulary(&binder));
    if (!catalogue) {
        const size_t longest = tw_max_size(dimension(config, EMBD), dimension(config, QUERY));
        binder.zeros = tw_owned_alloc(owned, longest * sizeof(float));
        if (!binder.zeros) return no_memory(&binder);
    }
    /* Vectors lie scattered among the matrices: read one after the other from a disk, they would take most of the time.
     */
    for (size_t i = 0; catalogue && i < catalogue->n; i++) {
        const struct tw_stored_tensor *tensor = &catalogue->tensors[i];
        if (tensor->n_dims == 1 && tensor->traits)
            tw_file_will_need(tensor->data, tw_type_row_bytes(tensor->traits, tensor->n_columns));
    }
    model->layers = tw_owned_alloc(owned, config->n_layers * sizeof *model->layers);
    if (!model->layers) return no_memory(&binder);
    TW_TRY(bind_matrix(&model->embedding, &binder, embedding_name[naming], VOCAB, EMBD));
    TW_TRY(bind_output(&binder, tied));
    TW_TRY(bind_vector(&model->output_norm, &binder, output_norm_name[naming], config->n_embd, true));
    for (size_t l = 0; l < config->n_layers; l++) TW_TRY(bind_layer(&model->layers[l], &binder, l));
    TW_TRY(bind_rope(&binder));
    return catalogue ? refuse_left_over(&binder) : TW_OK;
}
