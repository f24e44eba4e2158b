/*
 * SmolLM2-135M against PyTorch's float32: logits, hidden states of every layer, greedy continuation, and the attention
 * rows of sixteen steps (tests/golden/engine/logits). Tolerances are those of the goldens' README.
 */
#include <check.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"
#include "tests/golden_json.h"
#include "tests/support.h"

#define MODEL "data/models/SmolLM2-135M-Instruct.Q4_1.gguf"

enum { N_LAYERS = 30, N_HEADS = 9, N_EMBD = 576, N_VOCAB = 49152, N_STEPS = 16, TOP = 64, N_HIDDEN = N_LAYERS + 2 };

/* Sanitizers make our own kernels ten times slower and say nothing new on a long prompt. */
#ifdef __SANITIZE_ADDRESS__
#define LONG_PROMPTS 0
#else
#define LONG_PROMPTS 1
#endif

static const struct run {
    const char *backend;
    enum tw_dtype dtype;
    const char *prompt;
    bool is_long;
    size_t n_greedy; /* steps of the greedy continuation */
    double logits, logits_relative, hidden, attention;
} runs[] = {
    {"ref", TW_DTYPE_F32, "p12", true, 4, 1e-3, 3e-5, 5e-5, 3e-4},
    {"cpu", TW_DTYPE_F32, "p12", false, 64, 1e-3, 3e-5, 5e-5, 3e-4},
    {"cpu", TW_DTYPE_F32, "p200", false, 64, 1e-3, 3e-5, 5e-5, 3e-4},
    {"cpu", TW_DTYPE_F32, "p900", true, 64, 1e-3, 3e-5, 5e-5, 3e-4},
    {"cpu", TW_DTYPE_F32, "p2500", true, 64, 1e-3, 3e-5, 5e-5, 3e-4},
    {"cpu", TW_DTYPE_BF16, "p12", false, 16, 1.5, 0.05, 0.05, 0.1},
    {"cpu", TW_DTYPE_BF16, "p200", false, 16, 1.5, 0.05, 0.05, 0.1},
    {"cpu", TW_DTYPE_BF16, "p900", true, 16, 1.5, 0.05, 0.05, 0.1},
    {"cpu", TW_DTYPE_BF16, "p2500", true, 16, 1.5, 0.05, 0.05, 0.1},
};
enum { N_RUNS = sizeof runs / sizeof *runs };

static void *read_array(const char *prompt, const char *name, size_t n) {
    char path[128];
    size_t size;
    snprintf(path, sizeof path, "engine/logits/%s/%s.bin", prompt, name);
    void *values = tw_test_read_file(tw_test_golden(path), &size);
    ck_assert_uint_eq(size, n * 4);
    return values;
}

static int32_t *read_ids(const cJSON *root, const char *name, size_t *n) {
    const cJSON *list = cJSON_GetObjectItem(root, name), *id;
    int32_t *ids = malloc((size_t)cJSON_GetArraySize(list) * sizeof *ids);
    *n = 0;
    cJSON_ArrayForEach(id, list) ids[(*n)++] = (int32_t)id->valuedouble;
    return ids;
}

static double relative_l2(const float *got, const float *expected, size_t n) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        difference += ((double)got[i] - expected[i]) * ((double)got[i] - expected[i]);
        size += (double)expected[i] * expected[i];
    }
    return sqrt(difference / size);
}

static size_t best_of(const float *logits) {
    size_t best = 0;
    for (size_t i = 1; i < N_VOCAB; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

struct seen {
    struct tw_engine *engine;
    size_t n_tokens;
    float *hidden; /* [N_HIDDEN][N_EMBD] of the last position */
    struct tw_attention_log log[N_LAYERS];
    int32_t position[N_LAYERS][N_HEADS][TOP];
    float weight[N_LAYERS][N_HEADS][TOP];
};

static tw_status see_hidden(void *context, size_t index, const struct tw_bridge *bridge, size_t first_row,
                            size_t first_position, size_t n, struct tw_error *err) {
    struct seen *seen = context;
    const struct tw_engine *e = seen->engine;
    if (first_position + n != seen->n_tokens) return TW_OK;
    TW_TRY(e->ops->read_hidden(e->backend, bridge, first_row + n - 1, 1, false, seen->hidden + index * N_EMBD, err));
    if (index < N_LAYERS) return TW_OK;
    return e->ops->read_hidden(e->backend, bridge, first_row + n - 1, 1, true, seen->hidden + (index + 1) * N_EMBD,
                               err);
}

static tw_status see_layer_end(void *context, size_t l, const struct tw_kv *kv, struct tw_observation *observation,
                               const struct tw_kept *kept, struct tw_error *err) {
    (void)kept;
    struct seen *seen = context;
    return seen->engine->ops->log_row(seen->engine->backend, l, kv, observation, &seen->log[l], err);
}

/* Weights in order; positions where the weight stands clear of what was not logged. Returns the share of positions that
 * both list. */
static double compare_rows(const struct run *run, const struct seen *seen, const int32_t *position, const float *weight,
                           const float *next, size_t step) {
    size_t shared = 0, listed = 0;
    for (size_t l = 0; l < N_LAYERS; l++)
        for (size_t h = 0; h < N_HEADS; h++) {
            const size_t row = (step * N_LAYERS + l) * N_HEADS + h;
            for (size_t k = 0; k < TOP; k++) {
                const double diff = fabs((double)seen->weight[l][h][k] - weight[row * TOP + k]);
                if (!(diff <= run->attention))
                    ck_abort_msg("%s %s, step %zu, layer %zu, head %zu: weight %zu is %g, expected %g", run->backend,
                                 run->prompt, step, l, h, k, (double)seen->weight[l][h][k],
                                 (double)weight[row * TOP + k]);
                if (position[row * TOP + k] < 0) continue;
                listed++;
                bool found = false;
                for (size_t j = 0; j < TOP; j++) found = found || seen->position[l][h][j] == position[row * TOP + k];
                shared += found;
                if (run->dtype == TW_DTYPE_F32 && weight[row * TOP + k] > next[row] + 2 * run->attention)
                    ck_assert_msg(found, "%s %s, step %zu, layer %zu, head %zu: position %d is missing", run->backend,
                                  run->prompt, step, l, h, position[row * TOP + k]);
            }
        }
    return (double)shared / (double)listed;
}

static void compare_prompt(const struct run *run, const struct seen *seen, const float *logits, const cJSON *root) {
    float *expected_logits = read_array(run->prompt, "logits", N_VOCAB);
    float *expected_hidden = read_array(run->prompt, "hidden", N_HIDDEN * N_EMBD);
    double worst = 0;
    for (size_t i = 0; i < N_VOCAB; i++) worst = fmax(worst, fabs((double)logits[i] - expected_logits[i]));
    ck_assert_msg(worst <= run->logits, "%s %s: logits differ by %g", run->backend, run->prompt, worst);
    const double relative = relative_l2(logits, expected_logits, N_VOCAB);
    ck_assert_msg(relative <= run->logits_relative, "%s %s: logits differ by %g relative", run->backend, run->prompt,
                  relative);
    for (size_t i = 0; i < N_HIDDEN; i++) {
        const double distance = relative_l2(seen->hidden + i * N_EMBD, expected_hidden + i * N_EMBD, N_EMBD);
        ck_assert_msg(distance <= run->hidden, "%s %s: hidden states %zu differ by %g", run->backend, run->prompt, i,
                      distance);
    }
    /* The best token, and nine of the best ten. */
    const cJSON *list = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "step_top10_ids"), 0), *id;
    ck_assert_uint_eq(best_of(logits), (size_t)cJSON_GetArrayItem(list, 0)->valuedouble);
    size_t shared = 0;
    cJSON_ArrayForEach(id, list) {
        size_t better = 0;
        for (size_t i = 0; i < N_VOCAB; i++) better += logits[i] > logits[(size_t)id->valuedouble];
        shared += better < 10;
    }
    ck_assert_uint_ge(shared, 9);
    free(expected_logits);
    free(expected_hidden);
}

START_TEST(smollm2_meets_its_goldens) {
    const struct run *run = &runs[_i];
    if (run->is_long && !LONG_PROMPTS) return;
    if (access(MODEL, R_OK) != 0 && tw_test_skip("model", "no " MODEL)) return;
    struct tw_error err = {0};
    struct tw_model *model;
    ck_assert_msg(tw_model_open(&model, MODEL, &err) == TW_OK, "%s", err.text);
    struct tw_engine_options options;
    struct tw_engine *engine;
    tw_engine_options_init(&options);
    options.backend = run->backend;
    options.backend_options.dtype = run->dtype;
    ck_assert_msg(tw_engine_open(&engine, model, &options, &err) == TW_OK, "%s", err.text);

    char path[128];
    snprintf(path, sizeof path, "engine/logits/%s/prompt.json", run->prompt);
    cJSON *root = tw_test_json_file(tw_test_golden(path));
    size_t n_tokens, n_greedy;
    int32_t *tokens = read_ids(root, "prompt_ids", &n_tokens), *greedy = read_ids(root, "greedy_ids", &n_greedy);
    const size_t n_rows = (size_t)N_STEPS * N_LAYERS * N_HEADS;
    int32_t *position = read_array(run->prompt, "attention_position", n_rows * TOP);
    float *weight = read_array(run->prompt, "attention_weight", n_rows * TOP);
    float *next = read_array(run->prompt, "attention_next", n_rows);

    struct seen *seen = calloc(1, sizeof *seen);
    ck_assert_ptr_nonnull(seen);
    seen->engine = engine;
    seen->n_tokens = n_tokens;
    seen->hidden = calloc(N_HIDDEN * N_EMBD, sizeof *seen->hidden);
    for (size_t l = 0; l < N_LAYERS; l++)
        seen->log[l] =
            (struct tw_attention_log){.top_k = TOP, .position = seen->position[l][0], .weight = seen->weight[l][0]};
    const struct tw_watch watch = {.context = seen, .hidden = see_hidden, .layer_end = see_layer_end};
    ck_assert_msg(tw_engine_prefill(engine, tokens, n_tokens, n_greedy, &watch, NULL, &err) == TW_OK, "%s", err.text);
    compare_prompt(run, seen, tw_engine_logits(engine), root);
    double shared = compare_rows(run, seen, position, weight, next, 0);
    size_t n_compared = 1;
    for (size_t t = 0; t < run->n_greedy && t < n_greedy; t++) {
        if (run->dtype == TW_DTYPE_F32) ck_assert_uint_eq(best_of(tw_engine_logits(engine)), (size_t)greedy[t]);
        if (t + 1 >= run->n_greedy) break;
        ck_assert_msg(tw_engine_decode(engine, greedy[t], seen->log, &err) == TW_OK, "%s", err.text);
        if (t + 1 >= N_STEPS) continue;
        shared += compare_rows(run, seen, position, weight, next, t + 1);
        n_compared++;
    }
    shared /= (double)n_compared;
    ck_assert_msg(shared >= 0.9, "%s %s: only %.3f of the positions are shared", run->backend, run->prompt, shared);

    free(seen->hidden);
    free(seen);
    free(position);
    free(weight);
    free(next);
    free(tokens);
    free(greedy);
    cJSON_Delete(root);
    tw_engine_free(engine);
    tw_model_free(model);
}
END_TEST

Suite *tw_suite_smollm2(void);
Suite *tw_suite_smollm2(void) {
    Suite *suite = suite_create("smollm2");
    TCase *tcase = tcase_create("goldens");
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, smollm2_meets_its_goldens, 0, N_RUNS);
    suite_add_tcase(suite, tcase);
    return suite;
}
