/*
 * The six tiny models from every container against what transformers computes: logits and hidden states of all
 * positions, and greedy continuations; on every backend that is built in.
 */
#include <check.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "tests/engine/backend_run.h"
#include "tests/engine/compare_models.h"
#include "tests/support.h"

Suite *tw_suite_models(void);

static const char *const families[] = {"llama_rope3", "llama_tied",   "mistral_gqa",
                                       "qwen2_bias",  "qwen3_qknorm", "gemma3_text"};
enum { N_FAMILIES = sizeof families / sizeof *families };
static const char *const containers[] = {NULL, "f32", "f16", "q8_0"}; /* NULL: the Hugging Face folder */
enum { N_CONTAINERS = sizeof containers / sizeof *containers };
/* Sanitizers take the first and the last alone: both ways of naming, plain and quantised. */
#ifdef __SANITIZE_ADDRESS__
enum { CONTAINER_STEP = N_CONTAINERS - 1 };
#else
enum { CONTAINER_STEP = 1 };
#endif

/* Of the golden data's README: relative L2 and greatest difference of float32; relative L2 and share of equal best
 * tokens of bfloat16. */
static const struct {
    const char *backend;
    enum tw_dtype dtype;
    double relative, absolute, top1;
} runs[] = {
    {"ref", TW_DTYPE_F32, 1e-5, 2e-4, 1},          {"cpu", TW_DTYPE_F32, 1e-5, 2e-4, 1},
    {"cpu", TW_DTYPE_BF16, 0.06, INFINITY, 0.85},  {"cuda", TW_DTYPE_F32, 1e-5, 2e-4, 1},
    {"cuda", TW_DTYPE_BF16, 0.06, INFINITY, 0.85},
};
enum { N_RUNS = sizeof runs / sizeof *runs };

/* ---- expectations --------------------------------------------------------------------------------------------------
 */

static float *read_floats(const char *family, const char *name, size_t n) {
    char path[256];
    size_t size;
    snprintf(path, sizeof path, "engine/models/%s/golden/%s.bin", family, name);
    float *values = tw_test_read_file(tw_test_golden(path), &size);
    ck_assert_uint_eq(size, n * sizeof *values);
    return values;
}

static int32_t *read_ids(size_t *n, const cJSON *root, const char *name) {
    const cJSON *list = cJSON_GetObjectItem(root, name), *id;
    ck_assert_msg(cJSON_IsArray(list), "no %s", name);
    int32_t *ids = malloc((size_t)cJSON_GetArraySize(list) * sizeof *ids);
    *n = 0;
    cJSON_ArrayForEach(id, list) ids[(*n)++] = (int32_t)id->valuedouble;
    return ids;
}

/* ---- running -------------------------------------------------------------------------------------------------------
 */

struct look {
    struct tw_engine *engine;
    size_t n_tokens, n_layers, n_embd, n_vocab;
    float *hidden; /* [n_layers + 2][n_tokens][n_embd] */
    float *logits; /* [n_tokens][n_vocab] */
};

static tw_status take(void *context, size_t index, const struct tw_bridge *bridge, size_t first_row,
                      size_t first_position, size_t n, struct tw_error *err) {
    const struct look *look = context;
    const struct tw_engine *e = look->engine;
    float *at = look->hidden + (index * look->n_tokens + first_position) * look->n_embd;
    TW_TRY(e->ops->read_hidden(e->backend, bridge, first_row, n, false, at, err));
    if (index != look->n_layers) return TW_OK;
    TW_TRY(e->ops->read_hidden(e->backend, bridge, first_row, n, true, at + look->n_tokens * look->n_embd, err));
    return e->ops->logits(e->backend, bridge, first_row, n, look->logits + first_position * look->n_vocab, err);
}

static size_t best(const float *logits, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static void must_be_near(const char *what, const float *got, const float *expected, size_t n, double relative,
                         double absolute) {
    double difference = 0, size = 0, greatest = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)got[i] - expected[i]);
        difference += d * d;
        size += (double)expected[i] * expected[i];
        if (!(d <= greatest)) greatest = d;
    }
    const double ratio = sqrt(difference / size);
    ck_assert_msg(ratio <= relative && greatest <= absolute,
                  "%s: relative L2 %g, expected %g; greatest %g, expected %g", what, ratio, relative, greatest,
                  absolute);
}

static void check_model(const char *family, const char *container, size_t run) {
    char what[128], name[64], path[256];
    snprintf(what, sizeof what, "%s %s on %s %s", family, container ? container : "hf", runs[run].backend,
             runs[run].dtype == TW_DTYPE_BF16 ? "bf16" : "f32");
    snprintf(path, sizeof path, "engine/models/%s/golden/golden.json", family);
    char *text = tw_test_read_file(tw_test_golden(path), &(size_t){0});
    cJSON *root = cJSON_Parse(text);
    /* Rounded weights have expectations of their own. */
    const bool rounded = container && (strcmp(container, "q8_0") == 0 ||
                                       (strcmp(container, "f16") == 0 && strcmp(family, "llama_tied") == 0));
    const char *ending = rounded ? container : "";
    size_t n, n_greedy;
    int32_t *prompt = read_ids(&n, root, "prompt_ids");
    snprintf(name, sizeof name, "greedy_ids%s%s", rounded ? "_" : "", ending);
    int32_t *greedy = read_ids(&n_greedy, root, name);

    snprintf(path, sizeof path, container ? "engine/models/%s/%s.%s.gguf" : "engine/models/%s/hf", family, family,
             container);
    struct tw_model *model = tw_must_open(tw_test_golden(path));
    struct tw_engine_options options;
    tw_engine_options_init(&options);
    options.backend = runs[run].backend;
    options.backend_options.dtype = runs[run].dtype;
    options.chunk = 40;
    struct look look = {.n_tokens = n,
                        .n_layers = model->config.n_layers,
                        .n_embd = model->config.n_embd,
                        .n_vocab = model->config.n_vocab};
    const size_t n_hidden = (look.n_layers + 2) * n * look.n_embd;
    look.hidden = malloc(n_hidden * sizeof(float));
    look.logits = malloc(n * look.n_vocab * sizeof(float));
    struct tw_error err = {0};
    const struct tw_watch watch = {.context = &look, .hidden = take};
    ck_assert_msg(tw_engine_open(&look.engine, model, &options, &err) == TW_OK, "%s: %s", what, err.text);
    ck_assert_msg(tw_engine_prefill(look.engine, prompt, n, n_greedy, &watch, NULL, &err) == TW_OK, "%s: %s", what,
                  err.text);

    const bool gemma = strcmp(family, "gemma3_text") == 0, bf16 = runs[run].dtype == TW_DTYPE_BF16;
    const double relative = bf16 && gemma ? 0.15 : runs[run].relative;
    snprintf(name, sizeof name, "logits%s%s", rounded ? "_" : "", ending);
    float *expected = read_floats(family, name, n * look.n_vocab);
    must_be_near(what, look.logits, expected, n * look.n_vocab, relative, runs[run].absolute);
    size_t equal = 0;
    for (size_t i = 0; i < n; i++)
        equal += best(look.logits + i * look.n_vocab, look.n_vocab) == best(expected + i * look.n_vocab, look.n_vocab);
    ck_assert_msg((double)equal >= runs[run].top1 * (double)n, "%s: %zu of %zu best tokens are equal", what, equal, n);
    free(expected);
    if (!rounded) {
        expected = read_floats(family, "hidden", n_hidden);
        must_be_near(what, look.hidden, expected, n_hidden, relative, runs[run].absolute);
        free(expected);
    }
    /* An emulated device that watches its memory takes seconds a token: it decodes a few, the plain build all. */
    const size_t n_decoded = TW_SANITIZED && strcmp(runs[run].backend, "cuda") == 0 ? 3 : n_greedy;
    for (size_t t = 0; t < n_decoded && t < n_greedy && !bf16; t++) {
        const size_t token = best(tw_engine_logits(look.engine), look.n_vocab);
        ck_assert_msg(token == (size_t)greedy[t], "%s: step %zu gives %zu, expected %d", what, t, token, greedy[t]);
        ck_assert_msg(tw_engine_decode(look.engine, (int32_t)token, NULL, &err) == TW_OK, "%s: %s", what, err.text);
    }
    tw_engine_free(look.engine);
    tw_model_free(model);
    free(look.hidden);
    free(look.logits);
    free(prompt);
    free(greedy);
    cJSON_Delete(root);
    free(text);
}

START_TEST(equals_transformers) {
    const size_t run = (size_t)_i / N_FAMILIES, family = (size_t)_i % N_FAMILIES;
    const bool cuda = strcmp(runs[run].backend, "cuda") == 0;
    if (cuda) tw_test_cuda_library(); /* the emulated one, unless a device's is named */
    /* Emulated, one container each will do, plain in float32 and blocks in bfloat16: all load to the same numbers. */
    const size_t only = runs[run].dtype == TW_DTYPE_F32 ? 0 : 3;
    for (size_t c = cuda ? only : 0; c < (cuda ? only + 1 : N_CONTAINERS); c += CONTAINER_STEP)
        check_model(families[family], containers[c], run);
}
END_TEST

Suite *tw_suite_models(void) {
    Suite *suite = suite_create("models");
    TCase *tcase = tcase_create("golden");
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, equals_transformers, 0, N_RUNS * N_FAMILIES);
    suite_add_tcase(suite, tcase);
    return suite;
}
