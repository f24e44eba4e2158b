/* Monotonic time, and processor time of the calling thread, in seconds. For durations only. */
#ifndef TW_BASE_CLOCK_H
#define TW_BASE_CLOCK_H

#include <time.h>

static inline double tw_clock_of(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
static inline double tw_clock_seconds(void) { return tw_clock_of(CLOCK_MONOTONIC); }
static inline double tw_clock_thread_seconds(void) { return tw_clock_of(CLOCK_THREAD_CPUTIME_ID); }

#endif
