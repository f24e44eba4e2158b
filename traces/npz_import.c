#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zip.h>

#include "base/checked.h"
#include "base/file.h"
#include "base/stop.h"
#include "traces/attributes.h"
#include "traces/npy.h"
#include "traces/npz.h"
#include "traces/writer.h"

#define REFUSE(...) TW_FAIL(err, TW_E_INPUT, __VA_ARGS__)

/* The arrays of a log. */
enum array { TOPK_IDX, TOPK_VAL, CTX_LEN, GEN_TOKEN_IDS, NEEDLE_SCORE, COPY_PASTE, PROMPT_TOKEN_IDS, N_ARRAYS };

static const struct {
    const char *name;
    unsigned rank;
    const char *kinds; /* of elements that will do */
    bool required;
} table[N_ARRAYS] = {
    [TOPK_IDX] = {"topk_idx", 4, "iu", true},
    [TOPK_VAL] = {"topk_val", 4, "f", true},
    [CTX_LEN] = {"ctx_len", 1, "iu", true},
    [GEN_TOKEN_IDS] = {"gen_token_ids", 1, "iu", true},
    [NEEDLE_SCORE] = {"needle_score", 3, "f", false},
    [COPY_PASTE] = {"copy_paste", 3, "biu", false},
    [PROMPT_TOKEN_IDS] = {"prompt_token_ids", 1, "iu", false},
};

struct import {
    char *log, *meta; /* paths */
    zip_t *zip;
    void *bytes[N_ARRAYS]; /* whole .npy files */
    struct tw_npy arrays[N_ARRAYS];
    bool has[N_ARRAYS];
    struct tw_trace_info info;
    int32_t *prompt;
};

static bool ends_with(const char *text, const char *ending) {
    const size_t n = strlen(text), m = strlen(ending);
    return n >= m && strcmp(text + n - m, ending) == 0;
}

bool tw_npz_is_log(const char *path) {
    struct stat st;
    if (stat(path, &st) != 0) return false;
    if (!S_ISDIR(st.st_mode)) return ends_with(path, ".npz");
    char *log = NULL;
    const bool is = asprintf(&log, "%s/log.npz", path) >= 0 && stat(log, &st) == 0;
    free(log);
    return is;
}

/* ---- the archive
 * ---------------------------------------------------------------------------------------------------------- */

/* Deflate makes a byte of at most 1032; what claims more is a bomb. */
static bool plausible(const zip_stat_t *about) {
    return about->size <= (about->comp_size + 64) * 1032 && about->size < SIZE_MAX;
}

static tw_status read_array(struct import *import, enum array which, struct tw_error *err) {
    char entry[64], name[4096];
    snprintf(entry, sizeof entry, "%s.npy", table[which].name);
    snprintf(name, sizeof name, "'%s' in '%s'", table[which].name, import->log);
    const zip_int64_t index = zip_name_locate(import->zip, entry, 0);
    if (index < 0) return table[which].required ? REFUSE("%s: is missing", name) : TW_OK;
    zip_stat_t about;
    if (zip_stat_index(import->zip, (zip_uint64_t)index, 0, &about) != 0 || !plausible(&about))
        return REFUSE("%s: has an implausible size", name);
    const size_t size = (size_t)about.size;
    zip_file_t *const file = zip_fopen_index(import->zip, (zip_uint64_t)index, 0);
    if (!file) return REFUSE("%s: cannot be read: %s", name, zip_strerror(import->zip));
    char *const bytes = import->bytes[which] = malloc(tw_max_size(size, 1));
    if (!bytes) {
        zip_fclose(file);
        return TW_FAIL(err, TW_E_MEMORY, "out of memory for %s, %zu bytes", name, size);
    }
    size_t got = 0;
    zip_int64_t n = 0;
    while (got < size && (n = zip_fread(file, bytes + got, size - got)) > 0) got += (size_t)n;
    char beyond;
    const bool whole = got == size && zip_fread(file, &beyond, 1) == 0; /* the end is where the checksum is compared */
    const int failed = zip_fclose(file);
    if (!whole || failed) return REFUSE("%s: is damaged", name);
    struct tw_npy *const array = &import->arrays[which];
    TW_TRY(tw_npy_parse(array, bytes, size, name, err));
    if (array->rank != table[which].rank)
        return REFUSE("%s: has rank %u, expected %u", name, array->rank, table[which].rank);
    if (!strchr(table[which].kinds, array->kind))
        return REFUSE("%s: has elements of kind '%c', expected one of '%s'", name, array->kind, table[which].kinds);
    import->has[which] = true;
    return TW_OK;
}

static tw_status read_archive(struct import *import, struct tw_error *err) {
    int code = 0;
    import->zip = zip_open(import->log, ZIP_RDONLY, &code);
    if (!import->zip) {
        zip_error_t error;
        zip_error_init_with_code(&error, code);
        const tw_status status =
            code == ZIP_ER_NOENT || code == ZIP_ER_NOZIP || code == ZIP_ER_INCONS
                ? REFUSE("cannot open log '%s': %s", import->log, zip_error_strerror(&error))
                : TW_FAIL(err, TW_E_IO, "cannot open log '%s': %s", import->log, zip_error_strerror(&error));
        zip_error_fini(&error);
        return status;
    }
    for (int which = 0; which < N_ARRAYS; which++) TW_TRY(read_array(import, (enum array)which, err));
    return TW_OK;
}

/* ---- meta.json
 * ------------------------------------------------------------------------------------------------------------- */

/* Names of meta.json that go into fields of another name, and those that the trace derives itself. */
static const struct { const char *theirs, *ours; } renamed[] = {{"prompt_len", "prompt_length"}, {"topk", "top_k"}};
static const char *const derived[] = {"format",       "format_version", "n_steps",          "complete",
                                      "needle_begin", "needle_end",     "needle_token_span"};

static bool integer(const cJSON *value, int64_t *number) {
    if (!cJSON_IsNumber(value) || !(fabs(value->valuedouble) < 0x1p53) ||
        value->valuedouble != floor(value->valuedouble))
        return false;
    *number = (int64_t)value->valuedouble;
    return true;
}

static tw_status set_field(struct import *import, const struct tw_attribute_row *row, const cJSON *value,
                           struct tw_error *err) {
    char *const field = (char *)&import->info + row->offset;
    int64_t number;
    if (row->kind == TW_KIND_TEXT) {
        if (!cJSON_IsString(value)) return REFUSE("'%s': '%s' is not a string", import->meta, value->string);
        return tw_trace_info_set((char **)(void *)field, value->valuestring, err);
    }
    if (!integer(value, &number) || number < 0)
        return REFUSE("'%s': '%s' is not a whole number of 0 or more", import->meta, value->string);
    if (row->kind == TW_KIND_SIZE)
        *(size_t *)(void *)field = (size_t)number;
    else
        *(uint64_t *)(void *)field = (uint64_t)number;
    return TW_OK;
}

static tw_status add_extra(struct import *import, const cJSON *value, struct tw_error *err) {
    struct tw_trace_attribute extra = {.name = strdup(value->string)};
    if (cJSON_IsString(value)) {
        extra.type = TW_ATTRIBUTE_TEXT;
        extra.text = strdup(value->valuestring);
    } else if (cJSON_IsBool(value)) {
        extra.type = TW_ATTRIBUTE_INTEGER;
        extra.integer = cJSON_IsTrue(value);
    } else if (integer(value, &extra.integer)) {
        extra.type = TW_ATTRIBUTE_INTEGER;
    } else if (cJSON_IsNumber(value)) {
        extra.type = TW_ATTRIBUTE_REAL;
        extra.real = value->valuedouble;
    } else { /* arrays and objects as their JSON */
        extra.type = TW_ATTRIBUTE_TEXT;
        char *const printed = cJSON_PrintUnformatted(value);
        extra.text = printed ? strdup(printed) : NULL;
        cJSON_free(printed);
    }
    struct tw_trace_info *const info = &import->info;
    struct tw_trace_attribute *const larger = realloc(info->extra, (info->n_extra + 1) * sizeof *larger);
    if (larger) info->extra = larger;
    if (!larger || !extra.name || (extra.type == TW_ATTRIBUTE_TEXT && !extra.text)) {
        free(extra.name);
        free(extra.text);
        return TW_FAIL(err, TW_E_MEMORY, "out of memory for '%s'", import->meta);
    }
    info->extra[info->n_extra++] = extra;
    return TW_OK;
}

static tw_status take_member(struct import *import, const cJSON *value, struct tw_error *err) {
    const char *name = value->string;
    if (cJSON_IsNull(value) || !*name) return TW_OK;
    for (size_t i = 0; i < sizeof derived / sizeof *derived; i++)
        if (strcmp(name, derived[i]) == 0) return TW_OK;
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++)
        if (strcmp(name, renamed[i].theirs) == 0) name = renamed[i].ours;
    for (const struct tw_attribute_row *row = tw_attribute_rows; row->name; row++)
        if (strcmp(row->name, name) == 0) return set_field(import, row, value, err);
    for (size_t i = 0; i < import->info.n_extra; i++)
        if (strcmp(import->info.extra[i].name, name) == 0)
            return REFUSE("'%s': '%s' stands there twice", import->meta, name);
    return add_extra(import, value, err);
}

static tw_status take_span(struct import *import, const cJSON *meta, struct tw_error *err) {
    const cJSON *const span = cJSON_GetObjectItemCaseSensitive(meta, "needle_token_span");
    if (!span || cJSON_IsNull(span)) return TW_OK;
    int64_t begin, end;
    if (cJSON_GetArraySize(span) != 2 || !integer(cJSON_GetArrayItem(span, 0), &begin) ||
        !integer(cJSON_GetArrayItem(span, 1), &end) || begin < 0 || end < begin)
        return REFUSE("'%s': 'needle_token_span' is not [start, end)", import->meta);
    import->info.has_needle = true;
    import->info.needle_begin = (size_t)begin;
    import->info.needle_end = (size_t)end;
    return TW_OK;
}

static tw_status read_meta(struct import *import, struct tw_error *err) {
    struct tw_text text = {0};
    tw_status status = tw_file_read(&text, import->meta, (size_t)64 << 20, "the log's description", err);
    cJSON *const meta = status == TW_OK ? cJSON_ParseWithLength(tw_text_string(&text), text.size) : NULL;
    if (status == TW_OK && !cJSON_IsObject(meta)) status = REFUSE("'%s': is not a JSON object", import->meta);
    static const char *const required[] = {"prompt_len", "n_layers", "n_heads", "n_kv_heads", "topk"};
    for (size_t i = 0; status == TW_OK && i < sizeof required / sizeof *required; i++)
        if (!cJSON_GetObjectItemCaseSensitive(meta, required[i]))
            status = REFUSE("'%s': '%s' is missing", import->meta, required[i]);
    for (const cJSON *value = status == TW_OK ? meta->child : NULL; status == TW_OK && value; value = value->next)
        status = take_member(import, value, err);
    tw_attributes_sort(&import->info);
    if (status == TW_OK) status = take_span(import, meta, err);
    if (status == TW_OK)
        import->info.has_windows = cJSON_GetObjectItemCaseSensitive(meta, "sink_tokens") &&
                                   cJSON_GetObjectItemCaseSensitive(meta, "local_window");
    cJSON_Delete(meta);
    tw_text_release(&text);
    return status;
}

/* ---- into a trace
 * ----------------------------------------------------------------------------------------------------------- */

static tw_status check_shapes(struct import *import, struct tw_error *err) {
    const struct tw_trace_info *const info = &import->info;
    const size_t S = import->arrays[TOPK_IDX].shape[0];
    const size_t expected[N_ARRAYS][4] = {
        [TOPK_IDX] = {S, info->n_layers, info->n_heads, info->top_k},
        [TOPK_VAL] = {S, info->n_layers, info->n_heads, info->top_k},
        [CTX_LEN] = {S},
        [GEN_TOKEN_IDS] = {S},
        [NEEDLE_SCORE] = {S, info->n_layers, info->n_heads},
        [COPY_PASTE] = {S, info->n_layers, info->n_heads},
        [PROMPT_TOKEN_IDS] = {info->prompt_length},
    };
    TW_TRY(tw_trace_info_check(info, import->meta, err));
    for (int which = 0; which < N_ARRAYS; which++)
        for (unsigned d = 0; import->has[which] && d < table[which].rank; d++)
            if (import->arrays[which].shape[d] != expected[which][d])
                return REFUSE("'%s' in '%s': has extent %zu in dimension %u, expected %zu", table[which].name,
                              import->log, import->arrays[which].shape[d], d, expected[which][d]);
    return TW_OK;
}

static tw_status take(const struct import *import, void *out, enum tw_npy_target target, enum array which, size_t index,
                      struct tw_error *err) {
    if (!import->has[which] || tw_npy_slab(&import->arrays[which], out, target, index)) return TW_OK;
    return REFUSE("'%s' in '%s': has a value out of range at index %zu", table[which].name, import->log, index);
}

static tw_status read_prompt(struct import *import, struct tw_error *err) {
    const size_t n = import->info.prompt_length;
    import->prompt = malloc(tw_max_size(n, 1) * sizeof *import->prompt);
    if (!import->prompt) return TW_FAIL(err, TW_E_MEMORY, "out of memory for the prompt of '%s'", import->log);
    for (size_t i = 0; i < n; i++) {
        import->prompt[i] = -1;
        TW_TRY(take(import, &import->prompt[i], TW_NPY_I32, PROMPT_TOKEN_IDS, i, err));
    }
    return TW_OK;
}

static tw_status append_steps(const struct import *import, struct tw_trace_writer *writer, struct tw_progress *progress,
                              struct tw_error *err) {
    const struct tw_trace_info *const info = &import->info;
    const size_t S = import->arrays[TOPK_IDX].shape[0], rows = info->n_layers * info->n_heads, n = rows * info->top_k;
    int32_t *const position = malloc(tw_max_size(n, 1) * sizeof *position);
    float *const weight = malloc(tw_max_size(n, 1) * sizeof *weight), *const needle = malloc(rows * sizeof *needle);
    uint8_t *const copy_paste = malloc(rows);
    tw_status status = position && weight && needle && copy_paste
                           ? TW_OK
                           : TW_FAIL(err, TW_E_MEMORY, "out of memory for a step of '%s'", import->log);
    for (size_t t = 0; status == TW_OK && t < S; t++) {
        struct tw_trace_step step = {
            .position = position,
            .weight = weight,
            .needle = import->has[NEEDLE_SCORE] ? needle : NULL,
            .copy_paste = import->has[COPY_PASTE] ? copy_paste : NULL,
        };
        status = take(import, position, TW_NPY_I32, TOPK_IDX, t, err);
        if (status == TW_OK) status = take(import, weight, TW_NPY_F32, TOPK_VAL, t, err);
        if (status == TW_OK) status = take(import, &step.context_length, TW_NPY_I32, CTX_LEN, t, err);
        if (status == TW_OK) status = take(import, &step.token_id, TW_NPY_I32, GEN_TOKEN_IDS, t, err);
        if (status == TW_OK) status = take(import, needle, TW_NPY_F32, NEEDLE_SCORE, t, err);
        if (status == TW_OK) status = take(import, copy_paste, TW_NPY_U8, COPY_PASTE, t, err);
        if (status == TW_OK) status = tw_trace_writer_append(writer, &step, err);
        if (status == TW_OK && tw_stop_requested()) status = TW_FAIL(err, TW_E_INTERRUPTED, "interrupted");
        tw_progress_update(progress, "import", t + 1, S, "steps", NULL);
    }
    free(position);
    free(weight);
    free(needle);
    free(copy_paste);
    return status;
}

tw_status tw_npz_import(const char *trace_path, const char *folder, bool force, struct tw_progress *progress,
                        struct tw_error *err) {
    struct import import = {0};
    const bool file = ends_with(folder, ".npz");
    const char *const slash = file ? strrchr(folder, '/') : NULL;
    const int length = file ? (slash ? (int)(slash - folder) : 1) : (int)strlen(folder);
    const char *const where = file && !slash ? "." : folder;
    struct tw_trace_writer *writer = NULL;
    tw_status status = TW_OK;
    if (asprintf(&import.log, "%s%s", folder, file ? "" : "/log.npz") < 0 ||
        asprintf(&import.meta, "%.*s/meta.json", length, where) < 0)
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory for '%s'", folder);
    if (status == TW_OK) status = read_meta(&import, err);
    if (status == TW_OK) status = read_archive(&import, err);
    if (status == TW_OK) status = check_shapes(&import, err);
    if (status == TW_OK) status = read_prompt(&import, err);
    const struct tw_trace_writer_options how = {
        .force = force,
        .weight_float = import.has[TOPK_VAL] && import.arrays[TOPK_VAL].item_bytes > 2,
        .needle = import.has[NEEDLE_SCORE],
        .copy_paste = import.has[COPY_PASTE],
    };
    if (status == TW_OK) status = tw_trace_writer_create(&writer, trace_path, &import.info, import.prompt, &how, err);
    if (status == TW_OK) status = append_steps(&import, writer, progress, err);
    if (writer && (status == TW_OK || status == TW_E_INTERRUPTED)) {
        const tw_status finished = tw_trace_writer_finish(writer, status == TW_OK, status == TW_OK ? err : NULL);
        if (status == TW_OK) status = finished;
    }
    const bool begun = writer != NULL;
    tw_trace_writer_free(writer);
    if (begun && status == TW_E_INPUT) unlink(trace_path); /* half a bad log is of no use */
    if (import.zip) zip_discard(import.zip);
    for (int which = 0; which < N_ARRAYS; which++) free(import.bytes[which]);
    tw_trace_info_release(&import.info);
    free(import.prompt);
    free(import.log);
    free(import.meta);
    return status;
}
