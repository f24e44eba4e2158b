/*
 * How many threads prefill uses. A parallel loop ends with its slowest thread: where another process holds a core, the
 * others wait for that process's time slice to end, and short loops then take longer than one thread would take for all
 * of it. What one thread would take is known without trying: the processor time that the threads spent on the loop. So
 * the moment that the time passed exceeds it, one thread goes on alone for a while. Results do not depend on it. (For
 * decoding, whose barriers lie closer than clocks of threads can be read, see pace.h.)
 */
#ifndef TW_ENGINE_BACKEND_CPU_TEAM_H
#define TW_ENGINE_BACKEND_CPU_TEAM_H

#include <stdbool.h>
#include <stddef.h>

struct tw_cpu_team {
    size_t n_threads;    /* all */
    bool single;         /* one goes on alone */
    double passed, work; /* together: seconds of the loops since they were last judged, and of the threads in them */
    double left;         /* alone: seconds until all are tried again */
    double patience;     /* what `left` starts from; doubles while all together stay slower */
    bool proven;         /* all together were quicker since they were last tried */
};

void tw_cpu_team_init(struct tw_cpu_team *team, size_t n_threads);
/* Threads to use for the next loop. */
size_t tw_cpu_team_threads(const struct tw_cpu_team *team);
/* A loop took `passed` seconds, in which its threads computed for `work` seconds of processor time in all. */
void tw_cpu_team_took(struct tw_cpu_team *team, double passed, double work);

#endif
