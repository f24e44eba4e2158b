/* Matrix products behind cuBLAS's names: plain loops, queued on the handle's stream like any other work. */
#include <string.h>

#include <algorithm>
#include <vector>

#include "cublas_v2.h"
#include "tests/cudasim/internal.h"

using namespace cudasim;

namespace cudasim {
bool library_allocation_fails();
void count_object(int change);
bool device_lost();
bool enqueue_library(const char *name, cudaStream_t stream, std::function<void(uint32_t)> run);
} // namespace cudasim

struct cublasContext {
    cudaStream_t stream = nullptr;
    void *workspace = nullptr;
};

static size_t element(cudaDataType_t type) { return type == CUDA_R_16BF ? 2 : 4; }

static float load(const char *data, cudaDataType_t type, size_t i) {
    if (type == CUDA_R_32F) return ((const float *)data)[i];
    const uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void store(char *data, cudaDataType_t type, size_t i, float value) {
    if (type == CUDA_R_32F) {
        ((float *)data)[i] = value;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    ((uint16_t *)data)[i] =
        (bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* op(X) with `columns` the dimension that is summed over, as rows of floats: [rows][columns]. */
static std::vector<float> unpack(const void *data, cudaDataType_t type, size_t stride, bool summed_is_contiguous,
                                 size_t rows, size_t columns) {
    std::vector<float> out(rows * columns);
    for (size_t r = 0; r < rows; r++)
        for (size_t k = 0; k < columns; k++)
            out[r * columns + k] =
                load((const char *)data, type, summed_is_contiguous ? r * stride + k : k * stride + r);
    return out;
}

extern "C" {

cublasStatus_t cublasCreate(cublasHandle_t *handle) {
    *handle = nullptr;
    if (device_lost()) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (library_allocation_fails()) return CUBLAS_STATUS_ALLOC_FAILED;
    *handle = new cublasContext();
    count_object(1);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy(cublasHandle_t handle) {
    delete handle;
    count_object(-1);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    handle->workspace = nullptr; /* as documented: the workspace goes back to the default one */
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *workspace, size_t bytes) {
    if ((uintptr_t)workspace % 256 != 0 || !is_device_range(workspace, bytes)) return CUBLAS_STATUS_INVALID_VALUE;
    handle->workspace = workspace;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetAtomicsMode(cublasHandle_t, cublasAtomicsMode_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasGetVersion(cublasHandle_t, int *version) { return *version = 130000, CUBLAS_STATUS_SUCCESS; }
const char *cublasGetStatusString(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    default: return "CUBLAS_STATUS_INVALID_VALUE";
    }
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                            const void *alpha, const void *a, cudaDataType_t a_type, int lda, const void *b,
                            cudaDataType_t b_type, int ldb, const void *beta, void *c, cudaDataType_t c_type, int ldc,
                            cublasComputeType_t, cublasGemmAlgo_t) {
    if (m <= 0 || n <= 0 || k <= 0 || lda < (op_a == CUBLAS_OP_T ? k : m) || ldb < (op_b == CUBLAS_OP_T ? n : k) ||
        ldc < m)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (a_type != b_type || (a_type == CUDA_R_32F && c_type != CUDA_R_32F)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!handle->workspace) fail("cublasGemmEx without a workspace of our own: cuBLAS would allocate one");
    const size_t rows = (size_t)m, columns = (size_t)n, depth = (size_t)k;
    const size_t a_lines = op_a == CUBLAS_OP_T ? rows : depth, b_lines = op_b == CUBLAS_OP_T ? depth : columns;
    const size_t a_bytes = ((a_lines - 1) * (size_t)lda + (op_a == CUBLAS_OP_T ? depth : rows)) * element(a_type);
    const size_t b_bytes = ((b_lines - 1) * (size_t)ldb + (op_b == CUBLAS_OP_T ? columns : depth)) * element(b_type);
    const size_t c_bytes = ((columns - 1) * (size_t)ldc + rows) * element(c_type);
    if (!is_device_range(a, a_bytes) || !is_device_range(b, b_bytes) || !is_device_range(c, c_bytes))
        fail("cublasGemmEx %d x %d x %d reaches outside its allocations", m, n, k);
    const float scale = *(const float *)alpha, keep = *(const float *)beta;
    const bool queued = enqueue_library("cublasGemmEx", handle->stream, [=](uint32_t op) {
        shadow_range(a, a_bytes, false, op);
        shadow_range(b, b_bytes, false, op);
        if (keep != 0) shadow_range(c, c_bytes, false, op);
        const std::vector<float> left = unpack(a, a_type, (size_t)lda, op_a == CUBLAS_OP_T, rows, depth);
        const std::vector<float> right = unpack(b, b_type, (size_t)ldb, op_b == CUBLAS_OP_N, columns, depth);
        for (size_t j = 0; j < columns; j++) {
            /* Padding is cheap: a column of zeros gives zeros. */
            const float *const column = &right[j * depth];
            const bool zero = keep == 0 && std::all_of(column, column + depth, [](float v) { return v == 0; });
            for (size_t i = 0; i < rows && zero; i++) store((char *)c, c_type, j * (size_t)ldc + i, 0);
            for (size_t i = 0; i < rows && !zero; i++) {
                const float *const x = &left[i * depth], *const y = &right[j * depth];
                float sum = 0;
#pragma omp simd reduction(+ : sum)
                for (size_t p = 0; p < depth; p++) sum += x[p] * y[p];
                const size_t at = j * (size_t)ldc + i;
                store((char *)c, c_type, at, scale * sum + (keep != 0 ? keep * load((char *)c, c_type, at) : 0));
            }
        }
        for (size_t j = 0; j < columns; j++)
            shadow_range((char *)c + j * (size_t)ldc * element(c_type), rows * element(c_type), true, op);
    });
    return queued ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

} /* extern "C" */
