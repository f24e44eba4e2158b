/* What all tests share: where things are, temporary folders, running the program, skipping. */
#ifndef TW_TESTS_SUPPORT_H
#define TW_TESTS_SUPPORT_H

#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

/* Whether this build watches itself, and takes its time. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TW_SANITIZED 1
#else
#define TW_SANITIZED 0
#endif

/* A path under tests/golden, in a static buffer ring (up to 8 live at once). */
const char *tw_test_golden(const char *relative);
/* A fresh empty folder under the system's temporary folder; removed when the test process ends. In a buffer ring. */
const char *tw_test_folder(void);
/* folder + "/" + name in a buffer ring. */
const char *tw_test_path(const char *folder, const char *name);
/* Reads a whole file; fails the test when it cannot. Free with free(). */
void *tw_test_read_file(const char *path, size_t *size);
void tw_test_write_file(const char *path, const void *data, size_t size);

struct tw_test_run {
    int exit_status; /* 128 + signal when killed by one */
    struct tw_text out, err;
};
/*
 * Runs the program under test ($TW_PROGRAM) through /bin/sh with `arguments` (a printf format; quote as a shell would);
 * standard input is /dev/null unless redirected. Release with tw_test_run_release.
 */
struct tw_test_run tw_test_run(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same for any shell command line. */
struct tw_test_run tw_test_shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
void tw_test_run_release(struct tw_test_run *run);

/*
 * Prints "skipped: <test>: <reason>" and returns true, for `if (tw_test_skip(...)) return;`. In CI (CI=true, except for
 * "gpu" and "nvcc"), or where TW_REQUIRE names it, a skip is a failure instead. `what` is a word: "model", "gpu",
 * "nvcc", "network".
 */
int tw_test_skip_at(const char *file, int line, const char *what, const char *reason);
#define tw_test_skip(what, reason) tw_test_skip_at(__FILE__, __LINE__, what, reason)

/* Seeds of randomised tests: TW_SEED reruns one case; printed by the test that fails. */
uint64_t tw_test_seed(void);

/*
 * Memory of this process that is no file's (of /proc/self/smaps_rollup). Clean pages of files are left out: which of
 * them are there depends on the kernel, and on other tests' processes.
 */
size_t tw_test_private_bytes(void);

#endif
