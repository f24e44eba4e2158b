/*
 * The shadow: what gcc's -fsanitize=thread calls at every access of a kernel, answered by our own checks instead of the
 * sanitizer's runtime. For every two bytes of device and shared memory it keeps who wrote them last and who has read
 * them since: the work, block, thread, and how many barriers that thread had passed.
 *
 * Two accesses of one launch, one of them a write, are in order when the same thread made them, or two threads of a
 * block with a __syncthreads between, or two lanes of a warp with a __syncwarp between; or when both are atomic.
 * Accesses of different launches are in order when streams, events or the host order the launches. Anything else is a
 * race, whether or not it went well this time.
 *
 * Kernel files are compiled with -fsanitize=thread, this file and all else without, and nothing is linked with it.
 */
#include <stdio.h>
#include <sys/mman.h>

#include <map>

#include "tests/cudasim/internal.h"

namespace cudasim {

/* How many have read since the last write, from one thread to all over the grid. */
enum Readers : uint8_t { NONE, ONE_THREAD, ONE_WARP, ONE_BLOCK, ALL };

struct Access {
    uint32_t op; /* 0: never */
    uint32_t block;
    uint16_t thread;
    uint16_t barriers;
    uint16_t warp_syncs;
    uint8_t atomic;
    uint8_t readers;
};
struct Cell {
    Access write, read;
};

/* Whole-range accesses (copies, products) are by no thread. */
static const uint32_t NO_BLOCK = 0xffffffffu;

struct Region {
    Cell *cells;
    const char *begin;
    size_t bytes;
};
static std::map<const char *, Region> regions; /* by their begin */
static const Region *recent;

static Cell *cell_of(const void *address) {
    if (recent && (const char *)address >= recent->begin && (const char *)address < recent->begin + recent->bytes)
        return &recent->cells[((const char *)address - recent->begin) / 2];
    auto after = regions.upper_bound((const char *)address);
    if (after == regions.begin()) return nullptr;
    --after;
    if ((const char *)address >= after->second.begin + after->second.bytes) return nullptr;
    recent = &after->second;
    return &recent->cells[((const char *)address - recent->begin) / 2];
}

void shadow_map(const void *address, size_t bytes, bool there) {
    const char *const begin = (const char *)address;
    recent = nullptr;
    const size_t size = (bytes + 1) / 2 * sizeof(Cell);
    if (there) {
        void *const cells =
            mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (cells == MAP_FAILED) fail("no memory for the shadow of %zu bytes", bytes);
        regions[begin] = {(Cell *)cells, begin, bytes};
    } else {
        const auto found = regions.find(begin);
        munmap(found->second.cells, size);
        regions.erase(found);
    }
}

static bool before(const Access &first, uint32_t op) {
    const Op &earlier = op_of(first.op);
    return op_of(op).after[(size_t)earlier.stream] >= earlier.at;
}

static const char *how(bool write) { return write ? "writes" : "reads"; }

/* Whether `first`, by one or more threads, is in order with the access that `current` makes now. */
static bool in_order(const Access &first, bool atomic) {
    if (first.op != launch_now.op) return before(first, launch_now.op);
    if (first.atomic && atomic) return true;
    if (first.block != grid.linear_block || first.readers == ALL) return false;
    if (first.barriers != (uint16_t)current->barriers) return true;
    if (first.readers == ONE_BLOCK) return false;
    const bool same_warp = first.thread / 32 == current->linear / 32;
    if (same_warp && first.warp_syncs != (uint16_t)current->warp_syncs) return true;
    return first.readers != ONE_WARP && first.thread == current->linear;
}

static void note_read(Access &read, bool atomic) {
    const Access mine = {launch_now.op,
                         grid.linear_block,
                         (uint16_t)current->linear,
                         (uint16_t)current->barriers,
                         (uint16_t)current->warp_syncs,
                         atomic,
                         ONE_THREAD};
    if (read.op != mine.op) {
        read = mine;
    } else if (read.block != mine.block || read.readers == ALL) {
        read.readers = ALL;
    } else if (read.barriers != mine.barriers) {
        read = mine;
    } else if (read.readers == ONE_BLOCK || read.thread / 32 != mine.thread / 32) {
        read.readers = ONE_BLOCK;
    } else if (read.warp_syncs != mine.warp_syncs) {
        read = mine;
    } else if (read.thread != mine.thread) {
        read.readers = ONE_WARP;
    }
    if (!atomic) read.atomic = 0;
}

extern "C" char __ehdr_start __attribute__((visibility("hidden"))), _end __attribute__((visibility("hidden")));

void shadow_access(const void *address, size_t bytes, bool write, bool atomic) {
    if (!current || on_stack(address)) return;
    for (uintptr_t at = (uintptr_t)address / 2 * 2; at < (uintptr_t)address + bytes; at += 2) {
        Cell *const cell = cell_of((const void *)at);
        if (!cell) {
            const char *const p = (const char *)at;
            const char *const parameters = (const char *)launch_now.work->parameters;
            if ((p >= parameters && p < parameters + launch_now.work->parameters_bytes) ||
                (p >= &__ehdr_start && p < &_end))
                return;
            fail("%s %zu bytes at %p: no live device or shared memory", how(write), bytes, address);
        }
        if (!write || atomic) {
            if (cell->write.op == 0) fail("reads %zu bytes at %p that nothing has written", bytes, address);
        }
        if (cell->write.op && !in_order(cell->write, atomic)) {
            if (cell->write.op != launch_now.op)
                fail("%s what '%s' wrote on another stream, with no event between", how(write),
                     op_of(cell->write.op).name);
            fail("race: %s what thread %u of block %u wrote, with no barrier between", how(write), cell->write.thread,
                 cell->write.block);
        }
        if (write && cell->read.op && !in_order(cell->read, atomic)) {
            if (cell->read.op != launch_now.op)
                fail("writes what '%s' reads on another stream, with no event between", op_of(cell->read.op).name);
            fail("race: writes what thread %u of block %u read, with no barrier between", cell->read.thread,
                 cell->read.block);
        }
        if (write) {
            cell->write = {launch_now.op,
                           grid.linear_block,
                           (uint16_t)current->linear,
                           (uint16_t)current->barriers,
                           (uint16_t)current->warp_syncs,
                           atomic,
                           ONE_THREAD};
            cell->read.op = 0;
        } else {
            note_read(cell->read, atomic);
        }
    }
}

void shadow_range(const void *address, size_t bytes, bool write, uint32_t op) {
    for (uintptr_t at = (uintptr_t)address / 2 * 2; at < (uintptr_t)address + bytes; at += 2) {
        Cell *const cell = cell_of((const void *)at);
        if (!cell) fail("'%s' %s outside live memory", op_of(op).name, how(write));
        if (!write && cell->write.op == 0) fail("'%s' reads memory that nothing has written", op_of(op).name);
        if (cell->write.op && cell->write.op != op && !before(cell->write, op))
            fail("'%s' %s what '%s' wrote on another stream, with no event between", op_of(op).name, how(write),
                 op_of(cell->write.op).name);
        if (write && cell->read.op && cell->read.op != op && !before(cell->read, op))
            fail("'%s' writes what '%s' reads on another stream, with no event between", op_of(op).name,
                 op_of(cell->read.op).name);
        Access &mine = write ? cell->write : cell->read;
        mine = {op, NO_BLOCK, 0, 0, 0, 0, ALL};
        if (write) cell->read.op = 0;
    }
}

void shadow_free(const void *address, size_t bytes, uint32_t op) {
    for (uintptr_t at = (uintptr_t)address / 2 * 2; at < (uintptr_t)address + bytes; at += 2) {
        Cell *const cell = cell_of((const void *)at);
        if ((cell->write.op && !before(cell->write, op)) || (cell->read.op && !before(cell->read, op)))
            fail("'%s' frees memory that another stream uses, with no event between", op_of(op).name);
    }
}

} // namespace cudasim

/* ---- the names that the compiler calls ---- */

#define ACCESS(name, bytes, write)                                                                                     \
    void __tsan_##name(void *p) { cudasim::shadow_access(p, bytes, write, false); }
#define ACCESSES(bytes)                                                                                                \
    ACCESS(read##bytes, bytes, false)                                                                                  \
    ACCESS(write##bytes, bytes, true)                                                                                  \
    ACCESS(unaligned_read##bytes, bytes, false) ACCESS(unaligned_write##bytes, bytes, true)

extern "C" {
void __tsan_init(void);
void __tsan_func_entry(void *);
void __tsan_func_exit(void);
void __tsan_vptr_update(void **, void *);
void __tsan_vptr_read(void **);
void __tsan_read_range(void *, size_t);
void __tsan_write_range(void *, size_t);
void __tsan_init(void) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void) {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_read_range(void *p, size_t n) { cudasim::shadow_access(p, n, false, false); }
void __tsan_write_range(void *p, size_t n) { cudasim::shadow_access(p, n, true, false); }
}
