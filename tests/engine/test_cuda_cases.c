/*
 * The CUDA backend against `ref` on random models of every kind, and against itself: chunks, blocks and temporaries
 * change no bit. Runs on whatever library TIDEWAKE_CUDA_LIBRARY names: the emulated one unless told otherwise, the
 * shadow build and the mutants when suite `cuda` says so, a real device in `make check-cuda`.
 */
#include <check.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "engine/backend/load.h"
#include "engine/engine.h"
#include "tests/cudasim/control.h"
#include "tests/engine/backend_run.h"
#include "tests/engine/model_random.h"
#include "tests/engine/tiny.h"
#include "tests/support.h"

extern const struct tw_backend_ops tw_backend_ref;

Suite *tw_suite_cuda_cases(void);

/* ---- the library
 * -----------------------------------------------------------------------------------------------------
 */

static const struct tw_backend_ops *cuda(void) {
    const struct tw_backend_ops *ops;
    struct tw_error err = {0};
    tw_test_cuda_library();
    ck_assert_msg(tw_backend_load(&ops, "cuda", &err) == TW_OK, "%s", err.text);
    return ops;
}

/*
 * A build that watches memory is slower: two pieces of a long row instead of three, every third failure (another third
 * of them in each way to run), fewer random cases.
 */
#ifdef __SANITIZE_ADDRESS__
enum { LONG_PAST = 4200, N_LONG = 1, FAILURE_STEP = 3, LAUNCH_FAILURES = 4, N_CASES = 2, N_CROSSING = 3 };
#else
enum { LONG_PAST = 9000, N_LONG = 4, FAILURE_STEP = 1, LAUNCH_FAILURES = 12, N_CASES = 6, N_CROSSING = 7 };
#endif

/* NULL on a real device. */
static const struct cudasim_control *emulation(void) {
    cuda();
    void *const library = dlopen(tw_test_cuda_library(), RTLD_NOW | RTLD_NOLOAD);
    return library ? dlsym(library, CUDASIM_CONTROL) : NULL;
}

static void nothing_left(const char *what) {
    const struct cudasim_control *const control = emulation();
    if (control) ck_assert_msg(control->live_objects() == 0, "%s: %ld objects are left", what, control->live_objects());
}

/* ---- random runs
 * -----------------------------------------------------------------------------------------------------
 */

static size_t one_of(struct tw_random *random, const size_t *list, size_t n) {
    return list[tw_random_below(random, n)];
}
#define ONE_OF(random, ...)                                                                                            \
    one_of(random, (const size_t[]){__VA_ARGS__}, sizeof(const size_t[]){__VA_ARGS__} / sizeof(size_t))

static struct tw_random_model random_shape(struct tw_random *random) {
    static const struct {
        enum tw_type types[4];
        size_t n_embd[3], n_mlp[3];
    } sets[] = {
        {{TW_TYPE_F32, TW_TYPE_F32, TW_TYPE_F32, TW_TYPE_F32}, {33, 40, 130}, {7, 64, 100}},
        {{TW_TYPE_BF16, TW_TYPE_F16, TW_TYPE_BF16, TW_TYPE_F32}, {34, 48, 96}, {7, 64, 100}},
        {{TW_TYPE_Q4_1, TW_TYPE_Q8_0, TW_TYPE_Q5_1, TW_TYPE_IQ4_NL}, {32, 64, 96}, {32, 64, 128}},
        {{TW_TYPE_Q4_0, TW_TYPE_Q5_0, TW_TYPE_F16, TW_TYPE_Q8_0}, {32, 64, 96}, {32, 64, 128}},
        {{TW_TYPE_Q4_K, TW_TYPE_Q6_K, TW_TYPE_Q2_K, TW_TYPE_Q8_0}, {256, 256, 256}, {256, 256, 256}},
        {{TW_TYPE_Q5_K, TW_TYPE_Q3_K, TW_TYPE_IQ4_XS, TW_TYPE_BF16}, {256, 256, 256}, {256, 256, 256}},
    };
    const size_t set = tw_random_below(random, sizeof sets / sizeof *sets);
    struct tw_random_model s = {.n_layers = 2, .n_types = 4, .n_vocab = 61};
    memcpy(s.types, sets[set].types, sizeof sets[set].types);
    s.n_embd = sets[set].n_embd[tw_random_below(random, 3)];
    s.n_mlp = sets[set].n_mlp[tw_random_below(random, 3)];
    s.n_kv_heads = ONE_OF(random, 1, 2, 3);
    s.n_heads = s.n_kv_heads * ONE_OF(random, 1, 2, 3, 7);
    s.head_dim = ONE_OF(random, 2, 6, 16, 20, 32, 64, 80, 128, 256);
    if (s.n_heads * s.head_dim > 512) s.n_heads = s.n_kv_heads;
    s.biases = tw_random_below(random, 3) == 0;
    s.head_norms = tw_random_below(random, 3) == 0;
    s.post_norms = tw_random_below(random, 3) == 0;
    s.sliding_window = tw_random_below(random, 3) == 0 ? ONE_OF(random, 1, 17, 70) : 0;
    s.rope_pairs = tw_random_below(random, 2) ? TW_ROPE_HALVES : TW_ROPE_INTERLEAVED;
    s.activation = tw_random_below(random, 2) ? TW_ACTIVATION_SILU : TW_ACTIVATION_GELU_TANH;
    return s;
}

static struct tw_run_plan random_plan(struct tw_random *random, uint64_t seed) {
    struct tw_run_plan p = {
        .options = {.dtype = TW_DTYPE_F32, .window = ONE_OF(random, 1, 8, 20)},
        .n_tokens = ONE_OF(random, 1, 5, 16, 63, 65, 100, 130),
        .n_steps = 3,
        .block = ONE_OF(random, 7, 64, 100),
        .top_k = ONE_OF(random, 1, 8, 64),
        .needle = tw_random_below(random, 2),
        .seed = seed,
    };
    p.chunk = p.n_tokens;
    /* Also across the edge of a row block. */
    p.first_position = tw_random_below(random, 3) == 0 ? ONE_OF(random, 1, 100, 500) : 0;
    p.budget = tw_random_below(random, 2) ? 1 + tw_random_below(random, p.n_tokens) : 0;
    p.options.attention = tw_random_below(random, 4) == 0 ? TW_ATTENTION_EAGER : TW_ATTENTION_TILED;
    return p;
}

/* Differences relative to the root mean square of what is expected: the greatest, or (`mean`) their root mean square.
 */
static double distance(const float *expected, const float *found, size_t n, bool mean, size_t *where) {
    double square = 0, worst = 0, total = 0;
    size_t finite = 0;
    *where = 0;
    for (size_t i = 0; i < n; i++)
        if (isfinite(expected[i])) square += (double)expected[i] * expected[i], finite++;
    const double size = finite ? sqrt(square / (double)finite) + 1e-30 : 1;
    for (size_t i = 0; i < n; i++) {
        if (expected[i] == found[i]) continue;
        const double difference = fabs((double)expected[i] - found[i]) / size;
        total += difference * difference;
        if (!(difference <= worst)) {
            worst = difference;
            *where = i;
            if (!isfinite(difference)) return worst;
        }
    }
    return mean ? sqrt(total / (double)(finite ? finite : 1)) : worst;
}

static const char *const section_names[TW_RUN_SECTIONS] = {"hidden", "keys",    "scores",
                                                           "logits", "weights", "positions"};

static void compare(const struct tw_run_record *expected, const struct tw_run_record *found, const double *tolerance,
                    bool mean, uint64_t seed) {
    for (int i = 0; i < TW_RUN_SECTIONS; i++) {
        size_t where;
        ck_assert_uint_eq(expected->n[i], found->n[i]);
        if (tolerance[i] < 0) continue;
        const double worst = distance(expected->data[i], found->data[i], expected->n[i], mean, &where);
        ck_assert_msg(worst <= tolerance[i], "seed %llu, %s: %g from the reference at %zu of %zu (%g, expected %g)",
                      (unsigned long long)seed, section_names[i], worst, where, expected->n[i],
                      (double)found->data[i][where], (double)expected->data[i][where]);
    }
}

static void identical(const struct tw_run_record *a, const struct tw_run_record *b, uint64_t seed) {
    for (int i = 0; i < TW_RUN_SECTIONS; i++) {
        ck_assert_uint_eq(a->n[i], b->n[i]);
        for (size_t j = 0; j < a->n[i]; j++)
            ck_assert_msg(memcmp(&a->data[i][j], &b->data[i][j], sizeof(float)) == 0,
                          "seed %llu, %s: not the same bits at %zu of %zu (%g, %g)", (unsigned long long)seed,
                          section_names[i], j, a->n[i], (double)a->data[i][j], (double)b->data[i][j]);
    }
}

/* Sums of up to some hundred terms in float32, behind two layers; positions may differ where weights are this close. */
static const double f32_tolerance[TW_RUN_SECTIONS] = {1e-3, 1e-3, 1e-3, 1e-3, 1e-3, -1};
/* bf16 keeps 8 bits: each rounding is 2^-9 relative, a few a layer, amplified by the softmax. Root mean squares. */
static const double bf16_tolerance[TW_RUN_SECTIONS] = {0.05, 0.05, 0.3, 0.05, 0.25, -1};

static void vary(struct tw_run_plan *plan, struct tw_random *random) {
    plan->chunk = 1 + tw_random_below(random, plan->n_tokens);
    plan->block = ONE_OF(random, 5, 128, 1000);
    plan->options.allocator = tw_random_below(random, 2) ? TW_ALLOCATOR_ASYNC : TW_ALLOCATOR_NATIVE;
    plan->options.weights = tw_random_below(random, 2) ? TW_WEIGHTS_STREAM : TW_WEIGHTS_MAPPED;
}

static void run_case(uint64_t seed, enum tw_dtype dtype) {
    struct tw_random random;
    tw_random_init(&random, seed, 1);
    const struct tw_random_model shape = random_shape(&random);
    struct tw_model *const model = tw_random_model_make(&shape, seed);
    struct tw_run_plan plan = random_plan(&random, seed);
    struct tw_run_record ref, one, other;
    if (emulation()) emulation()->seed(seed);
    plan.options.n_threads = 1;
    tw_run_backend(&ref, &tw_backend_ref, model, &plan);
    plan.options.dtype = dtype;
    /* Exact allocations between guard zones first. */
    plan.options.allocator = TW_ALLOCATOR_ASYNC;
    tw_run_backend(&one, cuda(), model, &plan);
    compare(&ref, &one, dtype == TW_DTYPE_F32 ? f32_tolerance : bf16_tolerance, dtype == TW_DTYPE_BF16, seed);
    vary(&plan, &random);
    tw_run_backend(&other, cuda(), model, &plan);
    if (plan.options.attention == TW_ATTENTION_TILED) identical(&one, &other, seed);
    tw_run_record_release(&ref);
    tw_run_record_release(&one);
    tw_run_record_release(&other);
    tw_random_model_free(model);
    nothing_left("a run");
}

/* ---- long rows
 * -------------------------------------------------------------------------------------------------------
 */

/* The rows that are logged are those that ref logs, but where weights are too close to tell apart. */
static void same_positions(const struct tw_run_record *expected, const struct tw_run_record *found, uint64_t seed) {
    const size_t n = expected->n[TW_RUN_POSITIONS];
    size_t n_different = 0;
    for (size_t i = 0; i < n; i++)
        n_different += expected->data[TW_RUN_POSITIONS][i] != found->data[TW_RUN_POSITIONS][i];
    ck_assert_msg(100 * n_different <= 3 * n, "seed %llu: %zu of %zu logged positions differ", (unsigned long long)seed,
                  n_different, n);
}

/*
 * A few tokens behind a past of thousands of rows: several pieces of a logged row and of its list, whole ranges of the
 * first pass, splits of decoding that hold more than a row each.
 */
START_TEST(long_rows_equal_ref) {
    struct tw_random random;
    const uint64_t seed = tw_test_seed() + 5000 + (uint64_t)_i;
    tw_random_init(&random, seed, 4);
    const enum tw_dtype dtype = _i % 2 ? TW_DTYPE_BF16 : TW_DTYPE_F32;
    const struct tw_random_model shape = {.n_layers = 1,
                                          .n_embd = 32,
                                          .n_heads = 2,
                                          .n_kv_heads = (size_t)(1 + _i / 2 % 2),
                                          .head_dim = ONE_OF(&random, 16, 20, 32),
                                          .n_mlp = 32,
                                          .n_vocab = 61,
                                          .types = {TW_TYPE_F32},
                                          .n_types = 1};
    struct tw_model *const model = tw_random_model_make(&shape, seed);
    struct tw_run_plan plan = {
        .options = {.dtype = TW_DTYPE_F32, .window = 8, .n_threads = 1, .allocator = TW_ALLOCATOR_ASYNC},
        .n_tokens = 20,
        .chunk = 20,
        .n_steps = 2,
        .block = ONE_OF(&random, 3000, 4096, 5000),
        .top_k = 64,
        .needle = true,
        .past = LONG_PAST - tw_random_below(&random, 100),
        .seed = seed,
    };
    plan.first_position = plan.past + (_i / 2 ? 300 : 0);
    plan.budget = _i == 3 ? 5000 : 0;
    struct tw_run_record ref, one;
    if (emulation()) emulation()->seed(seed);
    tw_run_backend(&ref, &tw_backend_ref, model, &plan);
    plan.options.dtype = dtype;
    tw_run_backend(&one, cuda(), model, &plan);
    compare(&ref, &one, dtype == TW_DTYPE_F32 ? f32_tolerance : bf16_tolerance, dtype == TW_DTYPE_BF16, seed);
    if (dtype == TW_DTYPE_F32) same_positions(&ref, &one, seed);
    tw_run_record_release(&ref);
    tw_run_record_release(&one);
    tw_random_model_free(model);
    nothing_left("a long run");
}
END_TEST

/* ---- stored types
 * ----------------------------------------------------------------------------------------------------
 */

static const enum tw_type types[] = {TW_TYPE_F32,  TW_TYPE_F16,  TW_TYPE_BF16, TW_TYPE_Q4_0,   TW_TYPE_Q4_1,
                                     TW_TYPE_Q5_0, TW_TYPE_Q5_1, TW_TYPE_Q8_0, TW_TYPE_Q2_K,   TW_TYPE_Q3_K,
                                     TW_TYPE_Q4_K, TW_TYPE_Q5_K, TW_TYPE_Q6_K, TW_TYPE_IQ4_NL, TW_TYPE_IQ4_XS};
enum { N_TYPES = sizeof types / sizeof *types };

/* An embedding row in float32 is the row's numbers, bit for bit what the plain form gives; scales of every kind. */
START_TEST(types_are_exact) {
    const struct tw_random_model shape = {.n_layers = 1,
                                          .n_embd = 512,
                                          .n_heads = 1,
                                          .n_kv_heads = 1,
                                          .head_dim = 2,
                                          .n_mlp = 256,
                                          .n_vocab = 8,
                                          .types = {types[_i]},
                                          .n_types = 1};
    const struct tw_type_traits *const traits = tw_type_traits(types[_i]);
    struct tw_model *const model = tw_random_model_make(&shape, tw_test_seed());
    const size_t row_bytes = tw_type_row_bytes(traits, shape.n_embd);
    uint8_t *const rows = malloc(shape.n_vocab * row_bytes);
    const struct tw_matrix before = model->embedding;
    struct tw_random random;
    tw_random_init(&random, tw_test_seed(), 3);
    for (size_t r = 0; r < shape.n_vocab; r++)
        tw_random_row(rows + r * row_bytes, types[_i], shape.n_embd, r % 2 ? 1e-6f : 3.0f, &random);
    model->embedding = (struct tw_matrix){"rows", types[_i], shape.n_vocab, shape.n_embd, rows, row_bytes};
    const int32_t tokens[] = {7, 0, 3, 3, 6, 1, 2, 5};
    enum { N = sizeof tokens / sizeof *tokens };
    for (int stream = 0; stream < 2; stream++) {
        const struct tw_backend_options options = {.dtype = TW_DTYPE_F32,
                                                   .window = 1,
                                                   .weights = stream ? TW_WEIGHTS_STREAM : TW_WEIGHTS_MAPPED,
                                                   .allocator = TW_ALLOCATOR_ASYNC};
        const struct tw_backend_ops *const ops = cuda();
        struct tw_accountant accountant;
        struct tw_backend *backend;
        struct tw_bridge bridge;
        struct tw_error err = {0};
        float found[N * 512], expected[512];
        tw_accountant_init(&accountant, tw_memory_host, 0);
        ck_assert_msg(ops->open(&backend, model, &options, &accountant, &err) == TW_OK, "%s", err.text);
        ck_assert_int_eq(ops->bridge_create(backend, &bridge, N, &err), TW_OK);
        ck_assert_msg(ops->embed(backend, &bridge, 0, tokens, N, &err) == TW_OK, "%s", err.text);
        ck_assert_int_eq(ops->read_hidden(backend, &bridge, 0, N, false, found, &err), TW_OK);
        for (size_t i = 0; i < N; i++) {
            traits->dequantise(expected, rows + (size_t)tokens[i] * row_bytes, shape.n_embd);
            ck_assert_msg(memcmp(found + i * 512, expected, sizeof expected) == 0, "%s, row %zu", traits->name, i);
        }
        ops->bridge_release(backend, &bridge);
        ops->close(backend);
        tw_accountant_release(&accountant);
    }
    model->embedding = before;
    tw_random_model_free(model);
    free(rows);
    nothing_left("types");
}
END_TEST

/* ---- failures
 * --------------------------------------------------------------------------------------------------------
 */

/* A whole small run through the engine, which may fail anywhere: one sentence, and nothing is left. */
static tw_status small_run(const struct tw_model *model, const struct tw_engine_options *options,
                           struct tw_error *err) {
    struct tw_engine *engine;
    int32_t *const tokens = tw_tiny_tokens(model, 40, 1);
    tw_status status = tw_engine_open(&engine, model, options, err);
    if (status == TW_OK) status = tw_engine_prefill(engine, tokens, 40, 3, NULL, NULL, err);
    for (int t = 0; t < 2 && status == TW_OK; t++) status = tw_engine_decode(engine, tokens[t], NULL, err);
    if (engine) tw_engine_free(engine);
    free(tokens);
    return status;
}

static struct tw_engine_options small_options(enum tw_weights_kind weights, enum tw_allocator_kind allocator) {
    struct tw_engine_options options;
    tw_engine_options_init(&options);
    options.backend = "cuda";
    options.chunk = 24;
    options.budget = 20;
    options.block = 16;
    options.backend_options.window = 8;
    options.backend_options.weights = weights;
    options.backend_options.allocator = allocator;
    return options;
}

static void must_have_failed(tw_status status, const struct tw_error *err, const char *what, long n) {
    ck_assert_msg(status == TW_E_MEMORY || status == TW_E_DEVICE, "%s %ld: status %d, '%s'", what, n, (int)status,
                  err->text);
    ck_assert_msg(strlen(err->text) > 10 && !strchr(err->text, '\n'), "%s %ld: '%s'", what, n, err->text);
    nothing_left(what);
}

enum { N_WAYS = 4 };
static void way(struct tw_engine_options *options, int i) {
    *options =
        small_options(i % 2 ? TW_WEIGHTS_STREAM : TW_WEIGHTS_MAPPED, i / 2 ? TW_ALLOCATOR_ASYNC : TW_ALLOCATOR_NATIVE);
}

/*
 * A prefill brings what is kept of each head (8 bytes a row), what is logged, a mean key a head and the last logits; a
 * decoded token what is logged and its logits. Nothing grows with the prompt.
 */
START_TEST(only_what_is_kept_crosses) {
    static const char *const selectors[] = {"adakv", "chunkkv", "keydiff", "snapkv", "pyramidkv", "knorm", "recent"};
    const struct cudasim_control *const control = emulation();
    if (!control) return;
    struct tw_model *const model = tw_tiny_model(&tw_tiny_llama, 1);
    const struct tw_model_config *const config = &model->config;
    struct tw_engine_options options;
    way(&options, 0);
    options.selector = selectors[_i];
    options.chunk = 128;
    size_t crossed[2], n_entries = 0;
    for (size_t i = 0; i < 2; i++) {
        struct tw_engine *const engine = tw_tiny_engine(model, &options);
        const size_t n = i ? 400 : 150, before = control->to_host();
        struct tw_error err = {0};
        int32_t *const tokens = tw_tiny_tokens(model, n, 1);
        ck_assert_msg(tw_engine_prefill(engine, tokens, n, 2, NULL, NULL, &err) == TW_OK, "%s", err.text);
        crossed[i] = control->to_host() - before;
        n_entries = config->n_layers * config->n_kv_heads * options.budget;
        const size_t means = config->n_layers * config->n_kv_heads * config->head_dim * sizeof(double);
        ck_assert_uint_le(crossed[i], n_entries * 8 + means + config->n_vocab * sizeof(float));
        /* One token, logged. */
        enum { TOP_K = 8 };
        struct tw_attention_log log[8];
        int32_t position[8 * TOP_K * 16];
        float weight[8 * TOP_K * 16];
        ck_assert(config->n_layers <= 8 && config->n_heads <= 16);
        for (size_t l = 0; l < config->n_layers; l++)
            log[l] = (struct tw_attention_log){.top_k = TOP_K,
                                               .position = position + l * TOP_K * config->n_heads,
                                               .weight = weight + l * TOP_K * config->n_heads};
        const size_t prefilled = control->to_host();
        ck_assert_msg(tw_engine_decode(engine, tokens[0], log, &err) == TW_OK, "%s", err.text);
        const size_t a_head = TOP_K * 8 + 32; /* entries, and the row's sums */
        ck_assert_uint_eq(control->to_host() - prefilled,
                          config->n_layers * config->n_heads * a_head + config->n_vocab * sizeof(float));
        tw_engine_free(engine);
        free(tokens);
    }
    ck_assert_uint_eq(crossed[0], crossed[1]);
    tw_tiny_free(model);
    nothing_left("crossing");
}
END_TEST

START_TEST(failures_end_in_one_sentence) {
    const struct cudasim_control *const control = emulation();
    if (!control) return; /* a real device fails when it likes */
    struct tw_model *const model = tw_tiny_model(&tw_tiny_llama, 1);
    struct tw_engine_options options;
    way(&options, _i);
    struct tw_error err = {0};
    const long allocations = control->allocations(), launches = control->launches();
    ck_assert_msg(small_run(model, &options, &err) == TW_OK, "%s", err.text);
    nothing_left("a run");
    const long n_allocations = control->allocations() - allocations, n_launches = control->launches() - launches;
    /* Every allocation in its turn, for good: the caching allocator asks twice. */
    for (long n = 1 + _i % FAILURE_STEP; n <= n_allocations; n += FAILURE_STEP) {
        memset(&err, 0, sizeof err);
        control->fail_allocation(n, 1000000);
        const tw_status status = small_run(model, &options, &err);
        control->fail_allocation(0, 0);
        must_have_failed(status, &err, "allocation", n);
    }
    /* Launches, products and copies: a stride that is no multiple of a layer's. */
    for (long n = 1 + _i; n <= n_launches; n += 1 + n_launches / LAUNCH_FAILURES) {
        memset(&err, 0, sizeof err);
        control->fail_launch(n);
        tw_status status = small_run(model, &options, &err);
        control->fail_launch(0);
        must_have_failed(status, &err, "launch", n);
        memset(&err, 0, sizeof err);
        control->lose_device(n);
        status = small_run(model, &options, &err);
        control->lose_device(0);
        must_have_failed(status, &err, "lost device", n);
    }
    /* And afterwards all is well. */
    ck_assert_msg(small_run(model, &options, &err) == TW_OK, "%s", err.text);
    tw_tiny_free(model);
}
END_TEST

START_TEST(unused_segments_are_given_back) {
    const struct cudasim_control *const control = emulation();
    if (!control) return;
    struct tw_model *const model = tw_tiny_model(&tw_tiny_llama, 1);
    struct tw_engine_options options;
    way(&options, 0);
    struct tw_error err = {0};
    const long allocations = control->allocations();
    ck_assert_msg(small_run(model, &options, &err) == TW_OK, "%s", err.text);
    const long n = control->allocations() - allocations;
    /* One refusal each: where it was a segment, unused ones go back and the second try succeeds. */
    long recovered = 0;
    for (long i = 1; i <= n; i += FAILURE_STEP) {
        control->fail_allocation(i, 1);
        recovered += small_run(model, &options, &err) == TW_OK;
    }
    control->fail_allocation(0, 0);
    ck_assert_int_ge(recovered, 1);
    nothing_left("a retry");
    tw_tiny_free(model);
}
END_TEST

START_TEST(says_what_is_missing) {
    const struct cudasim_control *const control = emulation();
    if (!control) return;
    struct tw_model *const model = tw_tiny_model(&tw_tiny_llama, 1);
    struct tw_engine_options options;
    way(&options, 0);
    struct tw_error err = {0};
    control->devices(1, 1);
    ck_assert_int_eq(small_run(model, &options, &err), TW_E_DEVICE);
    ck_assert_ptr_nonnull(strstr(err.text, "driver"));
    ck_assert_ptr_nonnull(strstr(err.text, "--backend cpu"));
    control->devices(0, 0);
    ck_assert_int_eq(small_run(model, &options, &err), TW_E_DEVICE);
    ck_assert_ptr_nonnull(strstr(err.text, "no device"));
    control->devices(1, 0);
    control->limit_bytes(3 << 20);
    ck_assert_int_eq(small_run(model, &options, &err), TW_E_MEMORY);
    ck_assert_ptr_nonnull(strstr(err.text, "out of memory"));
    control->limit_bytes(0);
    nothing_left("refusals");
    tw_tiny_free(model);
}
END_TEST

/* Many prompts in one process: what the allocator holds from the driver stays where it was. */
START_TEST(reserved_memory_is_flat) {
    struct tw_model *const model = tw_tiny_model(&tw_tiny_llama, 1);
    struct tw_engine_options options;
    way(&options, 2 * _i);
    options.chunk = 16;
    struct tw_engine *engine;
    struct tw_error err = {0};
    size_t early = 0;
    cuda();
    ck_assert_msg(tw_engine_open(&engine, model, &options, &err) == TW_OK, "%s", err.text);
    for (size_t request = 0; request < 30; request++) {
        int32_t *const tokens = tw_tiny_tokens(model, 60, request);
        const size_t n = 1 + request * 7 % 55;
        ck_assert_msg(tw_engine_prefill(engine, tokens, n, 2, NULL, NULL, &err) == TW_OK, "%s", err.text);
        ck_assert_msg(tw_engine_decode(engine, tokens[0], NULL, &err) == TW_OK, "%s", err.text);
        free(tokens);
        if (request == 9) early = tw_accountant_reserved(&engine->accountant);
    }
    const size_t late = tw_accountant_reserved(&engine->accountant);
    ck_assert_msg(late <= early + early / 100, "%zu bytes are reserved, %zu before", late, early);
    struct tw_device_memory memory;
    engine->accountant.source.inspect(engine->accountant.source.context, &memory);
    ck_assert_uint_eq(memory.allocated, engine->accountant.total);
    ck_assert_uint_ge(memory.reserved, memory.allocated);
    ck_assert(memory.process_bytes > 0 || memory.process_missing);
    tw_engine_free(engine);
    tw_tiny_free(model);
    nothing_left("many prompts");
}
END_TEST

/* Slower builds run fewer: TW_CUDA_CASES. */
START_TEST(float32_equals_ref) { run_case(tw_test_seed() + (uint64_t)_i, TW_DTYPE_F32); }
END_TEST
START_TEST(bfloat16_is_near_ref) { run_case(tw_test_seed() + 1000 + (uint64_t)_i, TW_DTYPE_BF16); }
END_TEST

Suite *tw_suite_cuda_cases(void) {
    const char *const few = getenv("TW_CUDA_CASES");
    const int n = few ? atoi(few) : N_CASES;
    Suite *const suite = suite_create("cuda cases");
    TCase *const ops = tcase_create("operations");
    tcase_set_timeout(ops, 300);
    tcase_add_loop_test(ops, float32_equals_ref, 0, n);
    tcase_add_loop_test(ops, bfloat16_is_near_ref, 0, n);
    tcase_add_loop_test(ops, types_are_exact, 0, N_TYPES);
    suite_add_tcase(suite, ops);
    TCase *const rows = tcase_create("long rows");
    tcase_set_timeout(rows, 300);
    tcase_add_loop_test(rows, long_rows_equal_ref, 0, N_LONG);
    suite_add_tcase(suite, rows);
    TCase *const failures = tcase_create("failures");
    tcase_set_timeout(failures, 300);
    tcase_add_loop_test(failures, only_what_is_kept_crosses, 0, N_CROSSING);
    tcase_add_loop_test(failures, failures_end_in_one_sentence, 0, N_WAYS);
    tcase_add_test(failures, unused_segments_are_given_back);
    tcase_add_test(failures, says_what_is_missing);
    tcase_add_loop_test(failures, reserved_memory_is_flat, 0, 2);
    suite_add_tcase(suite, failures);
    return suite;
}
