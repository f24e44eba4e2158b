/* The threads of prefill, on made-up loops of 2 milliseconds of work. */
#include <check.h>

#include "engine/backend/cpu/team.h"

Suite *tw_suite_cpu_team(void);

#define WORK 0.002

/* Loops whose time together is `together`; returns the time that all took. */
static double run(struct tw_cpu_team *team, size_t n, double together) {
    double total = 0;
    for (size_t i = 0; i < n; i++) {
        const double passed = tw_cpu_team_threads(team) == 1 ? WORK : together;
        tw_cpu_team_took(team, passed, WORK);
        total += passed;
    }
    return total;
}

START_TEST(quiet_machine_keeps_all_threads) {
    struct tw_cpu_team team;
    tw_cpu_team_init(&team, 2);
    ck_assert_double_eq_tol(run(&team, 1000, WORK / 2), 1000 * WORK / 2, 1e-9);
    ck_assert_uint_eq(tw_cpu_team_threads(&team), 2);
}
END_TEST

/* What is lost beside one thread is a slice a trial, and trials become rare. */
START_TEST(busy_neighbour_leaves_one_thread) {
    struct tw_cpu_team team;
    tw_cpu_team_init(&team, 2);
    const double soon = run(&team, 100, WORK / 2 + 0.004), later = run(&team, 1000, WORK / 2 + 0.004);
    ck_assert_msg(soon < 1.3 * 100 * WORK, "%g", soon);
    ck_assert_msg(later < 1.05 * 1000 * WORK, "%g", later);
}
END_TEST

START_TEST(neighbour_comes_and_goes) {
    struct tw_cpu_team team;
    tw_cpu_team_init(&team, 2);
    run(&team, 100, WORK / 2);
    run(&team, 2000, 0.005);
    run(&team, 1000, WORK / 2); /* its patience has grown meanwhile */
    ck_assert_double_eq_tol(run(&team, 500, WORK / 2), 500 * WORK / 2, 1e-9);
}
END_TEST

START_TEST(one_thread_stays_one) {
    struct tw_cpu_team team;
    tw_cpu_team_init(&team, 1);
    run(&team, 100, 1.0);
    ck_assert_uint_eq(tw_cpu_team_threads(&team), 1);
}
END_TEST

Suite *tw_suite_cpu_team(void) {
    Suite *suite = suite_create("cpu team");
    TCase *tcase = tcase_create("prefill");
    tcase_add_test(tcase, quiet_machine_keeps_all_threads);
    tcase_add_test(tcase, busy_neighbour_leaves_one_thread);
    tcase_add_test(tcase, neighbour_comes_and_goes);
    tcase_add_test(tcase, one_thread_stays_one);
    suite_add_tcase(suite, tcase);
    return suite;
}
