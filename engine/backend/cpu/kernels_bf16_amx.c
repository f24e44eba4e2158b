/* bf16 kernels of processors with AMX: those of AVX-512, but for prefill attention. */
#define ELEMENT_BF16 1
#include "engine/backend/cpu/rows.inc"

#include "engine/backend/cpu/attend_bf16.inc"

#include "engine/backend/cpu/tile_amx.inc"

extern const struct tw_cpu_kernels tw_cpu_kernels_bf16_amx;
#define TABLE    tw_cpu_kernels_bf16_amx
#define PRODUCTS amx_products
#define TILE     amx_tile
#include "engine/backend/cpu/table.inc"
