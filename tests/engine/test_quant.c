/* Every quantised type against the values that ggml gives, bit for bit. */
#include <check.h>
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/gguf.h"
#include "engine/model/quant.h"
#include "tests/support.h"

Suite *tw_suite_quant(void);

static const struct {
    enum tw_type type;
    const char *name;
} supported[] = {
    {TW_TYPE_F32, "F32"},   {TW_TYPE_F16, "F16"},       {TW_TYPE_BF16, "BF16"},     {TW_TYPE_Q4_0, "Q4_0"},
    {TW_TYPE_Q4_1, "Q4_1"}, {TW_TYPE_Q5_0, "Q5_0"},     {TW_TYPE_Q5_1, "Q5_1"},     {TW_TYPE_Q8_0, "Q8_0"},
    {TW_TYPE_Q2_K, "Q2_K"}, {TW_TYPE_Q3_K, "Q3_K"},     {TW_TYPE_Q4_K, "Q4_K"},     {TW_TYPE_Q5_K, "Q5_K"},
    {TW_TYPE_Q6_K, "Q6_K"}, {TW_TYPE_IQ4_NL, "IQ4_NL"}, {TW_TYPE_IQ4_XS, "IQ4_XS"},
};
enum { N_SUPPORTED = sizeof supported / sizeof *supported };

/* A NaN equals a NaN: ggml's conversions of half precision differ in the payload. */
START_TEST(golden_bits) {
    char name[64];
    snprintf(name, sizeof name, "engine/quant/%s.raw.bin", supported[_i].name);
    size_t raw_size, expected_size;
    uint8_t *raw = tw_test_read_file(tw_test_golden(name), &raw_size);
    snprintf(name, sizeof name, "engine/quant/%s.f32.bin", supported[_i].name);
    float *expected = tw_test_read_file(tw_test_golden(name), &expected_size);
    const size_t n = expected_size / sizeof(float);

    const struct tw_type_traits *traits = tw_type_traits(supported[_i].type);
    ck_assert_ptr_nonnull(traits);
    ck_assert_str_eq(traits->name, supported[_i].name);
    ck_assert_uint_eq(traits->type, supported[_i].type);
    ck_assert_uint_eq(tw_type_row_bytes(traits, n), raw_size);
    float *values = malloc(expected_size);
    traits->dequantise(values, raw, n);
    for (size_t i = 0; i < n; i++) {
        const int same = memcmp(&values[i], &expected[i], sizeof *values) == 0 ||
                         (values[i] != values[i] && expected[i] != expected[i]);
        ck_assert_msg(same, "%s: value %zu is %a, expected %a", traits->name, i, values[i], expected[i]);
    }
    free(raw);
    free(expected);
    free(values);
}
END_TEST

/* The list of goldens knows every type of GGUF: sizes and names agree, and those that are not supported are not there.
 */
START_TEST(names_and_sizes) {
    char *text = tw_test_read_file(tw_test_golden("engine/quant/quant.json"), &(size_t){0});
    cJSON *list = cJSON_Parse(text), *row;
    int n_supported = 0;
    cJSON_ArrayForEach(row, list) {
        const unsigned id = (unsigned)cJSON_GetNumberValue(cJSON_GetObjectItem(row, "type_id"));
        char buffer[32];
        ck_assert_str_eq(tw_gguf_type_name(buffer, id), cJSON_GetStringValue(cJSON_GetObjectItem(row, "type")));
        const struct tw_type_traits *traits = tw_type_traits((enum tw_type)id);
        if (!traits) continue;
        n_supported++;
        ck_assert_uint_eq(traits->block_values,
                          (size_t)cJSON_GetNumberValue(cJSON_GetObjectItem(row, "values_per_block")));
        ck_assert_uint_eq(traits->block_bytes,
                          (size_t)cJSON_GetNumberValue(cJSON_GetObjectItem(row, "bytes_per_block")));
        ck_assert_ptr_nonnull(strstr(tw_type_list(), traits->name));
    }
    ck_assert_int_eq(n_supported, N_SUPPORTED);
    cJSON_Delete(list);
    free(text);
    ck_assert_ptr_null(tw_type_traits((enum tw_type)4));
    ck_assert_ptr_null(tw_type_traits((enum tw_type)250));
    char buffer[32];
    ck_assert_str_eq(tw_gguf_type_name(buffer, 250), "250");
}
END_TEST

Suite *tw_suite_quant(void) {
    Suite *suite = suite_create("quant");
    TCase *tcase = tcase_create("types");
    tcase_add_loop_test(tcase, golden_bits, 0, N_SUPPORTED);
    tcase_add_test(tcase, names_and_sizes);
    suite_add_tcase(suite, tcase);
    return suite;
}
