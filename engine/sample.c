#include "engine/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct tw_candidate {
    double probability;
    int32_t token;
};

void tw_sampler_init(struct tw_sampler *sampler, double temperature, double top_p, uint64_t seed) {
    memset(sampler, 0, sizeof *sampler);
    sampler->temperature = temperature;
    sampler->top_p = top_p;
    tw_random_init(&sampler->random, seed, 0x73616d706c65); /* "sample" */
}

void tw_sampler_release(struct tw_sampler *sampler) {
    free(sampler->candidates);
    memset(sampler, 0, sizeof *sampler);
}

int32_t tw_sample_greedy(const float *logits, size_t n_vocab) {
    size_t best = 0;
    for (size_t v = 1; v < n_vocab; v++)
        if (logits[v] > logits[best] || isnan(logits[best])) best = v;
    return (int32_t)best;
}

static int by_probability(const void *a, const void *b) {
    const struct tw_candidate *x = a, *y = b;
    if (x->probability != y->probability) return x->probability > y->probability ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

tw_status tw_sample(int32_t *token, struct tw_sampler *sampler, const float *logits, size_t n_vocab,
                    struct tw_error *err) {
    const int32_t greedy = tw_sample_greedy(logits, n_vocab);
    *token = greedy;
    if (sampler->temperature <= 0) return TW_OK;
    if (sampler->n_candidates < n_vocab) {
        struct tw_candidate *larger = realloc(sampler->candidates, n_vocab * sizeof *larger);
        if (!larger) return TW_FAIL(err, TW_E_MEMORY, "out of memory: candidates of a token");
        sampler->candidates = larger;
        sampler->n_candidates = n_vocab;
    }
    struct tw_candidate *candidates = sampler->candidates;
    double sum = 0;
    for (size_t v = 0; v < n_vocab; v++) {
        const double p = exp(((double)logits[v] - logits[greedy]) / sampler->temperature);
        candidates[v] = (struct tw_candidate){isnan(p) ? 0 : p, (int32_t)v};
        sum += candidates[v].probability;
    }
    qsort(candidates, n_vocab, sizeof *candidates, by_probability);
    /* The nucleus: at least the likeliest. */
    size_t n = 0;
    double mass = 0;
    do mass += candidates[n++].probability;
    while (n < n_vocab && mass < sampler->top_p * sum);
    double at = tw_random_unit(&sampler->random) * mass;
    size_t i = 0;
    for (; i + 1 < n && at >= candidates[i].probability; i++) at -= candidates[i].probability;
    *token = candidates[i].token;
    return TW_OK;
}
