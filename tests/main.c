/*
 * Runs every suite: tests/test_<module>.c exports `Suite *tw_suite_<module>(void)`; the Makefile lists the files.
 * Arguments name the suites to run (all without). CK_RUN_CASE, CK_FORK and CK_VERBOSITY are libcheck's.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define X(name) Suite *tw_suite_##name(void);
#include "suites.inc"
#undef X

static const struct {
    const char *name;
    Suite *(*make)(void);
} suites[] = {
#define X(name) {#name, tw_suite_##name},
#include "suites.inc"
#undef X
};

int main(int argc, char **argv) {
    SRunner *runner = srunner_create(NULL);
    size_t added = 0;
    for (size_t i = 0; i < sizeof suites / sizeof *suites; i++) {
        int wanted = argc < 2;
        for (int a = 1; a < argc; a++) wanted = wanted || strcmp(argv[a], suites[i].name) == 0;
        if (!wanted) continue;
        srunner_add_suite(runner, suites[i].make());
        added++;
    }
    if (!added) {
        fprintf(stderr, "no such suite; there are:");
        for (size_t i = 0; i < sizeof suites / sizeof *suites; i++) fprintf(stderr, " %s", suites[i].name);
        fputc('\n', stderr);
        return 2;
    }
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
