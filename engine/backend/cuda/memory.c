/* The two allocators behind the accountant, and what NVML says. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "engine/backend/cuda/cuda.h"

static void *take(void *context, size_t bytes) {
    (void)context;
    void *data = NULL;
    if (cudaMalloc(&data, bytes) == cudaSuccess) return data;
    (void)cudaGetLastError(); /* or the next launch's check would find it */
    return NULL;
}

static void give(void *context, void *data) {
    (void)context;
    (void)cudaFree(data);
}

tw_status tw_cuda_memory_create(struct tw_cuda_memory **memory, bool async, cudaStream_t stream,
                                const char *device_name, struct tw_error *err) {
    struct tw_cuda_memory *const m = calloc(1, sizeof *m);
    *memory = NULL;
    if (!m) return TW_FAIL(err, TW_E_MEMORY, "out of memory: backend 'cuda'");
    m->async = async;
    m->stream = stream;
    m->pool = (struct tw_cuda_pool){.take = take, .give = give};
    strncpy(m->device_name, device_name, sizeof m->device_name - 1);
    if (async) {
        int supported = 0;
        uint64_t keep = UINT64_MAX; /* the pool keeps what it has between prompts */
        if (cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, 0) != cudaSuccess || !supported ||
            cudaDeviceGetDefaultMemPool(&m->system_pool, 0) != cudaSuccess ||
            cudaMemPoolSetAttribute(m->system_pool, cudaMemPoolAttrReleaseThreshold, &keep) != cudaSuccess) {
            free(m);
            return TW_FAIL(err, TW_E_DEVICE, "device '%s' has no stream-ordered allocator: use '--allocator native'",
                           device_name);
        }
    }
    *memory = m;
    return TW_OK;
}

void tw_cuda_memory_free(struct tw_cuda_memory *memory) {
    if (!memory) return;
    tw_cuda_pool_trim(&memory->pool);
    if (memory->async && memory->system_pool) (void)cudaMemPoolTrimTo(memory->system_pool, 0);
    free(memory);
}

static tw_status allocate(void *context, void **data, size_t bytes, const char *what, struct tw_error *err) {
    struct tw_cuda_memory *const memory = context;
    *data = NULL;
    if (memory->async) {
        const cudaError_t error = cudaMallocAsync(data, tw_max_size(bytes, 1), memory->stream);
        if (error != cudaSuccess) {
            *data = NULL;
            (void)cudaGetLastError();
            if (error != cudaErrorMemoryAllocation)
                return TW_FAIL(err, TW_E_DEVICE, "device '%s': '%s' cannot be allocated: %s", memory->device_name, what,
                               cudaGetErrorString(error));
        }
    } else {
        *data = tw_cuda_pool_allocate(&memory->pool, bytes);
    }
    if (*data) {
        memory->allocated += bytes;
        return TW_OK;
    }
    size_t free_bytes = 0, total_bytes = 0;
    const cudaError_t error = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (error != cudaSuccess)
        return TW_FAIL(err, TW_E_DEVICE, "device '%s': '%s' cannot be allocated: %s", memory->device_name, what,
                       cudaGetErrorString(error));
    return TW_FAIL(err, TW_E_MEMORY,
                   "device '%s' is out of memory: '%s' needs %.1f MiB, %.1f of %.1f MiB are free: a smaller --chunk or "
                   "--budget, or '--weights stream', needs less",
                   memory->device_name, what, (double)bytes / 0x1p20, (double)free_bytes / 0x1p20,
                   (double)total_bytes / 0x1p20);
}

static void release(void *context, void *data, size_t bytes) {
    struct tw_cuda_memory *const memory = context;
    memory->allocated -= bytes;
    if (memory->async)
        (void)cudaFreeAsync(data, memory->stream);
    else
        tw_cuda_pool_free(&memory->pool, data);
}

static size_t system_pool_bytes(const struct tw_cuda_memory *memory, enum cudaMemPoolAttr attribute) {
    uint64_t bytes = 0;
    if (cudaMemPoolGetAttribute(memory->system_pool, attribute, &bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        return memory->allocated;
    }
    return (size_t)bytes;
}

static size_t reserved(void *context) {
    const struct tw_cuda_memory *const memory = context;
    if (!memory) return 0;
    return memory->async ? system_pool_bytes(memory, cudaMemPoolAttrReservedMemCurrent) : memory->pool.reserved;
}

static void inspect(void *context, struct tw_device_memory *out) {
    const struct tw_cuda_memory *const memory = context;
    memset(out, 0, sizeof *out);
    out->process_bytes = tw_cuda_process_bytes(&out->process_missing);
    if (!memory) return;
    out->allocated = memory->allocated;
    out->reserved = reserved(context);
    if (memory->async) return; /* the driver tells neither splits nor retries */
    out->has_splits = true;
    out->inactive_splits = tw_cuda_pool_splits(&memory->pool);
    out->largest_inactive_split = tw_cuda_pool_largest_split(&memory->pool);
    out->retries = memory->pool.retries;
}

struct tw_memory_source tw_cuda_memory_source(struct tw_cuda_memory *memory) {
    return (struct tw_memory_source){.context = memory,
                                     .allocate = allocate,
                                     .release = release,
                                     .reserved = reserved,
                                     .device = true,
                                     .inspect = inspect};
}

/* ---- NVML, loaded when it is asked for: a program on a machine without it runs all the same ---- */

struct nvml_process { /* nvmlProcessInfo_v2_t, which nvmlDeviceGetComputeRunningProcesses_v3 fills */
    unsigned pid;
    unsigned long long used_bytes;
    unsigned gpu_instance, compute_instance;
};
enum { NVML_SUCCESS = 0, NVML_PROCESSES = 256 };

static size_t ask_nvml(void *library, const char **missing) {
    int (*init)(void), (*shutdown)(void), (*handle)(unsigned, void **);
    int (*processes)(void *, unsigned *, struct nvml_process *);
    *(void **)&init = dlsym(library, "nvmlInit_v2");
    *(void **)&shutdown = dlsym(library, "nvmlShutdown");
    *(void **)&handle = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&processes = dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    *missing = "NVML is too old";
    if (!init || !shutdown || !handle || !processes) return 0;
    *missing = "NVML does not start";
    if (init() != NVML_SUCCESS) return 0;
    size_t bytes = 0;
    struct nvml_process list[NVML_PROCESSES];
    *missing = "NVML does not list this process (it may run in a container with process ids of its own)";
    /* A process on several devices is listed by each; this one uses one device. */
    for (unsigned device = 0; device < 64 && bytes == 0; device++) {
        void *at = NULL;
        unsigned n = NVML_PROCESSES;
        if (handle(device, &at) != NVML_SUCCESS) break;
        if (processes(at, &n, list) != NVML_SUCCESS) continue;
        for (unsigned i = 0; i < n && i < NVML_PROCESSES; i++)
            if (list[i].pid == (unsigned)getpid() && list[i].used_bytes != ~0ull) bytes += (size_t)list[i].used_bytes;
    }
    shutdown();
    if (bytes) *missing = NULL;
    return bytes;
}

size_t tw_cuda_process_bytes(const char **missing) {
    void *const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    *missing = "NVML is not installed";
    if (!library) return 0;
    const size_t bytes = ask_nvml(library, missing);
    dlclose(library);
    return bytes;
}
