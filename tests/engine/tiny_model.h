/*
 * Small models and GGUF files made by tests: the "tiny model" of the test cases in both containers with the same
 * numbers, and a writer for files that are wrong on purpose.
 */
#ifndef TW_TESTS_ENGINE_TINY_MODEL_H
#define TW_TESTS_ENGINE_TINY_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

/* Writes GGUF piece by piece; believes everything, so that it can write nonsense too. */
struct tw_gguf_writer {
    uint32_t version; /* 0: 3 */
    size_t alignment; /* 0: 32; what the layout uses, whatever general.alignment says */
    struct tw_text keys, tensors, data;
    uint64_t n_keys, n_tensors;
};
void tw_gguf_put_u32(struct tw_gguf_writer *writer, const char *name, uint32_t value);
void tw_gguf_put_f32(struct tw_gguf_writer *writer, const char *name, float value);
void tw_gguf_put_bool(struct tw_gguf_writer *writer, const char *name, bool value);
void tw_gguf_put_string(struct tw_gguf_writer *writer, const char *name, const char *value);
void tw_gguf_put_strings(struct tw_gguf_writer *writer, const char *name, const char *const *values, size_t n);
void tw_gguf_put_i32s(struct tw_gguf_writer *writer, const char *name, const int32_t *values, size_t n);
void tw_gguf_put_bools(struct tw_gguf_writer *writer, const char *name, const bool *values, size_t n);
/* `dims` fastest first; `bytes` of data, which may be fewer than the shape needs. */
void tw_gguf_put_tensor(struct tw_gguf_writer *writer, const char *name, uint32_t type, uint32_t n_dims,
                        const uint64_t *dims, const void *data, size_t bytes);
/* Appends the file and releases the writer. */
void tw_gguf_finish(struct tw_text *file, struct tw_gguf_writer *writer);
/* Writes the file, releases the writer, and returns `path`. */
const char *tw_gguf_write(const char *path, struct tw_gguf_writer *writer);

/* Llama shape, random float32 weights that depend on nothing but their name. Zeros mean the number in brackets. */
struct tw_tiny {
    size_t n_layers;       /* [2] */
    size_t n_embd;         /* [32] */
    size_t n_heads;        /* [4] */
    size_t n_kv_heads;     /* [2] */
    size_t head_dim;       /* [8] */
    size_t n_mlp;          /* [64] */
    size_t n_vocab;        /* [96] rows of the embedding and of the output matrix */
    size_t n_tokens;       /* [96] of the tokenizer: printable ASCII one by one, <|endoftext|> last */
    size_t context_length; /* [4096] */
    bool zero_keys;        /* all key projections 0: attention is exactly uniform */
    bool no_output;        /* no output matrix is stored */
    size_t scaled_row;     /* if not 0: this row of the output matrix ... */
    float row_scale;       /* ... is multiplied by this, so that it wins greedy choices */
    uint32_t version;      /* GGUF [3] */
    size_t alignment;      /* GGUF [32]; another one is written as general.alignment */
    bool tied;             /* config.json: tie_word_embeddings */
};

/* Fills a writer with the whole model; the caller may add to it and finishes it. */
void tw_tiny_write_gguf(struct tw_gguf_writer *writer, const struct tw_tiny *tiny);
/* folder + "/" + name + ".gguf", in a buffer ring. */
const char *tw_tiny_gguf(const char *folder, const char *name, const struct tw_tiny *tiny);
/* A Hugging Face folder folder + "/" + name with config.json, model.safetensors and tokenizer.json. */
const char *tw_tiny_hf(const char *folder, const char *name, const struct tw_tiny *tiny);

/* A safetensors file of `n_bytes` of data under a header given as text. */
void tw_write_safetensors(const char *path, const char *header, const void *data, size_t n_bytes);

#endif
