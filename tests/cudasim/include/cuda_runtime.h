/* What kernel files see of CUDA C++ when they are compiled for the CPU: thread indices, barriers, shuffles, atomics. */
#ifndef CUDASIM_CUDA_RUNTIME_H
#define CUDASIM_CUDA_RUNTIME_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "cuda_runtime_api.h"
#include "tests/cudasim/cudasim.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

#define threadIdx (cudasim::current->index)
#define blockIdx  (cudasim::grid.block)
#define blockDim  (cudasim::grid.block_size)
#define gridDim   (cudasim::grid.size)

static inline void __syncthreads() { cudasim::sync_threads(); }
static inline void __syncwarp(unsigned mask = 0xffffffffu) { cudasim::sync_warp(mask); }

template <class T> static inline T __shfl_sync(unsigned mask, T value, int lane) {
    return cudasim::exchange(mask, value, [lane](int) { return lane & 31; });
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int bits) {
    return cudasim::exchange(mask, value, [bits](int me) { return me ^ bits; });
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned by) {
    return cudasim::exchange(mask, value, [by](int me) { return me >= (int)by ? me - (int)by : me; });
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned by) {
    return cudasim::exchange(mask, value, [by](int me) { return me + (int)by < 32 ? me + (int)by : me; });
}
static inline unsigned __ballot_sync(unsigned mask, int predicate) { return cudasim::ballot(mask, predicate != 0); }
static inline int __any_sync(unsigned mask, int predicate) { return cudasim::ballot(mask, predicate != 0) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return cudasim::ballot(mask, predicate != 0) == mask; }

static inline int atomicAdd(int *p, int v) {
    return cudasim::atomic(p, [v](int old) { return old + v; });
}
static inline unsigned atomicAdd(unsigned *p, unsigned v) {
    return cudasim::atomic(p, [v](unsigned old) { return old + v; });
}
static inline int atomicMax(int *p, int v) {
    return cudasim::atomic(p, [v](int old) { return old > v ? old : v; });
}
static inline unsigned atomicOr(unsigned *p, unsigned v) {
    return cudasim::atomic(p, [v](unsigned old) { return old | v; });
}

static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
/* The emulation is compiled without contraction. */
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

struct float2 {
    float x, y;
};
static inline float2 make_float2(float x, float y) { return {x, y}; }

#endif
