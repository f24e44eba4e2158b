/* `compare` against a slow oracle on traces made here, and what it refuses. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/compare.h"
#include "base/half.h"
#include "base/random.h"
#include "tests/support.h"
#include "tests/trace_maker.h"

/* Trace B: the same tokens, some positions replaced and some weights moved. */
static void disturb(struct tw_test_trace *trace, uint64_t seed) {
    struct tw_random random;
    tw_random_init(&random, seed, 5);
    const struct tw_trace_info *const info = &trace->info;
    const size_t rows = info->n_steps * info->n_layers * info->n_heads;
    for (size_t r = 0; r < rows; r++) {
        int32_t *const position = trace->position + r * info->top_k;
        float *const weight = trace->weight + r * info->top_k;
        const int32_t length = trace->context_length[r / (info->n_layers * info->n_heads)];
        for (size_t k = 0; k < info->top_k; k++) {
            if (position[k] < 0) break;
            if (tw_random_below(&random, 3) == 0)
                weight[k] = tw_float_from_half(tw_half_from_float(weight[k] * (float)tw_random_unit(&random)));
            if (tw_random_below(&random, 4)) continue;
            const int32_t other = (int32_t)tw_random_below(&random, (uint64_t)length);
            bool there = false;
            for (size_t i = 0; i < info->top_k; i++) there = there || position[i] == other;
            if (!there) position[k] = other;
        }
    }
}

static float weight_at(const struct tw_test_trace *trace, size_t row, int32_t position, bool *there) {
    *there = false;
    for (size_t k = 0; k < trace->info.top_k; k++)
        if (trace->position[row * trace->info.top_k + k] == position) {
            *there = true;
            return trace->weight[row * trace->info.top_k + k];
        }
    return 0;
}

static struct tw_difference plain_difference(const struct tw_test_trace *a, const struct tw_test_trace *b, size_t row,
                                             size_t context) {
    struct tw_difference d = {.rows = 1};
    size_t n_a = 0, n_b = 0;
    float top_a = -1, top_b = -1;
    int32_t at_a = -1, at_b = -1;
    for (size_t p = 0; p < context; p++) {
        bool in_a, in_b;
        const float w_a = weight_at(a, row, (int32_t)p, &in_a), w_b = weight_at(b, row, (int32_t)p, &in_b);
        n_a += in_a, n_b += in_b;
        if (in_a && w_a > top_a) top_a = w_a, at_a = (int32_t)p;
        if (in_b && w_b > top_b) top_b = w_b, at_b = (int32_t)p;
        const double difference = fabs((double)w_a - (double)w_b);
        d.weight_l1 += difference;
        if (!in_a || !in_b) continue;
        d.common++;
        d.weight_squares += difference * difference;
        d.weight_max = fmax(d.weight_max, difference);
    }
    const size_t larger = n_a > n_b ? n_a : n_b;
    d.overlap = d.overlap_min = larger ? (double)d.common / (double)larger : 1;
    d.top_equal = at_a == at_b;
    return d;
}

START_TEST(every_row_as_defined) {
    const char *const folder = tw_test_folder();
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct tw_test_trace a, b;
        tw_test_trace_shape(&a, 70 + seed);
        tw_test_trace_shape(&b, 70);
        tw_test_trace_make(&a, seed);
        tw_test_trace_make(&b, seed);
        memcpy(b.token_id, a.token_id, 70 * sizeof *b.token_id);
        memcpy(b.prompt, a.prompt, a.info.prompt_length * sizeof *b.prompt);
        memcpy(b.context_length, a.context_length, 70 * sizeof *b.context_length);
        const size_t cells = 70 * a.info.n_layers * a.info.n_heads * a.info.top_k;
        memcpy(b.position, a.position, cells * sizeof *b.position);
        memcpy(b.weight, a.weight, cells * sizeof *b.weight);
        disturb(&b, seed);
        b.token_id[69]++; /* what the last step generated was not fed */
        const char *const path_a = tw_test_path(folder, "a.h5"), *const path_b = tw_test_path(folder, "b.h5");
        a.options.force = b.options.force = true;
        tw_test_trace_write(&a, path_a);
        tw_test_trace_write(&b, path_b);
        struct tw_trace *trace_a, *trace_b;
        struct tw_error err = {0};
        ck_assert_msg(tw_trace_open(&trace_a, path_a, &err) == TW_OK, "%s", err.text);
        ck_assert_msg(tw_trace_open(&trace_b, path_b, &err) == TW_OK, "%s", err.text);
        struct tw_comparison c;
        ck_assert_msg(tw_compare(&c, trace_a, trace_b, NULL, &err) == TW_OK, "%s", err.text);
        ck_assert_uint_eq(c.n_steps, 70);
        for (size_t l = 0; l < c.n_layers; l++)
            for (size_t t = 0; t < c.n_steps; t++) {
                struct tw_difference expected = tw_difference_none();
                for (size_t h = 0; h < a.info.n_heads; h++) {
                    const struct tw_difference d = plain_difference(
                        &a, &b, (t * a.info.n_layers + l) * a.info.n_heads + h, (size_t)a.context_length[t]);
                    tw_difference_add(&expected, &d);
                }
                const struct tw_difference *const got = &c.differences[l * c.n_steps + t];
                ck_assert_msg(got->rows == expected.rows && got->common == expected.common &&
                                  got->top_equal == expected.top_equal &&
                                  fabs(got->overlap - expected.overlap) < 1e-12 &&
                                  fabs(got->overlap_min - expected.overlap_min) < 1e-12 &&
                                  fabs(got->weight_l1 - expected.weight_l1) < 1e-12 &&
                                  fabs(got->weight_squares - expected.weight_squares) < 1e-12 &&
                                  got->weight_max == expected.weight_max,
                              "seed %llu, layer %zu, step %zu", (unsigned long long)seed, l, t);
            }
        tw_comparison_release(&c);
        tw_trace_free(trace_a);
        tw_trace_free(trace_b);
        tw_test_trace_release(&a);
        tw_test_trace_release(&b);
    }
}
END_TEST

START_TEST(tables) {
    const char *const trace = tw_test_golden("replay/plain.h5");
    static const struct {
        const char *by, *begins;
        size_t lines;
    } cases[] = {
        {"layer", "layer,rows,overlap,overlap_min,top_equal,weight_l1,weight_rms,weight_max\n0,1024,1,1,1,0,0,0\n", 3},
        {"step", "step,rows", 257},
        {"both", "layer,step,rows", 1 + 2 * 256},
        {"all", "rows,overlap", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tw_test_run run = tw_test_run("compare %s %s --by %s --format csv", trace, trace, cases[i].by);
        ck_assert_msg(run.exit_status == 0 && run.err.size == 0, "%s", tw_text_string(&run.err));
        ck_assert_msg(!strncmp(tw_text_string(&run.out), cases[i].begins, strlen(cases[i].begins)), "%s",
                      tw_text_string(&run.out));
        size_t lines = 0;
        for (const char *c = tw_text_string(&run.out); *c; c++) lines += *c == '\n';
        ck_assert_uint_eq(lines, cases[i].lines);
        tw_test_run_release(&run);
    }
}
END_TEST

/* One thing at a time is other in the second trace. */
static void other_prompt(struct tw_test_trace *t) { t->prompt[3]++; }
static void other_token(struct tw_test_trace *t) { t->token_id[5]++; }
static void other_context(struct tw_test_trace *t) { t->context_length[7]++; }

START_TEST(other_tokens_are_refused) {
    static const struct {
        void (*change)(struct tw_test_trace *);
        const char *says;
    } cases[] = {{other_prompt, "token 3 of the prompt is"},
                 {other_token, "step 5 generated"},
                 {other_context, "at step 7 one context"}};
    const char *const folder = tw_test_folder();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tw_test_trace a, b;
        tw_test_trace_shape(&a, 20);
        tw_test_trace_shape(&b, 20);
        tw_test_trace_make(&a, 3);
        tw_test_trace_make(&b, 3);
        cases[i].change(&b);
        a.options.force = b.options.force = true;
        tw_test_trace_write(&a, tw_test_path(folder, "a.h5"));
        tw_test_trace_write(&b, tw_test_path(folder, "b.h5"));
        struct tw_test_run run = tw_test_run("compare %s/a.h5 %s/b.h5", folder, folder);
        ck_assert_int_eq(run.exit_status, 2);
        ck_assert_msg(strstr(tw_text_string(&run.err), cases[i].says), "%s", tw_text_string(&run.err));
        ck_assert_uint_eq(run.out.size, 0);
        tw_test_run_release(&run);
        tw_test_trace_release(&a);
        tw_test_trace_release(&b);
    }
    struct tw_test_run run =
        tw_test_run("compare %s %s", tw_test_golden("replay/plain.h5"), tw_test_golden("replay/mqa.h5"));
    ck_assert_int_eq(run.exit_status, 2);
    ck_assert_msg(strstr(tw_text_string(&run.err), "one has 4 query heads, the other 5"), "%s",
                  tw_text_string(&run.err));
    tw_test_run_release(&run);
}
END_TEST

Suite *tw_suite_compare(void);
Suite *tw_suite_compare(void) {
    Suite *suite = suite_create("compare");
    TCase *all = tcase_create("all");
    tcase_set_timeout(all, 60);
    tcase_add_test(all, every_row_as_defined);
    tcase_add_test(all, tables);
    tcase_add_test(all, other_tokens_are_refused);
    suite_add_tcase(suite, all);
    return suite;
}
