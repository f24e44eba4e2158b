#include "tests/engine/tiny_model.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/checked.h"
#include "base/random.h"
#include "engine/model/gguf.h"
#include "tests/support.h"

/* ---- the GGUF writer ----------------------------------------------------------------------------------------------
 */

static void put(struct tw_text *text, const void *data, size_t size) {
    tw_text_append(text, (struct tw_view){data, size});
}
static void put_u32(struct tw_text *text, uint32_t value) { put(text, &value, 4); }
static void put_u64(struct tw_text *text, uint64_t value) { put(text, &value, 8); }
static void put_string(struct tw_text *text, const char *string) {
    put_u64(text, strlen(string));
    put(text, string, strlen(string));
}

static void begin_key(struct tw_gguf_writer *writer, const char *name, uint32_t type) {
    put_string(&writer->keys, name);
    put_u32(&writer->keys, type);
    writer->n_keys++;
}

void tw_gguf_put_u32(struct tw_gguf_writer *writer, const char *name, uint32_t value) {
    begin_key(writer, name, TW_GGUF_U32);
    put_u32(&writer->keys, value);
}

void tw_gguf_put_f32(struct tw_gguf_writer *writer, const char *name, float value) {
    begin_key(writer, name, TW_GGUF_F32);
    put(&writer->keys, &value, 4);
}

void tw_gguf_put_bool(struct tw_gguf_writer *writer, const char *name, bool value) {
    begin_key(writer, name, TW_GGUF_BOOL);
    tw_text_append_char(&writer->keys, value);
}

void tw_gguf_put_string(struct tw_gguf_writer *writer, const char *name, const char *value) {
    begin_key(writer, name, TW_GGUF_STRING);
    put_string(&writer->keys, value);
}

void tw_gguf_put_strings(struct tw_gguf_writer *writer, const char *name, const char *const *values, size_t n) {
    begin_key(writer, name, TW_GGUF_ARRAY);
    put_u32(&writer->keys, TW_GGUF_STRING);
    put_u64(&writer->keys, n);
    for (size_t i = 0; i < n; i++) put_string(&writer->keys, values[i]);
}

void tw_gguf_put_i32s(struct tw_gguf_writer *writer, const char *name, const int32_t *values, size_t n) {
    begin_key(writer, name, TW_GGUF_ARRAY);
    put_u32(&writer->keys, TW_GGUF_I32);
    put_u64(&writer->keys, n);
    put(&writer->keys, values, n * sizeof *values);
}

void tw_gguf_put_bools(struct tw_gguf_writer *writer, const char *name, const bool *values, size_t n) {
    begin_key(writer, name, TW_GGUF_ARRAY);
    put_u32(&writer->keys, TW_GGUF_BOOL);
    put_u64(&writer->keys, n);
    for (size_t i = 0; i < n; i++) tw_text_append_char(&writer->keys, values[i]);
}

static void pad(struct tw_text *text, size_t alignment) {
    while (text->size % alignment) tw_text_append_char(text, 0);
}

void tw_gguf_put_tensor(struct tw_gguf_writer *writer, const char *name, uint32_t type, uint32_t n_dims,
                        const uint64_t *dims, const void *data, size_t bytes) {
    pad(&writer->data, writer->alignment ? writer->alignment : 32);
    put_string(&writer->tensors, name);
    put_u32(&writer->tensors, n_dims);
    put(&writer->tensors, dims, n_dims * sizeof *dims);
    put_u32(&writer->tensors, type);
    put_u64(&writer->tensors, writer->data.size);
    put(&writer->data, data, bytes);
    writer->n_tensors++;
}

void tw_gguf_finish(struct tw_text *file, struct tw_gguf_writer *writer) {
    const size_t start = file->size;
    put(file, "GGUF", 4);
    put_u32(file, writer->version ? writer->version : 3);
    put_u64(file, writer->n_tensors);
    put_u64(file, writer->n_keys);
    tw_text_append(file, tw_text_view(&writer->keys));
    tw_text_append(file, tw_text_view(&writer->tensors));
    ck_assert_uint_eq(start, 0);
    pad(file, writer->alignment ? writer->alignment : 32);
    tw_text_append(file, tw_text_view(&writer->data));
    ck_assert(tw_text_ok(file));
    tw_text_release(&writer->keys);
    tw_text_release(&writer->tensors);
    tw_text_release(&writer->data);
    *writer = (struct tw_gguf_writer){0};
}

const char *tw_gguf_write(const char *path, struct tw_gguf_writer *writer) {
    struct tw_text file = {0};
    tw_gguf_finish(&file, writer);
    tw_test_write_file(path, file.data, file.size);
    tw_text_release(&file);
    return path;
}

/* ---- the tiny model -----------------------------------------------------------------------------------------------
 */

static struct tw_tiny with_defaults(const struct tw_tiny *given) {
    struct tw_tiny tiny = *given;
    if (!tiny.n_layers) tiny.n_layers = 2;
    if (!tiny.n_embd) tiny.n_embd = 32;
    if (!tiny.n_heads) tiny.n_heads = 4;
    if (!tiny.n_kv_heads) tiny.n_kv_heads = 2;
    if (!tiny.head_dim) tiny.head_dim = 8;
    if (!tiny.n_mlp) tiny.n_mlp = 64;
    if (!tiny.n_vocab) tiny.n_vocab = 96;
    if (!tiny.n_tokens) tiny.n_tokens = 96;
    if (!tiny.context_length) tiny.context_length = 4096;
    if (!tiny.version) tiny.version = 3;
    if (!tiny.alignment) tiny.alignment = 32;
    return tiny;
}

/* [rows][columns] in the order of Hugging Face; depends on `name` alone. Free with free(). */
static float *weights(const char *name, size_t rows, size_t columns, bool zero, size_t scaled_row, float scale) {
    float *values = calloc(rows * columns, sizeof *values);
    uint64_t seed = 0;
    for (const char *c = name; *c; c++) seed = seed * 131 + (unsigned char)*c;
    struct tw_random random;
    tw_random_init(&random, seed, 7);
    for (size_t i = 0; i < rows * columns && !zero; i++)
        values[i] = (float)(rows == 1 ? 0.5 + tw_random_unit(&random) : 0.5 * (tw_random_unit(&random) - 0.5));
    for (size_t i = 0; scaled_row && i < columns; i++) values[scaled_row * columns + i] *= scale;
    return values;
}

/* Rows of each head from (first half, second half), as Hugging Face has them, to alternating, as GGUF has for llama. */
static void interleave(float *matrix, size_t n_heads, size_t head_dim, size_t columns) {
    float *old = malloc(head_dim * columns * sizeof *old);
    for (size_t h = 0; h < n_heads; h++) {
        float *head = matrix + h * head_dim * columns;
        memcpy(old, head, head_dim * columns * sizeof *old);
        for (size_t j = 0; j < head_dim / 2; j++) {
            memcpy(head + 2 * j * columns, old + j * columns, columns * sizeof *old);
            memcpy(head + (2 * j + 1) * columns, old + (j + head_dim / 2) * columns, columns * sizeof *old);
        }
    }
    free(old);
}

enum role { PLAIN, QUERY, KEY, HEAD_OUTPUT };

/* Calls `put_one` for every tensor: by its Hugging Face and its GGUF name. */
static void each_tensor(const struct tw_tiny *t, void *target,
                        void (*put_one)(void *target, const struct tw_tiny *tiny, const char *hf, const char *gguf,
                                        size_t rows, size_t columns, enum role role)) {
    const size_t query = t->n_heads * t->head_dim, kv = t->n_kv_heads * t->head_dim;
    put_one(target, t, "model.embed_tokens.weight", "token_embd.weight", t->n_vocab, t->n_embd, PLAIN);
    for (size_t l = 0; l < t->n_layers; l++) {
        char hf[96], gguf[96];
        const struct {
            const char *hf, *gguf;
            size_t rows, columns;
            enum role role;
        } tensors[] = {
            {"input_layernorm", "attn_norm", 1, t->n_embd, PLAIN},
            {"self_attn.q_proj", "attn_q", query, t->n_embd, QUERY},
            {"self_attn.k_proj", "attn_k", kv, t->n_embd, KEY},
            {"self_attn.v_proj", "attn_v", kv, t->n_embd, PLAIN},
            {"self_attn.o_proj", "attn_output", t->n_embd, query, PLAIN},
            {"post_attention_layernorm", "ffn_norm", 1, t->n_embd, PLAIN},
            {"mlp.gate_proj", "ffn_gate", t->n_mlp, t->n_embd, PLAIN},
            {"mlp.up_proj", "ffn_up", t->n_mlp, t->n_embd, PLAIN},
            {"mlp.down_proj", "ffn_down", t->n_embd, t->n_mlp, PLAIN},
        };
        for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
            snprintf(hf, sizeof hf, "model.layers.%zu.%s.weight", l, tensors[i].hf);
            snprintf(gguf, sizeof gguf, "blk.%zu.%s.weight", l, tensors[i].gguf);
            put_one(target, t, hf, gguf, tensors[i].rows, tensors[i].columns, tensors[i].role);
        }
    }
    put_one(target, t, "model.norm.weight", "output_norm.weight", 1, t->n_embd, PLAIN);
    if (!t->no_output) put_one(target, t, "lm_head.weight", "output.weight", t->n_vocab, t->n_embd, HEAD_OUTPUT);
}

static float *weights_of(const struct tw_tiny *tiny, const char *hf, size_t rows, size_t columns, enum role role) {
    return weights(hf, rows, columns, role == KEY && tiny->zero_keys, role == HEAD_OUTPUT ? tiny->scaled_row : 0,
                   tiny->row_scale);
}

static void put_gguf(void *target, const struct tw_tiny *tiny, const char *hf, const char *gguf, size_t rows,
                     size_t columns, enum role role) {
    float *values = weights_of(tiny, hf, rows, columns, role);
    if (role == QUERY) interleave(values, tiny->n_heads, tiny->head_dim, columns);
    if (role == KEY) interleave(values, tiny->n_kv_heads, tiny->head_dim, columns);
    tw_gguf_put_tensor(target, gguf, 0, rows == 1 ? 1 : 2, (uint64_t[]){columns, rows}, values,
                       rows * columns * sizeof *values);
    free(values);
}

/* Token i as byte-level BPE writes it. */
static void token_text(char text[16], size_t i, size_t n_tokens) {
    if (i + 1 == n_tokens)
        strcpy(text, "<|endoftext|>");
    else if (i == 0)
        strcpy(text, "\u0120"); /* the space */
    else if (i < 95)
        snprintf(text, 16, "%c", (char)(' ' + i));
    else
        snprintf(text, 16, "<%u>", (unsigned)(i % 1000000));
}

void tw_tiny_write_gguf(struct tw_gguf_writer *writer, const struct tw_tiny *given) {
    const struct tw_tiny tiny = with_defaults(given);
    *writer = (struct tw_gguf_writer){.version = tiny.version, .alignment = tiny.alignment};
    tw_gguf_put_string(writer, "general.architecture", "llama");
    tw_gguf_put_string(writer, "general.name", "tiny");
    if (tiny.alignment != 32) tw_gguf_put_u32(writer, "general.alignment", (uint32_t)tiny.alignment);
    tw_gguf_put_u32(writer, "llama.block_count", (uint32_t)tiny.n_layers);
    tw_gguf_put_u32(writer, "llama.context_length", (uint32_t)tiny.context_length);
    tw_gguf_put_u32(writer, "llama.embedding_length", (uint32_t)tiny.n_embd);
    tw_gguf_put_u32(writer, "llama.feed_forward_length", (uint32_t)tiny.n_mlp);
    tw_gguf_put_u32(writer, "llama.attention.head_count", (uint32_t)tiny.n_heads);
    tw_gguf_put_u32(writer, "llama.attention.head_count_kv", (uint32_t)tiny.n_kv_heads);
    tw_gguf_put_u32(writer, "llama.attention.key_length", (uint32_t)tiny.head_dim);
    tw_gguf_put_u32(writer, "llama.attention.value_length", (uint32_t)tiny.head_dim);
    tw_gguf_put_f32(writer, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    tw_gguf_put_f32(writer, "llama.rope.freq_base", 10000);
    char(*texts)[16] = calloc(tiny.n_tokens, sizeof *texts);
    const char **tokens = calloc(tiny.n_tokens, sizeof *tokens);
    int32_t *types = calloc(tiny.n_tokens, sizeof *types);
    for (size_t i = 0; i < tiny.n_tokens; i++) {
        token_text(texts[i], i, tiny.n_tokens);
        tokens[i] = texts[i];
        types[i] = i + 1 == tiny.n_tokens ? 3 : 1;
    }
    tw_gguf_put_string(writer, "tokenizer.ggml.model", "gpt2");
    tw_gguf_put_string(writer, "tokenizer.ggml.pre", "gpt-2");
    tw_gguf_put_strings(writer, "tokenizer.ggml.tokens", tokens, tiny.n_tokens);
    tw_gguf_put_i32s(writer, "tokenizer.ggml.token_type", types, tiny.n_tokens);
    tw_gguf_put_strings(writer, "tokenizer.ggml.merges", NULL, 0);
    tw_gguf_put_u32(writer, "tokenizer.ggml.eos_token_id", (uint32_t)tiny.n_tokens - 1);
    tw_gguf_put_bool(writer, "tokenizer.ggml.add_bos_token", false);
    free(texts);
    free(tokens);
    free(types);
    each_tensor(&tiny, writer, put_gguf);
}

const char *tw_tiny_gguf(const char *folder, const char *name, const struct tw_tiny *tiny) {
    struct tw_gguf_writer writer;
    tw_tiny_write_gguf(&writer, tiny);
    char full[256];
    snprintf(full, sizeof full, "%s.gguf", name);
    return tw_gguf_write(tw_test_path(folder, full), &writer);
}

struct hf_target {
    struct tw_text header, data;
};

static void put_hf(void *target, const struct tw_tiny *tiny, const char *hf, const char *gguf, size_t rows,
                   size_t columns, enum role role) {
    (void)gguf;
    struct hf_target *out = target;
    float *values = weights_of(tiny, hf, rows, columns, role);
    const size_t bytes = rows * columns * sizeof *values;
    tw_text_printf(&out->header, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[", out->header.size ? "," : "{", hf);
    if (rows > 1) tw_text_printf(&out->header, "%zu,", rows);
    tw_text_printf(&out->header, "%zu],\"data_offsets\":[%zu,%zu]}", columns, out->data.size, out->data.size + bytes);
    put(&out->data, values, bytes);
    free(values);
}

void tw_write_safetensors(const char *path, const char *header, const void *data, size_t n_bytes) {
    struct tw_text file = {0};
    put_u64(&file, tw_round_up(strlen(header), 8));
    put(&file, header, strlen(header));
    while (file.size % 8) tw_text_append_char(&file, ' ');
    put(&file, data, n_bytes);
    tw_test_write_file(path, file.data, file.size);
    tw_text_release(&file);
}

const char *tw_tiny_hf(const char *folder, const char *name, const struct tw_tiny *given) {
    const struct tw_tiny tiny = with_defaults(given);
    const char *path = tw_test_path(folder, name);
    ck_assert_int_eq(mkdir(path, 0777), 0);
    struct hf_target out = {{0}, {0}};
    each_tensor(&tiny, &out, put_hf);
    tw_text_append_char(&out.header, '}');
    tw_write_safetensors(tw_test_path(path, "model.safetensors"), out.header.data, out.data.data, out.data.size);
    tw_text_release(&out.header);
    tw_text_release(&out.data);

    struct tw_text text = {0};
    tw_text_printf(&text,
                   "{\"model_type\": \"llama\", \"hidden_size\": %zu, \"num_hidden_layers\": %zu, "
                   "\"num_attention_heads\": %zu, \"num_key_value_heads\": %zu, \"head_dim\": %zu, "
                   "\"intermediate_size\": %zu, \"vocab_size\": %zu, \"max_position_embeddings\": %zu, "
                   "\"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", \"torch_dtype\": "
                   "\"float32\", \"tie_word_embeddings\": %s, \"eos_token_id\": %zu}\n",
                   tiny.n_embd, tiny.n_layers, tiny.n_heads, tiny.n_kv_heads, tiny.head_dim, tiny.n_mlp, tiny.n_vocab,
                   tiny.context_length, tiny.tied ? "true" : "false", tiny.n_tokens - 1);
    tw_test_write_file(tw_test_path(path, "config.json"), text.data, text.size);

    tw_text_clear(&text);
    tw_text_printf(
        &text,
        "{\"version\": \"1.0\", \"added_tokens\": [{\"id\": %zu, \"content\": \"<|endoftext|>\", \"single_word\": "
        "false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}], "
        "\"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
        "\"trim_offsets\": true, \"use_regex\": true}, \"post_processor\": null, \"decoder\": {\"type\": "
        "\"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {",
        tiny.n_tokens - 1);
    for (size_t i = 0; i < tiny.n_tokens; i++) {
        char token[16];
        token_text(token, i, tiny.n_tokens);
        tw_text_append(&text, tw_view_of(i ? ", " : ""));
        tw_text_append_json(&text, tw_view_of(token));
        tw_text_printf(&text, ": %zu", i);
    }
    tw_text_append(&text, TW_VIEW("}}}\n"));
    tw_test_write_file(tw_test_path(path, "tokenizer.json"), text.data, text.size);
    tw_text_release(&text);
    return path;
}
