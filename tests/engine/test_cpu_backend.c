/*
 * The cpu backend against `ref`, on random models, at every instruction set that the machine has; and against itself:
 * chunks, blocks and threads change no bit.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "engine/backend/cpu/level.h"
#include "tests/engine/backend_run.h"
#include "tests/engine/model_random.h"
#include "tests/support.h"

extern const struct tw_backend_ops tw_backend_ref, tw_backend_cpu;

static size_t one_of(struct tw_random *random, const size_t *list, size_t n) {
    return list[tw_random_below(random, n)];
}
#define ONE_OF(random, ...)                                                                                            \
    one_of(random, (const size_t[]){__VA_ARGS__}, sizeof(const size_t[]){__VA_ARGS__} / sizeof(size_t))

static struct tw_random_model random_shape(struct tw_random *random) {
    static const enum tw_type sets[][4] = {
        {TW_TYPE_F32, TW_TYPE_F32, TW_TYPE_F32, TW_TYPE_F32},
        {TW_TYPE_Q4_1, TW_TYPE_Q4_1, TW_TYPE_Q8_0, TW_TYPE_Q8_0},
        {TW_TYPE_Q4_K, TW_TYPE_Q6_K, TW_TYPE_Q4_K, TW_TYPE_Q6_K},
        {TW_TYPE_BF16, TW_TYPE_F16, TW_TYPE_BF16, TW_TYPE_F32},
        {TW_TYPE_Q4_0, TW_TYPE_Q5_0, TW_TYPE_Q8_0, TW_TYPE_Q5_1},
        {TW_TYPE_Q5_K, TW_TYPE_IQ4_NL, TW_TYPE_Q4_0, TW_TYPE_F16},
    };
    struct tw_random_model s = {.n_layers = 2, .n_types = 4, .n_vocab = 61};
    memcpy(s.types, sets[tw_random_below(random, sizeof sets / sizeof *sets)], sizeof sets[0]);
    s.n_embd = s.types[0] == TW_TYPE_F32 || s.types[0] == TW_TYPE_BF16    ? ONE_OF(random, 33, 40, 96, 130)
               : s.types[0] == TW_TYPE_Q4_K || s.types[0] == TW_TYPE_Q5_K ? 256
                                                                          : ONE_OF(random, 32, 96, 160);
    s.n_kv_heads = ONE_OF(random, 1, 2, 3);
    s.n_heads = s.n_kv_heads * ONE_OF(random, 1, 2, 3, 4, 7, 16);
    s.head_dim = ONE_OF(random, 2, 6, 8, 16, 20, 64, 64, 80, 128);
    if (s.n_heads * s.head_dim > 1024) s.n_heads = s.n_kv_heads;
    s.n_mlp = ONE_OF(random, 7, 64, 100, 256);
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
        .options = {.dtype = TW_DTYPE_F32, .n_threads = 2, .window = ONE_OF(random, 1, 8, 32)},
        .n_tokens = ONE_OF(random, 1, 5, 16, 63, 64, 65, 129, 200, 300),
        .n_steps = 4,
        .block = ONE_OF(random, 7, 64, 100),
        .top_k = ONE_OF(random, 1, 8, 64),
        .needle = tw_random_below(random, 2),
        .poison = true,
        .seed = seed,
    };
    p.chunk = p.n_tokens;
    p.first_position = tw_random_below(random, 3) == 0 ? ONE_OF(random, 1, 100, 1000) : 0;
    p.budget = tw_random_below(random, 2) ? 1 + tw_random_below(random, p.n_tokens) : 0;
    p.options.attention = tw_random_below(random, 4) == 0 ? TW_ATTENTION_EAGER : TW_ATTENTION_TILED;
    p.options.whole_rows = tw_random_below(random, 4) == 0;
    return p;
}

/*
 * Difference relative to the root mean square of what is expected: the greatest, or (`mean`) its own root mean square.
 * `where`: the greatest's place.
 */
static double distance(const float *expected, const float *found, size_t n, bool mean, size_t *where) {
    double square = 0, worst = 0, total = 0;
    size_t finite = 0;
    *where = 0;
    for (size_t i = 0; i < n; i++)
        if (isfinite(expected[i])) {
            square += (double)expected[i] * expected[i];
            finite++;
        }
    const double size = finite ? sqrt(square / (double)finite) + 1e-30 : 1;
    for (size_t i = 0; i < n; i++) {
        if (expected[i] == found[i]) continue;
        const double diff = fabs((double)expected[i] - found[i]) / size;
        total += diff * diff;
        if (!(diff <= worst)) {
            worst = diff;
            *where = i;
            if (!isfinite(diff)) break;
        }
    }
    return mean && isfinite(worst) ? sqrt(total / (double)(finite ? finite : 1)) : worst;
}

static const char *const section_names[] = {"hidden", "keys", "scores", "logits", "weights", "positions"};

static void compare(const struct tw_run_record *expected, const struct tw_run_record *found, const double *tolerance,
                    bool mean, uint64_t seed, const char *what) {
    for (int i = 0; i < TW_RUN_SECTIONS; i++) {
        if (tolerance[i] < 0) continue;
        size_t where;
        ck_assert_uint_eq(expected->n[i], found->n[i]);
        const double worst = distance(expected->data[i], found->data[i], expected->n[i], mean, &where);
        if (!(worst <= tolerance[i]))
            ck_abort_msg("%s, seed %llu, %s: %g from the reference at %zu of %zu (%g, expected %g)", what,
                         (unsigned long long)seed, section_names[i], worst, where, expected->n[i],
                         (double)found->data[i][where], (double)expected->data[i][where]);
    }
}

static void identical(const struct tw_run_record *a, const struct tw_run_record *b, uint64_t seed, const char *what) {
    for (int i = 0; i < TW_RUN_SECTIONS; i++) {
        ck_assert_uint_eq(a->n[i], b->n[i]);
        for (size_t j = 0; j < a->n[i]; j++)
            if (memcmp(&a->data[i][j], &b->data[i][j], sizeof(float)) != 0)
                ck_abort_msg("%s, seed %llu, %s: not the same bits at %zu of %zu (%g, %g)", what,
                             (unsigned long long)seed, section_names[i], j, a->n[i], (double)a->data[i][j],
                             (double)b->data[i][j]);
    }
}

/* Sums of up to some hundred terms in float32 behind two layers; positions may differ where weights are this close. */
static const double f32_tolerance[TW_RUN_SECTIONS] = {1e-3, 1e-3, 1e-3, 1e-3, 1e-3, -1};
/* bf16 keeps 8 bits: each rounding is 2^-9 relative, a few a layer, amplified by the softmax. On average. */
static const double bf16_tolerance[TW_RUN_SECTIONS] = {0.05, 0.05, 0.3, 0.05, 0.2, -1};

#define N_CASES 14

static enum tw_cpu_level level_of(int i) { return (enum tw_cpu_level)(i / N_CASES); }

static bool use_level(enum tw_cpu_level level) {
    if (level > tw_cpu_level_of_machine()) {
        printf("skipped: this processor has no %s\n", tw_cpu_level_names[level]);
        return false;
    }
    setenv("TIDEWAKE_CPU", tw_cpu_level_names[level], 1);
    return true;
}

START_TEST(test_against_ref) {
    if (!use_level(level_of(_i))) return;
    const uint64_t seed = tw_test_seed() + (uint64_t)(_i % N_CASES);
    struct tw_random random;
    tw_random_init(&random, seed, 1);
    const struct tw_random_model shape = random_shape(&random);
    struct tw_model *model = tw_random_model_make(&shape, seed);
    struct tw_run_plan plan = random_plan(&random, seed);
    struct tw_run_record ref, cpu, other;
    tw_run_backend(&ref, &tw_backend_ref, model, &plan);
    plan.chunk = 1 + tw_random_below(&random, plan.n_tokens);
    tw_run_backend(&cpu, &tw_backend_cpu, model, &plan);
    compare(&ref, &cpu, f32_tolerance, false, seed, tw_cpu_level_names[level_of(_i)]);
    plan.chunk = 1 + tw_random_below(&random, plan.n_tokens);
    plan.block = ONE_OF(&random, 5, 128, 1000);
    plan.options.n_threads = ONE_OF(&random, 1, 3);
    plan.options.whole_rows = !plan.options.whole_rows;
    tw_run_backend(&other, &tw_backend_cpu, model, &plan);
    identical(&cpu, &other, seed, tw_cpu_level_names[level_of(_i)]);
    tw_run_record_release(&ref);
    tw_run_record_release(&cpu);
    tw_run_record_release(&other);
    tw_random_model_free(model);
}
END_TEST

START_TEST(test_bf16) {
    if (!use_level(_i < N_CASES ? TW_CPU_AVX512BF16 : TW_CPU_AMX)) return;
    const uint64_t seed = tw_test_seed() + 1000 + (uint64_t)(_i % N_CASES);
    struct tw_random random;
    tw_random_init(&random, seed, 1);
    const struct tw_random_model shape = random_shape(&random);
    struct tw_model *model = tw_random_model_make(&shape, seed);
    struct tw_run_plan plan = random_plan(&random, seed);
    struct tw_run_record ref, cpu, other;
    tw_run_backend(&ref, &tw_backend_ref, model, &plan);
    plan.options.dtype = TW_DTYPE_BF16;
    plan.chunk = 1 + tw_random_below(&random, plan.n_tokens);
    tw_run_backend(&cpu, &tw_backend_cpu, model, &plan);
    compare(&ref, &cpu, bf16_tolerance, true, seed, "bf16");
    plan.chunk = 1 + tw_random_below(&random, plan.n_tokens);
    plan.block = ONE_OF(&random, 5, 128, 1000);
    plan.options.n_threads = ONE_OF(&random, 1, 3);
    plan.options.whole_rows = !plan.options.whole_rows;
    tw_run_backend(&other, &tw_backend_cpu, model, &plan);
    identical(&cpu, &other, seed, "bf16");
    tw_run_record_release(&ref);
    tw_run_record_release(&cpu);
    tw_run_record_release(&other);
    tw_random_model_free(model);
}
END_TEST

START_TEST(test_level_is_checked) {
    enum tw_cpu_level level;
    struct tw_error err = {0};
    setenv("TIDEWAKE_CPU", "avx1024", 1);
    ck_assert_int_eq(tw_cpu_level_choose(&level, &err), TW_E_OPTION);
    ck_assert_ptr_nonnull(strstr(err.text, "avx1024"));
    setenv("TIDEWAKE_CPU", "portable", 1);
    ck_assert_int_eq(tw_cpu_level_choose(&level, &err), TW_OK);
    ck_assert_int_eq(level, TW_CPU_PORTABLE);
    unsetenv("TIDEWAKE_CPU");
    ck_assert_int_eq(tw_cpu_level_choose(&level, &err), TW_OK);
    ck_assert_int_eq(level, tw_cpu_level_of_machine());
}
END_TEST

Suite *tw_suite_cpu_backend(void);
Suite *tw_suite_cpu_backend(void) {
    Suite *suite = suite_create("cpu backend");
    TCase *level = tcase_create("level");
    tcase_add_test(level, test_level_is_checked);
    suite_add_tcase(suite, level);
    TCase *against = tcase_create("against ref");
    tcase_set_timeout(against, 120);
    tcase_add_loop_test(against, test_against_ref, 0, (TW_CPU_AVX512 + 1) * N_CASES); /* float32 ends there */
    tcase_add_loop_test(against, test_bf16, 0, 2 * N_CASES);
    suite_add_tcase(suite, against);
    return suite;
}
