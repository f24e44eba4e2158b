/* Tokenizers: every golden of Hugging Face's `tokenizers`, from tokenizer.json and from GGUF alike. */
#include <check.h>
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/tokenizer/tokenizer.h"
#include "tests/support.h"

#define MODEL "data/models/SmolLM2-135M-Instruct.Q4_1.gguf"

/* ---- goldens
 * --------------------------------------------------------------------------------------------------------- */

/* cJSON ends texts at a NUL, so \u0000 is read as this noncharacter, which no golden holds, and put back. */
#define NUL_STAND_IN "\xef\xb7\x90" /* U+FDD0 */

static cJSON *read_json(const char *path) {
    size_t size;
    char *data = tw_test_read_file(path, &size);
    for (char *at = data; (at = strstr(at, "\\u0000")); at += 6) memcpy(at, "\\ufdd0", 6);
    cJSON *json = cJSON_ParseWithLength(data, size);
    free(data);
    ck_assert_msg(json != NULL, "%s is not JSON", path);
    return json;
}

static struct tw_text text_of(const cJSON *item) {
    ck_assert(cJSON_IsString(item));
    struct tw_text text = {0};
    for (const char *at = item->valuestring; *at;) {
        if (strncmp(at, NUL_STAND_IN, 3) == 0) {
            tw_text_append_char(&text, 0);
            at += 3;
        } else {
            tw_text_append_char(&text, *at++);
        }
    }
    return text;
}

static struct tw_text bytes_of(const cJSON *hex) {
    struct tw_text bytes = {0};
    for (const char *at = hex->valuestring; *at; at += 2) {
        unsigned value;
        ck_assert_int_eq(sscanf(at, "%2x", &value), 1);
        tw_text_append_char(&bytes, (char)value);
    }
    return bytes;
}

static const cJSON *get(const cJSON *object, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    ck_assert_msg(item != NULL, "no '%s'", name);
    return item;
}

static void assert_ids(const struct tw_tokens *tokens, const cJSON *expected, const char *what, const char *name) {
    size_t i = 0;
    const cJSON *id;
    cJSON_ArrayForEach(id, expected) {
        ck_assert_msg(i < tokens->n, "%s '%s': %zu tokens, expected %d", what, name, tokens->n,
                      cJSON_GetArraySize(expected));
        ck_assert_msg(tokens->ids[i] == id->valueint, "%s '%s': token %zu is %d, expected %d", what, name, i,
                      tokens->ids[i], id->valueint);
        i++;
    }
    ck_assert_msg(i == tokens->n, "%s '%s': %zu tokens, expected %zu", what, name, tokens->n, i);
}

static struct tw_tokens encode(struct tw_tokenizer *tokenizer, struct tw_view text, enum tw_special special,
                               bool add_bos) {
    struct tw_tokens tokens = {0};
    struct tw_error err = {0};
    const struct tw_encode_options options = {.special = special, .add_bos = add_bos};
    ck_assert_msg(tw_tokenizer_encode(&tokens, tokenizer, text, &options, NULL, &err) == TW_OK, "%s", err.text);
    return tokens;
}

/* Offsets ascend, and lie inside the text. */
static void assert_offsets(const struct tw_tokens *tokens, size_t text_size, const char *name) {
    for (size_t i = 0; i < tokens->n; i++) {
        ck_assert_msg(tokens->begin[i] <= tokens->end[i] && tokens->end[i] <= text_size, "'%s': token %zu is [%u, %u)",
                      name, i, tokens->begin[i], tokens->end[i]);
        ck_assert_msg(i == 0 || tokens->begin[i] >= tokens->begin[i - 1], "'%s': token %zu goes back", name, i);
    }
}

static void assert_decoded(struct tw_tokenizer *tokenizer, const cJSON *ids, bool skip, const cJSON *expected,
                           const char *name) {
    struct tw_text decoded = {0}, repaired = {0}, right = text_of(expected);
    const size_t n = (size_t)cJSON_GetArraySize(ids);
    int32_t *list = malloc((n + 1) * sizeof *list);
    size_t i = 0;
    const cJSON *id;
    cJSON_ArrayForEach(id, ids) list[i++] = id->valueint;
    tw_tokenizer_decode(&decoded, tokenizer, list, n, &(struct tw_decode_options){.skip_special = skip});
    tw_text_append_utf8_repaired(&repaired, tw_text_view(&decoded), true);
    ck_assert_msg(tw_view_equal(tw_text_view(&repaired), tw_text_view(&right)), "decoded '%s': '%s', expected '%s'",
                  name, tw_text_string(&repaired), tw_text_string(&right));
    free(list);
    tw_text_release(&decoded);
    tw_text_release(&repaired);
    tw_text_release(&right);
}

static void check_golden(struct tw_tokenizer *tokenizer, const char *encode_path) {
    cJSON *golden = read_json(encode_path);
    ck_assert_uint_eq(tw_tokenizer_size(tokenizer), (size_t)get(golden, "vocabulary")->valueint);
    const cJSON *first = get(golden, "added_first_when_asked_for_special_tokens");
    ck_assert(tw_tokenizer_adds_bos(tokenizer) == cJSON_IsNumber(first));
    if (cJSON_IsNumber(first)) ck_assert_int_eq(tw_tokenizer_bos(tokenizer), first->valueint);

    const cJSON *item;
    cJSON_ArrayForEach(item, get(golden, "cases")) {
        const char *name = get(item, "name")->valuestring;
        struct tw_text text = text_of(get(item, "text"));
        const char *fields[] = {"ids_plain", "ids"};
        for (int special = TW_SPECIAL_LITERAL; special <= TW_SPECIAL_PARSED; special++) {
            struct tw_tokens tokens = encode(tokenizer, tw_text_view(&text), (enum tw_special)special, false);
            assert_ids(&tokens, get(item, fields[special]), fields[special], name);
            assert_offsets(&tokens, text.size, name);
            tw_tokens_release(&tokens);
        }
        assert_decoded(tokenizer, get(item, "ids"), false, get(item, "decoded"), name);
        assert_decoded(tokenizer, get(item, "ids"), true, get(item, "decoded_skip"), name);
        tw_text_release(&text);
    }
    cJSON_ArrayForEach(item, get(golden, "bytes")) {
        struct tw_text bytes = bytes_of(get(item, "hex"));
        struct tw_tokens tokens = encode(tokenizer, tw_text_view(&bytes), TW_SPECIAL_LITERAL, false);
        assert_ids(&tokens, get(item, "ids_replace"), "bytes", get(item, "name")->valuestring);
        assert_offsets(&tokens, bytes.size, get(item, "name")->valuestring);
        tw_tokens_release(&tokens);
        tw_text_release(&bytes);
    }
    cJSON_ArrayForEach(item, get(golden, "single")) {
        const int32_t id = cJSON_GetArrayItem(item, 0)->valueint;
        struct tw_text expected = bytes_of(cJSON_GetArrayItem(item, 1));
        ck_assert_msg(tw_view_equal(tw_tokenizer_bytes(tokenizer, id), tw_text_view(&expected)), "bytes of token %d",
                      id);
        tw_text_release(&expected);
    }
    cJSON_Delete(golden);
}

static struct tw_tokenizer *open_tokenizer(const char *path) {
    struct tw_tokenizer *tokenizer;
    struct tw_error err = {0};
    ck_assert_msg(tw_tokenizer_open(&tokenizer, path, &err) == TW_OK, "%s", err.text);
    return tokenizer;
}

static const struct {
    const char *name, *file;
    const char *split;
} goldens[] = {
    {"smollm2", "tokenizer.json", "smollm"},     {"llama3_style", "tokenizer.json", "llama-bpe"},
    {"llama3_style", "vocab.gguf", "llama-bpe"}, {"qwen2_style", "tokenizer.json", "qwen2"},
    {"qwen2_style", "vocab.gguf", "qwen2"},      {"spm_style", "tokenizer.json", "none"},
    {"spm_style", "vocab.gguf", "none"},
};
enum { N_GOLDENS = sizeof goldens / sizeof *goldens };

static const char *golden_path(const char *name, const char *file) {
    char relative[256];
    snprintf(relative, sizeof relative, "engine/tokenizer/%s/%s", name, file);
    return tw_test_golden(relative);
}

START_TEST(goldens_are_met) {
    struct tw_tokenizer *tokenizer = open_tokenizer(golden_path(goldens[_i].name, goldens[_i].file));
    ck_assert_str_eq(tw_tokenizer_split_name(tokenizer), goldens[_i].split);
    ck_assert_uint_eq(tw_tokenizer_warnings(tokenizer).size, 0);
    check_golden(tokenizer, golden_path(goldens[_i].name, "encode.json"));
    tw_tokenizer_free(tokenizer);
}
END_TEST

static const char *model_path(void) {
    const char *source = getenv("TW_SOURCE");
    return tw_test_path(source ? source : ".", MODEL);
}

START_TEST(smollm2_gguf_meets_its_golden) {
    if (access(model_path(), R_OK) != 0 && tw_test_skip("model", "no " MODEL)) return;
    struct tw_tokenizer *tokenizer = open_tokenizer(model_path());
    ck_assert_str_eq(tw_tokenizer_split_name(tokenizer), "smollm");
    check_golden(tokenizer, golden_path("smollm2", "encode.json"));
    tw_tokenizer_free(tokenizer);
}
END_TEST

Suite *tw_suite_tokenizer(void);
Suite *tw_suite_tokenizer(void) {
    Suite *suite = suite_create("tokenizer");
    TCase *golden = tcase_create("golden");
    tcase_set_timeout(golden, 60);
    tcase_add_loop_test(golden, goldens_are_met, 0, N_GOLDENS);
    tcase_add_test(golden, smollm2_gguf_meets_its_golden);
    suite_add_tcase(suite, golden);
    return suite;
}
