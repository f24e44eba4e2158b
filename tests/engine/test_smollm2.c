/*
 * SmolLM2 against the goldens of transformers in float32: logits, hidden states, greedy continuation and attention
 * rows, on `ref` for the shorter prompts, on `cpu` in both precisions (tests/golden/engine/logits). Skipped without the
 * model.
 */
#include <cJSON.h>
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "engine/sample.h"
#include "tests/engine/tiny.h"
#include "tests/support.h"

#define MODEL    "data/models/SmolLM2-135M-Instruct.Q4_1.gguf"
#define N_LAYERS 30
#define N_HEADS  9
#define N_EMBD   576
#define N_VOCAB  49152
#define N_LOGGED 16
#define TOP_K    64
#define N_ROWS   (N_LAYERS * N_HEADS)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOW_BUILD 1
#else
#define SLOW_BUILD 0
#endif

/* What is compared, and how close it has to be (README of the goldens, "Tolerances"). */
static const struct check {
    const char *prompt, *backend;
    enum tw_dtype dtype;
    size_t n_greedy; /* greedy tokens that are followed */
    bool slow;       /* left out where instrumented code would take minutes */
} checks[] = {
    {"p12", "ref", TW_DTYPE_F32, 4, true},    {"p200", "ref", TW_DTYPE_F32, 2, true},
    {"p12", "cpu", TW_DTYPE_F32, 64, false},  {"p200", "cpu", TW_DTYPE_F32, 64, true},
    {"p900", "cpu", TW_DTYPE_F32, 16, true},  {"p2500", "cpu", TW_DTYPE_F32, 4, true},
    {"p12", "cpu", TW_DTYPE_BF16, 16, false}, {"p200", "cpu", TW_DTYPE_BF16, 16, true},
    {"p900", "cpu", TW_DTYPE_BF16, 16, true}, {"p2500", "cpu", TW_DTYPE_BF16, 8, true},
};
static const struct tolerance {
    double logits, logits_l2, hidden_l2, attention;
} float_tolerance = {1e-3, 3e-5, 5e-5, 3e-4}, bf16_tolerance = {1.5, 0.05, 0.05, 0.1};

static const char *model_path(void) {
    static char path[4096];
    const char *source = getenv("TW_SOURCE");
    snprintf(path, sizeof path, "%s/" MODEL, source ? source : ".");
    if (access(path, R_OK) == 0) return path;
    return tw_test_skip("model", "SmolLM2 is not there; 'make model' fetches it") ? NULL : path;
}

static void *golden(const char *prompt, const char *name, size_t bytes) {
    char relative[128];
    size_t size;
    snprintf(relative, sizeof relative, "engine/logits/%s/%s", prompt, name);
    void *data = tw_test_read_file(tw_test_golden(relative), &size);
    if (bytes) ck_assert_uint_eq(size, bytes);
    if (!bytes) ((char *)(data = realloc(data, size + 1)))[size] = 0;
    return data;
}

static int32_t *ids_of(const cJSON *json, const char *name, size_t *n) {
    const cJSON *list = cJSON_GetObjectItem(json, name);
    *n = (size_t)cJSON_GetArraySize(list);
    ck_assert_uint_gt(*n, 0);
    int32_t *ids = malloc(*n * sizeof *ids);
    size_t i = 0;
    for (const cJSON *item = list->child; item; item = item->next) ids[i++] = item->valueint;
    return ids;
}

struct difference {
    double greatest, l2;
};

static struct difference compare(const float *a, const float *b, size_t n) {
    double greatest = 0, difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = (double)a[i] - b[i];
        if (!(fabs(d) <= greatest)) greatest = fabs(d);
        difference += d * d;
        norm += (double)b[i] * b[i];
    }
    return (struct difference){greatest, sqrt(difference / norm)};
}

/* The engine's rows of one step: [N_ROWS][TOP_K]. */
struct rows {
    int32_t position[N_ROWS * TOP_K];
    float weight[N_ROWS * TOP_K];
    struct tw_attention_log log[N_LAYERS];
};

static void rows_init(struct rows *rows) {
    for (size_t l = 0; l < N_LAYERS; l++)
        rows->log[l] = (struct tw_attention_log){.top_k = TOP_K,
                                                 .position = rows->position + l * N_HEADS * TOP_K,
                                                 .weight = rows->weight + l * N_HEADS * TOP_K};
}

/* What is watched during prefill: the last row of every layer's hidden states, and step 0's attention. */
struct watched {
    struct tw_engine *engine;
    struct rows *rows;
    size_t n_tokens;
    float hidden[(N_LAYERS + 2) * N_EMBD];
};

static tw_status take_hidden(void *context, size_t index, const struct tw_bridge *bridge, size_t first_row,
                             size_t first_position, size_t n, struct tw_error *err) {
    struct watched *w = context;
    const struct tw_engine *e = w->engine;
    if (first_position + n != w->n_tokens) return TW_OK;
    TW_TRY(e->ops->read_hidden(e->backend, bridge, first_row + n - 1, 1, false, w->hidden + index * N_EMBD, err));
    if (index < N_LAYERS) return TW_OK;
    return e->ops->read_hidden(e->backend, bridge, first_row + n - 1, 1, true, w->hidden + (index + 1) * N_EMBD, err);
}

static tw_status take_row(void *context, size_t l, const struct tw_kv *kv, struct tw_observation *observation,
                          const struct tw_kept *kept, struct tw_error *err) {
    (void)kept;
    struct watched *w = context;
    return w->engine->ops->log_row(w->engine->backend, l, kv, observation, &w->rows->log[l], err);
}

struct golden_rows {
    int32_t *position; /* [N_LOGGED][N_ROWS][TOP_K] */
    float *weight;     /* [N_LOGGED][N_ROWS][TOP_K] */
    float *next;       /* [N_LOGGED][N_ROWS] */
    double shared;     /* sum of shares over rows */
    size_t n_rows;
};

/* Weights in order; positions as sets, where a weight stands clear of the first that is not logged. */
static void check_rows(struct golden_rows *g, const struct rows *rows, size_t step, const struct check *c,
                       double tolerance) {
    for (size_t r = 0; r < N_ROWS; r++) {
        const int32_t *position = rows->position + r * TOP_K;
        const float *weight = rows->weight + r * TOP_K;
        const int32_t *expected = g->position + (step * N_ROWS + r) * TOP_K;
        const float *expected_weight = g->weight + (step * N_ROWS + r) * TOP_K;
        const float next = g->next[step * N_ROWS + r];
        size_t there = 0, shared = 0;
        for (size_t k = 0; k < TOP_K; k++) {
            ck_assert_msg((position[k] < 0) == (expected[k] < 0), "%s, step %zu, row %zu, rank %zu", c->prompt, step, r,
                          k);
            if (expected[k] < 0) continue;
            ck_assert_msg(fabs((double)weight[k] - expected_weight[k]) <= tolerance,
                          "%s, %s, step %zu, row %zu: %g, not %g", c->prompt, c->backend, step, r, weight[k],
                          expected_weight[k]);
            there++;
            bool found = false;
            for (size_t j = 0; j < TOP_K && !found; j++) found = position[j] == expected[k];
            shared += found;
            if (c->dtype == TW_DTYPE_F32)
                ck_assert_msg(found || expected_weight[k] - next <= 2 * tolerance, "%s, step %zu, row %zu: position %d",
                              c->prompt, step, r, expected[k]);
        }
        g->shared += (double)shared / (double)there;
        g->n_rows++;
    }
}

static int by_logit(const void *a, const void *b) {
    const float x = **(const float *const *)a, y = **(const float *const *)b;
    return (x < y) - (x > y);
}

/* How many of the ten likeliest tokens are shared. */
static size_t shared_top_ten(const float *a, const float *b) {
    const float **order_a = malloc(N_VOCAB * sizeof *order_a), **order_b = malloc(N_VOCAB * sizeof *order_b);
    for (size_t v = 0; v < N_VOCAB; v++) {
        order_a[v] = a + v;
        order_b[v] = b + v;
    }
    qsort(order_a, N_VOCAB, sizeof *order_a, by_logit);
    qsort(order_b, N_VOCAB, sizeof *order_b, by_logit);
    size_t shared = 0;
    for (size_t i = 0; i < 10; i++)
        for (size_t j = 0; j < 10; j++) shared += order_a[i] - a == order_b[j] - b;
    free(order_a);
    free(order_b);
    return shared;
}

static void check_prefill(const struct watched *w, const struct check *c, const struct tolerance *t) {
    float *hidden = golden(c->prompt, "hidden.bin", sizeof w->hidden),
          *logits = golden(c->prompt, "logits.bin", N_VOCAB * 4);
    for (size_t i = 0; i < N_LAYERS + 2; i++) {
        const struct difference d = compare(w->hidden + i * N_EMBD, hidden + i * N_EMBD, N_EMBD);
        ck_assert_msg(d.l2 <= t->hidden_l2, "%s, %s: hidden %zu is off by %g", c->prompt, c->backend, i, d.l2);
    }
    const float *own = tw_engine_logits(w->engine);
    const struct difference d = compare(own, logits, N_VOCAB);
    ck_assert_msg(d.greatest <= t->logits, "%s, %s: logits are off by %g", c->prompt, c->backend, d.greatest);
    ck_assert_msg(d.l2 <= t->logits_l2, "%s, %s: logits are off by %g (relative L2)", c->prompt, c->backend, d.l2);
    ck_assert_int_eq(tw_sample_greedy(own, N_VOCAB), tw_sample_greedy(logits, N_VOCAB));
    ck_assert_uint_ge(shared_top_ten(own, logits), c->dtype == TW_DTYPE_F32 ? 10 : 9);
    free(hidden);
    free(logits);
}

START_TEST(goldens_are_met) {
    const struct check *c = &checks[_i];
    const struct tolerance *t = c->dtype == TW_DTYPE_F32 ? &float_tolerance : &bf16_tolerance;
    struct tw_error err = {0};
    if (c->slow && SLOW_BUILD) return;
    const char *path = model_path();
    if (!path) return;
    struct tw_model *model;
    ck_assert_msg(tw_model_open(&model, path, &err) == TW_OK, "%s", err.text);
    struct tw_engine_options options;
    tw_engine_options_init(&options);
    options.backend = c->backend;
    options.backend_options.dtype = c->dtype;
    options.chunk = 512;
    struct tw_engine *engine = tw_tiny_engine(model, &options);
    if (engine->ops->dtype(engine->backend) != c->dtype) { /* a processor without bf16 */
        tw_engine_free(engine);
        tw_model_free(model);
        return;
    }
    char *text = golden(c->prompt, "prompt.json", 0);
    cJSON *json = cJSON_Parse(text);
    size_t n, n_greedy;
    int32_t *prompt = ids_of(json, "prompt_ids", &n), *greedy = ids_of(json, "greedy_ids", &n_greedy);
    struct rows *rows = malloc(sizeof *rows);
    struct watched *w = calloc(1, sizeof *w);
    struct golden_rows g = {.position = golden(c->prompt, "attention_position.bin", N_LOGGED * N_ROWS * TOP_K * 4),
                            .weight = golden(c->prompt, "attention_weight.bin", N_LOGGED * N_ROWS * TOP_K * 4),
                            .next = golden(c->prompt, "attention_next.bin", N_LOGGED * N_ROWS * 4)};
    rows_init(rows);
    w->engine = engine;
    w->rows = rows;
    w->n_tokens = n;
    const struct tw_watch watch = {.context = w, .hidden = take_hidden, .layer_end = take_row};
    ck_assert_msg(tw_engine_prefill(engine, prompt, n, c->n_greedy, &watch, NULL, &err) == TW_OK, "%s", err.text);
    check_prefill(w, c, t);
    for (size_t step = 0; step < c->n_greedy; step++) {
        if (step < N_LOGGED) check_rows(&g, rows, step, c, t->attention);
        if (c->dtype == TW_DTYPE_F32)
            ck_assert_msg(tw_sample_greedy(tw_engine_logits(engine), N_VOCAB) == greedy[step], "%s, %s: token %zu",
                          c->prompt, c->backend, step);
        ck_assert(tw_engine_decode(engine, greedy[step], step + 1 < N_LOGGED ? rows->log : NULL, &err) == TW_OK);
    }
    ck_assert(g.shared / (double)g.n_rows >= (c->dtype == TW_DTYPE_F32 ? 0.97 : 0.9));
    free(g.position), free(g.weight), free(g.next);
    free(w), free(rows), free(prompt), free(greedy), free(text);
    cJSON_Delete(json);
    tw_engine_free(engine);
    tw_model_free(model);
}
END_TEST

/* C17, on the model of the case: the compact cache holds KV heads, not query heads. And plan says the same. */
START_TEST(compact_cache_is_of_kv_heads) {
    struct tw_error err = {0};
    const char *path = model_path();
    if (!path) return;
    struct tw_model *model;
    ck_assert_msg(tw_model_open(&model, path, &err) == TW_OK, "%s", err.text);
    struct tw_engine_options options;
    tw_engine_options_init(&options);
    options.backend = "dry";
    options.image = "cuda";
    options.budget = 1024;
    struct tw_engine *engine = tw_tiny_engine(model, &options);
    int32_t *tokens = calloc(2000, sizeof *tokens);
    ck_assert(tw_engine_prefill(engine, tokens, 2000, 0, NULL, NULL, &err) == TW_OK);
    ck_assert_uint_eq(engine->accountant.current[TW_CATEGORY_COMPACT_CACHE], 23592960);
    tw_engine_free(engine);
    free(tokens);
    tw_model_free(model);
}
END_TEST

/* On the real model, too, plan and run agree to the byte, and chunks do not change a bit. */
START_TEST(plan_and_run_agree) {
    static const char *const schedules[] = {"tide", "postprefill", "block", "chunked"};
    struct tw_error err = {0};
    const char *path = model_path();
    if (!path || SLOW_BUILD) return;
    struct tw_model *model;
    ck_assert_msg(tw_model_open(&model, path, &err) == TW_OK, "%s", err.text);
    int32_t *tokens = tw_tiny_tokens(model, 700, 31);
    for (size_t s = 0; s < 4; s++) {
        struct tw_accountant books[2];
        float *logits = NULL;
        for (size_t dry = 0; dry < 3; dry++) {
            struct tw_engine_options options;
            tw_engine_options_init(&options);
            options.schedule = schedules[s];
            options.budget = s < 3 ? 256 : 0;
            options.chunk = dry == 2 ? 137 : 256;
            options.backend = dry == 1 ? "dry" : "cpu";
            options.image = dry == 1 ? "cpu" : NULL;
            struct tw_engine *engine = tw_tiny_engine(model, &options);
            ck_assert(tw_engine_prefill(engine, tokens, 700, 2, NULL, NULL, &err) == TW_OK);
            if (dry == 0) {
                logits = malloc(N_VOCAB * sizeof *logits);
                memcpy(logits, tw_engine_logits(engine), N_VOCAB * sizeof *logits);
            }
            if (dry == 2 && s != 2) ck_assert_mem_eq(logits, tw_engine_logits(engine), N_VOCAB * sizeof *logits);
            ck_assert(tw_engine_decode(engine, 5, NULL, &err) == TW_OK);
            if (dry < 2) {
                books[dry] = engine->accountant;
                books[dry].events = NULL;
            }
            tw_engine_free(engine);
        }
        free(logits);
        for (int p = 0; p < TW_N_PHASES; p++) {
            ck_assert_mem_eq(books[0].peak[p], books[1].peak[p], sizeof books[0].peak[p]);
            ck_assert_uint_eq(books[0].peak_total[p], books[1].peak_total[p]);
        }
    }
    free(tokens);
    tw_model_free(model);
}
END_TEST

Suite *tw_suite_smollm2(void);

Suite *tw_suite_smollm2(void) {
    Suite *suite = suite_create("smollm2");
    TCase *tcase = tcase_create("goldens");
    tcase_set_timeout(tcase, 600);
    tcase_add_loop_test(tcase, goldens_are_met, 0, sizeof checks / sizeof *checks);
    tcase_add_test(tcase, compact_cache_is_of_kv_heads);
    tcase_add_test(tcase, plan_and_run_agree);
    suite_add_tcase(suite, tcase);
    return suite;
}
