#include "engine/model/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "engine/model/quant.h"

/* What a key or a tensor takes at the least: bounds the counts before anything is allocated for them. */
enum { KEY_BYTES_MIN = 8 + 1 + 4 + 1, TENSOR_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8, ALIGNMENT_DEFAULT = 32 };

static const struct {
    const char *name;
    unsigned size; /* bytes of one value; 0: it says so itself */
} value_types[] = {
    [TW_GGUF_U8] = {"u8", 1},       [TW_GGUF_I8] = {"i8", 1},     [TW_GGUF_U16] = {"u16", 2},
    [TW_GGUF_I16] = {"i16", 2},     [TW_GGUF_U32] = {"u32", 4},   [TW_GGUF_I32] = {"i32", 4},
    [TW_GGUF_F32] = {"f32", 4},     [TW_GGUF_BOOL] = {"bool", 1}, [TW_GGUF_STRING] = {"string", 0},
    [TW_GGUF_ARRAY] = {"array", 0}, [TW_GGUF_U64] = {"u64", 8},   [TW_GGUF_I64] = {"i64", 8},
    [TW_GGUF_F64] = {"f64", 8},
};
enum { N_VALUE_TYPES = sizeof value_types / sizeof *value_types };

/* Every type that ggml has or had, so that a refusal can name it. */
static const char *const type_names[] = {
    [0] = "F32",         [1] = "F16",         [2] = "Q4_0",        [3] = "Q4_1",      [4] = "Q4_2",     [5] = "Q4_3",
    [6] = "Q5_0",        [7] = "Q5_1",        [8] = "Q8_0",        [9] = "Q8_1",      [10] = "Q2_K",    [11] = "Q3_K",
    [12] = "Q4_K",       [13] = "Q5_K",       [14] = "Q6_K",       [15] = "Q8_K",     [16] = "IQ2_XXS", [17] = "IQ2_XS",
    [18] = "IQ3_XXS",    [19] = "IQ1_S",      [20] = "IQ4_NL",     [21] = "IQ3_S",    [22] = "IQ2_S",   [23] = "IQ4_XS",
    [24] = "I8",         [25] = "I16",        [26] = "I32",        [27] = "I64",      [28] = "F64",     [29] = "IQ1_M",
    [30] = "BF16",       [31] = "Q4_0_4_4",   [32] = "Q4_0_4_8",   [33] = "Q4_0_8_8", [34] = "TQ1_0",   [35] = "TQ2_0",
    [36] = "IQ4_NL_4_4", [37] = "IQ4_NL_4_8", [38] = "IQ4_NL_8_8", [39] = "MXFP4",    [40] = "NVFP4",
};

const char *tw_gguf_type_name(char buffer[32], uint32_t type) {
    if (type < sizeof type_names / sizeof *type_names) return type_names[type];
    snprintf(buffer, 32, "%" PRIu32, type);
    return buffer;
}

const char *tw_gguf_value_type_name(char buffer[32], uint32_t type) {
    if (type < N_VALUE_TYPES) return value_types[type].name;
    snprintf(buffer, 32, "%" PRIu32, type);
    return buffer;
}

/* ---- numbers in the file ------------------------------------------------------------------------------------------
 */

static uint64_t load(const uint8_t *data, unsigned size) {
    uint64_t value = 0;
    for (unsigned i = 0; i < size; i++) value |= (uint64_t)data[i] << 8 * i;
    return value;
}

static int64_t load_int(const uint8_t *data, enum tw_gguf_value_type type) {
    const uint64_t bits = load(data, value_types[type].size);
    switch (type) {
    case TW_GGUF_I8: return (int8_t)bits;
    case TW_GGUF_I16: return (int16_t)bits;
    case TW_GGUF_I32: return (int32_t)bits;
    default: return (int64_t)bits;
    }
}

static double load_double(const uint8_t *data, enum tw_gguf_value_type type) {
    if (type == TW_GGUF_F32) {
        float value;
        memcpy(&value, data, sizeof value);
        return value;
    }
    if (type == TW_GGUF_F64) {
        double value;
        memcpy(&value, data, sizeof value);
        return value;
    }
    return type == TW_GGUF_U64 ? (double)load(data, 8) : (double)load_int(data, type);
}

static bool is_integer(enum tw_gguf_value_type type) {
    return type <= TW_GGUF_I32 || type == TW_GGUF_U64 || type == TW_GGUF_I64;
}
static bool is_float(enum tw_gguf_value_type type) { return type == TW_GGUF_F32 || type == TW_GGUF_F64; }

/* ---- parsing ------------------------------------------------------------------------------------------------------
 */

struct reader {
    const uint8_t *at;
    size_t left; /* bytes */
};

static bool read_bytes(const uint8_t **bytes, struct reader *reader, uint64_t n) {
    if (n > reader->left) return false;
    *bytes = reader->at;
    reader->at += n;
    reader->left -= n;
    return true;
}

static bool read_u32(uint32_t *value, struct reader *reader) {
    const uint8_t *bytes;
    if (!read_bytes(&bytes, reader, 4)) return false;
    *value = (uint32_t)load(bytes, 4);
    return true;
}

static bool read_u64(uint64_t *value, struct reader *reader) {
    const uint8_t *bytes;
    if (!read_bytes(&bytes, reader, 8)) return false;
    *value = load(bytes, 8);
    return true;
}

static bool read_string(struct tw_view *string, struct reader *reader) {
    uint64_t size;
    const uint8_t *bytes;
    if (!read_u64(&size, reader) || !read_bytes(&bytes, reader, size)) return false;
    *string = (struct tw_view){(const char *)bytes, size};
    return true;
}

/* For messages: names come from the file and may be long. */
#define NAME(view) (int)tw_min_size((view).size, 80), (view).data

static tw_status read_array(struct tw_gguf_key *key, struct reader *reader, const char *path, struct tw_error *err) {
    char buffer[32];
    uint32_t type;
    uint64_t n;
    if (!read_u32(&type, reader) || !read_u64(&n, reader))
        return TW_FAIL(err, TW_E_INPUT, "model '%s': the file ends inside the array '%.*s'", path, NAME(key->name));
    if (type >= N_VALUE_TYPES || type == TW_GGUF_ARRAY)
        return TW_FAIL(err, TW_E_INPUT,
                       "model '%s': the array '%.*s' has elements of type %s, which no GGUF reader knows", path,
                       NAME(key->name), tw_gguf_value_type_name(buffer, type));
    struct tw_gguf_array *array = &key->array;
    *array = (struct tw_gguf_array){.type = type, .data = reader->at};
    uint64_t bytes = 0;
    const unsigned size = value_types[type].size;
    if (!tw_mul_u64(&bytes, n, size ? size : 8) || bytes > reader->left)
        return TW_FAIL(err, TW_E_INPUT,
                       "model '%s': the array '%.*s' claims %" PRIu64 " elements, more than the rest of the file holds",
                       path, NAME(key->name), n);
    array->n = n;
    if (size) {
        const uint8_t *data;
        read_bytes(&data, reader, bytes);
    } else {
        for (uint64_t i = 0; i < n; i++) {
            struct tw_view string;
            if (!read_string(&string, reader))
                return TW_FAIL(err, TW_E_INPUT,
                               "model '%s': element %" PRIu64 " of the array '%.*s' goes past the end of the file",
                               path, i, NAME(key->name));
        }
    }
    array->size = (size_t)(reader->at - array->data);
    return TW_OK;
}

static tw_status read_key(struct tw_gguf_key *key, struct reader *reader, size_t number, const char *path,
                          struct tw_error *err) {
    char buffer[32];
    uint32_t type;
    if (!read_string(&key->name, reader))
        return TW_FAIL(err, TW_E_INPUT, "model '%s': the name of metadata key %zu goes past the end of the file", path,
                       number);
    if (key->name.size == 0)
        return TW_FAIL(err, TW_E_INPUT, "model '%s': metadata key %zu has an empty name", path, number);
    if (!read_u32(&type, reader))
        return TW_FAIL(err, TW_E_INPUT, "model '%s': the file ends inside metadata key '%.*s'", path, NAME(key->name));
    if (type >= N_VALUE_TYPES)
        return TW_FAIL(err, TW_E_INPUT,
                       "model '%s': metadata key '%.*s' has a value of type %s, which no GGUF reader knows", path,
                       NAME(key->name), tw_gguf_value_type_name(buffer, type));
    key->type = type;
    if (type == TW_GGUF_ARRAY) return read_array(key, reader, path, err);
    const bool inside = type == TW_GGUF_STRING ? read_string(&key->string, reader)
                                               : read_bytes(&key->data, reader, value_types[type].size);
    if (!inside)
        return TW_FAIL(err, TW_E_INPUT, "model '%s': the value of metadata key '%.*s' goes past the end of the file",
                       path, NAME(key->name));
    if (type == TW_GGUF_BOOL && *key->data > 1)
        return TW_FAIL(err, TW_E_INPUT, "model '%s': metadata key '%.*s' is a bool with the value %u", path,
                       NAME(key->name), *key->data);
    return TW_OK;
}

/* All but `data`, since where the data starts is known only behind the last description. */
static tw_status read_tensor(struct tw_gguf_tensor *tensor, struct reader *reader, size_t number, const char *path,
                             struct tw_error *err) {
    *tensor = (struct tw_gguf_tensor){.number = number, .dims = {1, 1, 1, 1}};
    if (!read_string(&tensor->name, reader))
        return TW_FAIL(err, TW_E_INPUT, "model '%s': the name of tensor %zu goes past the end of the file", path,
                       number);
    if (tensor->name.size == 0)
        return TW_FAIL(err, TW_E_INPUT, "model '%s': tensor %zu has an empty name", path, number);
    if (!read_u32(&tensor->n_dims, reader)) goto cut;
    if (tensor->n_dims < 1 || tensor->n_dims > 4)
        return TW_FAIL(err, TW_E_INPUT, "model '%s': tensor '%.*s' has %" PRIu32 " dimensions, expected 1 to 4", path,
                       NAME(tensor->name), tensor->n_dims);
    uint64_t values = 1;
    for (uint32_t i = 0; i < tensor->n_dims; i++) {
        if (!read_u64(&tensor->dims[i], reader)) goto cut;
        if (tensor->dims[i] == 0 || tensor->dims[i] > INT64_MAX)
            return TW_FAIL(err, TW_E_INPUT, "model '%s': dimension %" PRIu32 " of tensor '%.*s' is %" PRId64, path, i,
                           NAME(tensor->name), (int64_t)tensor->dims[i]);
        if (!tw_mul_u64(&values, values, tensor->dims[i]))
            return TW_FAIL(err, TW_E_INPUT,
                           "model '%s': the size of tensor '%.*s' overflows at dimension %" PRIu32 " (%" PRIu64 ")",
                           path, NAME(tensor->name), i, tensor->dims[i]);
    }
    if (!read_u32(&tensor->type, reader) || !read_u64(&tensor->offset, reader)) goto cut;
    char buffer[32];
    const struct tw_type_traits *traits = tw_type_traits((enum tw_type)tensor->type);
    if (!traits)
        return TW_FAIL(err, TW_E_UNSUPPORTED, "model '%s': tensor '%.*s' has type %s; supported are %s", path,
                       NAME(tensor->name), tw_gguf_type_name(buffer, tensor->type), tw_type_list());
    if (tensor->dims[0] % traits->block_values != 0)
        return TW_FAIL(err, TW_E_INPUT,
                       "model '%s': the rows of tensor '%.*s' have %" PRIu64
                       " values, which is no multiple of the %zu of a "
                       "block of %s",
                       path, NAME(tensor->name), tensor->dims[0], traits->block_values, traits->name);
    uint64_t bytes;
    if (!tw_mul_u64(&bytes, values / traits->block_values, traits->block_bytes))
        return TW_FAIL(err, TW_E_INPUT, "model '%s': the size of tensor '%.*s' overflows", path, NAME(tensor->name));
    tensor->size = bytes;
    return TW_OK;
cut:
    return TW_FAIL(err, TW_E_INPUT, "model '%s': the file ends inside the description of tensor '%.*s'", path,
                   NAME(tensor->name));
}

static int compare_views(struct tw_view a, struct tw_view b) {
    const int order = memcmp(a.data, b.data, tw_min_size(a.size, b.size));
    return order ? order : (a.size > b.size) - (a.size < b.size);
}
static int compare_keys(const void *a, const void *b) {
    return compare_views(((const struct tw_gguf_key *)a)->name, ((const struct tw_gguf_key *)b)->name);
}
static int compare_tensors(const void *a, const void *b) {
    return compare_views(((const struct tw_gguf_tensor *)a)->name, ((const struct tw_gguf_tensor *)b)->name);
}
static int compare_places(const void *a, const void *b) {
    const uint8_t *x = (*(const struct tw_gguf_tensor *const *)a)->data;
    const uint8_t *y = (*(const struct tw_gguf_tensor *const *)b)->data;
    return (x > y) - (x < y);
}

/* Room for one element more; grows with what was read, since counts in the file are only claims. */
static bool grow(void **elements, size_t *capacity, size_t n, size_t element_size) {
    if (n < *capacity) return true;
    const size_t more = *capacity ? 2 * *capacity : 64;
    size_t bytes;
    void *moved = tw_mul_size(&bytes, more, element_size) ? realloc(*elements, bytes) : NULL;
    if (!moved) return false;
    *elements = moved;
    *capacity = more;
    return true;
}

static tw_status out_of_memory(const char *path, struct tw_error *err) {
    return TW_FAIL(err, TW_E_MEMORY, "out of memory while reading model '%s'", path);
}

static tw_status check_apart(const struct tw_gguf *gguf, struct tw_error *err) {
    if (gguf->n_tensors < 2) return TW_OK;
    const struct tw_gguf_tensor **by_place = malloc(gguf->n_tensors * sizeof(void *));
    if (!by_place) return out_of_memory(gguf->path, err);
    for (size_t i = 0; i < gguf->n_tensors; i++) by_place[i] = &gguf->tensors[i];
    qsort(by_place, gguf->n_tensors, sizeof(void *), compare_places);
    tw_status status = TW_OK;
    for (size_t i = 1; i < gguf->n_tensors && status == TW_OK; i++) {
        const struct tw_gguf_tensor *a = by_place[i - 1], *b = by_place[i];
        if (b->data < a->data + a->size)
            status = TW_FAIL(err, TW_E_INPUT, "model '%s': tensors '%.*s' and '%.*s' overlap", gguf->path,
                             NAME(a->name), NAME(b->name));
    }
    free(by_place);
    return status;
}

static tw_status parse_keys(struct tw_gguf *gguf, struct reader *reader, uint64_t n, struct tw_error *err) {
    size_t capacity = 0;
    for (; gguf->n_keys < n; gguf->n_keys++) {
        if (!grow((void **)&gguf->keys, &capacity, gguf->n_keys, sizeof *gguf->keys))
            return out_of_memory(gguf->path, err);
        TW_TRY(read_key(&gguf->keys[gguf->n_keys], reader, gguf->n_keys, gguf->path, err));
    }
    if (n) qsort(gguf->keys, gguf->n_keys, sizeof *gguf->keys, compare_keys);
    for (size_t i = 1; i < gguf->n_keys; i++)
        if (compare_keys(&gguf->keys[i - 1], &gguf->keys[i]) == 0)
            return TW_FAIL(err, TW_E_INPUT, "model '%s': metadata key '%.*s' is given twice", gguf->path,
                           NAME(gguf->keys[i].name));
    return TW_OK;
}

static tw_status parse_alignment(struct tw_gguf *gguf, struct tw_error *err) {
    uint64_t alignment = ALIGNMENT_DEFAULT;
    TW_TRY(tw_gguf_get_uint(&alignment, gguf, "general.alignment", false, err));
    if ((alignment & (alignment - 1)) != 0 || alignment < 8 || alignment > 1 << 30)
        return TW_FAIL(err, TW_E_INPUT,
                       "model '%s': general.alignment is %" PRIu64 ", expected a power of two from 8 on", gguf->path,
                       alignment);
    gguf->alignment = alignment;
    return TW_OK;
}

static tw_status parse_tensors(struct tw_gguf *gguf, struct reader *reader, uint64_t n, struct tw_error *err) {
    size_t capacity = 0;
    for (; gguf->n_tensors < n; gguf->n_tensors++) {
        if (!grow((void **)&gguf->tensors, &capacity, gguf->n_tensors, sizeof *gguf->tensors))
            return out_of_memory(gguf->path, err);
        struct tw_gguf_tensor *tensor = &gguf->tensors[gguf->n_tensors];
        TW_TRY(read_tensor(tensor, reader, gguf->n_tensors, gguf->path, err));
    }
    if (n == 0) return TW_OK;
    const size_t start = tw_round_up((size_t)(reader->at - gguf->data), gguf->alignment);
    for (size_t i = 0; i < n; i++) {
        struct tw_gguf_tensor *tensor = &gguf->tensors[i];
        if (tensor->offset % gguf->alignment != 0)
            return TW_FAIL(err, TW_E_INPUT,
                           "model '%s': the offset %" PRIu64 " of tensor '%.*s' is no multiple of the alignment %zu",
                           gguf->path, tensor->offset, NAME(tensor->name), gguf->alignment);
        uint64_t end;
        if (!tw_add_u64(&end, tensor->offset, tensor->size) || !tw_add_u64(&end, end, start) || end > gguf->size)
            return TW_FAIL(err, TW_E_INPUT,
                           "model '%s': tensor '%.*s' goes past the end of the file: %zu bytes at offset %" PRIu64
                           " of the data, which has %zu; is the file complete?",
                           gguf->path, NAME(tensor->name), tensor->size, tensor->offset,
                           gguf->size > start ? gguf->size - start : 0);
        tensor->data = gguf->data + start + tensor->offset;
    }
    qsort(gguf->tensors, gguf->n_tensors, sizeof *gguf->tensors, compare_tensors);
    for (size_t i = 1; i < gguf->n_tensors; i++)
        if (compare_tensors(&gguf->tensors[i - 1], &gguf->tensors[i]) == 0)
            return TW_FAIL(err, TW_E_INPUT, "model '%s': there are two tensors called '%.*s'", gguf->path,
                           NAME(gguf->tensors[i].name));
    return check_apart(gguf, err);
}

static tw_status parse_header(struct reader *reader, uint64_t *n_tensors, uint64_t *n_keys, struct tw_gguf *gguf,
                              struct tw_error *err) {
    const char *path = gguf->path;
    const struct tw_view content = {(const char *)gguf->data, gguf->size};
    if (gguf->size == 0) return TW_FAIL(err, TW_E_INPUT, "model '%s' is empty", path);
    if (tw_view_starts_with(content, TW_VIEW("version https://git-lfs")))
        return TW_FAIL(err, TW_E_INPUT,
                       "model '%s' is a Git LFS pointer, not the model: fetch the file itself (git lfs pull)", path);
    if (!tw_view_starts_with(content, TW_VIEW("GGUF")))
        return TW_FAIL(err, TW_E_INPUT, "model '%s' is no GGUF file: it does not begin with 'GGUF'", path);
    const uint8_t *magic;
    read_bytes(&magic, reader, 4);
    if (!read_u32(&gguf->version, reader))
        return TW_FAIL(err, TW_E_INPUT, "model '%s': the file ends inside its header", path);
    if (gguf->version != 0 && (gguf->version & 0xffff) == 0)
        return TW_FAIL(err, TW_E_UNSUPPORTED,
                       "model '%s' is a big-endian GGUF file (version field 0x%08" PRIx32
                       "): convert it to little-endian",
                       path, gguf->version);
    if (gguf->version == 1)
        return TW_FAIL(err, TW_E_UNSUPPORTED,
                       "model '%s' is a GGUF file of the old version 1: versions 2 and 3 are read, convert it again",
                       path);
    if (gguf->version != 2 && gguf->version != 3)
        return TW_FAIL(err, TW_E_UNSUPPORTED,
                       "model '%s' is a GGUF file of version %" PRIu32 ": versions 2 and 3 are read", path,
                       gguf->version);
    if (!read_u64(n_tensors, reader) || !read_u64(n_keys, reader))
        return TW_FAIL(err, TW_E_INPUT, "model '%s': the file ends inside its header", path);
    if (*n_keys > reader->left / KEY_BYTES_MIN)
        return TW_FAIL(err, TW_E_INPUT,
                       "model '%s': the header claims %" PRIu64
                       " metadata keys, more than the file's %zu bytes can hold",
                       path, *n_keys, gguf->size);
    if (*n_tensors > reader->left / TENSOR_BYTES_MIN)
        return TW_FAIL(err, TW_E_INPUT,
                       "model '%s': the header claims %" PRIu64 " tensors, more than the file's %zu bytes can hold",
                       path, *n_tensors, gguf->size);
    return TW_OK;
}

tw_status tw_gguf_parse(struct tw_gguf *gguf, const char *path, const uint8_t *data, size_t size,
                        struct tw_error *err) {
    *gguf = (struct tw_gguf){.path = strdup(path), .data = data, .size = size};
    struct reader reader = {data, size};
    uint64_t n_tensors = 0, n_keys = 0;
    tw_status status = gguf->path ? TW_OK : out_of_memory(path, err);
    if (status == TW_OK) status = parse_header(&reader, &n_tensors, &n_keys, gguf, err);
    if (status == TW_OK) status = parse_keys(gguf, &reader, n_keys, err);
    if (status == TW_OK) status = parse_alignment(gguf, err);
    if (status == TW_OK) status = parse_tensors(gguf, &reader, n_tensors, err);
    if (status != TW_OK) tw_gguf_release(gguf);
    return status;
}

tw_status tw_gguf_open(struct tw_gguf *gguf, const char *path, struct tw_error *err) {
    struct tw_file file;
    *gguf = (struct tw_gguf){0};
    TW_TRY(tw_file_map(&file, path, "model", err));
    const tw_status status = tw_gguf_parse(gguf, path, file.data, file.size, err);
    if (status == TW_OK)
        gguf->file = file;
    else
        tw_file_unmap(&file);
    return status;
}

void tw_gguf_release(struct tw_gguf *gguf) {
    free(gguf->keys);
    free(gguf->tensors);
    free(gguf->path);
    tw_file_unmap(&gguf->file);
    *gguf = (struct tw_gguf){0};
}

/* ---- looking up ---------------------------------------------------------------------------------------------------
 */

const struct tw_gguf_key *tw_gguf_find(const struct tw_gguf *gguf, const char *name) {
    const struct tw_gguf_key key = {.name = tw_view_of(name)};
    return gguf->n_keys ? bsearch(&key, gguf->keys, gguf->n_keys, sizeof key, compare_keys) : NULL;
}

const struct tw_gguf_tensor *tw_gguf_find_tensor(const struct tw_gguf *gguf, const char *name) {
    const struct tw_gguf_tensor key = {.name = tw_view_of(name)};
    return gguf->n_tensors ? bsearch(&key, gguf->tensors, gguf->n_tensors, sizeof key, compare_tensors) : NULL;
}

static tw_status missing(const struct tw_gguf *gguf, const char *name, bool required, struct tw_error *err) {
    return required ? TW_FAIL(err, TW_E_INPUT, "model '%s': the metadata key '%s' is missing", gguf->path, name)
                    : TW_OK;
}

static tw_status wrong_type(const struct tw_gguf *gguf, const struct tw_gguf_key *key, const char *expected,
                            struct tw_error *err) {
    char buffer[32];
    const bool array = key->type == TW_GGUF_ARRAY;
    return TW_FAIL(err, TW_E_INPUT, "model '%s': the metadata key '%.*s' is of type %s%s, expected %s", gguf->path,
                   NAME(key->name), array ? "array of " : "",
                   tw_gguf_value_type_name(buffer, array ? key->array.type : key->type), expected);
}

tw_status tw_gguf_get_uint(uint64_t *value, const struct tw_gguf *gguf, const char *name, bool required,
                           struct tw_error *err) {
    const struct tw_gguf_key *key = tw_gguf_find(gguf, name);
    if (!key) return missing(gguf, name, required, err);
    if (!is_integer(key->type)) return wrong_type(gguf, key, "a whole number", err);
    const int64_t number = load_int(key->data, key->type);
    if (key->type != TW_GGUF_U64 && number < 0)
        return TW_FAIL(err, TW_E_INPUT, "model '%s': the metadata key '%s' is %" PRId64 ", expected 0 or more",
                       gguf->path, name, number);
    *value = (uint64_t)number;
    return TW_OK;
}

tw_status tw_gguf_get_double(double *value, const struct tw_gguf *gguf, const char *name, bool required,
                             struct tw_error *err) {
    const struct tw_gguf_key *key = tw_gguf_find(gguf, name);
    if (!key) return missing(gguf, name, required, err);
    if (!is_integer(key->type) && !is_float(key->type)) return wrong_type(gguf, key, "a number", err);
    *value = load_double(key->data, key->type);
    return TW_OK;
}

tw_status tw_gguf_get_bool(bool *value, const struct tw_gguf *gguf, const char *name, bool required,
                           struct tw_error *err) {
    const struct tw_gguf_key *key = tw_gguf_find(gguf, name);
    if (!key) return missing(gguf, name, required, err);
    if (key->type != TW_GGUF_BOOL) return wrong_type(gguf, key, "bool", err);
    *value = *key->data != 0;
    return TW_OK;
}

tw_status tw_gguf_get_string(struct tw_view *value, const struct tw_gguf *gguf, const char *name, bool required,
                             struct tw_error *err) {
    const struct tw_gguf_key *key = tw_gguf_find(gguf, name);
    if (!key) return missing(gguf, name, required, err);
    if (key->type != TW_GGUF_STRING) return wrong_type(gguf, key, "string", err);
    *value = key->string;
    return TW_OK;
}

tw_status tw_gguf_get_array(struct tw_gguf_array *value, const struct tw_gguf *gguf, const char *name,
                            enum tw_gguf_elements elements, bool required, struct tw_error *err) {
    const struct tw_gguf_key *key = tw_gguf_find(gguf, name);
    if (!key) return missing(gguf, name, required, err);
    static const char *const expected[] = {
        [TW_GGUF_STRINGS] = "an array of strings",
        [TW_GGUF_INTEGERS] = "an array of whole numbers",
        [TW_GGUF_FLOATS] = "an array of floating-point numbers",
        [TW_GGUF_BOOLS] = "an array of bool",
    };
    const bool right = key->type == TW_GGUF_ARRAY && (elements == TW_GGUF_STRINGS    ? key->array.type == TW_GGUF_STRING
                                                      : elements == TW_GGUF_INTEGERS ? is_integer(key->array.type)
                                                      : elements == TW_GGUF_FLOATS   ? is_float(key->array.type)
                                                                                     : key->array.type == TW_GGUF_BOOL);
    if (!right) return wrong_type(gguf, key, expected[elements], err);
    *value = key->array;
    return TW_OK;
}

int64_t tw_gguf_array_int(const struct tw_gguf_array *array, size_t i) {
    return load_int(array->data + i * value_types[array->type].size, array->type);
}

double tw_gguf_array_double(const struct tw_gguf_array *array, size_t i) {
    return load_double(array->data + i * value_types[array->type].size, array->type);
}

bool tw_gguf_strings_next(struct tw_view *string, struct tw_gguf_strings *strings) {
    if (strings->left == 0) return false;
    const uint64_t size = load(strings->at, 8);
    *string = (struct tw_view){(const char *)strings->at + 8, size};
    strings->at += 8 + size;
    strings->left--;
    return true;
}
