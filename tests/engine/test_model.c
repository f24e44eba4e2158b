/* Opening models from files made here: what lies is refused by name, and sound files give the same numbers. */
#include <check.h>
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/model/model.h"
#include "tests/engine/compare_models.h"
#include "tests/engine/tiny_model.h"
#include "tests/support.h"

Suite *tw_suite_model(void);

/* ---- GGUF files made here ------------------------------------------------------------------------------------------
 */

static const char *write_text(const struct tw_text *file) {
    const char *path = tw_test_path(tw_test_folder(), "made.gguf");
    tw_test_write_file(path, file->data, file->size);
    return path;
}

static const char *write_made(struct tw_gguf_writer *writer) {
    return tw_gguf_write(tw_test_path(tw_test_folder(), "made.gguf"), writer);
}

/* No keys and one tensor that claims `dims`, padded to 96 bytes. */
static const char *one_tensor(uint32_t n_dims, const uint64_t *dims) {
    struct tw_gguf_writer writer = {0};
    struct tw_text file = {0};
    tw_gguf_put_tensor(&writer, "t.weight", 0, n_dims, dims, NULL, 0);
    tw_gguf_finish(&file, &writer);
    while (file.size < 96) tw_text_append_char(&file, 0);
    const char *path = write_text(&file);
    tw_text_release(&file);
    return path;
}

START_TEST(dimensions_that_are_zero_or_wrap) {
    tw_must_refuse_cheaply(one_tensor(2, (uint64_t[]){4, 0}), "dimension 1 of tensor 't.weight' is 0");
    tw_must_refuse_cheaply(one_tensor(2, (uint64_t[]){3, 6148914691236517206}), "overflows at dimension 1");
    tw_must_refuse_cheaply(one_tensor(2, (uint64_t[]){4398046511105, 4194304}), "overflows at dimension 1");
    tw_must_refuse_cheaply(one_tensor(5, (uint64_t[]){1, 1, 1, 1, 1}), "'t.weight' has 5 dimensions");
    tw_must_refuse_cheaply(one_tensor(0, NULL), "'t.weight' has 0 dimensions");
    tw_must_refuse_cheaply(one_tensor(1, (uint64_t[]){1ull << 62}), "overflows"); /* the bytes do, not the values */
}
END_TEST

static void put_at(struct tw_text *file, size_t at, uint64_t value) { memcpy(file->data + at, &value, 8); }

START_TEST(counts_beyond_the_file) {
    struct tw_gguf_writer writer = {0};
    struct tw_text file = {0};
    tw_gguf_put_string(&writer, "general.architecture", "llama");
    tw_gguf_finish(&file, &writer);
    put_at(&file, 8, 1ull << 62);
    tw_must_refuse_cheaply(write_text(&file), "claims 4611686018427387904 tensors");
    put_at(&file, 8, 0);
    put_at(&file, 24, 1ull << 60);
    tw_must_refuse_cheaply(write_text(&file), "name of metadata key 0");
    tw_text_release(&file);

    tw_gguf_put_strings(&writer, "tokenizer.ggml.tokens", NULL, 0);
    tw_gguf_finish(&file, &writer);
    put_at(&file, 24 + 8 + strlen("tokenizer.ggml.tokens") + 4 + 4, 1000000000);
    while (file.size < 200) tw_text_append_char(&file, 0);
    tw_must_refuse_cheaply(write_text(&file), "'tokenizer.ggml.tokens' claims 1000000000 elements");
    tw_text_release(&file);
}
END_TEST

/* 150,000 tokens and 280,000 merges. */
START_TEST(large_vocabulary_opens_fast) {
    enum { TOKENS = 150000, MERGES = 280000 };
    struct tw_gguf_writer writer;
    tw_tiny_write_gguf(&writer, &(struct tw_tiny){.n_vocab = TOKENS, .n_tokens = TOKENS, .no_output = true});
    char(*texts)[24] = calloc(MERGES, sizeof *texts);
    const char **merges = calloc(MERGES, sizeof *merges);
    for (int i = 0; i < MERGES; i++) {
        snprintf(texts[i], sizeof *texts, "<%d> <%d>", 95 + i % 1000, 95 + i % 140000);
        merges[i] = texts[i];
    }
    tw_gguf_put_strings(&writer, "tokenizer.ggml.more_merges", merges, MERGES);
    const char *path = write_made(&writer);
    free(texts);
    free(merges);
    const double before = tw_cpu_seconds();
    struct tw_model *model = tw_must_open(path);
    const double seconds = tw_cpu_seconds() - before;
    ck_assert_uint_eq(model->config.n_vocab, TOKENS);
    ck_assert_msg(seconds < (TW_SANITIZED ? 2 : 0.25), "opening took %g s", seconds);
    tw_model_free(model);
}
END_TEST

/* A hostile file of many names must not take quadratic time. */
START_TEST(many_keys_open_fast) {
    struct tw_gguf_writer writer;
    tw_tiny_write_gguf(&writer, &(struct tw_tiny){0});
    for (int i = 0; i < 100000; i++) {
        char name[32];
        snprintf(name, sizeof name, "k%d", i * 7919 % 100003);
        tw_gguf_put_bool(&writer, name, true);
    }
    const char *path = write_made(&writer);
    const double before = tw_cpu_seconds();
    tw_model_free(tw_must_open(path));
    const double seconds = tw_cpu_seconds() - before;
    ck_assert_msg(seconds < (TW_SANITIZED ? 4 : 0.5), "opening took %g s", seconds);
}
END_TEST

START_TEST(alignments) {
    const char *folder = tw_test_folder();
    struct tw_model *plain = tw_must_open(tw_tiny_gguf(folder, "32", &(struct tw_tiny){0}));
    static const size_t sound[] = {8, 16, 64, 4096};
    for (size_t i = 0; i < sizeof sound / sizeof *sound; i++) {
        struct tw_model *other = tw_must_open(tw_tiny_gguf(folder, "other", &(struct tw_tiny){.alignment = sound[i]}));
        tw_compare_models(plain, other, 0);
        tw_model_free(other);
    }
    tw_model_free(plain);
    /* 24 is a multiple of 8, as the written format asks, but no power of two, as ggml does: refused. */
    static const uint32_t bad[] = {0, 1, 4, 12, 24, 0xffffffff};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct tw_gguf_writer writer;
        tw_tiny_write_gguf(&writer, &(struct tw_tiny){0});
        tw_gguf_put_u32(&writer, "general.alignment", bad[i]);
        char says[64];
        snprintf(says, sizeof says, "general.alignment is %u", bad[i]);
        tw_must_refuse(write_made(&writer), says);
    }
}
END_TEST

START_TEST(duplicates_and_cut_data) {
    struct tw_gguf_writer writer;
    struct tw_text file = {0};
    tw_tiny_write_gguf(&writer, &(struct tw_tiny){0});
    float *again = calloc(32 * 32, sizeof *again);
    tw_gguf_put_tensor(&writer, "blk.0.attn_q.weight", 0, 2, (uint64_t[]){32, 32}, again, 32 * 32 * sizeof *again);
    free(again);
    tw_must_refuse(write_made(&writer), "two tensors called 'blk.0.attn_q.weight'");

    tw_tiny_write_gguf(&writer, &(struct tw_tiny){0});
    tw_gguf_finish(&file, &writer);
    file.size -= 8;
    tw_must_refuse(write_text(&file), "tensor 'output.weight' goes past the end of the file");
    tw_text_release(&file);
}
END_TEST

/* Cut anywhere, the file is refused, and never crashes the reader. */
START_TEST(cut_anywhere) {
    struct tw_gguf_writer writer;
    struct tw_text file = {0};
    tw_tiny_write_gguf(&writer, &(struct tw_tiny){.n_layers = 1});
    tw_gguf_finish(&file, &writer);
    const char *path = tw_test_path(tw_test_folder(), "cut.gguf");
    for (size_t size = 0; size < file.size; size += size < 5000 ? 7 : 1999) {
        tw_test_write_file(path, file.data, size);
        struct tw_model *model;
        struct tw_error err = {0};
        ck_assert_int_eq(tw_model_open(&model, path, &err), TW_E_INPUT);
        ck_assert_ptr_nonnull(strstr(err.text, "cut.gguf"));
    }
    tw_text_release(&file);
}
END_TEST

START_TEST(versions) {
    const char *folder = tw_test_folder();
    struct tw_model *v3 = tw_must_open(tw_tiny_gguf(folder, "v3", &(struct tw_tiny){.version = 3}));
    struct tw_model *v2 = tw_must_open(tw_tiny_gguf(folder, "v2", &(struct tw_tiny){.version = 2}));
    tw_compare_models(v3, v2, 0);
    tw_model_free(v3);
    tw_model_free(v2);
}
END_TEST

/* Traces record the model's name, so it has to be text. */
START_TEST(names_are_text) {
    struct tw_gguf_writer writer;
    struct tw_text file = {0};
    tw_tiny_write_gguf(&writer, &(struct tw_tiny){0});
    tw_gguf_finish(&file, &writer);
    char *name = memmem(file.data, file.size, "tiny", 4);
    ck_assert_ptr_nonnull(name);
    memcpy(name, "t\xff\0y", 4);
    struct tw_model *model = tw_must_open(write_text(&file));
    ck_assert_str_eq(model->config.name, "t\xef\xbf\xbd\xef\xbf\xbdy");
    tw_model_free(model);
    tw_text_release(&file);
}
END_TEST

START_TEST(what_is_no_model) {
    const char *folder = tw_test_folder();
    const char *path = tw_test_path(folder, "thing.gguf");
    tw_test_write_file(path, "GGUF\1\0\0\0\1\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0", 24);
    tw_must_refuse(path, "old version 1");
    tw_test_write_file(path, "GGUF\0\0\0\3\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\1", 24);
    tw_must_refuse(path, "big-endian");
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 98362432\n";
    tw_test_write_file(path, pointer, sizeof pointer - 1);
    tw_must_refuse(path, "Git LFS pointer");
    tw_test_write_file(path, "", 0);
    tw_must_refuse(path, "is empty");
    tw_must_refuse(folder, "is a directory without config.json");
    tw_must_refuse(tw_test_path(folder, "nothing"), "No such file");
    const char *weights = tw_test_path(folder, "weights.safetensors");
    tw_test_write_file(weights, "", 0);
    tw_must_refuse(weights, "name its folder");
    /* The pointer in place of a shard, and an empty configuration. */
    const char *hf = tw_tiny_hf(folder, "hf", &(struct tw_tiny){0});
    tw_test_write_file(tw_test_path(hf, "model.safetensors"), pointer, sizeof pointer - 1);
    tw_must_refuse(hf, "Git LFS pointer");
    tw_test_write_file(tw_test_path(hf, "config.json"), "", 0);
    tw_must_refuse(hf, "is empty");
    unlink(tw_test_path(hf, "model.safetensors"));
}
END_TEST

/* ---- safetensors made here ------------------------------------------------------------------------------------------
 */

/* A folder whose model.safetensors is the tiny one's place for `bytes`. */
static const char *lying_folder(void) { return tw_tiny_hf(tw_test_folder(), "lying", &(struct tw_tiny){0}); }

START_TEST(headers_that_lie) {
    const char *folder = lying_folder();
    const char *path = tw_test_path(folder, "model.safetensors");
    char data[4096] = {0};
    memset(data, 0xff, 8);
    tw_test_write_file(path, data, sizeof data);
    tw_must_refuse_cheaply(folder, "18446744073709551615 bytes");
    memcpy(data, &(uint64_t){128ull << 20}, 8);
    tw_test_write_file(path, data, sizeof data);
    tw_must_refuse_cheaply(folder, "134217728 bytes");
    static const struct {
        const char *header;
        size_t n_bytes;
        const char *says;
    } lies[] = {
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[64,0]}}", 64,
         "'t' begins at byte 64 and ends before"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[-8,56]}}", 64,
         "'t': expected a whole number from 0 on"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1000,1000],\"data_offsets\":[0,4]}}", 4, "'t' needs 4000000 bytes"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32]},\"u\":{\"dtype\":\"F32\",\"shape\":[8],"
         "\"data_offsets\":[16,48]}}",
         48, "'t' and 'u' overlap"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32]},\"u\":{\"dtype\":\"F32\",\"shape\":[8],"
         "\"data_offsets\":[40,72]}}",
         72, "a hole of 8 bytes before tensor 'u'"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32]},\"t\":{\"dtype\":\"F32\",\"shape\":[8],"
         "\"data_offsets\":[32,64]}}",
         64, "two tensors called 't'"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[8],\"shape\":[4],\"data_offsets\":[0,32]}}", 32,
         "'t': a member that is there twice"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[8.0],\"data_offsets\":[0,32]}}", 32, "'t': expected a whole number"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,1e2]}}", 32, "'t': expected a whole number"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0]}}", 32, "'t': expected two data_offsets"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,18446744073709551616]}}", 32, "beyond 64 bits"},
        {"{\"t\\u0041\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32]}}", 32,
         "a tensor name with an escape"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32]}} {}", 32, "something follows the value"},
        {"{}", 0, "has no tensors"},
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        tw_write_safetensors(path, lies[i].header, data, lies[i].n_bytes);
        tw_must_refuse(folder, lies[i].says);
    }
}
END_TEST

/* The list may be in any order: reversed here. */
START_TEST(reversed_list_is_sound) {
    const char *folder = tw_test_folder();
    struct tw_model *plain = tw_must_open(tw_tiny_hf(folder, "plain", &(struct tw_tiny){0}));
    const char *reversed = tw_tiny_hf(folder, "reversed", &(struct tw_tiny){0});
    const char *path = tw_test_path(reversed, "model.safetensors");
    size_t size;
    char *file = tw_test_read_file(path, &size);
    uint64_t length;
    memcpy(&length, file, 8);
    cJSON *header = cJSON_ParseWithLength(file + 8, length), *turned = cJSON_CreateObject();
    while (header->child) {
        cJSON *child = cJSON_DetachItemViaPointer(header, header->child);
        char *name = child->string;
        child->string = NULL;
        cJSON *before = turned->child;
        if (before) {
            child->string = name;
            cJSON_InsertItemInArray(turned, 0, child);
        } else {
            cJSON_AddItemToObject(turned, name, child);
            free(name);
        }
    }
    char *text = cJSON_PrintUnformatted(turned);
    tw_write_safetensors(path, text, file + 8 + length, size - 8 - length);
    struct tw_model *model = tw_must_open(reversed);
    tw_compare_models(plain, model, 0);
    tw_model_free(plain);
    tw_model_free(model);
    cJSON_Delete(header);
    cJSON_Delete(turned);
    free(text);
    free(file);
}
END_TEST

START_TEST(both_containers_are_equal) {
    const char *folder = tw_test_folder();
    struct tw_model *gguf = tw_must_open(tw_tiny_gguf(folder, "tiny", &(struct tw_tiny){0}));
    struct tw_model *hf = tw_must_open(tw_tiny_hf(folder, "tiny", &(struct tw_tiny){0}));
    tw_compare_models(gguf, hf, 0);
    ck_assert_uint_eq(gguf->n_end_tokens, 1);
    ck_assert_uint_eq(gguf->end_tokens[0], 95);
    ck_assert_uint_eq(hf->n_end_tokens, 1);
    ck_assert_uint_eq(hf->end_tokens[0], 95);
    ck_assert_str_eq(hf->config.name, "tiny");
    tw_model_free(gguf);
    tw_model_free(hf);
}
END_TEST

/* A tensor that two shards have is refused, whichever the index names. */
START_TEST(shards_share_no_tensor) {
    const char *folder = tw_tiny_hf(tw_test_folder(), "shards", &(struct tw_tiny){0});
    size_t size;
    const char *single = tw_test_path(folder, "model.safetensors");
    void *file = tw_test_read_file(single, &size);
    tw_test_write_file(tw_test_path(folder, "one.safetensors"), file, size);
    tw_test_write_file(tw_test_path(folder, "two.safetensors"), file, size);
    free(file);
    ck_assert_int_eq(unlink(single), 0);
    static const char one[] = "{\"weight_map\": {\"model.norm.weight\": \"one.safetensors\"}}";
    const char *index = tw_test_path(folder, "model.safetensors.index.json");
    tw_test_write_file(index, one, sizeof one - 1);
    tw_model_free(tw_must_open(folder));
    static const char both[] = "{\"weight_map\": {\"model.norm.weight\": \"one.safetensors\", "
                               "\"lm_head.weight\": \"two.safetensors\"}}";
    tw_test_write_file(index, both, sizeof both - 1);
    tw_must_refuse(folder, "is there twice");
    tw_test_write_file(index, "{}", 2);
    tw_must_refuse(folder, "has no weight_map");
    tw_test_write_file(index, "", 0);
    tw_must_refuse(folder, "is empty");
    ck_assert_int_eq(unlink(index), 0);
    tw_must_refuse(folder, "has neither model.safetensors nor model.safetensors.index.json");
}
END_TEST

/* ---- tied embeddings ------------------------------------------------------------------------------------------------
 */

START_TEST(tied_embeddings) {
    const char *folder = tw_test_folder();
    struct tw_model *model = tw_must_open(tw_tiny_gguf(folder, "present", &(struct tw_tiny){0}));
    ck_assert(!model->config.tied_embeddings && model->output.data != model->embedding.data);
    ck_assert_str_eq(model->output.name, "output.weight");
    const size_t untied_bytes = tw_model_weight_bytes(model);
    tw_model_free(model);
    model = tw_must_open(tw_tiny_gguf(folder, "absent", &(struct tw_tiny){.no_output = true}));
    ck_assert(model->config.tied_embeddings && model->output.data == model->embedding.data);
    ck_assert_uint_eq(tw_model_weight_bytes(model), untied_bytes - 96 * 32 * 4);
    tw_model_free(model);

    model = tw_must_open(tw_tiny_hf(folder, "true_absent", &(struct tw_tiny){.tied = true, .no_output = true}));
    ck_assert(model->config.tied_embeddings && model->output.data == model->embedding.data);
    ck_assert_uint_eq(model->warnings.size, 0);
    tw_model_free(model);
    model = tw_must_open(tw_tiny_hf(folder, "true_present", &(struct tw_tiny){.tied = true}));
    ck_assert(model->config.tied_embeddings && model->output.data == model->embedding.data);
    ck_assert_ptr_nonnull(strstr(tw_text_string(&model->warnings), "'lm_head.weight' too: the embedding is used"));
    tw_model_free(model);
    model = tw_must_open(tw_tiny_hf(folder, "false_present", &(struct tw_tiny){0}));
    ck_assert(!model->config.tied_embeddings && model->output.data != model->embedding.data);
    tw_model_free(model);
    tw_must_refuse(tw_tiny_hf(folder, "false_absent", &(struct tw_tiny){.no_output = true}),
                   "'lm_head.weight' is missing and tie_word_embeddings is false");
}
END_TEST

/* ---- split files
 * ------------------------------------------------------------------------------------------------------- */

static void copy_key(struct tw_gguf_writer *writer, const struct tw_gguf_key *key) {
    static const unsigned sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    struct tw_text *out = &writer->keys;
    tw_text_append(out, (struct tw_view){(const char *)&(uint64_t){key->name.size}, 8});
    tw_text_append(out, key->name);
    tw_text_append(out, (struct tw_view){(const char *)&(uint32_t){key->type}, 4});
    if (key->type == TW_GGUF_STRING) {
        tw_text_append(out, (struct tw_view){(const char *)&(uint64_t){key->string.size}, 8});
        tw_text_append(out, key->string);
    } else if (key->type == TW_GGUF_ARRAY) {
        tw_text_append(out, (struct tw_view){(const char *)&(uint32_t){key->array.type}, 4});
        tw_text_append(out, (struct tw_view){(const char *)&(uint64_t){key->array.n}, 8});
        tw_text_append(out, (struct tw_view){(const char *)key->array.data, key->array.size});
    } else {
        tw_text_append(out, (struct tw_view){(const char *)key->data, sizes[key->type]});
    }
    writer->n_keys++;
}

/* Cuts a model into three parts, the first with the metadata alone, and returns the folder. */
static const char *cut_in_three(const struct tw_gguf *gguf, uint32_t count, uint32_t total) {
    const char *folder = tw_test_folder();
    for (uint32_t part = 0; part < 3; part++) {
        struct tw_gguf_writer writer = {0};
        struct tw_text file = {0};
        for (size_t i = 0; part == 0 && i < gguf->n_keys; i++) copy_key(&writer, &gguf->keys[i]);
        tw_gguf_put_u32(&writer, "split.no", part);
        tw_gguf_put_u32(&writer, "split.count", count);
        tw_gguf_put_u32(&writer, "split.tensors.count", total);
        for (size_t i = 0; i < gguf->n_tensors; i++) {
            const struct tw_gguf_tensor *tensor = &gguf->tensors[i];
            if (part != 1 + tensor->number % 2) continue;
            char name[64];
            snprintf(name, sizeof name, "%.*s", (int)tensor->name.size, tensor->name.data);
            tw_gguf_put_tensor(&writer, name, tensor->type, tensor->n_dims, tensor->dims, tensor->data, tensor->size);
        }
        char name[64];
        snprintf(name, sizeof name, "model-%05u-of-00003.gguf", part + 1);
        tw_gguf_finish(&file, &writer);
        tw_test_write_file(tw_test_path(folder, name), file.data, file.size);
        tw_text_release(&file);
    }
    return folder;
}

START_TEST(split_files) {
    const char *whole = tw_test_golden("engine/models/mistral_gqa/mistral_gqa.f16.gguf");
    struct tw_model *plain = tw_must_open(whole);
    const struct tw_gguf *gguf = tw_model_gguf(plain);
    const uint32_t n = (uint32_t)gguf->n_tensors;
    const char *folder = cut_in_three(gguf, 3, n);
    const char *first = tw_test_path(folder, "model-00001-of-00003.gguf");
    struct tw_model *parts = tw_must_open(first);
    tw_compare_models(plain, parts, 0);
    ck_assert_uint_eq(tw_model_weight_bytes(plain), tw_model_weight_bytes(parts));
    tw_model_free(parts);

    tw_must_refuse(tw_test_path(folder, "model-00002-of-00003.gguf"), "missing");
    const char *renamed = tw_test_path(folder, "renamed.gguf");
    ck_assert_int_eq(rename(first, renamed), 0);
    tw_must_refuse(renamed, "does not end in '-00001-of-00003.gguf'");
    ck_assert_int_eq(rename(renamed, first), 0);
    /* Part 3 under the name of part 2, then no part 2 at all. */
    const char *second = tw_test_path(folder, "model-00002-of-00003.gguf");
    ck_assert_int_eq(rename(tw_test_path(folder, "model-00003-of-00003.gguf"), second), 0);
    struct tw_model *model;
    struct tw_error err = {0};
    ck_assert_int_eq(tw_model_open(&model, first, &err), TW_E_INPUT);
    ck_assert_ptr_nonnull(strstr(err.text, "says that it is part 2 of 3"));
    unlink(second);
    ck_assert_int_eq(tw_model_open(&model, first, &err), TW_E_INPUT);
    ck_assert_ptr_nonnull(strstr(err.text, "model-00002-of-00003.gguf': No such file"));

    tw_must_refuse(tw_test_path(cut_in_three(gguf, 99999, n), "model-00001-of-00003.gguf"), "-of-99999.gguf'");
    tw_must_refuse(tw_test_path(cut_in_three(gguf, 100000, n), "model-00001-of-00003.gguf"), "split.count is 100000");
    tw_must_refuse(tw_test_path(cut_in_three(gguf, 3, n + 1), "model-00001-of-00003.gguf"), "expected 31");
    tw_model_free(plain);
}
END_TEST

/* ---- the real model ------------------------------------------------------------------------------------------------
 */

START_TEST(real_model_opens_light) {
    const char *source = getenv("TW_SOURCE");
    const char *path = tw_test_path(source ? source : ".", "data/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    if (access(path, R_OK) != 0) {
        tw_test_skip("model", "data/models has no SmolLM2: run make model");
        return;
    }
    const size_t before = tw_test_private_bytes();
    const double start = tw_cpu_seconds();
    struct tw_model *model = tw_must_open(path);
    const double seconds = tw_cpu_seconds() - start;
    const size_t grown = tw_test_private_bytes() - before;
    printf("opening SmolLM2: %.2f ms of processor time, %.2f MB of private memory\n", 1e3 * seconds,
           (double)grown / 1e6);
    ck_assert_uint_eq(model->config.n_layers, 30);
    ck_assert_uint_eq(tw_gguf_find(tw_model_gguf(model), "tokenizer.ggml.tokens")->array.n, 49152);
    ck_assert_msg(TW_SANITIZED || grown < 10000000, "%zu bytes of private memory", grown);
    tw_model_free(model);
}
END_TEST

Suite *tw_suite_model(void) {
    Suite *suite = suite_create("model");
    TCase *gguf = tcase_create("gguf");
    tcase_set_timeout(gguf, 30);
    tcase_add_test(gguf, dimensions_that_are_zero_or_wrap);
    tcase_add_test(gguf, counts_beyond_the_file);
    tcase_add_test(gguf, large_vocabulary_opens_fast);
    tcase_add_test(gguf, many_keys_open_fast);
    tcase_add_test(gguf, alignments);
    tcase_add_test(gguf, duplicates_and_cut_data);
    tcase_add_test(gguf, cut_anywhere);
    tcase_add_test(gguf, versions);
    tcase_add_test(gguf, names_are_text);
    tcase_add_test(gguf, what_is_no_model);
    tcase_add_test(gguf, split_files);
    suite_add_tcase(suite, gguf);
    TCase *safetensors = tcase_create("safetensors");
    tcase_set_timeout(safetensors, 30);
    tcase_add_test(safetensors, headers_that_lie);
    tcase_add_test(safetensors, reversed_list_is_sound);
    tcase_add_test(safetensors, both_containers_are_equal);
    tcase_add_test(safetensors, shards_share_no_tensor);
    tcase_add_test(safetensors, tied_embeddings);
    suite_add_tcase(suite, safetensors);
    TCase *real = tcase_create("real");
    tcase_set_timeout(real, 30);
    tcase_add_test(real, real_model_opens_light);
    suite_add_tcase(suite, real);
    return suite;
}
