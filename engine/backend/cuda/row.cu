/*
 * One query: decoding's attention, and the logged row at the end of a layer's prefill. The row of logits, then of
 * weights, stays in device memory, [n_heads][stride]; decoding has room for all of it, a logged prefill row goes
 * through in pieces.
 */
#include "engine/backend/cuda/device.h"
#include "engine/backend/cuda/kernels.h"

enum { LOGIT_THREADS = 128, KEY_LANES = 8, LOGIT_KEYS = LOGIT_THREADS / KEY_LANES, ROW_THREADS = 256 };
enum { VALUE_THREADS = 128, VALUE_HEADS = 4, VALUE_SPLITS = 64 };

/*
 * Eight lanes share a key: each takes the 8-number runs that are its turn, and the group's query heads one after the
 * other. Queries wait in shared memory as float.
 */
template <class T, class Q>
__global__ void __launch_bounds__(LOGIT_THREADS)
    row_logits(float *row, size_t stride, const Q *query, size_t query_stride, tw_cuda_kv kv, tw_cuda_row_ranges ranges,
               int first, int n, float scale) {
    TW_DYNAMIC_SHARED(float, queries); /* [group][d] */
    const int g = blockIdx.y, d = kv.head_dim, part = threadIdx.x % KEY_LANES;
    for (int i = threadIdx.x; i < kv.group * d; i += LOGIT_THREADS)
        queries[i] = tw_load(query + (size_t)(g * kv.group + i / d) * query_stride + i % d);
    __syncthreads();
    for (int base = blockIdx.x * LOGIT_KEYS; base < n; base += gridDim.x * LOGIT_KEYS) { /* the same for the block */
        const int i = base + threadIdx.x / KEY_LANES, r = first + i;
        const bool there = i < n && r >= ranges.begin[g] && r < ranges.end[g];
        const T *const key = (const T *)kv.key + ((size_t)kv.offset[g] + (there ? r : 0)) * d;
        for (int h = 0; h < kv.group; h++) {
            float sum = 0;
            if (there)
                for (int j = 8 * part; j < d; j += 8 * KEY_LANES)
                    for (int k = j; k < j + 8 && k < d; k++) sum += queries[h * d + k] * tw_load(key + k);
            sum += __shfl_xor_sync(TW_FULL_WARP, sum, 1);
            sum += __shfl_xor_sync(TW_FULL_WARP, sum, 2);
            sum += __shfl_xor_sync(TW_FULL_WARP, sum, 4);
            if (part == 0 && i < n) row[(size_t)(g * kv.group + h) * stride + i] = there ? sum * scale : -INFINITY;
        }
    }
}

__global__ void __launch_bounds__(ROW_THREADS)
    row_fold(tw_cuda_row_state *state, const float *row, size_t stride, int n, int reset) {
    TW_SHARED_ARRAY(float, part, ROW_THREADS / 32);
    const float *const logits = row + blockIdx.x * stride;
    const float before = reset ? -INFINITY : state[blockIdx.x].maximum,
                sum_before = reset ? 0.0f : state[blockIdx.x].sum;
    float most = -INFINITY;
    for (int i = threadIdx.x; i < n; i += ROW_THREADS) most = fmaxf(most, logits[i]);
    most = fmaxf(tw_block_max<ROW_THREADS>(most, part), before);
    const float base = most == -INFINITY ? 0.0f : most;
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += ROW_THREADS) sum += expf(logits[i] - base);
    sum = tw_block_sum<ROW_THREADS>(sum,
                                    part); /* its barriers also part the reads of state above from the writes below */
    if (threadIdx.x == 0) {
        tw_cuda_row_state *const to = &state[blockIdx.x];
        to->sum = sum_before * expf(before - base) + sum;
        to->maximum = most;
        if (reset) {
            to->needle = to->rest = 0;
            to->best = 0;
        }
    }
}

__global__ void __launch_bounds__(ROW_THREADS)
    row_weights(tw_cuda_row_state *state, float *row, size_t stride, int group, tw_cuda_row_ranges ranges, int first,
                int n, int sums) {
    TW_SHARED_ARRAY(double, part, 2 * ROW_THREADS / 32);
    TW_SHARED_ARRAY(uint64_t, best_part, ROW_THREADS / 32);
    const int h = blockIdx.x, g = h / group, warp = threadIdx.x / 32;
    float *const weights = row + (size_t)h * stride;
    const float maximum = state[h].maximum, sum = state[h].sum;
    double needle = 0, rest = 0;
    uint64_t best = 0;
    for (int i = threadIdx.x; i < n; i += ROW_THREADS) {
        const float weight = expf(weights[i] - maximum) / sum;
        weights[i] = weight;
        const int r = first + i;
        if (!sums || r < ranges.begin[g] || r >= ranges.end[g]) continue;
        const bool in_needle = r >= ranges.needle_begin[g] && r < ranges.needle_end[g];
        if (in_needle) needle += weight;
        if (in_needle || (r >= ranges.rest_begin[g] && r < ranges.rest_end[g])) rest += weight;
        const uint64_t entry = (uint64_t)__float_as_uint(weight) << 32 | (0xffffffffu - (unsigned)r);
        best = entry > best ? entry : best;
    }
    if (!sums) return; /* the same for all */
    for (int bits = 16; bits > 0; bits >>= 1) {
        needle += __shfl_xor_sync(TW_FULL_WARP, needle, bits);
        rest += __shfl_xor_sync(TW_FULL_WARP, rest, bits);
        const uint64_t other = __shfl_xor_sync(TW_FULL_WARP, best, bits);
        best = other > best ? other : best;
    }
    if (threadIdx.x % 32 == 0) {
        part[2 * warp] = needle;
        part[2 * warp + 1] = rest;
        best_part[warp] = best;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        needle = state[h].needle;
        rest = state[h].rest;
        best = state[h].best;
        for (int w = 0; w < ROW_THREADS / 32; w++) {
            needle += part[2 * w];
            rest += part[2 * w + 1];
            best = best_part[w] > best ? best_part[w] : best;
        }
        state[h].needle = needle;
        state[h].rest = rest;
        state[h].best = best;
    }
}

/* A thread takes two neighbouring columns and every n-th row of its split, for four heads of the group. */
template <class T>
__global__ void __launch_bounds__(VALUE_THREADS)
    row_values(float *partials, const float *row, size_t stride, tw_cuda_kv kv, tw_cuda_row_ranges ranges, int n) {
    TW_SHARED_ARRAY(float, sums, VALUE_THREADS * 2 * VALUE_HEADS);
    const int split = blockIdx.x, g = blockIdx.y, first_head = blockIdx.z * VALUE_HEADS, d = kv.head_dim, pairs = d / 2;
    const int strands = VALUE_THREADS / pairs, strand = threadIdx.x / pairs, column = threadIdx.x % pairs * 2;
    const int per_split = (n + VALUE_SPLITS - 1) / VALUE_SPLITS;
    int begin = split * per_split, end = begin + per_split;
    begin = begin > ranges.begin[g] ? begin : ranges.begin[g];
    end = end < ranges.end[g] ? end : ranges.end[g];
    const int heads = kv.group - first_head < VALUE_HEADS ? kv.group - first_head : VALUE_HEADS;
    const float *const weights = row + (size_t)(g * kv.group + first_head) * stride;
    float total[VALUE_HEADS][2] = {};
    if (strand < strands)
        for (int r = begin + strand; r < end; r += strands) {
            const T *const value = (const T *)kv.value + ((size_t)kv.offset[g] + r) * d + column;
            const float left = tw_load(value), right = tw_load(value + 1);
            for (int h = 0; h < heads; h++) {
                const float weight = weights[(size_t)h * stride + r];
                total[h][0] += weight * left;
                total[h][1] += weight * right;
            }
        }
    for (int h = 0; h < VALUE_HEADS; h++) {
        sums[(threadIdx.x * VALUE_HEADS + h) * 2] = total[h][0];
        sums[(threadIdx.x * VALUE_HEADS + h) * 2 + 1] = total[h][1];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < heads * d; i += VALUE_THREADS) {
        const int h = i / d, j = i % d;
        float sum = 0;
        for (int s = 0; s < strands; s++) sum += sums[((s * pairs + j / 2) * VALUE_HEADS + h) * 2 + j % 2];
        partials[((size_t)split * kv.n_kv_heads * kv.group + g * kv.group + first_head + h) * d + j] = sum;
    }
}

__global__ void row_values_merge(float *attention, const float *partials, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0;
    for (int split = 0; split < VALUE_SPLITS; split++) sum += partials[(size_t)split * n + i];
    attention[i] = sum;
}

template <class T, class Q>
static void launch_logits(cudaStream_t stream, float *row, size_t stride, const void *query, size_t query_stride,
                          const tw_cuda_kv *kv, const tw_cuda_row_ranges *ranges, int first, int n, float scale) {
    const int blocks = (n + LOGIT_KEYS - 1) / LOGIT_KEYS;
    const dim3 grid(blocks < 256 ? blocks : 256, kv->n_kv_heads);
    TW_LAUNCH((row_logits<T, Q>), grid, LOGIT_THREADS, (size_t)kv->group * kv->head_dim * sizeof(float), stream, row,
              stride, (const Q *)query, query_stride, *kv, *ranges, first, n, scale);
}

extern "C" cudaError_t tw_cuda_row_logits(cudaStream_t stream, enum tw_cuda_precision dtype, float *row, size_t stride,
                                          const void *query, size_t query_stride, bool query_is_float,
                                          const struct tw_cuda_kv *kv, const struct tw_cuda_row_ranges *ranges,
                                          int first, int n, float scale) {
    if (dtype == TW_CUDA_F32)
        launch_logits<float, float>(stream, row, stride, query, query_stride, kv, ranges, first, n, scale);
    else if (query_is_float)
        launch_logits<tw_bf16, float>(stream, row, stride, query, query_stride, kv, ranges, first, n, scale);
    else
        launch_logits<tw_bf16, tw_bf16>(stream, row, stride, query, query_stride, kv, ranges, first, n, scale);
    return cudaGetLastError();
}

extern "C" cudaError_t tw_cuda_row_fold(cudaStream_t stream, struct tw_cuda_row_state *state, const float *row,
                                        size_t stride, int n_heads, int n, bool reset) {
    TW_LAUNCH(row_fold, n_heads, ROW_THREADS, 0, stream, state, row, stride, n, (int)reset);
    return cudaGetLastError();
}

extern "C" cudaError_t tw_cuda_row_weights(cudaStream_t stream, struct tw_cuda_row_state *state, float *row,
                                           size_t stride, const struct tw_cuda_kv *kv,
                                           const struct tw_cuda_row_ranges *ranges, int first, int n, bool sums) {
    TW_LAUNCH(row_weights, kv->group * kv->n_kv_heads, ROW_THREADS, 0, stream, state, row, stride, kv->group, *ranges,
              first, n, (int)sums);
    return cudaGetLastError();
}

extern "C" cudaError_t tw_cuda_row_values(cudaStream_t stream, enum tw_cuda_precision dtype, float *attention,
                                          float *partials, const float *row, size_t stride, const struct tw_cuda_kv *kv,
                                          const struct tw_cuda_row_ranges *ranges, int n) {
    const dim3 grid(VALUE_SPLITS, kv->n_kv_heads, (kv->group + VALUE_HEADS - 1) / VALUE_HEADS);
    const int numbers = kv->group * kv->n_kv_heads * kv->head_dim;
    if (dtype == TW_CUDA_F32)
        TW_LAUNCH(row_values<float>, grid, VALUE_THREADS, 0, stream, partials, row, stride, *kv, *ranges, n);
    else
        TW_LAUNCH(row_values<tw_bf16>, grid, VALUE_THREADS, 0, stream, partials, row, stride, *kv, *ranges, n);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
    TW_LAUNCH(row_values_merge, (numbers + 127) / 128, 128, 0, stream, attention, partials, numbers);
    return cudaGetLastError();
}
