/* Schedules over the backends' table: equal hidden states whatever the chunk, positions, eviction (cases C13 to C20).
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend/backend.h"
#include "engine/backend/cpu/level.h"
#include "tests/engine/tiny.h"
#include "tests/support.h"

static struct tw_engine_options tiny_options(const char *schedule, size_t chunk, size_t window, size_t budget) {
    struct tw_engine_options options;
    tw_engine_options_init(&options);
    options.schedule = schedule;
    options.chunk = chunk;
    options.budget = budget;
    options.backend_options.window = window;
    options.backend_options.n_threads = 1;
    return options;
}

static float *hidden_of(const struct tw_model *model, const struct tw_engine_options *options, const int32_t *tokens,
                        size_t n) {
    struct tw_engine *engine = tw_tiny_engine(model, options);
    float *hidden = tw_tiny_hidden(engine, tokens, n, 0);
    tw_engine_free(engine);
    return hidden;
}

static size_t hidden_bytes(const struct tw_model *model, size_t n) {
    return (model->config.n_layers + 1) * n * model->config.n_embd * sizeof(float);
}

/* C13, and the invariant that hidden states do not depend on chunk or schedule: bitwise. */
START_TEST(hidden_states_do_not_depend_on_the_chunk) {
    static const size_t lengths[] = {1, 15, 16, 17, 31, 32, 33, 40, 63, 64, 65, 130};
    static const char *const schedules[] = {"chunked",     "tide-noevict",           "tide",
                                            "postprefill", "postprefill:rows=block", "block"};
    struct tw_tiny_shape shapes[3] = {tw_tiny_llama, tw_tiny_llama, tw_tiny_llama};
    shapes[1].extras = true;
    shapes[2].sliding_window = 13;
    const size_t n = lengths[_i];
    for (size_t m = 0; m < 3; m++) {
        struct tw_model *model = tw_tiny_model(&shapes[m], 7);
        int32_t *tokens = tw_tiny_tokens(model, n, tw_test_seed());
        struct tw_engine_options options = tiny_options("oneshot", 16, 8, 0);
        float *expected = hidden_of(model, &options, tokens, n);
        for (size_t s = 0; s < sizeof schedules / sizeof *schedules; s++)
            for (size_t c = 0; c < 3; c++) {
                options = tiny_options(schedules[s], (size_t[]){16, 7, n < 34 ? 1 : 50}[c], 8, 0);
                options.backend_options.n_threads = n == 17 && m == 0 ? 1 + c : 1;
                float *got = hidden_of(model, &options, tokens, n);
                ck_assert_msg(memcmp(got, expected, hidden_bytes(model, n)) == 0, "%s, chunk %zu, %zu tokens",
                              schedules[s], options.chunk, n);
                free(got);
            }
        free(expected);
        free(tokens);
        tw_tiny_free(model);
    }
}
END_TEST

/* The same on the cpu backend at every instruction set, over row and key blocks of its grid, in both precisions. */
START_TEST(nor_at_any_instruction_set) {
    static const char *const schedules[] = {"oneshot", "tide", "postprefill:rows=block", "chunked", "tide-noevict"};
    static const size_t chunks[] = {13, 63, 129};
    const enum tw_cpu_level level = (enum tw_cpu_level)(_i / 2);
    const enum tw_dtype dtype = _i % 2 ? TW_DTYPE_BF16 : TW_DTYPE_F32;
    if (level > tw_cpu_level_of_machine()) {
        printf("skipped: this processor has no %s\n", tw_cpu_level_names[level]);
        return;
    }
    if (dtype == TW_DTYPE_BF16 && level < TW_CPU_AVX512BF16) return; /* refused there */
    setenv("TIDEWAKE_CPU", tw_cpu_level_names[level], 1);
    struct tw_tiny_shape shapes[3] = {tw_tiny_llama, tw_tiny_llama, tw_tiny_llama};
    shapes[1].extras = true;
    shapes[1].sliding_window = 70;
    shapes[2].n_embd = 192; /* wide enough for every kind of kernel */
    shapes[2].n_heads = 9, shapes[2].n_kv_heads = 3, shapes[2].head_dim = 64, shapes[2].n_mlp = 320;
    const size_t n = 200;
    for (size_t m = 0; m < 3; m++) {
        struct tw_model *model = tw_tiny_model(&shapes[m], 8);
        int32_t *tokens = tw_tiny_tokens(model, n, tw_test_seed());
        float *expected = NULL;
        for (size_t s = 0; s < sizeof schedules / sizeof *schedules; s++)
            for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
                if ((s == 0 || s == 2) && c) continue; /* the whole prompt */
                struct tw_engine_options options = tiny_options(schedules[s], chunks[c], 8, s == 1 || s == 2 ? 40 : 0);
                options.backend = "cpu";
                options.backend_options.dtype = dtype;
                options.backend_options.n_threads = 1 + (s + c) % 2;
                float *got = hidden_of(model, &options, tokens, n);
                if (expected)
                    ck_assert_msg(memcmp(got, expected, hidden_bytes(model, n)) == 0, "%s, %s, %s, chunk %zu",
                                  tw_cpu_level_names[level], _i % 2 ? "bf16" : "f32", schedules[s], chunks[c]);
                if (!expected)
                    expected = got;
                else
                    free(got);
            }
        free(expected);
        free(tokens);
        tw_tiny_free(model);
    }
}
END_TEST

Suite *tw_suite_schedules(void);

Suite *tw_suite_schedules(void) {
    Suite *suite = suite_create("schedules");
    TCase *tcase = tcase_create("hidden states");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, hidden_states_do_not_depend_on_the_chunk, 0, 12);
    tcase_add_loop_test(tcase, nor_at_any_instruction_set, 0, 2 * TW_CPU_N_LEVELS);
    suite_add_tcase(suite, tcase);
    return suite;
}
