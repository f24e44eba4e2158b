/*
 * The dry backend: allocates and accounts in the image of another, computes nothing. The schedules run on it as they
 * are, on a model that need not be there: what they book is what the other backend would hold (plan is this).
 *
 * Scores fall with the position, so that every selector finds its rows at once; how many it keeps is what counts. They
 * fall with the head much faster: where heads share a budget the first takes all that is not sure for the others, and
 * caches of unlike heads are booked as if every head but one had to be rounded up by the most. What the scores of a
 * real prompt make of such a budget takes at most that; everything else takes exactly what is booked here.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "engine/backend/image.h"

/* Between the scores of one head and the next: more than any prompt has positions. */
#define BETWEEN_HEADS 0x1p32f

struct tw_backend {
    const struct tw_model *model;
    struct tw_backend_options options;
    const struct tw_backend_image *image;
    struct tw_accountant *accountant;
    struct tw_buffers open, chunk, layer;
};

static tw_status hold(struct tw_backend *b, struct tw_buffers *buffers, struct tw_moment_of of, struct tw_error *err) {
    tw_buffers_release(buffers, b->accountant);
    return tw_buffers_allocate(buffers, b->accountant, b->image, b->model, &b->options, &of, err);
}

/* What an operation holds while it runs. */
static tw_status touch(struct tw_backend *b, struct tw_moment_of of, struct tw_error *err) {
    struct tw_buffers buffers = {0};
    TW_TRY(hold(b, &buffers, of, err));
    tw_buffers_release(&buffers, b->accountant);
    return TW_OK;
}

/* Two moments at once. */
static tw_status touch_both(struct tw_backend *b, struct tw_moment_of outer, struct tw_moment_of inner,
                            struct tw_error *err) {
    struct tw_buffers buffers = {0};
    TW_TRY(hold(b, &buffers, outer, err));
    const tw_status status = touch(b, inner, err);
    tw_buffers_release(&buffers, b->accountant);
    return status;
}

static void dry_close(struct tw_backend *b) {
    if (!b) return;
    tw_buffers_release(&b->layer, b->accountant);
    tw_buffers_release(&b->chunk, b->accountant);
    tw_buffers_release(&b->open, b->accountant);
    free(b);
}

static tw_status dry_open(struct tw_backend **backend, const struct tw_model *model,
                          const struct tw_backend_options *options, struct tw_accountant *accountant,
                          struct tw_error *err) {
    *backend = NULL;
    if (!options->image)
        return TW_FAIL(err, TW_E_OPTION, "backend 'dry' only books what another would hold: 'tidewake plan' runs it");
    struct tw_backend *b = calloc(1, sizeof *b);
    if (!b) return TW_FAIL(err, TW_E_MEMORY, "out of memory: backend 'dry'");
    b->model = model;
    b->options = *options;
    b->image = options->image;
    b->accountant = accountant;
    accountant->source = *b->image->dry_source;
    tw_status status = b->image->resolve(&b->options, model, err);
    if (status == TW_OK) status = hold(b, &b->open, (struct tw_moment_of){.moment = TW_MOMENT_OPEN}, err);
    if (status != TW_OK) {
        dry_close(b);
        return status;
    }
    *backend = b;
    return TW_OK;
}

static enum tw_dtype dry_dtype(const struct tw_backend *b) { return b->options.dtype; }

static void describe(const struct tw_backend *b, struct tw_text *text) {
    tw_text_printf(text, "nothing is computed; the buffers of '%s', %s", b->image->name,
                   b->options.dtype == TW_DTYPE_BF16 ? "bf16" : "float32");
}

/* ---- memory ---- */

static tw_status chunk_create(struct tw_backend *b, size_t max_rows, struct tw_error *err) {
    return hold(b, &b->chunk, (struct tw_moment_of){.moment = TW_MOMENT_CHUNK, .n = max_rows}, err);
}

static void chunk_release(struct tw_backend *b) { tw_buffers_release(&b->chunk, b->accountant); }

static tw_status bridge_create(struct tw_backend *b, struct tw_bridge *bridge, size_t n_rows, struct tw_error *err) {
    return tw_image_bridge_create(bridge, b->accountant, b->image, b->model, &b->options, n_rows, err);
}

static void bridge_release(struct tw_backend *b, struct tw_bridge *bridge) {
    tw_buffer_release(&bridge->data, b->accountant);
    memset(bridge, 0, sizeof *bridge);
}

static tw_status bridge_copy(struct tw_backend *b, struct tw_bridge *to, size_t to_row, const struct tw_bridge *from,
                             size_t from_row, size_t n, struct tw_error *err) {
    (void)b, (void)err;
    assert(to_row + n <= to->n_rows && from_row + n <= from->n_rows);
    (void)to, (void)to_row, (void)from, (void)from_row, (void)n;
    return TW_OK;
}

static tw_status kv_create(struct tw_backend *b, struct tw_kv *kv, const size_t *capacity, bool with_positions,
                           enum tw_category category, const char *what, struct tw_error *err) {
    const size_t n_kv_heads = b->model->config.n_kv_heads;
    size_t total = capacity[0];
    bool alike = true;
    for (size_t g = 1; g < n_kv_heads; g++) {
        total += capacity[g];
        alike = alike && capacity[g] == capacity[0];
    }
    if (alike || total < n_kv_heads)
        return tw_image_kv_create(kv, b->accountant, b->image, b->model, &b->options, capacity, with_positions,
                                  category, what, err);
    size_t *worst = calloc(2 * n_kv_heads, sizeof *worst); /* capacities that round up the most, and their offsets */
    if (!worst) return TW_FAIL(err, TW_E_MEMORY, "out of memory: '%s'", what);
    for (size_t g = 1; g < n_kv_heads; g++) worst[g] = 1;
    worst[0] = total - (n_kv_heads - 1);
    struct tw_buffer_size sizes[TW_MOMENT_MAX_BUFFERS];
    b->image->buffers(sizes, b->model, &b->options,
                      &(struct tw_moment_of){.moment = TW_MOMENT_KV, .capacity = worst, .offset = worst + n_kv_heads});
    const tw_status status =
        tw_kv_init(kv, b->accountant, n_kv_heads, b->model->config.head_dim, capacity, worst + n_kv_heads,
                   sizes[0].bytes, sizes[1].bytes, with_positions, category, what, err);
    free(worst);
    return status;
}

static void kv_release(struct tw_backend *b, struct tw_kv *kv) { tw_kv_release(kv, b->accountant); }

static tw_status observation_create(struct tw_backend *b, struct tw_observation *observation, struct tw_error *err) {
    return tw_image_observation_create(observation, b->accountant, b->image, b->model, &b->options, err);
}

static void observation_release(struct tw_backend *b, struct tw_observation *observation) {
    tw_image_observation_release(observation, b->accountant);
}

/* ---- prefill ---- */

static tw_status embed(struct tw_backend *b, struct tw_bridge *bridge, size_t first_row, const int32_t *tokens,
                       size_t n, struct tw_error *err) {
    (void)tokens;
    assert(first_row + n <= bridge->n_rows);
    (void)bridge, (void)first_row;
    return touch(b, (struct tw_moment_of){.moment = TW_MOMENT_EMBED, .n = n}, err);
}

static tw_status layer_begin(struct tw_backend *b, size_t l, struct tw_error *err) {
    return hold(b, &b->layer, (struct tw_moment_of){.moment = TW_MOMENT_LAYER, .layer = l}, err);
}

static void layer_end(struct tw_backend *b, size_t l) {
    (void)l;
    tw_buffers_release(&b->layer, b->accountant);
}

static tw_status append(struct tw_backend *b, size_t l, const struct tw_bridge *bridge, size_t first_row, size_t n,
                        size_t first_position, struct tw_kv *kv, struct tw_observation *observation,
                        struct tw_error *err) {
    (void)bridge, (void)first_row;
    TW_TRY(touch(b, (struct tw_moment_of){.moment = TW_MOMENT_APPEND, .n = n, .layer = l}, err));
    tw_kv_extend(kv, first_position, n);
    if (observation && first_position + n > observation->first_position)
        observation->n_queries = first_position + n - observation->first_position;
    return TW_OK;
}

static tw_status attend(struct tw_backend *b, size_t l, const struct tw_kv *kv, size_t n, size_t first_position,
                        struct tw_error *err) {
    (void)first_position;
    return touch(b, (struct tw_moment_of){.moment = TW_MOMENT_ATTEND, .n = n, .n_keys = tw_kv_longest(kv), .layer = l},
                 err);
}

static tw_status finish(struct tw_backend *b, size_t l, struct tw_bridge *bridge, size_t first_row, size_t n,
                        struct tw_error *err) {
    (void)bridge, (void)first_row;
    return touch(b, (struct tw_moment_of){.moment = TW_MOMENT_FINISH, .n = n, .layer = l}, err);
}

/* ---- the end of a layer ---- */

static tw_status observe(struct tw_backend *b, size_t l, const struct tw_kv *kv, struct tw_observation *observation,
                         size_t block, struct tw_error *err) {
    (void)observation;
    return touch(
        b, (struct tw_moment_of){.moment = TW_MOMENT_OBSERVE, .n = block, .n_keys = tw_kv_longest(kv), .layer = l},
        err);
}

static tw_status score(struct tw_backend *b, size_t l, const struct tw_kv *kv, const struct tw_observation *observation,
                       enum tw_score_kind kind, const double *key_mean, size_t first, size_t n, float *out,
                       struct tw_error *err) {
    (void)observation, (void)kind, (void)key_mean;
    for (size_t g = 0; g < kv->n_kv_heads; g++)
        for (size_t i = 0; i < n; i++) out[g * n + i] = -(float)(first + i) - (float)g * BETWEEN_HEADS;
    return touch(b, (struct tw_moment_of){.moment = TW_MOMENT_SCORE, .n = n, .layer = l}, err);
}

/* As if scores fell with the position. */
static tw_status rank(struct tw_backend *b, size_t l, const struct tw_kv *kv, const struct tw_observation *observation,
                      const struct tw_ranking *ranking, struct tw_scored *best, struct tw_error *err) {
    size_t n_rows = 0, shared = 0;
    (void)observation;
    for (size_t g = 0; g < kv->n_kv_heads; g++) {
        n_rows = tw_max_size(n_rows, ranking->n_scored[g]);
        for (size_t i = 0; i < ranking->n_best[g]; i++)
            *best++ = (struct tw_scored){-(float)i, (int32_t)i, ranking->n_shared ? (int32_t)g : 0};
    }
    for (size_t i = 0; shared < ranking->n_shared; i++)
        for (size_t g = 0; g < kv->n_kv_heads && shared < ranking->n_shared; g++)
            if (i >= ranking->n_best[g] && i < ranking->n_scored[g])
                best[shared++] = (struct tw_scored){-(float)i, (int32_t)i, (int32_t)g};
    return touch(b,
                 (struct tw_moment_of){.moment = TW_MOMENT_RANK,
                                       .n = tw_min_size(ranking->block, n_rows),
                                       .n_keys = n_rows,
                                       .layer = l,
                                       .ranking = ranking},
                 err);
}

static tw_status key_mean(struct tw_backend *b, const struct tw_kv *kv, double *mean, struct tw_error *err) {
    memset(mean, 0, kv->n_kv_heads * kv->head_dim * sizeof *mean);
    return touch(b, (struct tw_moment_of){.moment = TW_MOMENT_KEY_MEAN, .n_keys = tw_kv_longest(kv)}, err);
}

static tw_status gather(struct tw_backend *b, struct tw_kv *to, const struct tw_kv *from, const int32_t *const *kept,
                        const size_t *n_kept, struct tw_error *err) {
    size_t most = 0;
    for (size_t g = 0; g < to->n_kv_heads; g++) most = n_kept[g] > most ? n_kept[g] : most;
    tw_kv_gather_books(to, from, kept, n_kept);
    return touch(b, (struct tw_moment_of){.moment = TW_MOMENT_GATHER, .n = most}, err);
}

/* A row that says nothing. */
static void empty_log(const struct tw_backend *b, struct tw_attention_log *log) {
    const size_t n = b->model->config.n_heads * log->top_k;
    for (size_t i = 0; i < n; i++) log->position[i] = -1;
    memset(log->weight, 0, n * sizeof *log->weight);
    for (size_t h = 0; log->needle_end > log->needle_begin && h < b->model->config.n_heads; h++) {
        log->needle_mass[h] = log->rest_mass[h] = 0;
        log->argmax[h] = -1;
    }
}

static tw_status log_row(struct tw_backend *b, size_t l, const struct tw_kv *kv,
                         const struct tw_observation *observation, struct tw_attention_log *log, struct tw_error *err) {
    (void)observation;
    empty_log(b, log);
    return touch(
        b, (struct tw_moment_of){.moment = TW_MOMENT_LOG_ROW, .n = log->top_k, .n_keys = tw_kv_longest(kv), .layer = l},
        err);
}

/* ---- after the last layer, and decoding ---- */

static tw_status logits(struct tw_backend *b, const struct tw_bridge *bridge, size_t first_row, size_t n, float *out,
                        struct tw_error *err) {
    (void)bridge, (void)first_row;
    memset(out, 0, n * b->model->config.n_vocab * sizeof *out);
    return touch(b, (struct tw_moment_of){.moment = TW_MOMENT_LOGITS, .n = n}, err);
}

static tw_status decode_begin(struct tw_backend *b, int32_t token, struct tw_error *err) {
    (void)b, (void)token, (void)err;
    return TW_OK;
}

static tw_status decode_layer(struct tw_backend *b, size_t l, struct tw_kv *kv, size_t position,
                              struct tw_attention_log *log, struct tw_error *err) {
    const size_t n_keys = tw_kv_longest(kv) + 1;
    const struct tw_moment_of layer = {.moment = TW_MOMENT_DECODE_LAYER, .n_keys = n_keys, .layer = l};
    tw_kv_extend(kv, position, 1);
    if (!log) return touch(b, layer, err);
    empty_log(b, log);
    return touch_both(b, layer,
                      (struct tw_moment_of){.moment = TW_MOMENT_LOG_ROW, .n = log->top_k, .n_keys = n_keys, .layer = l},
                      err);
}

static tw_status decode_logits(struct tw_backend *b, float *out, struct tw_error *err) {
    memset(out, 0, b->model->config.n_vocab * sizeof *out);
    return touch(b, (struct tw_moment_of){.moment = TW_MOMENT_DECODE_LOGITS}, err);
}

/* ---- looking ---- */

static tw_status read_hidden(struct tw_backend *b, const struct tw_bridge *bridge, size_t first_row, size_t n,
                             bool normed, float *hidden, struct tw_error *err) {
    (void)bridge, (void)first_row, (void)normed, (void)err;
    memset(hidden, 0, n * b->model->config.n_embd * sizeof *hidden);
    return TW_OK;
}

static tw_status read_decode_hidden(struct tw_backend *b, bool normed, float *hidden, struct tw_error *err) {
    (void)normed, (void)err;
    memset(hidden, 0, b->model->config.n_embd * sizeof *hidden);
    return TW_OK;
}

static tw_status read_kv(struct tw_backend *b, const struct tw_kv *kv, bool values, size_t head, size_t first, size_t n,
                         float *out, struct tw_error *err) {
    (void)b, (void)values, (void)head, (void)first, (void)err;
    memset(out, 0, n * kv->head_dim * sizeof *out);
    return TW_OK;
}

static tw_status write_kv(struct tw_backend *b, struct tw_kv *kv, const float *key, const float *value, size_t n,
                          struct tw_error *err) {
    (void)b, (void)key, (void)value, (void)err;
    tw_kv_extend(kv, 0, n);
    return TW_OK;
}

static tw_status write_observation(struct tw_backend *b, struct tw_observation *observation, const float *query,
                                   size_t n_queries, size_t first_position, struct tw_error *err) {
    (void)b, (void)query, (void)err;
    observation->n_queries = n_queries;
    observation->first_position = first_position;
    return TW_OK;
}

const struct tw_backend_ops tw_backend_dry = {
    .name = "dry",
    .summary = "books the memory of another backend and computes nothing",
    .open = dry_open,
    .close = dry_close,
    .dtype = dry_dtype,
    .describe = describe,
    .chunk_create = chunk_create,
    .chunk_release = chunk_release,
    .bridge_create = bridge_create,
    .bridge_release = bridge_release,
    .bridge_copy = bridge_copy,
    .kv_create = kv_create,
    .kv_release = kv_release,
    .observation_create = observation_create,
    .observation_release = observation_release,
    .embed = embed,
    .layer_begin = layer_begin,
    .layer_end = layer_end,
    .append = append,
    .attend = attend,
    .finish = finish,
    .observe = observe,
    .score = score,
    .rank = rank,
    .key_mean = key_mean,
    .gather = gather,
    .log_row = log_row,
    .logits = logits,
    .decode_begin = decode_begin,
    .decode_layer = decode_layer,
    .decode_logits = decode_logits,
    .read_hidden = read_hidden,
    .read_decode_hidden = read_decode_hidden,
    .read_kv = read_kv,
    .write_kv = write_kv,
    .write_observation = write_observation,
};
