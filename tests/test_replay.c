/* The replay against tables that independent programs made: every integer equal, fractions to 1e-9. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "sim/match.h"
#include "sim/replay.h"
#include "tests/support.h"

static struct tw_error err;
#define OK(call) ck_assert_msg((call) == TW_OK, "%s", err.text)

static void read_csv(struct tw_table *table, const char *path) {
    struct tw_text text = {0};
    OK(tw_file_read(&text, path, (size_t)1 << 30, "table", &err));
    OK(tw_table_read_csv(table, tw_text_view(&text), path, &err));
    tw_text_release(&text);
}

static const struct tw_cell *cell(const struct tw_table *table, size_t row, const char *column) {
    const size_t c = tw_table_column(table, column);
    ck_assert_msg(c != SIZE_MAX, "no column '%s'", column);
    return tw_table_cell(table, row, c);
}

/* NaN for an empty cell. */
static double number(const struct tw_table *table, size_t row, const char *column) {
    double value;
    return tw_cell_number(&value, cell(table, row, column)) ? value : NAN;
}

static const char *text(const struct tw_table *table, size_t row, const char *column) {
    const struct tw_cell *at = cell(table, row, column);
    ck_assert_int_eq(at->type, TW_CELL_TEXT);
    return at->text;
}

static bool same(double a, double b) { return (isnan(a) && isnan(b)) || fabs(a - b) <= 1e-9 * fmax(1, fabs(b)); }

static int compare_u64(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The different values of a numeric column, ascending. */
static size_t distinct(uint64_t *values, const struct tw_table *table, const char *column, const char *trace) {
    size_t n = 0;
    for (size_t r = 0; r < table->n_rows; r++) {
        if (trace && strcmp(text(table, r, "trace"), trace) != 0) continue;
        const double value = number(table, r, column);
        bool known = isnan(value);
        for (size_t i = 0; i < n; i++) known = known || values[i] == (uint64_t)value;
        if (!known) values[n++] = (uint64_t)value;
    }
    qsort(values, n, sizeof *values, compare_u64);
    return n;
}

/* Everything that a golden table asks of some traces, in one call. */
static void replay_all(struct tw_table *out, const struct tw_table *golden, const char *trace, const char *const *paths,
                       size_t n_paths) {
    uint64_t budgets[64], page_sizes[16];
    static const enum tw_unit units[] = {TW_UNIT_QUERY, TW_UNIT_KV};
    struct tw_policy_list policies;
    OK(tw_policy_list_parse(&policies, TW_VIEW("all"), &err));
    ck_assert_uint_eq(policies.n, 7);
    const struct tw_replay_options options = {.policies = &policies,
                                              .budgets = budgets,
                                              .n_budgets = distinct(budgets, golden, "budget", trace),
                                              .page_sizes = page_sizes,
                                              .n_page_sizes = distinct(page_sizes, golden, "page_size", trace),
                                              .units = units,
                                              .n_units = 2};
    OK(tw_replay_run(out, NULL, paths, n_paths, &options, NULL, &err));
    tw_policy_list_release(&policies);
}

/* Whether the rows agree in the columns that say what they are of. */
static bool same_key(const struct tw_table *a, size_t r, const struct tw_table *b, size_t s, const char *policy_of_a) {
    return strcmp(text(a, r, policy_of_a), text(b, s, "policy")) == 0 &&
           strcmp(text(a, r, "unit"), text(b, s, "unit")) == 0 &&
           number(a, r, "page_size") == number(b, s, "page_size") &&
           same(number(a, r, "budget"), number(b, s, "budget"));
}

/* The row of `table` for row r of `golden`; rows come in nearly the same order, so the search goes on from `hint`. */
static size_t find_row(const struct tw_table *table, const struct tw_table *golden, size_t r, const char *policy,
                       size_t *hint) {
    for (size_t k = 0; k < table->n_rows; k++) {
        const size_t s = (*hint + k) % table->n_rows;
        if (same_key(golden, r, table, s, policy)) return *hint = s;
    }
    ck_abort_msg("no row for row %zu of the golden table", r);
    return 0;
}

static const char *const traces[] = {"busy",  "gqa",   "k16", "long", "mqa",      "noscore", "padded",
                                     "plain", "short", "six", "ties", "under128", "wide"};
static const char *const counts[] = {
    "steps", "units", "accesses", "misses", "fetches", "stall_steps", "resident_page_steps", "peak_resident"};

static size_t compare_counts(const struct tw_table *golden, const char *trace, const struct tw_table *table) {
    size_t compared = 0, hint = 0;
    for (size_t r = 0; r < golden->n_rows; r++) {
        if (strcmp(text(golden, r, "trace"), trace) != 0) continue;
        const size_t s = find_row(table, golden, r, "policy", &hint);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            ck_assert_msg(number(golden, r, counts[c]) == number(table, s, counts[c]),
                          "%s, row %zu, %s: %.17g, expected %.17g", trace, r, counts[c], number(table, s, counts[c]),
                          number(golden, r, counts[c]));
        ck_assert(same(number(table, s, "miss_rate"), number(golden, r, "miss_rate")));
        ck_assert(same(number(table, s, "mean_resident"), number(golden, r, "mean_resident")));
        compared++;
    }
    return compared;
}

/* Matched memory, over the budgets that the golden table names. */
static size_t compare_matches(const struct tw_table *golden, const char *trace, const struct tw_table *replayed) {
    size_t compared = 0;
    const size_t n = golden->n_rows;
    bool *done = calloc(n, sizeof *done);
    for (size_t r = 0; r < n; r++) {
        if (done[r] || (trace && strcmp(text(golden, r, "trace"), trace) != 0)) continue;
        /* The rows of one list of budgets together: only those budgets' points take part. */
        const struct tw_cell *list = cell(golden, r, "budgets");
        char wanted[256];
        if (list->type == TW_CELL_TEXT)
            snprintf(wanted, sizeof wanted, " %s ", list->text);
        else
            snprintf(wanted, sizeof wanted, " %.0f ", number(golden, r, "budgets"));
        struct tw_table some, matched;
        tw_table_init(&some, (const char *const *)replayed->columns, replayed->n_columns);
        for (size_t s = 0; s < replayed->n_rows; s++) {
            char budget[32];
            snprintf(budget, sizeof budget, " %.0f ", number(replayed, s, "budget"));
            if (!strstr(wanted, budget)) continue;
            tw_table_begin_row(&some);
            for (size_t c = 0; c < some.n_columns; c++) {
                const struct tw_cell *from = tw_table_cell(replayed, s, c);
                if (from->type == TW_CELL_TEXT)
                    tw_table_put_text(&some, from->text);
                else if (from->type == TW_CELL_EMPTY)
                    tw_table_put_empty(&some);
                else if (from->type == TW_CELL_UINT)
                    tw_table_put_uint(&some, from->u);
                else
                    tw_table_put_double(&some, from->d);
            }
        }
        struct tw_match_summaries summaries = {0};
        OK(tw_match_run(&matched, &summaries, &some, "golden", "reactive", &err));
        size_t hint = 0;
        for (size_t q = r; q < n; q++) {
            const struct tw_cell *other = cell(golden, q, "budgets");
            if (done[q] || (trace && strcmp(text(golden, q, "trace"), trace) != 0) || other->type != list->type ||
                (list->type == TW_CELL_TEXT ? strcmp(other->text, list->text) != 0
                                            : number(golden, q, "budgets") != number(golden, r, "budgets")))
                continue;
            done[q] = true;
            const size_t s = find_row(&matched, golden, q, "comparator", &hint);
            ck_assert(same(number(&matched, s, "mean_resident"), number(golden, q, "mean_resident")));
            ck_assert(same(number(&matched, s, "miss_rate"), number(golden, q, "comparator_miss_rate")));
            ck_assert_msg(same(number(&matched, s, "reference_miss_rate"), number(golden, q, "reactive_miss_rate")),
                          "%s row %zu", trace ? trace : "study", q);
            ck_assert(same(number(&matched, s, "win"), number(golden, q, "win")));
            compared++;
        }
        tw_match_summaries_release(&summaries);
        tw_table_release(&some);
        tw_table_release(&matched);
    }
    free(done);
    return compared;
}

START_TEST(every_row_of_the_golden_tables) {
    struct tw_table golden, matched, table;
    read_csv(&golden, tw_test_golden("replay/replay.csv"));
    read_csv(&matched, tw_test_golden("replay/matched.csv"));
    char name[64];
    snprintf(name, sizeof name, "replay/%s.h5", traces[_i]);
    const char *const path = tw_test_golden(name);
    replay_all(&table, &golden, traces[_i], &path, 1);
    ck_assert_uint_ge(compare_counts(&golden, traces[_i], &table), 400);
    const size_t n = compare_matches(&matched, traces[_i], &table);
    ck_assert_msg(n > 100 || number(&table, 0, "accesses") == 0, "%zu comparisons", n);
    tw_table_release(&golden);
    tw_table_release(&matched);
    tw_table_release(&table);
}
END_TEST

START_TEST(the_golden_study) {
    static const char *const runs[] = {"run0", "run1", "run2"};
    struct tw_table golden, average, matched, wins, table = {0}, means, all;
    read_csv(&golden, tw_test_golden("replay/study/replay.csv"));
    read_csv(&average, tw_test_golden("replay/study/average.csv"));
    read_csv(&matched, tw_test_golden("replay/study/matched.csv"));
    read_csv(&wins, tw_test_golden("replay/study/wins.csv"));
    const char *paths[3];
    for (size_t i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "replay/study/%s.h5", runs[i]);
        paths[i] = tw_test_golden(name);
        replay_all(&table, &golden, NULL, &paths[i], 1);
        ck_assert_uint_ge(compare_counts(&golden, runs[i], &table), 400);
        tw_table_release(&table);
    }
    replay_all(&all, &golden, NULL, paths, 3);
    OK(tw_replay_average(&means, &all, &err));
    size_t hint = 0;
    static const char *const columns[] = {"runs",    "accesses",    "misses",        "miss_rate",
                                          "fetches", "stall_steps", "mean_resident", "peak_resident"};
    for (size_t r = 0; r < average.n_rows; r++) {
        const size_t s = find_row(&means, &average, r, "policy", &hint);
        for (size_t c = 0; c < sizeof columns / sizeof *columns; c++)
            ck_assert_msg(same(number(&means, s, columns[c]), number(&average, r, columns[c])), "%s of row %zu",
                          columns[c], r);
    }
    ck_assert_uint_gt(compare_matches(&matched, NULL, &means), 100);
    ck_assert_uint_gt(wins.n_rows, 0);
    tw_table_release(&golden);
    tw_table_release(&average);
    tw_table_release(&matched);
    tw_table_release(&wins);
    tw_table_release(&means);
    tw_table_release(&all);
}
END_TEST

START_TEST(the_published_table) {
    const char *source = getenv("TW_SOURCE");
    char in[512], expected[512];
    snprintf(in, sizeof in, "%s/data/published/residency.csv", source ? source : ".");
    snprintf(expected, sizeof expected, "%s/data/published/matched.csv", source ? source : ".");
    struct tw_table residency, published, matched;
    read_csv(&residency, in);
    read_csv(&published, expected);
    struct tw_match_summaries summaries = {0};
    OK(tw_match_run(&matched, &summaries, &residency, in, "reactive", &err));
    for (size_t r = 0; r < published.n_rows; r++) {
        size_t found = SIZE_MAX;
        for (size_t s = 0; s < matched.n_rows; s++)
            if (strcmp(text(&published, r, "model"), text(&matched, s, "model")) == 0 &&
                strcmp(text(&published, r, "task"), text(&matched, s, "task")) == 0 &&
                same_key(&published, r, &matched, s, "policy"))
                found = s;
        ck_assert_msg(found != SIZE_MAX, "row %zu is missing", r);
        ck_assert(same(number(&matched, found, "win"), number(&published, r, "win")));
        /* The table has six decimals; the paper's own interpolation three. */
        const double mine = number(&matched, found, "reference_miss_rate"),
                     theirs = number(&published, r, "reference_miss_rate");
        ck_assert((isnan(mine) && isnan(theirs)) || fabs(mine - theirs) <= 1e-6);
        const double paper = number(&published, r, "published");
        ck_assert(isnan(paper) || fabs(mine - paper) <= 0.0015);
    }
    size_t baselines = 0, wins = 0;
    for (size_t i = 0; i < summaries.n; i++) {
        const struct tw_match_summary *s = &summaries.policies[i];
        if (!strcmp(s->policy, "frozen")) ck_assert(s->wins == 13 && s->compared == 13);
        if (!strcmp(s->policy, "evict")) ck_assert(s->wins == 15 && s->compared == 16);
        if (!strcmp(s->policy, "snapkv") || !strcmp(s->policy, "rkv") || !strcmp(s->policy, "reasonalloc"))
            baselines += s->compared, wins += s->wins;
    }
    ck_assert(baselines == 28 && wins == 28);
    tw_match_summaries_release(&summaries);
    tw_table_release(&residency);
    tw_table_release(&published);
    tw_table_release(&matched);
}
END_TEST

Suite *tw_suite_replay(void);
Suite *tw_suite_replay(void) {
    Suite *suite = suite_create("replay");
    TCase *c = tcase_create("golden tables");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, every_row_of_the_golden_tables, 0, sizeof traces / sizeof *traces);
    tcase_add_test(c, the_golden_study);
    tcase_add_test(c, the_published_table);
    suite_add_tcase(suite, c);
    return suite;
}
