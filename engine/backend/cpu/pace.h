/*
 * How many threads decoding uses. Its barriers are short of a microsecond apart from work of some tens: where another
 * process takes a core, two threads that wait for each other are slower than one that runs alone. So decoding measures
 * its own steps, drops to one thread when all of them are slower, and tries again now and then. Results do not depend
 * on it.
 */
#ifndef TW_ENGINE_BACKEND_CPU_PACE_H
#define TW_ENGINE_BACKEND_CPU_PACE_H

#include <stdbool.h>
#include <stddef.h>

#define TW_CPU_PACE_RECENT 5

struct tw_cpu_pace {
    size_t n_threads;                     /* all */
    bool single;                          /* the mode now */
    size_t trial;                         /* steps left of a trial of the other mode; 0: none is on */
    size_t steps;                         /* since the last trial ended */
    size_t patience;                      /* steps until the next trial while single */
    double seconds;                       /* of the step that is being taken */
    double recent[2][TW_CPU_PACE_RECENT]; /* the last steps' seconds, [0] with all threads, [1] alone */
    size_t n_recent[2];
};

void tw_cpu_pace_init(struct tw_cpu_pace *pace, size_t n_threads);
/* Threads to use for the next operation of a step. */
size_t tw_cpu_pace_threads(const struct tw_cpu_pace *pace);
/* An operation took this long; `ends` tells that it was the step's last. */
void tw_cpu_pace_took(struct tw_cpu_pace *pace, double seconds, bool ends);

#endif
