/* Whether two opened models hold the same numbers, whatever their containers. */
#ifndef TW_TESTS_ENGINE_COMPARE_MODELS_H
#define TW_TESTS_ENGINE_COMPARE_MODELS_H

#include "engine/model/model.h"

/*
 * Fails the test unless shapes, scalars, divisors (to 1e-6), every vector and every matrix agree. Rows of queries and
 * keys are brought to one order of rotary pairs. With `tolerance` 0 numbers must be equal; otherwise the relative L2
 * difference of each matrix must be at most that.
 */
void tw_compare_models(const struct tw_model *a, const struct tw_model *b, double tolerance);

/* Row `row` of a matrix as float32 [n_columns]. */
void tw_matrix_row(float *values, const struct tw_matrix *matrix, size_t row);

/* Opens or fails the test. */
struct tw_model *tw_must_open(const char *path);
/* Fails the test unless opening is refused with a sentence that holds `fragment`. */
void tw_must_refuse(const char *path, const char *fragment);

/* The same, within 10 MiB of memory and 10 ms of processor time; sanitized builds are not held to that. */
void tw_must_refuse_cheaply(const char *path, const char *fragment);

double tw_cpu_seconds(void); /* of this process */

#endif
