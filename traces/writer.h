/*
 * The trace file, for writing (spec: trace.md): steps go in one by one, whole chunks of 16 of them are compressed (a
 * layer a thread), written and flushed, then `n_steps` is set. A process killed at any moment leaves a file that opens
 * without repair and has lost at most the 16 steps that were not flushed.
 *
 * One thread uses a writer. The bytes in the datasets do not depend on the number of threads inside.
 */
#ifndef TW_TRACES_WRITER_H
#define TW_TRACES_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/team.h"
#include "base/view.h"
#include "traces/trace.h"

struct tw_trace_writer;

struct tw_trace_writer_options {
    bool force;        /* overwrite a complete trace, or a file that is no trace */
    bool weight_float; /* /topk/weight as float32 instead of float16 */
    bool needle;       /* the optional datasets there will be */
    bool copy_paste;
    bool window_vote;
    bool key;          /* needs head_dim */
    size_t kept_width; /* N of /prefill/kept: the most that any head keeps; 0: no such dataset */
    /* Threads to work with, which the caller may use between calls and keeps until the end; NULL: threads of its own.
     */
    struct tw_team *team;
};

/* One decode step. */
struct tw_trace_step {
    const int32_t *position;   /* [n_layers][n_heads][top_k] by descending weight, -1 padded at the end */
    const float *weight;       /* [n_layers][n_heads][top_k] 0 padded */
    int32_t context_length;    /* absolute position of the query + 1 */
    int32_t token_id;          /* generated at this step */
    const float *needle;       /* [n_layers][n_heads] with the option `needle`, otherwise NULL */
    const uint8_t *copy_paste; /* [n_layers][n_heads] 0 or 1, with the option `copy_paste`, otherwise NULL */
};

/*
 * Creates the file under its final name and flushes its head: it opens, with 0 steps, from here on. `info` is copied;
 * its n_steps and complete are ignored, its absent strings are not written. prompt_id [prompt_length].
 * A path where a complete trace (or something else than a trace) lies is refused unless `force`: TW_E_INPUT. A file
 * that another process writes is refused. Where the file system has no locks, it works without. `*writer` is NULL on
 * failure.
 */
tw_status tw_trace_writer_create(struct tw_trace_writer **writer, const char *path, const struct tw_trace_info *info,
                                 const int32_t *prompt_id, const struct tw_trace_writer_options *options,
                                 struct tw_error *err);

/*
 * Copies the step; every 16th call compresses, writes and flushes. Fails with TW_E_INPUT on values a reader would
 * refuse (position, context length, NaN), TW_E_IO when the disk is full or the system refuses: then what was flushed
 * stays readable, and nothing more can be written.
 */
tw_status tw_trace_writer_append(struct tw_trace_writer *writer, const struct tw_trace_step *step,
                                 struct tw_error *err);

/* Once a layer, at any time before finish. vote [n_kv_heads][prompt_length] */
tw_status tw_trace_writer_put_window_vote(struct tw_trace_writer *writer, size_t layer, const float *vote,
                                          struct tw_error *err);
/* kept [n_kv_heads][kept_width], -1 padded */
tw_status tw_trace_writer_put_kept(struct tw_trace_writer *writer, size_t layer, const int32_t *kept,
                                   struct tw_error *err);
/*
 * Appends keys of one layer: key [n_positions][n_kv_heads][head_dim] bits of halves, of the positions after those the
 * layer already has. Those of step t (position prompt_length + t - 1) must be in before step t is appended, the
 * prompt's before step 0.
 */
tw_status tw_trace_writer_put_key(struct tw_trace_writer *writer, size_t layer, const uint16_t *key, size_t n_positions,
                                  struct tw_error *err);

/* Attributes that are known late; broken UTF-8 is repaired with U+FFFD, NUL included. Written at finish. */
tw_status tw_trace_writer_set_text(struct tw_trace_writer *writer, const char *name, struct tw_view text,
                                   struct tw_error *err);

/* Steps appended so far, flushed or not. */
size_t tw_trace_writer_n_steps(const struct tw_trace_writer *writer);
/* Bytes in the file so far. */
uint64_t tw_trace_writer_bytes(const struct tw_trace_writer *writer);

/*
 * Writes the part-filled last chunk, the late attributes, `n_steps` and `complete`, and closes the file. `complete` is
 * false for an interrupted run: everything appended is kept all the same. Call tw_trace_writer_free afterwards.
 */
tw_status tw_trace_writer_finish(struct tw_trace_writer *writer, bool complete, struct tw_error *err);
/* Without finish: as if the process had been killed here. NULL is fine. */
void tw_trace_writer_free(struct tw_trace_writer *writer);

/* What a trace of n_steps would take on disk, rather too much than too little. UINT64_MAX when it overflows. */
uint64_t tw_trace_estimate_bytes(const struct tw_trace_info *info, const struct tw_trace_writer_options *options,
                                 size_t n_steps);

#endif
