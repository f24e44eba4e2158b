/* Keys looked at alone: their lengths, their cosine to a mean, and gathering what is kept. A warp takes a row. */
#include "engine/backend/cuda/device.h"
#include "engine/backend/cuda/kernels.h"

enum { KEY_THREADS = 128, KEY_WARPS = KEY_THREADS / 32, KEY_SPLITS = 64 };

static __device__ __forceinline__ double warp_sum_double(double value) {
    TW_UNROLL for (int bits = 16; bits > 0; bits >>= 1) value += __shfl_xor_sync(TW_FULL_WARP, value, bits);
    return value;
}

template <class T>
__global__ void __launch_bounds__(KEY_THREADS)
    score_keys(float *score, const double *mean, tw_cuda_kv kv, int first, int n) {
    const int i = blockIdx.x * KEY_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, g = blockIdx.y, d = kv.head_dim;
    if (i >= n) return; /* whole warps */
    if (first + i >= kv.length[g]) {
        if (lane == 0) score[(size_t)g * n + i] = -INFINITY;
        return;
    }
    const T *const key = (const T *)kv.key + ((size_t)kv.offset[g] + first + i) * d;
    double square = 0, dot = 0, mean_square = 0;
    for (int j = lane; j < d; j += 32) {
        const double k = tw_load(key + j);
        square += k * k;
        if (mean) {
            const double m = mean[(size_t)g * d + j];
            dot += k * m;
            mean_square += m * m;
        }
    }
    square = warp_sum_double(square);
    dot = warp_sum_double(dot);
    mean_square = warp_sum_double(mean_square);
    const double least = 2.2250738585072014e-308;
    if (lane == 0)
        score[(size_t)g * n + i] =
            (float)(mean ? -dot / (fmax(sqrt(square), least) * fmax(sqrt(mean_square), least)) : -sqrt(square));
}

/* partials [KEY_SPLITS][n_kv_heads][d]: keys over their lengths, added up in the order of rows within a warp's share.
 */
template <class T> __global__ void __launch_bounds__(KEY_THREADS) key_mean(double *partials, tw_cuda_kv kv) {
    TW_DYNAMIC_SHARED(double, sums); /* [KEY_WARPS][d] */
    const int split = blockIdx.x, g = blockIdx.y, d = kv.head_dim, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int per_split = (kv.length[g] + KEY_SPLITS - 1) / KEY_SPLITS;
    const int begin = split * per_split;
    const int end = begin + per_split < kv.length[g] ? begin + per_split : kv.length[g];
    double total[8] = {}; /* columns lane + 32 k, heads of up to 256 */
    for (int r = begin + warp; r < end; r += KEY_WARPS) {
        const T *const key = (const T *)kv.key + ((size_t)kv.offset[g] + r) * d;
        double square = 0;
        for (int j = lane; j < d; j += 32) {
            const double k = tw_load(key + j);
            square += k * k;
        }
        const double length = fmax(sqrt(warp_sum_double(square)), 2.2250738585072014e-308);
        for (int k = 0; lane + 32 * k < d; k++) total[k] += tw_load(key + lane + 32 * k) / length;
    }
    for (int k = 0; lane + 32 * k < d; k++) sums[warp * d + lane + 32 * k] = total[k];
    __syncthreads();
    for (int j = threadIdx.x; j < d; j += KEY_THREADS) {
        double sum = 0;
        for (int w = 0; w < KEY_WARPS; w++) sum += sums[w * d + j];
        partials[((size_t)split * kv.n_kv_heads + g) * d + j] = sum;
    }
}

/* Every thread owns one number of the result, which replaces the first split's. */
__global__ void key_mean_merge(double *partials, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double sum = 0;
    for (int split = 0; split < KEY_SPLITS; split++) sum += partials[(size_t)split * n + i];
    partials[i] = sum;
}

template <class T>
__global__ void __launch_bounds__(KEY_THREADS)
    gather_rows(tw_cuda_kv to, tw_cuda_kv from, const int32_t *kept, int most) {
    const int i = blockIdx.x * KEY_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, g = blockIdx.y, d = to.head_dim;
    if (i >= to.length[g]) return; /* whole warps */
    const size_t target = ((size_t)to.offset[g] + i) * d;
    const size_t source = ((size_t)from.offset[g] + kept[(size_t)g * most + i]) * d;
    for (int j = lane; j < d; j += 32) {
        ((T *)to.key)[target + j] = ((const T *)from.key)[source + j];
        ((T *)to.value)[target + j] = ((const T *)from.value)[source + j];
    }
}

extern "C" cudaError_t tw_cuda_score_keys(cudaStream_t stream, enum tw_cuda_precision dtype, float *score,
                                          const double *mean, const struct tw_cuda_kv *kv, int first, int n) {
    const dim3 grid((n + KEY_WARPS - 1) / KEY_WARPS, kv->n_kv_heads);
    if (dtype == TW_CUDA_F32)
        TW_LAUNCH(score_keys<float>, grid, KEY_THREADS, 0, stream, score, mean, *kv, first, n);
    else
        TW_LAUNCH(score_keys<tw_bf16>, grid, KEY_THREADS, 0, stream, score, mean, *kv, first, n);
    return cudaGetLastError();
}

extern "C" cudaError_t tw_cuda_key_mean(cudaStream_t stream, enum tw_cuda_precision dtype, double *partials,
                                        const struct tw_cuda_kv *kv) {
    const dim3 grid(KEY_SPLITS, kv->n_kv_heads);
    const size_t bytes = (size_t)KEY_WARPS * kv->head_dim * sizeof(double);
    const int n = kv->n_kv_heads * kv->head_dim;
    if (dtype == TW_CUDA_F32)
        TW_LAUNCH(key_mean<float>, grid, KEY_THREADS, bytes, stream, partials, *kv);
    else
        TW_LAUNCH(key_mean<tw_bf16>, grid, KEY_THREADS, bytes, stream, partials, *kv);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
    TW_LAUNCH(key_mean_merge, (n + 127) / 128, 128, 0, stream, partials, n);
    return cudaGetLastError();
}

extern "C" cudaError_t tw_cuda_gather(cudaStream_t stream, enum tw_cuda_precision dtype, const struct tw_cuda_kv *to,
                                      const struct tw_cuda_kv *from, const int32_t *kept, int most) {
    const dim3 grid((most + KEY_WARPS - 1) / KEY_WARPS, to->n_kv_heads);
    if (dtype == TW_CUDA_F32)
        TW_LAUNCH(gather_rows<float>, grid, KEY_THREADS, 0, stream, *to, *from, kept, most);
    else
        TW_LAUNCH(gather_rows<tw_bf16>, grid, KEY_THREADS, 0, stream, *to, *from, kept, most);
    return cudaGetLastError();
}
