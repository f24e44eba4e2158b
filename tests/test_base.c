/* The ground floor: arithmetic, text, numbers, options, tables, outputs. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "base/half.h"
#include "base/json.h"
#include "base/options.h"
#include "base/parse.h"
#include "base/random.h"
#include "base/table.h"
#include "tests/support.h"

START_TEST(half_round_trips_every_value) {
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float value = tw_float_from_half((uint16_t)h);
        if (isnan(value))
            ck_assert(isnan(tw_float_from_half(tw_half_from_float(value))));
        else
            ck_assert_uint_eq(tw_half_from_float(value), h);
    }
}
END_TEST

START_TEST(half_rounds_to_nearest_even) {
    struct tw_random random;
    tw_random_init(&random, tw_test_seed(), 1);
    for (int i = 0; i < 200000; i++) {
        const float value = tw_float_from_bits((uint32_t)tw_random_next(&random));
        if (isnan(value)) continue;
        const uint16_t half = tw_half_from_float(value);
        const double got = tw_float_from_half(half);
        if (isinf(got)) {
            ck_assert(fabsf(value) >= 65520);
            continue;
        }
        /* No neighbour is nearer, and of two equally near ones the even one was taken. */
        for (int step = -1; step <= 1; step += 2) {
            const uint16_t other = (uint16_t)(half + step);
            const double neighbour = tw_float_from_half(other);
            if (!isfinite(neighbour)) continue;
            ck_assert(fabs(got - (double)value) < fabs(neighbour - (double)value) ||
                      (fabs(got - (double)value) == fabs(neighbour - (double)value) && half % 2 == 0) ||
                      got == neighbour);
        }
    }
}
END_TEST

/* Around every half and every border between two, and anywhere; all lengths and alignments. */
START_TEST(halves_of_many_are_those_of_each) {
    enum { N = 4099 };
    static float value[N + 8];
    static uint16_t half[N + 9];
    struct tw_random random;
    tw_random_init(&random, tw_test_seed(), 2);
    for (uint32_t round = 0; round < 600; round++) {
        const size_t skipped = tw_random_below(&random, 8);
        const size_t n = round < 100 ? round : N;
        for (size_t i = 0; i < n; i++) {
            const uint32_t h = (uint32_t)(round * N + i), near = tw_float_bits(tw_float_from_half((uint16_t)h));
            const uint32_t step = (h >> 16 & 1) << 12; /* halfway to the next one */
            value[skipped + i] = round < 400
                                     ? tw_float_from_bits(near + step + (uint32_t)tw_random_below(&random, 3) - 1)
                                     : tw_float_from_bits((uint32_t)tw_random_next(&random));
        }
        half[skipped + n] = 0xabcd;
        tw_half_from_floats(half + skipped, value + skipped, n);
        size_t i = 0;
        while (i < n && half[skipped + i] == tw_half_from_float(value[skipped + i])) i++;
        ck_assert_msg(i == n, "float 0x%08x: 0x%04x", (unsigned)tw_float_bits(value[skipped + i]), half[skipped + i]);
        ck_assert_uint_eq(half[skipped + n], 0xabcd);
    }
}
END_TEST

START_TEST(numbers_are_read_whole) {
    uint64_t u = 7;
    double d;
    ck_assert(tw_parse_u64(&u, TW_VIEW("42")) && u == 42);
    static const char *const bad[] = {"", "-1", "+1", " 1", "1 ", "8.5", "8pages", "0x10", "18446744073709551616"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) ck_assert(!tw_parse_u64(&u, tw_view_of(bad[i])));
    ck_assert(tw_parse_size(&u, TW_VIEW("64K")) && u == 65536);
    ck_assert(tw_parse_size(&u, TW_VIEW("1.5G")) && u == 3ull << 29);
    ck_assert(!tw_parse_size(&u, TW_VIEW("1.3")) && !tw_parse_size(&u, TW_VIEW("K")) &&
              !tw_parse_size(&u, TW_VIEW("1KK")));
    ck_assert(tw_parse_rate(&d, TW_VIEW("25GB/s")) && d == 25e9);
    ck_assert(tw_parse_time(&d, TW_VIEW("30ms")) && d == 0.03);
    ck_assert(!tw_parse_time(&d, TW_VIEW("30")) && !tw_parse_double(&d, TW_VIEW("nan")) &&
              !tw_parse_double(&d, TW_VIEW("1e999")));
    uint64_t *list;
    size_t n;
    ck_assert(tw_parse_u64_list(&list, &n, TW_VIEW("8,4,4,6..7")) && n == 4 && list[0] == 4 && list[3] == 8);
    free(list);
    ck_assert(!tw_parse_u64_list(&list, &n, TW_VIEW("3..1")) && !tw_parse_u64_list(&list, &n, TW_VIEW("8,,4")));
    ck_assert(!tw_parse_u64_list(&list, &n, TW_VIEW("1..99999999999")));
}
END_TEST

START_TEST(torn_utf8_is_replaced_by_maximal_parts) {
    struct tw_text text = {0};
    /* Unicode 15, table 3-8: 61 F1 80 80 E1 80 C2 62 80 63 80 BF 64 */
    tw_text_append_utf8_repaired(&text, TW_VIEW("\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64"), true);
#define R "\xef\xbf\xbd"
    ck_assert_str_eq(tw_text_string(&text), "a" R R R "b" R "c" R R "d");
    tw_text_release(&text);
    tw_text_append_utf8_repaired(&text, TW_VIEW("a\0b"), false);
    ck_assert_str_eq(tw_text_string(&text), "a" R "b");
    tw_text_release(&text);
}
END_TEST

struct sample_options {
    uint64_t interval;
    double share;
    bool loud;
    unsigned pool;
    struct tw_u64_list budgets;
    struct tw_double_list depths;
};
static const struct tw_option sample_options[] = {
    {.name = "interval",
     .type = TW_OPTION_U64,
     .offset = offsetof(struct sample_options, interval),
     .default_value = "128",
     .minimum = 1,
     .help = "steps"},
    {.name = "share",
     .type = TW_OPTION_DOUBLE,
     .offset = offsetof(struct sample_options, share),
     .default_value = "0.25",
     .maximum = 1,
     .help = "a share"},
    {.name = "loud", .type = TW_OPTION_FLAG, .offset = offsetof(struct sample_options, loud), .help = "a flag"},
    {.name = "pool",
     .type = TW_OPTION_CHOICE,
     .offset = offsetof(struct sample_options, pool),
     .default_value = "avg",
     .choices = "avg|max",
     .help = "a choice"},
    {.name = "budgets",
     .type = TW_OPTION_U64_LIST,
     .offset = offsetof(struct sample_options, budgets),
     .default_value = "8,16",
     .help = "a list"},
    {.name = "depths",
     .type = TW_OPTION_DOUBLE_LIST,
     .offset = offsetof(struct sample_options, depths),
     .default_value = "0.5",
     .maximum = 1,
     .help = "numbers"},
    {0},
};

START_TEST(options_come_from_their_table) {
    struct sample_options options;
    struct tw_error err = {0};
    tw_options_init(&options, sizeof options, sample_options);
    ck_assert(options.interval == 128 && options.share == 0.25 && options.pool == 0 && options.budgets.n == 2);
    ck_assert_int_eq(tw_options_parse_specification(&options, sample_options,
                                                    TW_VIEW("interval=8:pool=max:loud=1:depths=1,0.25"), "policy 'x'",
                                                    &err),
                     TW_OK);
    ck_assert(options.interval == 8 && options.pool == 1 && options.loud);
    struct tw_text text = {0};
    tw_options_describe(&text, &options, sample_options);
    ck_assert_str_eq(tw_text_string(&text), ":interval=8:loud=1:pool=max:depths=1,0.25");
    tw_text_release(&text);
    static const char *const bad[] = {"interval=0", "interval",    "interval=",   "share=2",      "pool=median",
                                      "volume=3",   "interval=8:", "budgets=4,x", "depths=0.5,2", "depths=0.5,"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err.text[0] = 0;
        ck_assert_int_eq(
            tw_options_parse_specification(&options, sample_options, tw_view_of(bad[i]), "policy 'x'", &err),
            TW_E_OPTION);
        ck_assert_msg(strstr(err.text, "policy 'x'"), "%s", err.text);
    }
    tw_options_release(&options, sample_options);
}
END_TEST

START_TEST(names_of_columns_break_in_wide_tables) {
    struct tw_table table;
    struct tw_error err = {0};
    struct tw_text text = {0};
    static const char *const names[] = {"trace", "a_fairly_long_name", "rate",
                                        "one_name_of_a_column_that_would_fill_more",
                                        "than_the_hundred_columns_that_are_on_a_line"};
    tw_table_init(&table, names, 3); /* narrow: as they are */
    tw_table_begin_row(&table);
    tw_table_put_text(&table, "t");
    for (int c = 0; c < 2; c++) tw_table_put_uint(&table, 7);
    ck_assert_int_eq(tw_table_write(&text, &table, TW_TABLE_PLAIN, &err), TW_OK);
    ck_assert_str_eq(tw_text_string(&text), "trace  a_fairly_long_name  rate\nt                       7     7\n");
    tw_table_release(&table);
    tw_text_clear(&text);
    tw_table_init(&table, names, 5);
    tw_table_begin_row(&table);
    tw_table_put_text(&table, "t");
    tw_table_put_uint(&table, 123456789);
    for (int c = 0; c < 3; c++) tw_table_put_uint(&table, 7);
    ck_assert_int_eq(tw_table_write(&text, &table, TW_TABLE_PLAIN, &err), TW_OK);
    ck_assert_str_eq(tw_text_string(&text), "                           one_          \n"
                                            "                          name_     than_\n"
                                            "                          of_a_      the_\n"
                                            "                        column_  hundred_\n"
                                            "                          that_  columns_\n"
                                            "                         would_     that_\n"
                                            "       a_fairly_          fill_   are_on_\n"
                                            "trace  long_name  rate     more    a_line\n"
                                            "t      123456789     7        7         7\n");
    tw_table_release(&table);
    tw_text_release(&text);
}
END_TEST

START_TEST(tables_read_back_what_they_wrote) {
    struct tw_table table, again;
    struct tw_error err = {0};
    tw_table_init(&table, (const char *const[]){"name", "count", "rate", "gap"}, 4);
    static const double rates[] = {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, 0.30000000000000004};
    for (size_t i = 0; i < 5; i++) {
        tw_table_begin_row(&table);
        tw_table_put_text(&table, i ? "plain" : "a \"quoted\", name\nwith a line");
        tw_table_put_uint(&table, UINT64_MAX - i);
        tw_table_put_double(&table, rates[i]);
        tw_table_put_double(&table, NAN);
    }
    struct tw_text csv = {0};
    ck_assert_int_eq(tw_table_write(&csv, &table, TW_TABLE_CSV, &err), TW_OK);
    ck_assert_int_eq(tw_table_read_csv(&again, tw_text_view(&csv), "x.csv", &err), TW_OK);
    ck_assert_uint_eq(again.n_rows, 5);
    ck_assert_str_eq(tw_table_cell(&again, 0, 0)->text, "a \"quoted\", name\nwith a line");
    for (size_t i = 0; i < 5; i++) {
        ck_assert_uint_eq(tw_table_cell(&again, i, 1)->u, UINT64_MAX - i);
        ck_assert(tw_table_cell(&again, i, 2)->d == rates[i]);
        ck_assert_int_eq(tw_table_cell(&again, i, 3)->type, TW_CELL_EMPTY);
    }
    tw_table_release(&again);
    static const char *const bad[] = {"", "a,b\n1\n", "a,b\n1,2,3\n", "a,a\n1,2\n", "a,b\n\"1,2\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_int_eq(tw_table_read_csv(&again, tw_view_of(bad[i]), "x.csv", &err), TW_E_INPUT);
    tw_text_release(&csv);
    tw_table_release(&table);
}
END_TEST

START_TEST(command_line_faults_are_explained) {
    static const struct {
        const char *arguments, *expected;
    } rows[] = {
        {"lits", "did you mean 'list'"},
        {"frobnicate", "no command 'frobnicate'"},
        {"list --frob", "no option '--frob'"},
        {"list surplus", "takes no operand 'surplus'"},
    };
    struct tw_test_run run = tw_test_run("%s", rows[_i].arguments);
    ck_assert_int_eq(run.exit_status, 2);
    ck_assert_msg(strstr(tw_text_string(&run.err), rows[_i].expected) != NULL, "%s", tw_text_string(&run.err));
    ck_assert_uint_eq(run.out.size, 0);
    tw_test_run_release(&run);
}
END_TEST

Suite *tw_suite_base(void);
Suite *tw_suite_base(void) {
    Suite *suite = suite_create("base");
    TCase *c = tcase_create("base");
    tcase_add_test(c, half_round_trips_every_value);
    tcase_add_test(c, half_rounds_to_nearest_even);
    tcase_add_test(c, halves_of_many_are_those_of_each);
    tcase_add_test(c, numbers_are_read_whole);
    tcase_add_test(c, torn_utf8_is_replaced_by_maximal_parts);
    tcase_add_test(c, options_come_from_their_table);
    tcase_add_test(c, tables_read_back_what_they_wrote);
    tcase_add_test(c, names_of_columns_break_in_wide_tables);
    tcase_add_loop_test(c, command_line_faults_are_explained, 0, 4);
    suite_add_tcase(suite, c);
    return suite;
}
