/* Replay and match by hand: the six-step trace, edges, splits, time, users' policies, many files. */
#include <check.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/half.h"
#include "sim/match.h"
#include "sim/replay.h"
#include "sim/stall.h"
#include "tests/support.h"
#include "tests/sweeps.h"
#include "traces/writer.h"

static struct tw_error err;
#define OK(call) ck_assert_msg((call) == TW_OK, "%s", err.text)

/* ---- traces by hand ---- */

#define N_WANTED 8
struct steps {
    size_t n;
    struct {
        size_t n;
        int32_t page[N_WANTED];
    } wants[32];
};

/* Pages {0,1,2} {3} {0,1} {4} {2,3} {0}. */
static const struct steps six_steps = {6, {{3, {0, 1, 2}}, {1, {3}}, {2, {0, 1}}, {1, {4}}, {2, {2, 3}}, {1, {0}}}};

/* One layer, one head, page size 16: position 16 * page, weight 1 over the number of positions. */
static const char *write_steps(const struct steps *steps, uint64_t budget) {
    const char *path = tw_test_path(tw_test_folder(), "steps.h5");
    struct tw_trace_info info = {.model = "m",
                                 .architecture = "llama",
                                 .task = "six",
                                 .run = "0",
                                 .n_layers = 1,
                                 .n_heads = 1,
                                 .n_kv_heads = 1,
                                 .head_dim = 8,
                                 .top_k = N_WANTED,
                                 .prompt_length = 200,
                                 .budget = budget};
    int32_t prompt[200] = {0};
    const struct tw_trace_writer_options options = {0};
    struct tw_trace_writer *writer;
    OK(tw_trace_writer_create(&writer, path, &info, prompt, &options, &err));
    for (size_t t = 0; t < steps->n; t++) {
        int32_t position[N_WANTED];
        float weight[N_WANTED];
        for (size_t k = 0; k < N_WANTED; k++) {
            const bool there = k < steps->wants[t].n;
            position[k] = there ? 16 * steps->wants[t].page[k] : -1;
            weight[k] = there ? 1.0f / (float)steps->wants[t].n : 0;
        }
        const struct tw_trace_step step = {
            .position = position, .weight = weight, .context_length = 200 + (int32_t)t, .token_id = 1};
        OK(tw_trace_writer_append(writer, &step, &err));
    }
    OK(tw_trace_writer_finish(writer, true, &err));
    tw_trace_writer_free(writer);
    return path;
}

static void read_csv(struct tw_table *table, const char *path) {
    struct tw_text text = {0};
    OK(tw_file_read(&text, path, (size_t)1 << 30, "table", &err));
    OK(tw_table_read_csv(table, tw_text_view(&text), path, &err));
    tw_text_release(&text);
}

/* NaN for an empty cell. */
static double number(const struct tw_table *table, size_t row, const char *column) {
    const size_t c = tw_table_column(table, column);
    ck_assert_msg(c != SIZE_MAX, "no column '%s'", column);
    double value;
    return tw_cell_number(&value, tw_table_cell(table, row, c)) ? value : NAN;
}

/* `tidewake replay` with the arguments, its table read back. */
static void replay(struct tw_table *table, const char *arguments) {
    const char *out = tw_test_path(tw_test_folder(), "out.csv");
    struct tw_test_run run = tw_test_run("replay %s -o %s", arguments, out);
    ck_assert_msg(run.exit_status == 0, "replay %s: %s", arguments, tw_text_string(&run.err));
    tw_test_run_release(&run);
    read_csv(table, out);
}

#define REPLAY(table, ...)                                                                                             \
    do {                                                                                                               \
        char arguments_[2048];                                                                                         \
        snprintf(arguments_, sizeof arguments_, __VA_ARGS__);                                                          \
        replay(table, arguments_);                                                                                     \
    } while (0)

static void refused(const char *arguments, const char *because) {
    struct tw_test_run run = tw_test_run("replay %s", arguments);
    ck_assert_msg(run.exit_status == 2, "replay %s: status %d, %s", arguments, run.exit_status,
                  tw_text_string(&run.err));
    ck_assert_msg(strstr(tw_text_string(&run.err), because) != NULL, "replay %s: %s", arguments,
                  tw_text_string(&run.err));
    ck_assert_uint_eq(run.out.size, 0);
    tw_test_run_release(&run);
}

#define REFUSED(because, ...)                                                                                          \
    do {                                                                                                               \
        char arguments_[2048];                                                                                         \
        snprintf(arguments_, sizeof arguments_, __VA_ARGS__);                                                          \
        refused(arguments_, because);                                                                                  \
    } while (0)

START_TEST(the_six_step_trace) {
    static const struct {
        const char *policy;
        double misses[7], fetches[7], stalls[7], mean[7];
    } expected[] = {
        {"reactive",
         {5, 5, 5, 4, 2, 0, 0},
         {5, 5, 5, 4, 2, 0, 0},
         {3, 3, 3, 3, 2, 0, 0},
         {0, 1, 2, 3, 23 / 6.0, 26 / 6.0, 26 / 6.0}},
        {"evict",
         {5, 5, 4, 3, 1, 0, 0},
         {0, 0, 0, 0, 0, 0, 0},
         {0, 0, 0, 0, 0, 0, 0},
         {0, 1, 2, 3, 23 / 6.0, 26 / 6.0, 26 / 6.0}},
        {"min", {5, 3, 2, 1, 0, 0, 0}, {5, 3, 2, 1, 0, 0, 0}, {0}, {0, 1, 2, 3, 23 / 6.0, 26 / 6.0, 26 / 6.0}},
    };
    const char *path = write_steps(&six_steps, 0);
    struct tw_table table;
    REPLAY(&table, "%s --budget 0..5,1000000000 --policy reactive,evict,min,full", path);
    ck_assert_uint_eq(table.n_rows, 22);
    for (size_t p = 0; p < 3; p++)
        for (size_t b = 0; b < 7; b++) {
            const size_t row = p * 7 + b;
            ck_assert(number(&table, row, "misses") == expected[p].misses[b]);
            ck_assert(number(&table, row, "fetches") == expected[p].fetches[b]);
            /* The stalls and the mean are the specification's table for reactive; the others' means are the same. */
            if (p < 2) ck_assert(number(&table, row, "stall_steps") == expected[p].stalls[b]);
            ck_assert(fabs(number(&table, row, "mean_resident") - expected[p].mean[b]) < 1e-12);
            ck_assert(number(&table, row, "accesses") == 10);
        }
    ck_assert(isnan(number(&table, 21, "budget")));
    ck_assert(number(&table, 21, "misses") == 0 && number(&table, 21, "peak_resident") == 5);
    ck_assert(number(&table, 6, "resident_page_steps") == number(&table, 21, "resident_page_steps"));
    tw_table_release(&table);
}
END_TEST

START_TEST(a_cyclic_scan) {
    struct steps scan = {.n = 16};
    for (size_t t = 0; t < 16; t++) {
        scan.wants[t].n = 1;
        scan.wants[t].page[0] = (int32_t)t % 4;
    }
    const char *path = write_steps(&scan, 0);
    static const double expected[2][4] = {{12, 12, 12, 0}, {9, 6, 3, 0}};
    struct tw_table table;
    REPLAY(&table, "%s --budget 1..4 --policy reactive,min", path);
    for (size_t i = 0; i < 8; i++) ck_assert(number(&table, i, "misses") == expected[i / 4][i % 4]);
    tw_table_release(&table);
}
END_TEST

START_TEST(budgets_at_the_edges) {
    const char *path = write_steps(&six_steps, 0);
    struct tw_table table;
    REPLAY(&table, "%s --budget 8,4,4 --policy reactive", path);
    ck_assert_uint_eq(table.n_rows, 2);
    ck_assert(number(&table, 0, "budget") == 4 && number(&table, 1, "budget") == 8);
    tw_table_release(&table);
    /* Every policy has ten accesses whatever its budget, and none lacks pages under a huge one except the fixed sets.
     */
    REPLAY(&table, "%s --budget 0,1000000000 --policy all,min", path);
    for (size_t i = 0; i < table.n_rows; i++) ck_assert(number(&table, i, "accesses") == 10);
    tw_table_release(&table);
    REFUSED("-1", "%s --budget=-1", path);
    REFUSED("8.5", "%s --budget 8.5", path);
    REFUSED("8pages", "%s --budget 8pages", path);
    REFUSED("'nonesuch'", "%s --policy nonesuch", path);
    REFUSED("interval", "%s --policy rkv:intervals=8", path);
    REFUSED("has no options", "%s --policy evict:interval=8", path);
    REFUSED("layers", "%s --layers 1..2", path);
    REFUSED("steps", "%s --steps 4..6", path);
    REFUSED("not a number or a range", "%s --steps 4..2", path);
    REFUSED("without --link", "%s --latency 10us", path);
    REFUSED("page", "%s --page-size 0", path);
    REFUSED("query,kv", "%s --unit head", path);
    REFUSED("query,kv", "%s --unit query,", path);
    /* A list, as others: what is repeated is there once. */
    REPLAY(&table, "%s --budget 4 --policy reactive --unit kv,query,kv", path);
    ck_assert_uint_eq(table.n_rows, 2);
    ck_assert_str_eq(tw_table_cell(&table, 0, tw_table_column(&table, "unit"))->text, "kv");
    tw_table_release(&table);
    REFUSED("nowhere.h5", "nowhere.h5");
}
END_TEST

START_TEST(a_trace_recorded_with_a_budget_is_warned_of_once) {
    const char *path = write_steps(&six_steps, 512);
    struct tw_test_run run = tw_test_run("replay %s %s --format csv", path, path);
    ck_assert_int_eq(run.exit_status, 0);
    const char *at = strstr(tw_text_string(&run.err), "recorded with a budget");
    ck_assert(at && !strstr(at + 1, "recorded with a budget"));
    tw_test_run_release(&run);
}
END_TEST

/* ---- shares, halves and percentiles ---- */

static void trace_of(struct tw_oracle_trace *trace, size_t n_heads, size_t top_k, size_t n_steps) {
    *trace = (struct tw_oracle_trace){
        .n_layers = 1, .n_heads = n_heads, .n_kv_heads = n_heads, .top_k = top_k, .n_steps = n_steps, .limit = 64};
    tw_oracle_trace_allocate(trace);
}

START_TEST(shares_of_reasonalloc) {
    static const size_t held[] = {5, 2, 1, 0};
    static const uint64_t budget = 2;
    struct tw_oracle_trace trace;
    trace_of(&trace, 4, 5, 1);
    for (size_t h = 0; h < 4; h++)
        for (size_t k = 0; k < held[h]; k++) {
            trace.position[h * 5 + k] = (int32_t)k;
            trace.weight[h * 5 + k] = tw_half_from_float(1);
        }
    const struct tw_test_sweep sweep = {.by = TW_REPLAY_BY_HEAD, .page_size = 1, .budgets = &budget, .n_budgets = 1};
    struct tw_account account;
    tw_test_sweep_run(&account, &trace, &sweep, "reasonalloc:delta=1");
    /* Budgets 5, 2, 1, 0 (4.654, 1.885, 0.962, 0.5 before rounding): nobody loses a page. */
    for (size_t h = 0; h < 4; h++) ck_assert_uint_eq(account.rows[h].resident_page_steps, held[h]);
    tw_account_release(&account, NULL);
    tw_oracle_trace_release(&trace);
}
END_TEST

START_TEST(halves_of_frozen_go_to_even) {
    static const size_t n_units[] = {2, 6, 10, 14}, n_unstable[] = {0, 2, 2, 4};
    static const uint64_t budget = 8;
    for (size_t i = 0; i < 4; i++) {
        struct tw_oracle_trace trace;
        trace_of(&trace, n_units[i], 1, 1);
        for (size_t h = 0; h < n_units[i]; h++) trace.position[h] = 3;
        const struct tw_test_sweep sweep = {.page_size = 1, .budgets = &budget, .n_budgets = 1};
        struct tw_account account;
        tw_test_sweep_run(&account, &trace, &sweep, "frozen");
        /* Before the first refresh a stable unit misses what it wants, an unstable one nothing. */
        ck_assert_uint_eq(account.rows[0].misses, n_units[i] - n_unstable[i]);
        tw_account_release(&account, NULL);
        tw_oracle_trace_release(&trace);
    }
}
END_TEST

START_TEST(percentiles_interpolate) {
    double values[] = {4, 2, 1, 3};
    ck_assert(fabs(tw_stall_quantile(values, 4, 0.1) - 1.3) < 1e-12);
    ck_assert(fabs(tw_stall_quantile(values, 4, 0.9) - 3.7) < 1e-12);
    ck_assert(tw_stall_quantile(values, 4, 1) == 4 && tw_stall_quantile(values, 1, 0.99) == 1);
    ck_assert(tw_stall_quantile(values, 0, 0.5) == 0);
}
END_TEST

START_TEST(huge_contexts_number_the_pages_that_occur) {
    struct tw_demand small = {0}, huge = {0};
    static const int32_t near_by[] = {5, 3, -1, 5, 0, 9}, far_off[] = {2000000005, 3, -1, 2000000005, 0, 2000000009};
    static const uint16_t weight[] = {0x3c00, 0x3800, 0x3c00, 0x3c00, 0x0001, 0x2c00};
    struct tw_demand_shape shape = {
        .n_steps = 2, .n_heads = 1, .n_kv_heads = 1, .top_k = 3, .page_size = 1, .scores = true, .position_limit = 10};
    OK(tw_demand_begin(&small, &shape, &err));
    tw_demand_append(&small, near_by, weight, 2);
    OK(tw_demand_end(&small, &err));
    shape.position_limit = INT32_MAX;
    OK(tw_demand_begin(&huge, &shape, &err));
    tw_demand_append(&huge, far_off, weight, 2);
    OK(tw_demand_end(&huge, &err));
    ck_assert_uint_eq(huge.n_pages, 4);
    for (size_t t = 0; t < 2; t++) {
        const struct tw_demand_row a = tw_demand_row(&small, 0, t), b = tw_demand_row(&huge, 0, t);
        ck_assert_uint_eq(a.n, b.n);
        for (size_t i = 0; i < a.n; i++) {
            const uint32_t page = tw_demand_true_page(&huge, b.page[i]);
            ck_assert_uint_eq(page, a.page[i] > 4 ? 2000000000 + a.page[i] : a.page[i]);
            ck_assert_uint_eq(a.score[i], b.score[i]);
        }
    }
    tw_demand_release(&small);
    tw_demand_release(&huge);
}
END_TEST

START_TEST(every_page_size_divides_exactly) {
    struct tw_demand demand = {0};
    struct tw_random random;
    tw_random_init(&random, tw_test_seed(), 3);
    for (size_t i = 0; i < 400; i++) {
        const uint64_t page_size = i < 300 ? i + 1 : 1 + tw_random_below(&random, (uint64_t)1 << (i % 36));
        int32_t position[64];
        const uint64_t limit = page_size > (1 << 11) ? INT32_MAX : page_size << 20;
        const struct tw_demand_shape shape = {.n_steps = 1,
                                              .n_heads = 1,
                                              .n_kv_heads = 1,
                                              .top_k = 64,
                                              .page_size = page_size,
                                              .position_limit = limit > INT32_MAX ? INT32_MAX : limit};
        for (size_t k = 0; k < 64; k++) position[k] = (int32_t)tw_random_below(&random, shape.position_limit);
        /* One page a call, at its first and last position too. */
        for (size_t k = 0; k < 64; k++) {
            int32_t row[64];
            const uint64_t page = (uint64_t)position[k] / page_size;
            const uint64_t at = k % 3 == 0   ? page * page_size
                                : k % 3 == 1 ? (uint64_t)position[k]
                                             : page * page_size + page_size - 1;
            for (size_t j = 0; j < 64; j++) row[j] = -1;
            row[k] = at < shape.position_limit ? (int32_t)at : position[k];
            OK(tw_demand_begin(&demand, &shape, &err));
            tw_demand_append(&demand, row, NULL, 1);
            OK(tw_demand_end(&demand, &err));
            ck_assert_uint_eq(tw_demand_row(&demand, 0, 0).n, 1);
            ck_assert_uint_eq(tw_demand_true_page(&demand, tw_demand_row(&demand, 0, 0).page[0]), page);
        }
    }
    tw_demand_release(&demand);
}
END_TEST

/* ---- splits, ranges, threads ---- */

START_TEST(splits_add_up) {
    struct tw_table whole, split;
    static const char *const by[] = {"layer", "head", "step"};
    static const char *const units[] = {"query", "kv"};
    const char *path = tw_test_golden("replay/long.h5");
    for (size_t i = 0; i < 6; i++) {
        REPLAY(&whole, "%s --unit %s --policy all,min --budget 4,16,64", path, units[i / 3]);
        REPLAY(&split, "%s --unit %s --policy all,min --budget 4,16,64 --by %s", path, units[i / 3], by[i % 3]);
        const size_t n = split.n_rows / whole.n_rows;
        ck_assert_uint_gt(n, 1);
        ck_assert_uint_eq(split.n_rows, n * whole.n_rows);
        static const char *const sums[] = {"accesses", "misses", "fetches", "resident_page_steps"};
        for (size_t r = 0; r < whole.n_rows; r++)
            for (size_t c = 0; c < sizeof sums / sizeof *sums; c++) {
                double sum = 0;
                for (size_t k = 0; k < n; k++) sum += number(&split, r * n + k, sums[c]);
                ck_assert_msg(sum == number(&whole, r, sums[c]), "%s by %s: %.17g", sums[c], by[i % 3], sum);
            }
        tw_table_release(&whole);
        tw_table_release(&split);
    }
}
END_TEST

START_TEST(ranges_cut_the_trace) {
    struct tw_table one, all;
    const char *path = tw_test_golden("replay/gqa.h5");
    REPLAY(&one, "%s --policy reactive,rkv --layers 1", path);
    REPLAY(&all, "%s --policy reactive,rkv --by layer", path);
    for (size_t r = 0; r < one.n_rows; r++) {
        ck_assert(number(&one, r, "misses") == number(&all, r * 3 + 1, "misses"));
        ck_assert(number(&one, r, "peak_resident") == number(&all, r * 3 + 1, "peak_resident"));
        ck_assert(number(&all, r * 3 + 1, "layer") == 1);
    }
    tw_table_release(&one);
    tw_table_release(&all);
    REPLAY(&one, "%s --policy reactive --budget 8 --steps 20..59", path);
    ck_assert(number(&one, 0, "steps") == 40);
    tw_table_release(&one);
    /* A prefix is what the whole trace does up to there. */
    REPLAY(&one, "%s --policy evict --budget 8 --steps 0..59 --by step", path);
    REPLAY(&all, "%s --policy evict --budget 8 --by step", path);
    for (size_t r = 0; r < 60; r++) ck_assert(number(&one, r, "misses") == number(&all, r, "misses"));
    tw_table_release(&one);
    tw_table_release(&all);
}
END_TEST

START_TEST(threads_change_nothing) {
    static const char *const by[] = {"run", "layer", "head", "step"};
    const char *folder = tw_test_folder();
    for (size_t i = 0; i < 4; i++) {
        struct tw_test_run run = tw_test_run(
            "replay %s %s --policy all,min --page-size 8,16 --unit query,kv --budget 1..40 --by %s --link 25GB/s "
            "--overlap layer --threads 1 -o %s/one.csv",
            tw_test_golden("replay/mqa.h5"), tw_test_golden("replay/busy.h5"), by[i], folder);
        ck_assert_msg(run.exit_status == 0, "%s", tw_text_string(&run.err));
        tw_test_run_release(&run);
        run = tw_test_run(
            "replay %s %s --policy all,min --page-size 8,16 --unit query,kv --budget 1..40 --by %s --link 25GB/s "
            "--overlap layer --threads 5 -o %s/five.csv && cmp %s/one.csv %s/five.csv",
            tw_test_golden("replay/mqa.h5"), tw_test_golden("replay/busy.h5"), by[i], folder, folder, folder);
        ck_assert_msg(run.exit_status == 0, "%s", tw_text_string(&run.err));
        tw_test_run_release(&run);
    }
}
END_TEST

/* ---- time ---- */

START_TEST(stalls_by_hand) {
    const struct tw_link link = {.bytes_per_second = 1e6, .latency_seconds = 0.5e-3, .step_seconds = 10e-3};
    struct tw_link ahead = link;
    ahead.overlap = TW_OVERLAP_LAYER;
    static const uint64_t both[] = {1, 3}, second[] = {0, 3}, none[] = {0, 0}, much[] = {0, 20};
    /* 1 ms a page: 1.5 ms, then 3.5 ms. The second layer would start at 5 ms. */
    ck_assert(fabs(tw_stall_step(&link, 1000, both, 2) - 5e-3) < 1e-15);
    ck_assert(fabs(tw_stall_step(&ahead, 1000, both, 2) - 1.5e-3) < 1e-15);
    ck_assert(fabs(tw_stall_step(&link, 1000, second, 2) - 3.5e-3) < 1e-15);
    ck_assert(tw_stall_step(&ahead, 1000, second, 2) == 0);
    ck_assert(tw_stall_step(&link, 1000, none, 2) == 0 && tw_stall_step(&ahead, 1000, none, 2) == 0);
    ck_assert(fabs(tw_stall_step(&ahead, 1000, much, 2) - 15.5e-3) < 1e-15);

    const char *path = write_steps(&six_steps, 0);
    struct tw_table table;
    REPLAY(&table,
           "%s --policy reactive,full,frozen:refresh=2 --budget 2 --link 1MB/s --latency 0.5ms --step-time 10ms "
           "--page-bytes 1000",
           path);
    /* Two pages at steps 2 and 4, one at step 5. */
    ck_assert(number(&table, 0, "bytes_fetched") == 5000);
    ck_assert(fabs(number(&table, 0, "stall_seconds") - 6.5e-3) < 1e-12);
    ck_assert(fabs(number(&table, 0, "stall_seconds_p99") - 2.5e-3) < 1e-12);
    ck_assert(fabs(number(&table, 0, "slowdown") - 66.5 / 60) < 1e-12);
    ck_assert(number(&table, 1, "bytes_fetched") == 0 && number(&table, 1, "slowdown") == 1);
    /* A refresh moves bytes and stalls nothing. */
    ck_assert(number(&table, 2, "fetches") > 0 && number(&table, 2, "stall_seconds") == 0);
    tw_table_release(&table);
    /* auto: 16 tokens * 8 * 2 * 2 bytes */
    REPLAY(&table, "%s --policy reactive --budget 2 --link 1MB/s", path);
    ck_assert(number(&table, 0, "bytes_fetched") == 5 * 16 * 8 * 4);
    tw_table_release(&table);
}
END_TEST

/* ---- matched memory at the rim ---- */

START_TEST(matched_memory_at_the_rim) {
    static const char csv[] = "extra,policy,budget,miss_rate,mean_resident\n"
                              "1,reactive,2,0.5,2\n1,reactive,3,0.4,3\n1,reactive,4,0.2,3.8333333333333335\n"
                              "1,reactive,5,0,4.333333333333333\n1,reactive,6,0,4.333333333333333\n"
                              "1,other,2,0.45,2.5\n1,other,3,0.4499,2.5\n1,other,4,0.9,1.9\n1,other,5,0.1,4.5\n"
                              "1,other,6,0,4.3333333333333330\n1,none,2,,\n1,min,2,0.2,2\n1,full,,0,5\n";
    static const double rates[] = {0.45, 0.45, NAN, NAN, 0, NAN}, wins[] = {1, 0, NAN, NAN, 1, NAN};
    struct tw_table in, out;
    struct tw_match_summaries summaries;
    OK(tw_table_read_csv(&in, TW_VIEW(csv), "rim", &err));
    OK(tw_match_run(&out, &summaries, &in, "rim", "reactive", &err));
    ck_assert_uint_eq(out.n_rows, 6);
    for (size_t r = 0; r < 6; r++) {
        const double rate = number(&out, r, "reference_miss_rate"), win = number(&out, r, "win");
        ck_assert((isnan(rate) && isnan(rates[r])) || fabs(rate - rates[r]) < 1e-12);
        ck_assert((isnan(win) && isnan(wins[r])) || win == wins[r]);
    }
    ck_assert(summaries.n == 2 && summaries.policies[0].wins == 2 && summaries.policies[0].compared == 3 &&
              summaries.policies[0].left_out == 2);
    tw_match_summaries_release(&summaries);
    tw_table_release(&in);
    tw_table_release(&out);
    static const char without[] = "policy,budget,mean_resident\nreactive,2,2\n";
    OK(tw_table_read_csv(&in, TW_VIEW(without), "without", &err));
    ck_assert_int_eq(tw_match_run(&out, &summaries, &in, "without", "reactive", &err), TW_E_INPUT);
    ck_assert(strstr(err.text, "miss_rate"));
    tw_table_release(&in);
}
END_TEST

/* The paper leaves runs that were too short for a policy to prune out of its counts (spec: residency.md). */
START_TEST(policies_that_never_pruned_do_not_count) {
    static const char csv[] = "task,run,policy,budget,miss_rate,mean_resident,prunes\n"
                              "a,0,reactive,2,0.5,2,0\na,0,reactive,4,0,4,0\n"
                              "a,0,rkv,2,0,4,0\na,0,rkv,4,0,5,0\n"
                              "a,0,frozen,2,0.5,3,0\na,0,frozen,4,0.5,5,0\n"
                              "a,0,rkv:interval=8,2,0.6,3,2\na,0,rkv:interval=8,4,0.1,3.5,2\n"
                              "b,0,reactive,2,0.5,2,0\nb,0,reactive,4,0.1,4,0\n"
                              "b,0,rkv,2,0.4,3,0\nb,1,rkv,2,0.4,3,1\nb,0,rkv,4,0,4,0\n";
    static const struct tw_match_summary expected[] = {
        {.policy = "rkv", .wins = 1, .compared = 1, .unpruned = 3},    /* one of two runs of b pruned at 2 */
        {.policy = "frozen", .wins = 1, .compared = 1, .left_out = 1}, /* has no interval after which it prunes */
        {.policy = "rkv:interval=8", .wins = 1, .compared = 2},
    };
    struct tw_table in, out;
    struct tw_match_summaries summaries;
    OK(tw_table_read_csv(&in, TW_VIEW(csv), "short", &err));
    OK(tw_match_run(&out, &summaries, &in, "short", "reactive", &err));
    ck_assert_uint_eq(summaries.n, 3);
    for (size_t i = 0; i < 3; i++) {
        const struct tw_match_summary *const s = &summaries.policies[i];
        ck_assert_msg(!strcmp(s->policy, expected[i].policy) && s->wins == expected[i].wins &&
                          s->compared == expected[i].compared && s->left_out == expected[i].left_out &&
                          s->unpruned == expected[i].unpruned,
                      "%s: %zu of %zu, %zu, %zu", s->policy, s->wins, s->compared, s->left_out, s->unpruned);
    }
    ck_assert(number(&out, 0, "win") == 1 && summaries.unpruned[0] && !summaries.unpruned[2]); /* the row stays */
    tw_match_summaries_release(&summaries);
    tw_table_release(&in);
    tw_table_release(&out);
}
END_TEST

START_TEST(averages_over_runs) {
    struct tw_table table;
    REPLAY(&table, "%s --policy reactive,full --budget 8 --average", tw_test_golden("replay/study"));
    ck_assert_uint_eq(table.n_rows, 2);
    ck_assert(number(&table, 0, "runs") == 3 && number(&table, 0, "miss_rate_sd") > 0);
    ck_assert_uint_eq(tw_table_column(&table, "trace"), SIZE_MAX);
    tw_table_release(&table);
    static const char csv[] = "trace,model,task,run,policy,budget,miss_rate\na,m,t,0,x,1,0.1\nb,m,t,1,x,1,0.2\n"
                              "c,m,t,2,x,1,\nd,m,u,0,x,1,0.5\n";
    struct tw_table in;
    OK(tw_table_read_csv(&in, TW_VIEW(csv), "runs", &err));
    OK(tw_replay_average(&table, &in, &err));
    ck_assert_uint_eq(table.n_rows, 2);
    ck_assert(number(&table, 0, "runs") == 3 && fabs(number(&table, 0, "miss_rate") - 0.15) < 1e-12);
    ck_assert(fabs(number(&table, 0, "miss_rate_sd") - sqrt(0.005)) < 1e-12);
    ck_assert(number(&table, 1, "runs") == 1 && isnan(number(&table, 1, "miss_rate_sd")));
    tw_table_release(&table);
    tw_table_release(&in);
}
END_TEST

/* ---- a user's policy ---- */

static const char *source(void) {
    const char *folder = getenv("TW_SOURCE");
    return folder ? folder : ".";
}

/* Builds C text, which may include the example, into a shared object. */
static const char *build(const char *text, const char *name) {
    const char *folder = tw_test_folder(), *c = tw_test_path(folder, "policy.c"), *so = tw_test_path(folder, name);
    tw_test_write_file(c, text, strlen(text));
    struct tw_test_run run = tw_test_shell(
        "${CC:-cc} -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -O1 -shared -fPIC -I %s -o %s %s 2>&1", source(), so, c);
    ck_assert_msg(run.exit_status == 0, "%s", tw_text_string(&run.out));
    ck_assert_msg(run.out.size == 0, "%s", tw_text_string(&run.out));
    tw_test_run_release(&run);
    return so;
}

START_TEST(a_policy_of_ones_own) {
    const char *path = write_steps(&six_steps, 0);
    const char *so = build("#include \"data/policies/fifo.c\"\n", "fifo.so");
    struct tw_table table;
    REPLAY(&table, "%s --policy %s,reactive --budget 2,3,9", path, so);
    static const double misses[] = {5, 2, 0}, resident[] = {12, 18, 26};
    for (size_t b = 0; b < 3; b++) {
        ck_assert(number(&table, b, "misses") == misses[b] && number(&table, b, "fetches") == misses[b]);
        ck_assert(number(&table, b, "resident_page_steps") == resident[b]);
        ck_assert_str_eq(tw_table_cell(&table, b, tw_table_column(&table, "policy"))->text, "fifo");
    }
    tw_table_release(&table);
    /* Without a folder in its name, and split by head, on several threads. */
    struct tw_test_run run = tw_test_shell(
        "tidewake=$(realpath $TW_PROGRAM) trace=$(realpath %s) && cd $(dirname %s) && $tidewake replay --policy fifo.so --by head "
        "--format csv $trace",
        tw_test_golden("replay/gqa.h5"), so);
    ck_assert_msg(run.exit_status == 0, "%s", tw_text_string(&run.err));
    tw_test_run_release(&run);
}
END_TEST

/* A policy that does nothing but `serving`. */
#define STUB(name, serving)                                                                                            \
    "#include \"sim/policy.h\"\n"                                                                                      \
    "static tw_status o(void **s, const struct tw_policy_layer *l, const void *p, struct tw_error *e) "                \
    "{ (void)l, (void)p, (void)e; *s = 0; return TW_OK; }\n"                                                           \
    "static void v(void *s, size_t t, const struct tw_demand_row *d, struct tw_policy_result *r) "                     \
    "{ (void)s, (void)t, (void)d, (void)r; " serving " }\n"                                                            \
    "static void c(void *s) { (void)s; }\n"                                                                            \
    "const struct tw_policy tw_policy_plugin = {.interface = TW_POLICY_INTERFACE, .name = \"" name                     \
    "\", .open = o, .serve = v, .close = c};\n"

START_TEST(a_policy_that_cannot_be_used) {
    const char *path = write_steps(&six_steps, 0);
    const char *other = build("#include \"sim/policy.h\"\n#undef TW_POLICY_INTERFACE\n#define TW_POLICY_INTERFACE 999\n"
                              "#include \"data/policies/fifo.c\"\n",
                              "other.so");
    REFUSED("interface 999", "%s --policy %s", path, other);
    REFUSED("tw_policy_plugin", "%s --policy %s", path, build("int nothing;\n", "nothing.so"));
    REFUSED("cannot be loaded", "%s --policy %s", path, path);
    const char *text = tw_test_path(tw_test_folder(), "text.so");
    tw_test_write_file(text, "no library", 10);
    REFUSED("cannot be loaded", "%s --policy %s", path, text);
    REFUSED("cannot be loaded", "%s --policy ./nowhere.so", path);
    REFUSED(
        "open, serve and close", "%s --policy %s", path,
        build("#include \"sim/policy.h\"\nconst struct tw_policy tw_policy_plugin = {.interface = TW_POLICY_INTERFACE, "
              ".name = \"empty\"};\n",
              "empty.so"));
    REFUSED("built-in", "%s --policy %s", path, build(STUB("evict", ""), "evict.so"));
    REFUSED("usable name", "%s --policy %s", path, build(STUB("a:b", ""), "name.so"));
    REFUSED("what cannot be", "%s --policy %s", path, build(STUB("liar", "r->misses = 99;"), "liar.so"));
}
END_TEST

/* ---- many files ---- */

/* The sanitizers keep freed memory resident. */
#ifndef __SANITIZE_ADDRESS__
static size_t resident_bytes(void) {
    size_t total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%zu %zu", &total, &resident), 2);
    fclose(file);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

START_TEST(three_hundred_files) {
    const char *paths[300];
    for (size_t i = 0; i < 300; i++) paths[i] = tw_test_golden("replay/under128.h5");
    static const uint64_t budgets[] = {8, 16}, page_sizes[] = {16};
    static const enum tw_unit units[] = {TW_UNIT_QUERY};
    struct tw_policy_list policies;
    OK(tw_policy_list_parse(&policies, TW_VIEW("all"), &err));
    const struct tw_replay_options options = {.policies = &policies,
                                              .budgets = budgets,
                                              .n_budgets = 2,
                                              .page_sizes = page_sizes,
                                              .n_page_sizes = 1,
                                              .units = units,
                                              .n_units = 1,
                                              .n_threads = 2};
    struct tw_table table;
    size_t after[2];
    static const size_t n_files[] = {5, 300};
    for (size_t i = 0; i < 2; i++) {
        OK(tw_replay_run(&table, NULL, paths, n_files[i], &options, NULL, &err));
        ck_assert_uint_eq(table.n_rows, n_files[i] * 13);
        tw_table_release(&table);
        malloc_trim(0); /* what has been freed is not in use */
        after[i] = resident_bytes();
    }
    ck_assert_msg((double)after[1] <= 1.1 * (double)after[0], "%zu bytes after 5 files, %zu after 300", after[0],
                  after[1]);
    tw_policy_list_release(&policies);
}
END_TEST
#endif

Suite *tw_suite_replaying(void);
Suite *tw_suite_replaying(void) {
    Suite *suite = suite_create("replaying");
    TCase *c = tcase_create("by hand");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, the_six_step_trace);
    tcase_add_test(c, a_cyclic_scan);
    tcase_add_test(c, budgets_at_the_edges);
    tcase_add_test(c, a_trace_recorded_with_a_budget_is_warned_of_once);
    tcase_add_test(c, shares_of_reasonalloc);
    tcase_add_test(c, halves_of_frozen_go_to_even);
    tcase_add_test(c, percentiles_interpolate);
    tcase_add_test(c, huge_contexts_number_the_pages_that_occur);
    tcase_add_test(c, every_page_size_divides_exactly);
    suite_add_tcase(suite, c);
    c = tcase_create("splits and time");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, splits_add_up);
    tcase_add_test(c, ranges_cut_the_trace);
    tcase_add_test(c, threads_change_nothing);
    tcase_add_test(c, stalls_by_hand);
    tcase_add_test(c, matched_memory_at_the_rim);
    tcase_add_test(c, policies_that_never_pruned_do_not_count);
    tcase_add_test(c, averages_over_runs);
    suite_add_tcase(suite, c);
    c = tcase_create("users and files");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, a_policy_of_ones_own);
    tcase_add_test(c, a_policy_that_cannot_be_used);
#ifndef __SANITIZE_ADDRESS__
    tcase_add_test(c, three_hundred_files);
#endif
    suite_add_tcase(suite, c);
    return suite;
}
