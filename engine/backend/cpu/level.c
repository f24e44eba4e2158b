#include "engine/backend/cpu/level.h"

#include <stdlib.h>
#include <string.h>

const char *const tw_cpu_level_names[TW_CPU_N_LEVELS] = {"portable", "avx2", "avx512", "avx512bf16"};

enum tw_cpu_level tw_cpu_level_of_machine(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2"))
        return TW_CPU_PORTABLE;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return TW_CPU_AVX2;
    return __builtin_cpu_supports("avx512bf16") ? TW_CPU_AVX512BF16 : TW_CPU_AVX512;
}

tw_status tw_cpu_level_choose(enum tw_cpu_level *level, struct tw_error *err) {
    *level = tw_cpu_level_of_machine();
    const char *wanted = getenv("TIDEWAKE_CPU");
    if (!wanted || !*wanted) return TW_OK;
    for (int i = 0; i < TW_CPU_N_LEVELS; i++) {
        if (strcmp(wanted, tw_cpu_level_names[i]) != 0) continue;
        if ((enum tw_cpu_level)i < *level) *level = (enum tw_cpu_level)i;
        return TW_OK;
    }
    return TW_FAIL(err, TW_E_OPTION,
                   "environment variable TIDEWAKE_CPU is '%s': it can be portable, avx2, avx512 or avx512bf16", wanted);
}
