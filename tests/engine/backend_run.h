/*
 * A whole small run through a backend's operations, everything visible written down: for comparing one backend with
 * another, or with itself under another chunk, block, number of threads.
 */
#ifndef TW_TESTS_ENGINE_BACKEND_RUN_H
#define TW_TESTS_ENGINE_BACKEND_RUN_H

#include "engine/backend/backend.h"

struct tw_run_plan {
    struct tw_backend_options options;
    size_t n_tokens, first_position; /* the prompt begins at this position */
    size_t past;                     /* rows of random keys and values before the prompt, at most first_position */
    size_t chunk, block, n_steps;
    size_t budget; /* rows kept of a head (head g keeps g fewer); 0: all, through gather */
    size_t top_k;
    bool poison; /* fills the KV's memory with NaN bytes before it is used */
    bool needle;
    uint64_t seed;
};

enum tw_run_section {
    TW_RUN_HIDDEN,    /* after every layer, and normed at the end */
    TW_RUN_KEYS,      /* keys and values of every layer */
    TW_RUN_SCORES,    /* the three kinds */
    TW_RUN_LOGITS,    /* of the last rows, and of every step */
    TW_RUN_WEIGHTS,   /* logged weights, masses */
    TW_RUN_POSITIONS, /* logged positions, argmax */
    TW_RUN_SECTIONS
};

struct tw_run_record {
    float *data[TW_RUN_SECTIONS];
    size_t n[TW_RUN_SECTIONS], room[TW_RUN_SECTIONS];
};

void tw_run_backend(struct tw_run_record *record, const struct tw_backend_ops *ops, const struct tw_model *model,
                    const struct tw_run_plan *plan);
void tw_run_record_release(struct tw_run_record *record);

/*
 * The library that backend `cuda` is loaded from in tests: what TIDEWAKE_CUDA_LIBRARY names, otherwise the emulated
 * one, which is then what the variable names.
 */
const char *tw_test_cuda_library(void);

#endif
