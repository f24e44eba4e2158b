/*
 * Suite `cuda_cases` again, where every access of a kernel is watched, and where one kernel has a fault: the first must
 * pass, the others must not. And the library's loader.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend/load.h"
#include "tests/support.h"

Suite *tw_suite_cuda(void);

/* Runs the cases in a process of their own with a library of the build folder; -1 when there is none. */
static int run_with(const char *library, const char *cases) {
    struct tw_test_run there = tw_test_shell("test -f \"$TW_BUILD\"/cudasim/%s", library);
    const bool built = there.exit_status == 0;
    tw_test_run_release(&there);
    if (!built) return -1; /* an instrumented build has no shadow */
    struct tw_test_run run = tw_test_shell("TIDEWAKE_CUDA_LIBRARY=\"$TW_BUILD\"/cudasim/%s TW_CUDA_CASES=%s CK_FORK=no "
                                           "CK_RUN_CASE=operations \"$TW_BUILD\"/check cuda_cases 2>&1",
                                           library, cases);
    const int status = run.exit_status;
    if (status != 0 && strcmp(cases, "1") != 0) fputs(tw_text_string(&run.out), stderr);
    tw_test_run_release(&run);
    return status;
}

START_TEST(no_access_is_wrong) { ck_assert_int_le(run_with("libtidewake-cudasim-shadow.so", "2"), 0); }
END_TEST

static const char *const mutants[] = {"barrier", "bound", "merge", "atomic", "overrun"};
enum { N_MUTANTS = sizeof mutants / sizeof *mutants };

START_TEST(a_fault_is_found) {
    char library[64];
    snprintf(library, sizeof library, "mutants/%s.so", mutants[_i]);
    const int status = run_with(library, "1");
    ck_assert_msg(status != 0, "'%s' goes through", mutants[_i]);
}
END_TEST

START_TEST(library_is_named_when_missing) {
    const struct tw_backend_ops *ops;
    struct tw_error err = {0};
    setenv("TIDEWAKE_CUDA_LIBRARY", "/nowhere/libtidewake-cuda.so", 1);
    ck_assert_int_eq(tw_backend_load(&ops, "cuda", &err), TW_E_UNSUPPORTED);
    ck_assert_ptr_null(ops);
    ck_assert_ptr_nonnull(strstr(err.text, "/nowhere/libtidewake-cuda.so"));
    ck_assert_ptr_nonnull(strstr(err.text, "make cuda"));
    ck_assert_int_eq(tw_backend_load(&ops, "opencl", &err), TW_E_OPTION);
    unsetenv("TIDEWAKE_CUDA_LIBRARY");
}
END_TEST

Suite *tw_suite_cuda(void) {
    Suite *const suite = suite_create("cuda");
    TCase *const watched = tcase_create("watched");
    tcase_set_timeout(watched, 300);
    tcase_add_test(watched, no_access_is_wrong);
    tcase_add_loop_test(watched, a_fault_is_found, 0, N_MUTANTS);
    tcase_add_test(watched, library_is_named_when_missing);
    suite_add_tcase(suite, watched);
    return suite;
}
