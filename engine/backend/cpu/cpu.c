/* The cpu backend: opening, memory, and the table. */
#include "engine/backend/cpu/cpu.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <dnnl_version.h>

#include "base/checked.h"
#include "base/half.h"

/* ---- opening ---- */

static void fill_rope(struct tw_backend *b) {
    const size_t half = b->shape.head_dim / 2, table_size = TW_CPU_MOST_BLOCK_ROWS * b->shape.head_dim;
    double *table = b->open.buffer[TW_CPU_OPEN_ROPE].data;
    size_t n = 0;
    for (size_t l = 0; l < b->model->config.n_layers; l++) {
        const double *divisor = b->model->layers[l].rope_divisor;
        size_t i = 0;
        while (i < n && b->rope[i].divisor != divisor) i++;
        b->rope_of_layer[l] = i;
        if (i < n) continue;
        double *out = table + n * table_size;
        for (size_t p = 0; p < TW_CPU_MOST_BLOCK_ROWS; p++)
            for (size_t j = 0; j < half; j++) {
                out[p * 2 * half + j] = cos((double)p / divisor[j]);
                out[(p * 2 + 1) * half + j] = sin((double)p / divisor[j]);
            }
        b->rope[n++] = (struct tw_cpu_rope){.divisor = divisor, .table = out};
    }
}

static tw_status create_products(struct tw_backend *b, struct tw_error *err) {
    const struct tw_cpu_shape *s = &b->shape;
    bool post_attention = false, post_mlp = false;
    for (size_t l = 0; l < b->model->config.n_layers; l++) {
        const struct tw_layer_weights *layer = &b->model->layers[l];
        post_attention = post_attention || layer->post_attention_norm;
        post_mlp = post_mlp || layer->post_mlp_norm;
    }
    b->bias = tw_cpu_has_bias(b->model);
    struct tw_cpu_product_shape shapes[TW_CPU_N_MATRICES];
    tw_cpu_product_shapes(shapes, s, b->bias);
    TW_TRY(tw_cpu_products_create(&b->products, b->level, s->n_threads, err));
    for (int m = 0; m < TW_CPU_N_MATRICES; m++) {
        TW_TRY(tw_cpu_product_create(&b->product[m], b->products, &shapes[m], err));
        if ((m == TW_CPU_OUTPUT && post_attention) || (m == TW_CPU_DOWN && post_mlp)) {
            struct tw_cpu_product_shape plain = shapes[m];
            plain.add = false;
            TW_TRY(tw_cpu_product_create(&b->plain_product[m], b->products, &plain, err));
        }
    }
    return TW_OK;
}

static void cpu_close(struct tw_backend *b) {
    if (!b) return;
    for (int m = 0; m < TW_CPU_N_MATRICES; m++) {
        tw_cpu_product_free(b->product[m]);
        tw_cpu_product_free(b->plain_product[m]);
    }
    tw_cpu_products_free(b->products);
    tw_buffers_release(&b->decode_log, b->accountant);
    tw_buffers_release(&b->decode_row, b->accountant);
    tw_buffers_release(&b->layer, b->accountant);
    tw_buffers_release(&b->chunk, b->accountant);
    tw_buffers_release(&b->open, b->accountant);
    tw_team_free(b->team);
    free(b->inputs);
    free(b->rope);
    free(b->rope_of_layer);
    free(b);
}

static tw_status cpu_open(struct tw_backend **backend, const struct tw_model *model,
                          const struct tw_backend_options *options, struct tw_accountant *accountant,
                          struct tw_error *err) {
    *backend = NULL;
    if (!model->embedding.data)
        return TW_FAIL(err, TW_E_UNSUPPORTED, "model '%s' has no weights, only its configuration", model->path);
    struct tw_backend *b = calloc(1, sizeof *b);
    if (!b) return TW_FAIL(err, TW_E_MEMORY, "out of memory: backend 'cpu'");
    tw_status status;
    b->model = model;
    b->options = *options;
    b->accountant = accountant;
    b->rotated_position = SIZE_MAX;
    TW_TRY_GOTO(status, fail, tw_cpu_level_choose(&b->level, err));
    TW_TRY_GOTO(status, fail, tw_cpu_image.resolve(&b->options, model, err));
    const bool bf16 = b->options.dtype == TW_DTYPE_BF16;
    tw_cpu_shape_init(&b->shape, model, bf16 ? 2 : 4, b->options.n_threads, b->options.window, b->options.whole_rows,
                      b->level);
    tw_cpu_scratch_of_model(&b->scratch, model, &b->shape, b->level);
    tw_cpu_decode_layout(&b->decode, &b->shape);
    b->float_kernels = tw_cpu_kernels_f32(b->level);
    b->kernels = bf16 ? tw_cpu_kernels_bf16(b->level) : b->float_kernels;
    b->common = tw_cpu_common(b->level);
    b->scale = (float)(model->config.attention_scale * 1.44269504088896340736);
    TW_TRY_GOTO(status, fail, tw_team_create(&b->team, b->options.n_threads, err));
    accountant->source = tw_memory_host;
    b->rope = calloc(b->shape.n_rope_tables, sizeof *b->rope);
    b->rope_of_layer = calloc(model->config.n_layers, sizeof *b->rope_of_layer);
    b->inputs = aligned_alloc(64, b->options.n_threads * sizeof *b->inputs);
    if (!b->rope || !b->rope_of_layer || !b->inputs) {
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory: backend 'cpu'");
        goto fail;
    }
    TW_TRY_GOTO(status, fail,
                tw_buffers_allocate(&b->open, accountant, &tw_cpu_image, model, &b->options,
                                    &(struct tw_moment_of){.moment = TW_MOMENT_OPEN}, err));
    for (size_t i = TW_CPU_OPEN_SCRATCH; i < TW_CPU_N_OPEN; i++)
        if (b->open.buffer[i].data) memset(b->open.buffer[i].data, 0, b->open.buffer[i].bytes);
    memset(b->inputs, 0, b->options.n_threads * sizeof *b->inputs);
    fill_rope(b);
    TW_TRY_GOTO(status, fail, create_products(b, err));
    *backend = b;
    return TW_OK;
fail:
    cpu_close(b);
    return status;
}

static enum tw_dtype cpu_dtype(const struct tw_backend *backend) { return backend->options.dtype; }

static struct tw_team *cpu_team(const struct tw_backend *backend) { return backend->team; }

static void describe(const struct tw_backend *b, struct tw_text *text) {
    const bool bf16 = b->options.dtype == TW_DTYPE_BF16;
    tw_text_printf(text, "%s, %s kernels, oneDNN %d.%d, %zu thread%s", bf16 ? "bf16" : "float32",
                   tw_cpu_level_names[b->level], DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, b->options.n_threads,
                   b->options.n_threads == 1 ? "" : "s");
    if (!bf16 && b->level < TW_CPU_AVX512BF16) tw_text_printf(text, ", no bf16 arithmetic at this level");
}

/* ---- memory ---- */

static void release_decoding(struct tw_backend *b) {
    tw_buffers_release(&b->decode_row, b->accountant);
    tw_buffers_release(&b->decode_log, b->accountant);
}

static void chunk_release(struct tw_backend *b) { tw_buffers_release(&b->chunk, b->accountant); }

static tw_status chunk_create(struct tw_backend *b, size_t max_rows, struct tw_error *err) {
    chunk_release(b);
    release_decoding(b);
    TW_TRY(tw_buffers_allocate(&b->chunk, b->accountant, &tw_cpu_image, b->model, &b->options,
                               &(struct tw_moment_of){.moment = TW_MOMENT_CHUNK, .n = max_rows}, err));
    tw_cpu_chunk_layout(&b->chunk_layout, &b->shape, max_rows);
    memset(b->chunk.buffer[0].data, 0, b->chunk.buffer[0].bytes);
    return TW_OK;
}

static tw_status bridge_create(struct tw_backend *b, struct tw_bridge *bridge, size_t n_rows, struct tw_error *err) {
    return tw_image_bridge_create(bridge, b->accountant, &tw_cpu_image, b->model, &b->options, n_rows, err);
}

static void bridge_release(struct tw_backend *b, struct tw_bridge *bridge) {
    tw_buffer_release(&bridge->data, b->accountant);
    memset(bridge, 0, sizeof *bridge);
}

static tw_status bridge_copy(struct tw_backend *b, struct tw_bridge *to, size_t to_row, const struct tw_bridge *from,
                             size_t from_row, size_t n, struct tw_error *err) {
    (void)err;
    assert(to_row + n <= to->n_rows && from_row + n <= from->n_rows);
    memcpy(tw_cpu_bridge_row(b, to, to_row), tw_cpu_bridge_row(b, from, from_row),
           n * b->shape.n_embd * b->shape.element_bytes);
    return TW_OK;
}

static tw_status kv_create(struct tw_backend *b, struct tw_kv *kv, const size_t *capacity, bool with_positions,
                           enum tw_category category, const char *what, struct tw_error *err) {
    return tw_image_kv_create(kv, b->accountant, &tw_cpu_image, b->model, &b->options, capacity, with_positions,
                              category, what, err);
}

static void kv_release(struct tw_backend *b, struct tw_kv *kv) { tw_kv_release(kv, b->accountant); }

static tw_status observation_create(struct tw_backend *b, struct tw_observation *observation, struct tw_error *err) {
    return tw_image_observation_create(observation, b->accountant, &tw_cpu_image, b->model, &b->options, err);
}

static void observation_release(struct tw_backend *b, struct tw_observation *observation) {
    tw_image_observation_release(observation, b->accountant);
}

/* ---- small things that all need ---- */

size_t tw_cpu_row_at(const struct tw_kv *kv, size_t g, size_t position) {
    size_t low = 0, high = kv->length[g];
    if (!kv->position) return tw_min_size(position, high);
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if ((size_t)kv->position[g][middle] < position)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void tw_cpu_visible(size_t *first, size_t *end, const struct tw_kv *kv, size_t g, size_t n_rows, size_t position,
                    size_t sliding_window) {
    *end = tw_min_size(n_rows, tw_cpu_row_at(kv, g, position + 1));
    *first = sliding_window && position >= sliding_window ? tw_cpu_row_at(kv, g, position - sliding_window + 1) : 0;
}

void tw_cpu_seal(const struct tw_backend *b, struct tw_kv *kv) {
    if (b->shape.element_bytes != 2) return;
    const size_t width = tw_cpu_value_width(kv->head_dim);
    for (size_t g = 0; g < kv->n_kv_heads; g++) {
        if (kv->length[g] % 2 == 0) continue;
        uint16_t *pair = (uint16_t *)(void *)tw_cpu_value_of(b, kv, g) + kv->length[g] / 2 * width * 2;
        for (size_t i = 0; i < width; i++) pair[2 * i + 1] = 0;
    }
}

/*
 * cos(a + b) and sin(a + b) from those of the block's first position (a) and of the place in the block (b), in float64:
 * no table grows with the prompt, and every value is what float64 gives.
 */
void tw_cpu_rotation(const struct tw_backend *b, float *rotation, size_t rope, size_t position, size_t n) {
    const size_t d = b->shape.head_dim, half = d / 2;
    const size_t base = position / TW_CPU_MOST_BLOCK_ROWS * TW_CPU_MOST_BLOCK_ROWS;
    const bool interleaved = b->model->config.rope_pairs == TW_ROPE_INTERLEAVED;
    assert(position - base + n <= TW_CPU_MOST_BLOCK_ROWS);
    for (size_t from = 0; from < half; from += 64) {
        double cosine[64], sine[64];
        const size_t count = tw_min_size(64, half - from);
        for (size_t j = 0; j < count; j++) {
            const double angle = (double)base / b->rope[rope].divisor[from + j];
            cosine[j] = cos(angle);
            sine[j] = sin(angle);
        }
        for (size_t i = 0; i < n; i++) {
            const double *c = b->rope[rope].table + (position - base + i) * d + from, *s = c + half;
            float *own = rotation + i * 2 * d, *partner = own + d;
            for (size_t j = 0; j < count; j++) {
                const float both_cosine = (float)(cosine[j] * c[j] - sine[j] * s[j]);
                const float both_sine = (float)(sine[j] * c[j] + cosine[j] * s[j]);
                const size_t low = interleaved ? 2 * (from + j) : from + j;
                const size_t high = interleaved ? low + 1 : low + half;
                own[low] = own[high] = both_cosine;
                partner[low] = -both_sine;
                partner[high] = both_sine;
            }
        }
    }
}

void tw_cpu_expand_row(const struct tw_backend *b, float *out, const struct tw_matrix *matrix, size_t row) {
    const uint8_t *data = matrix->data + row * matrix->row_bytes;
    tw_cpu_expand_fn *fast = b->common->expand[matrix->type];
    if (fast)
        fast(out, data, matrix->n_columns);
    else
        tw_type_traits(matrix->type)->dequantise(out, data, matrix->n_columns);
}

void tw_cpu_input_for(const struct tw_backend *b, struct tw_cpu_input *input, const struct tw_matrix *matrix) {
    tw_cpu_fix_fn *fix = b->common->fix[matrix->type];
    if (!fix || input->made == fix) return;
    fix(input->fixed, input->x, input->n);
    input->made = fix;
}

/* A row of a type that has no kernel of its own, piece by piece through float32. */
static float dot_generic(const struct tw_backend *b, enum tw_type type, const uint8_t *row, const float *x, size_t n) {
    const struct tw_type_traits *traits = tw_type_traits(type);
    float sum = 0, piece[256]; /* a whole number of blocks of any type */
    for (size_t at = 0; at < n; at += 256) {
        const size_t here = tw_min_size(256, n - at);
        traits->dequantise(piece, row + tw_type_row_bytes(traits, at), here);
        sum += b->common->dot_float(piece, x + at, here);
    }
    return sum;
}

void tw_cpu_rows(const struct tw_backend *b, float *out, const struct tw_matrix *matrix, size_t first, size_t n,
                 const struct tw_cpu_input *input) {
    const uint8_t *row = matrix->data + first * matrix->row_bytes;
    tw_cpu_fixed_rows_fn *fixed = b->common->fixed_rows[matrix->type];
    if (fixed) {
        fixed(out, row, matrix->row_bytes, n, input->fixed, matrix->n_columns);
        return;
    }
    tw_cpu_dot_fn *fast = b->common->dot[matrix->type];
    for (size_t i = 0; i < n; i++, row += matrix->row_bytes)
        out[i] = fast ? fast(row, input->x, matrix->n_columns)
                      : dot_generic(b, matrix->type, row, input->x, matrix->n_columns);
}

const struct tw_backend_ops tw_backend_cpu = {
    .name = "cpu",
    .summary = "oneDNN and own kernels in AVX-512, AVX2 or plain C, bf16 or float32",
    .image = &tw_cpu_image,
    .open = cpu_open,
    .close = cpu_close,
    .dtype = cpu_dtype,
    .describe = describe,
    .team = cpu_team,
    .chunk_create = chunk_create,
    .chunk_release = chunk_release,
    .bridge_create = bridge_create,
    .bridge_release = bridge_release,
    .bridge_copy = bridge_copy,
    .kv_create = kv_create,
    .kv_release = kv_release,
    .observation_create = observation_create,
    .observation_release = observation_release,
    .embed = tw_cpu_embed,
    .layer_begin = tw_cpu_layer_begin,
    .layer_end = tw_cpu_layer_end,
    .append = tw_cpu_append,
    .attend = tw_cpu_attend,
    .finish = tw_cpu_finish,
    .observe = tw_cpu_observe,
    .score = tw_cpu_score,
    .key_mean = tw_cpu_key_mean,
    .gather = tw_cpu_gather,
    .log_row = tw_cpu_log_row,
    .logits = tw_cpu_logits,
    .decode_begin = tw_cpu_decode_begin,
    .decode_layer = tw_cpu_decode_layer,
    .decode_logits = tw_cpu_decode_logits,
    .read_hidden = tw_cpu_read_hidden,
    .read_decode_hidden = tw_cpu_read_decode_hidden,
    .read_kv = tw_cpu_read_kv,
    .write_kv = tw_cpu_write_kv,
    .write_observation = tw_cpu_write_observation,
};
