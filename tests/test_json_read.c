/* The pull reader of JSON: grammar, exact integers, depth; and nothing accepted that cJSON refuses. */
#include <check.h>
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "base/random.h"
#include "tests/support.h"

Suite *tw_suite_json_read(void);

static bool accepted(struct tw_view text) {
    struct tw_json_reader reader = tw_json_reader(text);
    const bool skipped = tw_json_skip(&reader);
    const bool ended = tw_json_finish(&reader);
    ck_assert(skipped || reader.fault);
    ck_assert(ended == (reader.fault == NULL));
    return !reader.fault;
}

START_TEST(grammar) {
    static const char *const good[] = {
        "{}",
        "[]",
        " [ ] ",
        "null",
        "true",
        "false",
        "0",
        "-0",
        "10",
        "-1.5e+10",
        "0.5E-3",
        "\"\"",
        "\"\\u00e9\\n\\\\\"",
        "{\"a\":{\"b\":[1,2,{\"c\":[]}]},\"d\":\"\"}",
        "[[[]],{},[{}]]",
        "\t{\r\n\"x\" : 1 , \"x\" : 2 }\n",
        "\"\xc3\xa9\"",
    };
    static const char *const bad[] = {
        "",
        " ",
        "{",
        "}",
        "[",
        "]",
        "[1,]",
        "{\"a\":1,}",
        "{,}",
        "[,1]",
        "{\"a\"}",
        "{\"a\":}",
        "{a:1}",
        "{1:1}",
        "[1 2]",
        "{\"a\":1 \"b\":2}",
        "01",
        "-",
        "1.",
        ".5",
        "1e",
        "1e+",
        "+1",
        "nul",
        "nulls",
        "tru",
        "NaN",
        "Infinity",
        "'a'",
        "\"",
        "\"\\",
        "\"\\u12\"",
        "\"\\u123g\"",
        "\"\\x\"",
        "\"\n\"",
        "\"\x01\"",
        "\"\xff\"",
        "\"\xc3\"",
        "\"\xed\xa0\x80\"",
        "[} ",
        "{]",
        "[1]]",
        "{} {}",
        "1 2",
        "[1",
        "{\"a\":[1}",
        "// a\n1",
        "[1,/**/2]",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) ck_assert_msg(accepted(tw_view_of(good[i])), "%s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) ck_assert_msg(!accepted(tw_view_of(bad[i])), "%s", bad[i]);
    ck_assert(!accepted((struct tw_view){"\"\0\"", 3}));
    ck_assert(!accepted((struct tw_view){"1\0", 2}));
}
END_TEST

START_TEST(whole_numbers_are_exact) {
    static const struct {
        const char *text;
        uint64_t value;
    } good[] = {{"0", 0}, {"9007199254740993", 9007199254740993}, {" 18446744073709551615 ", UINT64_MAX}};
    static const char *const bad[] = {
        "18446744073709551616", "99999999999999999999", "-1", "-0", "1.0", "1e2", "01", "\"1\"", "null", "[1]", ""};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct tw_json_reader reader = tw_json_reader(tw_view_of(good[i].text));
        uint64_t value = 1;
        ck_assert(tw_json_read_u64(&reader, &value) && tw_json_finish(&reader));
        ck_assert(value == good[i].value);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct tw_json_reader reader = tw_json_reader(tw_view_of(bad[i]));
        uint64_t value = 77;
        ck_assert_msg(!tw_json_read_u64(&reader, &value), "%s", bad[i]);
        ck_assert(value == 77 && reader.fault);
    }
}
END_TEST

START_TEST(walking) {
    struct tw_json_reader reader = tw_json_reader(TW_VIEW("{\"a\":[1,2,3],\"b\":{\"c\":[[]]},\"d\\\"\":\"x\\ty\"}"));
    struct tw_view name, string;
    uint64_t value, sum = 0;
    ck_assert(tw_json_peek(&reader) == '{' && tw_json_enter(&reader, '{'));
    ck_assert(tw_json_next_member(&reader, &name) && tw_view_equal(name, TW_VIEW("a")));
    ck_assert(tw_json_enter(&reader, '['));
    while (tw_json_next_element(&reader)) {
        ck_assert(tw_json_read_u64(&reader, &value));
        sum += value;
    }
    ck_assert_uint_eq(sum, 6);
    ck_assert(tw_json_next_member(&reader, &name) && tw_view_equal(name, TW_VIEW("b")) && tw_json_skip(&reader));
    ck_assert(tw_json_next_member(&reader, &name) && tw_view_equal(name, TW_VIEW("d\\\"")));
    ck_assert(tw_json_read_string(&reader, &string) && tw_view_equal(string, TW_VIEW("x\\ty")));
    ck_assert(!tw_json_next_member(&reader, &name) && tw_json_finish(&reader));

    reader = tw_json_reader(TW_VIEW("[1, oops]"));
    ck_assert(tw_json_enter(&reader, '[') && tw_json_next_element(&reader) && tw_json_read_u64(&reader, &value));
    ck_assert(tw_json_next_element(&reader) && !tw_json_read_u64(&reader, &value));
    ck_assert_uint_eq(reader.fault_at, 4);
    /* A fault stays: nothing more is read, and the first reason is kept. */
    const char *fault = reader.fault;
    ck_assert(!tw_json_next_element(&reader) && !tw_json_skip(&reader) && !tw_json_finish(&reader) &&
              !tw_json_refuse(&reader, "another") && tw_json_peek(&reader) == 0);
    ck_assert_ptr_eq(reader.fault, fault);
}
END_TEST

START_TEST(depth_is_bounded) {
    for (size_t depth = TW_JSON_DEPTH_MAX - 1; depth <= 1000000; depth = depth < 1000 ? depth + 1 : 1000001) {
        char *text = malloc(2 * depth);
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        ck_assert_int_eq(accepted((struct tw_view){text, 2 * depth}), depth <= TW_JSON_DEPTH_MAX);
        free(text);
        if (depth == 999) depth = 999999;
    }
}
END_TEST

/* Random damage to a document: what we still accept, cJSON accepts as well. */
START_TEST(no_laxer_than_cjson) {
    static const char document[] =
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},\"b\":[true,false,null,-1.5e-3,\"\\u0041\\n\"]}";
    static const char alphabet[] = "{}[]\",:0123456789eE+-.\\untrfalse \n\x01\x80\xc3";
    struct tw_random random;
    tw_random_init(&random, tw_test_seed(), 3);
    size_t n_accepted = 0;
    for (int round = 0; round < 50000; round++) {
        char text[sizeof document];
        memcpy(text, document, sizeof document);
        const size_t size = sizeof document - 1 - tw_random_below(&random, 2);
        for (uint64_t n = tw_random_below(&random, 4); n; n--)
            text[tw_random_below(&random, size)] = alphabet[tw_random_below(&random, sizeof alphabet - 1)];
        if (!accepted((struct tw_view){text, size})) continue;
        n_accepted++;
        cJSON *parsed = cJSON_ParseWithLength(text, size);
        ck_assert_msg(parsed != NULL, "cJSON refuses %.*s", (int)size, text);
        cJSON_Delete(parsed);
    }
    ck_assert_uint_gt(n_accepted, 5000);
}
END_TEST

Suite *tw_suite_json_read(void) {
    Suite *suite = suite_create("json_read");
    TCase *tcase = tcase_create("reader");
    tcase_add_test(tcase, grammar);
    tcase_add_test(tcase, whole_numbers_are_exact);
    tcase_add_test(tcase, walking);
    tcase_add_test(tcase, depth_is_bounded);
    tcase_add_test(tcase, no_laxer_than_cjson);
    suite_add_tcase(suite, tcase);
    return suite;
}
