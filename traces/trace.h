/*
 * The trace file, for reading: one run's attention, step by step (spec: trace.md).
 *
 * A reader trusts nothing: what is handed out has been checked (positions in [-1, context length), weights finite and
 * not negative, shapes in agreement), or the call failed with one sentence that names file, dataset and fault.
 *
 * Threads: every function may be called from any thread. libhdf5 is entered by one thread at a time (a lock inside);
 * decoding (tw_trace_raw_decode) takes no lock and runs on as many threads as one likes.
 *
 * Steps: `n_steps` of the info is the number of steps that can be read, whatever the file claims; all datasets that
 * have a step dimension hold at least that many.
 */
#ifndef TW_TRACES_TRACE_H
#define TW_TRACES_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* An attribute of the file that trace.md does not name (an importer's or another writer's). */
struct tw_trace_attribute {
    char *name;
    enum { TW_ATTRIBUTE_TEXT, TW_ATTRIBUTE_INTEGER, TW_ATTRIBUTE_REAL } type;
    char *text; /* UTF-8, owned; for TW_ATTRIBUTE_TEXT */
    int64_t integer;
    double real;
};

/* The root attributes. Strings are owned, valid UTF-8, NULL where the file has none. */
struct tw_trace_info {
    char *model, *architecture, *task, *run;
    char *schedule, *selector, *backend, *dtype;
    char *producer;       /* name and version of what wrote the file */
    char *special_tokens; /* "parsed" or "literal" */
    char *pre_tokenizer;
    char *expected_answer, *generated_text;
    size_t n_layers, n_heads, n_kv_heads, head_dim, top_k; /* n_kv_heads divides n_heads; head_dim 0: not known */
    size_t prompt_length;                                  /* tokens */
    size_t n_steps;
    uint64_t budget; /* rows a KV head kept after prefill; 0: full */
    uint64_t chunk, seed, threads;
    bool complete;                   /* false: the run was interrupted or killed */
    bool has_needle;                 /* then needle_begin < needle_end <= prompt_length */
    size_t needle_begin, needle_end; /* token span in the prompt, end exclusive */
    bool has_windows;                /* sink_tokens and local_window are in the file */
    uint64_t sink_tokens, local_window;
    struct tw_trace_attribute *extra; /* [n_extra] ascending by name */
    size_t n_extra;
};

/* Deep copy; `info` is overwritten. Fails with TW_E_MEMORY. */
tw_status tw_trace_info_copy(struct tw_trace_info *info, const struct tw_trace_info *from, struct tw_error *err);
void tw_trace_info_release(struct tw_trace_info *info); /* copes with {0} */
/* Replaces a string field (`&info->model`) by a copy of `text`; NULL clears it. Fails with TW_E_MEMORY. */
tw_status tw_trace_info_set(char **field, const char *text, struct tw_error *err);

/* Datasets; the first five are in every trace. */
enum tw_trace_dataset {
    TW_TRACE_POSITION,       /* /topk/position */
    TW_TRACE_WEIGHT,         /* /topk/weight */
    TW_TRACE_CONTEXT_LENGTH, /* /step/context_length */
    TW_TRACE_TOKEN_ID,       /* /step/token_id */
    TW_TRACE_PROMPT,         /* /prompt/token_id */
    TW_TRACE_NEEDLE,         /* /score/needle */
    TW_TRACE_COPY_PASTE,     /* /score/copy_paste */
    TW_TRACE_WINDOW_VOTE,    /* /prefill/window_vote */
    TW_TRACE_KEPT,           /* /prefill/kept */
    TW_TRACE_KEY,            /* /kv/key */
    TW_TRACE_N_DATASETS
};

struct tw_trace;

/*
 * Opens for reading; needs neither locks nor environment variables. Fails with TW_E_INPUT when the file is missing, no
 * trace, or not as trace.md says; TW_E_IO when the system refuses. An incomplete trace (killed run) opens: the longest
 * prefix of whole steps that can be read below the count the file claims.
 */
tw_status tw_trace_open(struct tw_trace **trace, const char *path, struct tw_error *err);
/* The same from bytes in memory, which must outlive the trace; `name` stands for the file in messages. */
tw_status tw_trace_open_memory(struct tw_trace **trace, const void *data, size_t size, const char *name,
                               struct tw_error *err);
void tw_trace_free(struct tw_trace *trace); /* NULL is fine */

const struct tw_trace_info *tw_trace_info(const struct tw_trace *trace);
const char *tw_trace_path(const struct tw_trace *trace);
bool tw_trace_has(const struct tw_trace *trace, enum tw_trace_dataset dataset);
/* "/topk/position" and so on. */
const char *tw_trace_dataset_path(enum tw_trace_dataset dataset);

/* [n_steps] absolute position of each step's query + 1, >= 0; owned by the trace. */
const int32_t *tw_trace_context_length(const struct tw_trace *trace);
/* token_id [n_steps] generated at each step. */
tw_status tw_trace_read_token_ids(struct tw_trace *trace, int32_t *token_id, struct tw_error *err);
/* token_id [prompt_length] */
tw_status tw_trace_read_prompt(struct tw_trace *trace, int32_t *token_id, struct tw_error *err);

/*
 * One layer over steps [first_step, first_step + n_steps): reads and decodes on the calling thread.
 *
 *   position [n_steps][n_heads][top_k]  -1 or in [0, context length of the step); rows in any order
 *   weight   [n_steps][n_heads][top_k]  bits of a half, finite, not negative (no minus zero); float32 in the file
 *                                       is rounded to half; meaningless where the position is -1
 *
 * Either may be NULL.
 */
tw_status tw_trace_read_layer(struct tw_trace *trace, int32_t *position, uint16_t *weight, size_t layer,
                              size_t first_step, size_t n_steps, struct tw_error *err);

/*
 * The same in two halves, for many threads: the bytes of the chunks as they are in the file, then their decoding,
 * block by block. Memory is the compressed size of the layer (of the range of steps asked for).
 *
 *     struct tw_trace_raw *raw = tw_trace_raw_new();                      one a layer in flight, reused for the next
 *     tw_trace_raw_read(raw, trace, layer, 0, info->n_steps, &err);       any thread; short, takes the lock
 *     for (b = 0; b < tw_trace_raw_n_blocks(raw); b++)                    any number of threads, any order
 *         tw_trace_raw_decode(raw, b, position + b * block, weight + b * block, scratch_of_this_thread, &err);
 *
 * where block = tw_trace_raw_block_steps(raw) * n_heads * top_k. If each block is decoded once, each chunk is unpacked
 * once. Blocks are ranges of block_steps steps from first_step on, the last one may be shorter
 * (tw_trace_raw_block_range). `first_step` should be a multiple of the chunk (0, or what earlier block ranges give).
 */
struct tw_trace_raw;
struct tw_trace_scratch; /* a decompressor and its buffers: one a thread */

struct tw_trace_raw *tw_trace_raw_new(void); /* NULL: out of memory */
void tw_trace_raw_free(struct tw_trace_raw *raw);
struct tw_trace_scratch *tw_trace_scratch_new(void); /* NULL: out of memory */
void tw_trace_scratch_free(struct tw_trace_scratch *scratch);

/* The trace must stay open while the raw layer is used. On failure the raw layer holds no blocks. */
tw_status tw_trace_raw_read(struct tw_trace_raw *raw, struct tw_trace *trace, size_t layer, size_t first_step,
                            size_t n_steps, struct tw_error *err);
size_t tw_trace_raw_n_blocks(const struct tw_trace_raw *raw);
size_t tw_trace_raw_block_steps(const struct tw_trace_raw *raw);
/* Steps [*first, *first + *n) of the trace are in `block`. */
void tw_trace_raw_block_range(const struct tw_trace_raw *raw, size_t block, size_t *first, size_t *n);
/* position, weight [n of the block][n_heads][top_k], as for tw_trace_read_layer; either may be NULL. */
tw_status tw_trace_raw_decode(const struct tw_trace_raw *raw, size_t block, int32_t *position, uint16_t *weight,
                              struct tw_trace_scratch *scratch, struct tw_error *err);

/* How many chunks of any dataset have been unpacked since the trace was opened. */
uint64_t tw_trace_chunks_unpacked(const struct tw_trace *trace);

/* Optional datasets: ask tw_trace_has first; without the dataset these fail with TW_E_INPUT and say what is missing. */

/* score [n_steps][n_heads] of one layer over steps [first_step, ...); finite */
tw_status tw_trace_read_needle(struct tw_trace *trace, float *score, size_t layer, size_t first_step, size_t n_steps,
                               struct tw_error *err);
/* flag [n_steps][n_heads], 0 or 1 */
tw_status tw_trace_read_copy_paste(struct tw_trace *trace, uint8_t *flag, size_t layer, size_t first_step,
                                   size_t n_steps, struct tw_error *err);
/* vote [n_kv_heads][prompt_length] bits of a half, finite */
tw_status tw_trace_read_window_vote(struct tw_trace *trace, uint16_t *vote, size_t layer, struct tw_error *err);
/* The last extent N of /prefill/kept; 0 without it. */
size_t tw_trace_kept_width(const struct tw_trace *trace);
/* kept [n_kv_heads][kept_width], -1 or in [0, prompt_length) */
tw_status tw_trace_read_kept(struct tw_trace *trace, int32_t *kept, size_t layer, struct tw_error *err);
/* The last extent of /kv/key (head_dim, where the file says that); 0 without it. */
size_t tw_trace_key_dim(const struct tw_trace *trace);
/* key [n_positions][n_kv_heads][key_dim] bits of a half, finite; prompt_length + n_steps - 1 positions can be read. */
tw_status tw_trace_read_key(struct tw_trace *trace, uint16_t *key, size_t layer, size_t first_position,
                            size_t n_positions, struct tw_error *err);

/*
 * The traces that operands name: a file stands for itself, a folder for the files in it whose names end in ".h5",
 * ascending by name (bytes). A folder without any, or a missing path, is TW_E_INPUT.
 */
struct tw_trace_paths {
    char **paths; /* [n] owned */
    size_t n;
};
tw_status tw_trace_paths_find(struct tw_trace_paths *paths, const char *const *operands, size_t n_operands,
                              struct tw_error *err);
void tw_trace_paths_release(struct tw_trace_paths *paths);

#endif
