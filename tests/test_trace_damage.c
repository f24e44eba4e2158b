/* Killed runs (case C22), flipped bits and cut files: what is read is right, or it is refused. */
#include <check.h>
#include <omp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/random.h"
#include "cli/command.h"
#include "tests/support.h"
#include "tests/trace_maker.h"
#include "traces/check.h"

enum { STEPS = 304, KILLS = 50 };

/* The run that is going to be killed: a byte through the pipe before each step is handed over, the first when the file
 * is there. */
static void be_killed(const struct tw_test_trace *made, const char *path, int to) {
    omp_set_num_threads(1); /* threads of the process before the fork are not here */
    struct tw_trace_writer *writer;
    if (tw_trace_writer_create(&writer, path, &made->info, made->prompt, &made->options, NULL) != TW_OK) _exit(1);
    for (size_t t = 0; t < STEPS; t++) {
        if (write(to, "s", 1) != 1) _exit(1);
        tw_test_trace_append(writer, made, t, 1);
    }
    for (;;) pause();
}

static void spin(double seconds) {
    const double end = tw_clock_seconds() + seconds;
    while (tw_clock_seconds() < end) continue;
}

/* Kills after `begun` steps were begun and `delay` more; how many were begun in the end. */
static size_t kill_run(const struct tw_test_trace *made, const char *path, size_t begun, double delay) {
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        be_killed(made, path, ends[1]);
    }
    close(ends[1]);
    size_t seen = 0;
    char byte;
    while (seen < begun && read(ends[0], &byte, 1) == 1) seen++;
    spin(delay);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    while (read(ends[0], &byte, 1) == 1) seen++;
    close(ends[0]);
    return seen;
}

START_TEST(killed) {
    struct tw_test_trace made;
    tw_test_trace_shape(&made, STEPS);
    made.options.key = _i; /* without keys, and with */
    tw_test_trace_make(&made, 1);
    const char *const path = tw_test_path(tw_test_folder(), "a.h5");
    struct tw_random random;
    tw_random_init(&random, tw_test_seed(), (uint64_t)_i);
    size_t lost_most = 0;
    for (int i = 0; i < KILLS / 2; i++) {
        unlink(path);
        /* Half of them at any moment, half aimed into the flush that the 16th step of a block sets off. */
        const size_t block = tw_random_below(&random, STEPS / 16);
        const size_t begun = i % 2 ? 16 * block + 16 : 1 + tw_random_below(&random, STEPS - 1);
        const size_t seen = kill_run(&made, path, begun, tw_random_unit(&random) * 1e-3);
        struct tw_error err = {0};
        struct tw_trace *trace;
        ck_assert_msg(tw_trace_open(&trace, path, &err) == TW_OK, "killed in step %zu: %s", seen, err.text);
        const size_t n = tw_trace_info(trace)->n_steps;
        ck_assert(!tw_trace_info(trace)->complete);
        tw_trace_free(trace);
        ck_assert_uint_le(n, seen);
        /*
         * Everything that was flushed is there. Only the last, part-filled chunk of keys is overwritten where it lies:
         * a kill within that write costs the steps whose keys it holds, and no others.
         */
        const size_t flushed = (seen - 1) / 16 * 16, before = made.info.prompt_length - 1;
        if (_i && flushed && n == tw_max_size((before + flushed) / 16 * 16, before) - before) continue;
        ck_assert_msg(n >= flushed, "killed in step %zu, %zu are there", seen, n);
        ck_assert_msg(n + 16 >= seen, "killed in step %zu, %zu are there", seen, n);
        tw_test_trace_compare(&made, path, n);
        if (seen - n > lost_most) lost_most = seen - n;
        if (i % 8) continue;
        /* Other software, as it comes. */
        struct tw_test_run run = tw_test_shell(
            "$TW_PROGRAM convert '%s' '%s.csv' && HDF5_PLUGIN_PATH=\"$TW_BUILD/plugin\" /usr/bin/python3 "
            "\"${TW_SOURCE:-.}/tests/tools/read_trace.py\" '%s' '%s.csv' && HDF5_PLUGIN_PATH=\"$TW_BUILD/plugin\" "
            "h5dump -d /step/token_id '%s' > /dev/null && $TW_PROGRAM replay '%s' --policy full > /dev/null",
            path, path, path, path, path, path);
        ck_assert_msg(run.exit_status == 0 || n == 0, "killed in step %zu, %zu are there: %s", seen, n,
                      tw_text_string(&run.err));
        tw_test_run_release(&run);
    }
    tw_test_trace_release(&made);
}
END_TEST

/* ---- every moment
 * --------------------------------------------------------------------------------------------------------------- */

/* What the writer does to its file, while it is being watched: these stand before the C library's. */
struct change {
    int64_t at;
    size_t size;
    uint8_t *bytes; /* NULL: the file gets this size */
    size_t flushed; /* steps that were flushed before */
};

static struct {
    bool on;
    struct change *change; /* [n] */
    size_t n, capacity, flushed;
} watched;

static void watch(int64_t at, size_t size, const void *bytes) {
    if (!watched.on) return;
    if (watched.n == watched.capacity) {
        watched.capacity = watched.capacity ? 2 * watched.capacity : 1024;
        watched.change = realloc(watched.change, watched.capacity * sizeof *watched.change);
        ck_assert_ptr_nonnull(watched.change);
    }
    uint8_t *const copy = bytes ? malloc(size) : NULL;
    if (copy) memcpy(copy, bytes, size);
    watched.change[watched.n++] = (struct change){at, size, copy, watched.flushed};
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at) {
    watch(at, size, bytes);
    return syscall(SYS_pwrite64, fd, bytes, size, at);
}

ssize_t pwritev(int fd, const struct iovec *piece, int n, off_t at) {
    int64_t to = at;
    for (int i = 0; i < n; i++) {
        watch(to, piece[i].iov_len, piece[i].iov_base);
        to += (int64_t)piece[i].iov_len;
    }
    return syscall(SYS_pwritev, fd, piece, n, at, 0);
}

int ftruncate(int fd, off_t size) {
    watch(0, (size_t)size, NULL);
    return (int)syscall(SYS_ftruncate, fd, size);
}

/*
 * The file after each of the writer's writes, as a kill would leave it: every step that was flushed is there. Many
 * layers make trees of three levels, which split in every way.
 */
START_TEST(cut_off_after_any_write) {
    enum { N_STEPS = 16 * 40, N_LAYERS = 80 };
    struct tw_test_trace made;
    tw_test_trace_shape(&made, N_STEPS);
    made.info.n_layers = _i ? 2 : N_LAYERS;
    made.info.n_heads = made.info.n_kv_heads = 1;
    made.info.top_k = made.info.head_dim = 2;
    made.options = (struct tw_trace_writer_options){.key = _i, .needle = _i};
    tw_test_trace_make(&made, 1);
    struct tw_error err = {0};
    const char *const path = tw_test_path(tw_test_folder(), "a.h5"), *const cut =
                                                                         tw_test_path(tw_test_folder(), "b.h5");
    struct tw_trace_writer *writer;
    watched.on = true;
    ck_assert_int_eq(tw_trace_writer_create(&writer, path, &made.info, made.prompt, &made.options, &err), TW_OK);
    const size_t head = watched.n;
    for (size_t t = 0; t < N_STEPS; t += 16) {
        tw_test_trace_append(writer, &made, t, 16);
        watched.flushed = t + 16;
    }
    ck_assert_int_eq(tw_trace_writer_set_text(writer, "generated_text", tw_view_of("what it said"), &err), TW_OK);
    ck_assert_int_eq(tw_trace_writer_finish(writer, true, &err), TW_OK);
    watched.on = false;
    tw_trace_writer_free(writer);
    FILE *const file = fopen(cut, "wb");
    setvbuf(file, NULL, _IONBF, 0);
    size_t n_opened = 0;
    for (size_t i = 0; i < watched.n; i++) {
        const struct change *const change = &watched.change[i];
        if (change->bytes) {
            fseek(file, change->at, SEEK_SET);
            ck_assert_uint_eq(fwrite(change->bytes, 1, change->size, file), change->size);
        } else {
            ck_assert_int_eq(ftruncate(fileno(file), (off_t)change->size), 0);
        }
        /* Of writes in a row that are behind each other only the last one matters: chunks. */
        const struct change *const next = i + 1 < watched.n ? change + 1 : NULL;
        if (i + 1 < head || (next && change->bytes && next->at == change->at + (int64_t)change->size)) continue;
        struct tw_trace *trace;
        ck_assert_msg(tw_trace_open(&trace, cut, &err) == TW_OK, "after write %zu of %zu: %s", i, watched.n, err.text);
        const size_t n = tw_trace_info(trace)->n_steps;
        tw_trace_free(trace);
        ck_assert_msg(n >= change->flushed, "after write %zu of %zu (%zu bytes at %lld): %zu steps of %zu", i,
                      watched.n, change->size, (long long)change->at, n, change->flushed);
        n_opened++;
        if (n_opened % 64 == 0 || !next) tw_test_trace_compare(&made, cut, n);
    }
    ck_assert_uint_ge(n_opened, 16 * 10);
    fclose(file);
    for (size_t i = 0; i < watched.n; i++) free(watched.change[i].bytes);
    free(watched.change);
    tw_test_trace_release(&made);
}
END_TEST

/* ---- damage
 * --------------------------------------------------------------------------------------------------------------- */

/* What a reader makes figures of. */
static uint64_t digest(const char *path) {
    struct tw_error err = {0};
    struct tw_trace *trace;
    if (tw_trace_open(&trace, path, &err) != TW_OK) return 0;
    const struct tw_trace_info *const info = tw_trace_info(trace);
    const size_t n = info->n_steps * info->n_heads * info->top_k;
    int32_t *const position = malloc((n + 1) * sizeof *position);
    uint16_t *const weight = malloc((n + 1) * sizeof *weight);
    uint64_t state = info->n_steps + 1000 * info->n_layers + 7919 * info->n_heads + 104729 * info->prompt_length;
    for (size_t l = 0; l < info->n_layers; l++) {
        if (tw_trace_read_layer(trace, position, weight, l, 0, info->n_steps, &err) != TW_OK)
            n ? (void)(state = 0) : (void)0;
        for (size_t i = 0; i < n; i++)
            state = (state ^ (uint32_t)position[i] ^ (uint64_t)weight[i] << 32) * 0x100000001b3;
    }
    for (size_t t = 0; t < info->n_steps; t++)
        state = (state ^ (uint32_t)tw_trace_context_length(trace)[t]) * 0x100000001b3;
    free(position);
    free(weight);
    tw_trace_free(trace);
    return state;
}

/* One flipped bit, one garbled run of bytes, or a cut: refused, or the data is what it was. */
START_TEST(damaged) {
    struct tw_test_trace made;
    tw_test_trace_shape(&made, 40);
    tw_test_trace_make(&made, 1);
    const char *const folder = tw_test_folder(), *const whole = tw_test_path(folder, "a.h5");
    const char *const path = tw_test_path(folder, "b.h5");
    tw_test_trace_write(&made, whole);
    const uint64_t expected = digest(whole);
    size_t size, refused = 0;
    uint8_t *const bytes = tw_test_read_file(whole, &size), *const copy = malloc(size);
    struct tw_random random;
    tw_random_init(&random, tw_test_seed(), 100 + (uint64_t)_i);
    for (int i = 0; i < 120; i++) {
        memcpy(copy, bytes, size);
        size_t left = size;
        const size_t at = tw_random_below(&random, i % 2 ? size : 12000); /* half of them into the first metadata */
        if (_i == 0) copy[at] ^= (uint8_t)(1u << tw_random_below(&random, 8));
        for (size_t j = at; _i == 1 && j < at + 8 && j < size; j++) copy[j] = (uint8_t)tw_random_next(&random);
        if (_i == 2) left = at;
        tw_test_write_file(path, copy, left);
        struct tw_error err = {0};
        struct tw_trace_verdict verdict;
        const tw_status status = tw_trace_check(&verdict, path, &err);
        ck_assert_msg(status == TW_OK || status == TW_E_INPUT || status == TW_E_MEMORY, "byte %zu: %s", at, err.text);
        refused += status != TW_OK;
        if (status != TW_OK) {
            ck_assert_ptr_nonnull(strstr(err.text, "b.h5"));
            continue;
        }
        if (!verdict.complete) continue; /* the flag itself was hit: a prefix is what such a file promises */
        ck_assert_msg(digest(path) == expected, "byte %zu of %zu: read without complaint, and differs", at, size);
    }
    ck_assert_uint_ge(refused, _i == 2 ? 115 : 10); /* much of the metadata is unused room */
    free(bytes);
    free(copy);
    tw_test_trace_release(&made);
}
END_TEST

/* One command on one file, in a process of its own; how it ended. */
static int run_on(const char *command, const char *path) {
    const pid_t child = fork();
    if (child == 0) {
        omp_set_num_threads(1);
        alarm(60);
#if !defined __SANITIZE_ADDRESS__ /* libhdf5 makes room for what a file states: that fails here, not the machine */
        const struct rlimit most = {(rlim_t)4 << 30, (rlim_t)4 << 30};
        setrlimit(RLIMIT_AS, &most);
#endif
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(99);
        char *arguments[] = {"tidewake", (char *)command, (char *)path, NULL};
        _exit(tw_main(3, arguments)); /* not exit: a sanitizer would look for leaks in all that was forked, each time */
    }
    int ended = 0;
    waitpid(child, &ended, 0);
    return ended;
}

/* Flipped bits of the metadata, on which libhdf5 itself may crash: whatever the command, it ends by itself. */
START_TEST(never_a_signal) {
    static const char *const commands[] = {"info", "replay"};
    struct tw_test_trace made;
    tw_test_trace_shape(&made, 20);
    tw_test_trace_make(&made, 1);
    const char *const path = tw_test_path(tw_test_folder(), "a.h5");
    tw_test_trace_write(&made, path);
    size_t size, refused = 0;
    uint8_t *const bytes = tw_test_read_file(path, &size);
    struct tw_random random;
    tw_random_init(&random, tw_test_seed(), 200 + (uint64_t)_i);
    for (int i = 0; i < (TW_SANITIZED ? 60 : 150); i++) {
        const size_t at = tw_random_below(&random, 8000), bit = tw_random_below(&random, 8);
        bytes[at] ^= (uint8_t)(1u << bit);
        tw_test_write_file(path, bytes, size);
        const int ended = run_on(commands[_i], path);
        ck_assert_msg(WIFEXITED(ended), "bit %zu of byte %zu: %s", bit, at, strsignal(WTERMSIG(ended)));
        refused += WEXITSTATUS(ended) == 2;
        bytes[at] ^= (uint8_t)(1u << bit);
    }
    ck_assert_uint_ge(refused, 3);
    free(bytes);
    tw_test_trace_release(&made);
}
END_TEST

Suite *tw_suite_trace_damage(void);
Suite *tw_suite_trace_damage(void) {
    Suite *const suite = suite_create("trace_damage");
    TCase *const kills = tcase_create("killed");
    tcase_set_timeout(kills, 120);
    tcase_add_loop_test(kills, killed, 0, 2);
    suite_add_tcase(suite, kills);
    TCase *const moments = tcase_create("moments");
    tcase_set_timeout(moments, 120);
    tcase_add_loop_test(moments, cut_off_after_any_write, 0, 2);
    suite_add_tcase(suite, moments);
    TCase *const damage = tcase_create("damaged");
    tcase_set_timeout(damage, 120);
    tcase_add_loop_test(damage, damaged, 0, 3);
    tcase_add_loop_test(damage, never_a_signal, 0, 2);
    suite_add_tcase(suite, damage);
    return suite;
}
