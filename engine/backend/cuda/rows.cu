/* Work on rows of activations: norms, residuals, the gated activation, rotation, and appending keys and values. */
#include "engine/backend/cuda/device.h"
#include "engine/backend/cuda/kernels.h"

enum { ROW_THREADS = 128 };

/* sum of squares / n, over a block. */
template <class T> static __device__ __forceinline__ float mean_square(const T *row, int n, float *part) {
    float sum = 0;
    for (int j = threadIdx.x; j < n; j += ROW_THREADS) {
        const float value = tw_load(row + j);
        sum += value * value;
    }
    return tw_block_sum<ROW_THREADS>(sum, part) / (float)n;
}

template <class T, class Out>
__global__ void __launch_bounds__(ROW_THREADS)
    norm_rows(Out *out, const T *in, const float *weight, int n, float epsilon) {
    TW_SHARED_ARRAY(float, part, ROW_THREADS / 32);
    Out *const to = out + (size_t)blockIdx.x * n;
    const T *const row = in + (size_t)blockIdx.x * n;
    const float scale = 1.0f / sqrtf(mean_square(row, n, part) + epsilon);
    for (int j = threadIdx.x; j < n; j += ROW_THREADS) tw_store(to + j, tw_load(row + j) * scale * weight[j]);
}

/* `normed` may be `y`: a thread reads and writes the same columns of a row throughout. */
template <class T>
__global__ void __launch_bounds__(ROW_THREADS) add_norm_rows(T *hidden, const T *y, const float *post_norm, T *normed,
                                                             const float *next_norm, int n, float epsilon) {
    TW_SHARED_ARRAY(float, part, ROW_THREADS / 32);
    T *const row = hidden + (size_t)blockIdx.x * n;
    const T *const add = y + (size_t)blockIdx.x * n;
    const float post = post_norm ? 1.0f / sqrtf(mean_square(add, n, part) + epsilon) : 0.0f;
    for (int j = threadIdx.x; j < n; j += ROW_THREADS) {
        const float value = tw_load(add + j);
        tw_store(row + j, tw_load(row + j) + (post_norm ? value * post * post_norm[j] : value));
    }
    if (!next_norm) return; /* the same for all */
    T *const to = normed + (size_t)blockIdx.x * n;
    const float scale = 1.0f / sqrtf(mean_square(row, n, part) + epsilon);
    for (int j = threadIdx.x; j < n; j += ROW_THREADS) tw_store(to + j, tw_load(row + j) * scale * next_norm[j]);
}

template <class T> __global__ void gate_rows(T *gate, const T *up, size_t n, int activation) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float x = tw_load(gate + i);
    const float active = activation == 0 ? x / (1.0f + expf(-x))
                                         : 0.5f * x * (1.0f + tanhf(0.797884560802865f * (x + 0.044715f * x * x * x)));
    tw_store(gate + i, active * tw_load(up + i));
}

__global__ void rotation_rows(float2 *rotation, const double *divisor, int n_pairs, int first_position) {
    for (int j = threadIdx.x; j < n_pairs; j += blockDim.x) {
        const double angle = (double)(first_position + (int)blockIdx.x) / divisor[j];
        rotation[(size_t)blockIdx.x * n_pairs + j] = make_float2((float)cos(angle), (float)sin(angle));
    }
}

/*
 * A warp takes one head of one row: the query heads, then the keys', then the values'. A lane takes pairs of elements
 * that rotate together; norms are over the head.
 */
template <class In, class T>
__global__ void __launch_bounds__(ROW_THREADS) append_rows(tw_cuda_project p, tw_cuda_kv kv) {
    const int d = kv.head_dim, n_pairs = d / 2, lane = threadIdx.x % 32;
    const int i = blockIdx.x, head = blockIdx.y * (ROW_THREADS / 32) + threadIdx.x / 32;
    if (head >= p.n_heads + 2 * kv.n_kv_heads) return; /* whole warps */
    const bool is_query = head < p.n_heads, is_value = head >= p.n_heads + kv.n_kv_heads;
    const int h = is_query ? head : is_value ? head - p.n_heads - kv.n_kv_heads : head - p.n_heads;
    const In *const in = is_query ? (const In *)p.query + ((size_t)i * p.n_heads + h) * d
                                  : (const In *)(is_value ? p.value : p.key) + ((size_t)i * kv.n_kv_heads + h) * d;
    const float *const bias = is_query ? p.query_bias : is_value ? p.value_bias : p.key_bias;
    const float *const norm = is_query ? p.query_norm : is_value ? nullptr : p.key_norm;
    const size_t kv_row = (size_t)(is_query ? 0 : kv.offset[h] + kv.length[h] + i) * d;
    T *const stored = is_query ? nullptr : (T *)(is_value ? kv.value : kv.key) + kv_row;
    const int w = i - p.observe_from;
    T *const observed =
        is_query && p.observed && w >= 0 && w < p.window ? (T *)p.observed + ((size_t)h * p.window + w) * d : nullptr;

    constexpr int most = 128 / 32; /* pairs a lane, heads of up to 256 */
    float first[most], second[most], squares = 0;
    TW_UNROLL for (int k = 0; k < most; k++) {
        const int j = lane + 32 * k;
        if (j >= n_pairs) continue;
        const int a = p.halves ? j : 2 * j, b = p.halves ? j + n_pairs : 2 * j + 1;
        first[k] = tw_load(in + a) + (bias ? bias[(size_t)h * d + a] : 0.0f);
        second[k] = tw_load(in + b) + (bias ? bias[(size_t)h * d + b] : 0.0f);
        squares += first[k] * first[k] + second[k] * second[k];
    }
    const float scale = norm ? 1.0f / sqrtf(tw_warp_sum(squares) / (float)d + p.epsilon) : 1.0f;
    TW_UNROLL for (int k = 0; k < most; k++) {
        const int j = lane + 32 * k;
        if (j >= n_pairs) continue;
        const int a = p.halves ? j : 2 * j, b = p.halves ? j + n_pairs : 2 * j + 1;
        float x = first[k], y = second[k];
        if (norm) {
            x = x * scale * norm[a];
            y = y * scale * norm[b];
        }
        if (!is_value) {
            const float2 turn = ((const float2 *)p.rotation)[(size_t)i * n_pairs + j];
            const float turned = x * turn.x - y * turn.y;
            y = x * turn.y + y * turn.x;
            x = turned;
        }
        if (is_query) {
            In *const out = (In *)p.query + ((size_t)i * p.n_heads + h) * d;
            tw_store(out + a, x);
            tw_store(out + b, y);
        } else {
            tw_store(stored + a, x);
            tw_store(stored + b, y);
        }
        if (observed) {
            tw_store(observed + a, x);
            tw_store(observed + b, y);
        }
    }
}

extern "C" cudaError_t tw_cuda_norm(cudaStream_t stream, enum tw_cuda_precision dtype, void *out, const void *in,
                                    const float *weight, int n, float epsilon, int n_rows) {
    if (dtype == TW_CUDA_F32)
        TW_LAUNCH((norm_rows<float, float>), n_rows, ROW_THREADS, 0, stream, (float *)out, (const float *)in, weight, n,
                  epsilon);
    else
        TW_LAUNCH((norm_rows<tw_bf16, tw_bf16>), n_rows, ROW_THREADS, 0, stream, (tw_bf16 *)out, (const tw_bf16 *)in,
                  weight, n, epsilon);
    return cudaGetLastError();
}

extern "C" cudaError_t tw_cuda_norm_to_float(cudaStream_t stream, enum tw_cuda_precision dtype, float *out,
                                             const void *in, const float *weight, int n, float epsilon, int n_rows) {
    if (dtype == TW_CUDA_F32) return tw_cuda_norm(stream, dtype, out, in, weight, n, epsilon, n_rows);
    TW_LAUNCH((norm_rows<tw_bf16, float>), n_rows, ROW_THREADS, 0, stream, out, (const tw_bf16 *)in, weight, n,
              epsilon);
    return cudaGetLastError();
}

extern "C" cudaError_t tw_cuda_add_norm(cudaStream_t stream, enum tw_cuda_precision dtype, void *hidden, const void *y,
                                        const float *post_norm, void *normed, const float *next_norm, int n,
                                        float epsilon, int n_rows) {
    if (dtype == TW_CUDA_F32)
        TW_LAUNCH(add_norm_rows<float>, n_rows, ROW_THREADS, 0, stream, (float *)hidden, (const float *)y, post_norm,
                  (float *)normed, next_norm, n, epsilon);
    else
        TW_LAUNCH(add_norm_rows<tw_bf16>, n_rows, ROW_THREADS, 0, stream, (tw_bf16 *)hidden, (const tw_bf16 *)y,
                  post_norm, (tw_bf16 *)normed, next_norm, n, epsilon);
    return cudaGetLastError();
}

extern "C" cudaError_t tw_cuda_gate(cudaStream_t stream, enum tw_cuda_precision dtype, void *gate, const void *up,
                                    size_t n, int activation) {
    const unsigned blocks = (unsigned)((n + 255) / 256);
    if (dtype == TW_CUDA_F32)
        TW_LAUNCH(gate_rows<float>, blocks, 256, 0, stream, (float *)gate, (const float *)up, n, activation);
    else
        TW_LAUNCH(gate_rows<tw_bf16>, blocks, 256, 0, stream, (tw_bf16 *)gate, (const tw_bf16 *)up, n, activation);
    return cudaGetLastError();
}

extern "C" cudaError_t tw_cuda_rotation(cudaStream_t stream, void *rotation, const double *divisor, int n_pairs,
                                        int n_rows, int first_position) {
    TW_LAUNCH(rotation_rows, n_rows, 64, 0, stream, (float2 *)rotation, divisor, n_pairs, first_position);
    return cudaGetLastError();
}

extern "C" cudaError_t tw_cuda_append(cudaStream_t stream, enum tw_cuda_precision dtype,
                                      const struct tw_cuda_project *project, const struct tw_cuda_kv *kv,
                                      bool decoding) {
    const int heads = project->n_heads + 2 * kv->n_kv_heads, warps = ROW_THREADS / 32;
    const dim3 grid(project->n_rows, (heads + warps - 1) / warps);
    if (dtype == TW_CUDA_F32)
        TW_LAUNCH((append_rows<float, float>), grid, ROW_THREADS, 0, stream, *project, *kv);
    else if (decoding)
        TW_LAUNCH((append_rows<float, tw_bf16>), grid, ROW_THREADS, 0, stream, *project, *kv);
    else
        TW_LAUNCH((append_rows<tw_bf16, tw_bf16>), grid, ROW_THREADS, 0, stream, *project, *kv);
    return cudaGetLastError();
}
