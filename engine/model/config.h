/*
 * A model's configuration as its files give it, checked: whole numbers in plausible ranges, heads that divide, known
 * scalings. One table says where each number stands in GGUF metadata and in config.json.
 */
#ifndef TW_ENGINE_MODEL_CONFIG_H
#define TW_ENGINE_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "engine/model/architecture.h"
#include "engine/model/gguf.h"
#include "engine/model/model.h"
#include "engine/model/rope.h"

struct tw_recipe {
    struct tw_model_config config; /* `name` stays NULL; n_vocab is 0 when the file leaves it to the embedding */
    const struct tw_architecture *architecture;
    struct tw_rope_scaling
        scaling;            /* of the layers that see everything; sliding ones with a theta of their own have none */
    bool *slides;           /* [n_layers] whether the layer has the sliding window; owned */
    size_t sliding_pattern; /* what the file says of which layers slide, where it has no list: 0 or as in */
    size_t sliding_from;    /* struct tw_architecture */
    bool tied;              /* config.json: the output matrix is the embedding */
    enum tw_type type;      /* config.json: of the weights, where there are none to look at */
    uint32_t end_tokens[TW_END_TOKENS_MAX];
    size_t n_end_tokens;
};

/* On failure everything is released. */
tw_status tw_recipe_from_gguf(struct tw_recipe *recipe, const struct tw_gguf *gguf, struct tw_error *err);
/* `json` is the text of config.json, `path` its name for messages. */
tw_status tw_recipe_from_json(struct tw_recipe *recipe, struct tw_view json, const char *path, struct tw_error *err);
/* The end-of-text ids of generation_config.json, which go before those of config.json. */
tw_status tw_recipe_add_generation(struct tw_recipe *recipe, struct tw_view json, const char *path,
                                   struct tw_error *err);
void tw_recipe_release(struct tw_recipe *recipe); /* copes with {0} */

/* ---- shared by the two readers -------------------------------------------------------------------------------------
 */

struct tw_config_number {
    const char *gguf; /* behind the architecture's name and a dot */
    const char *hf;   /* in config.json */
    size_t offset;    /* of a size_t in struct tw_model_config */
    uint64_t maximum; /* plausible; the least is 1 */
    bool gguf_optional, hf_optional;
};
extern const struct tw_config_number tw_config_numbers[]; /* ends with {0} */

/* Fails unless 1 <= value <= row->maximum; `key` as in the file. */
tw_status tw_config_set_number(struct tw_model_config *config, const struct tw_config_number *row, uint64_t value,
                               const char *path, const char *key, struct tw_error *err);
/*
 * Fills what follows from the numbers (head_dim, n_kv_heads where absent, scales) and checks them against each other.
 * `query_scalar` is what scores are divided by the root of; 0: the head size.
 */
tw_status tw_recipe_finish(struct tw_recipe *recipe, double query_scalar, const char *path, bool gguf,
                           struct tw_error *err);

#endif
