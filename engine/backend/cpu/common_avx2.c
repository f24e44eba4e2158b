/* Kernels on float32 and stored weights, avx2. */
#include "engine/backend/cpu/kernels.h"

extern const struct tw_cpu_common tw_cpu_common_avx2;

#define TABLE tw_cpu_common_avx2
#include "engine/backend/cpu/common.inc"
