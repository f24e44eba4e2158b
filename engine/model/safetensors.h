/*
 * The header of a safetensors file: names, types, shapes and places of its tensors, as views into the mapping.
 *
 * Parsing checks everything: the header's length against the file, its JSON (whole, UTF-8, unsigned integers exactly),
 * names that differ, shapes whose bytes are those of the offsets, and that the tensors cover the data without overlap
 * or hole.
 *
 * Source: the safetensors format description (huggingface/safetensors, README).
 */
#ifndef TW_ENGINE_MODEL_SAFETENSORS_H
#define TW_ENGINE_MODEL_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file.h"
#include "base/view.h"
#include "engine/model/quant.h"

struct tw_safetensors_tensor {
    struct tw_view name;
    const struct tw_type_traits *traits; /* NULL: a type that is known but that no weight may have (I64, F64, F8_...) */
    const char *type_name;
    unsigned n_dims;            /* 0 to 8 */
    uint64_t n_rows, n_columns; /* the product of all dimensions but the last, and the last; 1 where there is none */
    uint64_t begin, end;        /* bytes from the start of the data */
    const uint8_t *data;
};

struct tw_safetensors {
    char *path;
    struct tw_file file;                   /* mapped, when tw_safetensors_open did it */
    struct tw_safetensors_tensor *tensors; /* [n_tensors] ascending by name */
    size_t n_tensors;
};

/* Maps and parses. On failure *file is released. */
tw_status tw_safetensors_open(struct tw_safetensors *file, const char *path, struct tw_error *err);
/* Parses bytes that the caller keeps; `path` is for messages. On failure *file is released. */
tw_status tw_safetensors_parse(struct tw_safetensors *file, const char *path, const uint8_t *data, size_t size,
                               struct tw_error *err);
void tw_safetensors_release(struct tw_safetensors *file); /* copes with {0} */

/* NULL when there is none of that name. */
const struct tw_safetensors_tensor *tw_safetensors_find(const struct tw_safetensors *file, struct tw_view name);

/*
 * Reads the index of a sharded model (model.safetensors.index.json): calls `take` for every tensor with the file that
 * it is said to be in, a plain name of the same folder. Stops at the first failure.
 */
typedef tw_status tw_safetensors_take_fn(void *context, struct tw_view tensor, struct tw_view file,
                                         struct tw_error *err);
tw_status tw_safetensors_read_index(struct tw_view json, const char *path, tw_safetensors_take_fn *take, void *context,
                                    struct tw_error *err);

#endif
