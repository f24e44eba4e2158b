/* Shared by the files of the emulation. */
#ifndef TW_TESTS_CUDASIM_INTERNAL_H
#define TW_TESTS_CUDASIM_INTERNAL_H

#include <array>

#include "tests/cudasim/cudasim.h"

namespace cudasim {

uint64_t random_below(uint64_t n); /* the emulation's own seeded generator */
void random_seed(uint64_t seed);

/* A launch that is running, for messages and for the shadow. */
struct Launch {
    const char *name;
    uint32_t op; /* numbers from 1, in the order of enqueueing */
    Work *work;
    size_t shared_bytes; /* dynamic */
};
extern Launch launch_now;
/* Runs all blocks. */
void run_grid(const Launch &launch, dim3 size, dim3 block);
/* Stacks and indices of threads: their own, not memory that they share. */
bool on_stack(const void *address);

/* ---- what happened before what: one counter a stream, the last for the host ---- */

enum { MAX_STREAMS = 16 };
typedef std::array<uint32_t, MAX_STREAMS> Clock;
struct Op {
    const char *name;
    int stream;
    uint32_t at; /* the stream's counter */
    Clock after; /* everything at or before these counters happened before */
};
const Op &op_of(uint32_t op);

/* ---- memory ---- */

enum { GUARD_BYTES = 512 };
/* Marks memory as there (uninitialised) or gone; whole ranges read or written by an op that is no kernel. */
void shadow_map(const void *address, size_t bytes, bool there);
void shadow_range(const void *address, size_t bytes, bool write, uint32_t op);
/* Gone now by `op`: every earlier access must have happened before. */
void shadow_free(const void *address, size_t bytes, uint32_t op);
bool in_device_arena(const void *address);
/* Whether all of it lies in one live allocation. */
bool is_device_range(const void *address, size_t bytes);
/* Tells AddressSanitizer, where it is compiled in. */
void poison_guard(const void *address, size_t bytes, bool poison);
/* Guard zones of every live allocation are whole; else fails. */
void check_guards();

} // namespace cudasim

#endif
