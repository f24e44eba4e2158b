/*
 * Suite `cuda_cases` again, where every access of a kernel is watched, and where one kernel has a fault: the first must
 * pass, the others must not. And the library's loader, with the object that nvcc makes.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend/load.h"
#include "tests/support.h"

Suite *tw_suite_cuda(void);

/* An instrumented build has no shadow: there is nothing to run. */
static bool has_shadow(void) {
    struct tw_test_run there = tw_test_shell("test -f \"$TW_BUILD\"/cudasim/selftest-shadow");
    const bool built = there.exit_status == 0;
    tw_test_run_release(&there);
    return built;
}

/* Runs `cases` random cases in a process of their own with a library of the build folder. */
static struct tw_test_run run_with(const char *library, int cases) {
    return tw_test_shell("TIDEWAKE_CUDA_LIBRARY=\"$TW_BUILD\"/cudasim/%s TW_CUDA_CASES=%d CK_FORK=no "
                         "CK_RUN_CASE=operations \"$TW_BUILD\"/check cuda_cases 2>&1",
                         library, cases);
}

START_TEST(no_access_is_wrong) {
    if (!has_shadow()) return;
    struct tw_test_run run = run_with("libtidewake-cudasim-shadow.so", 2);
    ck_assert_msg(run.exit_status == 0, "%s", tw_text_string(&run.out));
    tw_test_run_release(&run);
}
END_TEST

static const char *const mutants[] = {"barrier", "bound", "merge", "atomic", "overrun"};
enum { N_MUTANTS = sizeof mutants / sizeof *mutants };

START_TEST(a_fault_is_found) {
    if (!has_shadow()) return;
    char library[64];
    snprintf(library, sizeof library, "mutants/%s.so", mutants[_i]);
    struct tw_test_run run = run_with(library, 1);
    ck_assert_msg(run.exit_status != 0, "'%s' goes through", mutants[_i]);
    ck_assert_msg(!strstr(tw_text_string(&run.out), "cannot be loaded"), "%s", tw_text_string(&run.out));
    tw_test_run_release(&run);
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

/*
 * What nvcc makes of the kernels (`make check-nvcc`, one architecture) links, loads through the program's loader, and
 * says in one line that there is no driver, or that no device is visible where there is one.
 */
START_TEST(nvcc_builds_what_the_program_loads) {
    const char *const library = "build/cuda-80/libtidewake-cuda.so";
    struct tw_test_run there = tw_test_shell("test -f \"$TW_SOURCE\"/%s", library);
    const bool built = there.exit_status == 0;
    tw_test_run_release(&there);
    if (!built && tw_test_skip("nvcc", "no nvcc here: the CUDA backend is not compiled for devices")) return;
    struct tw_test_run run = tw_test_shell(
        "TIDEWAKE_CUDA_LIBRARY=\"$TW_SOURCE\"/%s CUDA_VISIBLE_DEVICES= \"$TW_PROGRAM\" generate --backend cuda --text x "
        "\"$TW_SOURCE\"/tests/golden/engine/models/llama_rope3/llama_rope3.f32.gguf 2>&1",
        library);
    const char *const text = tw_text_string(&run.out), *const line = strchr(text, '\n');
    ck_assert_msg(run.exit_status == 3, "exit status %d: %s", run.exit_status, text);
    ck_assert_msg(line && !line[1], "not one line: %s", text);
    ck_assert_msg(strstr(text, "backend 'cuda' finds no ") && strstr(text, "use '--backend cpu'"), "%s", text);
    tw_test_run_release(&run);
}
END_TEST

Suite *tw_suite_cuda(void) {
    Suite *const suite = suite_create("cuda");
    TCase *const watched = tcase_create("watched");
    tcase_set_timeout(watched, 300);
    tcase_add_test(watched, no_access_is_wrong);
    tcase_add_loop_test(watched, a_fault_is_found, 0, N_MUTANTS);
    tcase_add_test(watched, library_is_named_when_missing);
    tcase_add_test(watched, nvcc_builds_what_the_program_loads);
    suite_add_tcase(suite, watched);
    return suite;
}
