#include "tests/support.h"

#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char *ring(void) {
    static char buffers[16][4096];
    static unsigned next;
    return buffers[next++ % 16];
}

const char *tw_test_golden(const char *relative) {
    const char *source = getenv("TW_SOURCE");
    char *path = ring();
    snprintf(path, 4096, "%s/tests/golden/%s", source ? source : ".", relative);
    return path;
}

const char *tw_test_path(const char *folder, const char *name) {
    char *path = ring();
    snprintf(path, 4096, "%s/%s", folder, name);
    return path;
}

static char folders[64][64];
static size_t n_folders;
static pid_t folders_owner;

static void remove_folders(void) {
    if (getpid() != folders_owner) return;
    for (size_t i = 0; i < n_folders; i++) {
        char command[sizeof folders[i] + 8] = "rm -rf ";
        strcat(command, folders[i]);
        if (system(command) != 0) fprintf(stderr, "cannot remove %s\n", folders[i]);
    }
    n_folders = 0;
}

const char *tw_test_folder(void) {
    if (folders_owner != getpid()) {
        folders_owner = getpid();
        n_folders = 0;
        atexit(remove_folders);
    }
    ck_assert_uint_lt(n_folders, 64);
    char *folder = folders[n_folders];
    strcpy(folder, "/tmp/tidewake-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    n_folders++;
    return folder;
}

void *tw_test_read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "cannot open %s", path);
    fseek(file, 0, SEEK_END);
    const long length = ftell(file);
    rewind(file);
    char *data = malloc((size_t)length + 1);
    ck_assert_ptr_nonnull(data);
    ck_assert_uint_eq(fread(data, 1, (size_t)length, file), (size_t)length);
    data[length] = 0;
    fclose(file);
    if (size) *size = (size_t)length;
    return data;
}

void tw_test_write_file(const char *path, const void *data, size_t size) {
    FILE *file = fopen(path, "wb");
    ck_assert_msg(file != NULL, "cannot write %s", path);
    ck_assert_uint_eq(fwrite(data, 1, size, file), size);
    ck_assert_int_eq(fclose(file), 0);
}

static struct tw_test_run run_shell(const char *command) {
    struct tw_test_run result = {0};
    char out[] = "/tmp/tidewake-out-XXXXXX", err[] = "/tmp/tidewake-err-XXXXXX";
    const int out_fd = mkstemp(out), err_fd = mkstemp(err);
    ck_assert(out_fd >= 0 && err_fd >= 0);
    fflush(NULL);
    const pid_t child = fork();
    ck_assert(child >= 0);
    if (child == 0) {
        if (!freopen("/dev/null", "r", stdin)) _exit(127);
        dup2(out_fd, STDOUT_FILENO);
        dup2(err_fd, STDERR_FILENO);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    result.exit_status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    size_t size;
    char *data = tw_test_read_file(out, &size);
    tw_text_append(&result.out, (struct tw_view){data, size});
    free(data);
    data = tw_test_read_file(err, &size);
    tw_text_append(&result.err, (struct tw_view){data, size});
    free(data);
    close(out_fd), close(err_fd);
    unlink(out), unlink(err);
    return result;
}

struct tw_test_run tw_test_shell(const char *format, ...) {
    struct tw_text command = {0};
    va_list args;
    va_start(args, format);
    tw_text_vprintf(&command, format, args);
    va_end(args);
    const struct tw_test_run result = run_shell(tw_text_string(&command));
    tw_text_release(&command);
    return result;
}

struct tw_test_run tw_test_run(const char *format, ...) {
    const char *program = getenv("TW_PROGRAM");
    struct tw_text command = {0};
    tw_text_printf(&command, "exec %s ", program ? program : "./tidewake");
    va_list args;
    va_start(args, format);
    tw_text_vprintf(&command, format, args);
    va_end(args);
    const struct tw_test_run result = run_shell(tw_text_string(&command));
    tw_text_release(&command);
    return result;
}

void tw_test_run_release(struct tw_test_run *run) {
    tw_text_release(&run->out);
    tw_text_release(&run->err);
}

int tw_test_skip_at(const char *file, int line, const char *what, const char *reason) {
    const char *ci = getenv("CI"), *require = getenv("TW_REQUIRE");
    /* Nobody can give CI a GPU, nor the gigabytes of a CUDA toolkit; everything else it must have. */
    const int may_be_missing = strcmp(what, "gpu") == 0 || strcmp(what, "nvcc") == 0;
    const int required = (ci && strcmp(ci, "true") == 0 && !may_be_missing) || (require && strstr(require, what));
    if (required) ck_abort_msg("%s:%d needs %s: %s", file, line, what, reason);
    printf("skipped: %s:%d: %s: %s\n", file, line, what, reason);
    fflush(stdout);
    return 1;
}

uint64_t tw_test_seed(void) {
    const char *seed = getenv("TW_SEED");
    return seed ? strtoull(seed, NULL, 10) : 1;
}

size_t tw_test_private_bytes(void) {
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    size_t kilobytes = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "Private_Dirty: %zu", &kilobytes) == 1) break;
    if (file) fclose(file);
    return kilobytes << 10;
}
