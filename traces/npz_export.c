#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zip.h>

#include "base/checked.h"
#include "base/half.h"
#include "base/json.h"
#include "base/output.h"
#include "base/stop.h"
#include "base/table.h"
#include "traces/attributes.h"
#include "traces/npy.h"
#include "traces/npz.h"

enum { BLOCK = 16 }; /* steps in memory: those of the writer's chunks, so that each is unpacked once */

/* One array of the archive as a stream of bytes that libzip pulls while it compresses. */
struct stream {
    struct tw_trace *trace;
    enum tw_trace_dataset dataset;
    const char *name, *descr;
    size_t item_bytes, step_bytes; /* of one element, of one step (or of the whole array when it has no steps) */
    size_t n_slabs;                /* steps, or 1 */
    struct tw_text head;
    size_t head_at;
    uint8_t *block; /* [BLOCK][step_bytes] */
    uint8_t *layer; /* [BLOCK][n_heads][top_k] of one layer */
    size_t block_first, block_n, block_at;
    struct tw_progress *progress;
    struct tw_error *err;
    tw_status status;
    zip_error_t zip_error;
};

/* One layer of the block to stream->layer. */
static tw_status read_layer(struct stream *stream, size_t l, size_t first, size_t n) {
    struct tw_trace *const trace = stream->trace;
    void *const to = stream->layer;
    switch (stream->dataset) {
    case TW_TRACE_POSITION: return tw_trace_read_layer(trace, to, NULL, l, first, n, stream->err);
    case TW_TRACE_WEIGHT: return tw_trace_read_layer(trace, NULL, to, l, first, n, stream->err);
    case TW_TRACE_NEEDLE: return tw_trace_read_needle(trace, to, l, first, n, stream->err);
    case TW_TRACE_COPY_PASTE: return tw_trace_read_copy_paste(trace, to, l, first, n, stream->err);
    default: return TW_OK;
    }
}

static tw_status fill_ids(struct stream *stream) {
    const struct tw_trace_info *const info = tw_trace_info(stream->trace);
    int32_t *const ids = (int32_t *)(void *)stream->layer;
    const bool prompt = stream->dataset == TW_TRACE_PROMPT;
    const size_t n = prompt ? info->prompt_length : info->n_steps;
    if (stream->dataset == TW_TRACE_CONTEXT_LENGTH) {
        memcpy(stream->block, tw_trace_context_length(stream->trace), n * sizeof *ids);
        return TW_OK;
    }
    TW_TRY(prompt ? tw_trace_read_prompt(stream->trace, ids, stream->err)
                  : tw_trace_read_token_ids(stream->trace, ids, stream->err));
    for (size_t i = 0; i < n; i++) ((int64_t *)(void *)stream->block)[i] = ids[i];
    return TW_OK;
}

static tw_status fill_block(struct stream *stream) {
    const struct tw_trace_info *const info = tw_trace_info(stream->trace);
    stream->block_first += stream->block_n;
    stream->block_at = 0;
    if (stream->n_slabs == 1) {
        stream->block_n = 1;
        return fill_ids(stream);
    }
    if (tw_stop_requested()) return TW_FAIL(stream->err, TW_E_INTERRUPTED, "interrupted");
    const size_t n = stream->block_n = tw_min_size(BLOCK, stream->n_slabs - stream->block_first);
    const size_t row = stream->step_bytes / info->n_layers;
    for (size_t l = 0; l < info->n_layers; l++) {
        TW_TRY(read_layer(stream, l, stream->block_first, n));
        for (size_t t = 0; t < n; t++)
            memcpy(stream->block + t * stream->step_bytes + l * row, stream->layer + t * row, row);
    }
    tw_progress_update(stream->progress, stream->name, stream->block_first + n, stream->n_slabs, "steps", NULL);
    return TW_OK;
}

static zip_int64_t pull(struct stream *stream, uint8_t *to, size_t size) {
    size_t done = 0;
    while (done < size) {
        const uint8_t *from;
        size_t left;
        if (stream->head_at < stream->head.size) {
            from = (const uint8_t *)stream->head.data + stream->head_at;
            left = stream->head.size - stream->head_at;
        } else {
            if (stream->block_at == stream->block_n * stream->step_bytes) {
                if (stream->block_first + stream->block_n >= stream->n_slabs) break;
                if ((stream->status = fill_block(stream)) != TW_OK) {
                    zip_error_set(&stream->zip_error, ZIP_ER_READ, 0);
                    return -1;
                }
            }
            from = stream->block + stream->block_at;
            left = stream->block_n * stream->step_bytes - stream->block_at;
        }
        const size_t n = tw_min_size(left, size - done);
        memcpy(to + done, from, n);
        *(stream->head_at < stream->head.size ? &stream->head_at : &stream->block_at) += n;
        done += n;
    }
    return (zip_int64_t)done;
}

static zip_int64_t serve(void *state, void *data, zip_uint64_t size, zip_source_cmd_t command) {
    struct stream *const stream = state;
    switch (command) {
    case ZIP_SOURCE_OPEN: stream->head_at = stream->block_first = stream->block_n = stream->block_at = 0; return 0;
    case ZIP_SOURCE_READ: return pull(stream, data, (size_t)size);
    case ZIP_SOURCE_CLOSE:
    case ZIP_SOURCE_FREE: return 0; /* the stream is the caller's */
    case ZIP_SOURCE_STAT: {
        zip_stat_t *const about = data;
        zip_stat_init(about);
        about->size = stream->head.size + (uint64_t)stream->n_slabs * stream->step_bytes;
        about->valid = ZIP_STAT_SIZE;
        return sizeof *about;
    }
    case ZIP_SOURCE_ERROR: return zip_error_to_data(&stream->zip_error, data, size);
    case ZIP_SOURCE_SUPPORTS:
        return zip_source_make_command_bitmap(ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_CLOSE, ZIP_SOURCE_STAT,
                                              ZIP_SOURCE_ERROR, ZIP_SOURCE_FREE, -1);
    default: zip_error_set(&stream->zip_error, ZIP_ER_OPNOTSUPP, 0); return -1;
    }
}

/* The arrays in the order in which WakeKV's scripts save them, and the prompt's ids. */
static const struct {
    enum tw_trace_dataset dataset;
    const char *name, *descr;
    unsigned rank;
    size_t item_bytes;
} table[] = {
    {TW_TRACE_POSITION, "topk_idx", "<i4", 4, 4},       {TW_TRACE_WEIGHT, "topk_val", "<f2", 4, 2},
    {TW_TRACE_CONTEXT_LENGTH, "ctx_len", "<i4", 1, 4},  {TW_TRACE_TOKEN_ID, "gen_token_ids", "<i8", 1, 8},
    {TW_TRACE_NEEDLE, "needle_score", "<f4", 3, 4},     {TW_TRACE_COPY_PASTE, "copy_paste", "|b1", 3, 1},
    {TW_TRACE_PROMPT, "prompt_token_ids", "<i8", 1, 8},
};
enum { N_STREAMS = sizeof table / sizeof *table };

static bool open_stream(struct stream *stream, size_t i, struct tw_trace *trace) {
    const struct tw_trace_info *const info = tw_trace_info(trace);
    const bool prompt = table[i].dataset == TW_TRACE_PROMPT;
    const size_t shape[] = {prompt ? info->prompt_length : info->n_steps, info->n_layers, info->n_heads, info->top_k};
    *stream = (struct stream){.trace = trace,
                              .dataset = table[i].dataset,
                              .name = table[i].name,
                              .descr = table[i].descr,
                              .item_bytes = table[i].item_bytes};
    size_t items = 1;
    for (unsigned d = table[i].rank > 1 ? 1 : 0; d < table[i].rank; d++)
        if (!tw_mul_size(&items, items, shape[d])) return false;
    stream->n_slabs = table[i].rank > 1 ? info->n_steps : 1;
    stream->step_bytes = items * table[i].item_bytes;
    const size_t n = table[i].rank > 1 ? BLOCK : 1;
    stream->block = malloc(tw_max_size(n * stream->step_bytes, 1));
    stream->layer =
        malloc(tw_max_size(table[i].rank > 1 ? n * stream->step_bytes / info->n_layers : stream->step_bytes, 1));
    tw_npy_append_head(&stream->head, table[i].descr, shape, table[i].rank);
    return stream->block && stream->layer && tw_text_ok(&stream->head);
}

static void close_stream(struct stream *stream) {
    free(stream->block);
    free(stream->layer);
    tw_text_release(&stream->head);
    zip_error_fini(&stream->zip_error);
}

static bool add_stream(zip_t *zip, struct stream *stream) {
    char entry[64];
    snprintf(entry, sizeof entry, "%s.npy", stream->name);
    zip_source_t *const source = zip_source_function(zip, serve, stream);
    if (!source) return false;
    const zip_int64_t index = zip_file_add(zip, entry, source, ZIP_FL_ENC_UTF_8);
    if (index < 0) {
        zip_source_free(source);
        return false;
    }
    /* Level 1: positions and weights hardly get smaller with more. The time is fixed, so that equal traces give equal
     * files. */
    return zip_set_file_compression(zip, (zip_uint64_t)index, ZIP_CM_DEFLATE, 1) == 0 &&
           zip_file_set_mtime(zip, (zip_uint64_t)index, 315532800, 0) == 0;
}

static tw_status write_archive(const char *path, struct tw_trace *trace, struct tw_progress *progress,
                               struct tw_error *err) {
    struct stream streams[N_STREAMS] = {0};
    int code = 0;
    zip_t *zip = zip_open(path, ZIP_CREATE | ZIP_TRUNCATE, &code);
    tw_status status = zip ? TW_OK : TW_FAIL(err, TW_E_IO, "cannot write '%s': %s", path, strerror(errno));
    for (size_t i = 0; status == TW_OK && i < N_STREAMS; i++) {
        if (!tw_trace_has(trace, table[i].dataset)) continue;
        if (!open_stream(&streams[i], i, trace))
            status = TW_FAIL(err, TW_E_MEMORY, "out of memory for exporting '%s'", tw_trace_path(trace));
        streams[i].progress = progress;
        streams[i].err = err;
        if (status == TW_OK && !add_stream(zip, &streams[i]))
            status = TW_FAIL(err, TW_E_IO, "cannot write '%s': %s", path, zip_strerror(zip));
    }
    if (status == TW_OK && zip_close(zip) == 0) {
        zip = NULL;
    } else if (status == TW_OK) {
        for (size_t i = 0; status == TW_OK && i < N_STREAMS; i++) status = streams[i].status; /* err has its sentence */
        if (status == TW_OK) status = TW_FAIL(err, TW_E_IO, "cannot write '%s': %s", path, zip_strerror(zip));
    }
    if (zip) zip_discard(zip);
    for (size_t i = 0; i < N_STREAMS; i++) close_stream(&streams[i]);
    return status;
}

/* ---- meta.json
 * --------------------------------------------------------------------------------------------------------------- */

static void put_extra(struct tw_json *json, const struct tw_trace_attribute *extra) {
    switch (extra->type) {
    case TW_ATTRIBUTE_TEXT: tw_json_text(json, extra->name, tw_view_of(extra->text)); break;
    case TW_ATTRIBUTE_INTEGER: tw_json_int(json, extra->name, extra->integer); break;
    case TW_ATTRIBUTE_REAL: tw_json_double(json, extra->name, extra->real); break;
    }
}

static tw_status write_meta(const char *path, const struct tw_trace_info *info, struct tw_error *err) {
    static const struct {
        const char *ours, *theirs; /* NULL: not written */
    } renamed[] = {{"prompt_length", "prompt_len"},
                   {"top_k", "topk"},
                   {"needle_begin", NULL},
                   {"needle_end", NULL},
                   {"complete", NULL}};
    struct tw_text text = {0};
    struct tw_json json = {.out = &text};
    tw_json_begin_object(&json, NULL);
    for (const struct tw_attribute_row *row = tw_attribute_rows; row->name; row++) {
        const char *name = row->name;
        for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++)
            if (strcmp(row->name, renamed[i].ours) == 0) name = renamed[i].theirs;
        if (!name || !tw_attribute_present(row, info)) continue;
        if (row->kind == TW_KIND_TEXT)
            tw_json_text(&json, name, tw_view_of(*(char *const *)(const void *)((const char *)info + row->offset)));
        else
            tw_json_uint(&json, name, tw_attribute_number(row, info));
    }
    if (info->has_needle) {
        tw_json_begin_array(&json, "needle_token_span");
        tw_json_uint(&json, NULL, info->needle_begin);
        tw_json_uint(&json, NULL, info->needle_end);
        tw_json_end_array(&json);
    } else {
        tw_json_null(&json, "needle_token_span");
    }
    for (size_t i = 0; i < info->n_extra; i++) put_extra(&json, &info->extra[i]);
    tw_json_end_object(&json);
    tw_text_append_char(&text, '\n');
    const tw_status status = tw_text_ok(&text) ? tw_output_write(path, tw_text_view(&text), err)
                                               : TW_FAIL(err, TW_E_MEMORY, "out of memory for '%s'", path);
    tw_text_release(&text);
    return status;
}

tw_status tw_npz_export(const char *folder, struct tw_trace *trace, bool force, struct tw_progress *progress,
                        struct tw_error *err) {
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return TW_FAIL(err, TW_E_INPUT, "cannot make folder '%s': %s", folder, strerror(errno));
    char *log = NULL, *meta = NULL;
    tw_status status = asprintf(&log, "%s/log.npz", folder) >= 0 && asprintf(&meta, "%s/meta.json", folder) >= 0
                           ? TW_OK
                           : TW_FAIL(err, TW_E_MEMORY, "out of memory for '%s'", folder);
    struct stat st;
    if (status == TW_OK && stat(log, &st) == 0 && !force)
        status = TW_FAIL(err, TW_E_INPUT, "'%s' exists; --force overwrites it", log);
    if (status == TW_OK) status = write_archive(log, trace, progress, err);
    if (status == TW_OK) status = write_meta(meta, tw_trace_info(trace), err);
    free(log);
    free(meta);
    return status;
}

/* ---- CSV
 * ----------------------------------------------------------------------------------------------------------------------
 */

tw_status tw_trace_export_csv(const char *path, struct tw_trace *trace, struct tw_progress *progress,
                              struct tw_error *err) {
    const struct tw_trace_info *const info = tw_trace_info(trace);
    const size_t L = info->n_layers, H = info->n_heads, K = info->top_k, layer = BLOCK * H * K;
    size_t n;
    int32_t *position = NULL;
    uint16_t *weight = NULL;
    if (tw_mul_size(&n, layer, L * sizeof *position)) {
        position = malloc(n);
        weight = malloc(n / 2);
    }
    struct tw_output output = {0};
    tw_status status = position && weight
                           ? tw_output_open(&output, path, err)
                           : TW_FAIL(err, TW_E_MEMORY, "out of memory for exporting '%s'", tw_trace_path(trace));
    struct tw_text line = {0};
    tw_text_append(&line, TW_VIEW("step,layer,head,rank,position,weight\n"));
    for (size_t first = 0; status == TW_OK && first < info->n_steps; first += BLOCK) {
        const size_t count = tw_min_size(BLOCK, info->n_steps - first);
        for (size_t l = 0; status == TW_OK && l < L; l++)
            status = tw_trace_read_layer(trace, position + l * layer, weight + l * layer, l, first, count, err);
        for (size_t i = 0; status == TW_OK && i < count * L * H * K; i++) { /* step, layer, head, rank */
            const size_t t = i / (L * H * K), l = i / (H * K) % L, at = l * layer + t * H * K + i % (H * K);
            if (position[at] < 0) continue;
            tw_text_printf(&line, "%zu,%zu,%zu,%zu,%d,", first + t, l, i / K % H, i % K, position[at]);
            tw_text_append_double(&line, tw_float_from_half(weight[at]));
            tw_text_append_char(&line, '\n');
            if (line.size < 1 << 16) continue;
            fwrite(line.data, 1, line.size, output.stream); /* commit sees the stream's errors */
            tw_text_clear(&line);
        }
        if (status == TW_OK && tw_stop_requested()) status = TW_FAIL(err, TW_E_INTERRUPTED, "interrupted");
        tw_progress_update(progress, "export", first + count, info->n_steps, "steps", NULL);
    }
    if (status == TW_OK && !tw_text_ok(&line)) status = TW_FAIL(err, TW_E_MEMORY, "out of memory for a line");
    if (status == TW_OK) {
        fwrite(line.data, 1, line.size, output.stream);
        status = tw_output_commit(&output, err);
    } else {
        tw_output_discard(&output);
    }
    tw_text_release(&line);
    free(position);
    free(weight);
    return status;
}
