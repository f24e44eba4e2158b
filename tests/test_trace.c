/* The trace file: what is written reads back, by us and from other writers; refusals; cases C22, C24, C25, C28. */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/half.h"
#include "tests/support.h"
#include "tests/trace_maker.h"
#include "traces/h5.h"

#define OK(call) ck_assert_msg((call) == TW_OK, "%s", err.text)
static struct tw_error err;

/* ---- round trips
 * ------------------------------------------------------------------------------------------------------ */

static const size_t lengths[] = {0, 1, 15, 16, 17, 32, 50};

START_TEST(round_trip) {
    struct tw_test_trace made;
    tw_test_trace_shape(&made, lengths[_i]);
    tw_test_trace_make(&made, (uint64_t)_i);
    const char *const path = tw_test_path(tw_test_folder(), "a.h5");
    tw_test_trace_write(&made, path);
    tw_test_trace_compare(&made, path, made.info.n_steps);
    struct tw_trace *trace;
    OK(tw_trace_open(&trace, path, &err));
    const struct tw_trace_info *const info = tw_trace_info(trace);
    ck_assert(info->complete && info->has_needle && info->has_windows);
    ck_assert_str_eq(info->model, "tiny");
    ck_assert_ptr_null(info->architecture);
    ck_assert_uint_eq(info->needle_end, 9);
    tw_trace_free(trace);
    tw_test_trace_release(&made);
    ck_assert_uint_eq(tw_h5_open_ids(), 0);
}
END_TEST

/* The options apart, odd shapes, an empty prompt. */
START_TEST(round_trip_plain) {
    struct tw_test_trace made;
    tw_test_trace_shape(&made, 20);
    made.options = (struct tw_trace_writer_options){.weight_float = _i & 1, .needle = _i & 2};
    made.info.has_needle = made.info.has_windows = false;
    made.info.prompt_length = _i & 4 ? 1 : 0;
    made.info.n_layers = 1 + (size_t)_i;
    made.info.n_heads = made.info.n_kv_heads = _i & 4 ? 5 : 1;
    made.info.top_k = _i & 2 ? 1 : 3;
    tw_test_trace_make(&made, 100 + (uint64_t)_i);
    const char *const path = tw_test_path(tw_test_folder(), "a.h5");
    tw_test_trace_write(&made, path);
    tw_test_trace_compare(&made, path, 20);
    tw_test_trace_release(&made);
}
END_TEST

/* Any range of steps gives what the whole gives, whole or in raw blocks. */
START_TEST(ranges) {
    struct tw_test_trace made;
    tw_test_trace_shape(&made, 75);
    tw_test_trace_make(&made, 3);
    const char *const path = tw_test_path(tw_test_folder(), "a.h5");
    tw_test_trace_write(&made, path);
    struct tw_trace *trace;
    OK(tw_trace_open(&trace, path, &err));
    enum { ROW = 4 * 10 };
    static int32_t position[75 * ROW];
    static uint16_t weight[75 * ROW];
    struct tw_trace_raw *const raw = tw_trace_raw_new();
    struct tw_trace_scratch *const scratch = tw_trace_scratch_new();
    for (size_t first = 0; first < 75; first += 7) {
        for (size_t n = 0; n <= 75 - first; n += 5) {
            memset(position, 0xee, sizeof position);
            OK(tw_trace_read_layer(trace, position, weight, 1, first, n, &err));
            for (size_t t = 0; t < n; t++)
                ck_assert_mem_eq(position + t * ROW, made.position + ((first + t) * 3 + 1) * ROW, ROW * 4);
            for (size_t i = n * ROW; i < 75 * ROW; i++) ck_assert_int_eq(position[i], (int32_t)0xeeeeeeee);
            OK(tw_trace_raw_read(raw, trace, 1, first, n, &err));
            size_t at = first;
            for (size_t b = 0; b < tw_trace_raw_n_blocks(raw); b++) {
                size_t from, count;
                tw_trace_raw_block_range(raw, b, &from, &count);
                ck_assert_uint_eq(from, at);
                ck_assert_uint_ge(count, 1);
                OK(tw_trace_raw_decode(raw, b, position, NULL, scratch, &err));
                ck_assert_mem_eq(position, made.position + (from * 3 + 1) * ROW, ROW * 4);
                at += count;
            }
            ck_assert_uint_eq(at, first + n);
        }
    }
    tw_trace_raw_free(raw);
    tw_trace_scratch_free(scratch);
    tw_trace_free(trace);
    tw_test_trace_release(&made);
}
END_TEST

/* ---- C24 and C28
 * ------------------------------------------------------------------------------------------------------ */

START_TEST(half_weights) {
    static const float given[] = {1, 0.5f, 0.01f, 6e-8f, 1e-8f};
    static const uint16_t expected[] = {0x3c00, 0x3800, 0x211f, 1, 0};
    struct tw_test_trace made = {
        .info = {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .top_k = 5, .prompt_length = 9, .n_steps = 1},
        .options = {.weight_float = _i}};
    tw_test_trace_make(&made, 1);
    for (int k = 0; k < 5; k++) made.position[k] = k, made.weight[k] = given[k];
    const char *const path = tw_test_path(tw_test_folder(), "a.h5");
    tw_test_trace_write(&made, path);
    struct tw_trace *trace;
    OK(tw_trace_open(&trace, path, &err));
    uint16_t weight[5];
    int32_t position[5];
    OK(tw_trace_read_layer(trace, position, weight, 0, 0, 1, &err));
    ck_assert_mem_eq(weight, expected, sizeof expected);
    ck_assert_int_eq(position[4], 4); /* a weight of 0 does not make it padding */
    tw_trace_free(trace);
    tw_test_trace_release(&made);
}
END_TEST

static void check_text(const char *given, size_t size, const char *expected) {
    struct tw_test_trace made;
    tw_test_trace_shape(&made, 3);
    tw_test_trace_make(&made, 1);
    const char *const path = tw_test_path(tw_test_folder(), "a.h5");
    struct tw_trace_writer *writer;
    OK(tw_trace_writer_create(&writer, path, &made.info, made.prompt, &made.options, &err));
    tw_test_trace_append(writer, &made, 0, 3);
    OK(tw_trace_writer_set_text(writer, "generated_text", (struct tw_view){given, size}, &err));
    OK(tw_trace_writer_finish(writer, true, &err));
    tw_trace_writer_free(writer);
    struct tw_trace *trace;
    OK(tw_trace_open(&trace, path, &err));
    ck_assert_ptr_nonnull(tw_trace_info(trace)->generated_text);
    ck_assert_str_eq(tw_trace_info(trace)->generated_text, expected);
    tw_trace_free(trace);
    tw_test_trace_compare(&made, path, 3);
    tw_test_trace_release(&made);
}

START_TEST(texts) {
    check_text("", 0, "");
    check_text("plain", 5, "plain");
    check_text("torn \xf0\x9f\x98", 8, "torn \xef\xbf\xbd");
    check_text("a\0b", 3,
               "a\xef\xbf\xbd"
               "b");
    check_text("\xff\xfe", 2, "\xef\xbf\xbd\xef\xbf\xbd");
}
END_TEST

/* ---- C25: each chunk unpacked once
 * ------------------------------------------------------------------------------------ */

START_TEST(unpacked_once) {
    struct tw_test_trace made;
    tw_test_trace_shape(&made, 200);
    made.options = (struct tw_trace_writer_options){0};
    tw_test_trace_make(&made, 1);
    const char *const path = tw_test_path(tw_test_folder(), "a.h5");
    tw_test_trace_write(&made, path);
    struct tw_trace *trace;
    OK(tw_trace_open(&trace, path, &err));
    const uint64_t before = tw_trace_chunks_unpacked(trace);
    int32_t *const position = malloc(200 * 40 * sizeof *position);
    uint16_t *const weight = malloc(200 * 40 * sizeof *weight);
    OK(tw_trace_read_layer(trace, position, weight, 1, 0, 200, &err));
    ck_assert_uint_eq(tw_trace_chunks_unpacked(trace) - before, 2 * ((200 + 15) / 16));
    free(position);
    free(weight);
    tw_trace_free(trace);
    tw_test_trace_release(&made);
}
END_TEST

static long resident_kib(void) {
    long pages = 0, size;
    FILE *const file = fopen("/proc/self/statm", "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%ld %ld", &size, &pages), 2);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Nothing of a trace stays behind when it is closed: memory after 300 files is that after 5. */
START_TEST(many_files) {
    struct tw_test_trace made;
    tw_test_trace_shape(&made, 100);
    tw_test_trace_make(&made, 1);
    const char *const path = tw_test_path(tw_test_folder(), "a.h5");
    tw_test_trace_write(&made, path);
    long after_5 = 0;
    int32_t *const position = malloc(100 * 40 * sizeof *position);
    uint16_t *const weight = malloc(100 * 40 * sizeof *weight);
    for (int i = 0; i < 300; i++) {
        struct tw_trace *trace;
        OK(tw_trace_open(&trace, path, &err));
        for (size_t l = 0; l < 3; l++) OK(tw_trace_read_layer(trace, position, weight, l, 0, 100, &err));
        tw_trace_free(trace);
        if (i == 4) after_5 = resident_kib();
    }
    const long after_300 = resident_kib();
    /* A sanitizer's quarantine keeps freed memory. */
    ck_assert_msg(TW_SANITIZED || after_300 <= after_5 + after_5 / 10, "%ld KiB after 5 files, %ld after 300", after_5,
                  after_300);
    ck_assert_uint_eq(tw_h5_open_ids(), 0);
    free(position);
    free(weight);
    tw_test_trace_release(&made);
}
END_TEST

/* ---- other writers' traces
 * ---------------------------------------------------------------------------------------------- */

static const char *const golden[] = {"busy",   "gqa",        "k16",        "long",      "mqa",  "noscore",
                                     "padded", "plain",      "short",      "six",       "ties", "under128",
                                     "wide",   "study/run0", "study/run1", "study/run2"};

START_TEST(golden_reads) {
    char name[64];
    snprintf(name, sizeof name, "replay/%s.h5", golden[_i]);
    struct tw_trace *trace;
    OK(tw_trace_open(&trace, tw_test_golden(name), &err));
    const struct tw_trace_info *const info = tw_trace_info(trace);
    ck_assert(info->complete);
    ck_assert_int_eq(strncmp(info->model, "synthetic", 9), 0);
    const size_t entries = info->n_steps * info->n_heads * info->top_k;
    int32_t *const position = malloc(entries * sizeof *position);
    uint16_t *const weight = malloc(entries * sizeof *weight);
    for (size_t l = 0; l < info->n_layers; l++)
        OK(tw_trace_read_layer(trace, position, weight, l, 0, info->n_steps, &err));
    ck_assert(tw_trace_has(trace, TW_TRACE_NEEDLE) || !info->has_needle);
    free(position);
    free(weight);
    tw_trace_free(trace);
}
END_TEST

/* ---- refusals
 * ---------------------------------------------------------------------------------------------------------- */

static void refused(const char *path, const char *words) {
    struct tw_trace *trace;
    ck_assert_int_eq(tw_trace_open(&trace, path, &err), TW_E_INPUT);
    ck_assert_ptr_null(trace);
    ck_assert_msg(strstr(err.text, words) != NULL, "'%s' lacks '%s'", err.text, words);
    ck_assert_ptr_nonnull(strstr(err.text, path));
    ck_assert_uint_eq(tw_h5_open_ids(), 0);
}

START_TEST(foreign_files) {
    const char *const folder = tw_test_folder(), *const path = tw_test_path(folder, "f.h5");
    refused(tw_test_path(folder, "missing.h5"), "No such file");
    refused(folder, "directory");
    tw_test_write_file(path, "", 0);
    refused(path, "empty");
    tw_test_write_file(path, "hello", 5);
    refused(path, "not an HDF5 file");
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n";
    tw_test_write_file(path, pointer, sizeof pointer - 1);
    refused(path, "LFS");
    tw_test_write_file(path, "\x89HDF\r\n\x1a\n", 8);
    refused(path, "damaged or cut short");
    size_t size;
    char *const whole = tw_test_read_file(tw_test_golden("replay/short.h5"), &size);
    tw_test_write_file(path, whole, size / 2);
    refused(path, "damaged or cut short");
    free(whole);
}
END_TEST

START_TEST(step_refused) {
    struct tw_test_trace made;
    tw_test_trace_shape(&made, 2);
    made.options.key = false;
    tw_test_trace_make(&made, 1);
    switch (_i) {
    case 0: made.position[17] = (int32_t)made.info.prompt_length; break; /* step 0 sees prompt_length tokens */
    case 1: made.position[17] = -2; break;
    case 2: made.weight[3] = -0.5f; break;
    case 3: made.weight[3] = 0.0f / 0.0f; break;
    case 4: made.weight[3] = 70000; break;
    }
    struct tw_trace_writer *writer;
    OK(tw_trace_writer_create(&writer, tw_test_path(tw_test_folder(), "a.h5"), &made.info, made.prompt, &made.options,
                              &err));
    const struct tw_trace_step step = {made.position, made.weight,    made.context_length[0], 1,
                                       made.needle,   made.copy_paste};
    ck_assert_int_eq(tw_trace_writer_append(writer, &step, &err), TW_E_INPUT);
    tw_trace_writer_free(writer);
    tw_test_trace_release(&made);
}
END_TEST

START_TEST(existing_refused) {
    struct tw_test_trace made;
    tw_test_trace_shape(&made, 20);
    tw_test_trace_make(&made, 1);
    const char *const folder = tw_test_folder(), *const path = tw_test_path(folder, "a.h5");
    tw_test_trace_write(&made, path);
    struct tw_trace_writer *writer, *second;
    ck_assert_int_eq(tw_trace_writer_create(&writer, path, &made.info, made.prompt, &made.options, &err), TW_E_INPUT);
    ck_assert_ptr_nonnull(strstr(err.text, "--force"));
    tw_test_trace_compare(&made, path, 20); /* unharmed */
    made.options.force = true;
    OK(tw_trace_writer_create(&writer, path, &made.info, made.prompt, &made.options, &err));
    ck_assert_int_eq(tw_trace_writer_create(&second, path, &made.info, made.prompt, &made.options, &err), TW_E_INPUT);
    ck_assert_ptr_nonnull(strstr(err.text, "locked"));
    tw_test_trace_append(writer, &made, 0, 18);
    tw_trace_writer_free(writer); /* as if killed: an incomplete trace may be overwritten */
    made.options.force = false;
    OK(tw_trace_writer_create(&writer, path, &made.info, made.prompt, &made.options, &err));
    tw_trace_writer_free(writer);
    const char *const other = tw_test_path(folder, "notes.txt");
    tw_test_write_file(other, "mine", 4);
    ck_assert_int_eq(tw_trace_writer_create(&writer, other, &made.info, made.prompt, &made.options, &err), TW_E_INPUT);
    ck_assert_int_eq(
        tw_trace_writer_create(&writer, tw_test_path(folder, "no/a.h5"), &made.info, made.prompt, &made.options, &err),
        TW_E_INPUT);
    ck_assert_int_eq(tw_trace_writer_create(&writer, folder, &made.info, made.prompt, &made.options, &err), TW_E_INPUT);
    tw_test_trace_release(&made);
}
END_TEST

/* ---- the unfinished
 * ------------------------------------------------------------------------------------------------------ */

/* finish(false) keeps everything, whatever the step. */
START_TEST(interrupted) {
    struct tw_test_trace made;
    tw_test_trace_shape(&made, 40);
    tw_test_trace_make(&made, 1);
    const char *const path = tw_test_path(tw_test_folder(), "a.h5");
    struct tw_trace_writer *writer;
    OK(tw_trace_writer_create(&writer, path, &made.info, made.prompt, &made.options, &err));
    tw_test_trace_append(writer, &made, 0, lengths[_i] % 40);
    OK(tw_trace_writer_finish(writer, false, &err));
    tw_trace_writer_free(writer);
    tw_test_trace_compare(&made, path, lengths[_i] % 40);
    struct tw_trace *trace;
    OK(tw_trace_open(&trace, path, &err));
    ck_assert(!tw_trace_info(trace)->complete);
    tw_trace_free(trace);
    tw_test_trace_release(&made);
}
END_TEST

/* A disk that is full, as a limit on the file's size: what was flushed stays readable, and nothing crashes. */
START_TEST(disk_full) {
    struct tw_test_trace made;
    tw_test_trace_shape(&made, 200);
    tw_test_trace_make(&made, 1);
    const char *const path = tw_test_path(tw_test_folder(), "a.h5");
    signal(SIGXFSZ, SIG_IGN);
    const struct rlimit limit = {75000 + 12000 * (rlim_t)_i, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    struct tw_trace_writer *writer;
    OK(tw_trace_writer_create(&writer, path, &made.info, made.prompt, &made.options, &err));
    tw_status status = TW_OK;
    size_t t = 0;
    const size_t rows = made.info.n_layers * made.info.n_heads, key_row = made.info.n_kv_heads * made.info.head_dim;
    for (; status == TW_OK && t < 200; t++) {
        const size_t from = t ? made.info.prompt_length + t - 1 : 0, count = t ? 1 : made.info.prompt_length;
        for (size_t l = 0; status == TW_OK && l < 3; l++)
            status = tw_trace_writer_put_key(
                writer, l, made.key + (l * (made.info.prompt_length + 200) + from) * key_row, count, &err);
        const struct tw_trace_step step = {made.position + t * rows * 10, made.weight + t * rows * 10,
                                           made.context_length[t],        made.token_id[t],
                                           made.needle + t * rows,        made.copy_paste + t * rows};
        if (status == TW_OK) status = tw_trace_writer_append(writer, &step, &err);
    }
    const tw_status finished = tw_trace_writer_finish(writer, false, NULL);
    tw_trace_writer_free(writer);
    const struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &none); /* libcheck writes files too */
    ck_assert_int_eq(status, TW_E_IO);
    ck_assert_int_eq(finished, TW_E_IO);
    ck_assert_msg(strstr(err.text, strerror(EFBIG)) != NULL, "%s", err.text);
    made.options.window_vote = false; /* this test puts none */
    made.options.kept_width = 0;
    struct tw_trace *trace;
    OK(tw_trace_open(&trace, path, &err));
    ck_assert(!tw_trace_info(trace)->complete);
    const size_t kept = tw_trace_info(trace)->n_steps;
    tw_trace_free(trace);
    ck_assert_uint_ge(kept + 16, t - 1);
    tw_test_trace_compare(&made, path, kept);
    tw_test_trace_release(&made);
}
END_TEST

START_TEST(estimated_size) {
    struct tw_test_trace made;
    tw_test_trace_shape(&made, 300);
    tw_test_trace_make(&made, 1);
    const char *const path = tw_test_path(tw_test_folder(), "a.h5");
    tw_test_trace_write(&made, path);
    size_t size;
    free(tw_test_read_file(path, &size));
    const uint64_t estimate = tw_trace_estimate_bytes(&made.info, &made.options, 300);
    ck_assert_uint_ge(estimate, size / 2);
    made.info.n_layers = made.info.n_heads = 1 << 16;
    ck_assert_uint_eq(tw_trace_estimate_bytes(&made.info, &made.options, SIZE_MAX), UINT64_MAX);
    tw_test_trace_release(&made);
}
END_TEST

Suite *tw_suite_trace(void);
Suite *tw_suite_trace(void) {
    Suite *const suite = suite_create("trace");
    TCase *const trips = tcase_create("round trips");
    tcase_set_timeout(trips, 30);
    tcase_add_loop_test(trips, round_trip, 0, sizeof lengths / sizeof *lengths);
    tcase_add_loop_test(trips, round_trip_plain, 0, 8);
    tcase_add_test(trips, ranges);
    tcase_add_loop_test(trips, half_weights, 0, 2);
    tcase_add_test(trips, texts);
    tcase_add_test(trips, unpacked_once);
    tcase_add_test(trips, many_files);
    tcase_add_loop_test(trips, golden_reads, 0, sizeof golden / sizeof *golden);
    suite_add_tcase(suite, trips);
    TCase *const refusals = tcase_create("refusals");
    tcase_add_test(refusals, foreign_files);
    tcase_add_loop_test(refusals, step_refused, 0, 5);
    tcase_add_test(refusals, existing_refused);
    suite_add_tcase(suite, refusals);
    TCase *const unfinished = tcase_create("unfinished");
    tcase_set_timeout(unfinished, 30);
    tcase_add_loop_test(unfinished, interrupted, 0, sizeof lengths / sizeof *lengths);
    tcase_add_loop_test(unfinished, disk_full, 0, 8);
    tcase_add_test(unfinished, estimated_size);
    suite_add_tcase(suite, unfinished);
    return suite;
}
