/* Studies: their settings, their report, and a whole study over recorded traces. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/study/report.h"
#include "cli/study/settings.h"
#include "tests/support.h"

START_TEST(settings_are_read_by_their_tables) {
    static const char text[] =
        "; a study\n[study]\ntitle = Two models\n[model a]\npath = a.gguf\n[model b]\npath = b.gguf\n"
        "[task niah]\ncontext = 1K,2048\ndepth = 0.1,0.9\nruns = 3\n[task cot]\n[replay]\nbudget = 8,4..5\n";
    struct tw_study_settings settings;
    struct tw_error err = {0};
    ck_assert_msg(tw_study_settings_parse(&settings, text, "x.ini", NULL, 0, &err) == TW_OK, "%s", err.text);
    const struct tw_study_general *general = tw_study_values(&settings, "study");
    ck_assert_str_eq(general->title, "Two models");
    ck_assert_ptr_null(general->output);
    const struct tw_study_section *model = tw_study_next(&settings, "model", NULL);
    ck_assert_str_eq(model->name, "a");
    model = tw_study_next(&settings, "model", model);
    ck_assert_str_eq(((const struct tw_study_model *)model->values)->path, "b.gguf");
    ck_assert_ptr_null(tw_study_next(&settings, "model", model));
    const struct tw_study_task *task = tw_study_next(&settings, "task", NULL)->values;
    ck_assert(task->context.n == 2 && task->context.values[0] == 1024 && task->depth.values[1] == 0.9 &&
              task->runs == 3 && task->seed == 0);
    const struct tw_study_section *second = tw_study_next(&settings, "task", tw_study_next(&settings, "task", NULL));
    ck_assert_str_eq(second->name, "cot"); /* a section without keys is there, with its defaults */
    ck_assert_uint_eq(((const struct tw_study_task *)second->values)->runs, 1);
    const struct tw_study_replay *replay = tw_study_values(&settings, "replay");
    ck_assert(replay->budget.n == 3 && replay->budget.values[0] == 4);
    ck_assert_str_eq(replay->policy, "all,min");
    ck_assert_ptr_null(tw_study_values(&settings, "quality"));
    tw_study_settings_release(&settings);
}
END_TEST

static const struct {
    const char *text, *expected;
} faults[] = {
    {"", "no section"},
    {"[studdy]\ntitle = x\n", "no section [studdy]"},
    {"title = x\n", "before the first section"},
    {"[task]\nruns = 1\n", "needs a name"},
    {"[replay x]\nbudget = 1\n", "takes no name"},
    {"[replay]\nbuget = 1\n", "the nearest is 'budget'"},
    {"[replay]\nbudget = -1\n", "'-1' is not a list"},
    {"[replay]\nbudget = 1\nbudget = 2\n", "stands twice"},
    {"[task niah]\ndepth = 1.5\n", "between 0 and 1"},
    {"[replay]\nbudget 1\n", "line 2"},
    {"[replay]\nbudget = 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,"
     "39,40,41,42,43,44,45,46,47,48,49,50,51,52,53,54,55,56,57,58,59,60,61,62,63,64,65,66,67,68,69,70\n",
     "line 2 is longer"},
    {"[engine]\nchunk = 1\n", "no section [engine]"}, /* this parser was given no engine */
};

START_TEST(faults_in_settings_are_named) {
    struct tw_study_settings settings;
    struct tw_error err = {0};
    ck_assert_int_eq(tw_study_settings_parse(&settings, faults[_i].text, "x.ini", NULL, 0, &err), TW_E_INPUT);
    ck_assert_msg(strstr(err.text, "x.ini") && strstr(err.text, faults[_i].expected), "%s", err.text);
}
END_TEST

START_TEST(a_report_is_one_page_with_everything_in_it) {
    const char *folder = tw_test_folder();
    const char *svg = tw_test_path(folder, "f.svg"), *html = tw_test_path(folder, "r.html");
    tw_test_write_file(svg, "<svg/>", 6);
    struct tw_report report = {0};
    struct tw_error err = {0};
    tw_report_section(&report, "A & B <script>");
    tw_report_paragraph(&report, "%d < 3", 2);
    struct tw_table table;
    tw_table_init(&table, (const char *const[]){"name", "rate_of", "pages", "kind"}, 4);
    char long_text[401];
    memset(long_text, 'x', 400);
    long_text[400] = 0;
    for (int i = 0; i < 3; i++) {
        tw_table_begin_row(&table);
        tw_table_put_text(&table, i == 1 ? long_text : "it's_a {test}");
        tw_table_put_double(&table, i == 0 ? 0.25 : (double)NAN);
        tw_table_put_double(&table, i == 0 ? 12345.678 : 7);
        tw_table_put_text(&table, "all <the> same");
    }
    const struct tw_report_listing listing = {.caption = "Rates", .max_rows = 2, .csv = "rates.csv"};
    tw_report_table(&report, &table, &listing);
    tw_table_release(&table);
    ck_assert_int_eq(tw_report_figure(&report, svg, "A figure", "nothing", &err), TW_OK);
    ck_assert_int_eq(tw_report_figure(&report, tw_test_path(folder, "none.svg"), "", "", &err), TW_E_INPUT);
    tw_report_claim(&report, TW_VERDICT_HOLDS, "one", "1", "1");
    tw_report_claim(&report, TW_VERDICT_OPEN, "two", "2", "");
    ck_assert_int_eq(tw_report_write(&report, html, "T", "s", &err), TW_OK);
    tw_report_release(&report);
    char *page = tw_test_read_file(html, NULL);
    ck_assert_ptr_null(strstr(page, "<script"));
    ck_assert_ptr_null(strstr(page, "http"));
    ck_assert_ptr_nonnull(strstr(page, "A &amp; B &lt;script&gt;"));
    /* One number of decimals a column, no exponents; what is undefined is a dash; long texts are cut; what every row
     * says stands in the caption. */
    ck_assert_ptr_nonnull(strstr(page, "<td class=\"n\">0.250</td><td class=\"n\">12346</td></tr>"));
    ck_assert_ptr_nonnull(strstr(page, "<td class=\"n\">\u2013</td><td class=\"n\">7</td></tr>"));
    ck_assert_ptr_nonnull(strstr(page, "xxx \u2026</td>"));
    ck_assert_ptr_null(strstr(page, "<th>kind</th>"));
    ck_assert_ptr_nonnull(strstr(page, "In every row: kind all &lt;the&gt; same."));
    ck_assert_ptr_nonnull(strstr(page, "rate_<wbr>of"));
    ck_assert_ptr_nonnull(strstr(page, "The first 2 of 3 rows. All of it: rates.csv."));
    ck_assert_ptr_nonnull(strstr(page, "data:image/svg+xml;base64,PHN2Zy8+"));
    const char *first = strstr(page, "<th>Claim</th>");
    ck_assert_ptr_nonnull(first);
    ck_assert_ptr_null(strstr(first + 1, "<th>Claim</th>")); /* one table for both claims */
    free(page);
}
END_TEST

/* Traces that are there, through to the report: every file that is promised, and the figures of the tables in them. */
START_TEST(a_study_of_traces_that_are_there) {
    const char *folder = tw_test_folder();
    const char *ini = tw_test_path(folder, "s.ini");
    struct tw_text text = {0};
    tw_text_printf(
        &text, "[study]\ntitle = Golden\noutput = %s/out\n[traces golden]\npath = %s\n[replay]\nbudget = 4,8,16,32\n",
        folder, tw_test_golden("replay/study"));
    tw_test_write_file(ini, text.data, text.size);
    tw_text_release(&text);
    struct tw_test_run run = tw_test_run("study %s", ini);
    ck_assert_msg(run.exit_status == 0, "%s", tw_text_string(&run.err));
    ck_assert_ptr_nonnull(strstr(tw_text_string(&run.out), "reactive"));
    static const char *const made[] = {"tables/replay.csv",
                                       "tables/average.csv",
                                       "tables/matched.csv",
                                       "tables/wins.csv",
                                       "tables/churn.csv",
                                       "figures/miss-rate.svg",
                                       "figures/miss-rate.png",
                                       "figures/wakeups.svg",
                                       "figures/precision-recall.svg",
                                       "report.html"};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/out/%s", folder, made[i]);
        ck_assert_msg(strstr(tw_text_string(&run.out), path) != NULL, "%s is not listed", path);
        size_t size;
        free(tw_test_read_file(path, &size));
        ck_assert_uint_gt(size, 20);
    }
    tw_test_run_release(&run);
    /* Three runs of one model and task: the report says so, and holds no claim that nothing was measured for. */
    char *page = tw_test_read_file(tw_test_path(folder, "out/report.html"), NULL);
    ck_assert_ptr_nonnull(strstr(page, "holds here"));
    ck_assert_ptr_nonnull(strstr(page, "not part of this study"));
    free(page);
}
END_TEST

Suite *tw_suite_study(void);
Suite *tw_suite_study(void) {
    Suite *suite = suite_create("study");
    TCase *c = tcase_create("study");
    tcase_add_test(c, settings_are_read_by_their_tables);
    tcase_add_loop_test(c, faults_in_settings_are_named, 0, sizeof faults / sizeof *faults);
    tcase_add_test(c, a_report_is_one_page_with_everything_in_it);
    tcase_add_test(c, a_study_of_traces_that_are_there);
    tcase_set_timeout(c, 120);
    suite_add_tcase(suite, c);
    return suite;
}
