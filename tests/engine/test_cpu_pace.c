/* How many threads decoding uses, on a made-up machine where another process comes and goes. */
#include <check.h>

#include "engine/backend/cpu/pace.h"

Suite *tw_suite_cpu_pace(void);

/* Steps at the given times with all threads and with one; returns the mean time of a step. */
static double run(struct tw_cpu_pace *pace, size_t n, double all, double alone) {
    double total = 0;
    for (size_t i = 0; i < n; i++) {
        double step = 0;
        for (int operation = 0; operation < 3; operation++) {
            const double took = (tw_cpu_pace_threads(pace) == 1 ? alone : all) / 3;
            tw_cpu_pace_took(pace, took, operation == 2);
            step += took;
        }
        total += step;
    }
    return total / (double)n;
}

START_TEST(a_quiet_machine_keeps_all_threads) {
    struct tw_cpu_pace pace;
    tw_cpu_pace_init(&pace, 2);
    const double mean = run(&pace, 600, 1.0, 1.8);
    ck_assert_uint_eq(tw_cpu_pace_threads(&pace), 2);
    ck_assert_msg(mean < 1.02, "%g", mean); /* what the trials cost */
}
END_TEST

START_TEST(a_busy_neighbour_leaves_one_thread) {
    struct tw_cpu_pace pace;
    tw_cpu_pace_init(&pace, 2);
    run(&pace, 50, 1.0, 1.8);
    const double busy = run(&pace, 400, 5.0, 1.9);
    ck_assert_msg(busy < 2.4, "%g", busy);
    ck_assert_uint_eq(tw_cpu_pace_threads(&pace), 1);
    run(&pace, 250, 1.0, 1.8); /* the neighbour has gone: found out by a trial */
    ck_assert_uint_eq(tw_cpu_pace_threads(&pace), 2);
    const double after = run(&pace, 300, 1.0, 1.8);
    ck_assert_msg(after < 1.02, "%g", after);
}
END_TEST

START_TEST(busy_from_the_start) {
    struct tw_cpu_pace pace;
    tw_cpu_pace_init(&pace, 2);
    const double busy = run(&pace, 400, 5.0, 1.9);
    ck_assert_msg(busy < 2.4, "%g", busy);
}
END_TEST

/* Where one thread is as quick as all, either will do; where there is one thread, nothing is tried. */
START_TEST(one_thread) {
    struct tw_cpu_pace pace;
    tw_cpu_pace_init(&pace, 1);
    ck_assert_double_eq_tol(run(&pace, 100, 7.0, 1.0), 1.0, 1e-12);
    ck_assert_uint_eq(tw_cpu_pace_threads(&pace), 1);
}
END_TEST

Suite *tw_suite_cpu_pace(void) {
    Suite *suite = suite_create("cpu pace");
    TCase *tcase = tcase_create("pace");
    tcase_add_test(tcase, a_quiet_machine_keeps_all_threads);
    tcase_add_test(tcase, a_busy_neighbour_leaves_one_thread);
    tcase_add_test(tcase, busy_from_the_start);
    tcase_add_test(tcase, one_thread);
    suite_add_tcase(suite, tcase);
    return suite;
}
