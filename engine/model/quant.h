/*
 * Types of stored numbers: plain floats and GGUF's quantised blocks, and their exact values.
 *
 * Source: the GGUF specification and ggml's published block layouts; tests/golden/engine/quant pins every bit.
 */
#ifndef TW_ENGINE_MODEL_QUANT_H
#define TW_ENGINE_MODEL_QUANT_H

#include <stddef.h>
#include <stdint.h>

/* The numbers are those of GGUF. Others exist; a file that uses one is refused by name (tw_gguf_type_name). */
enum tw_type {
    TW_TYPE_F32 = 0,
    TW_TYPE_F16 = 1,
    TW_TYPE_Q4_0 = 2,
    TW_TYPE_Q4_1 = 3,
    TW_TYPE_Q5_0 = 6,
    TW_TYPE_Q5_1 = 7,
    TW_TYPE_Q8_0 = 8,
    TW_TYPE_Q2_K = 10,
    TW_TYPE_Q3_K = 11,
    TW_TYPE_Q4_K = 12,
    TW_TYPE_Q5_K = 13,
    TW_TYPE_Q6_K = 14,
    TW_TYPE_IQ4_NL = 20,
    TW_TYPE_IQ4_XS = 23,
    TW_TYPE_BF16 = 30,
};

struct tw_type_traits {
    enum tw_type type;
    const char *name;    /* "Q4_1" */
    size_t block_values; /* numbers a block; a row is whole blocks */
    size_t block_bytes;
    /*
     * Writes the n values of n / block_values blocks (n a multiple of block_values) as float32, bit for bit what ggml
     * gives. The plain form, the oracle of every faster one.
     */
    void (*dequantise)(float *restrict values, const uint8_t *restrict blocks, size_t n);
};

/* NULL for a type that is not in the table. */
const struct tw_type_traits *tw_type_traits(enum tw_type type);

/* "F32, F16, ...": the names of all in the table, for messages. */
const char *tw_type_list(void);

/* Bytes of a row of n values; n must be a multiple of block_values. */
static inline size_t tw_type_row_bytes(const struct tw_type_traits *traits, size_t n) {
    return n / traits->block_values * traits->block_bytes;
}

#endif
