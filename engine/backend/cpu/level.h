/*
 * Which instruction set the kernels use. Chosen once, when a backend is opened: the best that processor, operating
 * system and the environment variable TIDEWAKE_CPU (portable, avx2, avx512, avx512bf16, amx) allow; the variable only
 * lowers it, for tests and for comparing machines. oneDNN is held to the same level.
 */
#ifndef TW_ENGINE_BACKEND_CPU_LEVEL_H
#define TW_ENGINE_BACKEND_CPU_LEVEL_H

#include "base/error.h"

enum tw_cpu_level { TW_CPU_PORTABLE, TW_CPU_AVX2, TW_CPU_AVX512, TW_CPU_AVX512BF16, TW_CPU_AMX, TW_CPU_N_LEVELS };

extern const char *const tw_cpu_level_names[TW_CPU_N_LEVELS];

/* What the machine itself can do; asks the operating system for the use of AMX's tiles. */
enum tw_cpu_level tw_cpu_level_of_machine(void);
/* The same, lowered by TIDEWAKE_CPU. TW_E_OPTION for a value that is no level. */
tw_status tw_cpu_level_choose(enum tw_cpu_level *level, struct tw_error *err);

#endif
