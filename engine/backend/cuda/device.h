/*
 * What kernel files are written in, so that one file is compiled by nvcc for devices and by a C++ compiler for the
 * emulation that the tests run (tests/cudasim).
 *
 * The discipline: launches, shared arrays and unrolling through these macros; tensor cores through the wrappers, whose
 * lane layouts are those of the PTX ISA (wmma's are opaque); every *_sync with an explicit mask; __syncwarp wherever
 * lanes share memory; no return before a barrier that others reach; no plain read-modify-write of shared cells.
 */
#ifndef TW_ENGINE_BACKEND_CUDA_DEVICE_H
#define TW_ENGINE_BACKEND_CUDA_DEVICE_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define TW_FULL_WARP 0xffffffffu

#ifdef __CUDACC__

#define TW_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                                      \
    (kernel)<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__)
#define TW_SHARED_ARRAY(type, name, count) __shared__ __align__(16) type name[count]
#define TW_DYNAMIC_SHARED(type, name)                                                                                  \
    extern __shared__ __align__(16) unsigned char tw_dynamic_shared_memory[];                                          \
    type *const name = reinterpret_cast<type *>(tw_dynamic_shared_memory)
#define TW_UNROLL _Pragma("unroll")
#define TW_UNROLL_4                                                                                                    \
    _Pragma("unroll 4") /* no further: what a whole unrolling keeps at hand does not fit the registers */

/* Lets a kernel ask for more than 48 KiB of dynamic shared memory. */
template <class Kernel> static inline cudaError_t tw_allow_shared(Kernel kernel, size_t bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

/* 16 bytes, both sides aligned to 16. */
static __device__ __forceinline__ void tw_copy16(void *to, const void *from) {
    *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from);
}
/* The same from global to shared memory, on its way until tw_copies_wait, which waits for this thread's own. */
static __device__ __forceinline__ void tw_copy16_later(void *to, const void *from) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}
static __device__ __forceinline__ void tw_copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/*
 * d[16][8] += a[16][16] b[16][8]; with g = lane / 4 and t = lane % 4: a[i] holds row g + 8 (i % 2), columns 2t and
 * 2t + 1 (+ 8 from i = 2 on), b[i] rows 2t and 2t + 1 (+ 8 i) of column g, d[i] row g + 8 (i / 2), column 2t + i % 2.
 */
static __device__ __forceinline__ void tw_mma_16x8x16(float d[4], const unsigned a[4], const unsigned b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/*
 * Four 8x8 matrices of 16-bit numbers in shared memory: lane 8 m + r gives the address of row r of matrix m (16 bytes,
 * aligned); r[m] gets two neighbours of row lane / 4, columns 2 (lane % 4), of matrix m, or of its transpose.
 */
static __device__ __forceinline__ void tw_ldmatrix_x4(unsigned r[4], const void *row) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
static __device__ __forceinline__ void tw_ldmatrix_x4_transposed(unsigned r[4], const void *row) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

#else /* the emulation */

#define TW_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                                      \
    cudasim::launch(#kernel, (kernel), (grid), (block), (shared_bytes), (stream), __VA_ARGS__)
#define TW_SHARED_ARRAY(type, name, count)                                                                             \
    static const char tw_key_##name = 0;                                                                               \
    type *const name = static_cast<type *>(                                                                            \
        cudasim::shared_array(&tw_key_##name, sizeof(type) * (count), alignof(type) > 16 ? alignof(type) : 16))
#define TW_DYNAMIC_SHARED(type, name) type *const name = static_cast<type *>(cudasim::dynamic_shared())
#define TW_UNROLL
#define TW_UNROLL_4

template <class Kernel> static inline cudaError_t tw_allow_shared(Kernel kernel, size_t bytes) {
    cudasim::allow_shared((const void *)kernel, bytes);
    return cudaSuccess;
}
static inline void tw_copy16(void *to, const void *from) { cudasim::copy16(to, from); }
static inline void tw_copy16_later(void *to, const void *from) { cudasim::copy16_later(to, from); }
static inline void tw_copies_wait() { cudasim::copies_wait(); }
static inline void tw_mma_16x8x16(float d[4], const unsigned a[4], const unsigned b[2]) {
    cudasim::mma_m16n8k16(d, a, b);
}
static inline void tw_ldmatrix_x4(unsigned r[4], const void *row) { cudasim::ldmatrix_x4(r, row, false); }
static inline void tw_ldmatrix_x4_transposed(unsigned r[4], const void *row) { cudasim::ldmatrix_x4(r, row, true); }

#endif

typedef __nv_bfloat16 tw_bf16;

/* The activations' two precisions, to and from float. */
static __device__ __forceinline__ float tw_load(const float *p) { return *p; }
static __device__ __forceinline__ float tw_load(const tw_bf16 *p) { return __bfloat162float(*p); }
static __device__ __forceinline__ void tw_store(float *p, float value) { *p = value; }
static __device__ __forceinline__ void tw_store(tw_bf16 *p, float value) { *p = __float2bfloat16_rn(value); }

/* Two numbers as one register of a fragment, the lower first. */
static __device__ __forceinline__ unsigned tw_pack_bf16(float low, float high) {
    const tw_bf16 pair[2] = {__float2bfloat16_rn(low), __float2bfloat16_rn(high)};
    uint16_t bits[2];
    memcpy(bits, pair, sizeof bits);
    return bits[0] | (unsigned)bits[1] << 16;
}

/* Over the lanes of a whole warp, every lane gets the result; the order of addition is fixed. */
static __device__ __forceinline__ float tw_warp_sum(float value) {
    TW_UNROLL for (int bits = 16; bits > 0; bits >>= 1) value += __shfl_xor_sync(TW_FULL_WARP, value, bits);
    return value;
}
static __device__ __forceinline__ float tw_warp_max(float value) {
    TW_UNROLL for (int bits = 16; bits > 0; bits >>= 1) value =
        fmaxf(value, __shfl_xor_sync(TW_FULL_WARP, value, bits));
    return value;
}

/*
 * Over a block of kThreads; every thread gets the result. `part` is a shared array of kThreads / 32 floats that nobody
 * uses between the call before and this one's end; a call ends with everyone past the reading of it.
 */
template <int kThreads> static __device__ __forceinline__ float tw_block_sum(float value, float *part) {
    value = tw_warp_sum(value);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < kThreads / 32; i++) sum += part[i];
    __syncthreads();
    return sum;
}
template <int kThreads> static __device__ __forceinline__ float tw_block_max(float value, float *part) {
    value = tw_warp_max(value);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
    __syncthreads();
    float most = part[0];
    for (int i = 1; i < kThreads / 32; i++) most = fmaxf(most, part[i]);
    __syncthreads();
    return most;
}

#endif
