#include "traces/trace.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checked.h"
#include "traces/attributes.h"
#include "traces/dataset.h"
#include "traces/h5.h"

struct tw_trace {
    char *path;
    struct tw_h5_file file;
    hid_t id;
    struct tw_trace_info info;
    struct tw_dataset datasets[TW_TRACE_N_DATASETS];
    int32_t *context_length; /* [n_steps] */
    _Atomic uint64_t unpacked;
};

/* Each dataset once: what is expected of it. Extents are letters: see extent_of. */
static const struct {
    const char *path, *extents;
    bool real, required;
} table[TW_TRACE_N_DATASETS] = {
    [TW_TRACE_POSITION] = {"/topk/position", "SLHK", false, true},
    [TW_TRACE_WEIGHT] = {"/topk/weight", "SLHK", true, true},
    [TW_TRACE_CONTEXT_LENGTH] = {"/step/context_length", "S", false, true},
    [TW_TRACE_TOKEN_ID] = {"/step/token_id", "S", false, true},
    [TW_TRACE_PROMPT] = {"/prompt/token_id", "P", false, true},
    [TW_TRACE_NEEDLE] = {"/score/needle", "SLH", true, false},
    [TW_TRACE_COPY_PASTE] = {"/score/copy_paste", "SLH", false, false},
    [TW_TRACE_WINDOW_VOTE] = {"/prefill/window_vote", "LGP", true, false},
    [TW_TRACE_KEPT] = {"/prefill/kept", "LGN", false, false},
    [TW_TRACE_KEY] = {"/kv/key", "TLGd", true, false},
};

const char *tw_trace_dataset_path(enum tw_trace_dataset dataset) { return table[dataset].path; }

#define REFUSE(...) TW_FAIL(err, TW_E_INPUT, __VA_ARGS__)

/* ---- opening ---------------------------------------------------------------------------------------------------- */

/* What a dimension must be; SIZE_MAX: anything. */
static size_t extent_of(const struct tw_trace_info *info, char letter) {
    switch (letter) {
    case 'S': return info->n_steps;
    case 'L': return info->n_layers;
    case 'H': return info->n_heads;
    case 'K': return info->top_k;
    case 'P': return info->prompt_length;
    case 'G': return info->n_kv_heads;
    case 'd': return info->head_dim ? info->head_dim : SIZE_MAX;
    case 'T': return info->n_steps ? info->prompt_length + info->n_steps - 1 : SIZE_MAX; /* no step, any keys */
    default: return SIZE_MAX;
    }
}

/* Dimensions that grow with the run: those of an incomplete trace may be ahead of or behind what can be read. */
static bool grows(char letter) { return letter == 'S' || letter == 'T'; }

static tw_status open_dataset(struct tw_trace *trace, enum tw_trace_dataset which, struct tw_error *err) {
    struct tw_dataset *const dataset = &trace->datasets[which];
    const char *const extents = table[which].extents;
    TW_TRY(tw_dataset_open(dataset, trace->id, table[which].path, (unsigned)strlen(extents), table[which].real,
                           trace->path, trace->file.size, &trace->unpacked, err));
    if (dataset->id < 0) {
        if (!table[which].required) return TW_OK;
        return REFUSE("trace '%s': dataset '%s' is missing", trace->path, table[which].path);
    }
    for (unsigned d = 0; extents[d]; d++) {
        if (grows(extents[d]) && !trace->info.complete) continue;
        const size_t expected = extent_of(&trace->info, extents[d]);
        if (expected != SIZE_MAX && dataset->extent[d] != expected)
            return REFUSE("trace '%s': '%s' has extent %zu in dimension %u, the attributes say %zu", trace->path,
                          table[which].path, dataset->extent[d], d, expected);
    }
    if (trace->info.complete) return tw_dataset_check_chunks(dataset, err);
    if (grows(extents[0])) return TW_OK;
    /* A run that was stopped in prefill: what it had not come to is not there. */
    const tw_status status = tw_dataset_check_chunks(dataset, err);
    if (status == TW_OK || table[which].required) return status;
    tw_dataset_close(dataset);
    return TW_OK;
}

/* Steps below n whose rows of `dataset` can be unpacked, trying from the end until two rows of chunks in a row can. */
static tw_status unpackable(size_t *n, const struct tw_dataset *dataset, struct tw_error *err) {
    size_t rest = tw_dataset_stored_rows(dataset, *n);
    *n = tw_min_size(*n, rest);
    struct tw_box box = {0};
    struct tw_trace_scratch *const scratch = tw_trace_scratch_new();
    tw_status status = scratch ? TW_OK : TW_FAIL(err, TW_E_MEMORY, "out of memory for a decompressor");
    const size_t step = dataset->chunk[0];
    void *rows = NULL;
    size_t bytes = tw_min_size(step, *n) * 4; /* no kind is wider than 4 bytes */
    bool sized = true;
    for (unsigned d = 1; d < dataset->rank; d++) sized = sized && tw_mul_size(&bytes, bytes, dataset->extent[d]);
    if (status == TW_OK && bytes && !(sized && (rows = malloc(bytes))))
        status = TW_FAIL(err, TW_E_MEMORY, "trace '%s': out of memory for a block of '%s'", dataset->file_path,
                         dataset->path);
    for (unsigned sound = 0; status == TW_OK && sound < 2 && rest > 0;) {
        size_t start[TW_DATASET_MAX_RANK] = {(rest - 1) / step * step}, count[TW_DATASET_MAX_RANK];
        for (unsigned d = 0; d < dataset->rank; d++) count[d] = d ? dataset->extent[d] : rest - start[0];
        const enum tw_element_kind kind = dataset->element.real ? TW_ELEMENT_F32 : TW_ELEMENT_I32;
        struct tw_error why = {0};
        tw_status tried = tw_box_read(&box, dataset, start, count, &why);
        if (tried == TW_OK) tried = tw_box_decode(&box, rows, kind, start[0], count[0], scratch, &why);
        if (tried == TW_E_MEMORY) status = TW_FAIL(err, tried, "%s", why.text);
        sound = tried == TW_OK ? sound + 1 : 0;
        if (tried != TW_OK) *n = start[0];
        rest = start[0];
    }
    free(rows);
    tw_box_release(&box);
    tw_trace_scratch_free(scratch);
    return status;
}

/* The longest prefix of steps that every dataset of an incomplete trace can give. */
static tw_status find_prefix(struct tw_trace *trace, struct tw_error *err) {
    size_t n = trace->info.n_steps;
    for (int which = 0; which < TW_TRACE_N_DATASETS; which++) {
        struct tw_dataset *const dataset = &trace->datasets[which];
        if (dataset->id < 0 || !grows(table[which].extents[0])) continue;
        const bool keys = table[which].extents[0] == 'T';
        /* Step t needs the keys of positions up to prompt_length + t - 1; step 0 those of the prompt. */
        const size_t before = keys && trace->info.prompt_length ? trace->info.prompt_length - 1 : 0;
        size_t rows = tw_min_size(dataset->extent[0], n ? n + before : 0);
        TW_TRY(unpackable(&rows, dataset, err));
        n = tw_min_size(n, rows > before ? rows - before : 0);
    }
    trace->info.n_steps = n;
    return TW_OK;
}

static tw_status read_context_lengths(struct tw_trace *trace, struct tw_error *err) {
    const size_t n = trace->info.n_steps, start = 0;
    trace->context_length = malloc(tw_max_size(n, 1) * sizeof *trace->context_length);
    if (!trace->context_length)
        return TW_FAIL(err, TW_E_MEMORY, "trace '%s': out of memory for %zu steps", trace->path, n);
    TW_TRY(tw_dataset_read(&trace->datasets[TW_TRACE_CONTEXT_LENGTH], trace->context_length, TW_ELEMENT_I32, &start, &n,
                           err));
    for (size_t t = 0; t < n; t++)
        if (trace->context_length[t] < 0)
            return REFUSE("trace '%s': '/step/context_length' is %" PRId32 " at step %zu", trace->path,
                          trace->context_length[t], t);
    return TW_OK;
}

/* libhdf5 says "unable to open file" of all of these. */
static tw_status explain_foreign(struct tw_trace *trace, const char *reason, struct tw_error *err) {
    static const char signature[8] = "\x89HDF\r\n\x1a\n", pointer[] = "version https://git-lfs";
    char head[32] = {0};
    const ssize_t n = trace->file.fd >= 0 ? pread(trace->file.fd, head, sizeof head, 0) : 0;
    if (trace->file.fd < 0) memcpy(head, trace->file.memory, tw_min_size(sizeof head, (size_t)trace->file.size));
    if (n < 0) return TW_FAIL(err, TW_E_IO, "cannot read trace '%s': %s", trace->path, strerror(errno));
    if (memcmp(head, pointer, sizeof pointer - 1) == 0)
        return REFUSE("trace '%s': is a Git LFS pointer, not the file itself: fetch it with 'git lfs pull'",
                      trace->path);
    if (memcmp(head, signature, sizeof signature) != 0) return REFUSE("trace '%s': is not an HDF5 file", trace->path);
    return REFUSE("trace '%s': is damaged or cut short: %s", trace->path, reason);
}

static tw_status open_all(struct tw_trace *trace, struct tw_error *err) {
    if (trace->file.size == 0) return REFUSE("trace '%s': is empty", trace->path);
    trace->id = tw_h5_open(&trace->file);
    if (trace->id < 0) {
        const char *const reason = tw_h5_reason();
        if (trace->file.failure)
            return TW_FAIL(err, TW_E_IO, "cannot read trace '%s': %s", trace->path, strerror(trace->file.failure));
        return explain_foreign(trace, reason, err);
    }
    trace->file.heaps = true;
    const tw_status status = tw_attributes_read(&trace->info, trace->id, trace->path, err);
    trace->file.heaps = false;
    TW_TRY(status);
    for (int which = 0; which < TW_TRACE_N_DATASETS; which++)
        TW_TRY(open_dataset(trace, (enum tw_trace_dataset)which, err));
    if (!trace->info.complete) TW_TRY(find_prefix(trace, err));
    return read_context_lengths(trace, err);
}

static tw_status open_file(struct tw_trace **result, const char *path, struct tw_h5_file file, struct tw_error *err) {
    struct tw_trace *const trace = calloc(1, sizeof *trace);
    *result = NULL;
    if (!trace || !(trace->path = strdup(path))) {
        free(trace);
        if (file.fd >= 0) close(file.fd);
        return TW_FAIL(err, TW_E_MEMORY, "out of memory for trace '%s'", path);
    }
    trace->file = file;
    trace->id = -1;
    for (int which = 0; which < TW_TRACE_N_DATASETS; which++) trace->datasets[which].id = -1;
    tw_h5_enter_reading(trace->path);
    const tw_status status = open_all(trace, err);
    tw_h5_leave();
    if (status == TW_OK)
        *result = trace;
    else
        tw_trace_free(trace);
    return status;
}

tw_status tw_trace_open(struct tw_trace **trace, const char *path, struct tw_error *err) {
    *trace = NULL;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a named pipe is refused below, not waited for */
    if (fd < 0) {
        const bool users =
            errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == ELOOP || errno == ENAMETOOLONG;
        return TW_FAIL(err, users ? TW_E_INPUT : TW_E_IO, "cannot open trace '%s': %s", path, strerror(errno));
    }
    struct tw_h5_file file;
    struct stat st;
    tw_status status = tw_h5_file_init(&file, fd, path, err);
    if (status == TW_OK && fstat(fd, &st) == 0 && !S_ISREG(st.st_mode))
        status =
            REFUSE("trace '%s': is %s, expected a file", path, S_ISDIR(st.st_mode) ? "a directory" : "no regular file");
    if (status != TW_OK) {
        close(fd);
        return status;
    }
    return open_file(trace, path, file, err);
}

tw_status tw_trace_open_memory(struct tw_trace **trace, const void *data, size_t size, const char *name,
                               struct tw_error *err) {
    return open_file(trace, name, (struct tw_h5_file){.fd = -1, .memory = data, .size = size}, err);
}

void tw_trace_free(struct tw_trace *trace) {
    if (!trace) return;
    tw_h5_enter_reading(trace->path);
    for (int which = 0; which < TW_TRACE_N_DATASETS; which++) tw_dataset_close(&trace->datasets[which]);
    if (trace->id >= 0) H5Fclose(trace->id);
    H5Eclear2(H5E_DEFAULT);
    tw_h5_leave();
    if (trace->file.fd >= 0) close(trace->file.fd);
    tw_trace_info_release(&trace->info);
    free(trace->context_length);
    free(trace->path);
    free(trace);
}

const struct tw_trace_info *tw_trace_info(const struct tw_trace *trace) { return &trace->info; }
const char *tw_trace_path(const struct tw_trace *trace) { return trace->path; }
const int32_t *tw_trace_context_length(const struct tw_trace *trace) { return trace->context_length; }

bool tw_trace_has(const struct tw_trace *trace, enum tw_trace_dataset dataset) {
    return trace->datasets[dataset].id >= 0;
}

uint64_t tw_trace_chunks_unpacked(const struct tw_trace *trace) {
    return atomic_load_explicit(&((struct tw_trace *)(uintptr_t)trace)->unpacked, memory_order_relaxed);
}

/* ---- positions and weights -------------------------------------------------------------------------------------- */

struct tw_trace_raw {
    const struct tw_trace *trace;
    struct tw_box position, weight;
    size_t layer, first_step, n_steps, block_steps;
};

struct tw_trace_raw *tw_trace_raw_new(void) {
    return calloc(1, sizeof(struct tw_trace_raw));
}

void tw_trace_raw_free(struct tw_trace_raw *raw) {
    if (!raw) return;
    tw_box_release(&raw->position);
    tw_box_release(&raw->weight);
    free(raw);
}

/* Steps a block: whole chunks of both datasets. A contiguous dataset goes with anything. */
static size_t choose_block(const struct tw_trace *trace, size_t n_steps) {
    const struct tw_dataset *const position = &trace->datasets[TW_TRACE_POSITION];
    const struct tw_dataset *const weight = &trace->datasets[TW_TRACE_WEIGHT];
    if (!position->chunked && !weight->chunked) return 16;
    const size_t a = position->chunk[0], b = weight->chunk[0], large = tw_max_size(a, b);
    return large % tw_min_size(a, b) == 0 ? large : tw_max_size(large, n_steps);
}

tw_status tw_trace_raw_read(struct tw_trace_raw *raw, struct tw_trace *trace, size_t layer, size_t first_step,
                            size_t n_steps, struct tw_error *err) {
    const struct tw_trace_info *const info = &trace->info;
    assert(layer < info->n_layers && first_step <= info->n_steps && n_steps <= info->n_steps - first_step);
    const size_t start[] = {first_step, layer, 0, 0}, count[] = {n_steps, 1, info->n_heads, info->top_k};
    raw->trace = trace;
    raw->layer = layer;
    raw->first_step = first_step;
    raw->n_steps = 0;
    raw->block_steps = choose_block(trace, first_step + n_steps);
    TW_TRY(tw_box_read(&raw->position, &trace->datasets[TW_TRACE_POSITION], start, count, err));
    TW_TRY(tw_box_read(&raw->weight, &trace->datasets[TW_TRACE_WEIGHT], start, count, err));
    raw->n_steps = n_steps;
    return TW_OK;
}

size_t tw_trace_raw_block_steps(const struct tw_trace_raw *raw) { return raw->block_steps; }

size_t tw_trace_raw_n_blocks(const struct tw_trace_raw *raw) {
    if (raw->n_steps == 0) return 0;
    return (raw->first_step + raw->n_steps - 1) / raw->block_steps - raw->first_step / raw->block_steps + 1;
}

void tw_trace_raw_block_range(const struct tw_trace_raw *raw, size_t block, size_t *first, size_t *n) {
    assert(block < tw_trace_raw_n_blocks(raw));
    const size_t begin = (raw->first_step / raw->block_steps + block) * raw->block_steps;
    *first = tw_max_size(begin, raw->first_step);
    *n = tw_min_size(begin + raw->block_steps, raw->first_step + raw->n_steps) - *first;
}

static tw_status check_positions(const struct tw_trace *trace, const int32_t *position, size_t layer, size_t first,
                                 size_t n, struct tw_error *err) {
    const size_t row = trace->info.n_heads * trace->info.top_k;
    for (size_t t = 0; t < n; t++) {
        const int32_t *const p = position + t * row;
        const int32_t context = trace->context_length[first + t];
        uint32_t largest = 0; /* of p + 1: -1 is 0, anything below is huge */
        for (size_t i = 0; i < row; i++) {
            const uint32_t above = (uint32_t)p[i] + 1;
            largest = above > largest ? above : largest;
        }
        if (largest <= (uint32_t)context) continue;
        size_t bad = 0;
        while ((uint32_t)p[bad] + 1 <= (uint32_t)context) bad++;
        return REFUSE("trace '%s': '/topk/position' is %" PRId32
                      " at step %zu, layer %zu, head %zu, where the context has "
                      "%" PRId32 " tokens",
                      trace->path, p[bad], first + t, layer, bad / trace->info.top_k, context);
    }
    return TW_OK;
}

static tw_status check_weights(const struct tw_trace *trace, uint16_t *weight, size_t layer, size_t first, size_t n,
                               struct tw_error *err) {
    const size_t row = trace->info.n_heads * trace->info.top_k;
    uint16_t largest = 0;
    for (size_t i = 0; i < n * row; i++) largest = weight[i] > largest ? weight[i] : largest;
    if (largest < 0x7c00) return TW_OK;
    for (size_t i = 0; i < n * row; i++) {
        if (weight[i] < 0x7c00) continue;
        if (weight[i] != 0x8000)
            return REFUSE("trace '%s': '/topk/weight' is %s at step %zu, layer %zu, head %zu", trace->path,
                          (weight[i] & 0x7fff) >= 0x7c00 ? "not finite" : "negative", first + i / row, layer,
                          i % row / trace->info.top_k);
        weight[i] = 0; /* minus zero */
    }
    return TW_OK;
}

tw_status tw_trace_raw_decode(const struct tw_trace_raw *raw, size_t block, int32_t *position, uint16_t *weight,
                              struct tw_trace_scratch *scratch, struct tw_error *err) {
    size_t first, n;
    tw_trace_raw_block_range(raw, block, &first, &n);
    if (position) {
        TW_TRY(tw_box_decode(&raw->position, position, TW_ELEMENT_I32, first, n, scratch, err));
        TW_TRY(check_positions(raw->trace, position, raw->layer, first, n, err));
    }
    if (weight) {
        TW_TRY(tw_box_decode(&raw->weight, weight, TW_ELEMENT_HALF, first, n, scratch, err));
        TW_TRY(check_weights(raw->trace, weight, raw->layer, first, n, err));
    }
    return TW_OK;
}

tw_status tw_trace_read_layer(struct tw_trace *trace, int32_t *position, uint16_t *weight, size_t layer,
                              size_t first_step, size_t n_steps, struct tw_error *err) {
    struct tw_trace_raw *const raw = tw_trace_raw_new();
    struct tw_trace_scratch *const scratch = tw_trace_scratch_new();
    tw_status status = raw && scratch ? tw_trace_raw_read(raw, trace, layer, first_step, n_steps, err)
                                      : TW_FAIL(err, TW_E_MEMORY, "out of memory for a layer of '%s'", trace->path);
    const size_t row = trace->info.n_heads * trace->info.top_k;
    for (size_t b = 0; status == TW_OK && b < tw_trace_raw_n_blocks(raw); b++) {
        size_t first, n;
        tw_trace_raw_block_range(raw, b, &first, &n);
        const size_t at = (first - first_step) * row;
        status =
            tw_trace_raw_decode(raw, b, position ? position + at : NULL, weight ? weight + at : NULL, scratch, err);
    }
    tw_trace_scratch_free(scratch);
    tw_trace_raw_free(raw);
    return status;
}

/* ---- the rest ------------------------------------------------------------------------------------------------------
 */

static tw_status need(const struct tw_trace *trace, enum tw_trace_dataset which, struct tw_error *err) {
    if (tw_trace_has(trace, which)) return TW_OK;
    return REFUSE("trace '%s': has no dataset '%s'", trace->path, table[which].path);
}

tw_status tw_trace_read_token_ids(struct tw_trace *trace, int32_t *token_id, struct tw_error *err) {
    const size_t start = 0;
    return tw_dataset_read(&trace->datasets[TW_TRACE_TOKEN_ID], token_id, TW_ELEMENT_I32, &start, &trace->info.n_steps,
                           err);
}

tw_status tw_trace_read_prompt(struct tw_trace *trace, int32_t *token_id, struct tw_error *err) {
    const size_t start = 0;
    return tw_dataset_read(&trace->datasets[TW_TRACE_PROMPT], token_id, TW_ELEMENT_I32, &start,
                           &trace->info.prompt_length, err);
}

tw_status tw_trace_read_needle(struct tw_trace *trace, float *score, size_t layer, size_t first_step, size_t n_steps,
                               struct tw_error *err) {
    TW_TRY(need(trace, TW_TRACE_NEEDLE, err));
    const size_t start[] = {first_step, layer, 0}, count[] = {n_steps, 1, trace->info.n_heads};
    TW_TRY(tw_dataset_read(&trace->datasets[TW_TRACE_NEEDLE], score, TW_ELEMENT_F32, start, count, err));
    for (size_t i = 0; i < n_steps * trace->info.n_heads; i++)
        if (!(score[i] - score[i] == 0))
            return REFUSE("trace '%s': '/score/needle' is not finite at step %zu, layer %zu", trace->path,
                          first_step + i / trace->info.n_heads, layer);
    return TW_OK;
}

tw_status tw_trace_read_copy_paste(struct tw_trace *trace, uint8_t *flag, size_t layer, size_t first_step,
                                   size_t n_steps, struct tw_error *err) {
    TW_TRY(need(trace, TW_TRACE_COPY_PASTE, err));
    const size_t start[] = {first_step, layer, 0}, count[] = {n_steps, 1, trace->info.n_heads};
    TW_TRY(tw_dataset_read(&trace->datasets[TW_TRACE_COPY_PASTE], flag, TW_ELEMENT_U8, start, count, err));
    for (size_t i = 0; i < n_steps * trace->info.n_heads; i++)
        if (flag[i] > 1)
            return REFUSE("trace '%s': '/score/copy_paste' is %u at step %zu, layer %zu, expected 0 or 1", trace->path,
                          flag[i], first_step + i / trace->info.n_heads, layer);
    return TW_OK;
}

static tw_status check_halves(const struct tw_trace *trace, enum tw_trace_dataset which, const uint16_t *half, size_t n,
                              size_t layer, struct tw_error *err) {
    for (size_t i = 0; i < n; i++)
        if ((half[i] & 0x7c00) == 0x7c00)
            return REFUSE("trace '%s': '%s' is not finite in layer %zu", trace->path, table[which].path, layer);
    return TW_OK;
}

tw_status tw_trace_read_window_vote(struct tw_trace *trace, uint16_t *vote, size_t layer, struct tw_error *err) {
    TW_TRY(need(trace, TW_TRACE_WINDOW_VOTE, err));
    const size_t start[] = {layer, 0, 0}, count[] = {1, trace->info.n_kv_heads, trace->info.prompt_length};
    TW_TRY(tw_dataset_read(&trace->datasets[TW_TRACE_WINDOW_VOTE], vote, TW_ELEMENT_HALF, start, count, err));
    return check_halves(trace, TW_TRACE_WINDOW_VOTE, vote, count[1] * count[2], layer, err);
}

size_t tw_trace_kept_width(const struct tw_trace *trace) {
    return tw_trace_has(trace, TW_TRACE_KEPT) ? trace->datasets[TW_TRACE_KEPT].extent[2] : 0;
}

tw_status tw_trace_read_kept(struct tw_trace *trace, int32_t *kept, size_t layer, struct tw_error *err) {
    TW_TRY(need(trace, TW_TRACE_KEPT, err));
    const size_t start[] = {layer, 0, 0}, count[] = {1, trace->info.n_kv_heads, tw_trace_kept_width(trace)};
    TW_TRY(tw_dataset_read(&trace->datasets[TW_TRACE_KEPT], kept, TW_ELEMENT_I32, start, count, err));
    for (size_t i = 0; i < count[1] * count[2]; i++)
        if (kept[i] < -1 || (kept[i] >= 0 && (size_t)kept[i] >= trace->info.prompt_length))
            return REFUSE("trace '%s': '/prefill/kept' is %" PRId32 " in layer %zu, where the prompt has %zu tokens",
                          trace->path, kept[i], layer, trace->info.prompt_length);
    return TW_OK;
}

size_t tw_trace_key_dim(const struct tw_trace *trace) {
    return tw_trace_has(trace, TW_TRACE_KEY) ? trace->datasets[TW_TRACE_KEY].extent[3] : 0;
}

tw_status tw_trace_read_key(struct tw_trace *trace, uint16_t *key, size_t layer, size_t first_position,
                            size_t n_positions, struct tw_error *err) {
    TW_TRY(need(trace, TW_TRACE_KEY, err));
    const struct tw_dataset *const dataset = &trace->datasets[TW_TRACE_KEY];
    const size_t start[] = {first_position, layer, 0, 0};
    const size_t count[] = {n_positions, 1, trace->info.n_kv_heads, dataset->extent[3]};
    TW_TRY(tw_dataset_read(dataset, key, TW_ELEMENT_HALF, start, count, err));
    return check_halves(trace, TW_TRACE_KEY, key, n_positions * count[2] * count[3], layer, err);
}
