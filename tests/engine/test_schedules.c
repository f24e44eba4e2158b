/* Schedules over the backends' table: equal hidden states whatever the chunk, positions, eviction (cases C13 to C20).
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend/backend.h"
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

Suite *tw_suite_schedules(void);

Suite *tw_suite_schedules(void) {
    Suite *suite = suite_create("schedules");
    TCase *tcase = tcase_create("hidden states");
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, hidden_states_do_not_depend_on_the_chunk, 0, 12);
    suite_add_tcase(suite, tcase);
    return suite;
}
