/* `churn` against the golden traces: every figure, and what a user sees. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/golden_json.h"
#include "tests/support.h"
#include "tests/trace_maker.h"

static const char *const traces[] = {"plain",   "gqa",        "mqa",        "six",       "ties", "padded",
                                     "short",   "under128",   "long",       "k16",       "wide", "busy",
                                     "noscore", "study/run0", "study/run1", "study/run2"};
enum { N_TRACES = sizeof traces / sizeof *traces };

START_TEST(every_figure_of_a_trace) {
    static const char *const members[] = {"trace", "steps",    "layers",  "heads",    "page_size", "temporal_stability",
                                          "drift", "activity", "pages_8", "pages_32", NULL};
    const char *const name = traces[_i];
    char file[64];
    snprintf(file, sizeof file, "replay/%s.churn.json", name);
    cJSON *const golden = tw_test_json_file(tw_test_golden(file));
    snprintf(file, sizeof file, "replay/%s.h5", name);
    struct tw_test_run run = tw_test_run("churn %s --page-size 16,8,32 --format json", tw_test_golden(file));
    ck_assert_msg(run.exit_status == 0, "%s", tw_text_string(&run.err));
    cJSON *const got = tw_test_json_text(tw_text_string(&run.out));
    tw_test_json_members(got, golden, members, name);
    /* What the trace lacks is named. */
    const bool told = strstr(tw_text_string(&run.err), "has no /score/needle") != NULL;
    ck_assert_int_eq(told, strcmp(name, "noscore") == 0);
    cJSON_Delete(got);
    cJSON_Delete(golden);
    tw_test_run_release(&run);
}
END_TEST

START_TEST(averages_over_runs) {
    static const char *const members[] = {"model", "task", "page_size", "runs", "mean_over_runs", NULL};
    cJSON *const golden = tw_test_json_file(tw_test_golden("replay/study/churn.json"));
    struct tw_test_run run = tw_test_run("churn %s --average --format json", tw_test_golden("replay/study"));
    ck_assert_msg(run.exit_status == 0, "%s", tw_text_string(&run.err));
    cJSON *const got = tw_test_json_text(tw_text_string(&run.out));
    tw_test_json_members(got, golden, members, "study");
    cJSON_Delete(got);
    cJSON_Delete(golden);
    tw_test_run_release(&run);
}
END_TEST

/* Counts fields of a CSV line that holds no quotes. */
static size_t count_fields(const char *line) {
    size_t n = 1;
    for (; *line && *line != '\n'; line++) n += *line == ',';
    return n;
}

START_TEST(tables_have_a_row_a_trace_and_page_size) {
    struct tw_test_run run = tw_test_run("churn %s %s --page-size 8,16,8 --format csv", tw_test_golden("replay/study"),
                                         tw_test_golden("replay/noscore.h5"));
    ck_assert_int_eq(run.exit_status, 0);
    const char *line = tw_text_string(&run.out);
    const size_t n = count_fields(line);
    size_t lines = 0;
    for (; *line; line = strchr(line, '\n') + 1, lines++) ck_assert_uint_eq(count_fields(line), n);
    ck_assert_uint_eq(lines, 1 + 4 * 2);
    const char *const last = strstr(tw_text_string(&run.out), "\nnoscore,");
    ck_assert_ptr_nonnull(last);
    ck_assert_msg(strstr(last, ",,,"), "what is not defined is an empty field");
    tw_test_run_release(&run);
    run = tw_test_run("churn %s --average", tw_test_golden("replay/study"));
    ck_assert_int_eq(run.exit_status, 0);
    ck_assert_ptr_nonnull(strstr(tw_text_string(&run.out), "synthetic-1b  multiturn     3"));
    tw_test_run_release(&run);
}
END_TEST

START_TEST(threads_change_nothing) {
    struct tw_test_run one =
        tw_test_shell("OMP_NUM_THREADS=1 $TW_PROGRAM churn %s --format json", tw_test_golden("replay/k16.h5"));
    struct tw_test_run three =
        tw_test_shell("OMP_NUM_THREADS=3 $TW_PROGRAM churn %s --format json", tw_test_golden("replay/k16.h5"));
    ck_assert_int_eq(one.exit_status, 0);
    ck_assert_str_eq(tw_text_string(&one.out), tw_text_string(&three.out));
    tw_test_run_release(&one);
    tw_test_run_release(&three);
}
END_TEST

START_TEST(one_warning_for_all_traces) {
    const char *const folder = tw_test_folder();
    for (int i = 0; i < 3; i++) {
        struct tw_test_trace trace;
        char name[16];
        tw_test_trace_shape(&trace, 20);
        trace.info.budget = 64;
        trace.options.needle = trace.options.copy_paste = i == 0;
        tw_test_trace_make(&trace, 1);
        snprintf(name, sizeof name, "%d.h5", i);
        tw_test_trace_write(&trace, tw_test_path(folder, name));
        tw_test_trace_release(&trace);
    }
    static const char *const commands[] = {"churn", "wakeups"};
    for (int i = 0; i < 2; i++) {
        struct tw_test_run run = tw_test_run("%s %s", commands[i], folder);
        ck_assert_msg(run.exit_status == 0, "%s", tw_text_string(&run.err));
        const char *const limited = strstr(tw_text_string(&run.err), "3 traces, the first ");
        ck_assert_msg(limited && !strstr(limited + 1, "3 traces"), "%s", tw_text_string(&run.err));
        ck_assert_msg(strstr(tw_text_string(&run.err), "2 traces, the first "), "%s", tw_text_string(&run.err));
        ck_assert_msg(strstr(tw_text_string(&run.err), "have no /score/needle"), "%s", tw_text_string(&run.err));
        tw_test_run_release(&run);
    }
}
END_TEST

START_TEST(refusals) {
    static const struct {
        const char *arguments, *says;
    } cases[] = {
        {"churn", "churn needs an operand"},
        {"churn /nowhere/run.h5", "/nowhere/run.h5"},
        {"churn --page-size 0 x.h5", "not between 1 and"},
        {"churn --average --page-szie 16 x.h5", "did you mean '--page-size'"},
        {"churn Makefile", "Makefile"},
    };
    struct tw_test_run run = tw_test_run("%s", cases[_i].arguments);
    ck_assert_int_eq(run.exit_status, 2);
    ck_assert_msg(strstr(tw_text_string(&run.err), cases[_i].says), "%s", tw_text_string(&run.err));
    ck_assert_uint_eq(run.out.size, 0);
    tw_test_run_release(&run);
}
END_TEST

Suite *tw_suite_churn(void);
Suite *tw_suite_churn(void) {
    Suite *suite = suite_create("churn");
    TCase *golden = tcase_create("golden");
    tcase_set_timeout(golden, 60);
    tcase_add_loop_test(golden, every_figure_of_a_trace, 0, N_TRACES);
    tcase_add_test(golden, averages_over_runs);
    tcase_add_test(golden, threads_change_nothing);
    suite_add_tcase(suite, golden);
    TCase *command = tcase_create("command");
    tcase_set_timeout(command, 30);
    tcase_add_test(command, tables_have_a_row_a_trace_and_page_size);
    tcase_add_test(command, one_warning_for_all_traces);
    tcase_add_loop_test(command, refusals, 0, 5);
    suite_add_tcase(suite, command);
    return suite;
}
