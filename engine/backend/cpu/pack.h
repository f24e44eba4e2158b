/*
 * Weights of a layer in the layout that oneDNN's products like, unpacked straight from the stored rows.
 *
 * Two layouts, chosen by what oneDNN asks for:
 *   packed  [n_rows / 64][n_columns / 16][16][64] float32, or [n_rows / 64][n_columns / 32][16][64][2] bf16: oneDNN's
 *           BA16a64b and BA16a64b2a. In either, sixteen rows own 64 bytes of every 256, and a column (bf16: a pair of
 *           columns) follows the one before it after 256 bytes. Padding is zero.
 *   plain   [n_rows][n_columns] float32
 * Several matrices are stacked: the rows of q, then those of k, then those of v make one product.
 */
#ifndef TW_ENGINE_BACKEND_CPU_PACK_H
#define TW_ENGINE_BACKEND_CPU_PACK_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/backend/cpu/kernels.h"

#define TW_CPU_PACK_ROWS 64 /* rows a task unpacks */

struct tw_cpu_pack {
    const struct tw_cpu_common *common;
    bool bf16, packed;
    const struct tw_matrix *const *matrices; /* [n_matrices] with the same number of columns */
    size_t n_matrices;
    char *out;
};

/* Rows of all matrices, rounded up to whole tasks, over 64. */
size_t tw_cpu_pack_tasks(const struct tw_cpu_pack *pack);
/* Unpacks rows [64 * task, 64 * task + 64). Tasks are independent. */
void tw_cpu_pack_run(const struct tw_cpu_pack *pack, size_t task);

#endif
