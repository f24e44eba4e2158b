/* Device memory, streams, events and work: the runtime calls of cuda_runtime_api.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <deque>
#include <map>
#include <unordered_map>
#include <vector>

#include "tests/cudasim/control.h"
#include "tests/cudasim/internal.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

using namespace cudasim;

namespace cudasim {

void poison_guard(const void *address, size_t bytes, bool poison) {
#if defined(__SANITIZE_ADDRESS__)
    if (poison)
        __asan_poison_memory_region(address, bytes);
    else
        __asan_unpoison_memory_region(address, bytes);
#else
    (void)address, (void)bytes, (void)poison;
#endif
}

/* ---- faults ---- */

static struct {
    long fail_allocation, how_many, fail_launch, lose_device;
    size_t limit_bytes;
    int n_devices = 1, driver_missing = 0;
} plan;
static long n_allocations, n_launches, n_objects;
static size_t bytes_to_host;
static cudaError_t sticky = cudaSuccess, last_error = cudaSuccess;

static cudaError_t done(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
}
/* A lost device answers every call with the same error. */
#define ALIVE()                                                                                                        \
    do {                                                                                                               \
        if (sticky != cudaSuccess) return done(sticky);                                                                \
    } while (0)

static bool allocation_fails() {
    n_allocations++;
    if (plan.fail_allocation > 0 && --plan.fail_allocation == 0) {
        if (plan.how_many-- > 1) plan.fail_allocation = 1;
        return true;
    }
    return false;
}
bool library_allocation_fails() { return allocation_fails(); }
void count_object(int change) { n_objects += change; }
bool device_lost() { return sticky != cudaSuccess; }

/* ---- device memory: addresses are never used twice, so that a stale pointer is always found ---- */

static const size_t ARENA_BYTES = (size_t)64 << 30, ALIGNMENT = 512, POISON_BYTES = 1 << 20;
static char *arena;
static size_t arena_used;
enum Kind { DEVICE, DEVICE_ASYNC };
struct Allocation {
    size_t bytes;
    Kind kind;
    bool freed; /* by cudaFreeAsync, not yet executed */
};
static std::map<char *, Allocation> allocations;
static size_t live_bytes, pool_reserved;
static std::map<char *, size_t> pinned;

bool in_device_arena(const void *address) {
    return arena && (const char *)address >= arena && (const char *)address < arena + ARENA_BYTES;
}

static std::map<char *, Allocation>::iterator containing(const void *address) {
    auto after = allocations.upper_bound((char *)address);
    if (after == allocations.begin()) return allocations.end();
    --after;
    return (char *)address < after->first + after->second.bytes ? after : allocations.end();
}

bool is_device_range(const void *address, size_t bytes) {
    const auto found = containing(address);
    return found != allocations.end() && (char *)address + bytes <= found->first + found->second.bytes;
}

static bool is_pinned(const void *address, size_t bytes) {
    auto after = pinned.upper_bound((char *)address);
    if (after == pinned.begin()) return false;
    --after;
    return (char *)address + bytes <= after->first + after->second;
}

static size_t data_span(size_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

static char *map_allocation(size_t bytes, Kind kind) {
    if (!arena) {
        arena = (char *)mmap(nullptr, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (arena == MAP_FAILED) fail("no address space for device memory");
    }
    const size_t span = GUARD_BYTES + data_span(bytes) + GUARD_BYTES, whole = (span + 4095) / 4096 * 4096;
    if (arena_used + whole > ARENA_BYTES) fail("this process has used up the emulation's device addresses");
    char *const memory = arena + arena_used, *const data = memory + GUARD_BYTES;
    arena_used += whole;
    if (mprotect(memory, whole, PROT_READ | PROT_WRITE) != 0) return nullptr;
    memset(memory, 0xfb, GUARD_BYTES);
    /* NaN for floats of every size, -1 for whole numbers. Of what is larger than tests need, the beginning and the end.
     */
    memset(data, 0xff, std::min(bytes, POISON_BYTES));
    if (bytes > POISON_BYTES) memset(data + bytes - GUARD_BYTES, 0xff, GUARD_BYTES);
    memset(data + bytes, 0xfb, whole - GUARD_BYTES - bytes);
    allocations[data] = {bytes, kind, false};
    poison_guard(memory, GUARD_BYTES, true);
    poison_guard(data + bytes, whole - GUARD_BYTES - bytes, true);
    shadow_map(data, bytes, true);
    live_bytes += bytes;
    n_objects++;
    return data;
}

static void check_guard(char *data, size_t bytes) {
    poison_guard(data - GUARD_BYTES, GUARD_BYTES, false);
    poison_guard(data + bytes, GUARD_BYTES, false);
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        if ((unsigned char)data[(ptrdiff_t)i - GUARD_BYTES] != 0xfb)
            fail("kernel %s, or one before it, wrote in front of %zu bytes of device memory", launch_now.name, bytes);
        if ((unsigned char)data[bytes + i] != 0xfb)
            fail("kernel %s, or one before it, wrote %zu bytes beyond %zu bytes of device memory", launch_now.name, i,
                 bytes);
    }
    poison_guard(data - GUARD_BYTES, GUARD_BYTES, true);
    poison_guard(data + bytes, GUARD_BYTES, true);
}

void check_guards() {
    for (auto &allocation : allocations) check_guard(allocation.first, allocation.second.bytes);
}

static void unmap_allocation(char *data, uint32_t op) {
    const auto found = allocations.find(data);
    const size_t bytes = found->second.bytes;
    check_guard(data, bytes);
    if (op) shadow_free(data, bytes, op);
    shadow_map(data, bytes, false);
    const size_t whole = (GUARD_BYTES + data_span(bytes) + GUARD_BYTES + 4095) / 4096 * 4096;
    poison_guard(data - GUARD_BYTES, whole, false);
    madvise(data - GUARD_BYTES, whole, MADV_DONTNEED);
    mprotect(data - GUARD_BYTES, whole, PROT_NONE);
    allocations.erase(found);
    live_bytes -= bytes;
    n_objects--;
}

/* ---- streams ---- */

struct EventRecord {
    bool executed = false;
    double seconds = 0;
    Clock clock{};
};

struct Queued {
    uint32_t op = 0; /* 0: no work, only what follows */
    std::shared_ptr<EventRecord> wait, record;
    std::function<void()> run;
    bool always = false; /* even when the device is lost: memory must not leak */
};

struct Stream {
    int number;
    uint32_t counter = 0;
    Clock clock{};
    std::deque<Queued> queue;
};

static Stream *streams[MAX_STREAMS]; /* the last number is never used: the host's */
static Clock host_clock;
static std::vector<Op> ops(1);

const Op &op_of(uint32_t op) { return ops[op]; }

static void merge(Clock &into, const Clock &from) {
    for (size_t i = 0; i < into.size(); i++) into[i] = std::max(into[i], from[i]);
}

static double now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static bool can_run(const Stream *stream) {
    return stream && !stream->queue.empty() && (!stream->queue.front().wait || stream->queue.front().wait->executed);
}

/* One piece of work of any stream that may run; false when there is none. */
static bool step() {
    int able[MAX_STREAMS], n = 0;
    for (int i = 0; i < MAX_STREAMS; i++)
        if (can_run(streams[i])) able[n++] = i;
    if (n == 0) return false;
    Stream *const stream = streams[able[random_below((uint64_t)n)]];
    Queued next = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (next.run && (sticky == cudaSuccess || next.always)) next.run();
    if (next.record) {
        next.record->executed = true;
        next.record->seconds = now();
    }
    return true;
}

static void drain(const Stream *stream) {
    while (!stream->queue.empty())
        if (!step()) fail("a stream waits for an event that nothing will record");
}

static void drain_all() {
    for (Stream *stream : streams)
        if (stream) drain(stream), merge(host_clock, stream->clock);
}

static uint32_t enqueue(cudaStream_t handle, const char *name, std::function<void(uint32_t)> run) {
    Stream *const stream = (Stream *)handle;
    if (stream->queue.size() > 4096) drain(stream);
    merge(stream->clock, host_clock);
    stream->clock[(size_t)stream->number] = ++stream->counter;
    const uint32_t op = (uint32_t)ops.size();
    ops.push_back({name, stream->number, stream->counter, stream->clock});
    Queued queued;
    queued.op = op;
    queued.run = [run, op] { run(op); };
    stream->queue.push_back(std::move(queued));
    return op;
}

static bool is_stream(cudaStream_t handle) {
    for (Stream *stream : streams)
        if (stream && stream == (Stream *)handle) return true;
    return false;
}

/* The default stream waits for every other and has surprised many: it counts as a fault here. */
static void need_stream(cudaStream_t handle, const char *what) {
    if (!is_stream(handle)) fail("%s on %s", what, handle ? "a stream that is not there" : "the default stream");
}

/* Counts a piece of work; false when it is to be refused. */
static bool count_launch(cudaError_t *error) {
    n_launches++;
    if (plan.lose_device > 0 && --plan.lose_device == 0) sticky = cudaErrorECCUncorrectable;
    if (sticky != cudaSuccess) {
        *error = sticky;
        return false;
    }
    if (plan.fail_launch > 0 && --plan.fail_launch == 0) {
        *error = cudaErrorLaunchOutOfResources;
        return false;
    }
    return true;
}

bool enqueue_library(const char *name, cudaStream_t stream, std::function<void(uint32_t)> run) {
    cudaError_t error = cudaSuccess;
    need_stream(stream, name);
    if (!count_launch(&error)) return false;
    enqueue(stream, name, std::move(run));
    return true;
}

static std::unordered_map<const void *, size_t> &allowed_shared() {
    static std::unordered_map<const void *, size_t> table;
    return table;
}
void allow_shared(const void *function, size_t bytes) { allowed_shared()[function] = bytes; }

void enqueue_kernel(const char *name, const void *function, dim3 size, dim3 block, size_t shared_bytes,
                    cudaStream_t stream, std::unique_ptr<Work> work) {
    need_stream(stream, name);
    cudaError_t error = cudaSuccess;
    if (!count_launch(&error)) {
        done(error);
        return;
    }
    const auto allowed = allowed_shared().find(function);
    const size_t most = allowed == allowed_shared().end() ? 48 << 10 : allowed->second;
    if (size.x == 0 || size.y == 0 || size.z == 0 || size.x > 0x7fffffffu || size.y > 65535 || size.z > 65535 ||
        block.x == 0 || (size_t)block.x * block.y * block.z > 1024 || block.x > 1024 || block.y > 1024 ||
        block.z > 64) {
        done(cudaErrorInvalidConfiguration);
        return;
    }
    if (shared_bytes > most || most > 99 << 10) { /* the least of all devices that we build for */
        done(cudaErrorInvalidValue);
        return;
    }
    std::shared_ptr<Work> kept(std::move(work));
    enqueue(stream, name, [=](uint32_t op) { run_grid({name, op, kept.get(), shared_bytes}, size, block); });
}

} // namespace cudasim

/* ---- the runtime's calls ---- */

extern "C" {

cudaError_t cudaGetLastError(void) {
    const cudaError_t error = last_error;
    last_error = sticky;
    return error;
}

const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorECCUncorrectable: return "uncorrectable ECC error encountered";
    case cudaErrorLaunchOutOfResources: return "too many resources requested for launch";
    default: return "error";
    }
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = 0;
    if (plan.driver_missing || getenv("CUDASIM_NO_DRIVER")) return done(cudaErrorInsufficientDriver);
    if (plan.n_devices == 0) return done(cudaErrorNoDevice);
    *count = plan.n_devices;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    ALIVE();
    return device < plan.n_devices ? cudaSuccess : done(cudaErrorInvalidDevice);
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int) {
    ALIVE();
    *properties = {"emulated device", (size_t)16 << 30, 9, 0, 4};
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int) {
    ALIVE();
    *value = attribute == cudaDevAttrMultiProcessorCount      ? 4
             : attribute == cudaDevAttrComputeCapabilityMajor ? 9
             : attribute == cudaDevAttrMemoryPoolsSupported   ? 1
                                                              : 0;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    ALIVE();
    *total_bytes = plan.limit_bytes ? plan.limit_bytes : (size_t)16 << 30;
    *free_bytes = *total_bytes - std::min(live_bytes, *total_bytes);
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) {
    drain_all();
    ALIVE();
    return cudaSuccess;
}

static cudaError_t allocate(void **pointer, size_t bytes, Kind kind) {
    *pointer = nullptr;
    ALIVE();
    if (bytes == 0) return cudaSuccess;
    if (allocation_fails() || (plan.limit_bytes && live_bytes + bytes > plan.limit_bytes))
        return done(cudaErrorMemoryAllocation);
    *pointer = map_allocation(bytes, kind);
    return *pointer ? cudaSuccess : done(cudaErrorMemoryAllocation);
}

cudaError_t cudaMalloc(void **pointer, size_t bytes) { return allocate(pointer, bytes, DEVICE); }

cudaError_t cudaFree(void *pointer) {
    if (!pointer) return cudaSuccess;
    drain_all();
    const auto found = allocations.find((char *)pointer);
    if (found == allocations.end() || found->second.kind != DEVICE)
        fail("cudaFree of an address that cudaMalloc did not give");
    unmap_allocation((char *)pointer, 0);
    ALIVE();
    return cudaSuccess;
}

cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream) {
    need_stream(stream, "cudaMallocAsync");
    const cudaError_t error = allocate(pointer, bytes, DEVICE_ASYNC);
    pool_reserved = std::max(pool_reserved, live_bytes);
    return error;
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) {
    if (!pointer) return cudaSuccess;
    need_stream(stream, "cudaFreeAsync");
    const auto found = allocations.find((char *)pointer);
    if (found == allocations.end() || found->second.kind != DEVICE_ASYNC || found->second.freed)
        fail("cudaFreeAsync of an address that cudaMallocAsync did not give, or that is free already");
    found->second.freed = true;
    if (sticky != cudaSuccess) {
        unmap_allocation((char *)pointer, 0);
        return done(sticky);
    }
    enqueue(stream, "cudaFreeAsync", [=](uint32_t op) { unmap_allocation((char *)pointer, op); });
    ((Stream *)stream)->queue.back().always = true;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned) {
    *pointer = nullptr;
    ALIVE();
    if (allocation_fails()) return done(cudaErrorMemoryAllocation);
    *pointer = malloc(bytes);
    memset(*pointer, 0xff, bytes);
    pinned[(char *)*pointer] = bytes;
    n_objects++;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *pointer) {
    if (!pointer) return cudaSuccess;
    drain_all();
    if (!pinned.erase((char *)pointer)) fail("cudaFreeHost of an address that cudaHostAlloc did not give");
    free(pointer);
    n_objects--;
    ALIVE();
    return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int) {
    ALIVE();
    *pool = (cudaMemPool_t)&pool_reserved;
    return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, enum cudaMemPoolAttr, void *) {
    ALIVE();
    return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, enum cudaMemPoolAttr attribute, void *value) {
    ALIVE();
    *(uint64_t *)value = attribute == cudaMemPoolAttrReservedMemCurrent ? pool_reserved : live_bytes;
    return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) {
    ALIVE();
    pool_reserved = live_bytes;
    return cudaSuccess;
}

static void check_ends(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (to_device ? !is_device_range(to, bytes) : in_device_arena(to))
        fail("a copy of %zu bytes to an address that is not what it says", bytes);
    if (from_device ? !is_device_range(from, bytes) : in_device_arena(from))
        fail("a copy of %zu bytes from an address that is not what it says", bytes);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    need_stream(stream, "cudaMemcpyAsync");
    ALIVE();
    if (bytes == 0) return cudaSuccess;
    check_ends(to, from, bytes, kind);
    cudaError_t error = cudaSuccess;
    if (!count_launch(&error)) return done(error);
    if (kind == cudaMemcpyDeviceToHost) bytes_to_host += bytes;
    std::shared_ptr<std::vector<char>> staged;
    /* Pageable memory is read before the call returns; pinned memory when the copy's turn comes. */
    if (kind == cudaMemcpyHostToDevice && !is_pinned(from, bytes))
        staged = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + bytes);
    enqueue(stream, "cudaMemcpyAsync", [=](uint32_t op) {
        check_ends(to, from, bytes, kind);
        if (in_device_arena(from)) shadow_range(from, bytes, false, op);
        if (in_device_arena(to)) shadow_range(to, bytes, true, op);
        memcpy(to, staged ? staged->data() : from, bytes);
    });
    if (kind == cudaMemcpyDeviceToHost && !is_pinned(to, bytes)) return cudaStreamSynchronize(stream);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    need_stream(stream, "cudaMemsetAsync");
    ALIVE();
    if (bytes == 0) return cudaSuccess;
    if (!is_device_range(to, bytes)) fail("cudaMemsetAsync of %zu bytes outside an allocation", bytes);
    cudaError_t error = cudaSuccess;
    if (!count_launch(&error)) return done(error);
    enqueue(stream, "cudaMemsetAsync", [=](uint32_t op) {
        if (!is_device_range(to, bytes)) fail("cudaMemsetAsync of memory that was freed before its turn");
        shadow_range(to, bytes, true, op);
        memset(to, value, bytes);
    });
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *handle, unsigned) {
    *handle = nullptr;
    ALIVE();
    if (allocation_fails()) return done(cudaErrorMemoryAllocation);
    for (int i = 0; i < MAX_STREAMS - 1; i++) {
        if (streams[i]) continue;
        /* Numbers come again when streams go: the counters go on. */
        static uint32_t counters[MAX_STREAMS];
        Stream *const stream = new Stream();
        stream->number = i;
        stream->counter = counters[i] = std::max(counters[i], host_clock[(size_t)i]);
        streams[i] = stream;
        *handle = (cudaStream_t)stream;
        n_objects++;
        return cudaSuccess;
    }
    fail("more than %d streams at once", MAX_STREAMS - 1);
}
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    need_stream(handle, "cudaStreamDestroy");
    Stream *const stream = (Stream *)handle;
    drain(stream);
    merge(host_clock, stream->clock);
    streams[stream->number] = nullptr;
    delete stream;
    n_objects--;
    ALIVE();
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    need_stream(handle, "cudaStreamSynchronize");
    drain((Stream *)handle);
    merge(host_clock, ((Stream *)handle)->clock);
    ALIVE();
    return cudaSuccess;
}

struct Event {
    std::shared_ptr<EventRecord> record;
};
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *handle, unsigned) {
    *handle = nullptr;
    ALIVE();
    if (allocation_fails()) return done(cudaErrorMemoryAllocation);
    *handle = (cudaEvent_t) new Event();
    n_objects++;
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t handle) {
    delete (Event *)handle;
    n_objects--;
    ALIVE();
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
    need_stream(stream, "cudaEventRecord");
    ALIVE();
    auto record = std::make_shared<EventRecord>();
    merge(((Stream *)stream)->clock, host_clock);
    record->clock = ((Stream *)stream)->clock;
    ((Event *)handle)->record = record;
    Queued queued;
    queued.record = record;
    ((Stream *)stream)->queue.push_back(std::move(queued));
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned) {
    need_stream(stream, "cudaStreamWaitEvent");
    ALIVE();
    const auto &record = ((Event *)handle)->record;
    if (!record) return cudaSuccess; /* never recorded: nothing to wait for */
    merge(((Stream *)stream)->clock, record->clock);
    Queued queued;
    queued.wait = record;
    ((Stream *)stream)->queue.push_back(std::move(queued));
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t handle) {
    const auto record = ((Event *)handle)->record;
    ALIVE();
    if (random_below(2)) step(); /* time passes */
    if (!record) return cudaSuccess;
    if (!record->executed) return cudaErrorNotReady; /* no failure: nothing to be got by cudaGetLastError */
    merge(host_clock, record->clock);
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
    const auto record = ((Event *)handle)->record;
    ALIVE();
    if (!record) return cudaSuccess;
    while (!record->executed)
        if (!step()) fail("cudaEventSynchronize of an event that nothing will record");
    merge(host_clock, record->clock);
    ALIVE();
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    ALIVE();
    const auto &first = ((Event *)begin)->record, &second = ((Event *)end)->record;
    if (!first || !second || !first->executed || !second->executed) return done(cudaErrorNotReady);
    *milliseconds = (float)(1e3 * (second->seconds - first->seconds));
    return cudaSuccess;
}

/* ---- for tests ---- */

__attribute__((visibility("default"))) extern const struct cudasim_control cudasim_control;
const struct cudasim_control cudasim_control = {
    .seed = [](uint64_t seed) { random_seed(seed); },
    .fail_allocation = [](long n, long how_many) { plan.fail_allocation = n, plan.how_many = how_many; },
    .fail_launch = [](long n) { plan.fail_launch = n; },
    .lose_device =
        [](long n) {
            plan.lose_device = n;
            if (n == 0) sticky = last_error = cudaSuccess; /* a new device */
        },
    .limit_bytes = [](size_t bytes) { plan.limit_bytes = bytes; },
    .devices = [](int n, int driver_missing) { plan.n_devices = n, plan.driver_missing = driver_missing; },
    .live_objects = [] { return n_objects; },
    .live_bytes = [] { return live_bytes; },
    .allocations = [] { return n_allocations; },
    .launches = [] { return n_launches; },
    .to_host = [] { return bytes_to_host; },
};

} /* extern "C" */
