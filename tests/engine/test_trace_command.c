/* `tidewake trace`, `generate` and `logits` as programs: what they write, refuse, and keep when they are stopped. */
#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/random.h"
#include "tests/engine/tiny_model.h"
#include "tests/support.h"
#include "traces/trace.h"

#define TINY "--backend ref --threads 1"

/* The helpers' paths live in rings; a model's is needed for the whole of a test. */
static const char *keep(const char *path) {
    static char kept[4096];
    snprintf(kept, sizeof kept, "%s", path);
    return kept;
}

static const char *model_in(const char *folder) { return keep(tw_tiny_gguf(folder, "model", &(struct tw_tiny){0})); }

static struct tw_trace *open_trace(const char *path) {
    struct tw_trace *trace;
    struct tw_error err = {0};
    ck_assert_msg(tw_trace_open(&trace, path, &err) == TW_OK, "%s", err.text);
    return trace;
}

static void expect(struct tw_test_run run, int exit_status, const char *in_stderr) {
    ck_assert_msg(run.exit_status == exit_status, "exit status %d: %s", run.exit_status, tw_text_string(&run.err));
    if (in_stderr) ck_assert_msg(strstr(tw_text_string(&run.err), in_stderr), "%s", tw_text_string(&run.err));
    tw_test_run_release(&run);
}

/* All datasets of two traces. */
static void same_traces(const char *a, const char *b) {
    struct tw_trace *x = open_trace(a), *y = open_trace(b);
    const struct tw_trace_info *info = tw_trace_info(x);
    struct tw_error err = {0};
    ck_assert_uint_eq(info->n_steps, tw_trace_info(y)->n_steps);
    const size_t n = info->n_steps * info->n_heads * info->top_k;
    int32_t *p = malloc(2 * n * sizeof *p);
    uint16_t *w = malloc(2 * n * sizeof *w);
    for (size_t l = 0; l < info->n_layers; l++) {
        ck_assert(tw_trace_read_layer(x, p, w, l, 0, info->n_steps, &err) == TW_OK);
        ck_assert(tw_trace_read_layer(y, p + n, w + n, l, 0, info->n_steps, &err) == TW_OK);
        ck_assert_mem_eq(p, p + n, n * sizeof *p);
        ck_assert_mem_eq(w, w + n, n * sizeof *w);
    }
    ck_assert(tw_trace_read_token_ids(x, p, &err) == TW_OK && tw_trace_read_token_ids(y, p + n, &err) == TW_OK);
    ck_assert_mem_eq(p, p + n, info->n_steps * sizeof *p);
    free(p);
    free(w);
    tw_trace_free(x);
    tw_trace_free(y);
}

/* C19, and the "the run repeated gives bitwise the same datasets". */
START_TEST(a_run_repeated_is_the_same) {
    const char *folder = tw_test_folder(), *model = model_in(folder);
    static const char *const options[] = {"", "--budget 40 --schedule tide", "--temperature 1 --seed 3",
                                          "--budget 40 --schedule block --selector adakv --chunk 16"};
    for (size_t o = 0; o < 4; o++) {
        for (int r = 0; r < 2; r++)
            expect(tw_test_run("trace %s " TINY " --text 'the tide comes in and the tide goes out, as it did before' "
                               "--max-new 20 --ignore-eos -o %s/run%d.h5 --force %s",
                               model, folder, r, options[o]),
                   0, "20 steps");
        same_traces(tw_test_path(folder, "run0.h5"), tw_test_path(folder, "run1.h5"));
    }
    /* Chunks change nothing either, where nothing is evicted early. */
    expect(tw_test_run("trace %s " TINY
                       " --text 'the tide comes in and the tide goes out, as it did before' --max-new 20 "
                       "--ignore-eos -o %s/a.h5 --chunk 7",
                       model, folder),
           0, NULL);
    expect(tw_test_run("trace %s " TINY
                       " --text 'the tide comes in and the tide goes out, as it did before' --max-new 20 "
                       "--ignore-eos -o %s/b.h5 --schedule chunked --chunk 16",
                       model, folder),
           0, NULL);
    same_traces(tw_test_path(folder, "a.h5"), tw_test_path(folder, "b.h5"));
}
END_TEST

START_TEST(everything_can_be_logged) {
    const char *folder = tw_test_folder(), *model = model_in(folder);
    struct tw_error err = {0};
    struct tw_test_run run = tw_test_run(
        "trace %s " TINY " --task niah --context 300 --raw --budget 64 --selector pyramidkv --max-new 5 --ignore-eos "
        "--log needle,copy,vote,keys,kept --timing json -o %s/all.h5",
        model, folder);
    ck_assert_msg(strstr(tw_text_string(&run.out), "\"prefill_tokens_per_second\""), "%s", tw_text_string(&run.err));
    expect(run, 0, "wrote");
    struct tw_trace *trace = open_trace(tw_test_path(folder, "all.h5"));
    const struct tw_trace_info *info = tw_trace_info(trace);
    ck_assert(info->complete && info->has_needle && info->budget == 64);
    ck_assert_str_eq(info->selector, "pyramidkv");
    ck_assert_str_eq(info->special_tokens, "literal");
    const size_t S = info->prompt_length, K = tw_trace_kept_width(trace);
    float *vote = malloc(info->n_kv_heads * S * sizeof *vote);
    uint16_t *bits = malloc(info->n_kv_heads * S * sizeof *bits);
    int32_t *kept = malloc(info->n_kv_heads * K * sizeof *kept);
    uint16_t *key = malloc((S + 4) * info->n_kv_heads * info->head_dim * sizeof *key);
    size_t total = 0;
    for (size_t l = 0; l < info->n_layers; l++) {
        ck_assert(tw_trace_read_window_vote(trace, bits, l, &err) == TW_OK);
        for (size_t g = 0; g < info->n_kv_heads; g++)
            for (size_t i = S - 32; i < S; i++) ck_assert_uint_eq(bits[g * S + i], 0x3c00); /* the window is kept */
        ck_assert(tw_trace_read_kept(trace, kept, l, &err) == TW_OK);
        for (size_t i = 0; i < info->n_kv_heads * K; i++) total += kept[i] >= 0;
        ck_assert(tw_trace_read_key(trace, key, l, 0, S + 4, &err) == TW_OK);
    }
    ck_assert_uint_eq(total, info->n_layers * info->n_kv_heads * 64);
    free(vote), free(bits), free(kept), free(key);
    tw_trace_free(trace);
}
END_TEST

/* C18 as it is in a file: equal weights in ascending order of position, half of 0.01. */
START_TEST(uniform_attention_is_logged_in_order) {
    const char *folder = tw_test_folder();
    const char *model = keep(tw_tiny_gguf(folder, "zero", &(struct tw_tiny){.zero_keys = true}));
    struct tw_text text = {0};
    for (int i = 0; i < 100; i++) tw_text_append_char(&text, (char)('a' + i % 26));
    expect(tw_test_run("trace %s " TINY " --text %s --max-new 3 --ignore-eos -o %s/z.h5", model, tw_text_string(&text),
                       folder),
           0, NULL);
    struct tw_trace *trace = open_trace(tw_test_path(folder, "z.h5"));
    int32_t position[4 * 64];
    uint16_t weight[4 * 64];
    struct tw_error err = {0};
    ck_assert_int_eq(tw_trace_context_length(trace)[0], 100);
    for (size_t l = 0; l < 2; l++) {
        ck_assert(tw_trace_read_layer(trace, position, weight, l, 0, 1, &err) == TW_OK);
        for (int i = 0; i < 4 * 64; i++) {
            ck_assert_int_eq(position[i], i % 64);
            ck_assert_uint_eq(weight[i], 0x211f); /* 0.01000214 */
        }
    }
    tw_trace_free(trace);
    tw_text_release(&text);
}
END_TEST

/* C21: more rows than tokens. */
START_TEST(a_token_without_text_is_visible) {
    const char *folder = tw_test_folder();
    const char *model =
        keep(tw_tiny_gguf(folder, "padded", &(struct tw_tiny){.n_tokens = 90, .scaled_row = 93, .row_scale = 50}));
    struct tw_error err = {0};
    expect(tw_test_run("trace %s " TINY " --text ABC --max-new 12 --ignore-eos -o %s/p.h5", model, folder), 0, NULL);
    struct tw_trace *trace = open_trace(tw_test_path(folder, "p.h5"));
    int32_t token[12];
    ck_assert(tw_trace_read_token_ids(trace, token, &err) == TW_OK);
    bool seen = false;
    for (size_t t = 0; t < 12; t++) seen = seen || token[t] == 93;
    if (seen) ck_assert_ptr_nonnull(strstr(tw_trace_info(trace)->generated_text, "[token 93]"));
    ck_assert(seen);
    tw_trace_free(trace);
}
END_TEST

START_TEST(given_tokens_are_fed) {
    const char *folder = tw_test_folder(), *model = model_in(folder);
    struct tw_error err = {0};
    tw_test_write_file(tw_test_path(folder, "ids"), "5 6 7\n8\t9", 9);
    expect(tw_test_run("trace %s " TINY " --text hello --continue %s/ids -o %s/c.h5", model, folder, folder), 0,
           "5 steps");
    struct tw_trace *trace = open_trace(tw_test_path(folder, "c.h5"));
    int32_t token[5];
    ck_assert(tw_trace_read_token_ids(trace, token, &err) == TW_OK);
    for (int t = 0; t < 5; t++) ck_assert_int_eq(token[t], 5 + t);
    tw_trace_free(trace);
    /* And many prompts, one trace each. */
    const char lines[] = "{\"prompt\": \"one\", \"answer\": \"x\"}\n\n{\"prompt\": \"two\"}\n";
    tw_test_write_file(tw_test_path(folder, "p.jsonl"), lines, sizeof lines - 1);
    expect(tw_test_run("trace %s " TINY " --raw --prompts %s/p.jsonl --max-new 2 --ignore-eos -o %s/out", model, folder,
                       folder),
           0, NULL);
    struct tw_test_run list = tw_test_shell("ls %s/out | wc -l", folder);
    ck_assert_int_eq(atoi(tw_text_string(&list.out)), 2);
    tw_test_run_release(&list);
}
END_TEST

START_TEST(what_cannot_be_traced_is_refused) {
    const char *folder = tw_test_folder(), *model = model_in(folder);
    static const struct {
        const char *arguments, *why;
        int exit_status;
    } cases[] = {
        {"--text x", "-o RUN.h5", 2},
        {"-o %s/x.h5", "needs one of", 2},
        {"--text x --prompt y -o %s/x.h5", "one of", 2},
        {"--text x --chat --raw -o %s/x.h5", "exclude", 2},
        {"--text '' -o %s/x.h5", "empty", 2},
        {"--text x --log keyz -o %s/x.h5", "keyz", 2},
        {"--text x --log kept -o %s/x.h5", "--budget", 2},
        {"--text x --log needle -o %s/x.h5", "needle", 2},
        {"--text x --log vote --schedule chunked -o %s/x.h5", "chunked", 2},
        {"--text x --schedule chunked --budget 40 -o %s/x.h5", "evicts nothing", 2},
        {"--text x --selector snapkw -o %s/x.h5", "snapkv", 2},
        {"--text x --selector snapkv:kernel=4 --budget 8 --window 4 -o %s/x.h5", NULL, 2},
        {"--text x --backend none -o %s/x.h5", "there are", 2},
        {"--text x --dtype bf16 -o %s/x.h5", "float32", 2},
        {"--text x --max-new 5000 -o %s/x.h5", "context", 2},
        {"--text x --memory 10K -o %s/x.h5", "memory limit", 3},
        {"--text x -o %s/no/such/folder/x.h5", NULL, 2},
        {"--prompt %s/no-file -o /dev/null", "no-file", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char arguments[4096];
        snprintf(arguments, sizeof arguments, cases[i].arguments, folder);
        struct tw_test_run run =
            tw_test_run("trace %s %s %s", model, strstr(arguments, "--backend") ? "" : TINY, arguments);
        ck_assert_msg(run.exit_status == cases[i].exit_status, "%s: %d, %s", arguments, run.exit_status,
                      tw_text_string(&run.err));
        ck_assert_msg(!cases[i].why || strstr(tw_text_string(&run.err), cases[i].why), "%s: %s", arguments,
                      tw_text_string(&run.err));
        ck_assert_uint_eq(run.out.size, 0);
        tw_test_run_release(&run);
        ck_assert_int_ne(access(tw_test_path(folder, "x.h5"), F_OK), 0); /* nothing is left behind */
    }
    /* A complete trace is not overwritten unasked. */
    expect(tw_test_run("trace %s " TINY " --text x --max-new 1 -o %s/once.h5", model, folder), 0, NULL);
    expect(tw_test_run("trace %s " TINY " --text x --max-new 1 -o %s/once.h5", model, folder), 2, "force");
    expect(tw_test_run("trace %s " TINY " --text x --max-new 1 -o %s/once.h5 --force", model, folder), 0, NULL);
}
END_TEST

/* C22 and C37: a stopped run loses nothing, a killed one at most what was not flushed; nothing on standard output. */
START_TEST(a_stopped_run_keeps_its_steps) {
    const char *folder = tw_test_folder(), *model = model_in(folder);
    static const struct {
        const char *name;
        int exit_status;
    } signals[] = {{"INT", 130}, {"TERM", 130}, {"KILL", 128 + SIGKILL}};
    struct tw_random random;
    tw_random_init(&random, tw_test_seed(), 4);
    for (int r = 0; r < 12; r++) {
        const int s = r % 3;
        const double delay = 0.05 + 0.35 * tw_random_unit(&random);
        /* exec: the signal is for the program, not for a shell that waits for it. Once there is a file it can be told.
         */
        struct tw_test_run run = tw_test_shell(
            "exec 2>&1; (exec \"$TW_PROGRAM\" trace %s " TINY " --text 'a long run' --max-new 4000 --ignore-eos "
            "-o %s/k%d.h5 > %s/out) & while ! test -s %s/k%d.h5 && kill -0 $!; do sleep 0.01; done; "
            "sleep %.3f; kill -%s $!; wait $!; exit $?",
            model, folder, r, folder, folder, r, delay, signals[s].name);
        ck_assert_int_eq(run.exit_status, signals[s].exit_status);
        tw_test_run_release(&run);
        size_t size;
        free(tw_test_read_file(tw_test_path(folder, "out"), &size));
        ck_assert_uint_eq(size, 0);
        char name[32];
        snprintf(name, sizeof name, "k%d.h5", r);
        struct tw_trace *trace = open_trace(tw_test_path(folder, name));
        const struct tw_trace_info *info = tw_trace_info(trace);
        ck_assert(!info->complete);
        if (s == 2) ck_assert_uint_eq(info->n_steps % 16, 0);
        int32_t *p = malloc((info->n_steps + 1) * info->n_heads * info->top_k * sizeof *p);
        struct tw_error err = {0};
        for (size_t l = 0; info->n_steps && l < info->n_layers; l++)
            ck_assert_msg(tw_trace_read_layer(trace, p, NULL, l, 0, info->n_steps, &err) == TW_OK, "%s", err.text);
        free(p);
        tw_trace_free(trace);
    }
}
END_TEST

/* generate prints text alone, logits the numbers that were asked for. */
START_TEST(text_and_numbers_come_out) {
    const char *folder = tw_test_folder(), *model = model_in(folder);
    struct tw_test_run run = tw_test_run("generate %s " TINY " --text hello --max-new 8 --ignore-eos", model);
    ck_assert_int_eq(run.exit_status, 0);
    ck_assert_uint_ge(run.out.size, 2);
    tw_test_run_release(&run);
    tw_test_write_file(tw_test_path(folder, "ids"), "1 2 3 4 5 6 7", 13);
    static const struct {
        const char *options;
        size_t floats;
    } cases[] = {{"", 7 * 96}, {"--last", 96}, {"--hidden", 4 * 7 * 32}, {"--hidden --last", 4 * 32}};
    float *all[4];
    for (size_t i = 0; i < 4; i++) {
        size_t size;
        expect(tw_test_run("logits %s " TINY " --tokens %s/ids %s -o %s/out", model, folder, cases[i].options, folder),
               0, NULL);
        all[i] = tw_test_read_file(tw_test_path(folder, "out"), &size);
        ck_assert_uint_eq(size, cases[i].floats * sizeof(float));
    }
    for (size_t v = 0; v < 96; v++) ck_assert(fabsf(all[0][6 * 96 + v] - all[1][v]) <= 1e-5f);
    for (size_t l = 0; l < 4; l++) ck_assert_mem_eq(all[2] + (l * 7 + 6) * 32, all[3] + l * 32, 32 * sizeof(float));
    for (size_t i = 0; i < 4; i++) free(all[i]);
    tw_test_write_file(tw_test_path(folder, "bad"), "1 2 x", 5);
    expect(tw_test_run("logits %s " TINY " --tokens %s/bad", model, folder), 2, "'x'");
    tw_test_write_file(tw_test_path(folder, "bad"), "1 96", 4);
    expect(tw_test_run("logits %s " TINY " --tokens %s/bad", model, folder), 2, "96");
}
END_TEST

/* plan and prefill: the same bytes, and a limit is an answer. */
START_TEST(plan_and_prefill_agree) {
    const char *folder = tw_test_folder(), *model = model_in(folder);
    struct tw_test_run plan = tw_test_run(
        "plan %s " TINY " --context 200 --budget 64 --schedule tide,postprefill,block --chunk 32,64 --max-new 4 "
        "--format csv | cut -d, -f1,5,7-12,14,15",
        model);
    struct tw_test_run real = tw_test_run(
        "prefill %s " TINY " --context 200 --budget 64 --schedule tide,postprefill,block --chunk 32,64 --max-new 4 "
        "--reference none --format csv | cut -d, -f1,5,15-20,22,23",
        model);
    ck_assert_int_eq(plan.exit_status, 0);
    ck_assert_msg(real.exit_status == 0 && real.out.size, "%s", tw_text_string(&real.err));
    ck_assert_str_eq(tw_text_string(&plan.out), tw_text_string(&real.out));
    tw_test_run_release(&plan);
    tw_test_run_release(&real);
    expect(tw_test_run("prefill %s " TINY " --context 200 --memory 100K --reference none --format csv -o %s/t.csv",
                       model, folder),
           0, NULL);
    size_t size;
    char *text = tw_test_read_file(tw_test_path(folder, "t.csv"), &size);
    ck_assert_ptr_nonnull(memmem(text, size, "memory limit of", 15));
    free(text);
    struct tw_test_run fidelity =
        tw_test_run("prefill %s " TINY
                    " --context 120 --schedule tide,block --budget 40 --chunk 16 --runs 2 --timeline %s/line.csv "
                    "--layers %s/layers.csv --format json",
                    model, folder, folder);
    ck_assert_msg(fidelity.exit_status == 0, "%s", tw_text_string(&fidelity.err));
    ck_assert_ptr_nonnull(strstr(tw_text_string(&fidelity.out), "\"hidden_l2\": 0,"));
    tw_test_run_release(&fidelity);
    expect(tw_test_run("prefill %s " TINY " --requests 40 --context 150 --budget 40", model), 0, NULL);
    expect(tw_test_run("plan %s --budget 8 --context 100", model), 2, "window");
}
END_TEST

/* Lists of precisions span all combinations; what a schedule has no use for does not multiply it. */
START_TEST(plan_spans_lists) {
    const char *folder = tw_test_folder(), *model = model_in(folder);
    expect(tw_test_run("plan %s " TINY " --context 100 --budget 40,full --dtype f32,bf16 --selector snapkv,keydiff "
                       "--schedule tide,oneshot --chunk 32,64 --backend cpu --format csv -o %s/all.csv",
                       model, folder),
           0, NULL);
    size_t size;
    char *text = tw_test_read_file(tw_test_path(folder, "all.csv"), &size);
    static const char *const rows[] = {
        "tide,snapkv,f32,100,40,32,",  "tide,snapkv,f32,100,40,64,",   "tide,,f32,100,full,32,",
        "tide,,f32,100,full,64,",      "tide,snapkv,bf16,100,40,32,",  "tide,snapkv,bf16,100,40,64,",
        "tide,,bf16,100,full,32,",     "tide,,bf16,100,full,64,",      "tide,keydiff,f32,100,40,32,",
        "tide,keydiff,f32,100,40,64,", "tide,keydiff,bf16,100,40,32,", "tide,keydiff,bf16,100,40,64,",
        "oneshot,,f32,100,full,,",     "oneshot,,bf16,100,full,,"};
    const char *line = memchr(text, '\n', size);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++, line = strchr(line + 1, '\n'))
        ck_assert_msg(line && strncmp(line + 1, rows[i], strlen(rows[i])) == 0, "row %zu is not '%s'", i, rows[i]);
    ck_assert(line && line[1] == 0);
    free(text);
    expect(tw_test_run("plan %s " TINY " --context 100 --dtype f32,fp8", model), 2, "'fp8' is none of auto, bf16, f32");
}
END_TEST

/* What is written for people fits 80 columns: one and many configurations, with refusals, in detail. */
START_TEST(tables_fit_a_terminal) {
    static const char *const options[] = {
        "plan %s --context 100 --budget 40",
        ("plan %s --context 100,200 --budget 40,full --dtype f32,bf16 --schedule tide,postprefill:rows=block,block "
         "--selector keydiff:online=1 --memory 240K"),
        "plan %s --context 100 --schedule tide,oneshot --detail",
        "prefill %s --context 100,200 --budget 40,full --schedule tide,postprefill:rows=block --max-new 2 --backend cpu",
        "prefill %s --context 100,200 --budget 40 --schedule tide,block --requests 3 --backend ref",
        "prefill %s --context 100 --budget 40 --detail --reference none --backend ref"};
    const char *folder = tw_test_folder(), *model = model_in(folder);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        char arguments[4700];
        const char *at = strstr(options[i], "%s");
        snprintf(arguments, sizeof arguments, "%.*s%s%s", (int)(at - options[i]), options[i], model, at + 2);
        struct tw_test_run run = tw_test_run("%s", arguments);
        ck_assert_msg(run.exit_status == 0, "%s: %s", arguments, tw_text_string(&run.err));
        for (const char *line = tw_text_string(&run.out); *line; line += strcspn(line, "\n") + 1)
            ck_assert_msg(strcspn(line, "\n") <= 80, "%s: %s", arguments, line);
        tw_test_run_release(&run);
    }
}
END_TEST

Suite *tw_suite_trace_command(void);

Suite *tw_suite_trace_command(void) {
    Suite *suite = suite_create("trace_command");
    TCase *tcase = tcase_create("program");
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, a_run_repeated_is_the_same);
    tcase_add_test(tcase, everything_can_be_logged);
    tcase_add_test(tcase, uniform_attention_is_logged_in_order);
    tcase_add_test(tcase, a_token_without_text_is_visible);
    tcase_add_test(tcase, given_tokens_are_fed);
    tcase_add_test(tcase, what_cannot_be_traced_is_refused);
    tcase_add_test(tcase, a_stopped_run_keeps_its_steps);
    tcase_add_test(tcase, text_and_numbers_come_out);
    tcase_add_test(tcase, plan_and_prefill_agree);
    tcase_add_test(tcase, plan_spans_lists);
    tcase_add_test(tcase, tables_fit_a_terminal);
    suite_add_tcase(suite, tcase);
    return suite;
}
