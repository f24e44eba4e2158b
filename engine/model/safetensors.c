#include "engine/model/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/json_read.h"

/* The format's own limit for the header; an index of the largest models has a few hundred kilobytes. */
enum { HEADER_BYTES_MAX = 100000000, DIMS_MAX = 16, INDEX_BYTES_MAX = 1 << 26 };

static const struct {
    const char *name;
    unsigned size;     /* bytes of a value */
    enum tw_type type; /* where `weight` */
    bool weight;
} dtypes[] = {
    {"F32", 4, TW_TYPE_F32, true}, {"F16", 2, TW_TYPE_F16, true}, {"BF16", 2, TW_TYPE_BF16, true},
    {"F64", 8, 0, false},          {"I64", 8, 0, false},          {"I32", 4, 0, false},
    {"I16", 2, 0, false},          {"I8", 1, 0, false},           {"U64", 8, 0, false},
    {"U32", 4, 0, false},          {"U16", 2, 0, false},          {"U8", 1, 0, false},
    {"BOOL", 1, 0, false},         {"F8_E4M3", 1, 0, false},      {"F8_E5M2", 1, 0, false},
    {"F8_E8M0", 1, 0, false},      {"C64", 8, 0, false},
};
enum { N_DTYPES = sizeof dtypes / sizeof *dtypes };

#define NAME(view) (int)tw_min_size((view).size, 80), (view).data

/* One tensor's object while it is read. */
struct entry {
    struct tw_view dtype;
    bool has_dtype, has_shape, has_offsets;
    uint64_t shape[DIMS_MAX];
    unsigned n_dims;
    uint64_t offsets[2];
};

static void read_shape(struct entry *entry, struct tw_json_reader *reader) {
    tw_json_enter(reader, '[');
    while (tw_json_next_element(reader)) {
        if (entry->n_dims == DIMS_MAX)
            tw_json_refuse(reader, "more than 16 dimensions");
        else
            tw_json_read_u64(reader, &entry->shape[entry->n_dims++]);
    }
}

static void read_offsets(struct entry *entry, struct tw_json_reader *reader) {
    unsigned n = 0;
    tw_json_enter(reader, '[');
    while (tw_json_next_element(reader)) {
        if (n == 2)
            tw_json_refuse(reader, "more than two data_offsets");
        else
            tw_json_read_u64(reader, &entry->offsets[n++]);
    }
    if (n != 2) tw_json_refuse(reader, "expected two data_offsets");
}

static void read_entry(struct entry *entry, struct tw_json_reader *reader) {
    struct tw_view name;
    *entry = (struct entry){0};
    tw_json_enter(reader, '{');
    while (tw_json_next_member(reader, &name)) {
        bool *has = NULL;
        if (tw_view_equal(name, TW_VIEW("dtype"))) has = &entry->has_dtype;
        if (tw_view_equal(name, TW_VIEW("shape"))) has = &entry->has_shape;
        if (tw_view_equal(name, TW_VIEW("data_offsets"))) has = &entry->has_offsets;
        if (has && *has) tw_json_refuse(reader, "a member that is there twice");
        if (!has)
            tw_json_skip(reader);
        else if (has == &entry->has_dtype)
            tw_json_read_string(reader, &entry->dtype);
        else if (has == &entry->has_shape)
            read_shape(entry, reader);
        else
            read_offsets(entry, reader);
        if (has) *has = true;
    }
}

/* Checks one tensor against itself and the size of the data. */
static tw_status check_entry(struct tw_safetensors_tensor *tensor, const struct entry *entry, const uint8_t *data,
                             uint64_t data_bytes, const char *path, struct tw_error *err) {
    const struct tw_view name = tensor->name;
    if (!entry->has_dtype || !entry->has_shape || !entry->has_offsets)
        return TW_FAIL(err, TW_E_INPUT, "model '%s': tensor '%.*s' has no %s", path, NAME(name),
                       !entry->has_dtype   ? "dtype"
                       : !entry->has_shape ? "shape"
                                           : "data_offsets");
    size_t d = 0;
    while (d < N_DTYPES && !tw_view_equal(tw_view_of(dtypes[d].name), entry->dtype)) d++;
    if (d == N_DTYPES)
        return TW_FAIL(err, TW_E_UNSUPPORTED, "model '%s': tensor '%.*s' has the unknown dtype '%.*s'", path,
                       NAME(name), (int)tw_min_size(entry->dtype.size, 40), entry->dtype.data);
    tensor->type_name = dtypes[d].name;
    tensor->traits = dtypes[d].weight ? tw_type_traits(dtypes[d].type) : NULL;
    tensor->n_dims = entry->n_dims;
    tensor->n_rows = tensor->n_columns = 1;
    uint64_t bytes = dtypes[d].size;
    for (unsigned i = 0; i < entry->n_dims; i++) {
        if (!tw_mul_u64(&bytes, bytes, entry->shape[i]))
            return TW_FAIL(err, TW_E_INPUT,
                           "model '%s': the size of tensor '%.*s' overflows at dimension %u (%" PRIu64 ")", path,
                           NAME(name), i, entry->shape[i]);
        if (i + 1 < entry->n_dims)
            tensor->n_rows *= entry->shape[i]; /* a divisor of `bytes`, so it does not wrap either */
        else
            tensor->n_columns = entry->shape[i];
    }
    tensor->begin = entry->offsets[0];
    tensor->end = entry->offsets[1];
    if (tensor->begin > tensor->end)
        return TW_FAIL(err, TW_E_INPUT,
                       "model '%s': tensor '%.*s' begins at byte %" PRIu64 " and ends before, at %" PRIu64, path,
                       NAME(name), tensor->begin, tensor->end);
    if (tensor->end > data_bytes)
        return TW_FAIL(err, TW_E_INPUT,
                       "model '%s': tensor '%.*s' ends at byte %" PRIu64 " of the data, which has %" PRIu64
                       "; is the file complete?",
                       path, NAME(name), tensor->end, data_bytes);
    if (tensor->end - tensor->begin != bytes)
        return TW_FAIL(err, TW_E_INPUT,
                       "model '%s': the shape of tensor '%.*s' needs %" PRIu64 " bytes, its offsets give %" PRIu64,
                       path, NAME(name), bytes, tensor->end - tensor->begin);
    tensor->data = data + tensor->begin;
    return TW_OK;
}

static int compare_names(const void *a, const void *b) {
    const struct tw_view x = ((const struct tw_safetensors_tensor *)a)->name;
    const struct tw_view y = ((const struct tw_safetensors_tensor *)b)->name;
    const int order = memcmp(x.data, y.data, tw_min_size(x.size, y.size));
    return order ? order : (x.size > y.size) - (x.size < y.size);
}
static int compare_places(const void *a, const void *b) {
    const struct tw_safetensors_tensor *x = a, *y = b;
    const int order = (x->begin > y->begin) - (x->begin < y->begin);
    return order ? order : (x->end > y->end) - (x->end < y->end);
}

/* Names must differ, and the tensors cover the data without overlap or hole. Leaves them ascending by name. */
static tw_status check_layout(struct tw_safetensors *file, uint64_t data_bytes, struct tw_error *err) {
    if (file->n_tensors) qsort(file->tensors, file->n_tensors, sizeof *file->tensors, compare_names);
    for (size_t i = 1; i < file->n_tensors; i++)
        if (compare_names(&file->tensors[i - 1], &file->tensors[i]) == 0)
            return TW_FAIL(err, TW_E_INPUT, "model '%s': there are two tensors called '%.*s'", file->path,
                           NAME(file->tensors[i].name));
    uint64_t at = 0;
    if (file->n_tensors) qsort(file->tensors, file->n_tensors, sizeof *file->tensors, compare_places);
    for (size_t i = 0; i < file->n_tensors; i++) {
        const struct tw_safetensors_tensor *tensor = &file->tensors[i];
        if (tensor->begin < at)
            return TW_FAIL(err, TW_E_INPUT, "model '%s': tensors '%.*s' and '%.*s' overlap", file->path,
                           NAME(file->tensors[i - 1].name), NAME(tensor->name));
        if (tensor->begin > at)
            return TW_FAIL(err, TW_E_INPUT, "model '%s': a hole of %" PRIu64 " bytes before tensor '%.*s'", file->path,
                           tensor->begin - at, NAME(tensor->name));
        at = tensor->end;
    }
    if (at != data_bytes)
        return TW_FAIL(err, TW_E_INPUT, "model '%s': %" PRIu64 " bytes follow the last tensor", file->path,
                       data_bytes - at);
    if (file->n_tensors) qsort(file->tensors, file->n_tensors, sizeof *file->tensors, compare_names);
    return TW_OK;
}

static tw_status read_tensors(struct tw_safetensors *file, struct tw_json_reader *reader, const uint8_t *data,
                              uint64_t data_bytes, struct tw_error *err) {
    size_t capacity = 0;
    bool has_metadata = false;
    struct tw_view name;
    tw_json_enter(reader, '{');
    while (tw_json_next_member(reader, &name)) {
        if (tw_view_equal(name, TW_VIEW("__metadata__"))) {
            if (has_metadata) tw_json_refuse(reader, "__metadata__ is there twice");
            has_metadata = true;
            if (tw_json_peek(reader) != '{') tw_json_refuse(reader, "expected __metadata__ to be an object");
            tw_json_skip(reader);
            continue;
        }
        if (memchr(name.data, '\\', name.size)) {
            tw_json_refuse(reader, "a tensor name with an escape");
            break;
        }
        if (file->n_tensors == capacity) {
            capacity = capacity ? 2 * capacity : 64;
            void *moved = realloc(file->tensors, capacity * sizeof *file->tensors);
            if (!moved) return TW_FAIL(err, TW_E_MEMORY, "out of memory while reading model '%s'", file->path);
            file->tensors = moved;
        }
        struct entry entry;
        read_entry(&entry, reader);
        if (reader->fault)
            return TW_FAIL(err, TW_E_INPUT, "model '%s': tensor '%.*s': %s at byte %zu of the header", file->path,
                           NAME(name), reader->fault, reader->fault_at);
        struct tw_safetensors_tensor *tensor = &file->tensors[file->n_tensors++];
        *tensor = (struct tw_safetensors_tensor){.name = name};
        TW_TRY(check_entry(tensor, &entry, data, data_bytes, file->path, err));
    }
    tw_json_finish(reader);
    if (reader->fault)
        return TW_FAIL(err, TW_E_INPUT, "model '%s': the header is not what safetensors have: %s at byte %zu",
                       file->path, reader->fault, reader->fault_at);
    return check_layout(file, data_bytes, err);
}

static tw_status parse(struct tw_safetensors *file, const uint8_t *data, size_t size, struct tw_error *err) {
    if (size == 0) return TW_FAIL(err, TW_E_INPUT, "model '%s' is empty", file->path);
    if (tw_view_starts_with((struct tw_view){(const char *)data, size}, TW_VIEW("version https://git-lfs")))
        return TW_FAIL(err, TW_E_INPUT,
                       "model '%s' is a Git LFS pointer, not the model: fetch the file itself (git lfs pull)",
                       file->path);
    if (size < 8)
        return TW_FAIL(err, TW_E_INPUT, "model '%s' ends inside the length of its header: %zu bytes", file->path, size);
    uint64_t header_bytes = 0;
    for (unsigned i = 0; i < 8; i++) header_bytes |= (uint64_t)data[i] << 8 * i;
    if (header_bytes > size - 8)
        return TW_FAIL(err, TW_E_INPUT,
                       "model '%s': the header is said to have %" PRIu64
                       " bytes, but the file has only %zu behind its length",
                       file->path, header_bytes, size - 8);
    if (header_bytes > HEADER_BYTES_MAX)
        return TW_FAIL(err, TW_E_INPUT,
                       "model '%s': the header has %" PRIu64 " bytes, more than the format's limit of %d", file->path,
                       header_bytes, HEADER_BYTES_MAX);
    struct tw_json_reader reader = tw_json_reader((struct tw_view){(const char *)data + 8, header_bytes});
    return read_tensors(file, &reader, data + 8 + header_bytes, size - 8 - header_bytes, err);
}

tw_status tw_safetensors_parse(struct tw_safetensors *file, const char *path, const uint8_t *data, size_t size,
                               struct tw_error *err) {
    *file = (struct tw_safetensors){.path = strdup(path)};
    const tw_status status = file->path ? parse(file, data, size, err)
                                        : TW_FAIL(err, TW_E_MEMORY, "out of memory while reading model '%s'", path);
    if (status != TW_OK) tw_safetensors_release(file);
    return status;
}

tw_status tw_safetensors_open(struct tw_safetensors *file, const char *path, struct tw_error *err) {
    struct tw_file mapped;
    *file = (struct tw_safetensors){0};
    TW_TRY(tw_file_map(&mapped, path, "model", err));
    const tw_status status = tw_safetensors_parse(file, path, mapped.data, mapped.size, err);
    if (status == TW_OK)
        file->file = mapped;
    else
        tw_file_unmap(&mapped);
    return status;
}

void tw_safetensors_release(struct tw_safetensors *file) {
    free(file->tensors);
    free(file->path);
    tw_file_unmap(&file->file);
    *file = (struct tw_safetensors){0};
}

const struct tw_safetensors_tensor *tw_safetensors_find(const struct tw_safetensors *file, struct tw_view name) {
    const struct tw_safetensors_tensor key = {.name = name};
    return file->n_tensors ? bsearch(&key, file->tensors, file->n_tensors, sizeof key, compare_names) : NULL;
}

/* ---- the index of a sharded model ---------------------------------------------------------------------------------
 */

static bool is_plain_name(struct tw_view file) {
    return file.size > 0 && file.size < 256 && !memchr(file.data, '/', file.size) &&
           !memchr(file.data, '\\', file.size) && file.data[0] != '.';
}

static tw_status read_map(struct tw_json_reader *reader, const char *path, tw_safetensors_take_fn *take, void *context,
                          struct tw_error *err) {
    struct tw_view name, file;
    tw_json_enter(reader, '{');
    while (tw_json_next_member(reader, &name)) {
        if (!tw_json_read_string(reader, &file)) break;
        if (!is_plain_name(file))
            return TW_FAIL(err, TW_E_INPUT,
                           "model '%s' says that tensor '%.*s' is in '%.*s', which is no file of this folder", path,
                           NAME(name), NAME(file));
        TW_TRY(take(context, name, file, err));
    }
    return TW_OK;
}

tw_status tw_safetensors_read_index(struct tw_view json, const char *path, tw_safetensors_take_fn *take, void *context,
                                    struct tw_error *err) {
    if (json.size == 0) return TW_FAIL(err, TW_E_INPUT, "model '%s' is empty", path);
    if (json.size > INDEX_BYTES_MAX)
        return TW_FAIL(err, TW_E_INPUT, "model '%s' has %zu bytes, more than an index needs", path, json.size);
    struct tw_json_reader reader = tw_json_reader(json);
    struct tw_view member;
    bool has_map = false;
    tw_json_enter(&reader, '{');
    while (tw_json_next_member(&reader, &member)) {
        if (!tw_view_equal(member, TW_VIEW("weight_map"))) {
            tw_json_skip(&reader);
            continue;
        }
        if (has_map) tw_json_refuse(&reader, "weight_map is there twice");
        has_map = true;
        TW_TRY(read_map(&reader, path, take, context, err));
    }
    tw_json_finish(&reader);
    if (reader.fault)
        return TW_FAIL(err, TW_E_INPUT, "model '%s' is no index: %s at byte %zu", path, reader.fault, reader.fault_at);
    return has_map ? TW_OK : TW_FAIL(err, TW_E_INPUT, "model '%s' has no weight_map", path);
}
