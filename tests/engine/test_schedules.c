/* Schedules over the backends' table: equal hidden states whatever the chunk, positions, eviction (cases C13 to C20).
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend/backend.h"
#include "engine/backend/cpu/level.h"
#include "engine/sample.h"
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

/* With the same selector and budget tide keeps and answers what postprefill does, to the bit of every logit. */
START_TEST(answers_do_not_depend_on_the_schedule) {
    static const char *const selectors[] = {"snapkv",
                                            "snapkv:kernel=7:pool=max",
                                            "pyramidkv:beta=3",
                                            "adakv",
                                            "adakv:share=0.5",
                                            "chunkkv",
                                            "chunkkv:size=20",
                                            "keydiff",
                                            "keydiff:online=1",
                                            "recent",
                                            "recent:sinks=4",
                                            "knorm",
                                            "random"};
    static const size_t budgets[] = {40, 130};
    const size_t n = 300, n_steps = 8;
    const enum tw_dtype dtype = _i < 2 ? TW_DTYPE_F32 : TW_DTYPE_AUTO;
    struct tw_tiny_shape shape = tw_tiny_llama;
    shape.n_layers = 3;
    struct tw_model *model = tw_tiny_model(&shape, 31);
    int32_t *tokens = tw_tiny_tokens(model, n, 31);
    for (size_t s = 0; s < sizeof selectors / sizeof *selectors; s++)
        for (size_t b = 0; b < 2; b++) {
            const size_t row = model->config.n_vocab * sizeof(float);
            float *expected = malloc(n_steps * row);
            int32_t *kept = NULL;
            size_t n_kept;
            for (size_t r = 0; r < 3; r++) {
                struct tw_engine_options options = tiny_options(
                    (const char *[]){"postprefill", "tide", "postprefill:rows=block"}[r], 70, 16, budgets[b]);
                options.selector = selectors[s];
                options.backend = _i ? "cpu" : "ref";
                options.backend_options.dtype = dtype;
                struct tw_engine *engine = tw_tiny_engine(model, &options);
                struct tw_error err = {0};
                ck_assert_msg(tw_engine_prefill(engine, tokens, n, 0, NULL, NULL, &err) == TW_OK, "%s", err.text);
                int32_t *found = tw_tiny_kept(engine, &n_kept);
                if (kept) ck_assert_mem_eq(found, kept, n_kept * sizeof *found);
                if (!kept)
                    kept = found;
                else
                    free(found);
                for (size_t t = 0; t < n_steps; t++) {
                    if (r == 0) memcpy((char *)expected + t * row, tw_engine_logits(engine), row);
                    ck_assert_msg(memcmp((char *)expected + t * row, tw_engine_logits(engine), row) == 0,
                                  "%s, budget %zu, %s, step %zu", selectors[s], budgets[b], options.schedule, t);
                    const int32_t token = tw_sample_greedy(tw_engine_logits(engine), model->config.n_vocab);
                    ck_assert(tw_engine_decode(engine, token, NULL, &err) == TW_OK);
                }
                tw_engine_free(engine);
            }
            free(kept);
            free(expected);
        }
    free(tokens);
    tw_tiny_free(model);
}
END_TEST

Suite *tw_suite_schedules(void);

Suite *tw_suite_schedules(void) {
    Suite *suite = suite_create("schedules");
    TCase *tcase = tcase_create("hidden states");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, hidden_states_do_not_depend_on_the_chunk, 0, 12);
    tcase_add_loop_test(tcase, nor_at_any_instruction_set, 0, 2 * TW_CPU_N_LEVELS);
    tcase_add_loop_test(tcase, answers_do_not_depend_on_the_schedule, 0, 3);
    suite_add_tcase(suite, tcase);
    return suite;
}
