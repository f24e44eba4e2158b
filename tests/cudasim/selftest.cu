/*
 * The emulation's own tests: small kernels, right and with one fault planted, and small host programs. `selftest CASE`
 * runs one: exit status 0 when the case went through, 1 when its result is wrong, CUDASIM_EXIT when the emulation
 * reported a fault (AddressSanitizer exits with its own). tests/engine/test_cudasim.c says what each case must do.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cublas_v2.h"
#include "engine/backend/cuda/device.h"
#include "tests/cudasim/control.h"

enum Fault {
    NO_FAULT,
    NO_BARRIER,
    PAST_THE_END,
    OVERRUN,
    NO_ATOMIC,
    UNINITIALISED,
    ONE_SKIPS,
    LANE_SKIPS,
    NO_SYNCWARP
};

__global__ void block_sum(float *out, const float *x, int n, Fault fault) {
    TW_SHARED_ARRAY(float, part, 4);
    float value = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) value += x[(size_t)blockIdx.x * n + i];
    value = tw_warp_sum(value);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32 + (fault == OVERRUN)] = value;
    if (fault != NO_BARRIER && !(fault == ONE_SKIPS && threadIdx.x == 5)) __syncthreads();
    if (threadIdx.x == 0) out[blockIdx.x] = part[0] + part[1] + part[2] + part[fault == UNINITIALISED ? 0 : 3];
}

__global__ void reverse(float *out, const float *x, int n, Fault fault) {
    TW_DYNAMIC_SHARED(float, row);
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        if (fault != UNINITIALISED || i != 7) row[i] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i + (fault == PAST_THE_END)] = row[n - 1 - i];
}

__global__ void count(int *out, const float *x, int n, Fault fault) {
    TW_SHARED_ARRAY(int, counter, 1);
    if (threadIdx.x == 0) counter[0] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        if (x[i] <= 0) continue;
        if (fault == NO_ATOMIC)
            counter[0] = counter[0] + 1;
        else
            atomicAdd(&counter[0], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) *out = counter[0];
}

__global__ void rotate(float *out, const float *x, Fault fault) {
    TW_SHARED_ARRAY(float, lanes, 32);
    lanes[threadIdx.x] = x[threadIdx.x];
    if (fault != NO_SYNCWARP && !(fault == LANE_SKIPS && threadIdx.x == 3)) __syncwarp(TW_FULL_WARP);
    out[threadIdx.x] = lanes[(threadIdx.x + 1) % 32];
}

/* c[16][8] = a[16][16] b[8][16]^T and c again through ldmatrix, plain and transposed. */
__global__ void products(float *c, float *again, const tw_bf16 *a, const tw_bf16 *b) {
    TW_SHARED_ARRAY(tw_bf16, left, 16 * 16);
    TW_SHARED_ARRAY(tw_bf16, right, 16 * 16); /* [k][column], columns 8..15 zero */
    const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
    for (int i = lane; i < 256; i += 32) {
        left[i] = a[i];
        right[i] = i % 16 < 8 ? b[i % 16 * 16 + i / 16] : __float2bfloat16_rn(0);
    }
    __syncwarp(TW_FULL_WARP);
    unsigned fa[4], fb[2], fl[4], fr[4];
    float d[4] = {0, 0, 0, 0}, e[4] = {0, 0, 0, 0};
    for (int i = 0; i < 4; i++) memcpy(&fa[i], a + (g + i % 2 * 8) * 16 + t * 2 + i / 2 * 8, 4);
    for (int i = 0; i < 2; i++) memcpy(&fb[i], b + g * 16 + t * 2 + i * 8, 4);
    tw_mma_16x8x16(d, fa, fb);
    tw_ldmatrix_x4(fl, left + lane % 16 * 16 + lane / 16 * 8);
    tw_ldmatrix_x4_transposed(fr, right + lane % 16 * 16 + lane / 16 * 8);
    tw_mma_16x8x16(e, fl, fr);
    for (int i = 0; i < 4; i++) {
        c[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = d[i];
        again[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = e[i];
    }
}

__global__ void collectives(int *out) {
    const int lane = threadIdx.x;
    int bad = __shfl_sync(TW_FULL_WARP, lane * 3, 5) != 15;
    bad += __shfl_xor_sync(TW_FULL_WARP, lane, 8) != (lane ^ 8);
    bad += __shfl_up_sync(TW_FULL_WARP, lane, 1) != (lane ? lane - 1 : 0);
    bad += __shfl_down_sync(TW_FULL_WARP, lane, 2) != (lane < 30 ? lane + 2 : lane);
    bad += __ballot_sync(TW_FULL_WARP, lane % 3 == 0) != 0x49249249u;
    bad += !__any_sync(TW_FULL_WARP, lane == 31) || __all_sync(TW_FULL_WARP, lane != 4);
    if (lane < 16) bad += __shfl_xor_sync(0xffffu, lane, 1) != (lane ^ 1);
    if (bad) atomicAdd(out, bad);
}

__global__ void add_one(float *x, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] += 1;
}

extern "C" const struct cudasim_control cudasim_control;

enum { N = 1000, ROWS = 3 };
static cudaStream_t stream;
static float *x, *y;

static float input(int i) { return (float)(i * 37 % 101 - 50); }

static int compare(const float *device, const float *expected, int n) {
    float *const got = (float *)malloc((size_t)n * 4);
    cudaMemcpyAsync(got, device, (size_t)n * 4, cudaMemcpyDeviceToHost, stream);
    int bad = 0;
    for (int i = 0; i < n; i++) bad += !(fabsf(got[i] - expected[i]) <= 1e-3f * (1 + fabsf(expected[i])));
    free(got);
    return bad != 0;
}

static int sums(Fault fault) {
    float expected[ROWS] = {0};
    for (int i = 0; i < ROWS * N; i++) expected[i / N] += input(i);
    TW_LAUNCH(block_sum, ROWS, 128, 0, stream, y, x, (int)N, fault);
    return compare(y, expected, ROWS);
}

static int reversed(Fault fault) {
    float expected[N];
    for (int i = 0; i < N; i++) expected[i] = input(N - 1 - i);
    float *out;
    cudaMalloc((void **)&out, N * 4);
    TW_LAUNCH(reverse, 1, 96, N * 4, stream, out, x, (int)N, fault);
    const int bad = compare(out, expected, N);
    cudaFree(out);
    return bad;
}

static int counted(Fault fault) {
    int expected = 0, got = -1;
    for (int i = 0; i < N; i++) expected += input(i) > 0;
    TW_LAUNCH(count, 1, 128, 0, stream, (int *)y, x, (int)N, fault);
    cudaMemcpyAsync(&got, y, 4, cudaMemcpyDeviceToHost, stream);
    return got != expected;
}

static int rotated(Fault fault) {
    float expected[32];
    for (int i = 0; i < 32; i++) expected[i] = input((i + 1) % 32);
    TW_LAUNCH(rotate, 1, 32, 0, stream, y, x, fault);
    return compare(y, expected, 32);
}

static int multiplied(Fault) {
    tw_bf16 a[256], b[128], *device;
    float expected[128] = {0};
    for (int i = 0; i < 256; i++) a[i] = __float2bfloat16_rn((float)(i * 7 % 23) - 11);
    for (int i = 0; i < 128; i++) b[i] = __float2bfloat16_rn((float)(i * 5 % 19) - 9);
    for (int i = 0; i < 128; i++)
        for (int k = 0; k < 16; k++)
            expected[i] += __bfloat162float(a[i / 8 * 16 + k]) * __bfloat162float(b[i % 8 * 16 + k]);
    cudaMalloc((void **)&device, sizeof a + sizeof b);
    cudaMemcpyAsync(device, a, sizeof a, cudaMemcpyHostToDevice, stream);
    cudaMemcpyAsync(device + 256, b, sizeof b, cudaMemcpyHostToDevice, stream);
    TW_LAUNCH(products, 1, 32, 0, stream, y, y + 128, device, device + 256);
    const int bad = compare(y, expected, 128) + 2 * compare(y + 128, expected, 128);
    cudaFree(device);
    return bad != 0;
}

static int met(Fault) {
    int got = -1;
    cudaMemsetAsync(y, 0, 4, stream);
    TW_LAUNCH(collectives, 5, 32, 0, stream, (int *)y);
    cudaMemcpyAsync(&got, y, 4, cudaMemcpyDeviceToHost, stream);
    return got != 0;
}

/* Two streams; `with_event` orders them. */
static int two_streams(bool with_event) {
    cudaStream_t other;
    cudaEvent_t event;
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    float expected[N];
    for (int i = 0; i < N; i++) expected[i] = input(i) + 2;
    cudaStreamSynchronize(stream);
    TW_LAUNCH(add_one, 1, 64, 0, other, x, (int)N);
    cudaEventRecord(event, other);
    if (with_event) cudaStreamWaitEvent(stream, event, 0);
    TW_LAUNCH(add_one, 1, 64, 0, stream, x, (int)N);
    const int bad = compare(x, expected, N);
    cudaStreamSynchronize(other);
    cudaEventDestroy(event);
    cudaStreamDestroy(other);
    return bad;
}
static int ordered(Fault) { return two_streams(true); }
static int unordered(Fault) { return two_streams(false); }

/* Pinned memory is read when the copy's turn comes, pageable memory at once. */
static int pinned_changed(Fault) {
    float *host, expected[N];
    cudaHostAlloc((void **)&host, N * 4, cudaHostAllocDefault);
    for (int i = 0; i < N; i++) host[i] = expected[i] = 5;
    cudaMemcpyAsync(y, host, N * 4, cudaMemcpyHostToDevice, stream);
    host[3] = 6;
    const int late = compare(y, expected, N);
    float pageable[N];
    for (int i = 0; i < N; i++) pageable[i] = 5;
    cudaMemcpyAsync(y, pageable, N * 4, cudaMemcpyHostToDevice, stream);
    pageable[3] = 6;
    const int early = compare(y, expected, N);
    cudaFreeHost(host);
    return !(late == 1 && early == 0);
}

static int freed(Fault) {
    float *gone;
    cudaMallocAsync((void **)&gone, N * 4, stream);
    cudaMemsetAsync(gone, 0, N * 4, stream);
    cudaFreeAsync(gone, stream);
    TW_LAUNCH(add_one, 1, 64, 0, stream, gone, (int)N);
    cudaStreamSynchronize(stream);
    return 0;
}

static int host_address(Fault) {
    static float host[N];
    float *const heap = (float *)calloc(N, 4);
    TW_LAUNCH(add_one, 1, 64, 0, stream, heap, (int)N);
    cudaStreamSynchronize(stream);
    free(heap);
    return host[0] != 0;
}

static int too_large(Fault) {
    TW_LAUNCH(reverse, 1, 96, 60 << 10, stream, y, x, 10, NO_FAULT);
    const bool shared = cudaGetLastError() == cudaErrorInvalidValue;
    TW_LAUNCH(add_one, 1, 2048, 0, stream, y, 10);
    const bool threads = cudaGetLastError() == cudaErrorInvalidConfiguration;
    TW_LAUNCH(add_one, 0, 32, 0, stream, y, 10);
    const bool empty = cudaGetLastError() == cudaErrorInvalidConfiguration;
    return !(shared && threads && empty && cudaGetLastError() == cudaSuccess);
}

static int faults_injected(Fault) {
    const struct cudasim_control *const control = &cudasim_control;
    void *p = &p;
    control->fail_allocation(2, 1);
    bool right = cudaMalloc(&p, 16) == cudaSuccess && cudaFree(p) == cudaSuccess;
    right &= cudaMalloc(&p, 16) == cudaErrorMemoryAllocation && !p && cudaGetLastError() == cudaErrorMemoryAllocation;
    control->fail_launch(1);
    TW_LAUNCH(add_one, 1, 64, 0, stream, x, (int)N);
    right &= cudaGetLastError() == cudaErrorLaunchOutOfResources && cudaGetLastError() == cudaSuccess;
    control->lose_device(1);
    TW_LAUNCH(add_one, 1, 64, 0, stream, x, (int)N);
    right &= cudaGetLastError() == cudaErrorECCUncorrectable && cudaStreamSynchronize(stream) != cudaSuccess;
    control->lose_device(0);
    return !right;
}

/* c = b^T a in cuBLAS's column-major terms: c[row][i] = sum_k b[row][k] a[i][k]. */
static int blas(Fault) {
    enum { M = 5, ROWS_OF_B = 3, K = 7 };
    float a[M * K], b[ROWS_OF_B * K], expected[ROWS_OF_B * M] = {0}, *device;
    for (int i = 0; i < M * K; i++) a[i] = input(i);
    for (int i = 0; i < ROWS_OF_B * K; i++) b[i] = input(i + 9);
    for (int i = 0; i < ROWS_OF_B * M; i++)
        for (int k = 0; k < K; k++) expected[i] += b[i / M * K + k] * a[i % M * K + k];
    cudaMalloc((void **)&device, sizeof a + sizeof b);
    cudaMemcpyAsync(device, a, sizeof a, cudaMemcpyHostToDevice, stream);
    cudaMemcpyAsync(device + M * K, b, sizeof b, cudaMemcpyHostToDevice, stream);
    cublasHandle_t handle;
    cublasCreate(&handle);
    cublasSetStream(handle, stream);
    void *workspace;
    cudaMalloc(&workspace, 4096);
    cublasSetWorkspace(handle, workspace, 4096);
    const float one = 1, zero = 0;
    const cublasStatus_t status =
        cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, M, ROWS_OF_B, K, &one, device, CUDA_R_32F, K, device + M * K,
                     CUDA_R_32F, K, &zero, y, CUDA_R_32F, M, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    const int bad = status != CUBLAS_STATUS_SUCCESS || compare(y, expected, ROWS_OF_B * M);
    cublasDestroy(handle);
    cudaFree(workspace);
    cudaFree(device);
    return bad;
}

static const struct {
    const char *name;
    int (*run)(Fault fault);
    Fault fault;
} cases[] = {
    {"sum", sums, NO_FAULT},
    {"sum-no-barrier", sums, NO_BARRIER},
    {"sum-overrun", sums, OVERRUN},
    {"sum-one-skips", sums, ONE_SKIPS},
    {"reverse", reversed, NO_FAULT},
    {"reverse-past-the-end", reversed, PAST_THE_END},
    {"reverse-uninitialised", reversed, UNINITIALISED},
    {"count", counted, NO_FAULT},
    {"count-no-atomic", counted, NO_ATOMIC},
    {"rotate", rotated, NO_FAULT},
    {"rotate-no-syncwarp", rotated, NO_SYNCWARP},
    {"rotate-lane-skips", rotated, LANE_SKIPS},
    {"products", multiplied, NO_FAULT},
    {"collectives", met, NO_FAULT},
    {"streams", ordered, NO_FAULT},
    {"streams-no-event", unordered, NO_FAULT},
    {"pinned", pinned_changed, NO_FAULT},
    {"use-after-free", freed, NO_FAULT},
    {"host-address", host_address, NO_FAULT},
    {"launch-limits", too_large, NO_FAULT},
    {"faults", faults_injected, NO_FAULT},
    {"cublas", blas, NO_FAULT},
};

int main(int argc, char **argv) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (argc < 2) printf("%s\n", cases[i].name);
        if (argc < 2 || strcmp(argv[1], cases[i].name) != 0) continue;
        cudasim_control.seed(argc > 2 ? strtoull(argv[2], nullptr, 10) : 1);
        float host[ROWS * N];
        for (int k = 0; k < ROWS * N; k++) host[k] = input(k);
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        cudaMalloc((void **)&x, sizeof host);
        cudaMalloc((void **)&y, sizeof host);
        cudaMemcpyAsync(x, host, sizeof host, cudaMemcpyHostToDevice, stream);
        const int bad = cases[i].run(cases[i].fault);
        cudaFree(x);
        cudaFree(y);
        cudaStreamDestroy(stream);
        if (cudasim_control.live_objects() != 0)
            return fprintf(stderr, "%ld objects leaked\n", cudasim_control.live_objects()), 1;
        return bad;
    }
    return argc > 1 ? 2 : 0;
}
