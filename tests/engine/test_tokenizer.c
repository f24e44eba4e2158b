/* Tokenizers: every golden of Hugging Face's `tokenizers`, from tokenizer.json and from GGUF alike. */
#include <check.h>
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <utf8proc.h>

#include "base/clock.h"
#include "base/random.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/normalize.h"
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

/* ---- merging
 * --------------------------------------------------------------------------------------------------------- */

/* A random vocabulary over a small alphabet, by merge rules or by scores (with ties). */
struct random_vocabulary {
    char text[400][24];
    struct tw_view tokens[400];
    uint8_t kinds[400];
    float scores[400];
    struct tw_merge_rule merges[400];
    struct tw_tokenizer_spec spec;
};

static void make_vocabulary(struct random_vocabulary *r, struct tw_random *random, bool by_scores) {
    size_t n = 0;
    r->spec = (struct tw_tokenizer_spec){.name = "random",
                                         .tokens = r->tokens,
                                         .kinds = r->kinds,
                                         .merges = r->merges,
                                         .scores = by_scores ? r->scores : NULL,
                                         .split = "none",
                                         .bos = TW_NO_TOKEN,
                                         .eos = TW_NO_TOKEN,
                                         .unknown = TW_NO_TOKEN};
    const size_t alphabet = 2 + tw_random_below(random, 5);
    for (; n < alphabet; n++) snprintf(r->text[n], sizeof r->text[n], "%c", (char)('a' + n));
    const size_t wanted = alphabet + tw_random_below(random, 390);
    for (int tries = 0; n < wanted && tries < 4000; tries++) {
        const char *left = r->text[tw_random_below(random, n)], *right = r->text[tw_random_below(random, n)];
        const size_t length = strlen(left);
        if (length + strlen(right) > 20) continue;
        memmove(r->text[n], left, length);
        memmove(r->text[n] + length, right, strlen(right) + 1);
        bool known = false;
        for (size_t i = 0; i < n; i++) known |= strcmp(r->text[i], r->text[n]) == 0;
        /* A rule of its own even where the result is known: several ways to one token. */
        if (r->spec.n_merges < 400)
            r->merges[r->spec.n_merges++] = (struct tw_merge_rule){tw_view_of(left), tw_view_of(right)};
        n += !known;
        if (known && r->spec.n_merges == 400) break;
    }
    for (size_t i = 0; i < n; i++) {
        r->tokens[i] = tw_view_of(r->text[i]);
        r->kinds[i] = TW_TOKEN_NORMAL;
        r->scores[i] = -(float)tw_random_below(random, 60);
    }
    for (size_t m = 0; m < r->spec.n_merges; m++) {
        const size_t other = tw_random_below(random, r->spec.n_merges);
        const struct tw_merge_rule swapped = r->merges[m];
        r->merges[m] = r->merges[other];
        r->merges[other] = swapped;
    }
    r->spec.n_tokens = n;
}

static void random_text(struct tw_text *text, struct tw_random *random, size_t size, size_t alphabet) {
    tw_text_clear(text);
    while (text->size < size) {
        /* Runs of one character, and mixtures. */
        const size_t run = tw_random_below(random, 4) ? 1 : 1 + tw_random_below(random, 40);
        const char c = (char)('a' + tw_random_below(random, alphabet + 1));
        for (size_t i = 0; i < run && text->size < size; i++) tw_text_append_char(text, c);
    }
}

/* The fast ways agree with the plain one: queues, and the tokenizer with its cuts and cache. */
START_TEST(fast_merging_equals_plain) {
    struct tw_random random;
    tw_random_init(&random, tw_test_seed(), 7);
    struct random_vocabulary *r = malloc(sizeof *r);
    struct tw_text text = {0};
    for (int round = 0; round < 60; round++) {
        make_vocabulary(r, &random, round % 2);
        struct tw_error err = {0};
        struct tw_vocabulary vocabulary;
        struct tw_tokenizer *tokenizer;
        ck_assert_msg(tw_vocabulary_init(&vocabulary, &r->spec, &err) == TW_OK, "%s", err.text);
        ck_assert_msg(tw_tokenizer_create(&tokenizer, &r->spec, &err) == TW_OK, "%s", err.text);
        struct tw_merger plain = {0}, queued = {0};
        const struct tw_symbol_rules rules = {.kind = TW_SYMBOLS_CHARACTERS, .unknown = TW_NO_TOKEN};
        for (int i = 0; i < 20; i++) {
            random_text(&text, &random, tw_random_below(&random, i < 15 ? 60 : 600), 6);
            const struct tw_view view = tw_text_view(&text);
            ck_assert(tw_merger_encode(&plain, &vocabulary, &rules, view, TW_MERGE_PLAIN));
            ck_assert(tw_merger_encode(&queued, &vocabulary, &rules, view, TW_MERGE_QUEUED));
            struct tw_tokens tokens = encode(tokenizer, view, TW_SPECIAL_LITERAL, false);
            ck_assert_uint_eq(plain.n, queued.n);
            ck_assert_msg(plain.n == tokens.n, "seed %llu, round %d: '%s'", (unsigned long long)tw_test_seed(), round,
                          tw_text_string(&text));
            for (size_t k = 0; k < plain.n; k++) {
                const struct tw_symbol *a = &plain.symbols[k], *b = &queued.symbols[k];
                ck_assert(a->id == b->id && a->begin == b->begin && a->end == b->end);
                ck_assert(a->id == tokens.ids[k] && a->begin == tokens.begin[k] && a->end == tokens.end[k]);
            }
            tw_tokens_release(&tokens);
        }
        tw_merger_release(&plain);
        tw_merger_release(&queued);
        tw_vocabulary_release(&vocabulary);
        tw_tokenizer_free(tokenizer);
    }
    tw_text_release(&text);
    free(r);
}
END_TEST

/* A megabyte without a place to split: quadratic merging would take hours. */
START_TEST(a_megabyte_word_is_no_matter) {
    struct tw_tokenizer *tokenizer = open_tokenizer(golden_path(goldens[_i].name, goldens[_i].file));
    struct tw_text text = {0};
    for (size_t i = 0; i < 1 << 20; i++) tw_text_append_char(&text, (char)(_i % 2 ? 'a' + i * i % 7 : 'a'));
    struct tw_tokens tokens = encode(tokenizer, tw_text_view(&text), TW_SPECIAL_LITERAL, false);
    assert_offsets(&tokens, text.size, "megabyte");
    ck_assert_uint_eq(tokens.end[tokens.n - 1], text.size);
    tw_tokens_release(&tokens);
    /* And of combining marks, for normalisation. */
    tw_text_clear(&text);
    for (size_t i = 0; i < 1 << 18; i++) tw_text_append_code_point(&text, i % 2 ? 0x0316 : 0x0301);
    tokens = encode(tokenizer, tw_text_view(&text), TW_SPECIAL_LITERAL, false);
    assert_offsets(&tokens, text.size, "marks");
    tw_tokens_release(&tokens);
    tw_text_release(&text);
    tw_tokenizer_free(tokenizer);
}
END_TEST

/* ---- normalisation
 * --------------------------------------------------------------------------------------------------- */

/* In stretches and with offsets, NFC is what utf8proc makes of the whole; the stretches cover the text in order. */
START_TEST(nfc_in_stretches_is_nfc) {
    static const uint32_t points[] = {'a',    'e',    0xe9,   0x301,  0x316,   0x327,   0x345,  0x1100, 0x1161, 0x11a8,
                                      0xac00, 0xd55c, 0x212b, 0x2126, 0xf900,  0xfb1d,  0x915,  0x93c,  0x9c7,  0x9be,
                                      0x3099, 0x304b, 0x344,  0xf73,  0x1d15e, 0x1d165, 0x4e2d, ' ',    0x1e69, 0x2adc};
    struct tw_random random;
    tw_random_init(&random, tw_test_seed(), 8);
    struct tw_normalized normalized = {0};
    struct tw_text text = {0};
    for (int round = 0; round < 4000; round++) {
        tw_text_clear(&text);
        for (size_t n = tw_random_below(&random, 30); n > 0; n--)
            tw_text_append_code_point(&text, points[tw_random_below(&random, sizeof points / sizeof *points)]);
        ck_assert(tw_normalize(&normalized, tw_text_view(&text), &(struct tw_normalize_rules){.nfc = true}, false));
        utf8proc_uint8_t *whole = utf8proc_NFC((const utf8proc_uint8_t *)tw_text_string(&text));
        ck_assert_ptr_nonnull(whole);
        ck_assert_msg(tw_view_equal(normalized.view, tw_view_of((const char *)whole)), "seed %llu, round %d: '%s'",
                      (unsigned long long)tw_test_seed(), round, tw_text_string(&text));
        free(whole);
        if (!normalized.changed) continue;
        ck_assert_uint_eq(normalized.n_sources, normalized.view.size);
        for (size_t i = 0; i < normalized.n_sources; i++) {
            ck_assert(normalized.sources[i].begin < normalized.sources[i].end &&
                      normalized.sources[i].end <= text.size);
            ck_assert(i == 0 || normalized.sources[i].begin >= normalized.sources[i - 1].begin);
        }
    }
    tw_text_release(&text);
    tw_normalized_release(&normalized);
}
END_TEST

/* ---- cases from the field
 * -------------------------------------------------------------------------------------------- */

/* A GGUF of metadata alone. */
struct gguf_maker {
    struct tw_text body;
    uint64_t n_keys;
};
static void put_bytes(struct gguf_maker *g, const void *data, size_t size) {
    tw_text_append(&g->body, (struct tw_view){data, size});
}
static void put_string(struct gguf_maker *g, const char *text) {
    const uint64_t size = strlen(text);
    put_bytes(g, &size, 8);
    put_bytes(g, text, size);
}
static void put_key(struct gguf_maker *g, const char *name, uint32_t type) {
    put_string(g, name);
    put_bytes(g, &type, 4);
    g->n_keys++;
}
static void put_text_key(struct gguf_maker *g, const char *name, const char *value) {
    put_key(g, name, 8);
    put_string(g, value);
}
static void put_array_key(struct gguf_maker *g, const char *name, uint32_t type, uint64_t n) {
    put_key(g, name, 9);
    put_bytes(g, &type, 4);
    put_bytes(g, &n, 8);
}
static void write_gguf(struct gguf_maker *g, const char *path) {
    struct tw_text file = {0};
    const uint32_t version = 3;
    const uint64_t n_tensors = 0;
    tw_text_append(&file, TW_VIEW("GGUF"));
    tw_text_append(&file, (struct tw_view){(const char *)&version, 4});
    tw_text_append(&file, (struct tw_view){(const char *)&n_tensors, 8});
    tw_text_append(&file, (struct tw_view){(const char *)&g->n_keys, 8});
    tw_text_append(&file, tw_text_view(&g->body));
    tw_test_write_file(path, file.data, file.size);
    tw_text_release(&file);
    tw_text_release(&g->body);
}

/* Bytes 33 to 126 as tokens, with the split rule `pre` (NULL: the key is left out). */
static void write_small_gguf(const char *path, const char *pre) {
    struct gguf_maker g = {0};
    put_text_key(&g, "general.architecture", "llama");
    put_text_key(&g, "tokenizer.ggml.model", "gpt2");
    if (pre) put_text_key(&g, "tokenizer.ggml.pre", pre);
    put_array_key(&g, "tokenizer.ggml.tokens", 8, 126 - 33 + 2);
    for (char c = 33; c <= 126; c++) put_string(&g, (char[]){c, 0});
    put_string(&g, "12");
    put_array_key(&g, "tokenizer.ggml.merges", 8, 1);
    put_string(&g, "1 2");
    write_gguf(&g, path);
}

/* C09 */
START_TEST(missing_split_rules_are_said) {
    const char *path = tw_test_path(tw_test_folder(), "vocab.gguf");
    for (int i = 0; i < 2; i++) {
        write_small_gguf(path, i ? "default" : NULL);
        struct tw_tokenizer *tokenizer = open_tokenizer(path);
        const struct tw_view warnings = tw_tokenizer_warnings(tokenizer);
        ck_assert_uint_gt(warnings.size, 0);
        ck_assert(memchr(warnings.data, '\n', warnings.size) == warnings.data + warnings.size - 1);
        ck_assert(memmem(warnings.data, warnings.size, "'gpt2'", 6) != NULL);
        ck_assert_str_eq(tw_tokenizer_split_name(tokenizer), "gpt2");
        tw_tokenizer_free(tokenizer);
        struct tw_test_run run = tw_test_run("tokenize %s --text \"I'll pay 12345 €\"", path);
        ck_assert_int_eq(run.exit_status, 0);
        ck_assert_ptr_nonnull(strstr(tw_text_string(&run.err), "warning: "));
        tw_test_run_release(&run);
    }
    write_small_gguf(path, "no-such-split");
    struct tw_test_run run = tw_test_run("tokenize %s --text \"I'll pay 12345 €\"", path);
    ck_assert_int_eq(run.exit_status, 2);
    ck_assert_ptr_nonnull(strstr(tw_text_string(&run.err), "no-such-split"));
    ck_assert_ptr_nonnull(strstr(tw_text_string(&run.err), "llama-bpe"));
    tw_test_run_release(&run);
}
END_TEST

/* C10 */
START_TEST(one_bos_and_the_needle_found) {
    static const char *const haystacks[] = {"<|begin_of_text|>Some hay. The needle is 42. More hay.",
                                            "Some hay. The needle is 42. More hay."};
    static const char needle[] = "The needle is 42.";
    struct tw_tokenizer *tokenizer = open_tokenizer(golden_path("llama3_style", "vocab.gguf"));
    for (int i = 0; i < 2; i++) {
        struct tw_tokens tokens = {0};
        struct tw_text warnings = {0}, decoded = {0};
        struct tw_error err = {0};
        const struct tw_encode_options options = {.special = TW_SPECIAL_PARSED, .add_bos = true};
        ck_assert_int_eq(tw_tokenizer_encode(&tokens, tokenizer, tw_view_of(haystacks[i]), &options, &warnings, &err),
                         TW_OK);
        size_t n_bos = 0, first, past;
        for (size_t k = 0; k < tokens.n; k++) n_bos += tokens.ids[k] == tw_tokenizer_bos(tokenizer);
        ck_assert_uint_eq(n_bos, 1);
        ck_assert_int_eq(tokens.ids[0], tw_tokenizer_bos(tokenizer));
        ck_assert((warnings.size > 0) == (i == 0));
        const size_t begin = (size_t)(strstr(haystacks[i], needle) - haystacks[i]);
        tw_tokens_span(&tokens, begin, begin + sizeof needle - 1, &first, &past);
        tw_tokenizer_decode(&decoded, tokenizer, tokens.ids + first, past - first, &(struct tw_decode_options){0});
        /* The space before it is part of its first token. */
        ck_assert_str_eq(tw_text_string(&decoded) + (decoded.data[0] == ' '), needle);
        tw_text_release(&decoded);
        tw_text_release(&warnings);
        tw_tokens_release(&tokens);
    }
    tw_tokenizer_free(tokenizer);
}
END_TEST

static tw_status open_json(struct tw_tokenizer **tokenizer, const char *json, struct tw_error *err) {
    return tw_tokenizer_from_json(
        tokenizer, &(struct tw_tokenizer_files){.name = "tokenizer.json", .tokenizer = tw_view_of(json)}, err);
}

/* C11 */
START_TEST(merges_as_lines_and_as_pairs) {
#define SMALL_VOCABULARY                                                                                               \
    "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, \" \": 3, \"ab\": 4, \" c\": 5, "       \
    "\"ab c\": 6}, \"merges\": "
    static const struct {
        const char *json, *text;
        int32_t ids[2];
        size_t n;
    } cases[] = {
        {SMALL_VOCABULARY "[\"a b\"]}}", "abab", {4, 4}, 2},
        {SMALL_VOCABULARY "[[\"a\", \"b\"]]}}", "abab", {4, 4}, 2},
        {SMALL_VOCABULARY "[[\"a\", \"b\"], [\" \", \"c\"], [\"ab\", \" c\"]]}}", "ab c", {6}, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tw_tokenizer *tokenizer;
        struct tw_error err = {0};
        ck_assert_msg(open_json(&tokenizer, cases[i].json, &err) == TW_OK, "%s", err.text);
        struct tw_tokens tokens = encode(tokenizer, tw_view_of(cases[i].text), TW_SPECIAL_LITERAL, false);
        ck_assert_uint_eq(tokens.n, cases[i].n);
        for (size_t k = 0; k < tokens.n; k++) ck_assert_int_eq(tokens.ids[k], cases[i].ids[k]);
        tw_tokens_release(&tokens);
        tw_tokenizer_free(tokenizer);
    }
}
END_TEST

/* C21 */
START_TEST(ids_without_a_token_are_seen) {
    struct tw_tokenizer *tokenizer;
    struct tw_error err = {0};
    ck_assert_msg(open_json(&tokenizer, SMALL_VOCABULARY "[]}, \"added_tokens\": [{\"id\": 9, \"content\": \"<x>\"}]}",
                            &err) == TW_OK,
                  "%s", err.text);
    struct tw_text text = {0};
    tw_tokenizer_decode(&text, tokenizer, (int32_t[]){0, 8, 93, 9}, 4, &(struct tw_decode_options){0});
    ck_assert_str_eq(tw_text_string(&text), "a[token 8][token 93]<x>");
    ck_assert_ptr_null(tw_tokenizer_bytes(tokenizer, 8).data);
    ck_assert_ptr_null(tw_tokenizer_bytes(tokenizer, -1).data);
    ck_assert_int_eq(tw_tokenizer_check_rows(tokenizer, 10, &err), TW_OK);
    ck_assert_int_eq(tw_tokenizer_check_rows(tokenizer, 9, &err), TW_E_INPUT);
    ck_assert_ptr_nonnull(strstr(err.text, "<x>"));
    ck_assert_ptr_nonnull(strstr(err.text, "9 rows"));
    tw_text_release(&text);
    tw_tokenizer_free(tokenizer);
}
END_TEST

/* Every id that has a token and is no marker is bytes that come back. */
START_TEST(every_id_round_trips) {
    struct tw_tokenizer *tokenizer = open_tokenizer(golden_path(goldens[_i].name, goldens[_i].file));
    struct tw_text all = {0};
    for (size_t id = 0; id < tw_tokenizer_size(tokenizer); id++) {
        const struct tw_view bytes = tw_tokenizer_bytes(tokenizer, (int32_t)id);
        if (!bytes.data) continue;
        tw_text_clear(&all);
        tw_tokenizer_append(&all, tokenizer, (int32_t)id);
        ck_assert(tw_view_equal(tw_text_view(&all), bytes));
        /* A marker's text is the marker. */
        if (!tw_tokenizer_is_special(tokenizer, (int32_t)id)) continue;
        struct tw_tokens tokens = encode(tokenizer, bytes, TW_SPECIAL_PARSED, false);
        ck_assert_uint_eq(tokens.n, 1);
        ck_assert_int_eq(tokens.ids[0], (int32_t)id);
        tw_tokens_release(&tokens);
    }
    tw_text_release(&all);
    tw_tokenizer_free(tokenizer);
}
END_TEST

/* C02 (d): 150,000 tokens and 280,000 merges. */
START_TEST(a_large_vocabulary_opens_at_once) {
    struct gguf_maker g = {0};
    put_text_key(&g, "general.architecture", "llama");
    put_text_key(&g, "tokenizer.ggml.model", "gpt2");
    put_text_key(&g, "tokenizer.ggml.pre", "llama-bpe");
    /* All single characters, all pairs, and triples, each of which merges in two ways. */
    enum { BASE = 94, N_PAIRS = BASE * BASE, N_TOKENS = 150000, N_MERGES = 280000 };
    const size_t n_triples = N_TOKENS - BASE - N_PAIRS;
    put_array_key(&g, "tokenizer.ggml.tokens", 8, N_TOKENS);
    for (size_t i = 0; i < BASE; i++) put_string(&g, (char[]){(char)(33 + i), 0});
    for (size_t i = 0; i < N_PAIRS; i++) put_string(&g, (char[]){(char)(33 + i % BASE), (char)(33 + i / BASE), 0});
    for (size_t i = 0; i < n_triples; i++)
        put_string(&g, (char[]){(char)(33 + i % BASE), (char)(33 + i / BASE % BASE), (char)(33 + i / N_PAIRS), 0});
    put_array_key(&g, "tokenizer.ggml.merges", 8, N_MERGES);
    for (size_t m = 0; m < N_MERGES; m++) {
        const bool pair = m < N_PAIRS, second = m >= N_PAIRS + n_triples;
        const size_t i = pair ? m : second ? m - N_PAIRS - n_triples : m - N_PAIRS;
        const char a = (char)(33 + i % BASE), b = (char)(33 + i / BASE % BASE), c = (char)(33 + i / N_PAIRS);
        put_string(&g, pair ? (char[]){a, ' ', b, 0} : second ? (char[]){a, ' ', b, c, 0} : (char[]){a, b, ' ', c, 0});
    }
    const char *path = tw_test_path(tw_test_folder(), "large.gguf");
    write_gguf(&g, path);
    const double start = tw_clock_seconds();
    struct tw_tokenizer *tokenizer = NULL;
    struct tw_error err = {0};
    const tw_status status = tw_tokenizer_open(&tokenizer, path, &err);
    ck_assert_msg(tw_clock_seconds() - start < 5, "opening took %g s", tw_clock_seconds() - start);
    ck_assert_msg(status == TW_OK, "%s", err.text);
    tw_tokenizer_free(tokenizer);
}
END_TEST

static const struct {
    const char *name, *part;
} malformed[] = {
    {"cut", "not JSON"},
    {"id_negative", "-1"},
    {"id_too_large", "id"},
    {"id_twice", "same id 5"},
    {"merge_three_parts", "merge 0"},
    {"merge_unknown_token", "not in the vocabulary"},
    {"model_unknown", "WordPiece"},
    {"nesting", "not JSON"},
    {"vocab_missing", "no vocabulary"},
};

START_TEST(broken_files_are_refused) {
    char relative[128];
    snprintf(relative, sizeof relative, "engine/malformed/tokenizer/%s", malformed[_i].name);
    struct tw_test_run run = tw_test_run("tokenize %s --text a", tw_test_golden(relative));
    ck_assert_int_eq(run.exit_status, 2);
    ck_assert_uint_eq(run.out.size, 0);
    const char *line = tw_text_string(&run.err);
    ck_assert_msg(strstr(line, malformed[_i].part) && strstr(line, malformed[_i].name), "%s", line);
    ck_assert_ptr_eq(strchr(line, '\n'), line + run.err.size - 1);
    tw_test_run_release(&run);
}
END_TEST

/* ---- the command
 * ----------------------------------------------------------------------------------------------------- */

START_TEST(the_command_goes_both_ways) {
    const char *model = golden_path("smollm2", "tokenizer.json");
    struct tw_test_run run =
        tw_test_shell("printf 'The tide.\\nIn <|im_end|>\\n' | $TW_PROGRAM tokenize %s --lines", model);
    ck_assert_int_eq(run.exit_status, 0);
    const char *second = strchr(tw_text_string(&run.out), '\n');
    ck_assert_ptr_nonnull(second);
    ck_assert(run.out.data[0] == '[' && second[1] == '[');
    tw_test_run_release(&run);
    run = tw_test_shell("printf ' x <|im_end|>  \\n\\n' | $TW_PROGRAM tokenize %s | $TW_PROGRAM tokenize %s --decode",
                        model, model);
    ck_assert_int_eq(run.exit_status, 0);
    ck_assert_str_eq(tw_text_string(&run.out), " x <|im_end|>  \n\n");
    tw_test_run_release(&run);
    static const char *const refused[] = {"--render", "--decode --bos", "--text a --file b", "--lines --chat c"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        run = tw_test_run("tokenize %s %s", model, refused[i]);
        ck_assert_int_eq(run.exit_status, 2);
        tw_test_run_release(&run);
    }
}
END_TEST

Suite *tw_suite_tokenizer(void);
Suite *tw_suite_tokenizer(void) {
    Suite *suite = suite_create("tokenizer");
    TCase *golden = tcase_create("golden");
    tcase_set_timeout(golden, 60);
    tcase_add_loop_test(golden, goldens_are_met, 0, N_GOLDENS);
    tcase_add_test(golden, smollm2_gguf_meets_its_golden);
    tcase_add_loop_test(golden, every_id_round_trips, 0, N_GOLDENS);
    suite_add_tcase(suite, golden);
    TCase *merging = tcase_create("merging");
    tcase_set_timeout(merging, 60);
    tcase_add_test(merging, fast_merging_equals_plain);
    tcase_add_loop_test(merging, a_megabyte_word_is_no_matter, 3, N_GOLDENS);
    tcase_add_test(merging, nfc_in_stretches_is_nfc);
    suite_add_tcase(suite, merging);
    TCase *cases = tcase_create("cases");
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, missing_split_rules_are_said);
    tcase_add_test(cases, one_bos_and_the_needle_found);
    tcase_add_test(cases, merges_as_lines_and_as_pairs);
    tcase_add_test(cases, ids_without_a_token_are_seen);
    tcase_add_test(cases, a_large_vocabulary_opens_at_once);
    tcase_add_loop_test(cases, broken_files_are_refused, 0, sizeof malformed / sizeof *malformed);
    tcase_add_test(cases, the_command_goes_both_ways);
    suite_add_tcase(suite, cases);
    return suite;
}
