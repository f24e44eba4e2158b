#include "tests/golden_json.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support.h"

static bool ends_with(const char *text, const char *ending) {
    const size_t n = strlen(text), m = strlen(ending);
    return n >= m && strcmp(text + n - m, ending) == 0;
}

void tw_test_json_equal(const cJSON *got, const cJSON *golden, const char *where) {
    ck_assert_msg(got != NULL, "%s is missing", where);
    char place[512];
    if (cJSON_IsObject(golden)) {
        ck_assert_msg(cJSON_IsObject(got), "%s is no object", where);
        const cJSON *member;
        cJSON_ArrayForEach(member, golden) {
            snprintf(place, sizeof place, "%s/%s", where, member->string);
            tw_test_json_equal(cJSON_GetObjectItemCaseSensitive(got, member->string), member, place);
        }
    } else if (cJSON_IsArray(golden)) {
        ck_assert_msg(cJSON_IsArray(got), "%s is no list", where);
        ck_assert_msg(cJSON_GetArraySize(got) == cJSON_GetArraySize(golden), "%s has %d elements, expected %d", where,
                      cJSON_GetArraySize(got), cJSON_GetArraySize(golden));
        const cJSON *g = got->child;
        int i = 0;
        for (const cJSON *e = golden->child; e; e = e->next, g = g->next, i++) {
            snprintf(place, sizeof place, "%s/%d", where, i);
            tw_test_json_equal(g, e, place);
        }
    } else if (cJSON_IsNumber(golden)) {
        ck_assert_msg(cJSON_IsNumber(got), "%s is no number, expected %.17g", where, golden->valuedouble);
        const double expected = golden->valuedouble, value = got->valuedouble;
        const double tolerance = ends_with(where, "z_bar") ? 1e-7 : 1e-9;
        const bool equal = expected == floor(expected) && value == floor(value)
                               ? value == expected
                               : fabs(value - expected) <= tolerance * fmax(1, fabs(expected));
        ck_assert_msg(equal, "%s is %.17g, expected %.17g", where, value, expected);
    } else if (cJSON_IsString(golden)) {
        ck_assert_msg(cJSON_IsString(got) && strcmp(got->valuestring, golden->valuestring) == 0, "%s is not '%s'",
                      where, golden->valuestring);
    } else {
        ck_assert_msg(got->type == golden->type, "%s is of another type", where);
    }
}

void tw_test_json_members(const cJSON *got, const cJSON *golden, const char *const *members, const char *where) {
    for (; *members; members++) {
        const cJSON *const expected = cJSON_GetObjectItemCaseSensitive(golden, *members);
        const cJSON *const value = cJSON_GetObjectItemCaseSensitive(got, *members);
        char place[256];
        snprintf(place, sizeof place, "%s/%s", where, *members);
        if (expected)
            tw_test_json_equal(value, expected, place);
        else
            ck_assert_msg(!value, "%s is there though it is not defined", place);
    }
}

cJSON *tw_test_json_text(const char *text) {
    cJSON *const json = cJSON_Parse(text);
    ck_assert_msg(json != NULL, "no sound JSON: %.200s", text);
    return json;
}

cJSON *tw_test_json_file(const char *path) {
    char *const text = tw_test_read_file(path, NULL);
    cJSON *const json = tw_test_json_text(text);
    free(text);
    return json;
}
