/*
 * Threads that share loops with the thread that owns them, for work that is cut into many short loops on a machine that
 * may have other things to do.
 *
 * A parallel region of OpenMP ends when its slowest thread has arrived. Where another process holds a processor, all
 * wait for the end of that process's time slice, some milliseconds, at the end of every loop. Here a loop ends when its
 * tasks are done: the owner does all that nobody else has taken, and a helper that is not running is not waited for. A
 * helper that has held its processor for a while offers it to others between two tasks, when it holds none. So a busy
 * neighbour takes a share of the helpers' time, and nobody waits for it.
 *
 * Each thread begins with its own share of a loop's tasks, which are neighbours, and takes over from the others' when
 * it has none left. Results must not depend on which thread runs a task, nor on the order.
 */
#ifndef TW_BASE_TEAM_H
#define TW_BASE_TEAM_H

#include <stddef.h>

#include "base/error.h"

struct tw_team;

/*
 * Tasks [first, end) of a loop; `thread` is below the team's number, and no two calls with the same one run at once.
 * Thread 0 is the one that called tw_team_run.
 */
typedef void tw_team_fn(void *context, size_t first, size_t end, size_t thread);

/*
 * n_threads: the owner included, at least 1. Fails with TW_E_MEMORY when the system gives no more threads; `*team` is
 * NULL then.
 */
tw_status tw_team_create(struct tw_team **team, size_t n_threads, struct tw_error *err);
void tw_team_free(struct tw_team *team);            /* NULL is fine */
size_t tw_team_threads(const struct tw_team *team); /* 1 for NULL */

/*
 * Runs tasks [0, n_tasks) and returns when all are done, with their effects visible. `most`: tasks that a thread takes
 * at once, at most; where it is greater than 1, threads take three quarters of what is left of a share. By one thread
 * at a time. Without a team (NULL) the caller runs all.
 */
void tw_team_run(struct tw_team *team, size_t n_tasks, size_t most, tw_team_fn *fn, void *context);

/* Cores that this process may run on, at least 1. */
size_t tw_host_threads(void);

#endif
