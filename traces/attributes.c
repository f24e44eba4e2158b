#include "traces/attributes.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "traces/h5.h"

#define FIELD(field) offsetof(struct tw_trace_info, field)

const struct tw_attribute_row tw_attribute_rows[] = {
    {"model", TW_KIND_TEXT, FIELD(model), 0, false},
    {"architecture", TW_KIND_TEXT, FIELD(architecture), 0, false},
    {"task", TW_KIND_TEXT, FIELD(task), 0, false},
    {"run", TW_KIND_TEXT, FIELD(run), 0, false},
    {"n_layers", TW_KIND_SIZE, FIELD(n_layers), 0, true},
    {"n_heads", TW_KIND_SIZE, FIELD(n_heads), 0, true},
    {"n_kv_heads", TW_KIND_SIZE, FIELD(n_kv_heads), 0, true},
    {"head_dim", TW_KIND_SIZE, FIELD(head_dim), 0, false},
    {"top_k", TW_KIND_SIZE, FIELD(top_k), 0, true},
    {"prompt_length", TW_KIND_SIZE, FIELD(prompt_length), 0, true},
    {"schedule", TW_KIND_TEXT, FIELD(schedule), 0, false},
    {"selector", TW_KIND_TEXT, FIELD(selector), 0, false},
    {"budget", TW_KIND_U64, FIELD(budget), 0, false},
    {"chunk", TW_KIND_U64, FIELD(chunk), 0, false},
    {"backend", TW_KIND_TEXT, FIELD(backend), 0, false},
    {"dtype", TW_KIND_TEXT, FIELD(dtype), 0, false},
    {"seed", TW_KIND_U64, FIELD(seed), 0, false},
    {"threads", TW_KIND_U64, FIELD(threads), 0, false},
    {"producer", TW_KIND_TEXT, FIELD(producer), 0, false},
    {"n_steps", TW_KIND_SIZE, FIELD(n_steps), 0, true},
    {"complete", TW_KIND_BOOL, FIELD(complete), 0, true},
    {"special_tokens", TW_KIND_TEXT, FIELD(special_tokens), 0, false},
    {"pre_tokenizer", TW_KIND_TEXT, FIELD(pre_tokenizer), 0, false},
    {"needle_begin", TW_KIND_SIZE, FIELD(needle_begin), FIELD(has_needle), false},
    {"needle_end", TW_KIND_SIZE, FIELD(needle_end), FIELD(has_needle), false},
    {"sink_tokens", TW_KIND_U64, FIELD(sink_tokens), FIELD(has_windows), false},
    {"local_window", TW_KIND_U64, FIELD(local_window), FIELD(has_windows), false},
    {"expected_answer", TW_KIND_TEXT, FIELD(expected_answer), 0, false},
    {"generated_text", TW_KIND_TEXT, FIELD(generated_text), 0, false},
    {0},
};

/* Beyond this an attribute is no text that a person or a model wrote in one run. */
static const size_t longest_text_bytes = (size_t)64 << 20;

static void *field_of(struct tw_trace_info *info, size_t offset) { return (char *)info + offset; }
static const void *const_field_of(const struct tw_trace_info *info, size_t offset) {
    return (const char *)info + offset;
}

uint64_t tw_attribute_number(const struct tw_attribute_row *row, const struct tw_trace_info *info) {
    const void *const field = const_field_of(info, row->offset);
    switch (row->kind) {
    case TW_KIND_SIZE: return *(const size_t *)field;
    case TW_KIND_U64: return *(const uint64_t *)field;
    case TW_KIND_BOOL: return *(const bool *)field;
    case TW_KIND_TEXT: break;
    }
    return 0;
}

bool tw_attribute_present(const struct tw_attribute_row *row, const struct tw_trace_info *info) {
    if (row->kind == TW_KIND_TEXT) return *(char *const *)const_field_of(info, row->offset) != NULL;
    return !row->presence || *(const bool *)const_field_of(info, row->presence);
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

struct reading {
    struct tw_trace_info *info;
    const char *path;
    struct tw_error *err;
    bool seen[sizeof tw_attribute_rows / sizeof *tw_attribute_rows];
    bool format, format_version;
};

#define REFUSE(...) TW_FAIL(reading->err, TW_E_INPUT, __VA_ARGS__)

static bool single(hid_t attribute) {
    const hid_t space = H5Aget_space(attribute);
    const bool one = H5Sget_simple_extent_npoints(space) == 1;
    H5Sclose(space);
    return one;
}

/* Any width, sign and byte order, enumerations (numpy's bool) too. */
static bool read_integer(int64_t *value, hid_t attribute) {
    const hid_t type = H5Aget_type(attribute);
    hid_t base = type;
    H5T_class_t class = H5Tget_class(type);
    if (class == H5T_ENUM) {
        base = H5Tget_super(type);
        class = H5Tget_class(base);
    }
    const size_t size = H5Tget_size(base);
    uint8_t bytes[8] = {0};
    bool read = class == H5T_INTEGER && size <= 8 && single(attribute) && H5Tget_precision(base) == 8 * size &&
                H5Aread(attribute, type, bytes) >= 0;
    uint64_t bits = 0;
    const bool big_endian = H5Tget_order(base) == H5T_ORDER_BE;
    for (size_t b = 0; read && b < size; b++) bits |= (uint64_t)bytes[big_endian ? size - 1 - b : b] << 8 * b;
    if (read && H5Tget_sign(base) == H5T_SGN_2)
        bits = (uint64_t)((int64_t)(bits << (64 - 8 * size)) >> (64 - 8 * size));
    else if (bits > INT64_MAX)
        read = false;
    if (read) *value = (int64_t)bits;
    if (base != type) H5Tclose(base);
    H5Tclose(type);
    return read;
}

static bool read_real(double *value, hid_t attribute) {
    const hid_t type = H5Aget_type(attribute);
    const bool read = H5Tget_class(type) == H5T_FLOAT && H5Tget_size(type) <= 16 && single(attribute) &&
                      H5Aread(attribute, H5T_NATIVE_DOUBLE, value) >= 0;
    H5Tclose(type);
    return read;
}

static bool append_fixed(struct tw_text *text, hid_t attribute, hid_t type) {
    size_t size = H5Tget_size(type);
    if (size == 0 || size > longest_text_bytes) return false;
    char *const bytes = malloc(size);
    const bool read = bytes && H5Aread(attribute, type, bytes) >= 0;
    if (read) {
        size = strnlen(bytes, size);
        while (H5Tget_strpad(type) == H5T_STR_SPACEPAD && size && bytes[size - 1] == ' ') size--;
        tw_text_append_utf8_repaired(text, (struct tw_view){bytes, size}, false);
    }
    free(bytes);
    return read;
}

static bool append_variable(struct tw_text *text, hid_t attribute, hid_t type) {
    const hid_t memory = H5Tcopy(H5T_C_S1);
    H5Tset_size(memory, H5T_VARIABLE);
    H5Tset_cset(memory, H5Tget_cset(type));
    char *bytes = NULL;
    const bool read = H5Aread(attribute, memory, &bytes) >= 0;
    if (read && bytes) {
        const size_t size = strlen(bytes);
        if (size <= longest_text_bytes) tw_text_append_utf8_repaired(text, (struct tw_view){bytes, size}, false);
    }
    H5free_memory(bytes);
    H5Tclose(memory);
    return read;
}

/* NULL when it is no single string, or memory ran out. */
static char *read_text(hid_t attribute) {
    const hid_t type = H5Aget_type(attribute);
    struct tw_text text = {0};
    tw_text_append(&text, TW_VIEW("")); /* an empty string is one too */
    const bool read =
        H5Tget_class(type) == H5T_STRING && single(attribute) &&
        (H5Tis_variable_str(type) > 0 ? append_variable(&text, attribute, type) : append_fixed(&text, attribute, type));
    H5Tclose(type);
    char *const copy = read && tw_text_ok(&text) ? strdup(tw_text_string(&text)) : NULL;
    tw_text_release(&text);
    return copy;
}

static tw_status read_row(struct reading *reading, const struct tw_attribute_row *row, hid_t attribute) {
    void *const field = field_of(reading->info, row->offset);
    if (row->kind == TW_KIND_TEXT) {
        char *const text = read_text(attribute);
        if (!text) return REFUSE("trace '%s': attribute '%s' is not a string", reading->path, row->name);
        free(*(char **)field);
        *(char **)field = text;
    } else {
        int64_t value;
        if (!read_integer(&value, attribute))
            return REFUSE("trace '%s': attribute '%s' is not an integer", reading->path, row->name);
        if (value < 0 || (row->kind == TW_KIND_BOOL && value > 1))
            return REFUSE("trace '%s': attribute '%s' is %" PRId64 ", out of range", reading->path, row->name, value);
        switch (row->kind) {
        case TW_KIND_SIZE: *(size_t *)field = (size_t)value; break;
        case TW_KIND_U64: *(uint64_t *)field = (uint64_t)value; break;
        case TW_KIND_BOOL: *(bool *)field = value != 0; break;
        case TW_KIND_TEXT: break;
        }
    }
    reading->seen[row - tw_attribute_rows] = true;
    return TW_OK;
}

/* Attributes that the format does not know are kept when they are one string or number, and passed over otherwise. */
static tw_status read_extra(struct reading *reading, const char *name, hid_t attribute) {
    struct tw_trace_attribute extra = {0};
    if ((extra.text = read_text(attribute)))
        extra.type = TW_ATTRIBUTE_TEXT;
    else if (read_integer(&extra.integer, attribute))
        extra.type = TW_ATTRIBUTE_INTEGER;
    else if (read_real(&extra.real, attribute))
        extra.type = TW_ATTRIBUTE_REAL;
    else
        return TW_OK;
    struct tw_trace_info *const info = reading->info;
    struct tw_trace_attribute *const larger = realloc(info->extra, (info->n_extra + 1) * sizeof *larger);
    if (larger) info->extra = larger;
    extra.name = strdup(name);
    if (!larger || !extra.name) {
        free(extra.text);
        free(extra.name);
        return TW_FAIL(reading->err, TW_E_MEMORY, "trace '%s': out of memory for its attributes", reading->path);
    }
    info->extra[info->n_extra++] = extra;
    return TW_OK;
}

static tw_status read_format(struct reading *reading, const char *name, hid_t attribute) {
    if (strcmp(name, "format") == 0) {
        char *const text = read_text(attribute);
        reading->format = text && strcmp(text, TW_TRACE_FORMAT) == 0;
        free(text);
        return TW_OK;
    }
    int64_t version = 0;
    if (!read_integer(&version, attribute))
        return REFUSE("trace '%s': attribute 'format_version' is not an integer", reading->path);
    if (version != TW_TRACE_FORMAT_VERSION)
        return REFUSE("trace '%s': has format version %" PRId64 ", this program reads version %d", reading->path,
                      version, TW_TRACE_FORMAT_VERSION);
    reading->format_version = true;
    return TW_OK;
}

static tw_status read_attribute(struct reading *reading, const char *name, hid_t attribute) {
    if (H5Aget_storage_size(attribute) > longest_text_bytes) /* libhdf5 makes room for all that is stated */
        return REFUSE("trace '%s': attribute '%s' is implausibly large", reading->path, name);
    if (strcmp(name, "format") == 0 || strcmp(name, "format_version") == 0)
        return read_format(reading, name, attribute);
    for (const struct tw_attribute_row *row = tw_attribute_rows; row->name; row++)
        if (strcmp(row->name, name) == 0) return read_row(reading, row, attribute);
    return read_extra(reading, name, attribute);
}

/* For H5Aiterate2: < 0 stops; the sentence is in reading->err, the status behind it. */
struct iteration {
    struct reading *reading;
    tw_status status;
};

static herr_t visit(hid_t file, const char *name, const H5A_info_t *about, void *data) {
    (void)about;
    struct iteration *const iteration = data;
    const hid_t attribute = H5Aopen(file, name, H5P_DEFAULT);
    if (attribute < 0) return -1;
    iteration->status = read_attribute(iteration->reading, name, attribute);
    H5Aclose(attribute);
    return iteration->status == TW_OK ? 0 : -1;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct tw_trace_attribute *)a)->name, ((const struct tw_trace_attribute *)b)->name);
}

void tw_attributes_sort(struct tw_trace_info *info) {
    if (info->n_extra) qsort(info->extra, info->n_extra, sizeof *info->extra, by_name);
}

tw_status tw_attributes_read(struct tw_trace_info *info, hid_t file, const char *path, struct tw_error *err) {
    *info = (struct tw_trace_info){0};
    struct reading state = {.info = info, .path = path, .err = err}, *const reading = &state;
    struct iteration iteration = {reading, TW_OK};
    const herr_t walked = H5Aiterate2(file, H5_INDEX_NAME, H5_ITER_NATIVE, NULL, visit, &iteration);
    tw_status status = iteration.status;
    if (status == TW_OK && walked < 0)
        status = REFUSE("trace '%s': has unreadable attributes: %s", path, tw_h5_reason());
    H5Eclear2(H5E_DEFAULT);
    if (status == TW_OK && !reading->format)
        status =
            REFUSE("trace '%s': is an HDF5 file but no trace (attribute 'format' is not '" TW_TRACE_FORMAT "')", path);
    if (status == TW_OK && !reading->format_version)
        status = REFUSE("trace '%s': attribute 'format_version' is missing", path);
    bool pair[2] = {false, false}; /* whether all attributes with a presence flag are there: needle, windows */
    for (const struct tw_attribute_row *row = tw_attribute_rows; status == TW_OK && row->name; row++) {
        const bool seen = reading->seen[row - tw_attribute_rows];
        if (row->required && !seen) status = REFUSE("trace '%s': attribute '%s' is missing", path, row->name);
        if (!row->presence) continue;
        bool *const had = &pair[row->presence == FIELD(has_windows)];
        bool *const has = field_of(info, row->presence);
        *has = *had ? *has && seen : seen;
        *had = true;
    }
    tw_attributes_sort(info);
    if (status == TW_OK) status = tw_trace_info_check(info, path, err);
    if (status != TW_OK) tw_trace_info_release(info);
    return status;
}

tw_status tw_trace_info_check(const struct tw_trace_info *info, const char *path, struct tw_error *err) {
    const struct {
        const char *name;
        size_t value, minimum, maximum;
    } rows[] = {
        {"n_layers", info->n_layers, 1, 1 << 16},     {"n_heads", info->n_heads, 1, 1 << 16},
        {"n_kv_heads", info->n_kv_heads, 1, 1 << 16}, {"head_dim", info->head_dim, 0, 1 << 16},
        {"top_k", info->top_k, 1, 1 << 20},           {"prompt_length", info->prompt_length, 0, INT32_MAX},
        {"n_steps", info->n_steps, 0, INT32_MAX},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].value < rows[i].minimum || rows[i].value > rows[i].maximum)
            return TW_FAIL(err, TW_E_INPUT, "trace '%s': attribute '%s' is %zu, expected %zu to %zu", path,
                           rows[i].name, rows[i].value, rows[i].minimum, rows[i].maximum);
    if (info->n_heads % info->n_kv_heads)
        return TW_FAIL(err, TW_E_INPUT, "trace '%s': %zu query heads do not divide among %zu KV heads", path,
                       info->n_heads, info->n_kv_heads);
    if (info->has_needle && (info->needle_begin >= info->needle_end || info->needle_end > info->prompt_length))
        return TW_FAIL(err, TW_E_INPUT, "trace '%s': the needle's tokens %zu to %zu do not lie in a prompt of %zu",
                       path, info->needle_begin, info->needle_end, info->prompt_length);
    return TW_OK;
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static bool put(hid_t file, const char *name, hid_t type, const void *value) {
    bool done = false;
    hid_t attribute = H5Aexists(file, name) > 0 ? H5Aopen(file, name, H5P_DEFAULT) : -1;
    if (attribute < 0) {
        const hid_t space = H5Screate(H5S_SCALAR);
        attribute = H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
        H5Sclose(space);
    }
    if (attribute >= 0) {
        done = H5Awrite(attribute, type, value) >= 0;
        H5Aclose(attribute);
    }
    return done;
}

bool tw_attribute_put_integer(hid_t file, const char *name, int64_t value) {
    return put(file, name, H5T_STD_I64LE, &value);
}

bool tw_attribute_put_real(hid_t file, const char *name, double value) {
    return put(file, name, H5T_IEEE_F64LE, &value);
}

bool tw_attribute_put_text(hid_t file, const char *name, struct tw_view text) {
    struct tw_text sound = {0};
    tw_text_append_utf8_repaired(&sound, text, false);
    const char *const string = tw_text_string(&sound);
    const hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, H5T_VARIABLE);
    H5Tset_cset(type, H5T_CSET_UTF8);
    const bool done = tw_text_ok(&sound) && put(file, name, type, &string);
    H5Tclose(type);
    tw_text_release(&sound);
    return done;
}

static bool put_row(hid_t file, const struct tw_attribute_row *row, const struct tw_trace_info *info) {
    if (row->kind == TW_KIND_TEXT)
        return tw_attribute_put_text(file, row->name, tw_view_of(*(char *const *)const_field_of(info, row->offset)));
    const bool late = row->offset == FIELD(n_steps) || row->offset == FIELD(complete);
    return tw_attribute_put_integer(file, row->name, late ? 0 : (int64_t)tw_attribute_number(row, info));
}

static bool put_extra(hid_t file, const struct tw_trace_attribute *extra) {
    switch (extra->type) {
    case TW_ATTRIBUTE_TEXT: return tw_attribute_put_text(file, extra->name, tw_view_of(extra->text));
    case TW_ATTRIBUTE_INTEGER: return tw_attribute_put_integer(file, extra->name, extra->integer);
    case TW_ATTRIBUTE_REAL: return tw_attribute_put_real(file, extra->name, extra->real);
    }
    return false;
}

tw_status tw_attributes_write(hid_t file, const struct tw_trace_info *info, const char *path, struct tw_error *err) {
    bool done = tw_attribute_put_text(file, "format", TW_VIEW(TW_TRACE_FORMAT)) &&
                tw_attribute_put_integer(file, "format_version", TW_TRACE_FORMAT_VERSION);
    for (const struct tw_attribute_row *row = tw_attribute_rows; done && row->name; row++)
        if (tw_attribute_present(row, info)) done = put_row(file, row, info);
    for (size_t i = 0; done && i < info->n_extra; i++) done = put_extra(file, &info->extra[i]);
    if (!done) return TW_FAIL(err, TW_E_IO, "trace '%s': cannot write its attributes: %s", path, tw_h5_reason());
    return TW_OK;
}
