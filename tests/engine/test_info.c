/* `tidewake info` of models. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/engine/tiny_model.h"
#include "tests/support.h"

Suite *tw_suite_info(void);

/* Asserts that the table has a line of this property and value. */
static void must_show(const struct tw_test_run *run, const char *line) {
    ck_assert_msg(strstr(tw_text_string(&run->out), line) != NULL, "no '%s' in\n%s", line, tw_text_string(&run->out));
}

START_TEST(shows_what_was_understood) {
    struct tw_test_run run = tw_test_run("info %s --format csv", tw_test_golden("engine/models/gemma3_text/hf"));
    ck_assert_msg(run.exit_status == 0, "%s", tw_text_string(&run.err));
    ck_assert_uint_eq(run.err.size, 0);
    must_show(&run, "\narchitecture,gemma3\n");
    must_show(&run, "\nhead size,32\n");
    must_show(&run, "\nsliding window,32 positions in 5 of 6 layers\n");
    must_show(&run, "\nmatrices,43 x BF16\n");
    tw_test_run_release(&run);
    run = tw_test_run("info %s --format csv", tw_test_golden("engine/models/llama_rope3/llama_rope3.q8_0.gguf"));
    ck_assert_int_eq(run.exit_status, 0);
    must_show(&run, "\nfile,\"GGUF, version 3\"\n");
    must_show(&run, "scaling llama3");
    must_show(&run, "\nmatrices,23 x Q8_0\n");
    tw_test_run_release(&run);
    run = tw_test_shell("$TW_PROGRAM info $TW_SOURCE/data/configs/Qwen3-0.6B.json --format csv");
    ck_assert_int_eq(run.exit_status, 0);
    must_show(&run, "\nKV bytes a token,114688 in 16 bits\n");
    tw_test_run_release(&run);
}
END_TEST

START_TEST(says_what_computes) {
    const char *model = tw_test_golden("engine/models/llama_tied/hf");
    setenv("TIDEWAKE_CPU", "portable", 1);
    struct tw_test_run run = tw_test_run("info %s --format csv", model);
    ck_assert_int_eq(run.exit_status, 0);
    must_show(&run, "\ncomputed in,\"float32, portable kernels, oneDNN ");
    must_show(&run, ", no bf16 arithmetic at this level\"\n");
    tw_test_run_release(&run);
    setenv("TIDEWAKE_CPU", "vax", 1);
    run = tw_test_run("info %s --format csv", model);
    ck_assert_int_eq(run.exit_status, 0);
    must_show(&run, "\ncomputed in,\"nothing here: environment variable TIDEWAKE_CPU is 'vax': ");
    tw_test_run_release(&run);
}
END_TEST

START_TEST(warns_and_refuses) {
    const char *folder = tw_test_folder();
    struct tw_test_run run = tw_test_run("info %s", tw_tiny_hf(folder, "both", &(struct tw_tiny){.tied = true}));
    ck_assert_int_eq(run.exit_status, 0);
    ck_assert_ptr_nonnull(strstr(tw_text_string(&run.err), "warning: model '"));
    ck_assert_ptr_nonnull(strstr(tw_text_string(&run.err), "the embedding is used\n"));
    tw_test_run_release(&run);
    const char *const refused[] = {folder, tw_test_path(folder, "nothing"),
                                   tw_test_golden("engine/malformed/gguf/empty.gguf"),
                                   tw_test_golden("engine/malformed/config/heads_zero")};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        run = tw_test_run("info %s", refused[i]);
        ck_assert_int_eq(run.exit_status, 2);
        ck_assert_uint_eq(run.out.size, 0);
        ck_assert_ptr_nonnull(strstr(tw_text_string(&run.err), refused[i]));
        tw_test_run_release(&run);
    }
}
END_TEST

Suite *tw_suite_info(void) {
    Suite *suite = suite_create("info");
    TCase *tcase = tcase_create("models");
    tcase_set_timeout(tcase, 20);
    tcase_add_test(tcase, shows_what_was_understood);
    tcase_add_test(tcase, says_what_computes);
    tcase_add_test(tcase, warns_and_refuses);
    suite_add_tcase(suite, tcase);
    return suite;
}
