/*
 * The log's top-k, on the device. A weight and its row make one 64-bit entry that orders as the log does: heavier
 * first, of equals the lower row; no two entries are equal, so selecting and sorting have one answer whatever runs
 * first.
 *
 * Each head's rows are cut into ranges; a block selects the top k of a range by radix (eight passes of eight bits over
 * a histogram in shared memory); a last block selects from the ranges' lists and the running list, and sorts.
 */
#include "engine/backend/cuda/device.h"
#include "engine/backend/cuda/kernels.h"

enum { SELECT_THREADS = 256, BINS = 256 };

static __device__ __forceinline__ uint64_t row_entry(float weight, int row) {
    return (uint64_t)__float_as_uint(weight) << 32 | (0xffffffffu - (unsigned)row);
}

/*
 * Writes the k greatest of the n entries that entry(i) gives (0: none there) to `list`, in any order, and 0 behind
 * them; `list` may be shared or device memory. histogram [BINS] and cells [4] are shared.
 */
template <class Entry>
static __device__ __forceinline__ void select_top(uint64_t *list, int k, int n, Entry entry, int *histogram,
                                                  unsigned *cells) {
    uint64_t prefix = 0; /* the bits of the k-th greatest that are known, from the top */
    int left = k;        /* how many of those that share them are wanted */
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (int b = threadIdx.x; b < BINS; b += SELECT_THREADS) histogram[b] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += SELECT_THREADS) {
            const uint64_t e = entry(i);
            if (e == 0 || (shift < 56 && e >> (shift + 8) != prefix)) continue;
            atomicAdd(&histogram[e >> shift & 255], 1);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int b = BINS - 1, wanted = left;
            while (b > 0 && histogram[b] < wanted) wanted -= histogram[b--];
            cells[0] = (unsigned)b;
            cells[1] = (unsigned)wanted;
        }
        __syncthreads();
        prefix = prefix << 8 | cells[0];
        left = (int)cells[1];
        __syncthreads();
    }
    /* `prefix` is the k-th greatest itself; where there are fewer than k entries it is 0 or less than all. */
    if (threadIdx.x == 0) cells[2] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += SELECT_THREADS) {
        const uint64_t e = entry(i);
        if (e == 0 || e < prefix) continue;
        list[atomicAdd(&cells[2], 1u)] = e;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < k; i += SELECT_THREADS)
        if (i >= (int)cells[2]) list[i] = 0;
    __syncthreads();
}

__global__ void __launch_bounds__(SELECT_THREADS)
    top_of_range(uint64_t *candidates, size_t candidates_stride, int k, const float *row, size_t stride, int group,
                 tw_cuda_row_ranges ranges, int first, int n, int per_range) {
    TW_SHARED_ARRAY(int, histogram, BINS);
    TW_SHARED_ARRAY(unsigned, cells, 4);
    const int h = blockIdx.y, g = h / group, begin = blockIdx.x * per_range;
    const int count = n - begin < per_range ? n - begin : per_range;
    const float *const weights = row + (size_t)h * stride + begin;
    uint64_t *const list = candidates + (size_t)h * candidates_stride + (size_t)blockIdx.x * k;
    select_top(
        list, k, count,
        [=](int i) {
            const int r = first + begin + i;
            return r >= ranges.begin[g] && r < ranges.end[g] ? row_entry(weights[i], r) : (uint64_t)0;
        },
        histogram, cells);
}

__global__ void __launch_bounds__(SELECT_THREADS)
    top_merge(uint64_t *best, const uint64_t *candidates, size_t candidates_stride, int k, int n_candidates,
              int reset) {
    TW_SHARED_ARRAY(int, histogram, BINS);
    TW_SHARED_ARRAY(unsigned, cells, 4);
    TW_DYNAMIC_SHARED(uint64_t, list); /* [k] */
    const int h = blockIdx.x, n_running = reset ? 0 : k;
    uint64_t *const running = best + (size_t)h * k;
    const uint64_t *const found = candidates + (size_t)h * candidates_stride;
    select_top(
        list, k, n_running + n_candidates, [=](int i) { return i < n_running ? running[i] : found[i - n_running]; },
        histogram, cells);
    /* An entry's place is the number of greater ones; empty places stay behind in any order. */
    for (int i = threadIdx.x; i < k; i += SELECT_THREADS) {
        int place = 0;
        for (int j = 0; j < k; j++) place += list[j] > list[i] || (list[j] == list[i] && j < i);
        running[place] = list[i];
    }
}

extern "C" cudaError_t tw_cuda_top(cudaStream_t stream, uint64_t *best, uint64_t *candidates, int top_k,
                                   const float *row, size_t stride, const struct tw_cuda_kv *kv,
                                   const struct tw_cuda_row_ranges *ranges, int first, int n, int piece, bool reset) {
    const int n_heads = kv->group * kv->n_kv_heads;
    const size_t candidates_stride = (size_t)piece + top_k;
    int n_ranges = piece / top_k > 1 ? piece / top_k : 1; /* their lists fit the candidates */
    const int useful = (n + 1023) / 1024;
    n_ranges = n_ranges < useful ? n_ranges : useful;
    const int per_range = (n + n_ranges - 1) / n_ranges;
    n_ranges = (n + per_range - 1) / per_range;
    TW_LAUNCH(top_of_range, dim3(n_ranges, n_heads), SELECT_THREADS, 0, stream, candidates, candidates_stride, top_k,
              row, stride, kv->group, *ranges, first, n, per_range);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
    TW_LAUNCH(top_merge, n_heads, SELECT_THREADS, (size_t)top_k * sizeof(uint64_t), stream, best, candidates,
              candidates_stride, top_k, n_ranges * top_k, (int)reset);
    return cudaGetLastError();
}
