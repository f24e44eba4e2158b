/*
 * What differs between architectures, as data: one row each in architectures.c. Everything else of a decoder with RMS
 * norms, rotary positions and a gated MLP is the same.
 */
#ifndef TW_ENGINE_MODEL_ARCHITECTURE_H
#define TW_ENGINE_MODEL_ARCHITECTURE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/view.h"
#include "engine/model/model.h"

/* Which layers have the sliding window, where the file does not list them. */
enum tw_sliding {
    TW_SLIDING_ALL,  /* every layer, where the configuration has a window */
    TW_SLIDING_FROM, /* from layer `max_window_layers` on, where `use_sliding_window` is true */
    TW_SLIDING_MOST, /* all but every `sliding_pattern`th */
};

struct tw_architecture {
    const char *name;      /* tw_model_config.architecture */
    const char *hf_type;   /* model_type in config.json */
    const char *gguf_name; /* general.architecture; NULL: GGUF files use another row's */
    const char *summary;   /* one phrase: which models */
    enum tw_rope_pairs gguf_rope_pairs;
    enum tw_activation activation;
    const char *hf_activation; /* hidden_act (hidden_activation) in config.json */
    bool qkv_bias;             /* biases on query, key and value */
    bool qk_norm;              /* RMS norms on each head's query and key */
    bool post_norms;           /* norms on what attention and MLP give, before it is added */
    bool hf_norms_minus_one;   /* Hugging Face stores norm weights minus 1 */
    bool scaled_embedding;     /* rows times sqrt(n_embd) rounded to bfloat16 */
    bool tied_by_default;      /* where config.json does not say */
    enum tw_sliding sliding;
    size_t sliding_pattern;  /* TW_SLIDING_MOST */
    double rope_theta;       /* where the file does not say */
    double rope_theta_local; /* of sliding layers, where the file does not say; 0: they use rope_theta */
    /* Scores are divided by the root of this in GGUF files, which have no key for it; NULL: of head_dim. */
    double (*gguf_query_scalar)(const struct tw_model_config *config);
};

/* Ends with NULL. */
extern const struct tw_architecture *const tw_architectures[];

/* By the name that the container uses; NULL when there is none. */
const struct tw_architecture *tw_architecture_of_gguf(struct tw_view name);
const struct tw_architecture *tw_architecture_of_hf(struct tw_view model_type);
/* "llama, mistral, ...", for messages. */
const char *tw_architecture_list(void);

#endif
