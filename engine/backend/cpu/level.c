#include "engine/backend/cpu/level.h"

#include <cpuid.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

const char *const tw_cpu_level_names[TW_CPU_N_LEVELS] = {"portable", "avx2", "avx512", "avx512bf16", "amx"};

/* Tiles and their bf16 products, and Linux's leave to use the tiles' state, which a process has to ask for. */
static bool find_amx(void) {
    enum { GET_LEAVE = 0x1022, ASK_LEAVE = 0x1023, TILE_DATA = 18 }; /* of arch_prctl */
    unsigned a, b, c, d;
    unsigned long granted = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & 1u << 22) || !(d & 1u << 24)) return false;
    return syscall(SYS_arch_prctl, ASK_LEAVE, TILE_DATA) == 0 && syscall(SYS_arch_prctl, GET_LEAVE, &granted) == 0 &&
           granted & 1ul << TILE_DATA;
}

/* Found once: in a virtual machine, asking the processor is a way out of it and back. */
static bool has_amx(void) {
    static atomic_int known; /* 0: not yet, 1: no, 2: yes */
    if (!atomic_load(&known)) atomic_store(&known, find_amx() ? 2 : 1);
    return atomic_load(&known) == 2;
}

enum tw_cpu_level tw_cpu_level_of_machine(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2"))
        return TW_CPU_PORTABLE;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return TW_CPU_AVX2;
    if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vnni")) return TW_CPU_AVX512;
    return has_amx() ? TW_CPU_AMX : TW_CPU_AVX512BF16;
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
                   "environment variable TIDEWAKE_CPU is '%s': it can be portable, avx2, avx512, avx512bf16 or amx",
                   wanted);
}
