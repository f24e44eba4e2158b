/* Wide tables laid out for people: what is left out, what goes into the line above, and that no line is too long. */
#include <check.h>
#include <string.h>

#include "cli/layout.h"

static const char *const keys[] = {"schedule", "chunk", "budget"};
static const struct tw_layout_column columns[] = {
    {.title = "Memory", .name = "peak", .heading = "peak", .shown = TW_SHOWN_BYTES},
    {.name = "none", .heading = "none", .shown = TW_SHOWN_BYTES},
    {.name = "absent", .heading = "absent"},
    {.name = "cache", .heading = "cache", .shown = TW_SHOWN_BYTES},
    {.title = "Time", .name = "empty", .heading = "empty"},
    {.name = "seconds", .heading = "first token", .shown = TW_SHOWN_SECONDS, .digits = 2},
    {.name = "share", .heading = "share", .shown = TW_SHOWN_PERCENT, .digits = 1},
    {.name = "change", .heading = "change", .shown = TW_SHOWN_CHANGE},
    {.name = "error", .heading = "error", .shown = TW_SHOWN_SCIENTIFIC, .digits = 1},
    {0},
};

/* Three rows, the second refused; the third takes no chunk. */
static void fill(struct tw_table *table) {
    static const char *const names[] = {"schedule", "chunk",   "budget", "peak",   "none",  "cache",
                                        "empty",    "seconds", "share",  "change", "error", "refusal"};
    tw_table_init(table, names, sizeof names / sizeof *names);
    for (int r = 0; r < 3; r++) {
        tw_table_begin_row(table);
        tw_table_put_text(table, r == 2 ? "oneshot" : "tide");
        if (r == 2)
            tw_table_put_empty(table);
        else
            tw_table_put_uint(table, 16);
        tw_table_put_uint(table, r == 1 ? 64 : 32);
        if (r == 1) {
            for (int i = 0; i < 8; i++) tw_table_put_empty(table);
            tw_table_put_text(table, "too much");
            continue;
        }
        tw_table_put_uint(table, r ? 3u << 29 : 1536);
        tw_table_put_uint(table, 0);
        tw_table_put_uint(table, r ? 0 : 5 << 19);
        tw_table_put_empty(table);
        tw_table_put_double(table, 1.5);
        tw_table_put_double(table, 0.25);
        tw_table_put_double(table, r ? -2048 : 12);
        tw_table_put_double(table, r ? 0.00123 : 0);
        tw_table_put_empty(table);
    }
}

static const struct tw_layout layout = {
    .subject = "m on cpu", .keys = keys, .n_keys = 3, .columns = columns, .remark = "refusal"};

START_TEST(wide_enough) {
    struct tw_table table;
    struct tw_text text = {0};
    fill(&table);
    tw_layout_write(&text, &table, &layout, 80);
    ck_assert_str_eq(tw_text_string(&text), "m on cpu: chunk 16\n"
                                            "\n"
                                            "Memory\n"
                                            "schedule  budget      peak    cache\n"
                                            "tide          32   1.5 KiB  2.5 MiB\n"
                                            "tide          64         -        -\n"
                                            "oneshot       32  1.50 GiB      0 B\n"
                                            "\n"
                                            "Time\n"
                                            "schedule  budget  first token   share    change    error\n"
                                            "tide          32       1.50 s  25.0 %     +12 B        0\n"
                                            "tide          64            -       -         -        -\n"
                                            "oneshot       32       1.50 s  25.0 %  -2.0 KiB  1.2e-03\n"
                                            "\n"
                                            "tide, budget 64: too much\n");
    tw_text_release(&text);
    tw_table_release(&table);
}
END_TEST

/* Whatever the width, unless keys and one column alone are wider, and every cell is still there. */
START_TEST(narrow) {
    struct tw_table table;
    fill(&table);
    for (size_t width = 30; width < 80; width++) {
        struct tw_text text = {0};
        tw_layout_write(&text, &table, &layout, width);
        const char *const wanted[] = {"1.50 GiB", "2.5 MiB", "1.50 s", "25.0 %", "-2.0 KiB", "1.2e-03"};
        for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
            ck_assert_msg(strstr(tw_text_string(&text), wanted[i]), "width %zu: no '%s'", width, wanted[i]);
        for (const char *line = tw_text_string(&text); *line; line += strcspn(line, "\n") + 1)
            ck_assert_msg(strcspn(line, "\n") <= width, "width %zu: %s", width, line);
        tw_text_release(&text);
    }
    tw_table_release(&table);
}
END_TEST

/* One row, and none: the first key names it. */
START_TEST(few_rows) {
    struct tw_table table;
    struct tw_text text = {0};
    const char *const names[] = {"schedule", "chunk", "budget", "peak"};
    tw_table_init(&table, names, 4);
    tw_layout_write(&text, &table, &layout, 80);
    ck_assert_str_eq(tw_text_string(&text), "m on cpu\n");
    tw_text_clear(&text);
    tw_table_begin_row(&table);
    tw_table_put_text(&table, "tide");
    tw_table_put_uint(&table, 16);
    tw_table_put_text(&table, "full");
    tw_table_put_uint(&table, 1000);
    tw_layout_write(&text, &table, &layout, 80);
    ck_assert_str_eq(tw_text_string(&text), "m on cpu: chunk 16, budget full\n\nMemory\nschedule    peak\n"
                                            "tide      1000 B\n");
    tw_text_release(&text);
    tw_table_release(&table);
}
END_TEST

Suite *tw_suite_layout(void);

Suite *tw_suite_layout(void) {
    Suite *suite = suite_create("layout");
    TCase *tcase = tcase_create("layout");
    tcase_add_test(tcase, wide_enough);
    tcase_add_test(tcase, narrow);
    tcase_add_test(tcase, few_rows);
    suite_add_tcase(suite, tcase);
    return suite;
}
