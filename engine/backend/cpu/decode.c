/*
 * Decoding, one token: float32 state, products straight from the stored rows, each stage of a layer a loop of the team.
 * A row is one task's and attention is cut into fixed ranges that are merged in order, so that results do not depend on
 * the number of threads.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "engine/backend/cpu/log.h"

static float *state(const struct tw_backend *b, size_t offset) {
    return (float *)(void *)((char *)b->open.buffer[TW_CPU_OPEN_STATE].data + offset);
}
static float *normed_of(const struct tw_backend *b) { return state(b, b->decode.normed); }

/* x [n] is what rows are multiplied with from here on. */
static void begin_vector(struct tw_backend *b, const float *x, size_t n) {
    b->vector = x;
    b->vector_length = n;
    b->n_vectors++;
}
/* The thread's own form of it. */
static struct tw_cpu_input *input_of(struct tw_backend *b, size_t thread) {
    struct tw_cpu_thread_input *own = &b->inputs[thread];
    if (own->vector != b->n_vectors) {
        own->vector = b->n_vectors;
        own->input = (struct tw_cpu_input){.x = b->vector,
                                           .n = b->vector_length,
                                           .fixed = (char *)state(b, b->decode.fixed) + thread * b->decode.fixed_bytes};
    }
    return &own->input;
}
static float epsilon(const struct tw_backend *b) { return (float)b->model->config.norm_epsilon; }

/* Rows of a task, which keep threads out of each other's cache lines; threads take most of their share at once.
 */
#define STEP 16
#define ANY  SIZE_MAX

tw_status tw_cpu_decode_begin(struct tw_backend *b, int32_t token, struct tw_error *err) {
    (void)err;
    assert(token >= 0 && (size_t)token < b->model->embedding.n_rows);
    float *hidden = state(b, b->decode.hidden);
    tw_cpu_expand_row(b, hidden, &b->model->embedding, (size_t)token);
    b->common->scale(hidden, b->shape.n_embd, b->model->config.embedding_scale);
    return TW_OK;
}

/* Buffers of a step that depend on the rows and on the log; kept from layer to layer and step to step. */
static tw_status hold_buffers(struct tw_backend *b, size_t n_rows, const struct tw_attention_log *log,
                              struct tw_error *err) {
    if (!b->decode_row.n || b->row_layout.rows < n_rows) {
        tw_buffers_release(&b->decode_row, b->accountant);
        TW_TRY(tw_buffers_allocate(&b->decode_row, b->accountant, &tw_cpu_image, b->model, &b->options,
                                   &(struct tw_moment_of){.moment = TW_MOMENT_DECODE_LAYER, .n_keys = n_rows}, err));
        tw_cpu_row_layout(&b->row_layout, &b->shape, n_rows);
    }
    if (log && (!b->decode_log.n || b->decode_top_k != log->top_k)) {
        tw_buffers_release(&b->decode_log, b->accountant);
        TW_TRY(tw_buffers_allocate(&b->decode_log, b->accountant, &tw_cpu_image, b->model, &b->options,
                                   &(struct tw_moment_of){.moment = TW_MOMENT_LOG_ROW, .n = log->top_k}, err));
        b->decode_top_k = log->top_k;
    }
    return TW_OK;
}

static const float *rotation_of(struct tw_backend *b, size_t l, size_t position) {
    float *tables = state(b, b->decode.rotation);
    const size_t table = 2 * b->shape.head_dim;
    if (b->rotated_position != position) {
        for (size_t i = 0; i < b->shape.n_rope_tables; i++) tw_cpu_rotation(b, tables + i * table, i, position, 1);
        b->rotated_position = position;
    }
    return tables + b->rope_of_layer[l] * table;
}

static void add(float *out, const float *in, size_t n) {
    if (in)
        for (size_t i = 0; i < n; i++) out[i] += in[i];
}

/* One head: norm (if any), rotation, in float32, in place. */
static void rotate_head(const struct tw_backend *b, float *head, const float *weight, const float *rotation) {
    const size_t d = b->shape.head_dim, half = d / 2;
    const float *own = rotation, *partner = rotation + d;
    if (weight) {
        float square = 0;
        for (size_t i = 0; i < d; i++) square += head[i] * head[i];
        const float factor = 1.0f / sqrtf(square / (float)d + epsilon(b));
        for (size_t i = 0; i < d; i++) head[i] *= factor * weight[i];
    }
    const bool interleaved = b->model->config.rope_pairs == TW_ROPE_INTERLEAVED;
    for (size_t j = 0; j < half; j++) {
        const size_t low = interleaved ? 2 * j : j, high = interleaved ? low + 1 : low + half;
        const float x = head[low], y = head[high];
        head[low] = x * own[low] + y * partner[low];
        head[high] = y * own[high] + x * partner[high];
    }
}

struct step {
    struct tw_backend *b;
    const struct tw_layer_weights *weights;
    struct tw_kv *kv;
    size_t position;
    struct tw_attention_log *log;
    const float *rotation;
    size_t sliding_window;
    float *out; /* of a product with the vector */
    bool adds;  /* to what is there */
};

/* Rows [first, end) of matrices that stand one above the other; out[row]. */
static void stacked_rows(const struct tw_backend *b, float *out, const struct tw_matrix *const *matrices, size_t n,
                         struct tw_cpu_input *input, size_t first, size_t end) {
    size_t top = 0;
    for (size_t m = 0; m < n; m++) {
        const size_t from = tw_max_size(first, top), to = tw_min_size(end, top + matrices[m]->n_rows);
        if (from < to) {
            tw_cpu_input_for(b, input, matrices[m]);
            tw_cpu_rows(b, out + from, matrices[m], from - top, to - from, input);
        }
        top += matrices[m]->n_rows;
    }
}

/* Biases, norms, rotation; appends the key and the value; leaves the queries scaled for the softmax in powers of two.
 */
static void append_token(const struct step *s) {
    const struct tw_backend *b = s->b;
    const size_t d = b->shape.head_dim, n_heads = b->shape.n_heads, n_kv_heads = b->shape.n_kv_heads;
    float *query = state(b, b->decode.qkv), *key = query + n_heads * d, *value = key + n_kv_heads * d;
    add(query, s->weights->query_bias, n_heads * d);
    add(key, s->weights->key_bias, n_kv_heads * d);
    add(value, s->weights->value_bias, n_kv_heads * d);
    for (size_t h = 0; h < n_heads; h++) rotate_head(b, query + h * d, s->weights->query_norm, s->rotation);
    b->common->scale(query, n_heads * d, b->scale);
    for (size_t g = 0; g < n_kv_heads; g++) {
        rotate_head(b, key + g * d, s->weights->key_norm, s->rotation);
        b->kernels->store_key(tw_cpu_key_of(b, s->kv, g), s->kv->length[g], key + g * d, d);
        b->kernels->store_value(tw_cpu_value_of(b, s->kv, g), s->kv->length[g], value + g * d, d);
    }
    tw_kv_extend(s->kv, s->position, 1);
}

static float *row_piece(const struct tw_backend *b, size_t offset) {
    return (float *)(void *)((char *)b->decode_row.buffer[0].data + offset);
}

/* The first key of an attention task, range by range the KV heads; NULL behind the last one. */
static const char *keys_of_task(const struct step *s, size_t task) {
    const size_t g = task % s->kv->n_kv_heads, row = task / s->kv->n_kv_heads * TW_CPU_KEY_RANGE;
    if (row >= s->kv->length[g]) return NULL;
    return tw_cpu_key_of(s->b, s->kv, g) + row * s->b->shape.head_dim * s->b->shape.element_bytes;
}

static void attend_range(const struct step *s, size_t task) {
    const struct tw_backend *b = s->b;
    const size_t g = task % s->kv->n_kv_heads, range = task / s->kv->n_kv_heads;
    const struct tw_cpu_row_layout *layout = &b->row_layout;
    const size_t d = b->shape.head_dim, group = tw_cpu_group(b), h = g * group, slot = range * b->shape.n_heads + h;
    size_t first, end;
    tw_cpu_visible(&first, &end, s->kv, g, s->kv->length[g], s->position, s->sliding_window);
    first = tw_max_size(first, range * TW_CPU_KEY_RANGE);
    end = tw_min_size(end, (range + 1) * TW_CPU_KEY_RANGE);
    if (first >= end) {
        for (size_t i = 0; i < group; i++) {
            row_piece(b, layout->peak)[slot + i] = -INFINITY;
            row_piece(b, layout->sum)[slot + i] = 0;
        }
        return;
    }
    b->kernels->range(&(struct tw_cpu_range){
        .query = state(b, b->decode.qkv) + h * d,
        .n_group = group,
        .head_dim = d,
        .key = tw_cpu_key_of(b, s->kv, g),
        .value = tw_cpu_value_of(b, s->kv, g),
        .next = keys_of_task(s, task + 1),
        .first = first,
        .end = end,
        .row = row_piece(b, layout->row) + h * layout->rows + range * TW_CPU_KEY_RANGE,
        .row_stride = layout->rows,
        .peak = row_piece(b, layout->peak) + slot,
        .sum = row_piece(b, layout->sum) + slot,
        .output = row_piece(b, layout->output) + slot * tw_cpu_value_width(d),
    });
}

/* Merges the ranges of head h, in order; leaves, in place of a range's sum, what makes its row the whole row's weights.
 */
static void merge_ranges(const struct step *s, size_t h) {
    const struct tw_backend *b = s->b;
    const struct tw_cpu_row_layout *layout = &b->row_layout;
    const size_t d = b->shape.head_dim, width = tw_cpu_value_width(d), g = h / tw_cpu_group(b);
    const size_t n_ranges = tw_divide_up(s->kv->length[g], TW_CPU_KEY_RANGE);
    const float *peak = row_piece(b, layout->peak);
    float *sum = row_piece(b, layout->sum);
    float *out = state(b, b->decode.attended) + h * d, most = -INFINITY, total = 0;
    for (size_t r = 0; r < n_ranges; r++) most = fmaxf(most, peak[r * b->shape.n_heads + h]);
    for (size_t r = 0; r < n_ranges; r++)
        if (sum[r * b->shape.n_heads + h] > 0)
            total += sum[r * b->shape.n_heads + h] * exp2f(peak[r * b->shape.n_heads + h] - most);
    memset(out, 0, d * sizeof *out);
    for (size_t r = 0; r < n_ranges; r++) {
        const size_t slot = r * b->shape.n_heads + h;
        if (!(sum[slot] > 0)) continue;
        const float factor = sum[slot] = exp2f(peak[slot] - most) / total;
        const float *part = row_piece(b, layout->output) + slot * width;
        for (size_t j = 0; j < d; j++) out[j] += part[j] * factor;
    }
}

static void log_head(const struct step *s, size_t h, size_t thread) {
    const struct tw_backend *b = s->b;
    const struct tw_cpu_row_layout *row_layout = &b->row_layout;
    const size_t g = h / tw_cpu_group(b);
    float *row = row_piece(b, row_layout->row) + h * row_layout->rows;
    const float *factor = row_piece(b, row_layout->sum);
    struct tw_cpu_log_layout layout;
    size_t first, end;
    tw_cpu_log_layout(&layout, &b->shape, s->log->top_k);
    tw_cpu_visible(&first, &end, s->kv, g, s->kv->length[g], s->position, s->sliding_window);
    for (size_t r = first / TW_CPU_KEY_RANGE; r * TW_CPU_KEY_RANGE < end; r++)
        b->common->scale(row + r * TW_CPU_KEY_RANGE, TW_CPU_KEY_RANGE, factor[r * b->shape.n_heads + h]);
    tw_cpu_log_head(b, s->log, h, s->kv, g, row, first, end, s->position,
                    (char *)b->decode_log.buffer[0].data + layout.workspace + thread * layout.workspace_bytes);
}

/* ---- a layer's loops ---- */

static void qkv_steps(void *context, size_t first, size_t end, size_t thread) {
    const struct step *s = context;
    const struct tw_matrix *const matrices[] = {&s->weights->query, &s->weights->key, &s->weights->value};
    stacked_rows(s->b, state(s->b, s->b->decode.qkv), matrices, 3, input_of(s->b, thread), first * STEP,
                 tw_min_size(end * STEP, tw_cpu_qkv_width(&s->b->shape)));
}

static void attend_tasks(void *context, size_t first, size_t end, size_t thread) {
    (void)thread;
    const struct step *s = context;
    for (size_t task = first; task < end; task++) attend_range(s, task);
}

static void merge_tasks(void *context, size_t first, size_t end, size_t thread) {
    (void)thread;
    for (size_t h = first; h < end; h++) merge_ranges(context, h);
}

/* out[row] = row times the vector; or, adding to the hidden state at once, hidden[row] += it. */
static void project(const struct step *s, const struct tw_matrix *matrix, size_t first, size_t end, size_t thread) {
    struct tw_backend *b = s->b;
    struct tw_cpu_input *input = input_of(b, thread);
    tw_cpu_input_for(b, input, matrix);
    end = tw_min_size(end, matrix->n_rows);
    for (size_t r = first; r < end; r += STEP) {
        const size_t n = tw_min_size(STEP, end - r);
        float y[STEP];
        tw_cpu_rows(b, y, matrix, r, n, input);
        for (size_t i = 0; i < n; i++) s->out[r + i] = s->adds ? s->out[r + i] + y[i] : y[i];
    }
}

/* Steps of rows, with the log's heads spread among them: they take longer, and fill what rows leave uneven. */
static void output_steps(void *context, size_t first, size_t end, size_t thread) {
    const struct step *s = context;
    const size_t n_logged = s->log ? s->b->shape.n_heads : 0;
    const size_t n = n_logged + tw_divide_up(s->weights->output.n_rows, STEP);
    for (size_t task = first; task < end; task++) {
        const size_t head = task * n_logged / n, row = (task - head) * STEP;
        if ((task + 1) * n_logged / n > head)
            log_head(s, head, thread);
        else
            project(s, &s->weights->output, row, row + STEP, thread);
    }
}

/* Rows of gate and up side by side, so that the activation takes both in one call. */
static void gate_and_up_steps(void *context, size_t first, size_t end, size_t thread) {
    const struct step *s = context;
    struct tw_backend *b = s->b;
    first *= STEP;
    end = tw_min_size(end * STEP, b->shape.n_mlp);
    float *gate = state(b, b->decode.wide) + 2 * first, *up = gate + (end - first);
    const struct tw_matrix *const matrices[] = {&s->weights->gate, &s->weights->up};
    float *const outputs[] = {gate, up};
    struct tw_cpu_input *input = input_of(b, thread);
    for (int m = 0; m < 2; m++) {
        tw_cpu_input_for(b, input, matrices[m]);
        tw_cpu_rows(b, outputs[m], matrices[m], first, end - first, input);
    }
    b->float_kernels->activate(state(b, b->decode.activated) + first, gate, 1, end - first,
                               b->model->config.activation);
}

static void down_steps(void *context, size_t first, size_t end, size_t thread) {
    const struct step *s = context;
    project(s, &s->weights->down, first * STEP, end * STEP, thread);
}

/* Adds a product to the hidden state: at once, or behind its norm where the architecture has one. */
static void add_product(struct step *s, const float *x, size_t n, const float *post_norm, size_t n_tasks,
                        tw_team_fn *steps) {
    struct tw_backend *b = s->b;
    float *hidden = state(b, b->decode.hidden), *projected = state(b, b->decode.projected);
    s->adds = post_norm == NULL;
    s->out = s->adds ? hidden : projected;
    begin_vector(b, x, n);
    tw_team_run(b->team, n_tasks, ANY, steps, s);
    if (post_norm) b->float_kernels->add_normed(hidden, projected, post_norm, 1, b->shape.n_embd, epsilon(b));
}

tw_status tw_cpu_decode_layer(struct tw_backend *b, size_t l, struct tw_kv *kv, size_t position,
                              struct tw_attention_log *log, struct tw_error *err) {
    const struct tw_layer_weights *weights = &b->model->layers[l];
    const size_t n_embd = b->shape.n_embd, n_steps = tw_divide_up(n_embd, STEP);
    TW_TRY(hold_buffers(b, tw_kv_longest(kv) + 1, log, err));
    struct step s = {.b = b,
                     .weights = weights,
                     .kv = kv,
                     .position = position,
                     .log = log,
                     .rotation = rotation_of(b, l, position),
                     .sliding_window = weights->sliding_window};
    const float *hidden = state(b, b->decode.hidden);
    float *normed = normed_of(b);

    b->float_kernels->norm(normed, hidden, weights->attention_norm, 1, n_embd, epsilon(b));
    begin_vector(b, normed, n_embd);
    tw_team_run(b->team, tw_divide_up(tw_cpu_qkv_width(&b->shape), STEP), ANY, qkv_steps, &s);
    append_token(&s);
    tw_team_run(b->team, tw_divide_up(tw_kv_longest(kv), TW_CPU_KEY_RANGE) * kv->n_kv_heads, 1, attend_tasks, &s);
    tw_team_run(b->team, b->shape.n_heads, 1, merge_tasks, &s);
    add_product(&s, state(b, b->decode.attended), weights->output.n_columns, weights->post_attention_norm,
                n_steps + (log ? b->shape.n_heads : 0), output_steps);

    b->float_kernels->norm(normed, hidden, weights->mlp_norm, 1, n_embd, epsilon(b));
    begin_vector(b, normed, n_embd);
    tw_team_run(b->team, tw_divide_up(b->shape.n_mlp, STEP), ANY, gate_and_up_steps, &s);
    add_product(&s, state(b, b->decode.activated), b->shape.n_mlp, weights->post_mlp_norm, n_steps, down_steps);
    return TW_OK;
}

/* ---- logits ---- */

/* Input i of several that lie `stride` bytes apart. */
static struct tw_cpu_input input_at(const struct tw_cpu_input *first, size_t stride, size_t i) {
    struct tw_cpu_input input = *first;
    input.x = (const float *)(const void *)((const char *)first->x + i * stride);
    input.fixed = (char *)first->fixed + i * stride;
    return input;
}

/* logits [n][n_vocab] of n inputs, the first of them given: every weight row is read once and used n times. */
struct output {
    const struct tw_backend *b;
    float *logits;
    const struct tw_cpu_input *inputs;
    size_t stride, n;
};

static void logit_steps(void *context, size_t first, size_t end, size_t thread) {
    (void)thread;
    const struct output *o = context;
    const size_t n_vocab = o->b->model->config.n_vocab;
    end = tw_min_size(end * STEP, n_vocab);
    for (size_t r = first * STEP; r < end; r += STEP)
        for (size_t i = 0; i < o->n; i++) {
            const struct tw_cpu_input input = input_at(o->inputs, o->stride, i);
            tw_cpu_rows(o->b, o->logits + i * n_vocab + r, &o->b->model->output, r, tw_min_size(STEP, end - r), &input);
        }
}

static void output_rows(struct output *o) {
    for (size_t i = 0; i < o->n; i++) {
        struct tw_cpu_input input = input_at(o->inputs, o->stride, i);
        tw_cpu_input_for(o->b, &input, &o->b->model->output);
    }
    tw_team_run(o->b->team, tw_divide_up(o->b->model->config.n_vocab, STEP), ANY, logit_steps, o);
}

tw_status tw_cpu_decode_logits(struct tw_backend *b, float *logits, struct tw_error *err) {
    (void)err;
    float *normed = normed_of(b);
    b->float_kernels->norm(normed, state(b, b->decode.hidden), b->model->output_norm, 1, b->shape.n_embd, epsilon(b));
    begin_vector(b, normed, b->shape.n_embd);
    output_rows(&(struct output){.b = b, .logits = logits, .inputs = input_of(b, 0), .n = 1});
    return TW_OK;
}

/* out [n][stride] float32 of bridge rows, after the final norm if wanted. */
static void bridge_rows(const struct tw_backend *b, float *out, size_t stride, const struct tw_bridge *bridge,
                        size_t first_row, size_t n, bool normed) {
    for (size_t i = 0; i < n; i++) {
        float *row = out + i * stride;
        b->kernels->to_float(row, tw_cpu_bridge_row(b, bridge, first_row + i), b->shape.n_embd);
        if (!normed) continue;
        float *copy = (float *)(void *)(tw_cpu_scratch_of(b, 0) + b->scratch.row);
        memcpy(copy, row, b->shape.n_embd * sizeof *copy);
        b->float_kernels->norm(row, copy, b->model->output_norm, 1, b->shape.n_embd, epsilon(b));
    }
}

tw_status tw_cpu_logits(struct tw_backend *b, const struct tw_bridge *bridge, size_t first_row, size_t n, float *logits,
                        struct tw_error *err) {
    assert(first_row + n <= bridge->n_rows);
    struct tw_buffers buffers;
    TW_TRY(tw_buffers_allocate(&buffers, b->accountant, &tw_cpu_image, b->model, &b->options,
                               &(struct tw_moment_of){.moment = TW_MOMENT_LOGITS, .n = n}, err));
    if (n) {
        memset(buffers.buffer[0].data, 0, buffers.buffer[0].bytes);
        const size_t stride = tw_cpu_logits_row_bytes(&b->shape);
        const struct tw_cpu_input input = {.x = buffers.buffer[0].data,
                                           .n = b->shape.n_embd,
                                           .fixed = (char *)buffers.buffer[0].data + stride -
                                                    tw_cpu_fixed_bytes(b->shape.n_embd)};
        bridge_rows(b, buffers.buffer[0].data, stride / sizeof(float), bridge, first_row, n, true);
        output_rows(&(struct output){b, logits, &input, stride, n});
    }
    tw_buffers_release(&buffers, b->accountant);
    return TW_OK;
}

/* ---- looking ---- */

tw_status tw_cpu_read_hidden(struct tw_backend *b, const struct tw_bridge *bridge, size_t first_row, size_t n,
                             bool normed, float *hidden, struct tw_error *err) {
    (void)err;
    assert(first_row + n <= bridge->n_rows);
    bridge_rows(b, hidden, b->shape.n_embd, bridge, first_row, n, normed);
    return TW_OK;
}

tw_status tw_cpu_read_decode_hidden(struct tw_backend *b, bool normed, float *hidden, struct tw_error *err) {
    (void)err;
    const float *state_hidden = state(b, b->decode.hidden);
    if (normed)
        b->float_kernels->norm(hidden, state_hidden, b->model->output_norm, 1, b->shape.n_embd, epsilon(b));
    else
        memcpy(hidden, state_hidden, b->shape.n_embd * sizeof *hidden);
    return TW_OK;
}

tw_status tw_cpu_read_kv(struct tw_backend *b, const struct tw_kv *kv, bool values, size_t head, size_t first, size_t n,
                         float *out, struct tw_error *err) {
    (void)err;
    assert(first + n <= kv->length[head]);
    for (size_t r = 0; r < n; r++) {
        if (values)
            b->kernels->load_value(out + r * kv->head_dim, tw_cpu_value_of(b, kv, head), first + r, kv->head_dim);
        else
            b->kernels->load_key(out + r * kv->head_dim, tw_cpu_key_of(b, kv, head), first + r, kv->head_dim);
    }
    return TW_OK;
}

tw_status tw_cpu_write_kv(struct tw_backend *b, struct tw_kv *kv, const float *key, const float *value, size_t n,
                          struct tw_error *err) {
    (void)err;
    const size_t d = kv->head_dim;
    for (size_t g = 0; g < kv->n_kv_heads; g++)
        for (size_t r = 0; r < n; r++) {
            b->kernels->store_key(tw_cpu_key_of(b, kv, g), r, key + (g * n + r) * d, d);
            b->kernels->store_value(tw_cpu_value_of(b, kv, g), r, value + (g * n + r) * d, d);
        }
    tw_kv_extend(kv, 0, n);
    return TW_OK;
}

tw_status tw_cpu_write_observation(struct tw_backend *b, struct tw_observation *observation, const float *query,
                                   size_t n_queries, size_t first_position, struct tw_error *err) {
    (void)err;
    const size_t d = b->shape.head_dim, size = b->shape.element_bytes;
    assert(n_queries <= b->shape.window);
    for (size_t h = 0; h < b->shape.n_heads; h++)
        b->kernels->from_float((char *)observation->query.data + h * b->shape.window * d * size,
                               query + h * n_queries * d, n_queries * d, 1.0f);
    observation->n_queries = n_queries;
    observation->first_position = first_position;
    return TW_OK;
}
