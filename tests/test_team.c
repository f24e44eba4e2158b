/* Loops of a team: every task once, whatever the threads do; and nobody waits for a thread that holds no task. */
#include <check.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/random.h"
#include "base/team.h"
#include "tests/support.h"

enum { MOST_TASKS = 3000, MOST_THREADS = 9 };

struct counted {
    size_t n_tasks, n_threads, most;
    uint32_t times[MOST_TASKS]; /* written without atomics: a task is one thread's */
    _Atomic int inside[MOST_THREADS];
    _Atomic size_t faults;
};

static void count(void *context, size_t first, size_t end, size_t thread) {
    struct counted *c = context;
    if (thread >= c->n_threads || atomic_fetch_add(&c->inside[thread], 1) != 0) atomic_fetch_add(&c->faults, 1);
    if (first >= end || end > c->n_tasks || (c->n_threads > 1 && end - first > c->most))
        atomic_fetch_add(&c->faults, 1);
    for (size_t i = first; i < end; i++) c->times[i]++;
    if (thread < c->n_threads) atomic_fetch_sub(&c->inside[thread], 1);
}

/* More threads than processors, too: then helpers come late to most loops, and to some of them after their end. */
START_TEST(every_task_runs_once) {
    struct tw_random random;
    tw_random_init(&random, tw_test_seed(), (uint64_t)_i);
    const size_t n_threads = (size_t)_i;
    struct tw_team *team;
    ck_assert_int_eq(tw_team_create(&team, n_threads, NULL), TW_OK);
    ck_assert_uint_eq(tw_team_threads(team), n_threads);
    struct counted *c = calloc(1, sizeof *c);
    for (int round = 0; round < 1500; round++) {
        c->n_threads = n_threads;
        c->n_tasks = tw_random_below(&random, round % 3 ? 40 : MOST_TASKS);
        c->most = round % 5 ? 1 + tw_random_below(&random, 64) : SIZE_MAX;
        memset(c->times, 0, sizeof c->times);
        tw_team_run(team, c->n_tasks, c->most, count, c);
        size_t wrong = 0; /* libcheck writes a line a comparison */
        for (size_t i = 0; i < MOST_TASKS; i++) wrong += c->times[i] != (i < c->n_tasks);
        ck_assert_msg(wrong == 0, "%zu of %zu tasks did not run once", wrong, c->n_tasks);
        ck_assert_uint_eq(atomic_load(&c->faults), 0);
        if (round % 300 == 299) usleep(2000); /* helpers fall asleep */
    }
    free(c);
    tw_team_free(team);
}
END_TEST

/* A loop follows from the one before: what a task wrote, all see. */
struct chain {
    uint64_t from[256], to[256];
};

static void add_neighbours(void *context, size_t first, size_t end, size_t thread) {
    (void)thread;
    struct chain *c = context;
    for (size_t i = first; i < end; i++) c->to[i] = c->from[i] + 3 * c->from[(i + 97) % 256];
}

START_TEST(effects_are_visible) {
    struct tw_team *team;
    struct chain shared, plain;
    ck_assert_int_eq(tw_team_create(&team, 3, NULL), TW_OK);
    for (size_t i = 0; i < 256; i++) shared.from[i] = plain.from[i] = i;
    for (int round = 0; round < 20000; round++) {
        tw_team_run(team, 256, round % 2 ? 1 : SIZE_MAX, add_neighbours, &shared);
        memcpy(shared.from, shared.to, sizeof shared.to);
        add_neighbours(&plain, 0, 256, 0);
        memcpy(plain.from, plain.to, sizeof plain.to);
    }
    ck_assert_mem_eq(shared.from, plain.from, sizeof plain.from);
    tw_team_free(team);
}
END_TEST

/* Helpers that are slow: the owner takes over what they have not begun. */
struct slow {
    size_t by_helpers;
    _Atomic size_t total;
};

static void sleep_if_helper(void *context, size_t first, size_t end, size_t thread) {
    struct slow *s = context;
    if (thread) {
        usleep(20000);
        s->by_helpers += end - first; /* there is one helper */
    }
    atomic_fetch_add(&s->total, end - first);
}

START_TEST(owner_takes_over) {
    struct tw_team *team;
    struct slow s = {0};
    ck_assert_int_eq(tw_team_create(&team, 2, NULL), TW_OK);
    tw_team_run(team, 64, 1, sleep_if_helper, &s);
    ck_assert_uint_eq(atomic_load(&s.total), 64);
    ck_assert_msg(s.by_helpers < 16, "the helper did %zu of its 32 tasks", s.by_helpers);
    tw_team_free(team);
}
END_TEST

START_TEST(teams_come_and_go) {
    struct counted *c = calloc(1, sizeof *c);
    c->n_threads = 4;
    c->n_tasks = 10;
    c->most = 2;
    for (int round = 0; round < 100; round++) {
        struct tw_team *team;
        ck_assert_int_eq(tw_team_create(&team, c->n_threads, NULL), TW_OK);
        if (round % 3) tw_team_run(team, c->n_tasks, c->most, count, c);
        tw_team_free(team);
    }
    tw_team_free(NULL);
    ck_assert_uint_eq(atomic_load(&c->faults), 0);
    free(c);
}
END_TEST

Suite *tw_suite_team(void);
Suite *tw_suite_team(void) {
    Suite *suite = suite_create("team");
    TCase *tcase = tcase_create("loops");
    tcase_add_loop_test(tcase, every_task_runs_once, 1, MOST_THREADS);
    tcase_add_test(tcase, effects_are_visible);
    tcase_add_test(tcase, owner_takes_over);
    tcase_add_test(tcase, teams_come_and_go);
    suite_add_tcase(suite, tcase);
    return suite;
}
