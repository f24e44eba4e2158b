/*
 * What the tests of the cpu backend's kernels share: the tables of each instruction set that the machine has, guarded
 * memory, and comparing. TW_SEED reruns a case.
 */
#ifndef TW_TESTS_ENGINE_CPU_KIT_H
#define TW_TESTS_ENGINE_CPU_KIT_H

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/half.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/sizes.h"
#include "tests/engine/model_random.h"
#include "tests/support.h"

enum { N_FLOAT_KITS = TW_CPU_AVX512 + 1, N_KITS = N_FLOAT_KITS + 2, N_ROUNDS = 40 };

/* The tables of one level: float32 ones up to AVX-512, then those of bf16 activations. */
struct kit {
    const char *name;
    const struct tw_cpu_kernels *kernels;
    const struct tw_cpu_common *common;
    bool bf16;
    struct tw_random random;
    uint64_t seed;
};

static inline bool kit_of(struct kit *kit, int i, uint64_t stream) {
    const enum tw_cpu_level level =
        i < N_FLOAT_KITS ? (enum tw_cpu_level)i : (enum tw_cpu_level)(TW_CPU_AVX512BF16 + i - N_FLOAT_KITS);
    if (level > tw_cpu_level_of_machine()) {
        printf("skipped: this processor has no %s\n", tw_cpu_level_names[level]);
        return false;
    }
    kit->bf16 = i >= N_FLOAT_KITS;
    kit->name = tw_cpu_level_names[level];
    kit->kernels = kit->bf16 ? tw_cpu_kernels_bf16(level) : tw_cpu_kernels_f32(level);
    kit->common = tw_cpu_common(level);
    kit->seed = tw_test_seed();
    tw_random_init(&kit->random, kit->seed, stream);
    return true;
}

static inline size_t below(struct kit *kit, size_t n) { return tw_random_below(&kit->random, n); }

/* ---- guarded memory --------------------------------------------------------------------------------------------- */

enum { GUARD = 64 };

/* `bytes` bytes at an address that is `off` beyond a multiple of 64, between guards. */
struct space {
    unsigned char *whole, *data;
    size_t bytes;
};
static inline struct space space_make(size_t bytes, size_t off) {
    struct space s = {.bytes = bytes};
    s.whole = aligned_alloc(64, tw_round_up(bytes + 2 * GUARD + 64, 64));
    ck_assert_ptr_nonnull(s.whole);
    memset(s.whole, 0xa5, bytes + 2 * GUARD + 64);
    s.data = s.whole + GUARD + off;
    memset(s.data, 0, bytes);
    return s;
}
static inline void space_free(struct space *s, const struct kit *kit, const char *what) {
    for (unsigned char *p = s->whole; p < s->data; p++)
        ck_assert_msg(*p == 0xa5, "%s, %s, seed %llu: written before", kit->name, what, (unsigned long long)kit->seed);
    for (size_t i = 0; i < GUARD; i++)
        ck_assert_msg(s->data[s->bytes + i] == 0xa5, "%s, %s, seed %llu: written behind (%zu)", kit->name, what,
                      (unsigned long long)kit->seed, i);
    free(s->whole);
}

/* Elements of a kit: numbers that both precisions hold. */
static inline size_t size_of(const struct kit *kit) { return kit->bf16 ? 2 : 4; }
static inline void set(const struct kit *kit, void *elements, size_t i, float value) {
    if (kit->bf16)
        ((uint16_t *)elements)[i] = tw_bf16_from_float(value);
    else
        ((float *)elements)[i] = value;
}
static inline float get(const struct kit *kit, const void *elements, size_t i) {
    return kit->bf16 ? tw_float_from_bf16(((const uint16_t *)elements)[i]) : ((const float *)elements)[i];
}
static inline float rounded(float value) { return tw_float_from_bf16(tw_bf16_from_float(value)); }
static inline void fill(struct kit *kit, void *elements, size_t n, float scale) {
    for (size_t i = 0; i < n; i++) set(kit, elements, i, rounded(scale * tw_random_float(&kit->random)));
}

static inline void near(const struct kit *kit, double got, double expected, double tolerance, const char *what,
                        size_t i) {
    if (!(fabs(got - expected) <= tolerance))
        ck_abort_msg("%s, %s, seed %llu: %zu is %.9g, expected %.9g", kit->name, what, (unsigned long long)kit->seed, i,
                     got, expected);
}
/* What an element may be off: float32's sums, or a rounding to bf16. */
static inline double slack(const struct kit *kit, double size) { return size * (kit->bf16 ? 0x1p-8 : 3e-6) + 1e-30; }

#endif
