/* Kernels on float32 and stored weights, avx512. */
#include "engine/backend/cpu/kernels.h"

extern const struct tw_cpu_common tw_cpu_common_avx512;

#define TABLE tw_cpu_common_avx512
#include "engine/backend/cpu/common.inc"
