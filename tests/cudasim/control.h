/* How tests steer the emulation and look into it: exported by the emulated library, found with dlsym. Plain C. */
#ifndef TW_TESTS_CUDASIM_CONTROL_H
#define TW_TESTS_CUDASIM_CONTROL_H

#include <stddef.h>
#include <stdint.h>

struct cudasim_control {
    void (*seed)(uint64_t seed); /* order of threads and of streams from now on */

    /* Faults; n counts from now, from 1; 0: none. */
    void (*fail_allocation)(long n, long how_many); /* device and pinned memory, streams, events, cuBLAS handles */
    void (*fail_launch)(long n);                    /* the nth launch or product is refused */
    void (*lose_device)(long n);                    /* the nth piece of work and everything after it fails */
    void (*limit_bytes)(size_t bytes);              /* device memory there is; 0: as much as is asked for */
    void (*devices)(int n, int driver_missing);

    /* What there is now. */
    long (*live_objects)(void); /* allocations, streams, events, handles not given back */
    size_t (*live_bytes)(void); /* device memory */
    long (*allocations)(void);  /* so far, with those that failed */
    long (*launches)(void);     /* so far */
    size_t (*to_host)(void);    /* bytes copied from device memory so far */
};

#define CUDASIM_CONTROL "cudasim_control" /* the symbol: a struct cudasim_control */

/* Exit status of a process in which the emulation found a fault. */
enum { CUDASIM_EXIT = 86 };

#endif
