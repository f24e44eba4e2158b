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

static const char *library_path(void) {
    static char path[4096];
    const char *const named = getenv("TIDEWAKE_CUDA_LIBRARY");
    if (!named) {
        snprintf(path, sizeof path, "%s/cudasim/libtidewake-cudasim.so", getenv("TW_BUILD"));
        setenv("TIDEWAKE_CUDA_LIBRARY", path, 1);
        return path;
    }
    return named;
}

static const struct tw_backend_ops *cuda(void) {
    const struct tw_backend_ops *ops;
    struct tw_error err = {0};
    library_path();
    ck_assert_msg(tw_backend_load(&ops, "cuda", &err) == TW_OK, "%s", err.text);
    return ops;
}

/* NULL on a real device. */
static const struct cudasim_control *emulation(void) {
    cuda();
    void *const library = dlopen(library_path(), RTLD_NOW | RTLD_NOLOAD);
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

enum { N_CASES = 8 };
START_TEST(float32_equals_ref) { run_case(tw_test_seed() + (uint64_t)_i, TW_DTYPE_F32); }
END_TEST
START_TEST(bfloat16_is_near_ref) { run_case(tw_test_seed() + 1000 + (uint64_t)_i, TW_DTYPE_BF16); }
END_TEST

Suite *tw_suite_cuda_cases(void) {
    Suite *const suite = suite_create("cuda cases");
    TCase *const ops = tcase_create("operations");
    tcase_set_timeout(ops, 300);
    tcase_add_loop_test(ops, float32_equals_ref, 0, N_CASES);
    tcase_add_loop_test(ops, bfloat16_is_near_ref, 0, N_CASES);
    suite_add_tcase(suite, ops);
    return suite;
}
