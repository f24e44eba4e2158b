#include "traces/writer.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/half.h"
#include "base/text.h"
#include "traces/attributes.h"
#include "traces/create.h"
#include "traces/h5.h"
#include "traces/pack.h"

enum { BLOCK = TW_TRACE_BLOCK }; /* steps between two flushes, too */
enum { FLUSH_CHUNKS = 1024 };    /* a long prompt's keys come before any step: their index must not pile up in memory */

struct late_text {
    char *name;
    struct tw_text text;
};

struct tw_trace_writer {
    char *path;
    struct tw_h5_file file;
    hid_t id;
    hid_t datasets[TW_TRACE_N_DATASETS]; /* -1: not in this trace */
    struct tw_trace_info info;
    struct tw_trace_writer_options options;
    bool existed, failed, finished;
    size_t n_steps;  /* appended */
    size_t n_filled; /* of the block, not yet in the file */
    size_t n_since;  /* chunks written since the last flush that write_chunks asked for */
    /* The block: each layer's chunk is in one piece. */
    int32_t *position;   /* [n_layers][BLOCK][n_heads][top_k] */
    uint8_t *weight;     /* [n_layers][BLOCK][n_heads][top_k] halves or floats */
    float *needle;       /* [n_layers][BLOCK][n_heads] */
    uint8_t *copy_paste; /* [n_layers][BLOCK][n_heads] */
    int32_t context_length[BLOCK], token_id[BLOCK];
    uint16_t *key;                   /* [n_layers][BLOCK][n_kv_heads][head_dim] the last chunk of keys, part-filled */
    size_t *n_keys;                  /* [n_layers] positions so far */
    struct tw_team *team, *own_team; /* the second: if it is the writer's own */
    struct tw_pack *pack;
    struct tw_pack_job *jobs; /* [n_jobs] */
    size_t n_jobs;
    struct late_text *late; /* [n_late] */
    size_t n_late;
};

static size_t weight_bytes(const struct tw_trace_writer *writer) { return writer->options.weight_float ? 4 : 2; }

/* ---- failures -----------------------------------------------------------------------------------------------------
 */

/* From here on nothing is written: what was flushed stays as it is. Under the lock. */
static tw_status give_up(struct tw_trace_writer *writer, const char *what, struct tw_error *err) {
    const int reason = writer->file.failure;
    const char *const words = reason ? strerror(reason) : tw_h5_reason();
    writer->failed = writer->file.dead = true;
    H5Eclear2(H5E_DEFAULT);
    const size_t kept = writer->n_steps - writer->n_filled;
    return TW_FAIL(err, TW_E_IO, "cannot write %s of trace '%s': %s; %zu steps are in the file", what, writer->path,
                   words, kept);
}

static tw_status refuse_more(const struct tw_trace_writer *writer, struct tw_error *err) {
    return TW_FAIL(err, TW_E_IO, "trace '%s': nothing more can be written after a failure", writer->path);
}

/* ---- chunks into the file ------------------------------------------------------------------------------------------
 */

/* Compresses the first n jobs and writes them. */
static tw_status write_chunks(struct tw_trace_writer *writer, size_t n_jobs, struct tw_error *err) {
    assert(n_jobs <= writer->n_jobs);
    TW_TRY(tw_pack_run(writer->pack, writer->jobs, n_jobs, err));
    uint64_t bytes = 1 << 16; /* and the index of chunks: some hundred bytes an entry at most */
    for (size_t i = 0; i < n_jobs; i++) bytes += writer->jobs[i].packed_size + 512;
    tw_h5_enter();
    tw_status status = tw_h5_reserve(&writer->file, bytes) ? TW_OK : give_up(writer, "a block", err);
    for (size_t i = 0; status == TW_OK && i < n_jobs; i++) {
        const struct tw_pack_job *const job = &writer->jobs[i];
        const hsize_t offset[4] = {job->offset[0], job->offset[1], job->offset[2], job->offset[3]};
        tw_h5_gather(&writer->file, job->packed);
        if (H5Dwrite_chunk(writer->datasets[job->dataset], H5P_DEFAULT, 0, offset, job->packed_size, job->packed) < 0)
            status = give_up(writer, tw_trace_dataset_path((enum tw_trace_dataset)job->dataset), err);
        writer->n_since++;
    }
    if (!tw_h5_put_gathered(&writer->file) && status == TW_OK) status = give_up(writer, "a block", err);
    if (status == TW_OK && writer->n_since >= FLUSH_CHUNKS) {
        writer->n_since = 0;
        if (H5Fflush(writer->id, H5F_SCOPE_LOCAL) < 0) status = give_up(writer, "the index of chunks", err);
    }
    tw_h5_leave();
    return status;
}

static void add_job(struct tw_trace_writer *writer, size_t *n, enum tw_trace_dataset which, size_t step, size_t layer,
                    const void *elements, size_t n_elements, size_t element_size) {
    /*
     * Low bytes of positions and of reals are noise. A position's second byte repeats, but not in phrases of 7 bytes;
     * a row's weights descend, so that their exponents stand in runs.
     */
    static const struct {
        bool noisy, matches;
    } kind[TW_TRACE_N_DATASETS] = {
        [TW_TRACE_POSITION] = {true, false},   [TW_TRACE_KEPT] = {true, false},
        [TW_TRACE_WEIGHT] = {true, true},      [TW_TRACE_WINDOW_VOTE] = {true, true},
        [TW_TRACE_KEY] = {true, true},         [TW_TRACE_NEEDLE] = {false, true},
        [TW_TRACE_COPY_PASTE] = {false, true}, [TW_TRACE_PROMPT] = {false, true},
        [TW_TRACE_TOKEN_ID] = {false, true},   [TW_TRACE_CONTEXT_LENGTH] = {false, true},
    };
    assert(*n < writer->n_jobs);
    struct tw_pack_job *const job = &writer->jobs[(*n)++];
    job->n_noisy = !kind[which].noisy ? 0 : which == TW_TRACE_WEIGHT && element_size == 4 ? 2 : 1;
    job->matches = kind[which].matches;
    job->elements = elements;
    job->n_elements = n_elements;
    job->element_size = element_size;
    job->pad = which == TW_TRACE_KEY;
    job->dataset = which;
    job->offset[0] = step;
    job->offset[1] = layer;
    job->offset[2] = job->offset[3] = 0;
}

/* ---- creating -----------------------------------------------------------------------------------------------------
 */

static tw_status allocate(struct tw_trace_writer *writer, struct tw_error *err) {
    const struct tw_trace_info *const info = &writer->info;
    writer->team = writer->options.team;
    if (!writer->team) {
        TW_TRY(tw_team_create(&writer->own_team, (size_t)omp_get_max_threads(), err));
        writer->team = writer->own_team;
    }
    size_t rows, entries, keys;
    const bool sized = tw_mul_size(&rows, info->n_layers * BLOCK, info->n_heads) &&
                       tw_mul_size(&entries, rows, info->top_k) && entries <= SIZE_MAX / 8 &&
                       tw_mul_size(&keys, info->n_layers * BLOCK * info->n_kv_heads, info->head_dim) &&
                       keys <= SIZE_MAX / 8;
    if (sized) {
        writer->position = malloc(entries * sizeof *writer->position);
        writer->weight = malloc(entries * weight_bytes(writer));
        writer->needle = writer->options.needle ? malloc(rows * sizeof *writer->needle) : NULL;
        writer->copy_paste = writer->options.copy_paste ? malloc(rows) : NULL;
        writer->key = writer->options.key ? calloc(keys, sizeof *writer->key) : NULL;
        writer->n_keys = calloc(info->n_layers, sizeof *writer->n_keys);
        writer->n_jobs = 5 * info->n_layers + 2;
        writer->jobs = calloc(writer->n_jobs, sizeof *writer->jobs);
        writer->pack = tw_pack_new(writer->team);
    }
    const struct tw_trace_writer_options *const options = &writer->options;
    if (!sized || !writer->position || !writer->weight || (options->needle && !writer->needle) ||
        (options->copy_paste && !writer->copy_paste) || (options->key && !writer->key) || !writer->n_keys ||
        !writer->jobs || !writer->pack)
        return TW_FAIL(err, TW_E_MEMORY, "out of memory for writing trace '%s'", writer->path);
    return TW_OK;
}

/* A complete trace, or a file that is none, is somebody's work. */
static tw_status refuse_existing(const char *path, struct tw_error *err) {
    struct tw_trace *there;
    const tw_status status = tw_trace_open(&there, path, NULL);
    const bool complete = status == TW_OK && tw_trace_info(there)->complete;
    tw_trace_free(there);
    if (status == TW_OK && !complete) return TW_OK;
    return TW_FAIL(err, TW_E_INPUT, "'%s' exists and is %s; --force overwrites it", path,
                   complete ? "a complete trace" : "no trace");
}

/* Opens without emptying, so that a refusal harms nothing. */
static tw_status open_output(struct tw_trace_writer *writer, struct tw_error *err) {
    const char *const path = writer->path;
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    if (fd < 0) {
        const bool system = errno == ENOSPC || errno == EDQUOT || errno == EIO || errno == EMFILE || errno == ENFILE;
        return TW_FAIL(err, system ? TW_E_IO : TW_E_INPUT, "cannot write trace '%s': %s", path, strerror(errno));
    }
    writer->file.fd = fd;
    TW_TRY(tw_h5_file_init(&writer->file, fd, path, err));
    writer->existed = writer->file.size > 0;
    struct stat st;
    if (fstat(fd, &st) == 0 && !S_ISREG(st.st_mode)) {
        writer->existed = true;
        return TW_FAIL(err, TW_E_INPUT, "cannot write trace '%s': it is not a regular file", path);
    }
    /* Two writers would destroy each other's file. Without locks on this file system there is no such protection. */
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        writer->existed = true;
        return TW_FAIL(err, TW_E_INPUT, "cannot write trace '%s': another process has it locked", path);
    }
    return writer->existed && !writer->options.force ? refuse_existing(path, err) : TW_OK;
}

static tw_status put_prompt(struct tw_trace_writer *writer, const int32_t *prompt_id, struct tw_error *err) {
    const size_t n = writer->info.prompt_length, chunk = tw_min_size(n, 1 << 16);
    int32_t *const last = malloc(tw_max_size(chunk, 1) * sizeof *last);
    if (!last) return TW_FAIL(err, TW_E_MEMORY, "out of memory for the prompt of trace '%s'", writer->path);
    tw_status status = TW_OK;
    for (size_t i = 0; status == TW_OK && i < n; i += chunk) {
        const size_t part = tw_min_size(chunk, n - i);
        memset(last, 0, chunk * sizeof *last);
        memcpy(last, prompt_id + i, part * sizeof *last);
        size_t n_jobs = 0;
        add_job(writer, &n_jobs, TW_TRACE_PROMPT, i, 0, last, chunk, sizeof *last);
        status = write_chunks(writer, n_jobs, err);
    }
    free(last);
    return status;
}

static tw_status create_all(struct tw_trace_writer *writer, const int32_t *prompt_id, struct tw_error *err) {
    TW_TRY(tw_trace_info_check(&writer->info, writer->path, err));
    if (writer->options.key && !writer->info.head_dim)
        return TW_FAIL(err, TW_E_INPUT, "trace '%s': keys need a head_dim", writer->path);
    TW_TRY(allocate(writer, err));
    TW_TRY(open_output(writer, err));
    tw_h5_enter();
    writer->id = tw_h5_create(&writer->file);
    tw_status status = writer->id < 0 ? give_up(writer, "the head", err)
                                      : tw_attributes_write(writer->id, &writer->info, writer->path, err);
    if (status == TW_OK && !tw_trace_create_datasets(writer->datasets, writer->id, &writer->info, &writer->options))
        status = give_up(writer, "the head", err);
    if (status == TW_OK) status = put_prompt(writer, prompt_id, err);
    if (status == TW_OK && H5Fflush(writer->id, H5F_SCOPE_LOCAL) < 0) status = give_up(writer, "the head", err);
    tw_h5_leave();
    return status;
}

tw_status tw_trace_writer_create(struct tw_trace_writer **result, const char *path, const struct tw_trace_info *info,
                                 const int32_t *prompt_id, const struct tw_trace_writer_options *options,
                                 struct tw_error *err) {
    *result = NULL;
    struct tw_trace_writer *const writer = calloc(1, sizeof *writer);
    if (!writer) return TW_FAIL(err, TW_E_MEMORY, "out of memory for trace '%s'", path);
    writer->file.fd = -1;
    writer->id = -1;
    for (int which = 0; which < TW_TRACE_N_DATASETS; which++) writer->datasets[which] = -1;
    writer->options = *options;
    tw_status status = tw_trace_info_copy(&writer->info, info, err);
    writer->info.n_steps = 0;
    if (status == TW_OK && !(writer->path = strdup(path)))
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory for trace '%s'", path);
    if (status == TW_OK) status = create_all(writer, prompt_id, err);
    if (status == TW_OK) {
        *result = writer;
        return TW_OK;
    }
    /* A file that was not there before does not stay behind without a head. */
    const bool remove = writer->file.fd >= 0 && !writer->existed;
    tw_trace_writer_free(writer);
    if (remove) unlink(path);
    return status;
}

/* ---- blocks ---- */

/* Rows behind the last step of a part-filled block hold what padding holds. */
static void clear_rest(struct tw_trace_writer *writer) {
    const struct tw_trace_info *const info = &writer->info;
    const size_t heads = info->n_heads, row = heads * info->top_k, width = weight_bytes(writer);
    for (size_t l = 0; l < info->n_layers; l++) {
        for (size_t t = writer->n_filled; t < BLOCK; t++) {
            const size_t at = l * BLOCK + t;
            for (size_t i = 0; i < row; i++) writer->position[at * row + i] = -1;
            memset(writer->weight + at * row * width, 0, row * width);
            for (size_t h = 0; writer->needle && h < heads; h++) writer->needle[at * heads + h] = 0;
            if (writer->copy_paste) memset(writer->copy_paste + at * heads, 0, heads);
        }
    }
    for (size_t t = writer->n_filled; t < BLOCK; t++) writer->context_length[t] = writer->token_id[t] = 0;
}

static tw_status set_extents(struct tw_trace_writer *writer, struct tw_error *err) {
    static const struct {
        enum tw_trace_dataset which;
        unsigned rank;
    } growing[] = {{TW_TRACE_POSITION, 4}, {TW_TRACE_WEIGHT, 4}, {TW_TRACE_CONTEXT_LENGTH, 1},
                   {TW_TRACE_TOKEN_ID, 1}, {TW_TRACE_NEEDLE, 3}, {TW_TRACE_COPY_PASTE, 3}};
    const struct tw_trace_info *const info = &writer->info;
    const hsize_t dims[] = {writer->n_steps, info->n_layers, info->n_heads, info->top_k};
    for (size_t i = 0; i < sizeof growing / sizeof *growing; i++) {
        const hid_t id = writer->datasets[growing[i].which];
        if (id >= 0 && H5Dset_extent(id, dims) < 0)
            return give_up(writer, tw_trace_dataset_path(growing[i].which), err);
    }
    return TW_OK;
}

/* Keys of all layers up to their fewest; each layer's part-filled chunk lies in one piece in `key`. */
static tw_status set_key_extent(struct tw_trace_writer *writer, size_t n_positions, struct tw_error *err) {
    const struct tw_trace_info *const info = &writer->info;
    const hsize_t dims[] = {n_positions, info->n_layers, info->n_kv_heads, info->head_dim};
    tw_h5_enter();
    const tw_status status =
        H5Dset_extent(writer->datasets[TW_TRACE_KEY], dims) < 0 ? give_up(writer, "/kv/key", err) : TW_OK;
    tw_h5_leave();
    return status;
}

/* The block's chunks, a flush, and only then the count of steps that readers trust. */
static tw_status write_block(struct tw_trace_writer *writer, struct tw_error *err) {
    const struct tw_trace_info *const info = &writer->info;
    const size_t heads = info->n_heads, row = heads * info->top_k, first = writer->n_steps - writer->n_filled;
    const size_t key_row = info->n_kv_heads * info->head_dim;
    clear_rest(writer);
    size_t n = 0;
    for (size_t l = 0; l < info->n_layers; l++) {
        const size_t at = l * BLOCK;
        const uint8_t *const weight = writer->weight + at * row * weight_bytes(writer);
        add_job(writer, &n, TW_TRACE_POSITION, first, l, writer->position + at * row, BLOCK * row, 4);
        add_job(writer, &n, TW_TRACE_WEIGHT, first, l, weight, BLOCK * row, weight_bytes(writer));
        if (writer->needle)
            add_job(writer, &n, TW_TRACE_NEEDLE, first, l, writer->needle + at * heads, BLOCK * heads, 4);
        if (writer->copy_paste)
            add_job(writer, &n, TW_TRACE_COPY_PASTE, first, l, writer->copy_paste + at * heads, BLOCK * heads, 1);
        if (writer->key && writer->n_keys[l] % BLOCK) /* what is full is in the file already */
            add_job(writer, &n, TW_TRACE_KEY, writer->n_keys[l] / BLOCK * BLOCK, l, writer->key + at * key_row,
                    BLOCK * key_row, 2);
    }
    add_job(writer, &n, TW_TRACE_CONTEXT_LENGTH, first, 0, writer->context_length, BLOCK, 4);
    add_job(writer, &n, TW_TRACE_TOKEN_ID, first, 0, writer->token_id, BLOCK, 4);
    tw_h5_enter();
    tw_status status = set_extents(writer, err);
    if (status == TW_OK) status = write_chunks(writer, n, err);
    const bool flushed = status == TW_OK && H5Fflush(writer->id, H5F_SCOPE_LOCAL) >= 0 &&
                         tw_attribute_put_integer(writer->id, "n_steps", (int64_t)writer->n_steps) &&
                         H5Fflush(writer->id, H5F_SCOPE_LOCAL) >= 0;
    if (status == TW_OK && !flushed) status = give_up(writer, "a block", err);
    tw_h5_leave();
    if (status == TW_OK) writer->n_filled = 0;
    return status;
}

/* ---- steps ---------------------------------------------------------------------------------------------------------
 */

static tw_status refuse_values(const struct tw_trace_writer *writer, struct tw_error *err) {
    return TW_FAIL(err, TW_E_INPUT,
                   "trace '%s': step %zu has a position beyond its context, or a weight or score "
                   "that is negative or not finite",
                   writer->path, writer->n_steps);
}

/* What there is little of; sound_row looks at the rest. */
static tw_status check_step(const struct tw_trace_writer *writer, const struct tw_trace_step *step,
                            struct tw_error *err) {
    const struct tw_trace_info *const info = &writer->info;
    bool sound = step->context_length >= 0;
    for (size_t i = 0; step->needle && i < info->n_layers * info->n_heads; i++)
        sound = sound && step->needle[i] - step->needle[i] == 0;
    for (size_t i = 0; step->copy_paste && i < info->n_layers * info->n_heads; i++)
        sound = sound && step->copy_paste[i] <= 1;
    if (!sound) return refuse_values(writer, err);
    if (!writer->key || info->prompt_length + writer->n_steps == 0) return TW_OK;
    for (size_t l = 0; l < info->n_layers; l++)
        if (writer->n_keys[l] < info->prompt_length + writer->n_steps)
            return TW_FAIL(err, TW_E_INPUT, "trace '%s': step %zu lacks keys of layer %zu", writer->path,
                           writer->n_steps, l);
    return TW_OK;
}

/* Positions from -1 to below the context's length, and weights that are finite as halves. Without an early end, so that
 * compilers make vectors of the loops. */
static bool sound_row(const int32_t *position, const float *weight, size_t n, int32_t context_length) {
    const uint32_t limit = (uint32_t)context_length;
    uint32_t high_bit = 0, wrong = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t above = (uint32_t)position[i] + 1;
        high_bit |= above | (limit - above);
    }
    for (size_t i = 0; i < n; i++) wrong |= 1u ^ ((uint32_t)(weight[i] >= 0) & (uint32_t)(weight[i] < 65520.0f));
    return !(high_bit >> 31) && !wrong;
}

struct copying {
    struct tw_trace_writer *writer;
    const struct tw_trace_step *step;
    _Atomic bool unsound;
};

/* The step's rows of some layers, into the block. */
static void copy_layers(void *context, size_t first, size_t end, size_t thread) {
    (void)thread;
    struct copying *const copying = context;
    struct tw_trace_writer *const writer = copying->writer;
    const struct tw_trace_step *const step = copying->step;
    const size_t heads = writer->info.n_heads, row = heads * writer->info.top_k;
    for (size_t l = first; l < end; l++) {
        const size_t at = l * BLOCK + writer->n_filled;
        const int32_t *const position = step->position + l * row;
        const float *const weight = step->weight + l * row;
        if (!sound_row(position, weight, row, step->context_length)) copying->unsound = true;
        memcpy(writer->position + at * row, position, row * sizeof *position);
        if (writer->options.weight_float)
            memcpy((float *)(void *)writer->weight + at * row, weight, row * sizeof *weight);
        else
            tw_half_from_floats((uint16_t *)(void *)writer->weight + at * row, weight, row);
        if (writer->needle) memcpy(writer->needle + at * heads, step->needle + l * heads, heads * sizeof *step->needle);
        if (writer->copy_paste) memcpy(writer->copy_paste + at * heads, step->copy_paste + l * heads, heads);
    }
}

tw_status tw_trace_writer_append(struct tw_trace_writer *writer, const struct tw_trace_step *step,
                                 struct tw_error *err) {
    if (writer->failed) return refuse_more(writer, err);
    assert(!step->needle == !writer->needle && !step->copy_paste == !writer->copy_paste);
    TW_TRY(check_step(writer, step, err));
    struct copying copying = {.writer = writer, .step = step};
    const size_t t = writer->n_filled;
    tw_team_run(writer->team, writer->info.n_layers, SIZE_MAX, copy_layers, &copying);
    if (copying.unsound) return refuse_values(writer, err); /* what was copied stays behind n_filled */
    writer->context_length[t] = step->context_length;
    writer->token_id[t] = step->token_id;
    writer->n_filled++;
    writer->n_steps++;
    return writer->n_filled == BLOCK ? write_block(writer, err) : TW_OK;
}

size_t tw_trace_writer_n_steps(const struct tw_trace_writer *writer) { return writer->n_steps; }
uint64_t tw_trace_writer_bytes(const struct tw_trace_writer *writer) { return writer->file.size; }

/* ---- optional datasets
 * ----------------------------------------------------------------------------------------------- */

tw_status tw_trace_writer_put_window_vote(struct tw_trace_writer *writer, size_t layer, const float *vote,
                                          struct tw_error *err) {
    assert(writer->options.window_vote && layer < writer->info.n_layers);
    if (writer->failed) return refuse_more(writer, err);
    const size_t count = writer->info.n_kv_heads * writer->info.prompt_length;
    if (count == 0) return TW_OK;
    uint16_t *const half = malloc(count * sizeof *half);
    if (!half) return TW_FAIL(err, TW_E_MEMORY, "out of memory for votes of trace '%s'", writer->path);
    bool sound = true;
    tw_half_from_floats(half, vote, count);
    for (size_t i = 0; i < count; i++) sound &= (half[i] & 0x7c00) != 0x7c00;
    size_t n = 0;
    add_job(writer, &n, TW_TRACE_WINDOW_VOTE, layer, 0, half, count, sizeof *half);
    const tw_status status =
        sound ? write_chunks(writer, n, err)
              : TW_FAIL(err, TW_E_INPUT, "trace '%s': a window vote of layer %zu is not finite", writer->path, layer);
    free(half);
    return status;
}

tw_status tw_trace_writer_put_kept(struct tw_trace_writer *writer, size_t layer, const int32_t *kept,
                                   struct tw_error *err) {
    assert(writer->options.kept_width && layer < writer->info.n_layers);
    if (writer->failed) return refuse_more(writer, err);
    const size_t count = writer->info.n_kv_heads * writer->options.kept_width;
    for (size_t i = 0; i < count; i++)
        if (kept[i] < -1 || (kept[i] >= 0 && (size_t)kept[i] >= writer->info.prompt_length))
            return TW_FAIL(err, TW_E_INPUT, "trace '%s': a kept position of layer %zu is outside the prompt",
                           writer->path, layer);
    size_t n = 0;
    add_job(writer, &n, TW_TRACE_KEPT, layer, 0, kept, count, sizeof *kept);
    return write_chunks(writer, n, err);
}

/*
 * The last chunk of keys is rewritten with every block, since positions do not fall on the blocks' borders. It is
 * padded to the most that it can take, so that libhdf5 replaces it in place: moved, its old place could be given out
 * and overwritten before the flush. What remains: a kill between two pages of that very write leaves the chunk
 * unreadable, and with it the up to 15 flushed steps whose keys it holds.
 */
tw_status tw_trace_writer_put_key(struct tw_trace_writer *writer, size_t layer, const uint16_t *key, size_t n_positions,
                                  struct tw_error *err) {
    assert(writer->key && layer < writer->info.n_layers);
    if (writer->failed) return refuse_more(writer, err);
    const struct tw_trace_info *const info = &writer->info;
    const size_t row = info->n_kv_heads * info->head_dim;
    uint16_t *const last = writer->key + layer * BLOCK * row;
    for (size_t i = 0; i < n_positions * row; i++)
        if ((key[i] & 0x7c00) == 0x7c00)
            return TW_FAIL(err, TW_E_INPUT, "trace '%s': a key of layer %zu is not finite", writer->path, layer);
    size_t most = 0;
    for (size_t l = 0; l < info->n_layers; l++) most = tw_max_size(most, writer->n_keys[l]);
    if (writer->n_keys[layer] + n_positions > most)
        TW_TRY(set_key_extent(writer, writer->n_keys[layer] + n_positions, err));
    while (n_positions) {
        const size_t filled = writer->n_keys[layer] % BLOCK, part = tw_min_size(BLOCK - filled, n_positions);
        if (filled == 0) memset(last, 0, BLOCK * row * sizeof *last);
        memcpy(last + filled * row, key, part * row * sizeof *last);
        writer->n_keys[layer] += part;
        key += part * row;
        n_positions -= part;
        if (writer->n_keys[layer] % BLOCK) break;
        size_t n = 0;
        add_job(writer, &n, TW_TRACE_KEY, writer->n_keys[layer] - BLOCK, layer, last, BLOCK * row, sizeof *last);
        writer->jobs[0].pad = filled != 0; /* a chunk that was never part-filled in the file needs no padding */
        TW_TRY(write_chunks(writer, n, err));
    }
    return TW_OK;
}

/* ---- the end
 * --------------------------------------------------------------------------------------------------------- */

tw_status tw_trace_writer_set_text(struct tw_trace_writer *writer, const char *name, struct tw_view text,
                                   struct tw_error *err) {
    struct late_text *const larger = realloc(writer->late, (writer->n_late + 1) * sizeof *larger);
    if (larger) writer->late = larger;
    struct late_text late = {.name = larger ? strdup(name) : NULL};
    tw_text_append(&late.text, text);
    if (!late.name || !tw_text_ok(&late.text)) {
        free(late.name);
        tw_text_release(&late.text);
        return TW_FAIL(err, TW_E_MEMORY, "out of memory for attribute '%s' of trace '%s'", name, writer->path);
    }
    writer->late[writer->n_late++] = late;
    return TW_OK;
}

tw_status tw_trace_writer_finish(struct tw_trace_writer *writer, bool complete, struct tw_error *err) {
    if (writer->failed) return refuse_more(writer, err);
    if (writer->key) {
        /* No more positions than the steps need and every layer has: keys may be ahead of steps, or not there yet. */
        size_t wanted = writer->info.prompt_length + writer->n_steps - (writer->n_steps ? 1 : 0);
        for (size_t l = 0; l < writer->info.n_layers; l++) wanted = tw_min_size(wanted, writer->n_keys[l]);
        TW_TRY(set_key_extent(writer, wanted, err));
    }
    if (writer->n_filled) TW_TRY(write_block(writer, err));
    tw_h5_enter();
    bool done = true;
    for (size_t i = 0; done && i < writer->n_late; i++)
        done = tw_attribute_put_text(writer->id, writer->late[i].name, tw_text_view(&writer->late[i].text));
    /* Complete is the last thing that a trace becomes: not before all else has found its place on the disk. */
    done = done && H5Fflush(writer->id, H5F_SCOPE_LOCAL) >= 0 &&
           tw_attribute_put_integer(writer->id, "complete", complete);
    for (int which = 0; which < TW_TRACE_N_DATASETS; which++) {
        if (writer->datasets[which] >= 0) H5Dclose(writer->datasets[which]);
        writer->datasets[which] = -1;
    }
    done = done && H5Fclose(writer->id) >= 0 && !writer->file.failure;
    if (done) writer->id = -1;
    tw_status status = done ? TW_OK : give_up(writer, "the end", err);
    if (done && close(writer->file.fd) != 0) { /* network file systems report a full disk here */
        writer->file.failure = errno;
        status = give_up(writer, "the end", err);
    }
    if (done) writer->file.fd = -1;
    tw_h5_leave();
    writer->failed = true; /* nothing more, either way */
    return status;
}

void tw_trace_writer_free(struct tw_trace_writer *writer) {
    if (!writer) return;
    tw_h5_enter();
    writer->file.dead = true;
    for (int which = 0; which < TW_TRACE_N_DATASETS; which++)
        if (writer->datasets[which] >= 0) H5Dclose(writer->datasets[which]);
    if (writer->id >= 0) H5Fclose(writer->id);
    H5Eclear2(H5E_DEFAULT);
    tw_h5_leave();
    if (writer->file.fd >= 0) close(writer->file.fd);
    for (size_t i = 0; writer->jobs && i < writer->n_jobs; i++) tw_pack_job_release(&writer->jobs[i]);
    for (size_t i = 0; i < writer->n_late; i++) {
        free(writer->late[i].name);
        tw_text_release(&writer->late[i].text);
    }
    free(writer->late);
    free(writer->jobs);
    tw_pack_free(writer->pack);
    tw_team_free(writer->own_team);
    free(writer->position);
    free(writer->weight);
    free(writer->needle);
    free(writer->copy_paste);
    free(writer->key);
    free(writer->n_keys);
    tw_trace_info_release(&writer->info);
    free(writer->path);
    free(writer);
}
