/*
 * The parsed header of a GGUF file (versions 2 and 3, little-endian): metadata and tensor descriptions as views into
 * the mapping. Nothing but two sorted tables of descriptions is allocated, and those grow with what was really read,
 * never by a count in the file.
 *
 * Parsing checks everything that later code relies on: every string and array lies inside the file, names differ, sizes
 * do not wrap, tensors are aligned, inside the file and apart from each other. So the accessors cannot run out of
 * bounds.
 *
 * Source: the GGUF specification (ggml, docs/gguf.md). Alignments must be multiples of 8, as specified, and powers of
 * two, as in ggml.
 */
#ifndef TW_ENGINE_MODEL_GGUF_H
#define TW_ENGINE_MODEL_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file.h"
#include "base/view.h"

/* Types of metadata values. The numbers are those of the file. */
enum tw_gguf_value_type {
    TW_GGUF_U8 = 0,
    TW_GGUF_I8 = 1,
    TW_GGUF_U16 = 2,
    TW_GGUF_I16 = 3,
    TW_GGUF_U32 = 4,
    TW_GGUF_I32 = 5,
    TW_GGUF_F32 = 6,
    TW_GGUF_BOOL = 7,
    TW_GGUF_STRING = 8,
    TW_GGUF_ARRAY = 9,
    TW_GGUF_U64 = 10,
    TW_GGUF_I64 = 11,
    TW_GGUF_F64 = 12,
};

/* An array of metadata values as it lies in the file: unaligned, little-endian. Arrays of arrays are refused. */
struct tw_gguf_array {
    enum tw_gguf_value_type type; /* of the elements, never TW_GGUF_ARRAY */
    size_t n;
    const uint8_t *data;
    size_t size; /* bytes of all elements */
};

struct tw_gguf_key {
    struct tw_view name;
    enum tw_gguf_value_type type;
    union {
        const uint8_t *data;        /* of numbers and booleans: unaligned */
        struct tw_view string;      /* TW_GGUF_STRING: may hold any byte */
        struct tw_gguf_array array; /* TW_GGUF_ARRAY */
    };
};

struct tw_gguf_tensor {
    struct tw_view name;
    uint32_t type;    /* of GGUF: an enum tw_type, since others are refused */
    uint32_t n_dims;  /* 1 to 4 */
    uint64_t dims[4]; /* fastest first: dims[0] is the length of a row; those not given are 1; none is 0 */
    uint64_t offset;  /* from the start of the data */
    const uint8_t *data;
    size_t size;   /* bytes */
    size_t number; /* place in the file's list */
};

struct tw_gguf {
    char *path;
    struct tw_file file; /* mapped, when tw_gguf_open did it */
    const uint8_t *data; /* the whole file */
    size_t size;
    uint32_t version;
    size_t alignment;
    size_t n_keys;
    struct tw_gguf_key *keys; /* ascending by name */
    size_t n_tensors;
    struct tw_gguf_tensor *tensors; /* ascending by name */
};

/* Maps and parses. The views live until tw_gguf_release. On failure *gguf is released. */
tw_status tw_gguf_open(struct tw_gguf *gguf, const char *path, struct tw_error *err);
/* Parses bytes that the caller keeps; `path` is for messages. On failure *gguf is released. */
tw_status tw_gguf_parse(struct tw_gguf *gguf, const char *path, const uint8_t *data, size_t size, struct tw_error *err);
void tw_gguf_release(struct tw_gguf *gguf); /* copes with {0} */

/* NULL when there is none of that name. */
const struct tw_gguf_key *tw_gguf_find(const struct tw_gguf *gguf, const char *name);
const struct tw_gguf_tensor *tw_gguf_find_tensor(const struct tw_gguf *gguf, const char *name);

/*
 * The value of key `name`. When it is absent *value stays as it was: success, or, with `required`, TW_E_INPUT. A value
 * of another type is TW_E_INPUT; the sentence names file, key and type. Uints are taken from every integer type and
 * must not be negative; doubles from both float types and from integers.
 */
tw_status tw_gguf_get_uint(uint64_t *value, const struct tw_gguf *gguf, const char *name, bool required,
                           struct tw_error *err);
tw_status tw_gguf_get_double(double *value, const struct tw_gguf *gguf, const char *name, bool required,
                             struct tw_error *err);
tw_status tw_gguf_get_bool(bool *value, const struct tw_gguf *gguf, const char *name, bool required,
                           struct tw_error *err);
tw_status tw_gguf_get_string(struct tw_view *value, const struct tw_gguf *gguf, const char *name, bool required,
                             struct tw_error *err);

/* Which element types an array may have. */
enum tw_gguf_elements { TW_GGUF_STRINGS, TW_GGUF_INTEGERS, TW_GGUF_FLOATS, TW_GGUF_BOOLS };
tw_status tw_gguf_get_array(struct tw_gguf_array *value, const struct tw_gguf *gguf, const char *name,
                            enum tw_gguf_elements elements, bool required, struct tw_error *err);
/* Element i < n. Integers of unsigned 64 bits above INT64_MAX come out negative. */
int64_t tw_gguf_array_int(const struct tw_gguf_array *array, size_t i);
double tw_gguf_array_double(const struct tw_gguf_array *array, size_t i);

/*
 * Walks an array of strings:
 *     struct tw_gguf_strings at = tw_gguf_strings(&array);
 *     struct tw_view string;
 *     while (tw_gguf_strings_next(&string, &at)) ...
 */
struct tw_gguf_strings {
    const uint8_t *at;
    size_t left; /* strings */
};
static inline struct tw_gguf_strings tw_gguf_strings(const struct tw_gguf_array *array) {
    return (struct tw_gguf_strings){array->data, array->type == TW_GGUF_STRING ? array->n : 0};
}
bool tw_gguf_strings_next(struct tw_view *string, struct tw_gguf_strings *strings);

/* "Q4_1", "IQ2_XXS", ... for every number that GGUF has or had; "250" for others (in `buffer`). */
const char *tw_gguf_type_name(char buffer[32], uint32_t type);
/* "u32", "string", ...; "99" for others. */
const char *tw_gguf_value_type_name(char buffer[32], uint32_t type);

#endif
