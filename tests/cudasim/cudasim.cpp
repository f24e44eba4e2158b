/* Fibers, blocks, barriers and warp collectives. */
#include "tests/cudasim/cudasim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <vector>

#include "tests/cudasim/control.h"
#include "tests/cudasim/internal.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define SWITCH_BEGIN(save, bottom, bytes) __sanitizer_start_switch_fiber(save, bottom, bytes)
#define SWITCH_END(fake, bottom, bytes)   __sanitizer_finish_switch_fiber(fake, bottom, bytes)
#else
#define SWITCH_BEGIN(save, bottom, bytes) ((void)0)
#define SWITCH_END(fake, bottom, bytes)   ((void)0)
#endif

#if defined(__x86_64__)
/* Callee-saved registers only and no system call: some 20 ns, where swapcontext takes 300. */
extern "C" __attribute__((visibility("hidden"))) void cudasim_switch(void **save, void *to);
asm(".text\n.hidden cudasim_switch\n.globl cudasim_switch\n.type cudasim_switch,@function\ncudasim_switch:\n"
    " push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
    " mov %rsp,(%rdi)\n mov %rsi,%rsp\n"
    " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");
#else
#include <ucontext.h>
#endif

namespace cudasim {

Thread *current;
Grid grid;
Launch launch_now;

static uint64_t random_state = 1;
void random_seed(uint64_t seed) { random_state = seed * 2 + 1; }
uint64_t random_below(uint64_t n) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (random_state >> 11) % n;
}

void fail(const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (current)
        fprintf(stderr, "cudasim: kernel %s, block (%u,%u,%u), thread (%u,%u,%u): %s\n", launch_now.name, grid.block.x,
                grid.block.y, grid.block.z, current->index.x, current->index.y, current->index.z, text);
    else
        fprintf(stderr, "cudasim: %s\n", text);
    fflush(stderr);
    _exit(CUDASIM_EXIT);
}

/* ---- fibers ---- */

enum State { READY, AT_BARRIER, AT_COLLECTIVE, EXITED };

struct Fiber : Thread {
#if defined(__x86_64__)
    void *stack_pointer;
#else
    ucontext_t context;
#endif
    void *fake_stack;
    char *stack;
    State state;
};

/* A page that stops an overrun, the stack, and a page for the fiber itself: one mapping for all. */
static const size_t STACK_BYTES = 256 << 10, FIBER_BYTES = 4096 + STACK_BYTES + 4096, MAX_THREADS = 1024;
static char *fiber_memory;
static std::vector<Fiber *> fibers; /* grows to the largest block and is kept */
static std::vector<Fiber *> ready;
static size_t n_threads, n_at_barrier, n_exited;
#if defined(__x86_64__)
static void *main_stack_pointer;
#else
static ucontext_t main_context;
#endif
__attribute__((unused)) static void *main_fake_stack; /* these three: AddressSanitizer's */
__attribute__((unused)) static const void *main_bottom;
__attribute__((unused)) static size_t main_bytes;

struct Copy {
    void *to;
    const void *from;
};
static std::vector<Copy> later[MAX_THREADS]; /* copies on their way, by the thread in the block */

static Fiber *self() { return static_cast<Fiber *>(current); }

static void to_scheduler(bool last) {
    Fiber *const me = self();
    SWITCH_BEGIN(last ? nullptr : &me->fake_stack, main_bottom, main_bytes);
    (void)last;
#if defined(__x86_64__)
    cudasim_switch(&me->stack_pointer, main_stack_pointer);
#else
    swapcontext(&me->context, &main_context);
#endif
    SWITCH_END(me->fake_stack, nullptr, nullptr);
}

static void entry() {
    SWITCH_END(nullptr, &main_bottom, &main_bytes);
    launch_now.work->run();
    if (!later[current->linear].empty()) fail("exits with copies that it has not waited for");
    self()->state = EXITED;
    n_exited++;
    to_scheduler(true);
    abort();
}

static void resume(Fiber *fiber) {
    current = fiber;
    SWITCH_BEGIN(&main_fake_stack, fiber->stack, STACK_BYTES);
#if defined(__x86_64__)
    cudasim_switch(&main_stack_pointer, fiber->stack_pointer);
#else
    swapcontext(&main_context, &fiber->context);
#endif
    SWITCH_END(main_fake_stack, nullptr, nullptr);
    current = nullptr;
}

static void start(Fiber *fiber) {
    /* The frames that the last thread on this stack never returned from left their redzones behind. */
    poison_guard(fiber->stack, STACK_BYTES, false);
    fiber->fake_stack = nullptr;
    fiber->state = READY;
    fiber->barriers = fiber->warp_syncs = 0;
#if defined(__x86_64__)
    void **top = (void **)(fiber->stack + STACK_BYTES);
    *--top = nullptr; /* keeps the stack aligned as after a call */
    *--top = (void *)entry;
    top -= 6;
    memset(top, 0, 6 * sizeof *top);
    fiber->stack_pointer = top;
#else
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = STACK_BYTES;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, entry, 0);
#endif
    ready.push_back(fiber);
}

static Fiber *new_fiber() {
    if (!fiber_memory) {
        fiber_memory = (char *)mmap(nullptr, MAX_THREADS * FIBER_BYTES, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (fiber_memory == MAP_FAILED) fail("no memory for the stacks of threads");
    }
    char *const memory = fiber_memory + fibers.size() * FIBER_BYTES;
    mprotect(memory, 4096, PROT_NONE);
    static_assert(sizeof(Fiber) <= 4096, "a fiber fits a page");
    Fiber *const fiber = new (memory + 4096 + STACK_BYTES) Fiber();
    fiber->stack = memory + 4096;
    return fiber;
}

bool on_stack(const void *address) {
    return (const char *)address >= fiber_memory && (const char *)address < fiber_memory + MAX_THREADS * FIBER_BYTES;
}

/* ---- barriers and collectives ---- */

void sync_threads() {
    Fiber *const me = self();
    if (++n_at_barrier == n_threads) {
        n_at_barrier = 0;
        for (size_t i = 0; i < n_threads; i++) {
            fibers[i]->barriers++;
            if (fibers[i] == me) continue;
            fibers[i]->state = READY;
            ready.push_back(fibers[i]);
        }
    } else {
        me->state = AT_BARRIER;
    }
    /* The last one queues again like the others: which goes first is left to chance. */
    if (me->state == READY) ready.push_back(me);
    to_scheduler(false);
}

struct Meeting {
    const char *tag;
    unsigned mask, arrived;
    void *lanes[32];
};
static std::vector<std::vector<Meeting>> meetings; /* a warp */

void collective(const char *tag, unsigned mask, void *mine, void (*finish)(void *const lanes[32])) {
    Fiber *const me = self();
    const unsigned warp = me->linear / 32, lane = me->linear % 32;
    if (!(mask >> lane & 1)) fail("a %s whose mask %08x leaves out the lane itself", tag, mask);
    std::vector<Meeting> &open = meetings[warp];
    auto meeting = open.begin();
    for (; meeting != open.end() && meeting->mask != mask; ++meeting)
        if (meeting->mask & mask)
            fail("a %s with mask %08x while others wait at a %s with mask %08x", tag, mask, meeting->tag,
                 meeting->mask);
    if (meeting == open.end()) {
        open.push_back(Meeting{tag, mask, 0, {}});
        meeting = open.end() - 1;
    }
    if (strcmp(meeting->tag, tag) != 0) fail("a %s while other lanes wait at a %s", tag, meeting->tag);
    meeting->arrived |= 1u << lane;
    meeting->lanes[lane] = mine;
    if (meeting->arrived != mask) {
        me->state = AT_COLLECTIVE;
        to_scheduler(false);
        return;
    }
    void *lanes[32]; /* on a stack, where kernels may look */
    memcpy(lanes, meeting->lanes, sizeof lanes);
    finish(lanes);
    for (unsigned i = 0; i < 32; i++) {
        if (!(mask >> i & 1) || i == lane) continue;
        Fiber *const other = fibers[warp * 32 + i];
        other->state = READY;
        ready.push_back(other);
    }
    open.erase(meeting);
}

void sync_warp(unsigned mask) {
    collective("__syncwarp", mask, self(), [](void *const lanes[32]) {
        for (int i = 0; i < 32; i++)
            if (lanes[i]) ((Fiber *)lanes[i])->warp_syncs++;
    });
}

unsigned ballot(unsigned mask, bool predicate) {
    struct Vote {
        bool predicate;
        unsigned result;
    } vote{predicate, 0};
    collective("ballot", mask, &vote, [](void *const lanes[32]) {
        unsigned result = 0;
        for (int i = 0; i < 32; i++)
            if (lanes[i] && ((Vote *)lanes[i])->predicate) result |= 1u << i;
        for (int i = 0; i < 32; i++)
            if (lanes[i]) ((Vote *)lanes[i])->result = result;
    });
    return vote.result;
}

static float from_bf16(unsigned bits) {
    const uint32_t wide = bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/*
 * PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type": with g = lane / 4 and t = lane % 4, register i
 * of A holds row g + 8 (i % 2), columns 2t, 2t + 1 (+ 8 from i = 2 on); register i of B holds rows 2t, 2t + 1 (+ 8 i)
 * of column g; accumulator i holds row g + 8 (i / 2), column 2t + i % 2.
 */
void mma_m16n8k16(float d[4], const unsigned a[4], const unsigned b[2]) {
    struct Fragments {
        float *d;
        const unsigned *a, *b;
    } mine{d, a, b};
    collective("mma", 0xffffffffu, &mine, [](void *const lanes[32]) {
        float left[16][16], right[16][8];
        for (int lane = 0; lane < 32; lane++) {
            const Fragments &f = *(const Fragments *)lanes[lane];
            const int g = lane / 4, t = lane % 4;
            for (int i = 0; i < 4; i++)
                for (int half = 0; half < 2; half++)
                    left[g + i % 2 * 8][2 * t + half + i / 2 * 8] = from_bf16(half ? f.a[i] >> 16 : f.a[i] & 0xffff);
            for (int i = 0; i < 2; i++)
                for (int half = 0; half < 2; half++)
                    right[2 * t + half + i * 8][g] = from_bf16(half ? f.b[i] >> 16 : f.b[i] & 0xffff);
        }
        float sum[16][8] = {};
        for (int r = 0; r < 16; r++)
            for (int k = 0; k < 16; k++)
                for (int c = 0; c < 8; c++) sum[r][c] += left[r][k] * right[k][c];
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++)
                ((Fragments *)lanes[lane])->d[i] += sum[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    });
}

/*
 * PTX ISA, ldmatrix: lane 8 m + r gives the address of row r of 8x8 matrix m; register m of a lane gets two neighbours
 * of row lane / 4, columns 2 (lane % 4), or, transposed, two neighbours of column lane / 4.
 */
void ldmatrix_x4(unsigned r[4], const void *row, bool transposed) {
    if ((uintptr_t)row % 16 != 0) fail("ldmatrix reads a row that is not on 16 bytes");
    shadow_access(row, 16, false, false);
    struct Fragment {
        unsigned *r;
        const void *row;
        bool transposed;
    } mine{r, row, transposed};
    collective(transposed ? "ldmatrix.trans" : "ldmatrix", 0xffffffffu, &mine, [](void *const lanes[32]) {
        for (int m = 0; m < 4; m++) {
            uint16_t matrix[8][8];
            for (int i = 0; i < 8; i++) memcpy(matrix[i], ((Fragment *)lanes[8 * m + i])->row, 16);
            for (int lane = 0; lane < 32; lane++) {
                const int g = lane / 4, t = lane % 4 * 2;
                const Fragment &f = *(const Fragment *)lanes[lane];
                f.r[m] = f.transposed ? matrix[t][g] | (unsigned)matrix[t + 1][g] << 16
                                      : matrix[g][t] | (unsigned)matrix[g][t + 1] << 16;
            }
        }
    });
}

void copy16(void *to, const void *from) {
    if ((uintptr_t)to % 16 != 0 || (uintptr_t)from % 16 != 0) fail("a copy of 16 bytes that is not on 16 bytes");
    shadow_access(from, 16, false, false);
    shadow_access(to, 16, true, false);
    memcpy(to, from, 16);
}

void copy16_later(void *to, const void *from) { later[current->linear].push_back({to, from}); }

void copies_wait() {
    for (const Copy &copy : later[current->linear]) copy16(copy.to, copy.from);
    later[current->linear].clear();
}

/* ---- shared memory: one block of exact size an array, guard zones on both sides ---- */

struct Shared {
    const void *key;
    char *memory; /* guard, data, guard */
    size_t bytes, alignment;
};
static std::vector<Shared> shared;
static const char dynamic_key = 0;

void *shared_array(const void *key, size_t bytes, size_t alignment) {
    for (const Shared &array : shared)
        if (array.key == key) return array.memory + GUARD_BYTES;
    size_t total = bytes;
    for (const Shared &array : shared)
        if (array.key != &dynamic_key) total += array.bytes;
    if (key != &dynamic_key && total > 48 << 10)
        fail("static shared arrays of %zu bytes: no device has more than 49152", total);
    void *memory = nullptr;
    /* Data that must end at an odd byte begins on its alignment: the guard behind it begins at once. */
    if (posix_memalign(&memory, 128, GUARD_BYTES + bytes + GUARD_BYTES) != 0) fail("no memory for a shared array");
    char *const data = (char *)memory + GUARD_BYTES;
    memset(memory, 0xfb, GUARD_BYTES);
    memset(data, 0xff, bytes);
    memset(data + bytes, 0xfb, GUARD_BYTES);
    if ((uintptr_t)data % alignment != 0) fail("a shared array wants alignment %zu", alignment);
    shared.push_back({key, (char *)memory, bytes, alignment});
    shadow_map(data, bytes, true);
    poison_guard(memory, GUARD_BYTES, true);
    poison_guard(data + bytes, GUARD_BYTES, true);
    return data;
}

void *dynamic_shared() {
    if (launch_now.shared_bytes == 0) fail("dynamic shared memory in a launch that asked for none");
    return shared_array(&dynamic_key, launch_now.shared_bytes, 16);
}

static void release_shared() {
    for (const Shared &array : shared) {
        char *const data = array.memory + GUARD_BYTES;
        poison_guard(array.memory, GUARD_BYTES, false);
        poison_guard(data + array.bytes, GUARD_BYTES, false);
        for (size_t i = 0; i < GUARD_BYTES; i++)
            if ((unsigned char)array.memory[i] != 0xfb || (unsigned char)data[array.bytes + i] != 0xfb)
                fail("kernel %s wrote outside a shared array of %zu bytes", launch_now.name, array.bytes);
        shadow_map(data, array.bytes, false);
        free(array.memory);
    }
    shared.clear();
}

/* ---- blocks ---- */

static void run_block() {
    ready.clear();
    n_at_barrier = n_exited = 0;
    for (std::vector<Meeting> &open : meetings) open.clear();
    for (size_t i = 0; i < n_threads; i++) start(fibers[i]);
    while (n_exited < n_threads) {
        if (ready.empty()) {
            size_t at_barrier = 0, at_collective = 0;
            const char *tag = "";
            for (size_t i = 0; i < n_threads; i++) {
                at_barrier += fibers[i]->state == AT_BARRIER;
                at_collective += fibers[i]->state == AT_COLLECTIVE;
            }
            for (const std::vector<Meeting> &open : meetings)
                if (!open.empty()) tag = open.front().tag;
            fail(
                "kernel %s, block (%u,%u,%u) is stuck: of %zu threads %zu wait at __syncthreads, %zu at a collective (%s), %zu have "
                "exited",
                launch_now.name, grid.block.x, grid.block.y, grid.block.z, n_threads, at_barrier, at_collective, tag,
                n_exited);
        }
        const size_t pick = random_below(ready.size());
        Fiber *const next = ready[pick];
        ready[pick] = ready.back();
        ready.pop_back();
        resume(next);
    }
    release_shared();
}

void run_grid(const Launch &launch, dim3 size, dim3 block) {
    launch_now = launch;
    grid.size = size;
    grid.block_size = block;
    n_threads = (size_t)block.x * block.y * block.z;
    while (fibers.size() < n_threads) fibers.push_back(new_fiber());
    meetings.resize((fibers.size() + 31) / 32);
    for (size_t i = 0; i < n_threads; i++) {
        fibers[i]->linear = (unsigned)i;
        fibers[i]->index =
            dim3((unsigned)i % block.x, (unsigned)i / block.x % block.y, (unsigned)i / block.x / block.y);
    }
    std::vector<unsigned> order((size_t)size.x * size.y * size.z);
    for (size_t i = 0; i < order.size(); i++) order[i] = (unsigned)i;
    for (size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[random_below(i)]);
    for (const unsigned q : order) {
        grid.linear_block = q;
        grid.block = dim3(q % size.x, q / size.x % size.y, q / size.x / size.y);
        run_block();
    }
}

} // namespace cudasim
