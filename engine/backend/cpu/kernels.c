#include "engine/backend/cpu/kernels.h"

extern const struct tw_cpu_kernels tw_cpu_kernels_f32_portable, tw_cpu_kernels_f32_avx2, tw_cpu_kernels_f32_avx512,
    tw_cpu_kernels_bf16_avx512bf16, tw_cpu_kernels_bf16_amx;
extern const struct tw_cpu_common tw_cpu_common_portable, tw_cpu_common_avx2, tw_cpu_common_avx512,
    tw_cpu_common_avx512bf16;

const struct tw_cpu_kernels *tw_cpu_kernels_f32(enum tw_cpu_level level) {
    static const struct tw_cpu_kernels *const table[TW_CPU_N_LEVELS] = {
        &tw_cpu_kernels_f32_portable, &tw_cpu_kernels_f32_avx2, &tw_cpu_kernels_f32_avx512, &tw_cpu_kernels_f32_avx512,
        &tw_cpu_kernels_f32_avx512};
    return table[level];
}

const struct tw_cpu_kernels *tw_cpu_kernels_bf16(enum tw_cpu_level level) {
    return level >= TW_CPU_AMX ? &tw_cpu_kernels_bf16_amx : &tw_cpu_kernels_bf16_avx512bf16;
}

const struct tw_cpu_common *tw_cpu_common(enum tw_cpu_level level) {
    static const struct tw_cpu_common *const table[TW_CPU_N_LEVELS] = {&tw_cpu_common_portable, &tw_cpu_common_avx2,
                                                                       &tw_cpu_common_avx512, &tw_cpu_common_avx512bf16,
                                                                       &tw_cpu_common_avx512bf16};
    return table[level];
}

size_t tw_cpu_top_bytes(size_t k) {
    const size_t lanes = (k < 64 ? 64 : k) * 2, candidates = 4 * k + 512;
    return (lanes + 64) * sizeof(float) + (candidates + 16) * 16 + 64;
}
