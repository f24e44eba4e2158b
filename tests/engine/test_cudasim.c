/* The emulation that the CUDA kernels are tested on, tested itself: right programs pass, planted faults are found. */
#include <check.h>
#include <string.h>

#include "tests/cudasim/control.h"
#include "tests/support.h"

Suite *tw_suite_cudasim(void);

/* What a case must do; FOUND_BY_SHADOW: only the shadow build can know. */
enum expectation { PASSES, REPORTED, CAUGHT, FOUND_BY_SHADOW };

static const struct {
    const char *name;
    enum expectation expected;
} cases[] = {
    {"sum", PASSES},
    {"sum-no-barrier", CAUGHT},
    {"sum-overrun", CAUGHT},
    {"sum-one-skips", REPORTED},
    {"reverse", PASSES},
    {"reverse-past-the-end", CAUGHT},
    {"reverse-uninitialised", CAUGHT},
    {"count", PASSES},
    {"count-no-atomic", FOUND_BY_SHADOW},
    {"rotate", PASSES},
    {"rotate-no-syncwarp", CAUGHT},
    {"rotate-lane-skips", CAUGHT},
    {"products", PASSES},
    {"collectives", PASSES},
    {"streams", PASSES},
    {"streams-no-event", FOUND_BY_SHADOW},
    {"pinned", PASSES},
    {"use-after-free", CAUGHT},
    {"host-address", FOUND_BY_SHADOW},
    {"launch-limits", PASSES},
    {"faults", PASSES},
    {"cublas", PASSES},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static int run_case(const char *variant, const char *name, int seed) {
    struct tw_test_run run =
        tw_test_shell("\"$TW_BUILD\"/cudasim/selftest%s %s %d 2>&1 >/dev/null", variant, name, seed);
    const int status = run.exit_status;
    tw_test_run_release(&run);
    return status;
}

START_TEST(plain_build) {
    for (int seed = 1; seed <= 3; seed++) {
        const int status = run_case("", cases[_i].name, seed);
        switch (cases[_i].expected) {
        case PASSES: ck_assert_msg(status == 0, "%s, seed %d: exit status %d", cases[_i].name, seed, status); break;
        case REPORTED: ck_assert_int_eq(status, CUDASIM_EXIT); break;
        case CAUGHT: ck_assert_msg(status != 0, "%s, seed %d went through", cases[_i].name, seed); break;
        case FOUND_BY_SHADOW: break;
        }
    }
}
END_TEST

START_TEST(shadow_build) {
    struct tw_test_run there = tw_test_shell("test -x \"$TW_BUILD\"/cudasim/selftest-shadow");
    const bool built = there.exit_status == 0;
    tw_test_run_release(&there);
    if (!built) return; /* an instrumented build has no shadow */
    for (int seed = 1; seed <= 3; seed++) {
        const int status = run_case("-shadow", cases[_i].name, seed);
        const int expected = cases[_i].expected == PASSES ? 0 : CUDASIM_EXIT;
        ck_assert_msg(status == expected, "%s, seed %d: exit status %d, expected %d", cases[_i].name, seed, status,
                      expected);
    }
}
END_TEST

START_TEST(table_is_complete) {
    struct tw_test_run run = tw_test_shell("\"$TW_BUILD\"/cudasim/selftest");
    size_t n = 0;
    for (const char *p = tw_text_string(&run.out); *p; p++) n += *p == '\n';
    ck_assert_uint_eq(n, N_CASES);
    tw_test_run_release(&run);
}
END_TEST

Suite *tw_suite_cudasim(void) {
    Suite *const suite = suite_create("cudasim");
    TCase *const emulation = tcase_create("emulation");
    tcase_set_timeout(emulation, 60);
    tcase_add_loop_test(emulation, plain_build, 0, N_CASES);
    tcase_add_loop_test(emulation, shadow_build, 0, N_CASES);
    tcase_add_test(emulation, table_is_complete);
    suite_add_tcase(suite, emulation);
    return suite;
}
