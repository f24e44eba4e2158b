/* Traces and other software: h5py, h5dump, the plugin, file systems without locks; the commands (cases C23, C26, C36).
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support.h"
#include "tests/trace_maker.h"

/* The system's Python, for which Debian packages h5py; another one may stand before it in PATH. */
#define PYTHON "/usr/bin/python3"

static const char *build(void) {
    const char *const path = getenv("TW_BUILD");
    ck_assert_ptr_nonnull(path);
    return path;
}

static const char *source(void) { return getenv("TW_SOURCE") ? getenv("TW_SOURCE") : "."; }

static void succeeds(struct tw_test_run run) {
    ck_assert_msg(run.exit_status == 0, "exit status %d: %s%s", run.exit_status, tw_text_string(&run.out),
                  tw_text_string(&run.err));
    tw_test_run_release(&run);
}

static const char small[] = "--steps 40 --layers 3 --heads 4 --kv-heads 2 --context 200";

/* ---- h5py and h5dump
 * ------------------------------------------------------------------------------------------------------ */

/* Attention that is uniform over 100 tokens and more: the 64 lowest positions, all weights the same. */
static void write_uniform(const char *path) {
    struct tw_test_trace made = {
        .info = {.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .top_k = 64, .prompt_length = 100, .n_steps = 200}};
    tw_test_trace_make(&made, 1);
    for (size_t i = 0; i < 200 * 2 * 4 * 64; i++) {
        made.position[i] = (int32_t)(i % 64);
        made.weight[i] = 1.0f / (float)made.context_length[i / (2 * 4 * 64)];
    }
    tw_test_trace_write(&made, path);
    tw_test_trace_release(&made);
}

START_TEST(uniform_is_small) {
    const char *const folder = tw_test_folder(), *const path = tw_test_path(folder, "u.h5");
    write_uniform(path);
    struct tw_test_run run = tw_test_shell("$TW_PROGRAM convert '%s' '%s/u.csv' && HDF5_PLUGIN_PATH='%s/plugin' " PYTHON
                                           " '%s/tests/tools/read_trace.py' '%s' '%s/u.csv'",
                                           path, folder, build(), source(), path, folder);
    ck_assert_msg(run.exit_status == 0, "%s", tw_text_string(&run.err));
    double ratio = 1;
    ck_assert_int_eq(sscanf(tw_text_string(&run.out), "%*d %*d %lf", &ratio), 1);
    ck_assert_msg(ratio < 0.05, "%g of the raw size", ratio);
    tw_test_run_release(&run);
}
END_TEST

/* Everything as h5py sees it, text as Python strings. */
START_TEST(h5py_reads) {
    const char *const folder = tw_test_folder(), *const path = tw_test_path(folder, "a.h5");
    struct tw_test_trace made;
    tw_test_trace_shape(&made, 35);
    made.options.weight_float = _i;
    tw_test_trace_make(&made, 1);
    struct tw_trace_writer *writer;
    struct tw_error err = {0};
    ck_assert_int_eq(tw_trace_writer_create(&writer, path, &made.info, made.prompt, &made.options, &err), TW_OK);
    tw_test_trace_append(writer, &made, 0, 35);
    const struct tw_view torn = {"so \xf0\x9f\x98", 6};
    ck_assert_int_eq(tw_trace_writer_set_text(writer, "generated_text", torn, &err), TW_OK);
    ck_assert_int_eq(tw_trace_writer_set_text(writer, "expected_answer", TW_VIEW(""), &err), TW_OK);
    ck_assert_int_eq(tw_trace_writer_finish(writer, true, &err), TW_OK);
    tw_trace_writer_free(writer);
    succeeds(tw_test_shell("$TW_PROGRAM convert '%s' '%s/a.csv' && HDF5_PLUGIN_PATH='%s/plugin' " PYTHON
                           " '%s/tests/tools/read_trace.py' '%s' '%s/a.csv' model=tiny expected_answer= "
                           "'generated_text=so \xef\xbf\xbd'",
                           path, folder, build(), source(), path, folder));
    tw_test_trace_release(&made);
}
END_TEST

START_TEST(h5dump_reads) {
    const char *const folder = tw_test_folder();
    succeeds(tw_test_shell("$TW_PROGRAM synth -o '%s/a.h5' %s", folder, small));
    /* Position by position as convert prints them. */
    succeeds(tw_test_shell(
        "cd '%s' && HDF5_PLUGIN_PATH=$(cd \"$OLDPWD\" && cd '%s/plugin' && pwd) h5dump -y -w 1 -d /topk/position a.h5 "
        "| sed -n 's/^ *\\([0-9-][0-9]*\\),*$/\\1/p' > dumped && test $(wc -l < dumped) = 30720",
        folder, build()));
    succeeds(tw_test_shell("$TW_PROGRAM convert '%s/a.h5' - | tail -n +2 | cut -d, -f5 | cmp - '%s/dumped'", folder,
                           folder));
}
END_TEST

/* ---- C23: wherever the plugin path points
 * ------------------------------------------------------------------------------------ */

START_TEST(plugin_path) {
    static const char *const settings[] = {"unset HDF5_PLUGIN_PATH", "export HDF5_PLUGIN_PATH=/nonexistent/folder",
                                           "export HDF5_PLUGIN_PATH=\"$TW_BUILD/plugin\""};
    const char *const folder = tw_test_folder();
    succeeds(tw_test_shell("%s; \"$TW_PROGRAM\" synth -o '%s/a.h5' %s && \"$TW_PROGRAM\" check '%s/a.h5'", settings[_i],
                           folder, small, folder));
}
END_TEST

/* C36: the plugin needs no libhdf5. */
START_TEST(plugin_is_free) {
    struct tw_test_run run = tw_test_shell("readelf -d '%s/plugin/libh5tidewakezstd.so' | grep NEEDED", build());
    ck_assert_int_eq(run.exit_status, 0);
    ck_assert_ptr_null(strstr(tw_text_string(&run.out), "hdf5"));
    ck_assert_ptr_nonnull(strstr(tw_text_string(&run.out), "libzstd"));
    tw_test_run_release(&run);
}
END_TEST

/* ---- C26: no locks, read-only
 * ----------------------------------------------------------------------------------------------- */

START_TEST(no_locks) {
    static const char shim[] = "#include <errno.h>\n"
                               "int flock(int fd, int how) { (void)fd; (void)how; errno = ENOLCK; return -1; }\n";
    const char *const folder = tw_test_folder();
    tw_test_write_file(tw_test_path(folder, "shim.c"), shim, sizeof shim - 1);
    succeeds(tw_test_shell("cc -shared -fPIC -o '%s/shim.so' '%s/shim.c'", folder, folder));
    /* A sanitizer's runtime wants to be the first library; the shim is harmless to it. */
    succeeds(tw_test_shell("unset HDF5_USE_FILE_LOCKING; export LD_PRELOAD='%s/shim.so' "
                           "ASAN_OPTIONS=\"$ASAN_OPTIONS:verify_asan_link_order=0:detect_leaks=0\"; "
                           "\"$TW_PROGRAM\" synth -o '%s/a.h5' %s && \"$TW_PROGRAM\" check '%s/a.h5' && "
                           "\"$TW_PROGRAM\" replay '%s/a.h5' --policy reactive > '%s/table'",
                           folder, folder, small, folder, folder, folder));
}
END_TEST

START_TEST(read_only) {
    const char *const folder = tw_test_folder();
    succeeds(tw_test_shell(
        "$TW_PROGRAM synth -o '%s/a.h5' %s && chmod 444 '%s/a.h5' && chmod 555 '%s' && $TW_PROGRAM check '%s/a.h5'; "
        "s=$?; chmod 755 '%s'; exit $s",
        folder, small, folder, folder, folder, folder));
}
END_TEST

/* ---- the commands
 * ------------------------------------------------------------------------------------------------------------ */

/* The same bytes whatever the number of threads; another seed is another trace. */
START_TEST(synth_is_reproducible) {
    const char *const folder = tw_test_folder();
    succeeds(tw_test_shell(
        "$TW_PROGRAM synth -o '%s/a.h5' %s && OMP_NUM_THREADS=1 $TW_PROGRAM synth -o '%s/b.h5' %s && "
        "cmp '%s/a.h5' '%s/b.h5' && $TW_PROGRAM synth -o '%s/c.h5' %s --seed 1 && ! cmp -s '%s/a.h5' '%s/c.h5'",
        folder, small, folder, small, folder, folder, folder, small, folder, folder));
}
END_TEST

/* Rows as trace.md wants them: by descending weight, of equal weights the lower position first, no position twice. */
START_TEST(synth_is_sorted) {
    const char *const path = tw_test_path(tw_test_folder(), "a.h5");
    succeeds(tw_test_shell("$TW_PROGRAM synth -o '%s' --steps 60 --layers 1 --heads 8 --kv-heads 4 --context %d", path,
                           _i ? 500 : 5));
    struct tw_error err = {0};
    struct tw_trace *trace;
    ck_assert_int_eq(tw_trace_open(&trace, path, &err), TW_OK);
    static int32_t position[60 * 8 * 64];
    static uint16_t weight[60 * 8 * 64];
    ck_assert_int_eq(tw_trace_read_layer(trace, position, weight, 0, 0, 60, &err), TW_OK);
    for (size_t row = 0; row < 60 * 8; row++) {
        const int32_t *const p = position + row * 64;
        const uint16_t *const w = weight + row * 64;
        for (size_t k = 1; k < 64; k++) {
            if (p[k] < 0) {
                ck_assert_uint_eq(w[k], 0);
                continue;
            }
            ck_assert_int_ge(p[k - 1], 0);
            ck_assert(w[k] < w[k - 1] || (w[k] == w[k - 1] && p[k] > p[k - 1]));
            for (size_t j = 0; j < k; j++) ck_assert_int_ne(p[j], p[k]);
        }
    }
    tw_trace_free(trace);
}
END_TEST

/* The demand of an 8B model's chain of thought, on one layer of it. */
START_TEST(synth_is_like_a_decoder) {
    static const double expected[] = {0.6, 0.35, 0.08, 0.01};
    const char *const path = tw_test_path(tw_test_folder(), "a.h5");
    succeeds(
        tw_test_shell("$TW_PROGRAM synth -o '%s' --steps 2048 --layers 1 --heads 8 --kv-heads 2 --context 300", path));
    struct tw_test_run run = tw_test_shell(
        "$TW_PROGRAM replay '%s' --policy reactive --budget 8,16,32,64 --format csv | tail -n +2 | cut -d, -f11,13",
        path);
    const char *line = tw_text_string(&run.out);
    for (int i = 0; i < 4; i++) {
        double accesses, rate;
        ck_assert_msg(line && sscanf(line, "%lf,%lf", &accesses, &rate) == 2, "%s", tw_text_string(&run.out));
        ck_assert_msg(accesses > 17 * 2048 * 8 && accesses < 24 * 2048 * 8, "%g pages a row", accesses / (2048 * 8));
        ck_assert_msg(rate > expected[i] * 0.6 && rate < expected[i] * 1.6 + 0.01, "%g, expected about %g", rate,
                      expected[i]);
        line = strchr(line, '\n');
        if (line) line++;
    }
    tw_test_run_release(&run);
}
END_TEST

START_TEST(check_answers) {
    const char *const folder = tw_test_folder();
    succeeds(tw_test_shell("$TW_PROGRAM check '%s' '%s'", tw_test_golden("replay/plain.h5"),
                           tw_test_golden("replay/study")));
    size_t size;
    char *const whole = tw_test_read_file(tw_test_golden("replay/short.h5"), &size);
    tw_test_write_file(tw_test_path(folder, "cut.h5"), whole, size - 4096);
    free(whole);
    struct tw_test_run run =
        tw_test_shell("$TW_PROGRAM check '%s/cut.h5' '%s'", folder, tw_test_golden("replay/plain.h5"));
    ck_assert_int_eq(run.exit_status, 1);
    ck_assert_ptr_nonnull(strstr(tw_text_string(&run.err), "cut.h5"));
    ck_assert_ptr_nonnull(strstr(tw_text_string(&run.out), "plain.h5: good, 256 steps"));
    tw_test_run_release(&run);
    run = tw_test_shell("$TW_PROGRAM check '%s/missing.h5'", folder);
    ck_assert_int_eq(run.exit_status, 2);
    tw_test_run_release(&run);
    run = tw_test_shell("$TW_PROGRAM info '%s/cut.h5'", folder);
    ck_assert_int_eq(run.exit_status, 2);
    tw_test_run_release(&run);
    run = tw_test_shell("$TW_PROGRAM info '%s' --format csv", tw_test_golden("replay/plain.h5"));
    ck_assert_ptr_nonnull(strstr(tw_text_string(&run.out), "n_heads,4\n"));
    tw_test_run_release(&run);
}
END_TEST

START_TEST(synth_refuses) {
    const char *const folder = tw_test_folder();
    struct tw_test_run run = tw_test_shell("$TW_PROGRAM synth");
    ck_assert_int_eq(run.exit_status, 2);
    tw_test_run_release(&run);
    run = tw_test_shell("$TW_PROGRAM synth -o '%s/a.h5' --heads 5 --kv-heads 2", folder);
    ck_assert_int_eq(run.exit_status, 2);
    tw_test_run_release(&run);
    succeeds(tw_test_shell("$TW_PROGRAM synth -o '%s/a.h5' %s", folder, small));
    run = tw_test_shell("$TW_PROGRAM synth -o '%s/a.h5' %s", folder, small);
    ck_assert_int_eq(run.exit_status, 2);
    ck_assert_ptr_nonnull(strstr(tw_text_string(&run.err), "--force"));
    tw_test_run_release(&run);
    succeeds(tw_test_shell("$TW_PROGRAM synth -o '%s/a.h5' --force %s", folder, small));
    /* A full disk, as a limit on the size of files: status 3, and what was flushed is there. */
    run = tw_test_shell("trap '' XFSZ; ulimit -f 300; \"$TW_PROGRAM\" synth -o '%s/full.h5' --steps 1000", folder);
    ck_assert_int_eq(run.exit_status, 3);
    tw_test_run_release(&run);
    run = tw_test_shell("$TW_PROGRAM check '%s/full.h5'", folder);
    ck_assert_int_eq(run.exit_status, 0);
    ck_assert_ptr_nonnull(strstr(tw_text_string(&run.out), "incomplete"));
    tw_test_run_release(&run);
}
END_TEST

/*
 * SIGINT and SIGTERM lose nothing: status 130, every step that was made, marked incomplete. (In the foreground, timeout
 * sends its signal once; otherwise to the group as well, and a second signal ends the program at once.)
 */
START_TEST(interrupted) {
    const char *const folder = tw_test_folder();
    struct tw_test_run run = tw_test_shell(
        "timeout --foreground --preserve-status -s %s 2 \"$TW_PROGRAM\" synth -o '%s/a.h5' --steps 1000000 "
        "--layers 4 --heads 8; test $? = 130",
        _i ? "TERM" : "INT", folder);
    const char *const said = strstr(tw_text_string(&run.err), "interrupted: ");
    ck_assert_msg(run.exit_status == 0 && said, "%s", tw_text_string(&run.err));
    unsigned long made = 0, good = 0;
    ck_assert_int_eq(sscanf(said, "interrupted: %lu", &made), 1);
    tw_test_run_release(&run);
    run = tw_test_shell("$TW_PROGRAM check '%s/a.h5'", folder);
    const char *const steps = strstr(tw_text_string(&run.out), "good, ");
    ck_assert_msg(steps && sscanf(steps, "good, %lu", &good) == 1, "%s", tw_text_string(&run.err));
    ck_assert_uint_eq(good, made);
    ck_assert_ptr_nonnull(strstr(tw_text_string(&run.out), "incomplete"));
    tw_test_run_release(&run);
}
END_TEST

/* ---- C27: logs
 * -------------------------------------------------------------------------------------------------------------- */

static void make_log(const char *folder, const char *how) {
    succeeds(tw_test_shell(PYTHON " '%s/tests/tools/make_log.py' '%s/%s' %s", source(), folder, how, how));
}

START_TEST(logs) {
    static const char *const ways[] = {"plain", "packed", "wide"};
    const char *const folder = tw_test_folder();
    for (int i = 0; i < 3; i++) {
        make_log(folder, ways[i]);
        succeeds(tw_test_shell("$TW_PROGRAM convert '%s/%s' '%s/%s.h5'", folder, ways[i], folder, ways[i]));
        succeeds(tw_test_shell("cmp '%s/plain.h5' '%s/%s.h5'", folder, folder, ways[i]));
    }
    struct tw_error err = {0};
    struct tw_trace *trace;
    ck_assert_int_eq(tw_trace_open(&trace, tw_test_path(folder, "plain.h5"), &err), TW_OK);
    const struct tw_trace_info *const info = tw_trace_info(trace);
    ck_assert_uint_eq(info->n_steps, 21);
    ck_assert(info->has_needle && info->needle_begin == 10 && info->needle_end == 16 && info->complete);
    ck_assert_str_eq(info->generated_text, "die Antwort: \xe2\x82\xac 42");
    ck_assert_str_eq(info->model, "tiny");
    ck_assert_uint_eq(info->n_extra, 4);
    ck_assert_str_eq(info->extra[0].name, "answers");
    ck_assert_str_eq(info->extra[0].text, "[\"a\",\"b\"]");
    ck_assert_int_eq(info->extra[1].integer, 3);
    ck_assert(info->extra[2].real == 0.25);
    tw_trace_free(trace);
    /* Out and in again: the same bytes in every dataset, here in the whole file. */
    succeeds(tw_test_shell("$TW_PROGRAM convert '%s/plain.h5' '%s/out' && $TW_PROGRAM convert '%s/out' '%s/again.h5'",
                           folder, folder, folder, folder));
    succeeds(tw_test_shell("cmp '%s/plain.h5' '%s/again.h5'", folder, folder));
}
END_TEST

/* A golden trace through a log and back, as numpy sees the log. */
START_TEST(golden_through_a_log) {
    const char *const folder = tw_test_folder(), *const path = tw_test_golden("replay/padded.h5");
    succeeds(tw_test_shell("$TW_PROGRAM convert '%s' '%s/out' && $TW_PROGRAM convert '%s/out/log.npz' '%s/again.h5' && "
                           "$TW_PROGRAM convert '%s' '%s/a.csv' && $TW_PROGRAM convert '%s/again.h5' '%s/b.csv' && "
                           "cmp '%s/a.csv' '%s/b.csv'",
                           path, folder, folder, folder, path, folder, folder, folder, folder, folder));
    succeeds(tw_test_shell(PYTHON
                           " -c \"import numpy as np; z = np.load('%s/out/log.npz'); "
                           "assert z['topk_idx'].shape == (280, 2, 6, 64) and z['topk_val'].dtype == np.float16; "
                           "assert z['copy_paste'].dtype == bool and z['gen_token_ids'].dtype == np.int64\"",
                           folder));
}
END_TEST

static void refuses(const char *folder, const char *log, const char *words) {
    struct tw_test_run run = tw_test_shell("$TW_PROGRAM convert '%s/%s' '%s/refused.h5'", folder, log, folder);
    ck_assert_int_eq(run.exit_status, 2);
    ck_assert_msg(strstr(tw_text_string(&run.err), words) != NULL, "'%s' lacks '%s'", tw_text_string(&run.err), words);
    ck_assert_int_ne(access(tw_test_path(folder, "refused.h5"), F_OK), 0);
    tw_test_run_release(&run);
}

START_TEST(bad_logs) {
    const char *const folder = tw_test_folder();
    make_log(folder, "object");
    refuses(folder, "object", "Python objects");
    make_log(folder, "plain");
    succeeds(tw_test_shell(
        "cd '%s' && cp -r plain short && sed 's/\"topk\": 6/\"topk\": 7/' plain/meta.json > short/meta.json", folder));
    refuses(folder, "short", "extent 6");
    succeeds(tw_test_shell(
        "cd '%s' && sed 's/\"prompt_len\": 40/\"prompt_len\": 12/' plain/meta.json > short/meta.json", folder));
    refuses(folder, "short", "needle");
    succeeds(tw_test_shell("cd '%s' && echo '{}' > short/meta.json", folder));
    refuses(folder, "short", "prompt_len");
    succeeds(tw_test_shell("cd '%s' && echo '[' > short/meta.json", folder));
    refuses(folder, "short", "JSON");
    succeeds(
        tw_test_shell("cd '%s' && cp plain/meta.json short && head -c 3000 plain/log.npz > short/log.npz", folder));
    refuses(folder, "short", "log.npz");
    succeeds(tw_test_shell("cd '%s' && rm short/meta.json", folder));
    refuses(folder, "short", "meta.json");
}
END_TEST

Suite *tw_suite_trace_files(void);
Suite *tw_suite_trace_files(void) {
    Suite *const suite = suite_create("trace_files");
    TCase *const others = tcase_create("other software");
    tcase_set_timeout(others, 60);
    tcase_add_test(others, uniform_is_small);
    tcase_add_loop_test(others, h5py_reads, 0, 2);
    tcase_add_test(others, h5dump_reads);
    tcase_add_loop_test(others, plugin_path, 0, 3);
    tcase_add_test(others, plugin_is_free);
    tcase_add_test(others, no_locks);
    tcase_add_test(others, read_only);
    suite_add_tcase(suite, others);
    TCase *const commands = tcase_create("commands");
    tcase_set_timeout(commands, 60);
    tcase_add_test(commands, synth_is_reproducible);
    tcase_add_loop_test(commands, synth_is_sorted, 0, 2);
    tcase_add_test(commands, synth_is_like_a_decoder);
    tcase_add_test(commands, synth_refuses);
    tcase_add_test(commands, check_answers);
    tcase_add_loop_test(commands, interrupted, 0, 2);
    suite_add_tcase(suite, commands);
    TCase *const npz = tcase_create("logs");
    tcase_set_timeout(npz, 60);
    tcase_add_test(npz, logs);
    tcase_add_test(npz, golden_through_a_log);
    tcase_add_test(npz, bad_logs);
    suite_add_tcase(suite, npz);
    return suite;
}
