/* The next token, out of logits. */
#ifndef TW_ENGINE_SAMPLE_H
#define TW_ENGINE_SAMPLE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/random.h"

struct tw_sampler {
    double temperature; /* 0: greedy */
    double top_p;       /* 1: all tokens; otherwise the fewest of the likeliest ones whose probabilities reach it */
    struct tw_random random;
    struct tw_candidate *candidates; /* [n_vocab] workspace, made when it is needed */
    size_t n_candidates;
};

void tw_sampler_init(struct tw_sampler *sampler, double temperature, double top_p, uint64_t seed);
void tw_sampler_release(struct tw_sampler *sampler); /* copes with {0} */
/* Greedy: the largest logit, of equal ones the lower token; a NaN is never the largest. */
int32_t tw_sample_greedy(const float *logits, size_t n_vocab);
/* Fails with TW_E_MEMORY alone. The same seed and logits give the same tokens. */
tw_status tw_sample(int32_t *token, struct tw_sampler *sampler, const float *logits, size_t n_vocab,
                    struct tw_error *err);

#endif
