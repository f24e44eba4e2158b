/* Monotonic time in seconds. For durations only. */
#ifndef TW_BASE_CLOCK_H
#define TW_BASE_CLOCK_H

#include <time.h>

static inline double tw_clock_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
