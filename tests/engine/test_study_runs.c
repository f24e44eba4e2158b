/* Studies that make their traces: what is there is not made again, what changed is; answers under compression. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support.h"

static void write_settings(const char *path, const char *folder, unsigned max_new) {
    struct tw_text text = {0};
    tw_text_printf(
        &text,
        "[study]\noutput = %s/out\n[model tiny]\npath = %s\n[engine]\nbackend = ref\nthreads = 1\n"
        "[task cot]\nruns = 2\nmax-new = %u\n[task multiturn]\ncontext = 100\nmax-new = 3\n[replay]\nbudget = 1..4\n"
        "[quality]\ntask = cot\nruns = 2\ncontext = 100\nselector = snapkv:kernel=5,recent:sinks=4\n"
        "schedule = tide,postprefill\nbudget = 40,full\n",
        folder, tw_test_golden("engine/models/llama_tied/llama_tied.f32.gguf"), max_new);
    tw_test_write_file(path, text.data, text.size);
    tw_text_release(&text);
}

static size_t count(const char *text, const char *part) {
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, part)); at++) n++;
    return n;
}

START_TEST(runs_that_are_there_are_not_repeated) {
    const char *folder = tw_test_folder(), *ini = tw_test_path(folder, "s.ini");
    static const struct {
        unsigned max_new;
        size_t traced, answered; /* answers do not depend on how long the traces are */
    } rounds[] = {{4, 3, 6}, {4, 0, 0}, {5, 2, 0}};
    for (size_t i = 0; i < 3; i++) {
        write_settings(ini, folder, rounds[i].max_new);
        struct tw_test_run run = tw_test_run("study %s", ini);
        ck_assert_msg(run.exit_status == 0, "%s", tw_text_string(&run.err));
        ck_assert_uint_eq(count(tw_text_string(&run.err), "tidewake: traced "), rounds[i].traced);
        ck_assert_uint_eq(count(tw_text_string(&run.err), " right, in "), rounds[i].answered);
        tw_test_run_release(&run);
    }
    /* A trace whose run was cut short is made again, too. */
    struct tw_test_run run = tw_test_shell("rm %s/out/traces/tiny/cot-1.settings", folder);
    ck_assert_int_eq(run.exit_status, 0);
    tw_test_run_release(&run);
    run = tw_test_run("study %s", ini);
    ck_assert_uint_eq(count(tw_text_string(&run.err), "tidewake: traced "), 1);
    tw_test_run_release(&run);

    /* So is what an interrupted study had found: a line that was cut short is found again, the others are kept. */
    run = tw_test_shell("cp %s/out/tables/quality.csv %s/before.csv && truncate -s -2 %s/out/quality.kept", folder,
                        folder, folder);
    ck_assert_int_eq(run.exit_status, 0);
    tw_test_run_release(&run);
    run = tw_test_run("study %s", ini);
    ck_assert_uint_eq(count(tw_text_string(&run.err), " right, in "), 1);
    tw_test_run_release(&run);
    run = tw_test_shell("cmp %s/before.csv %s/out/tables/quality.csv", folder, folder);
    ck_assert_int_eq(run.exit_status, 0);
    tw_test_run_release(&run);

    char *quality = tw_test_read_file(tw_test_path(folder, "out/tables/quality.csv"), NULL);
    ck_assert_ptr_nonnull(strstr(quality, "model,task,context,schedule,selector,budget,examples,right,score,low,high"));
    ck_assert_uint_eq(count(quality, "tiny,cot,100,tide,"), 3); /* two selectors at 40, and full */
    ck_assert_uint_eq(count(quality, "tiny,cot,100,postprefill,"), 3);
    free(quality);
    char *report = tw_test_read_file(tw_test_path(folder, "out/report.html"), NULL);
    ck_assert_ptr_nonnull(strstr(report, "<th>tide</th><th>postprefill</th>")); /* equal scores stand side by side */
    free(report);
}
END_TEST

Suite *tw_suite_study_runs(void);
Suite *tw_suite_study_runs(void) {
    Suite *suite = suite_create("study runs");
    TCase *c = tcase_create("study runs");
    tcase_set_timeout(c, 240);
    tcase_add_test(c, runs_that_are_there_are_not_repeated);
    suite_add_tcase(suite, c);
    return suite;
}
