/*
 * The log's top-k and the selectors', on the device. A weight and its row make one 64-bit entry that orders as the log
 * does: heavier first, of equals the lower row; no two entries are equal, so selecting and sorting have one answer
 * whatever runs first.
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
 * them; `list` may be shared or device memory. histogram [BINS] and cells [4] are shared. Returns the k-th greatest,
 * what is less than every entry where there are fewer, and more than any where k is 0.
 */
template <class Entry>
static __device__ __forceinline__ uint64_t select_top(uint64_t *list, int k, int n, Entry entry, int *histogram,
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
    return prefix;
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

/* ---- the selectors' ranking: scores never leave the device, only what is kept does ---- */

/*
 * A score and where it stands make an entry that orders as the selectors do: higher first, of equals the lower index.
 * -0 is 0, and no number is the least of all.
 */
static __device__ __forceinline__ uint64_t score_entry(float score, unsigned index) {
    const unsigned bits = __float_as_uint(isnan(score) ? -INFINITY : score + 0.0f);
    return (uint64_t)(bits >> 31 ? ~bits : bits | 0x80000000u) << 32 | (0xffffffffu - index);
}

/* pooled [n_kv_heads][n] of rows [first, first + n) from raw scores [n_kv_heads][stride] of rows from `from` on. */
__global__ void pool_scores(float *pooled, const float *raw, size_t stride, int from, int first, int n,
                            tw_cuda_lists lists, int kernel, int maximum) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, g = blockIdx.y, row = first + i, n_scored = lists.n_scored[g];
    if (i >= n) return;
    const float *const score = raw + (size_t)g * stride;
    const int half = kernel / 2, begin = row > half ? row - half : 0;
    const int end = row + half + 1 < n_scored ? row + half + 1 : n_scored;
    float result = maximum ? -INFINITY : 0.0f;
    for (int r = begin; r < end; r++) result = maximum ? fmaxf(result, score[r - from]) : result + score[r - from];
    if (!maximum) result = result / (float)kernel;
    pooled[(size_t)g * n + i] = row < n_scored ? result : -INFINITY;
}

/*
 * Means of chunks of rows over all heads, added up in the order of rows, then heads. A chunk that has begun in the
 * piece before goes on from carry[turn]; one that is not over leaves its sum in the other.
 */
__global__ void chunk_means(float *mean, double *carry, int turn, const float *pooled, int n_kv_heads, int first, int n,
                            int n_scored, int chunk) {
    const int64_t c = first / chunk + (int64_t)blockIdx.x * blockDim.x + threadIdx.x, begin = c * chunk;
    if (begin >= first + n) return;
    const int64_t end = begin + chunk < n_scored ? begin + chunk : n_scored;
    double sum = begin < first ? carry[turn] : 0.0;
    for (int64_t row = begin < first ? first : begin; row < end && row < first + n; row++)
        for (int g = 0; g < n_kv_heads; g++) sum += pooled[(size_t)g * n + (row - first)];
    if (end <= first + n)
        mean[c - first / chunk] = (float)(sum / (double)(end - begin));
    else
        carry[1 - turn] = sum;
}

/*
 * Each head's running list `from` and the scores of rows [first, first + n) become the list `to`, in any order.
 * least[g]: what is less is not among the head's. `strands`: how far apart the indices of neighbouring rows are.
 */
__global__ void __launch_bounds__(SELECT_THREADS)
    rank_own(uint64_t *to, const uint64_t *from, uint64_t *least, const float *score, size_t stride,
             tw_cuda_lists lists, int first, int n, int strands, int reset) {
    TW_SHARED_ARRAY(int, histogram, BINS);
    TW_SHARED_ARRAY(unsigned, cells, 4);
    const int g = blockIdx.x, k = lists.k[g], n_running = reset ? 0 : k, n_scored = lists.n_scored[g];
    const uint64_t *const running = from + lists.offset[g];
    const float *const scores = score + (size_t)g * stride;
    const uint64_t bound = select_top(
        to + lists.offset[g], k, n_running + n,
        [=](int i) {
            if (i < n_running) return running[i];
            const int row = first + i - n_running;
            return row < n_scored ? score_entry(scores[i - n_running], (unsigned)row * strands + g) : (uint64_t)0;
        },
        histogram, cells);
    if (threadIdx.x == 0) least[g] = bound;
}

/* The best k of a head's rows [first, first + n) that are not among the head's own, for the list that all share. */
__global__ void __launch_bounds__(SELECT_THREADS)
    rank_rest(uint64_t *candidates, int k, const uint64_t *least, const float *score, size_t stride,
              tw_cuda_lists lists, int first, int n, int strands) {
    TW_SHARED_ARRAY(int, histogram, BINS);
    TW_SHARED_ARRAY(unsigned, cells, 4);
    const int g = blockIdx.x, n_scored = lists.n_scored[g];
    const uint64_t bound = least[g];
    const float *const scores = score + (size_t)g * stride;
    select_top(
        candidates + (size_t)g * k, k, n,
        [=](int i) {
            const uint64_t e = first + i < n_scored ? score_entry(scores[i], (unsigned)(first + i) * strands + g) : 0;
            return e < bound ? e : (uint64_t)0;
        },
        histogram, cells);
}

__global__ void __launch_bounds__(SELECT_THREADS)
    rank_shared(uint64_t *to, const uint64_t *from, int k, const uint64_t *candidates, int n_candidates, int reset) {
    TW_SHARED_ARRAY(int, histogram, BINS);
    TW_SHARED_ARRAY(unsigned, cells, 4);
    const int n_running = reset ? 0 : k;
    select_top(
        to, k, n_running + n_candidates, [=](int i) { return i < n_running ? from[i] : candidates[i - n_running]; },
        histogram, cells);
}

extern "C" cudaError_t tw_cuda_pool_scores(cudaStream_t stream, float *pooled, const float *raw, size_t stride,
                                           int from, int first, int n, const struct tw_cuda_lists *lists, int kernel,
                                           bool maximum) {
    TW_LAUNCH(pool_scores, dim3((n + 127) / 128, lists->n_heads), 128, 0, stream, pooled, raw, stride, from, first, n,
              *lists, kernel, (int)maximum);
    return cudaGetLastError();
}

extern "C" cudaError_t tw_cuda_chunk_means(cudaStream_t stream, float *mean, double *carry, int turn,
                                           const float *pooled, int n_kv_heads, int first, int n, int n_scored,
                                           int chunk) {
    const int n_chunks = (first + n - 1) / chunk - first / chunk + 1;
    TW_LAUNCH(chunk_means, (n_chunks + 127) / 128, 128, 0, stream, mean, carry, turn, pooled, n_kv_heads, first, n,
              n_scored, chunk);
    return cudaGetLastError();
}

extern "C" cudaError_t tw_cuda_rank(cudaStream_t stream, uint64_t *to, const uint64_t *from, uint64_t *least,
                                    const float *score, size_t stride, const struct tw_cuda_lists *lists, int first,
                                    int n, bool reset) {
    TW_LAUNCH(rank_own, lists->n_heads, SELECT_THREADS, 0, stream, to, from, least, score, stride, *lists, first, n,
              lists->n_heads, (int)reset);
    return cudaGetLastError();
}

extern "C" cudaError_t tw_cuda_rank_rest(cudaStream_t stream, uint64_t *to, const uint64_t *from, int k,
                                         uint64_t *candidates, const uint64_t *least, const float *score, size_t stride,
                                         const struct tw_cuda_lists *lists, int first, int n, bool reset) {
    const int of_piece = k < n ? k : n;
    TW_LAUNCH(rank_rest, lists->n_heads, SELECT_THREADS, 0, stream, candidates, of_piece, least, score, stride, *lists,
              first, n, lists->n_heads);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
    TW_LAUNCH(rank_shared, 1, SELECT_THREADS, 0, stream, to, from, k, candidates, of_piece * lists->n_heads,
              (int)reset);
    return cudaGetLastError();
}
