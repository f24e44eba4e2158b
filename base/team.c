#include "base/team.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/clock.h"

#define SPIN     100e-6 /* seconds that a thread waits before it sleeps: waking one takes about half of that */
#define SLICE    2e-3   /* seconds that a helper keeps its processor: well below the system's time slices */
#define COURTESY 20     /* pauses, about a microsecond */
#define CLOSED   UINT32_MAX

/* What a thread writes for others lies in cache lines of its own. */
struct member {
    _Alignas(64) _Atomic uint64_t next; /* of its share of the tasks, below the loop's number: see place */
    _Atomic size_t stop;                /* of the share */
    _Alignas(64) _Atomic uint64_t done; /* tasks that it has done, of all loops, as far as it has said */
    struct tw_team *team;
    pthread_t thread;
    double since; /* helpers: they have had their processor, as far as they know */
};

struct tw_team {
    size_t n_threads, n_helpers; /* n_helpers: that run */
    bool fits;                   /* there were as many processors as threads */
    struct member *members;      /* [n_threads] the owner first */
    uint64_t total;              /* tasks of all loops so far */

    /* The loop. A thread that comes late may read another loop's: then it is given no task, see take. */
    _Alignas(64) _Atomic uint64_t loop; /* its number, counted from 1 */
    _Atomic(tw_team_fn *) fn;
    _Atomic(void *) context;
    _Atomic size_t most;
    _Atomic int processor; /* that the owner is on */

    _Alignas(64) _Atomic int n_asleep; /* helpers that must be woken */
    _Atomic bool owner_sleeps, ends;
    pthread_mutex_t lock;
    pthread_cond_t begun, finished;
};

static inline void pause_briefly(void) {
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#endif
}

/* ---- tasks --------------------------------------------------------------------------------------------------------
 */

static uint64_t place(uint64_t loop, size_t next) { return loop << 32 | next; }

/*
 * Takes tasks of member `of`'s share, none if it is used up or `loop` is over. Shares are closed before the next loop
 * is described: whoever has read any of the new description finds the share changed, and gets nothing.
 */
static bool take(struct tw_team *team, size_t of, uint64_t loop, size_t *first, size_t *end) {
    struct member *const member = &team->members[of];
    uint64_t at = atomic_load_explicit(&member->next, memory_order_acquire);
    for (;;) {
        const size_t next = at & UINT32_MAX;
        if (at >> 32 != (loop & UINT32_MAX) || next == CLOSED) return false;
        const size_t stop = atomic_load_explicit(&member->stop, memory_order_relaxed);
        const size_t most = atomic_load_explicit(&team->most, memory_order_relaxed);
        if (next >= stop) return false;
        const size_t left = stop - next, n = tw_min_size(left - left / 4, most);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_compare_exchange_weak_explicit(&member->next, &at, at + n, memory_order_acq_rel,
                                                  memory_order_acquire)) {
            *first = next;
            *end = next + n;
            return true;
        }
    }
}

static bool all_done(struct tw_team *team) {
    uint64_t done = 0;
    for (size_t i = 0; i < team->n_threads; i++)
        done += atomic_load_explicit(&team->members[i].done, memory_order_seq_cst);
    return done == team->total;
}

static bool other_loop(struct tw_team *team, uint64_t than) {
    return atomic_load_explicit(&team->loop, memory_order_seq_cst) != than ||
           atomic_load_explicit(&team->ends, memory_order_relaxed);
}

/* Whether the loop is over for a thread: the owner waits for all tasks, a helper for the next loop. */
static bool over(struct tw_team *team, size_t number, uint64_t loop) {
    return number ? other_loop(team, loop) : all_done(team);
}

/* Taking over the last of what others are at costs more than it helps, where they run: lets them end for a moment. */
static bool ends_soon(struct tw_team *team, size_t number, uint64_t loop) {
    for (int i = 0; i < COURTESY; i++) {
        if (over(team, number, loop)) return true;
        pause_briefly();
    }
    return false;
}

/* A helper on the owner's processor would only run while the owner does not. */
static void leave_owner(const struct tw_team *team) {
    cpu_set_t all, others;
    const int owner = atomic_load_explicit(&team->processor, memory_order_relaxed);
    if (!team->fits || sched_getcpu() != owner || owner < 0 || owner >= CPU_SETSIZE) return;
    if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < 2) return;
    others = all;
    CPU_CLR(owner, &others);
    if (sched_setaffinity(0, sizeof others, &others) == 0) sched_setaffinity(0, sizeof all, &all);
}

/* Says that n more tasks are done; not after each, since the owner looks at the count while it waits. */
static void say_done(struct member *self, uint64_t *n) {
    if (*n == 0) return;
    struct tw_team *const team = self->team;
    const uint64_t done = atomic_load_explicit(&self->done, memory_order_relaxed);
    atomic_store_explicit(&self->done, done + *n, memory_order_seq_cst);
    *n = 0;
    if (self == team->members || !atomic_load_explicit(&team->owner_sleeps, memory_order_seq_cst)) return;
    pthread_mutex_lock(&team->lock);
    pthread_cond_signal(&team->finished);
    pthread_mutex_unlock(&team->lock);
}

/* Between two tasks: nobody waits for this helper while another process has its turn. */
static void offer_processor(struct member *self, uint64_t *n_done) {
    if (tw_clock_seconds() - self->since < SLICE) return;
    say_done(self, n_done);
    sched_yield();
    leave_owner(self->team);
    self->since = tw_clock_seconds();
}

/* Tasks of the own share, then of the others', if those are not about to end by themselves. */
static void work(struct tw_team *team, size_t number, uint64_t loop) {
    struct member *const self = &team->members[number];
    uint64_t n_done = 0;
    for (size_t i = 0; i < team->n_threads;) {
        size_t first, end;
        if (number) offer_processor(self, &n_done);
        if (take(team, (number + i) % team->n_threads, loop, &first, &end)) {
            tw_team_fn *const fn = atomic_load_explicit(&team->fn, memory_order_relaxed);
            fn(atomic_load_explicit(&team->context, memory_order_relaxed), first, end, number);
            n_done += end - first;
            continue;
        }
        say_done(self, &n_done);
        if (i++ == 0 && ends_soon(team, number, loop)) return;
    }
}

/* ---- waiting ------------------------------------------------------------------------------------------------------
 */

/* Whether the loop ended while spinning. */
static bool spin(struct tw_team *team, size_t number, uint64_t loop) {
    const double began = tw_clock_seconds();
    do
        for (int i = 0; i < 32; i++) {
            if (over(team, number, loop)) return true;
            pause_briefly();
        }
    while (team->fits && tw_clock_seconds() - began < SPIN);
    return false;
}

/* Asleep, the owner leaves its processor to a helper that waits for another one behind a busy process. */
static void wait_for_helpers(struct tw_team *team, uint64_t loop) {
    if (spin(team, 0, loop)) return;
    pthread_mutex_lock(&team->lock);
    atomic_store_explicit(&team->owner_sleeps, true, memory_order_seq_cst);
    while (!all_done(team)) pthread_cond_wait(&team->finished, &team->lock);
    atomic_store_explicit(&team->owner_sleeps, false, memory_order_relaxed);
    pthread_mutex_unlock(&team->lock);
}

static void wait_for_loop(struct member *self, uint64_t last) {
    struct tw_team *const team = self->team;
    if (spin(team, (size_t)(self - team->members), last)) return;
    pthread_mutex_lock(&team->lock);
    atomic_fetch_add_explicit(&team->n_asleep, 1, memory_order_seq_cst);
    while (!other_loop(team, last)) pthread_cond_wait(&team->begun, &team->lock);
    atomic_fetch_sub_explicit(&team->n_asleep, 1, memory_order_seq_cst);
    pthread_mutex_unlock(&team->lock);
    leave_owner(team);
    self->since = tw_clock_seconds();
}

static void *help(void *argument) {
    struct member *const self = argument;
    struct tw_team *const team = self->team;
    uint64_t loop = 0;
    self->since = tw_clock_seconds();
    for (;;) {
        wait_for_loop(self, loop);
        if (atomic_load_explicit(&team->ends, memory_order_relaxed)) return NULL;
        loop = atomic_load_explicit(&team->loop, memory_order_acquire);
        work(team, (size_t)(self - team->members), loop);
    }
}

/* ---- the owner's side ---------------------------------------------------------------------------------------------
 */

static void wake_helpers(struct tw_team *team) {
    if (atomic_load_explicit(&team->n_asleep, memory_order_seq_cst) == 0) return;
    pthread_mutex_lock(&team->lock);
    pthread_cond_broadcast(&team->begun);
    pthread_mutex_unlock(&team->lock);
}

void tw_team_run(struct tw_team *team, size_t n_tasks, size_t most, tw_team_fn *fn, void *context) {
    assert(n_tasks < CLOSED && most > 0);
    if (n_tasks == 0) return;
    if (n_tasks == 1 || tw_team_threads(team) == 1) {
        fn(context, 0, n_tasks, 0);
        return;
    }
    const uint64_t loop = atomic_load_explicit(&team->loop, memory_order_relaxed) + 1;
    for (size_t i = 0; i < team->n_threads; i++)
        atomic_store_explicit(&team->members[i].next, place(loop - 1, CLOSED), memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&team->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&team->context, context, memory_order_relaxed);
    atomic_store_explicit(&team->most, most, memory_order_relaxed);
    atomic_store_explicit(&team->processor, sched_getcpu(), memory_order_relaxed);
    for (size_t i = 0; i < team->n_threads; i++) {
        struct member *const member = &team->members[i];
        atomic_store_explicit(&member->stop, n_tasks * (i + 1) / team->n_threads, memory_order_relaxed);
        atomic_store_explicit(&member->next, place(loop, n_tasks * i / team->n_threads), memory_order_release);
    }
    team->total += n_tasks;
    atomic_store_explicit(&team->loop, loop, memory_order_seq_cst);
    wake_helpers(team);
    work(team, 0, loop);
    wait_for_helpers(team, loop);
}

static void end_helpers(struct tw_team *team) {
    pthread_mutex_lock(&team->lock);
    atomic_store_explicit(&team->ends, true, memory_order_seq_cst);
    pthread_cond_broadcast(&team->begun);
    pthread_mutex_unlock(&team->lock);
    for (size_t i = 1; i <= team->n_helpers; i++) pthread_join(team->members[i].thread, NULL);
}

/* Signals of the program are the owner's business, those of a fault are not to be blocked. */
static bool start_helpers(struct tw_team *team) {
    sigset_t blocked, before;
    sigfillset(&blocked);
    const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    bool started = true;
    for (size_t i = 1; i < team->n_threads && started; i++) {
        started = pthread_create(&team->members[i].thread, NULL, help, &team->members[i]) == 0;
        team->n_helpers += started;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

tw_status tw_team_create(struct tw_team **result, size_t n_threads, struct tw_error *err) {
    assert(n_threads > 0);
    *result = NULL;
    struct tw_team *const team = aligned_alloc(64, sizeof *team);
    struct member *const members = aligned_alloc(64, n_threads * sizeof *members);
    if (!team || !members) {
        free(team);
        free(members);
        return TW_FAIL(err, TW_E_MEMORY, "out of memory for %zu threads", n_threads);
    }
    memset(team, 0, sizeof *team);
    memset(members, 0, n_threads * sizeof *members);
    team->n_threads = n_threads;
    team->members = members;
    team->fits = n_threads <= tw_host_threads();
    for (size_t i = 0; i < n_threads; i++) {
        members[i].team = team;
        atomic_store_explicit(&members[i].next, place(0, CLOSED), memory_order_relaxed);
    }
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->begun, NULL);
    pthread_cond_init(&team->finished, NULL);
    if (!start_helpers(team)) {
        const size_t n = team->n_helpers + 1;
        tw_team_free(team);
        return TW_FAIL(err, TW_E_MEMORY, "the system gives no more than %zu of %zu threads", n, n_threads);
    }
    *result = team;
    return TW_OK;
}

void tw_team_free(struct tw_team *team) {
    if (!team) return;
    end_helpers(team);
    pthread_cond_destroy(&team->finished);
    pthread_cond_destroy(&team->begun);
    pthread_mutex_destroy(&team->lock);
    free(team->members);
    free(team);
}

size_t tw_team_threads(const struct tw_team *team) { return team ? team->n_threads : 1; }

size_t tw_host_threads(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    const int n = CPU_COUNT(&set);
    return n > 0 ? (size_t)n : 1;
}
