/*
 * What a device can do at best: "TFLOP/s of a bf16 product, GB/s of a device copy", measured with cuBLAS and the copy
 * engine. Built and run by tests/bench/cuda/run.sh.
 */
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        if ((call) != 0) {                                                                                             \
            fprintf(stderr, "peak: %s failed\n", #call);                                                               \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { N = 8192, PRODUCTS = 10, COPIES = 20 };

int main(void) {
    const size_t bytes = (size_t)N * N * 2;
    void *a, *b, *c;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    cublasHandle_t handle;
    float one = 1, zero = 0, milliseconds;
    MUST(cudaMalloc(&a, bytes));
    MUST(cudaMalloc(&b, bytes));
    MUST(cudaMalloc(&c, bytes));
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    MUST(cudaEventCreateWithFlags(&begin, cudaEventDefault));
    MUST(cudaEventCreateWithFlags(&end, cudaEventDefault));
    MUST(cublasCreate(&handle));
    MUST(cublasSetStream(handle, stream));
    /* Ones, not zeros: a product of zeros draws less power and runs faster than any real one. */
    MUST(cudaMemsetAsync(a, 0x3c, bytes, stream));
    MUST(cudaMemsetAsync(b, 0x3c, bytes, stream));
    for (int warm = 0; warm < 2; warm++) {
        MUST(cudaEventRecord(begin, stream));
        for (int i = 0; i < PRODUCTS; i++)
            MUST(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, N, N, N, &one, a, CUDA_R_16BF, N, b, CUDA_R_16BF, N,
                              &zero, c, CUDA_R_16BF, N, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
        MUST(cudaEventRecord(end, stream));
        MUST(cudaEventSynchronize(end));
    }
    MUST(cudaEventElapsedTime(&milliseconds, begin, end));
    const double tflops = 2.0 * N * N * N * PRODUCTS / (milliseconds * 1e9);
    for (int warm = 0; warm < 2; warm++) {
        MUST(cudaEventRecord(begin, stream));
        for (int i = 0; i < COPIES; i++) MUST(cudaMemcpyAsync(c, a, bytes, cudaMemcpyDeviceToDevice, stream));
        MUST(cudaEventRecord(end, stream));
        MUST(cudaEventSynchronize(end));
    }
    MUST(cudaEventElapsedTime(&milliseconds, begin, end));
    printf("%.1f %.1f\n", tflops, 2.0 * (double)bytes * COPIES / (milliseconds * 1e6));
    return 0;
}
