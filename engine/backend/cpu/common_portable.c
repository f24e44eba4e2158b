/* Kernels on float32 and stored weights, portable. */
#include "engine/backend/cpu/kernels.h"

extern const struct tw_cpu_common tw_cpu_common_portable;

#define TABLE tw_cpu_common_portable
#include "engine/backend/cpu/common.inc"
