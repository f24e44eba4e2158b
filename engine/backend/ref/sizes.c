/* The buffers of the reference backend: all float32. */
#include "base/checked.h"
#include "base/team.h"
#include "engine/backend/ref/ref.h"

static tw_status resolve(struct tw_backend_options *options, const struct tw_model *model, struct tw_error *err) {
    (void)model;
    if (options->dtype == TW_DTYPE_BF16)
        return TW_FAIL(err, TW_E_OPTION, "backend 'ref' computes in float32: --dtype f32, or another backend");
    if (options->weights == TW_WEIGHTS_STREAM)
        return TW_FAIL(err, TW_E_OPTION, "backend 'ref' maps its weights: --weights stream needs a device");
    options->dtype = TW_DTYPE_F32;
    if (options->n_threads == 0) options->n_threads = tw_host_threads();
    if (options->window == 0) options->window = 1;
    return TW_OK;
}

const struct tw_matrix *tw_ref_matrix_of(const struct tw_layer_weights *layer, enum tw_ref_matrix which) {
    switch (which) {
    case REF_QUERY: return &layer->query;
    case REF_KEY: return &layer->key;
    case REF_VALUE: return &layer->value;
    case REF_OUTPUT: return &layer->output;
    case REF_GATE: return &layer->gate;
    case REF_UP: return &layer->up;
    case REF_DOWN:
    case REF_N_MATRICES: break;
    }
    return &layer->down;
}

size_t tw_ref_panels_floats(const struct tw_matrix *matrix) {
    return tw_round_up(matrix->n_rows, TW_REF_LANES) * matrix->n_columns;
}

size_t tw_ref_panel_workspace_floats(const struct tw_model *model) {
    const struct tw_model_config *c = &model->config;
    const size_t columns = tw_max_size(tw_max_size(c->n_embd, c->n_mlp), c->n_heads * c->head_dim);
    return tw_round_up(columns, TW_REF_LANES) * (TW_REF_LANES + 1); /* each thread's begins at whole vectors */
}

static void put(struct tw_buffer_size *size, const char *what, enum tw_category category, size_t floats) {
    *size = (struct tw_buffer_size){.what = what, .category = category, .bytes = floats * sizeof(float)};
}

static size_t kv_sizes(struct tw_buffer_size *sizes, const struct tw_model_config *c, const struct tw_moment_of *of) {
    size_t rows = 0;
    for (size_t g = 0; g < c->n_kv_heads; g++) {
        of->offset[g] = rows;
        rows += of->capacity[g];
    }
    put(&sizes[0], "keys", TW_CATEGORY_ACTIVE_KV, rows * c->head_dim);
    put(&sizes[1], "values", TW_CATEGORY_ACTIVE_KV, rows * c->head_dim);
    return 2;
}

static size_t buffers(struct tw_buffer_size sizes[TW_MOMENT_MAX_BUFFERS], const struct tw_model *model,
                      const struct tw_backend_options *options, const struct tw_moment_of *of) {
    const struct tw_model_config *c = &model->config;
    const size_t query_width = c->n_heads * c->head_dim, kv_width = c->n_kv_heads * c->head_dim;
    const size_t widest = tw_max_size(c->n_embd, query_width);
    switch (of->moment) {
    case TW_MOMENT_OPEN:
        sizes[REF_OPEN_WEIGHTS] = (struct tw_buffer_size){
            .what = "weights", .category = TW_CATEGORY_WEIGHTS, .bytes = tw_model_weight_bytes(model), .mapped = true};
        put(&sizes[REF_OPEN_PANELS], "panels of the products", TW_CATEGORY_CHUNK,
            options->n_threads * tw_ref_panel_workspace_floats(model));
        put(&sizes[REF_OPEN_STATE], "decoding state", TW_CATEGORY_OTHER,
            c->n_embd + widest + 2 * query_width + kv_width + 2 * c->n_mlp);
        return REF_N_OPEN;
    case TW_MOMENT_CHUNK: {
        const size_t rows = options->whole_rows ? of->n : tw_min_size(of->n, TW_REF_ROWS);
        put(&sizes[REF_CHUNK_QUERY], "queries of a chunk", TW_CATEGORY_CHUNK, of->n * query_width);
        put(&sizes[REF_CHUNK_ATTENTION], "attention output of a chunk", TW_CATEGORY_CHUNK, of->n * query_width);
        put(&sizes[REF_CHUNK_NORMED], "rows of a product", TW_CATEGORY_CHUNK, rows * widest);
        put(&sizes[REF_CHUNK_KV], "keys or values of rows", TW_CATEGORY_CHUNK, rows * kv_width);
        put(&sizes[REF_CHUNK_GATE], "MLP gate", TW_CATEGORY_CHUNK, rows * c->n_mlp);
        put(&sizes[REF_CHUNK_UP], "MLP up", TW_CATEGORY_CHUNK, rows * c->n_mlp);
        return REF_N_CHUNK;
    }
    case TW_MOMENT_BRIDGE: put(&sizes[0], "hidden bridge", TW_CATEGORY_BRIDGE, of->n * c->n_embd); return 1;
    case TW_MOMENT_KV: return kv_sizes(sizes, c, of);
    case TW_MOMENT_OBSERVATION:
        put(&sizes[0], "observation queries", TW_CATEGORY_COMPRESSION, query_width * options->window);
        put(&sizes[1], "observation maxima", TW_CATEGORY_COMPRESSION, c->n_heads * options->window);
        put(&sizes[2], "observation sums", TW_CATEGORY_COMPRESSION, c->n_heads * options->window);
        return 3;
    case TW_MOMENT_LAYER:
        for (size_t m = 0; m < REF_N_MATRICES; m++)
            put(&sizes[m], "unpacked layer", TW_CATEGORY_UNPACKED_LAYER,
                tw_ref_panels_floats(tw_ref_matrix_of(&model->layers[of->layer], (enum tw_ref_matrix)m)));
        return REF_N_MATRICES;
    case TW_MOMENT_ATTEND: /* the scores that eager attention materialises */
        put(&sizes[0], "eager attention scores", TW_CATEGORY_CHUNK,
            options->attention == TW_ATTENTION_EAGER ? c->n_heads * of->n * of->n_keys : 0);
        return 1;
    default: return 0;
    }
}

const struct tw_backend_image tw_ref_image = {
    .name = "ref", .dry_source = &tw_memory_dry, .resolve = resolve, .buffers = buffers};
