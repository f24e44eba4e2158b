/* What `tidewake info` shows of a model. */
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
#include "cli/info.h"
#include "engine/engine.h"
#include "engine/model/model.h"
#include "engine/tokenizer/chat.h"
#include "engine/tokenizer/tokenizer.h"

/* How often each type occurs among the matrices, and how many bytes they have. */
struct census {
    size_t n[TW_TYPE_BF16 + 1];
};

static void count(struct census *census, const struct tw_matrix *matrix) { census->n[matrix->type]++; }

static void matrix_types(struct tw_text *text, const struct tw_model *model) {
    struct census census = {0};
    count(&census, &model->embedding);
    if (!model->config.tied_embeddings) count(&census, &model->output);
    for (size_t l = 0; l < model->config.n_layers; l++) {
        const struct tw_layer_weights *layer = &model->layers[l];
        const struct tw_matrix *const matrices[] = {&layer->query, &layer->key, &layer->value, &layer->output,
                                                    &layer->gate,  &layer->up,  &layer->down};
        for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) count(&census, matrices[i]);
    }
    for (size_t type = 0; type <= TW_TYPE_BF16; type++)
        if (census.n[type])
            tw_text_printf(text, "%s%zu x %s", text->size ? ", " : "", census.n[type],
                           tw_type_traits((enum tw_type)type)->name);
}

static void container(struct tw_table *table, const struct tw_model *model) {
    const struct tw_gguf *gguf = tw_model_gguf(model);
    if (gguf)
        tw_info_row(table, "file", "GGUF, version %u", gguf->version);
    else if (model->embedding.data)
        tw_info_row(table, "file", "Hugging Face folder, safetensors");
    else
        tw_info_row(table, "file", "configuration alone, without weights");
}

static void positions(struct tw_table *table, const struct tw_model *model) {
    const struct tw_model_config *c = &model->config;
    tw_info_row(table, "context length", "%zu", c->context_length);
    struct tw_text text = {0};
    tw_text_printf(&text, "base %.10g", c->rope_theta);
    if (c->rope_theta_local != 0) tw_text_printf(&text, " (%.10g in sliding layers)", c->rope_theta_local);
    tw_text_printf(&text, ", scaling %s, pairs %s", c->rope_scaling,
                   c->rope_pairs == TW_ROPE_HALVES ? "of the two halves of a head" : "of neighbours");
    tw_info_row(table, "rotary positions", "%s", tw_text_string(&text));
    tw_text_release(&text);
    if (!c->sliding_window) return;
    size_t n = 0;
    for (size_t l = 0; l < c->n_layers; l++) n += model->layers[l].sliding_window != 0;
    tw_info_row(table, "sliding window", "%zu positions in %zu of %zu layers", c->sliding_window, n, c->n_layers);
}

static void shape(struct tw_table *table, const struct tw_model *model) {
    const struct tw_model_config *c = &model->config;
    tw_info_row(table, "name", "%s", c->name);
    tw_info_row(table, "architecture", "%s", c->architecture);
    container(table, model);
    tw_info_row(table, "layers", "%zu", c->n_layers);
    tw_info_row(table, "width", "%zu", c->n_embd);
    tw_info_row(table, "query heads", "%zu", c->n_heads);
    tw_info_row(table, "KV heads", "%zu", c->n_kv_heads);
    tw_info_row(table, "head size", "%zu", c->head_dim);
    tw_info_row(table, "MLP width", "%zu, %s", c->n_mlp,
                c->activation == TW_ACTIVATION_SILU ? "SiLU gate" : "GELU (tanh) gate");
    tw_info_row(table, "vocabulary rows", "%zu%s", c->n_vocab,
                c->tied_embeddings ? ", output tied to the embedding" : "");
    positions(table, model);
    tw_info_row(table, "norm epsilon", "%.3g", c->norm_epsilon);
    struct tw_text text = {0};
    matrix_types(&text, model);
    tw_info_row(table, "matrices", "%s", tw_text_string(&text));
    tw_text_clear(&text);
    tw_info_row(table, "weight bytes", "%zu", tw_model_weight_bytes(model));
    tw_info_row(table, "KV bytes a token", "%zu in 16 bits", 2 * 2 * c->n_layers * c->n_kv_heads * c->head_dim);
    for (size_t i = 0; i < model->n_end_tokens; i++) tw_text_printf(&text, "%s%u", i ? ", " : "", model->end_tokens[i]);
    if (text.size) tw_info_row(table, "end tokens", "%s", tw_text_string(&text));
    tw_text_release(&text);
}

/* What the default backend makes of it on this machine: precision, instruction set, threads. */
static void computed_by(struct tw_table *table, const struct tw_model *model) {
    struct tw_engine_options options;
    struct tw_engine *engine;
    struct tw_error err = {0};
    tw_engine_options_init(&options);
    options.backend = "cpu";
    if (tw_engine_open(&engine, model, &options, &err) == TW_OK) {
        struct tw_text text = {0};
        engine->ops->describe(engine->backend, &text);
        tw_info_row(table, "computed in", "%s", tw_text_string(&text));
        tw_text_release(&text);
        tw_engine_free(engine);
    } else {
        tw_info_row(table, "computed in", "nothing here: %s", err.text);
    }
}

static void warn_lines(struct tw_view text) {
    while (text.size) {
        const char *end = memchr(text.data, '\n', text.size);
        const size_t n = end ? (size_t)(end - text.data) : text.size;
        if (n) tw_warn("%.*s", (int)n, text.data);
        text.data += n + (end != NULL);
        text.size -= n + (end != NULL);
    }
}

tw_status tw_info_model(struct tw_table *table, const char *path, struct tw_error *err) {
    struct tw_model *model;
    TW_TRY(tw_model_open(&model, path, err));
    shape(table, model);
    warn_lines(tw_text_view(&model->warnings));
    tw_status status = TW_OK;
    if (model->embedding.data) {
        computed_by(table, model);
        struct tw_tokenizer *tokenizer;
        status = tw_tokenizer_open(&tokenizer, path, err);
        if (status == TW_OK) {
            status = tw_tokenizer_check_rows(tokenizer, model->config.n_vocab, err);
            tw_info_row(table, "tokenizer", "%zu tokens, split rule %s", tw_tokenizer_size(tokenizer),
                        tw_tokenizer_split_name(tokenizer));
            const char *family = tw_chat_family(tokenizer);
            tw_info_row(table, "chat template", "%s",
                        family                             ? family
                        : tw_chat_template(tokenizer).size ? "not known"
                                                           : "none");
            warn_lines(tw_tokenizer_warnings(tokenizer));
            tw_tokenizer_free(tokenizer);
        }
    }
    tw_model_free(model);
    return status;
}
