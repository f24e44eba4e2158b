/* float32 kernels, portable. */
#include "engine/backend/cpu/rows.inc"

#include "engine/backend/cpu/attend.inc"

extern const struct tw_cpu_kernels tw_cpu_kernels_f32_portable;
#define TABLE    tw_cpu_kernels_f32_portable
#define PRODUCTS products
#define TILE     tile
#include "engine/backend/cpu/table.inc"
