/* Every file of the malformed set is refused in its own words, quickly and without memory; the valid controls load. */
#include <check.h>
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/engine/compare_models.h"
#include "tests/support.h"

Suite *tw_suite_malformed(void);

/* Where it lies, and what the sentence must say. */
static const struct {
    const char *path, *says[2];
} malformed[] = {
    {"gguf/empty.gguf", {"is empty"}},
    {"gguf/wrong_magic.gguf", {"does not begin with 'GGUF'"}},
    {"gguf/version_1.gguf", {"old version 1"}},
    {"gguf/version_99.gguf", {"version 99"}},
    {"gguf/big_endian.gguf", {"big-endian"}},
    {"gguf/cut_header.gguf", {"ends inside its header"}},
    {"gguf/cut_key.gguf", {"claims 20 metadata keys", "256 bytes"}},
    {"gguf/cut_tokens.gguf", {"'tokenizer.ggml.tokens'", "claims 268 elements"}},
    {"gguf/cut_infos.gguf", {"tensor 3", "past the end"}},
    {"gguf/cut_data.gguf", {"'blk.0.ffn_down.weight'", "past the end"}},
    {"gguf/tensor_count_huge.gguf", {"claims 4611686018427387904 tensors"}},
    {"gguf/kv_count_huge.gguf", {"claims 1152921504606846976 metadata keys"}},
    {"gguf/key_length_past_end.gguf", {"name of metadata key 3", "past the end"}},
    {"gguf/string_length_max.gguf", {"'x.y'", "past the end"}},
    {"gguf/array_length_overflow.gguf", {"'x.y'", "claims 2305843009213693953 elements"}},
    {"gguf/value_type_unknown.gguf", {"'x.y'", "type 99"}},
    {"gguf/array_type_unknown.gguf", {"'x.y'", "type 77"}},
    {"gguf/dims_9.gguf", {"'blk.0.attn_q.weight'", "9 dimensions"}},
    {"gguf/dims_overflow.gguf", {"'blk.0.attn_q.weight'", "overflows at dimension 1"}},
    {"gguf/dim_negative.gguf", {"dimension 1 of tensor 'blk.0.attn_q.weight'", "-32"}},
    {"gguf/offset_unaligned.gguf", {"offset 7 of tensor 'blk.0.ffn_up.weight'", "alignment 32"}},
    {"gguf/offset_past_end.gguf", {"'blk.0.ffn_up.weight'", "past the end"}},
    {"gguf/offset_wraps.gguf", {"'blk.0.ffn_up.weight'", "18446744073709551584"}},
    {"gguf/tensors_overlap.gguf", {"'blk.0.ffn_up.weight' and 'token_embd.weight'", "overlap"}},
    {"gguf/tensor_twice.gguf", {"two tensors called 'blk.0.ffn_up.weight'"}},
    {"gguf/key_twice.gguf", {"'llama.block_count'", "twice"}},
    {"gguf/type_unknown.gguf", {"'blk.0.attn_q.weight'", "type 250"}},
    {"gguf/type_removed.gguf", {"'blk.0.attn_q.weight'", "Q4_2"}},
    {"gguf/row_not_whole_blocks.gguf", {"'blk.0.ffn_up.weight' have 48 values", "Q8_0"}},
    {"gguf/alignment_zero.gguf", {"general.alignment is 0"}},
    {"gguf/alignment_odd.gguf", {"general.alignment is 3"}},
    {"gguf/arch_unknown.gguf", {"'gpt99'", "known are llama, mistral, qwen2, qwen3, gemma3"}},
    {"gguf/arch_missing.gguf", {"'general.architecture' is missing"}},
    {"gguf/key_missing.gguf", {"'llama.block_count' is missing"}},
    {"gguf/key_wrong_type.gguf", {"'llama.block_count' is of type string"}},
    {"gguf/tensor_missing.gguf", {"'blk.0.ffn_up.weight' is missing"}},
    {"gguf/shape_mismatch.gguf", {"'blk.0.attn_k.weight' has 24 rows of 32", "expected 16 of 32"}},
    {"gguf/heads_zero.gguf", {"llama.attention.head_count is 0"}},
    {"gguf/heads_not_divisible.gguf", {"attention.head_count is 2", "no multiple of attention.head_count_kv 3"}},
    {"gguf/layers_huge.gguf", {"llama.block_count is 4000000000"}},
    {"gguf/vocabulary_mismatch.gguf", {"278 tokens", "268 rows: id 268"}},
    {"gguf/token_types_short.gguf", {"tokenizer.ggml.token_type has 9 entries for 268 tokens"}},
    {"gguf/rope_dimension_too_large.gguf", {"llama.rope.dimension_count is 64", "head size 16"}},
    {"safetensors/empty", {"model.safetensors' is empty"}},
    {"safetensors/header_length_huge", {"9223372036854775808 bytes", "only 36944"}},
    {"safetensors/header_past_end", {"36945 bytes", "only 36944"}},
    {"safetensors/header_not_json", {"expected an object at byte 6"}},
    {"safetensors/header_bad_utf8", {"invalid UTF-8"}},
    {"safetensors/header_array", {"expected an object at byte 0"}},
    {"safetensors/dtype_unknown", {"'model.layers.0.self_attn.q_proj.weight'", "'Q7'"}},
    {"safetensors/dtype_integer", {"'model.layers.0.self_attn.q_proj.weight'", "I16"}},
    {"safetensors/offsets_reversed", {"'model.layers.0.self_attn.q_proj.weight'", "ends before"}},
    {"safetensors/offsets_past_end", {"'model.layers.0.self_attn.q_proj.weight'", "ends at byte 1099511627776"}},
    {"safetensors/offsets_negative", {"'model.layers.0.self_attn.q_proj.weight'", "expected a whole number from 0 on"}},
    {"safetensors/offsets_missing", {"'model.layers.0.self_attn.q_proj.weight'", "no data_offsets"}},
    {"safetensors/overlap", {"'model.layers.0.self_attn.o_proj.weight' and", "overlap"}},
    {"safetensors/size_mismatch", {"'model.layers.0.self_attn.q_proj.weight' needs 2112 bytes", "give 2048"}},
    {"safetensors/shape_negative", {"'model.layers.0.self_attn.q_proj.weight'", "expected a whole number from 0 on"}},
    {"safetensors/shape_overflow", {"'model.layers.0.self_attn.q_proj.weight'", "overflows at dimension 1"}},
    {"safetensors/name_twice", {"two tensors called 'model.layers.0.self_attn.q_proj.weight'"}},
    {"safetensors/cut_data", {"'model.norm.weight'", "is the file complete"}},
    {"safetensors/trailing_bytes", {"64 bytes follow the last tensor"}},
    {"safetensors/tensor_missing", {"'model.layers.0.mlp.up_proj.weight' is missing"}},
    {"safetensors/shape_differs_from_config", {"'model.layers.0.self_attn.k_proj.weight' has 24 rows", "expected 16"}},
    {"safetensors/index_shard_missing", {"'model-00002-of-00002.safetensors', which is not there"}},
    {"safetensors/index_leaves_folder", {"'../../base_hf/model.safetensors', which is no file of this folder"}},
    {"safetensors/index_wrong_shard",
     {"'model.embed_tokens.weight'", "'model-00001-of-00002.safetensors', which lacks it"}},
    {"config/heads_zero", {"num_attention_heads is 0"}},
    {"config/heads_not_divisible", {"num_attention_heads is 2", "no multiple of num_key_value_heads 3"}},
    {"config/hidden_negative", {"hidden_size is -32"}},
    {"config/hidden_fraction", {"hidden_size is 32.5"}},
    {"config/hidden_missing", {"hidden_size is missing"}},
    {"config/layers_huge", {"num_hidden_layers is 1000000000"}},
    {"config/vocabulary_mismatch", {"'model.embed_tokens.weight' has 268 rows", "expected 300"}},
    {"config/architecture_unknown", {"'gpt99'", "known are llama"}},
    {"config/rope_scaling_unknown", {"'spiral'", "known are default, linear, llama3"}},
    {"config/rope_scaling_incomplete", {"has no low_freq_factor"}},
    {"config/eps_string", {"rms_norm_eps is 'small'"}},
    {"config/intermediate_mismatch", {"'model.layers.0.mlp.gate_proj.weight' has 64 rows", "expected 96"}},
    {"config/not_json", {"not JSON"}},
};
enum { N_MALFORMED = sizeof malformed / sizeof *malformed };

START_TEST(malformed_is_refused) {
    char name[128];
    snprintf(name, sizeof name, "engine/malformed/%s", malformed[_i].path);
    for (size_t i = 0; i < 2 && malformed[_i].says[i]; i++)
        tw_must_refuse_cheaply(tw_test_golden(name), malformed[_i].says[i]);
}
END_TEST

START_TEST(malformed_list_is_whole) {
    char *text = tw_test_read_file(tw_test_golden("engine/malformed/malformed.json"), &(size_t){0});
    cJSON *root = cJSON_Parse(text), *row;
    int n = 0;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(root, "broken")) {
        const char *path = cJSON_GetStringValue(cJSON_GetObjectItem(row, "path"));
        if (strncmp(path, "tokenizer/", 10) == 0) continue; /* of the tokenizer's suite */
        int found = 0;
        for (int i = 0; i < N_MALFORMED; i++) found += strcmp(malformed[i].path, path) == 0;
        ck_assert_msg(found == 1, "%s is %d times in the table", path, found);
        n++;
    }
    ck_assert_int_eq(n, N_MALFORMED);
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(root, "valid")) {
        char name[128];
        snprintf(name, sizeof name, "engine/malformed/%s", cJSON_GetStringValue(row));
        tw_model_free(tw_must_open(tw_test_golden(name)));
    }
    cJSON_Delete(root);
    free(text);
}
END_TEST

/* The valid controls are one model. */
START_TEST(controls_are_equal) {
    struct tw_model *a = tw_must_open(tw_test_golden("engine/malformed/base.gguf"));
    struct tw_model *b = tw_must_open(tw_test_golden("engine/malformed/base_hf"));
    tw_compare_models(a, b, 0);
    tw_model_free(a);
    tw_model_free(b);
}
END_TEST

Suite *tw_suite_malformed(void) {
    Suite *suite = suite_create("malformed");
    TCase *refused = tcase_create("malformed");
    tcase_set_timeout(refused, 30);
    tcase_add_loop_test(refused, malformed_is_refused, 0, N_MALFORMED);
    tcase_add_test(refused, malformed_list_is_whole);
    tcase_add_test(refused, controls_are_equal);
    suite_add_tcase(suite, refused);
    return suite;
}
