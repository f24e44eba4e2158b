#include "tests/engine/backend_run.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/random.h"
#include "engine/backend/image.h"

static float *extend(struct tw_run_record *record, enum tw_run_section section, size_t n) {
    if (record->n[section] + n > record->room[section]) {
        record->room[section] = 2 * (record->n[section] + n);
        record->data[section] = realloc(record->data[section], record->room[section] * sizeof(float));
        ck_assert_ptr_nonnull(record->data[section]);
    }
    float *at = record->data[section] + record->n[section];
    record->n[section] += n;
    return at;
}

void tw_run_record_release(struct tw_run_record *record) {
    for (int i = 0; i < TW_RUN_SECTIONS; i++) free(record->data[i]);
    memset(record, 0, sizeof *record);
}

#define OK(call) ck_assert_msg((call) == TW_OK, "%s", err.text)

struct log_space {
    struct tw_attention_log log;
    size_t n_heads;
};

static void log_make(struct log_space *space, const struct tw_run_plan *plan, size_t n_heads) {
    struct tw_attention_log *log = &space->log;
    memset(space, 0, sizeof *space);
    space->n_heads = n_heads;
    log->top_k = plan->top_k;
    log->position = calloc(n_heads * plan->top_k, sizeof *log->position);
    log->weight = calloc(n_heads * plan->top_k, sizeof *log->weight);
    log->needle_mass = calloc(n_heads, sizeof *log->needle_mass);
    log->rest_mass = calloc(n_heads, sizeof *log->rest_mass);
    log->argmax = calloc(n_heads, sizeof *log->argmax);
    if (!plan->needle) return;
    log->needle_begin = plan->first_position + plan->n_tokens / 3;
    log->needle_end = log->needle_begin + plan->n_tokens / 4 + 1;
    log->sink_tokens = plan->first_position + 4;
    log->local_window = plan->n_tokens / 3 + 2;
}
static void log_free(struct log_space *space) {
    free(space->log.position);
    free(space->log.weight);
    free(space->log.needle_mass);
    free(space->log.rest_mass);
    free(space->log.argmax);
}
static void log_write(struct tw_run_record *record, const struct log_space *space) {
    const struct tw_attention_log *log = &space->log;
    const size_t n = space->n_heads * log->top_k;
    memcpy(extend(record, TW_RUN_WEIGHTS, n), log->weight, n * sizeof(float));
    float *position = extend(record, TW_RUN_POSITIONS, n);
    for (size_t i = 0; i < n; i++) position[i] = (float)log->position[i];
    if (log->needle_end <= log->needle_begin) return;
    memcpy(extend(record, TW_RUN_WEIGHTS, space->n_heads), log->needle_mass, space->n_heads * sizeof(float));
    memcpy(extend(record, TW_RUN_WEIGHTS, space->n_heads), log->rest_mass, space->n_heads * sizeof(float));
    position = extend(record, TW_RUN_POSITIONS, space->n_heads);
    for (size_t i = 0; i < space->n_heads; i++) position[i] = (float)log->argmax[i];
}

struct run {
    struct tw_run_record *record;
    const struct tw_backend_ops *ops;
    struct tw_backend *backend;
    const struct tw_model *model;
    const struct tw_run_plan *plan;
    struct tw_bridge bridge;
    struct tw_observation observation;
    struct tw_kv *caches; /* [n_layers] */
};

static void poison(struct tw_kv *kv) {
    memset(kv->key.data, 0xff, kv->key.bytes);
    memset(kv->value.data, 0xff, kv->value.bytes);
}

static void read_layer(struct run *r, const struct tw_kv *kv) {
    struct tw_error err = {0};
    const size_t d = kv->head_dim, n_embd = r->model->config.n_embd;
    OK(r->ops->read_hidden(r->backend, &r->bridge, 0, r->plan->n_tokens, false,
                           extend(r->record, TW_RUN_HIDDEN, r->plan->n_tokens * n_embd), &err));
    for (size_t g = 0; g < kv->n_kv_heads; g++)
        for (int values = 0; values < 2; values++)
            OK(r->ops->read_kv(r->backend, kv, values, g, 0, kv->length[g],
                               extend(r->record, TW_RUN_KEYS, kv->length[g] * d), &err));
}

/* Ranks rows and chunks where the backend can, so that its kernels are watched; what comes out is test_selectors'. */
static void rank(struct run *r, size_t l, const struct tw_kv *kv) {
    struct tw_error err = {0};
    size_t n_scored[64], n_best[64], total = 0;
    for (size_t g = 0; g < kv->n_kv_heads; g++) {
        n_scored[g] = kv->length[g];
        n_best[g] = kv->length[g] / 3;
        total += kv->length[g];
    }
    struct tw_scored *best = calloc(total, sizeof *best);
    struct tw_ranking ranking = {.kind = TW_SCORE_ATTENTION,
                                 .pooling = {.kernel = 3},
                                 .n_scored = n_scored,
                                 .block = r->plan->block,
                                 .n_best = n_best,
                                 .n_shared = kv->length[0] / 4};
    OK(r->ops->rank(r->backend, l, kv, &r->observation, &ranking, best, &err));
    memset(n_best, 0, sizeof n_best);
    ranking.n_shared = 0;
    ranking.chunk = 10;
    n_best[0] = tw_divide_up(kv->length[0], 10);
    OK(r->ops->rank(r->backend, l, kv, &r->observation, &ranking, best, &err));
    free(best);
}

/* The three kinds of score, in pieces of `block`. */
static void read_scores(struct run *r, size_t l, const struct tw_kv *kv) {
    struct tw_error err = {0};
    const size_t n_kv_heads = kv->n_kv_heads, length = tw_kv_longest(kv);
    double *mean = calloc(n_kv_heads * kv->head_dim, sizeof *mean);
    float *piece = calloc(n_kv_heads * r->plan->block, sizeof *piece);
    OK(r->ops->observe(r->backend, l, kv, &r->observation, r->plan->block, &err));
    OK(r->ops->key_mean(r->backend, kv, mean, &err));
    for (int kind = TW_SCORE_ATTENTION; kind <= TW_SCORE_KEY_NORM; kind++) {
        float *all = extend(r->record, TW_RUN_SCORES, n_kv_heads * length);
        for (size_t first = 0; first < length; first += r->plan->block) {
            const size_t n = tw_min_size(r->plan->block, length - first);
            OK(r->ops->score(r->backend, l, kv, &r->observation, (enum tw_score_kind)kind, mean, first, n, piece,
                             &err));
            for (size_t g = 0; g < n_kv_heads; g++) memcpy(all + g * length + first, piece + g * n, n * sizeof *all);
        }
    }
    free(mean);
    free(piece);
    if (r->ops->image->ranks) rank(r, l, kv);
}

/* What is kept of a layer: pseudo-random rows, the same for every backend. */
static void compress(struct run *r, size_t l, const struct tw_kv *kv) {
    struct tw_error err = {0};
    const size_t n_kv_heads = kv->n_kv_heads;
    const int32_t *kept[64];
    size_t n_kept[64], capacity[64];
    ck_assert_uint_le(n_kv_heads, 64);
    for (size_t g = 0; g < n_kv_heads; g++) {
        struct tw_random random;
        tw_random_init(&random, r->plan->seed, l * 64 + g);
        int32_t *rows = calloc(kv->length[g], sizeof *rows);
        size_t budget = r->plan->budget > g ? r->plan->budget - g : 1, n = 0;
        if (!r->plan->budget || budget > kv->length[g]) budget = kv->length[g];
        for (size_t row = 0; row < kv->length[g]; row++) /* each of the rest is as likely as any other */
            if (tw_random_below(&random, kv->length[g] - row) < budget - n) rows[n++] = (int32_t)row;
        kept[g] = rows;
        n_kept[g] = n;
        capacity[g] = n + r->plan->n_steps;
    }
    OK(r->ops->kv_create(r->backend, &r->caches[l], capacity, true, TW_CATEGORY_COMPACT_CACHE, "cache", &err));
    if (r->plan->poison) poison(&r->caches[l]);
    OK(r->ops->gather(r->backend, &r->caches[l], kv, kept, n_kept, &err));
    for (size_t g = 0; g < n_kv_heads; g++) free((void *)(size_t)kept[g]);
}

/* Values that bfloat16 holds, so that every backend keeps the same. */
static float *past_numbers(struct tw_random *random, size_t n) {
    float *const numbers = malloc(n * sizeof *numbers);
    ck_assert_ptr_nonnull(numbers);
    for (size_t i = 0; i < n; i++) numbers[i] = (float)((double)tw_random_below(random, 255) - 127) / 64;
    return numbers;
}

static void write_past(struct run *r, size_t l, struct tw_kv *kv) {
    struct tw_error err = {0};
    struct tw_random random;
    tw_random_init(&random, r->plan->seed, 1000 + l);
    float *const key = past_numbers(&random, kv->n_kv_heads * r->plan->past * kv->head_dim);
    float *const value = past_numbers(&random, kv->n_kv_heads * r->plan->past * kv->head_dim);
    OK(r->ops->write_kv(r->backend, kv, key, value, r->plan->past, &err));
    free(key);
    free(value);
}

static void prefill_layer(struct run *r, size_t l) {
    struct tw_error err = {0};
    const struct tw_run_plan *plan = r->plan;
    const struct tw_model_config *config = &r->model->config;
    size_t capacity[64];
    struct tw_kv kv;
    for (size_t g = 0; g < config->n_kv_heads; g++) capacity[g] = plan->past + plan->n_tokens;
    /* Where rows are not positions they have them. */
    OK(r->ops->kv_create(r->backend, &kv, capacity, plan->first_position > plan->past, TW_CATEGORY_ACTIVE_KV, "kv",
                         &err));
    if (plan->poison) poison(&kv);
    if (plan->past) write_past(r, l, &kv);
    OK(r->ops->layer_begin(r->backend, l, &err));
    r->observation.n_queries = 0;
    r->observation.first_position =
        plan->first_position + plan->n_tokens - tw_min_size(plan->options.window, plan->n_tokens);
    for (size_t first = 0; first < plan->n_tokens; first += plan->chunk) {
        const size_t n = tw_min_size(plan->chunk, plan->n_tokens - first), position = plan->first_position + first;
        OK(r->ops->append(r->backend, l, &r->bridge, first, n, position, &kv, &r->observation, &err));
        OK(r->ops->attend(r->backend, l, &kv, n, position, &err));
        OK(r->ops->finish(r->backend, l, &r->bridge, first, n, &err));
    }
    r->ops->layer_end(r->backend, l);
    ck_assert_uint_eq(r->observation.n_queries, tw_min_size(plan->options.window, plan->n_tokens));
    read_layer(r, &kv);
    read_scores(r, l, &kv);
    struct log_space log;
    log_make(&log, plan, config->n_heads);
    OK(r->ops->log_row(r->backend, l, &kv, &r->observation, &log.log, &err));
    log_write(r->record, &log);
    log_free(&log);
    compress(r, l, &kv);
    r->ops->kv_release(r->backend, &kv);
}

static void decode(struct run *r) {
    struct tw_error err = {0};
    const struct tw_model_config *config = &r->model->config;
    struct log_space log;
    log_make(&log, r->plan, config->n_heads);
    for (size_t t = 0; t < r->plan->n_steps; t++) {
        OK(r->ops->decode_begin(r->backend, (int32_t)((r->plan->seed + 7 * t) % config->n_vocab), &err));
        for (size_t l = 0; l < config->n_layers; l++) {
            const bool logged = t % 3 != 1;
            OK(r->ops->decode_layer(r->backend, l, &r->caches[l], r->plan->first_position + r->plan->n_tokens + t,
                                    logged ? &log.log : NULL, &err));
            if (logged) log_write(r->record, &log);
        }
        OK(r->ops->decode_logits(r->backend, extend(r->record, TW_RUN_LOGITS, config->n_vocab), &err));
        OK(r->ops->read_decode_hidden(r->backend, t % 2, extend(r->record, TW_RUN_HIDDEN, config->n_embd), &err));
    }
    log_free(&log);
}

void tw_run_backend(struct tw_run_record *record, const struct tw_backend_ops *ops, const struct tw_model *model,
                    const struct tw_run_plan *plan) {
    struct tw_error err = {0};
    struct tw_accountant accountant;
    const struct tw_model_config *config = &model->config;
    struct run r = {.record = record, .ops = ops, .model = model, .plan = plan};
    memset(record, 0, sizeof *record);
    tw_accountant_init(&accountant, tw_memory_host, 0);
    OK(ops->open(&r.backend, model, &plan->options, &accountant, &err));
    OK(ops->chunk_create(r.backend, tw_min_size(plan->chunk, plan->n_tokens), &err));
    OK(ops->bridge_create(r.backend, &r.bridge, plan->n_tokens, &err));
    OK(ops->observation_create(r.backend, &r.observation, &err));
    r.caches = calloc(config->n_layers, sizeof *r.caches);
    int32_t *tokens = calloc(plan->n_tokens, sizeof *tokens);
    struct tw_random random;
    tw_random_init(&random, plan->seed, 5);
    for (size_t i = 0; i < plan->n_tokens; i++) tokens[i] = (int32_t)tw_random_below(&random, config->n_vocab);
    OK(ops->embed(r.backend, &r.bridge, 0, tokens, plan->n_tokens, &err));
    for (size_t l = 0; l < config->n_layers; l++) prefill_layer(&r, l);
    const size_t n_last = tw_min_size(3, plan->n_tokens);
    OK(ops->logits(r.backend, &r.bridge, plan->n_tokens - n_last, n_last,
                   extend(record, TW_RUN_LOGITS, n_last * config->n_vocab), &err));
    OK(ops->read_hidden(r.backend, &r.bridge, plan->n_tokens - n_last, n_last, true,
                        extend(record, TW_RUN_HIDDEN, n_last * config->n_embd), &err));
    decode(&r);
    for (size_t l = 0; l < config->n_layers; l++) ops->kv_release(r.backend, &r.caches[l]);
    ops->observation_release(r.backend, &r.observation);
    ops->bridge_release(r.backend, &r.bridge);
    ops->chunk_release(r.backend);
    ops->close(r.backend);
    tw_accountant_release(&accountant);
    free(r.caches);
    free(tokens);
}

const char *tw_test_cuda_library(void) {
    const char *named = getenv("TIDEWAKE_CUDA_LIBRARY");
    if (named && *named) return named;
    const char *build = getenv("TW_BUILD");
    char path[4096];
    snprintf(path, sizeof path, "%s/cudasim/libtidewake-cudasim.so", build ? build : ".");
    setenv("TIDEWAKE_CUDA_LIBRARY", path, 1);
    return getenv("TIDEWAKE_CUDA_LIBRARY");
}
