/*
 * Weights as they are stored: unpacking to the activations' precision, embedding rows, and decoding's products straight
 * from the blocks. A product gives each row of the matrix a warp; a lane takes every 32nd run of eight numbers, so that
 * neighbouring lanes read neighbouring bytes, and lanes are added in a fixed order.
 */
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/unpack.h"

/* Run i (eight numbers) of a row. Plain types may end in a run that is not whole: missing numbers are 0. */
template <class Stored>
static __device__ __forceinline__ void unpack_run(float out[8], const uint8_t *row, int i, int n_columns) {
    constexpr int runs = Stored::values / 8;
    if (runs == 1 && 8 * i + 8 > n_columns) {
        constexpr int bytes = Stored::bytes / 8;
        uint8_t block[Stored::bytes];
        for (int j = 0; j < Stored::bytes; j++)
            block[j] = 8 * i + j / bytes < n_columns ? row[(size_t)i * Stored::bytes + j] : (uint8_t)0;
        Stored::unpack(out, block, 0);
        return;
    }
    if (Stored::bytes % 16 == 0 && runs == 1 && (size_t)row % 16 == 0) { /* whole vectors */
        __align__(16) uint8_t block[Stored::bytes];
        for (int j = 0; j < Stored::bytes; j += 16) tw_copy16(block + j, row + (size_t)i * Stored::bytes + j);
        Stored::unpack(out, block, 0);
        return;
    }
    Stored::unpack(out, row + (size_t)(i / runs) * Stored::bytes, i % runs);
}

template <class Stored, class T>
__global__ void unpack_rows(T *out, const uint8_t *data, size_t row_bytes, int n_columns, const int32_t *rows,
                            float scale) {
    const size_t source = rows ? (size_t)rows[blockIdx.x] : (size_t)blockIdx.x;
    const uint8_t *const row = data + source * row_bytes;
    T *const to = out + (size_t)blockIdx.x * n_columns;
    for (int i = threadIdx.x; 8 * i < n_columns; i += blockDim.x) {
        float numbers[8];
        unpack_run<Stored>(numbers, row, i, n_columns);
        for (int j = 0; j < 8; j++)
            if (8 * i + j < n_columns) tw_store(to + 8 * i + j, __fmul_rn(numbers[j], scale));
    }
}

enum { PRODUCT_THREADS = 128 };

template <class Stored, int kRows>
__global__ void __launch_bounds__(PRODUCT_THREADS)
    product(float *y, size_t y_stride, const float *x, const uint8_t *data, size_t row_bytes, int n_columns,
            int n_rows) {
    const int o = blockIdx.x * (PRODUCT_THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (o >= n_rows) return; /* a whole warp: nobody waits for it */
    const uint8_t *const row = data + (size_t)o * row_bytes;
    float sum[kRows] = {};
    for (int i = lane; 8 * i < n_columns; i += 32) {
        float w[8];
        unpack_run<Stored>(w, row, i, n_columns);
        for (int j = 0; j < 8; j++) {
            if (8 * i + j >= n_columns) break;
            TW_UNROLL for (int r = 0; r < kRows; r++) sum[r] += w[j] * x[(size_t)r * n_columns + 8 * i + j];
        }
    }
    /*
     * All sums at once: while there are several, halves of them change places with the lane across, so that each lane
     * adds one half; then the usual butterfly. Every sum is added up in the same order whatever kRows is.
     */
    int bits = 16, mine = 0;
    TW_UNROLL for (int width = kRows / 2; width > 0; width /= 2, bits /= 2) {
        const bool upper = lane & bits;
        mine = 2 * mine + upper;
        TW_UNROLL for (int r = 0; r < width; r++) {
            const float kept = upper ? sum[r + width] : sum[r], given = upper ? sum[r] : sum[r + width];
            sum[r] = kept + __shfl_xor_sync(TW_FULL_WARP, given, bits);
        }
    }
    const int owners = 2 * bits - 1; /* the lanes' bits that are still to be added over */
    for (; bits > 0; bits /= 2) sum[0] += __shfl_xor_sync(TW_FULL_WARP, sum[0], bits);
    if ((lane & owners) == 0) y[(size_t)mine * y_stride + o] = sum[0];
}

template <class T>
static cudaError_t unpack(cudaStream_t stream, void *out, const uint8_t *data, int type, size_t row_bytes,
                          int n_columns, const int32_t *rows, int n_rows, float scale) {
    const bool known = tw_with_stored(type, [=](auto stored) {
        TW_LAUNCH((unpack_rows<decltype(stored), T>), n_rows, 128, 0, stream, (T *)out, data, row_bytes, n_columns,
                  rows, scale);
    });
    return known ? cudaGetLastError() : cudaErrorInvalidValue;
}

extern "C" cudaError_t tw_cuda_unpack(cudaStream_t stream, enum tw_cuda_precision dtype, void *out, const uint8_t *data,
                                      int type, size_t row_bytes, int n_columns, int n_rows) {
    return dtype == TW_CUDA_F32 ? unpack<float>(stream, out, data, type, row_bytes, n_columns, nullptr, n_rows, 1)
                                : unpack<tw_bf16>(stream, out, data, type, row_bytes, n_columns, nullptr, n_rows, 1);
}

extern "C" cudaError_t tw_cuda_embed(cudaStream_t stream, enum tw_cuda_precision dtype, void *out, const uint8_t *data,
                                     int type, size_t row_bytes, int n_columns, const int32_t *tokens, int n_tokens,
                                     float scale) {
    return dtype == TW_CUDA_F32
               ? unpack<float>(stream, out, data, type, row_bytes, n_columns, tokens, n_tokens, scale)
               : unpack<tw_bf16>(stream, out, data, type, row_bytes, n_columns, tokens, n_tokens, scale);
}

template <int kRows>
static cudaError_t multiply(cudaStream_t stream, float *y, size_t y_stride, const float *x, const uint8_t *data,
                            int type, size_t row_bytes, int n_columns, int n_rows) {
    const int warps = PRODUCT_THREADS / 32;
    const bool known = tw_with_stored(type, [=](auto stored) {
        TW_LAUNCH((product<decltype(stored), kRows>), (n_rows + warps - 1) / warps, PRODUCT_THREADS, 0, stream, y,
                  y_stride, x, data, row_bytes, n_columns, n_rows);
    });
    return known ? cudaGetLastError() : cudaErrorInvalidValue;
}

extern "C" cudaError_t tw_cuda_product(cudaStream_t stream, float *y, size_t y_stride, const float *x, int n_x,
                                       const uint8_t *data, int type, size_t row_bytes, int n_columns, int n_rows) {
    for (int done = 0, step; done < n_x; done += step) {
        const int left = n_x - done;
        float *const to = y + (size_t)done * y_stride;
        const float *const from = x + (size_t)done * n_columns;
        step = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
        const cudaError_t error =
            step == 8   ? multiply<8>(stream, to, y_stride, from, data, type, row_bytes, n_columns, n_rows)
            : step == 4 ? multiply<4>(stream, to, y_stride, from, data, type, row_bytes, n_columns, n_rows)
            : step == 2 ? multiply<2>(stream, to, y_stride, from, data, type, row_bytes, n_columns, n_rows)
                        : multiply<1>(stream, to, y_stride, from, data, type, row_bytes, n_columns, n_rows);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}
