/* Prefill of one layer over one chunk: embed, unpacking the layer, append, attend, finish. */
#include <assert.h>
#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <string.h>

#include "base/checked.h"
#include "engine/backend/cpu/cpu.h"

struct embedding {
    const struct tw_backend *b;
    struct tw_bridge *bridge;
    size_t first_row;
    const int32_t *tokens;
};

static void embed_tokens(void *context, size_t first, size_t end, size_t thread) {
    const struct embedding *e = context;
    const struct tw_backend *b = e->b;
    float *row = (float *)(void *)(tw_cpu_scratch_of(b, thread) + b->scratch.row);
    for (size_t i = first; i < end; i++) {
        assert(e->tokens[i] >= 0 && (size_t)e->tokens[i] < b->model->embedding.n_rows);
        tw_cpu_expand_row(b, row, &b->model->embedding, (size_t)e->tokens[i]);
        b->kernels->from_float(tw_cpu_bridge_row(b, e->bridge, e->first_row + i), row, b->shape.n_embd,
                               b->model->config.embedding_scale);
    }
}

tw_status tw_cpu_embed(struct tw_backend *b, struct tw_bridge *bridge, size_t first_row, const int32_t *tokens,
                       size_t n, struct tw_error *err) {
    (void)err;
    assert(first_row + n <= bridge->n_rows);
    tw_team_run(b->team, n, 64, embed_tokens, &(struct embedding){b, bridge, first_row, tokens});
    return TW_OK;
}

/* ---- unpacking ---- */

static void fill_bias(float *out, const float *bias, size_t n) {
    if (bias)
        memcpy(out, bias, n * sizeof *out);
    else
        memset(out, 0, n * sizeof *out);
}

struct unpacking {
    struct tw_cpu_pack packs[TW_CPU_N_MATRICES];
    size_t first_task[TW_CPU_N_MATRICES + 1];
};

static void unpack_tasks(void *context, size_t first, size_t end, size_t thread) {
    (void)thread;
    const struct unpacking *u = context;
    for (size_t task = first; task < end; task++) {
        size_t m = 0;
        while (task >= u->first_task[m + 1]) m++;
        tw_cpu_pack_run(&u->packs[m], task - u->first_task[m]);
    }
}

tw_status tw_cpu_layer_begin(struct tw_backend *b, size_t l, struct tw_error *err) {
    const struct tw_layer_weights *layer = &b->model->layers[l];
    TW_TRY(tw_buffers_allocate(&b->layer, b->accountant, &tw_cpu_image, b->model, &b->options,
                               &(struct tw_moment_of){.moment = TW_MOMENT_LAYER, .layer = l}, err));
    const struct tw_matrix *qkv[] = {&layer->query, &layer->key, &layer->value}, *output[] = {&layer->output};
    const struct tw_matrix *gate_up[] = {&layer->gate, &layer->up}, *down[] = {&layer->down};
    const struct tw_matrix *const *const stacks[TW_CPU_N_MATRICES] = {qkv, output, gate_up, down};
    const size_t heights[TW_CPU_N_MATRICES] = {3, 1, 2, 1};
    struct unpacking u;
    u.first_task[0] = 0;
    for (size_t m = 0; m < TW_CPU_N_MATRICES; m++) {
        u.packs[m] = (struct tw_cpu_pack){
            .common = b->common,
            .bf16 = b->shape.element_bytes == 2,
            .packed = tw_cpu_product_packed(b->product[m]),
            .matrices = stacks[m],
            .n_matrices = heights[m],
            .out = b->layer.buffer[m].data,
        };
        u.first_task[m + 1] = u.first_task[m] + tw_cpu_pack_tasks(&u.packs[m]);
    }
    tw_team_run(b->team, u.first_task[TW_CPU_N_MATRICES], 4, unpack_tasks, &u);
    if (b->bias) {
        float *bias = b->open.buffer[TW_CPU_OPEN_BIAS].data;
        const size_t query_width = b->shape.n_heads * b->shape.head_dim;
        const size_t kv_width = b->shape.n_kv_heads * b->shape.head_dim;
        fill_bias(bias, layer->query_bias, query_width);
        fill_bias(bias + query_width, layer->key_bias, kv_width);
        fill_bias(bias + query_width + kv_width, layer->value_bias, kv_width);
    }
    return TW_OK;
}

void tw_cpu_layer_end(struct tw_backend *b, size_t l) {
    (void)l;
    tw_buffers_release(&b->layer, b->accountant);
}

/* ---- row blocks ---- */

/* A chunk, as rows of blocks on the absolute grid. */
struct chunk {
    struct tw_backend *b;
    const struct tw_layer_weights *weights;
    size_t layer;
    const struct tw_bridge *bridge;
    size_t first_row, n, first_position;
    struct tw_kv *kv;
    pthread_mutex_t lock;
    tw_status status; /* one that failed, with its sentence */
    struct tw_error error;
};

/* One block of it: rows [first, first + n) of the block are the chunk's. */
struct block {
    size_t first, n;
    size_t position;  /* of row `first` */
    size_t chunk_row; /* of the block's row 0 in the chunk's buffers */
    char *hidden;     /* the bridge's row of row `first` */
    size_t thread;
    char *normed, *wide, *activated; /* [block_rows] rows each, the block's row 0 */
    float *sum;                      /* [block_rows][n_embd]: the hidden states while attention and MLP are added */
    float *rotation;
    void *scratch;
};

static size_t first_block(const struct chunk *c) { return c->first_position / c->b->shape.block_rows; }
static size_t end_block(const struct chunk *c) {
    return tw_divide_up(c->first_position + c->n, c->b->shape.block_rows);
}

static struct block block_of(const struct chunk *c, size_t index, size_t thread) {
    const struct tw_backend *b = c->b;
    const size_t rows = b->shape.block_rows, start = index * rows, size = b->shape.element_bytes;
    struct block k = {.thread = thread};
    k.position = tw_max_size(start, c->first_position);
    k.first = k.position - start;
    k.n = tw_min_size(start + rows, c->first_position + c->n) - k.position;
    k.chunk_row = (index - first_block(c)) * rows;
    k.hidden = tw_cpu_bridge_row(b, c->bridge, c->first_row + (k.position - c->first_position));
    char *scratch = tw_cpu_scratch_of(b, k.thread);
    k.rotation = (float *)(void *)(scratch + b->scratch.rotation);
    k.scratch = scratch + b->scratch.product;
    if (b->shape.whole_rows) {
        char *chunk = b->chunk.buffer[0].data;
        k.normed = chunk + b->chunk_layout.normed + k.chunk_row * b->shape.n_embd * size;
        k.wide = chunk + b->chunk_layout.wide + k.chunk_row * tw_cpu_wide_bytes(&b->shape);
        k.activated = chunk + b->chunk_layout.activated + k.chunk_row * b->shape.n_mlp * size;
        k.sum = (float *)(void *)(chunk + b->chunk_layout.hidden) + k.chunk_row * b->shape.n_embd;
    } else {
        k.normed = scratch + b->scratch.normed;
        k.wide = scratch + b->scratch.wide;
        k.activated = scratch + b->scratch.activated;
        k.sum = (float *)(void *)(scratch + b->scratch.hidden);
    }
    return k;
}

static char *chunk_queries(const struct tw_backend *b, size_t chunk_row) {
    return (char *)b->chunk.buffer[0].data + b->chunk_layout.query +
           chunk_row * b->shape.n_heads * b->shape.head_dim * b->shape.element_bytes;
}

static tw_status run_product(const struct chunk *c, const struct block *k, const struct tw_cpu_product *product,
                             enum tw_cpu_matrix matrix, void *y, const void *x, struct tw_error *err) {
    const float *bias = matrix == TW_CPU_QKV && c->b->bias ? c->b->open.buffer[TW_CPU_OPEN_BIAS].data : NULL;
    return tw_cpu_product_run(product, k->thread, y, x, c->b->layer.buffer[matrix].data, bias, k->scratch, err);
}

typedef tw_status stage_fn(struct chunk *c, const struct block *k, struct tw_error *err);

/* Stages of all blocks, one block after another; in the order of a pass, see run_blocks. */
struct pass {
    struct chunk *chunk;
    stage_fn *const *stages;
    size_t n_stages;
};

static void run_stages(void *context, size_t first, size_t end, size_t thread) {
    const struct pass *pass = context;
    struct chunk *c = pass->chunk;
    const int n_threads = omp_get_max_threads();
    omp_set_num_threads(1); /* of a product inside */
    for (size_t task = first; task < end; task++) {
        const struct block k = block_of(c, first_block(c) + task, thread);
        struct tw_error error = {0};
        tw_status status = TW_OK;
        for (size_t s = 0; s < pass->n_stages && status == TW_OK; s++) status = pass->stages[s](c, &k, &error);
        if (status == TW_OK) continue;
        pthread_mutex_lock(&c->lock);
        c->status = status;
        c->error = error;
        pthread_mutex_unlock(&c->lock);
    }
    omp_set_num_threads(n_threads);
}

/*
 * All stages on block after block; or, for temporaries of the whole chunk, stage after stage on all blocks. Results are
 * the same bits.
 */
static tw_status run_blocks(struct chunk *c, stage_fn *const *stages, size_t n_stages, struct tw_error *err) {
    const size_t at_once = c->b->shape.whole_rows ? 1 : n_stages;
    pthread_mutex_init(&c->lock, NULL);
    for (size_t s = 0; s < n_stages && c->status == TW_OK; s += at_once)
        tw_team_run(c->b->team, end_block(c) - first_block(c), 1, run_stages, &(struct pass){c, stages + s, at_once});
    pthread_mutex_destroy(&c->lock);
    if (c->status != TW_OK && err) *err = c->error;
    return c->status;
}

/* ---- append ---- */

static tw_status stage_norm_attention(struct chunk *c, const struct block *k, struct tw_error *err) {
    (void)err;
    const struct tw_backend *b = c->b;
    b->kernels->norm(k->normed + k->first * b->shape.n_embd * b->shape.element_bytes, k->hidden,
                     c->weights->attention_norm, k->n, b->shape.n_embd, (float)b->model->config.norm_epsilon);
    return TW_OK;
}

static tw_status stage_qkv(struct chunk *c, const struct block *k, struct tw_error *err) {
    return run_product(c, k, c->b->product[TW_CPU_QKV], TW_CPU_QKV, k->wide, k->normed, err);
}

#define MOST_KV_HEADS 256

static tw_status stage_rotate(struct chunk *c, const struct block *k, struct tw_error *err) {
    (void)err;
    const struct tw_backend *b = c->b;
    const size_t d = b->shape.head_dim;
    char *key[MOST_KV_HEADS], *value[MOST_KV_HEADS];
    size_t row[MOST_KV_HEADS];
    for (size_t g = 0; g < b->shape.n_kv_heads; g++) {
        key[g] = tw_cpu_key_of(b, c->kv, g);
        value[g] = tw_cpu_value_of(b, c->kv, g);
        row[g] = c->kv->length[g] + (k->position - c->first_position);
    }
    tw_cpu_rotation(b, k->rotation, b->rope_of_layer[c->layer], k->position, k->n);
    b->kernels->rotate(&(struct tw_cpu_rotate){
        .qkv = (const float *)(const void *)k->wide + k->first * tw_cpu_qkv_width(&b->shape),
        .n = k->n,
        .n_heads = b->shape.n_heads,
        .n_kv_heads = b->shape.n_kv_heads,
        .head_dim = d,
        .query_norm = c->weights->query_norm,
        .key_norm = c->weights->key_norm,
        .epsilon = (float)b->model->config.norm_epsilon,
        .pairs = b->model->config.rope_pairs,
        .rotation = k->rotation,
        .query = chunk_queries(b, k->chunk_row + k->first),
        .key = key,
        .value = value,
        .row = row,
        .scratch = k->rotation + b->shape.block_rows * 2 * d,
    });
    return TW_OK;
}

/* Copies the queries that the observation wants: [Hq][W][d]. */
static void observe_queries(const struct chunk *c, struct tw_observation *observation) {
    const struct tw_backend *b = c->b;
    const size_t d = b->shape.head_dim, size = b->shape.element_bytes, window = b->shape.window;
    const size_t grid = first_block(c) * b->shape.block_rows;
    for (size_t i = 0; i < c->n; i++) {
        const size_t position = c->first_position + i;
        if (position < observation->first_position) continue;
        const size_t w = position - observation->first_position;
        assert(w == observation->n_queries && w < window);
        const char *query = chunk_queries(b, position - grid);
        for (size_t h = 0; h < b->shape.n_heads; h++)
            memcpy((char *)observation->query.data + (h * window + w) * d * size, query + h * d * size, d * size);
        observation->n_queries++;
    }
}

tw_status tw_cpu_append(struct tw_backend *b, size_t l, const struct tw_bridge *bridge, size_t first_row, size_t n,
                        size_t first_position, struct tw_kv *kv, struct tw_observation *observation,
                        struct tw_error *err) {
    static stage_fn *const stages[] = {stage_norm_attention, stage_qkv, stage_rotate};
    if (n == 0) return TW_OK;
    assert(first_row + n <= bridge->n_rows && b->shape.n_kv_heads <= MOST_KV_HEADS);
    for (size_t g = 0; g < kv->n_kv_heads; g++) assert(kv->length[g] + n <= kv->capacity[g]);
    b->chunk_position = first_position;
    struct chunk c = {.b = b,
                      .weights = &b->model->layers[l],
                      .layer = l,
                      .bridge = bridge,
                      .first_row = first_row,
                      .n = n,
                      .first_position = first_position,
                      .kv = kv};
    TW_TRY(run_blocks(&c, stages, sizeof stages / sizeof *stages, err));
    if (observation) observe_queries(&c, observation);
    tw_kv_extend(kv, first_position, n);
    tw_cpu_seal(b, kv);
    return TW_OK;
}

/* ---- attend ---- */

struct attention {
    const struct tw_backend *b;
    const struct tw_kv *kv;
    size_t n, first_position, sliding_window;
    size_t step, n_steps, n_units; /* a task: `step` positions of a unit (a KV head; eager: a query head) */
    size_t grid;                   /* position of the chunk buffer's row 0 */
    float *scores;                 /* eager: [n_heads][n][n_keys] */
    size_t n_keys;
};

static void visible_rows(const struct attention *a, size_t g, size_t i, size_t *first, size_t *end) {
    tw_cpu_visible(first, end, a->kv, g, a->kv->length[g] - (a->n - 1 - i), a->first_position + i, a->sliding_window);
}

static void attend_tile(const struct attention *a, size_t g, size_t i, size_t n_positions, size_t thread) {
    const struct tw_backend *b = a->b;
    const size_t d = b->shape.head_dim, group = tw_cpu_group(b), stride = b->shape.n_heads * d;
    size_t first[TW_CPU_TILE_ROWS], end[TW_CPU_TILE_ROWS];
    for (size_t p = 0; p < n_positions; p++) visible_rows(a, g, i + p, &first[p], &end[p]);
    b->kernels->tile(&(struct tw_cpu_tile){
        .rows = chunk_queries(b, a->first_position + i - a->grid) + g * group * d * b->shape.element_bytes,
        .stride = stride,
        .n_positions = n_positions,
        .n_group = group,
        .head_dim = d,
        .key = tw_cpu_key_of(b, a->kv, g),
        .value = tw_cpu_value_of(b, a->kv, g),
        .first = first,
        .end = end,
        .scale = b->scale,
        .workspace = tw_cpu_scratch_of(b, thread) + b->scratch.attention,
    });
}

#define EAGER_ROWS 6

/* Up to six positions of one head: scores written out, softmax over each row, weighted values. */
static void attend_eager(const struct attention *a, size_t h, size_t i, size_t n_positions, size_t thread) {
    const struct tw_backend *b = a->b;
    const size_t d = b->shape.head_dim, size = b->shape.element_bytes, g = h / tw_cpu_group(b);
    const size_t width = tw_cpu_value_width(d), stride = b->shape.n_heads * d * size;
    char *space = tw_cpu_scratch_of(b, thread) + b->scratch.attention;
    float *output = (float *)(void *)space, *block_of_scores = output + EAGER_ROWS * width;
    char *query = (char *)(block_of_scores + EAGER_ROWS * 64);
    char *rows = chunk_queries(b, a->first_position + i - a->grid) + h * d * size;
    const char *key = tw_cpu_key_of(b, a->kv, g), *value = tw_cpu_value_of(b, a->kv, g);
    size_t first[EAGER_ROWS], end[EAGER_ROWS], length = 0;
    for (size_t p = 0; p < n_positions; p++) {
        memcpy(query + p * d * size, rows + p * stride, d * size);
        visible_rows(a, g, i + p, &first[p], &end[p]);
        length = tw_max_size(length, end[p]);
    }
    memset(output, 0, EAGER_ROWS * width * sizeof *output);
    float *scores = a->scores + (h * a->n + i) * a->n_keys;
    for (size_t at = 0; at < length; at += 64) {
        b->kernels->products(block_of_scores, query, key, at, n_positions, d);
        for (size_t p = 0; p < n_positions; p++)
            memcpy(scores + p * a->n_keys + at, block_of_scores + p * 64, 64 * sizeof *scores);
    }
    for (size_t p = 0; p < n_positions; p++) {
        float maximum = -INFINITY, sum = 0, *row = scores + p * a->n_keys;
        for (size_t at = 0; at < length; at += 64)
            b->common->fold(&maximum, &sum, row + at, at, first[p], end[p], b->scale);
        for (size_t at = 0; at < length; at += 64) {
            float weights[64] = {0};
            b->common->weigh(weights, row + at, at, first[p], end[p], b->scale, maximum, sum);
            memcpy(row + at, weights, sizeof weights);
        }
    }
    for (size_t at = 0; at < length; at += 64) {
        for (size_t p = 0; p < n_positions; p++)
            memcpy(block_of_scores + p * 64, scores + p * a->n_keys + at, 64 * sizeof *scores);
        b->kernels->combine(output, block_of_scores, value, at, tw_min_size(64, length - at), n_positions, d);
    }
    for (size_t p = 0; p < n_positions; p++) b->kernels->from_float(rows + p * stride, output + p * width, d, 1.0f);
}

/* The last positions see most: longest first, so that threads end together. */
static void attend_tasks(void *context, size_t first, size_t end, size_t thread) {
    const struct attention *a = context;
    for (size_t task = first; task < end; task++) {
        const size_t i = (a->n_steps - 1 - task / a->n_units) * a->step, unit = task % a->n_units;
        const size_t n_positions = tw_min_size(a->step, a->n - i);
        if (a->scores)
            attend_eager(a, unit, i, n_positions, thread);
        else
            attend_tile(a, unit, i, n_positions, thread);
    }
}

tw_status tw_cpu_attend(struct tw_backend *b, size_t l, const struct tw_kv *kv, size_t n, size_t first_position,
                        struct tw_error *err) {
    if (n == 0) return TW_OK;
    b->chunk_position = first_position;
    struct tw_buffers eager;
    TW_TRY(tw_buffers_allocate(&eager, b->accountant, &tw_cpu_image, b->model, &b->options,
                               &(struct tw_moment_of){.moment = TW_MOMENT_ATTEND, .n = n, .n_keys = tw_kv_longest(kv)},
                               err));
    struct attention a = {
        .b = b,
        .kv = kv,
        .n = n,
        .first_position = first_position,
        .sliding_window = b->model->layers[l].sliding_window,
        .grid = first_position / b->shape.block_rows * b->shape.block_rows,
        .scores = eager.buffer[0].data,
        .n_keys = tw_round_up(tw_kv_longest(kv), TW_CPU_KEY_BLOCK),
    };
    a.step = a.scores ? EAGER_ROWS : tw_max_size(TW_CPU_TILE_ROWS / tw_cpu_group(b), 1);
    a.n_steps = tw_divide_up(n, a.step);
    a.n_units = a.scores ? b->shape.n_heads : b->shape.n_kv_heads;
    tw_team_run(b->team, a.n_steps * a.n_units, 1, attend_tasks, &a);
    tw_buffers_release(&eager, b->accountant);
    return TW_OK;
}

/* ---- finish ---- */

/*
 * The hidden states of a block become float32 before attention and MLP are added, and are rounded once behind both.
 * Rows of the block that are not the chunk's hold what was there before, and are not written back.
 */
static float *sum_rows(const struct chunk *c, const struct block *k) { return k->sum + k->first * c->b->shape.n_embd; }

/* sum += x W, or sum += norm(x W) where the architecture has a norm behind. */
static tw_status add_product(struct chunk *c, const struct block *k, enum tw_cpu_matrix matrix, const void *x,
                             const float *post_norm, struct tw_error *err) {
    const struct tw_backend *b = c->b;
    if (!post_norm) return run_product(c, k, b->product[matrix], matrix, k->sum, x, err);
    TW_TRY(run_product(c, k, b->plain_product[matrix], matrix, k->wide, x, err));
    b->kernels->add_normed(sum_rows(c, k), (const float *)(const void *)k->wide + k->first * b->shape.n_embd, post_norm,
                           k->n, b->shape.n_embd, (float)b->model->config.norm_epsilon);
    return TW_OK;
}

static tw_status stage_output(struct chunk *c, const struct block *k, struct tw_error *err) {
    c->b->kernels->to_float(sum_rows(c, k), k->hidden, k->n * c->b->shape.n_embd);
    return add_product(c, k, TW_CPU_OUTPUT, chunk_queries(c->b, k->chunk_row), c->weights->post_attention_norm, err);
}

static tw_status stage_norm_mlp(struct chunk *c, const struct block *k, struct tw_error *err) {
    (void)err;
    const struct tw_backend *b = c->b;
    b->kernels->norm_float(k->normed + k->first * b->shape.n_embd * b->shape.element_bytes, sum_rows(c, k),
                           c->weights->mlp_norm, k->n, b->shape.n_embd, (float)b->model->config.norm_epsilon);
    return TW_OK;
}

static tw_status stage_gate_up(struct chunk *c, const struct block *k, struct tw_error *err) {
    return run_product(c, k, c->b->product[TW_CPU_GATE_UP], TW_CPU_GATE_UP, k->wide, k->normed, err);
}

static tw_status stage_activate(struct chunk *c, const struct block *k, struct tw_error *err) {
    (void)err;
    const struct tw_backend *b = c->b;
    const size_t size = b->shape.element_bytes, n_mlp = b->shape.n_mlp;
    b->kernels->activate(k->activated + k->first * n_mlp * size, k->wide + k->first * 2 * n_mlp * size, k->n, n_mlp,
                         b->model->config.activation);
    return TW_OK;
}

static tw_status stage_down(struct chunk *c, const struct block *k, struct tw_error *err) {
    TW_TRY(add_product(c, k, TW_CPU_DOWN, k->activated, c->weights->post_mlp_norm, err));
    c->b->kernels->from_float(k->hidden, sum_rows(c, k), k->n * c->b->shape.n_embd, 1.0f);
    return TW_OK;
}

tw_status tw_cpu_finish(struct tw_backend *b, size_t l, struct tw_bridge *bridge, size_t first_row, size_t n,
                        struct tw_error *err) {
    static stage_fn *const stages[] = {stage_output, stage_norm_mlp, stage_gate_up, stage_activate, stage_down};
    if (n == 0) return TW_OK;
    assert(first_row + n <= bridge->n_rows);
    struct chunk c = {.b = b,
                      .weights = &b->model->layers[l],
                      .layer = l,
                      .bridge = bridge,
                      .first_row = first_row,
                      .n = n,
                      .first_position = b->chunk_position};
    return run_blocks(&c, stages, sizeof stages / sizeof *stages, err);
}
