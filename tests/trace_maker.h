/* Small random traces for tests: the arrays, written through the writer and compared with what a reader gives. */
#ifndef TW_TESTS_TRACE_MAKER_H
#define TW_TESTS_TRACE_MAKER_H

#include <stdint.h>

#include "traces/trace.h"
#include "traces/writer.h"

struct tw_test_trace {
    struct tw_trace_info info;
    struct tw_trace_writer_options options;
    int32_t *position;                  /* [n_steps][n_layers][n_heads][top_k] */
    float *weight;                      /* [n_steps][n_layers][n_heads][top_k] values of halves */
    int32_t *context_length, *token_id; /* [n_steps] */
    int32_t *prompt;                    /* [prompt_length] */
    float *needle;                      /* [n_steps][n_layers][n_heads] */
    uint8_t *copy_paste;                /* [n_steps][n_layers][n_heads] */
    float *vote;                        /* [n_layers][n_kv_heads][prompt_length] */
    int32_t *kept;                      /* [n_layers][n_kv_heads][kept_width] */
    uint16_t *key;                      /* [n_layers][prompt_length + n_steps][n_kv_heads][head_dim] */
};

/* Fills everything from a seed; the dimensions and options are those of `trace`. */
void tw_test_trace_make(struct tw_test_trace *trace, uint64_t seed);
void tw_test_trace_release(struct tw_test_trace *trace);
/* A shape with every dimension different and every optional dataset. */
void tw_test_trace_shape(struct tw_test_trace *trace, size_t n_steps);

/* Appends steps [first, first + n); for step 0 the prefill's datasets too. */
void tw_test_trace_append(struct tw_trace_writer *writer, const struct tw_test_trace *trace, size_t first, size_t n);
/* The whole file; fails the test on any error. */
void tw_test_trace_write(const struct tw_test_trace *trace, const char *path);
/* Fails the test unless the first n_steps steps and all else are what was made. */
void tw_test_trace_compare(const struct tw_test_trace *trace, const char *path, size_t n_steps);

#endif
