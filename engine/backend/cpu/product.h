/*
 * A matrix product of a block of rows through oneDNN, created for one thread: y = x W^T (+ bias) (+ y).
 * Several threads may run one product at once, each with its own number.
 */
#ifndef TW_ENGINE_BACKEND_CPU_PRODUCT_H
#define TW_ENGINE_BACKEND_CPU_PRODUCT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "engine/backend/cpu/level.h"

struct tw_cpu_products; /* oneDNN's engine and a stream a thread */
struct tw_cpu_product;  /* one shape */

/*
 * Holds oneDNN to `level`; once it has made a primitive in this process it cannot be lowered any more, and keeps what
 * it has.
 */
tw_status tw_cpu_products_create(struct tw_cpu_products **products, enum tw_cpu_level level, size_t n_threads,
                                 struct tw_error *err);
void tw_cpu_products_free(struct tw_cpu_products *products);

struct tw_cpu_product_shape {
    bool bf16;
    size_t block_rows; /* of x and y */
    size_t n_columns;  /* inputs */
    size_t n_rows;     /* outputs */
    bool bias;         /* float32 [n_rows] is added */
    bool add;          /* y is added to, not written */
    bool float_output; /* y is float32 also when the rest is bf16 */
};

/*
 * Bytes that oneDNN wants beside the operands to run any of n products, a thread: 640 to 34 thousand in AVX-512, up to
 * some hundred thousand on AMX. 0 where it cannot make them: creating them says why. Holds oneDNN to `level`.
 */
size_t tw_cpu_product_scratch_bytes(enum tw_cpu_level level, const struct tw_cpu_product_shape *shapes, size_t n);

/* On failure *product is NULL. The products must outlive it. */
tw_status tw_cpu_product_create(struct tw_cpu_product **product, struct tw_cpu_products *products,
                                const struct tw_cpu_product_shape *shape, struct tw_error *err);
void tw_cpu_product_free(struct tw_cpu_product *product);

/* Whether the weights are wanted packed (pack.h) or plain. */
bool tw_cpu_product_packed(const struct tw_cpu_product *product);

/* x [block_rows][n_columns], y [block_rows][n_rows]; bias NULL without one. */
tw_status tw_cpu_product_run(const struct tw_cpu_product *product, size_t thread, void *y, const void *x,
                             const void *weights, const float *bias, void *scratch, struct tw_error *err);

#endif
