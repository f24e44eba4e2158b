/* bf16 kernels: they need the processor's bf16 products. */
#define ELEMENT_BF16 1
#include "engine/backend/cpu/rows.inc"

#include "engine/backend/cpu/attend_bf16.inc"

extern const struct tw_cpu_kernels tw_cpu_kernels_bf16_avx512bf16;
#define TABLE    tw_cpu_kernels_bf16_avx512bf16
#define PRODUCTS products
#define TILE     tile
#include "engine/backend/cpu/table.inc"
