/* Every command of the table: its help, its example, the man page, completion, and that nothing partial is left behind.
 */
#include <check.h>
#include <pty.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/progress_line.h"
#include "tests/support.h"

START_TEST(every_command_explains_itself) {
    for (const struct tw_command *const *c = tw_command_table; *c; c++) {
        struct tw_test_run run = tw_test_run("%s --help", (*c)->name);
        ck_assert_msg(run.exit_status == 0, "%s --help: %s", (*c)->name, tw_text_string(&run.err));
        ck_assert_uint_eq(run.err.size, 0);
        const char *example = strstr(tw_text_string(&run.out), "\nExample:\n  tidewake ");
        ck_assert_msg(example != NULL, "%s has no example", (*c)->name);
        tw_test_run_release(&run);
        run = tw_test_run("%s --no-such-option", (*c)->name);
        ck_assert_int_eq(run.exit_status, 2);
        ck_assert_ptr_nonnull(strstr(tw_text_string(&run.err), "no-such-option"));
        tw_test_run_release(&run);
        /* Every option has help, and one that takes a value says of what kind. */
        for (const struct tw_option_group *g = (*c)->groups; g && g->options; g++)
            for (const struct tw_option *o = g->options; o->name; o++) {
                ck_assert_msg(o->help && *o->help, "%s --%s has no help", (*c)->name, o->name);
                ck_assert_msg(o->type == TW_OPTION_FLAG || o->type == TW_OPTION_CHOICE || o->value_name,
                              "%s --%s does not name its value", (*c)->name, o->name);
                /* No option twice among a command's groups. */
                size_t times = 0;
                for (const struct tw_option_group *h = (*c)->groups; h && h->options; h++)
                    for (const struct tw_option *p = h->options; p->name; p++) times += strcmp(o->name, p->name) == 0;
                ck_assert_msg(times == 1, "%s --%s is there %zu times", (*c)->name, o->name, times);
            }
    }
}
END_TEST

/* The end of the command that begins at `text`: in front of " | ", " && ", " > " or " < ". */
static size_t command_length(const char *text, const char *end) {
    static const char *const operators[] = {" | ", " && ", " > ", " < "};
    size_t length = (size_t)(end - text);
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        const char *const at = memmem(text, length, operators[i], strlen(operators[i]));
        if (at) length = (size_t)(at - text);
    }
    return length;
}

/* Every option that an example names is there, and takes the value it is given: --help behind the rest is reached only
 * when all before it was parsed. */
START_TEST(examples_are_parsed) {
    for (const struct tw_command *const *c = tw_command_table; *c; c++) {
        static const char name[] = "tidewake ";
        const char *const example = (*c)->example;
        bool own = false;
        for (const char *at = example; (at = strstr(at, name)); at++) {
            if (at != example && at[-1] != '\n' && !(at - example >= 3 && strchr("|&", at[-2]))) continue;
            const char *const arguments = at + strlen(name), *const newline = strchr(at, '\n');
            const char *const end = newline ? newline : at + strlen(at);
            const int length = (int)command_length(arguments, end);
            struct tw_test_run run = tw_test_run("%.*s --help", length, arguments);
            ck_assert_msg(run.exit_status == 0 && strstr(tw_text_string(&run.out), "Usage: tidewake "),
                          "tidewake %.*s: %s", length, arguments, tw_text_string(&run.err));
            tw_test_run_release(&run);
            own = own || strncmp(arguments, (*c)->name, strlen((*c)->name)) == 0;
        }
        ck_assert_msg(own, "the examples of %s do not call it", (*c)->name);
    }
}
END_TEST

START_TEST(manual_and_completion_name_every_command) {
    struct tw_test_run man = tw_test_run("list --as man"),
                       bash = tw_test_shell("$TW_PROGRAM list --as bash | bash -n && exec $TW_PROGRAM list --as bash");
    ck_assert_int_eq(man.exit_status, 0);
    ck_assert_int_eq(bash.exit_status, 0);
    for (const struct tw_command *const *c = tw_command_table; *c; c++) {
        char wanted[128];
        snprintf(wanted, sizeof wanted, ".SS \"tidewake %s ", (*c)->name);
        ck_assert_msg(strstr(tw_text_string(&man.out), wanted) != NULL, "%s", wanted);
        snprintf(wanted, sizeof wanted, "        %s) words='", (*c)->name);
        ck_assert_msg(strstr(tw_text_string(&bash.out), wanted) != NULL, "%s", wanted);
    }
    tw_test_run_release(&man);
    tw_test_run_release(&bash);
}
END_TEST

START_TEST(a_table_appears_under_its_name_only_when_complete) {
    const char *folder = tw_test_folder();
    struct tw_test_run run = tw_test_shell("$TW_PROGRAM list -o %s/list.csv && head -1 %s/list.csv && ls %s | wc -l",
                                           folder, folder, folder);
    ck_assert_str_eq(tw_text_string(&run.out), "kind,name,summary,source\n1\n");
    tw_test_run_release(&run);
    run = tw_test_run("list -o %s/none/list.csv", folder);
    ck_assert_int_eq(run.exit_status, 2);
    ck_assert_msg(strstr(tw_text_string(&run.err), "none/list.csv") != NULL, "%s", tw_text_string(&run.err));
    tw_test_run_release(&run);
    run = tw_test_run("list > /dev/full");
    ck_assert_int_eq(run.exit_status, 3);
    tw_test_run_release(&run);
    /* A file size limit stands in for a full disk: nothing is left behind. */
    run = tw_test_shell("ulimit -f 0; exec $TW_PROGRAM list -o %s/full.csv", folder);
    ck_assert_msg(run.exit_status == 3, "%d %s", run.exit_status, tw_text_string(&run.err));
    tw_test_run_release(&run);
    run = tw_test_shell("ls %s", folder);
    ck_assert_str_eq(tw_text_string(&run.out), "list.csv\n");
    tw_test_run_release(&run);
}
END_TEST

/* What a child process writes to a terminal that is its standard error. */
static void on_terminal(struct tw_text *written, void (*child)(void)) {
    int terminal;
    fflush(NULL);
    const pid_t pid = forkpty(&terminal, NULL, NULL, &(struct winsize){.ws_row = 24, .ws_col = 60});
    ck_assert(pid >= 0);
    if (pid == 0) {
        child();
        _exit(0);
    }
    char buffer[512];
    for (ssize_t n; (n = read(terminal, buffer, sizeof buffer)) > 0;)
        tw_text_append(written, (struct tw_view){buffer, (size_t)n});
    close(terminal);
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void one_long_operation(void) {
    tw_progress_update(tw_progress_line(), "prefill", 3, 10, "tokens", "layer 2/3, chunk 1/1");
    sleep(4);
    tw_progress_line_clear();
    fputs("then", stderr);
    sleep(2);
    fputs(" silence", stderr);
}

static void a_note_between(void) {
    struct tw_progress *progress = tw_progress_line();
    tw_progress_update(progress, "a", 0, 2, "steps", NULL);
    usleep(400000);
    tw_progress_update(progress, "a", 1, 2, "steps",
                       "a detail that is too long for a terminal of sixty columns, as they may be");
    tw_progress_line_clear();
    fputs("note\n", stderr);
}

/* C37: a sign of life at least once a second, also inside an operation; nothing once the line is gone. */
START_TEST(progress_goes_on_in_a_long_operation) {
    struct tw_text written = {0};
    on_terminal(&written, one_long_operation);
    const char *text = tw_text_string(&written);
    ck_assert_msg(strstr(text, "prefill  30%  layer 2/3, chunk 1/1"), "%s", text);
    ck_assert_msg(strstr(text, "(2 s)") && strstr(text, "(3 s)"), "%s", text);
    ck_assert_msg(strstr(text, "\r\033[Kthen silence"), "%s", text);
    tw_text_clear(&written);
    on_terminal(&written, a_note_between);
    text = tw_text_string(&written);
    ck_assert_msg(strstr(text, "\ra  50%  a detail that is too long for a terminal of sixty c\033[K\r\033[Knote"), "%s",
                  text);
    tw_text_release(&written);
}
END_TEST

Suite *tw_suite_cli(void);
Suite *tw_suite_cli(void) {
    Suite *suite = suite_create("cli");
    TCase *c = tcase_create("cli");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, every_command_explains_itself);
    tcase_add_test(c, examples_are_parsed);
    tcase_add_test(c, manual_and_completion_name_every_command);
    tcase_add_test(c, a_table_appears_under_its_name_only_when_complete);
    tcase_add_test(c, progress_goes_on_in_a_long_operation);
    suite_add_tcase(suite, c);
    return suite;
}
