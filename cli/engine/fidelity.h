/*
 * How far a schedule's hidden states and next token are from a reference schedule's. The reference's states are kept in
 * an unnamed temporary file: (n_layers + 1) * context * n_embd floats.
 */
#ifndef TW_CLI_ENGINE_FIDELITY_H
#define TW_CLI_ENGINE_FIDELITY_H

#include <stdio.h>

#include "engine/engine.h"

/* A reference run: its hidden states and its logits. Zero-initialise. */
struct tw_hidden_store {
    FILE *file;
    size_t n_tokens, n_embd, n_vocab;
    float *logits; /* [n_vocab] of the last position */
    bool complete; /* filled: what is watched now is compared with it */
};
tw_status tw_hidden_store_open(struct tw_hidden_store *store, const struct tw_model_config *config, size_t n_tokens,
                               struct tw_error *err);
void tw_hidden_store_close(struct tw_hidden_store *store); /* copes with {0} */

/* Sums over prompts. Zero-initialised it is empty. */
struct tw_fidelity {
    size_t n_layers;           /* indices: 0 embedding, l + 1 after layer l; 0: nothing has been compared */
    double *difference, *norm; /* [n_layers + 1] sums of squares */
    double *cosine;            /* [n_layers + 1] sum over rows */
    double *rows;              /* [n_layers + 1] */
    size_t n_prompts, n_agree;
    double divergence; /* sum */
};
void tw_fidelity_release(struct tw_fidelity *fidelity);
/* Relative L2 and mean cosine of index i, SIZE_MAX being the last layer; NaN when nothing was compared. */
double tw_fidelity_l2(const struct tw_fidelity *fidelity, size_t i);
double tw_fidelity_cosine(const struct tw_fidelity *fidelity, size_t i);
double tw_fidelity_top1(const struct tw_fidelity *fidelity);       /* share of prompts with the same likeliest token */
double tw_fidelity_divergence(const struct tw_fidelity *fidelity); /* mean Jensen-Shannon divergence, natural log */

/* One prefill that fills the store, or is compared with it once that is complete. */
struct tw_fidelity_watch {
    struct tw_engine *engine;
    struct tw_hidden_store *store;
    struct tw_fidelity *fidelity;
    struct tw_watch watch;
};
/* Fills in watch->watch, to be handed to tw_engine_prefill. */
tw_status tw_fidelity_watch_begin(struct tw_fidelity_watch *watch, struct tw_error *err);
void tw_fidelity_watch_end(struct tw_fidelity_watch *watch, const float *logits);

#endif
