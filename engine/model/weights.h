/*
 * From the tensors of a file, whatever its container, to the matrices and vectors of a model.
 */
#ifndef TW_ENGINE_MODEL_WEIGHTS_H
#define TW_ENGINE_MODEL_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/view.h"
#include "engine/model/config.h"
#include "engine/model/model.h"

/* A tensor as it is stored: checked to lie inside its file and to have the bytes that its shape needs. */
struct tw_stored_tensor {
    struct tw_view name;
    const char *path;                    /* of the file that holds it, for messages */
    const struct tw_type_traits *traits; /* NULL: a type that no weight may have */
    const char *type_name;
    unsigned n_dims;
    uint64_t n_rows, n_columns; /* of matrices; vectors are one row; with more dimensions n_rows is their product */
    const uint8_t *data;
    bool used; /* set by tw_weights_bind */
};

/* All tensors of a model's files, ascending by name, each name once. */
struct tw_catalogue {
    struct tw_stored_tensor *tensors;
    size_t n, capacity;
};

/* Both for any order of adding; `tw_catalogue_close` sorts and refuses names that are there twice. */
tw_status tw_catalogue_add(struct tw_catalogue *catalogue, const struct tw_stored_tensor *tensor, struct tw_error *err);
tw_status tw_catalogue_close(struct tw_catalogue *catalogue, const char *path, struct tw_error *err);
struct tw_stored_tensor *tw_catalogue_find(const struct tw_catalogue *catalogue, const char *name);
void tw_catalogue_release(struct tw_catalogue *catalogue);

enum tw_naming { TW_NAMING_GGUF, TW_NAMING_HF };

/* Memory that a model owns and frees at once. */
struct tw_owned {
    void **blocks;
    size_t n, capacity;
};
/* NULL when memory runs out. Zeroed. */
void *tw_owned_alloc(struct tw_owned *owned, size_t bytes);
void tw_owned_release(struct tw_owned *owned);

/*
 * Fills model->config, its matrices, vectors and layers. Refuses tensors that are missing, of another shape, of a type
 * that no weight may have, or left over: what is in the file and not in the architecture would change the numbers.
 * With catalogue NULL, matrices get their shapes and recipe->type, but no data, and vectors are zeros.
 *
 * `tied` says what to do when there is no output matrix, or one although the configuration ties it.
 */
enum tw_tied {
    TW_TIED_IF_ABSENT, /* GGUF: no flag */
    TW_TIED_NO,        /* the output matrix must be there */
    TW_TIED_YES,       /* the embedding is used; one that is there is left alone, with a warning */
};
tw_status tw_weights_bind(struct tw_model *model, struct tw_owned *owned, const struct tw_recipe *recipe,
                          struct tw_catalogue *catalogue, enum tw_naming naming, enum tw_tied tied,
                          struct tw_error *err);

#endif
