/*
 * An emulation of the CUDA execution model on the CPU, for running kernels where there is no GPU and for finding faults
 * that a GPU would hide. Kernel files are compiled as C++ against the headers in include/.
 *
 * A thread is a fiber. Threads of a block run one at a time, in a seeded random order, each until it meets a barrier or
 * a warp collective; blocks run one after the other in random order. Work is queued on streams and run when the host
 * waits for it, in a random order that streams and events allow: reading a result too early, or changing an input too
 * early, gives wrong numbers here, not only on a bad day.
 *
 * Found and reported (one line on stderr, exit status CUDASIM_EXIT): threads that miss a barrier; lanes that miss a
 * collective, or meet at different ones; out-of-bounds writes (guard zones, and AddressSanitizer where compiled in);
 * launches that no device would accept; calls with wrong addresses. The shadow build (shadow.cpp) sees every access of
 * a kernel and reports data races, uninitialised reads, any access outside a live allocation, and work on one stream
 * that uses what another stream wrote with no event between.
 */
#ifndef TW_TESTS_CUDASIM_CUDASIM_H
#define TW_TESTS_CUDASIM_CUDASIM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <memory>
#include <tuple>
#include <utility>

#include "cuda_runtime_api.h"

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace cudasim {

struct Thread {
    dim3 index;
    unsigned linear;               /* in the block */
    unsigned barriers, warp_syncs; /* passed so far: when an access happened */
};
struct Grid {
    dim3 size, block_size, block;
    unsigned linear_block;
};

extern Thread *current; /* NULL outside kernels */
extern Grid grid;

/* Prints "cudasim: ..." with the kernel, block and thread, and ends the process. */
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

void sync_threads();
void sync_warp(unsigned mask);

/*
 * Lanes in `mask` meet: each leaves `mine`; the last to come runs `finish` on what all left (NULL where a lane is not
 * in the mask), then all go on. `tag` tells collectives apart.
 */
void collective(const char *tag, unsigned mask, void *mine, void (*finish)(void *const lanes[32]));
unsigned ballot(unsigned mask, bool predicate);

template <class T, class Source> T exchange(unsigned mask, T value, Source source) {
    struct Slot {
        T value, result;
        int source;
    } slot{value, value, source((int)(current->linear % 32))};
    if (!(mask >> slot.source & 1)) fail("a shuffle reads lane %d, which is not in the mask %08x", slot.source, mask);
    collective("shuffle", mask, &slot, [](void *const lanes[32]) {
        for (int i = 0; i < 32; i++)
            if (lanes[i]) ((Slot *)lanes[i])->result = ((Slot *)lanes[((Slot *)lanes[i])->source])->value;
    });
    return slot.result;
}

/* Hooks of the shadow build; nothing otherwise. */
void shadow_access(const void *address, size_t bytes, bool write, bool atomic);

template <class T, class Change> __attribute__((no_sanitize("thread"))) T atomic(T *address, Change change) {
    shadow_access(address, sizeof *address, true, true);
    const T old = *address;
    *address = change(old);
    return old;
}

/* Shared memory of the running block: exact size between guard zones, filled with NaN, gone with the block. */
void *shared_array(const void *key, size_t bytes, size_t alignment);
void *dynamic_shared();

/* mma.sync.m16n8k16, bf16 in, float accumulation, and ldmatrix, with the lane layouts of the PTX ISA. */
void mma_m16n8k16(float d[4], const unsigned a[4], const unsigned b[2]);
void ldmatrix_x4(unsigned r[4], const void *row, bool transposed);
void copy16(void *to, const void *from); /* both aligned to 16 */
/* The same, done when the thread waits for its copies and not before. */
void copy16_later(void *to, const void *from);
void copies_wait();

/* ---- work ---- */

struct Work {
    virtual ~Work() {}
    virtual void run() = 0;
    const void *parameters = nullptr; /* what kernels may read beside device memory */
    size_t parameters_bytes = 0;
};
void enqueue_kernel(const char *name, const void *function, dim3 grid, dim3 block, size_t shared_bytes,
                    cudaStream_t stream, std::unique_ptr<Work> work);
void allow_shared(const void *function, size_t bytes);

template <class... P> struct KernelWork : Work {
    void (*kernel)(P...);
    std::tuple<P...> values;
    template <class... A> KernelWork(void (*kernel)(P...), A &&...a) : kernel(kernel), values(std::forward<A>(a)...) {
        parameters = this;
        parameters_bytes = sizeof *this;
    }
    void run() override { std::apply(kernel, values); }
};

/* Arguments are converted and kept now, as a launch does. */
template <class... P, class... A>
void launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            A &&...a) {
    enqueue_kernel(name, (const void *)kernel, grid, block, shared_bytes, stream,
                   std::unique_ptr<Work>(new KernelWork<P...>(kernel, std::forward<A>(a)...)));
}

} // namespace cudasim

#endif
