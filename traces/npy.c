#include "traces/npy.h"

#include <assert.h>
#include <string.h>

#include "base/checked.h"
#include "base/half.h"

/* ---- the head: a Python dictionary
 * ------------------------------------------------------------------------------------- */

struct cursor {
    const char *at, *end;
};

static void skip_space(struct cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t' || *c->at == '\r')) c->at++;
}

static bool take(struct cursor *c, char byte) {
    skip_space(c);
    if (c->at == c->end || *c->at != byte) return false;
    c->at++;
    return true;
}

static bool take_word(struct cursor *c, const char *word) {
    const size_t size = strlen(word);
    skip_space(c);
    if ((size_t)(c->end - c->at) < size || memcmp(c->at, word, size) != 0) return false;
    c->at += size;
    return true;
}

static bool take_string(struct cursor *c, struct tw_view *string) {
    skip_space(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"')) return false;
    const char quote = *c->at++;
    const char *const start = c->at;
    while (c->at < c->end && *c->at != quote) c->at++;
    if (c->at == c->end) return false;
    *string = (struct tw_view){start, (size_t)(c->at - start)};
    c->at++;
    return true;
}

static bool take_number(struct cursor *c, size_t *number) {
    skip_space(c);
    const char *const start = c->at;
    *number = 0;
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
        if (!tw_mul_size(number, *number, 10) || !tw_add_size(number, *number, (size_t)(*c->at - '0'))) return false;
    take_word(c, "L"); /* Python 2 wrote 3L */
    return c->at > start;
}

static bool take_shape(struct cursor *c, struct tw_npy *npy) {
    if (!take(c, '(')) return false;
    npy->rank = 0;
    while (!take(c, ')')) {
        if (npy->rank == TW_NPY_MAX_RANK || !take_number(c, &npy->shape[npy->rank++])) return false;
        if (!take(c, ',')) {
            if (!take(c, ')')) return false;
            break;
        }
    }
    return true;
}

/* "<f2", "|b1", ">i4", "=u8" */
static bool parse_descr(struct tw_npy *npy, struct tw_view descr) {
    if (descr.size != 3) return false;
    const char order = descr.data[0];
    npy->kind = descr.data[1];
    npy->item_bytes = (size_t)(descr.data[2] - '0');
    npy->big_endian = order == '>';
    const size_t size = npy->item_bytes;
    if (!strchr("<>=|", order) || order == '\0' || (order == '|' && size != 1)) return false;
    switch (npy->kind) {
    case 'b': return size == 1;
    case 'i':
    case 'u': return size == 1 || size == 2 || size == 4 || size == 8;
    case 'f': return size == 2 || size == 4 || size == 8;
    default: return false;
    }
}

#define REFUSE(...) TW_FAIL(err, TW_E_INPUT, __VA_ARGS__)

static tw_status parse_head(struct tw_npy *npy, struct tw_view head, const char *name, struct tw_error *err) {
    struct cursor c = {head.data, head.data + head.size};
    bool descr = false, order = false, shape = false, sound = take(&c, '{');
    while (sound && !take(&c, '}')) {
        struct tw_view key, value;
        sound = take_string(&c, &key) && take(&c, ':');
        if (!sound) break;
        if (tw_view_equal(key, TW_VIEW("descr"))) {
            if (!take_string(&c, &value)) return REFUSE("%s: is a structured array, expected plain numbers", name);
            if (memchr(value.data, 'O', value.size))
                return REFUSE("%s: is an array of Python objects, expected numbers", name);
            if (!parse_descr(npy, value))
                return REFUSE("%s: has elements of type '%.*s', expected booleans, integers or floats", name,
                              (int)tw_min_size(value.size, 16), value.data);
            descr = true;
        } else if (tw_view_equal(key, TW_VIEW("fortran_order"))) {
            npy->column_major = take_word(&c, "True");
            sound = order = npy->column_major || take_word(&c, "False");
        } else if (tw_view_equal(key, TW_VIEW("shape"))) {
            sound = shape = take_shape(&c, npy);
        } else {
            sound = false;
        }
        if (sound && !take(&c, ',')) {
            sound = take(&c, '}');
            break;
        }
    }
    if (!sound || !descr || !order || !shape) return REFUSE("%s: has a damaged head", name);
    return TW_OK;
}

tw_status tw_npy_parse(struct tw_npy *npy, const void *bytes, size_t size, const char *name, struct tw_error *err) {
    const uint8_t *const data = bytes;
    *npy = (struct tw_npy){0};
    if (size < 10 || memcmp(data, "\x93NUMPY", 6) != 0) return REFUSE("%s: is no .npy array", name);
    const unsigned version = data[6];
    if (version < 1 || version > 3) return REFUSE("%s: has .npy version %u, known are 1 to 3", name, version);
    const size_t prefix = version == 1 ? 10 : 12;
    if (size < prefix) return REFUSE("%s: is cut short", name);
    size_t head = data[8] | (size_t)data[9] << 8;
    if (version > 1) head |= (size_t)data[10] << 16 | (size_t)data[11] << 24;
    if (head > size - prefix) return REFUSE("%s: is cut short", name);
    TW_TRY(parse_head(npy, (struct tw_view){(const char *)data + prefix, head}, name, err));
    size_t needed = npy->item_bytes;
    for (unsigned d = 0; d < npy->rank; d++)
        if (!tw_mul_size(&needed, needed, npy->shape[d])) return REFUSE("%s: has an implausible shape", name);
    if (needed != size - prefix - head)
        return REFUSE("%s: has %zu bytes of data, its shape needs %zu", name, size - prefix - head, needed);
    npy->data = data + prefix + head;
    return TW_OK;
}

/* ---- elements
 * ------------------------------------------------------------------------------------------------------------- */

static uint64_t load(const struct tw_npy *npy, size_t index) {
    const uint8_t *const bytes = npy->data + index * npy->item_bytes;
    uint64_t bits = 0;
    for (size_t b = 0; b < npy->item_bytes; b++)
        bits |= (uint64_t)bytes[npy->big_endian ? npy->item_bytes - 1 - b : b] << 8 * b;
    return bits;
}

static float to_float(uint64_t bits, size_t size) {
    if (size == 2) return tw_float_from_half((uint16_t)bits);
    if (size == 4) return tw_float_from_bits((uint32_t)bits);
    double value;
    memcpy(&value, &bits, sizeof value);
    return (float)value;
}

static bool store(void *out, size_t i, enum tw_npy_target target, uint64_t bits, const struct tw_npy *npy) {
    if (target == TW_NPY_F32) {
        ((float *)out)[i] = to_float(bits, npy->item_bytes);
        return true;
    }
    int64_t value = (int64_t)bits;
    const unsigned unused = (unsigned)(64 - 8 * npy->item_bytes);
    if (npy->kind == 'i') value = (int64_t)(bits << unused) >> unused;
    if (npy->kind != 'i' && bits > INT64_MAX) return false;
    if (target == TW_NPY_U8) {
        ((uint8_t *)out)[i] = (uint8_t)value;
        return value >= 0 && value <= UINT8_MAX;
    }
    ((int32_t *)out)[i] = (int32_t)value;
    return value >= INT32_MIN && value <= INT32_MAX;
}

bool tw_npy_slab(const struct tw_npy *npy, void *out, enum tw_npy_target target, size_t index) {
    assert(npy->rank >= 1 && index < npy->shape[0] && (target == TW_NPY_F32) == (npy->kind == 'f'));
    size_t stride[TW_NPY_MAX_RANK] = {0}, at[TW_NPY_MAX_RANK] = {0}, n = 1, step = 1;
    for (unsigned k = 0; k < npy->rank; k++) {
        const unsigned d = npy->column_major ? k : npy->rank - 1 - k;
        stride[d] = step;
        step *= npy->shape[d];
        if (d) n *= npy->shape[d];
    }
    size_t from = index * stride[0];
    for (size_t i = 0; i < n; i++) {
        if (!store(out, i, target, load(npy, from), npy)) return false;
        for (unsigned d = npy->rank - 1; d > 0; d--) {
            from += stride[d];
            if (++at[d] < npy->shape[d]) break;
            from -= stride[d] * npy->shape[d];
            at[d] = 0;
        }
    }
    return true;
}

void tw_npy_append_head(struct tw_text *text, const char *descr, const size_t *shape, unsigned rank) {
    struct tw_text dict = {0};
    tw_text_printf(&dict, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
    for (unsigned d = 0; d < rank; d++)
        tw_text_printf(&dict, "%s%zu%s", d ? " " : "", shape[d], d + 1 < rank || rank == 1 ? "," : "");
    tw_text_printf(&dict, "), }");
    while ((10 + dict.size + 1) % 64) tw_text_append_char(&dict, ' '); /* data starts at a multiple of 64 bytes */
    tw_text_append_char(&dict, '\n');
    tw_text_append(text, (struct tw_view){"\x93NUMPY\x01\x00", 8});
    tw_text_append_char(text, (char)(dict.size & 0xff));
    tw_text_append_char(text, (char)(dict.size >> 8));
    tw_text_append(text, tw_text_view(&dict));
    text->failed |= dict.failed;
    tw_text_release(&dict);
}
