/*
 * How many threads decoding uses. Its barriers lie some tens of microseconds apart: where another process takes a core,
 * threads that wait for one that is not running are slower than one that runs alone. So decoding times its layers,
 * drops to one thread when all of them are slower, and tries them again now and then. Results do not depend on it.
 *
 * One rule serves for falling back and for trying again: a window of layers with all threads may take as long as it
 * takes one thread, and the moment it has taken longer, one thread goes on alone. So a trial beside a busy neighbour
 * costs a time slice of that neighbour, whatever the layers' number.
 */
#ifndef TW_ENGINE_BACKEND_CPU_PACE_H
#define TW_ENGINE_BACKEND_CPU_PACE_H

#include <stdbool.h>
#include <stddef.h>

#define TW_CPU_PACE_WINDOW 60 /* layers with all threads that are judged together: some time slices of the system */
#define TW_CPU_PACE_SAMPLE 8  /* layers alone that tell how long one takes */

struct tw_cpu_pace {
    size_t n_threads; /* all */
    bool single;      /* the mode now */
    double alone;     /* seconds of a layer on one thread; 0: not known yet */
    size_t layers;    /* of this window or sample */
    double seconds;   /* that they took */
    size_t samples;   /* single: layers left until all threads are tried */
    size_t patience;  /* what `samples` starts from; doubles while all threads stay slower */
    size_t windows;   /* all threads: since `alone` was measured */
    double sample[TW_CPU_PACE_SAMPLE];
};

void tw_cpu_pace_init(struct tw_cpu_pace *pace, size_t n_threads);
/* Threads to use for the next layer, or for the logits. */
size_t tw_cpu_pace_threads(const struct tw_cpu_pace *pace);
/* A layer took this long with these threads. */
void tw_cpu_pace_took(struct tw_cpu_pace *pace, double seconds);

#endif
