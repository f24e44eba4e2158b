/* The pace of decoding, on made-up times: a layer takes 1 alone and, undisturbed, 0.6 with two threads. */
#include <check.h>

#include "base/random.h"
#include "engine/backend/cpu/pace.h"
#include "tests/support.h"

enum { LAYERS = 6000 };

struct machine {
    struct tw_random random;
    bool busy;            /* another process has one of the two cores half of the time */
    double slice, left;   /* time slices of the system, in layers; what is left of this one */
    bool theirs;          /* whose slice it is */
    double total;         /* time that has passed */
    size_t single_layers; /* how many ran alone */
};

/* Alone, a layer runs on the free core. Two threads wait for the other process's slice to end. */
static void run(struct machine *m, struct tw_cpu_pace *pace, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const size_t threads = tw_cpu_pace_threads(pace);
        double seconds = threads == 1 ? 1 : 0.6;
        seconds *= 1 + 0.1 * tw_random_unit(&m->random);
        if (m->busy && threads > 1) {
            if (m->theirs) seconds += m->left;
            m->theirs = false;
            m->left -= seconds;
        }
        if (m->busy && m->left <= 0) {
            m->left = m->slice;
            m->theirs = !m->theirs;
        }
        m->single_layers += threads == 1;
        m->total += seconds;
        tw_cpu_pace_took(pace, seconds);
    }
}

static struct machine machine_make(bool busy) {
    struct machine m = {.busy = busy, .slice = 12, .left = 12};
    tw_random_init(&m.random, tw_test_seed(), 1);
    return m;
}

START_TEST(one_thread_stays_one) {
    struct machine m = machine_make(false);
    struct tw_cpu_pace pace;
    tw_cpu_pace_init(&pace, 1);
    run(&m, &pace, 100);
    ck_assert_uint_eq(m.single_layers, 100);
}
END_TEST

START_TEST(quiet_machine_uses_all_threads) {
    struct machine m = machine_make(false);
    struct tw_cpu_pace pace;
    tw_cpu_pace_init(&pace, 2);
    run(&m, &pace, LAYERS);
    ck_assert_uint_ge(m.single_layers, TW_CPU_PACE_SAMPLE);
    ck_assert_uint_lt(m.single_layers, LAYERS / 50);
}
END_TEST

START_TEST(busy_neighbour_costs_its_core) {
    struct machine m = machine_make(true);
    struct tw_cpu_pace pace;
    tw_cpu_pace_init(&pace, 2);
    run(&m, &pace, LAYERS);
    ck_assert_msg(m.total < 1.15 * 1.05 * LAYERS, "%.0f for %d layers", m.total, LAYERS);
}
END_TEST

START_TEST(neighbour_comes_and_goes) {
    struct machine m = machine_make(false);
    struct tw_cpu_pace pace;
    tw_cpu_pace_init(&pace, 2);
    run(&m, &pace, 1000);
    const double before = m.total;
    m.busy = true;
    run(&m, &pace, 3000);
    ck_assert_msg(m.total - before < 1.2 * 1.05 * 3000, "%.0f beside a neighbour", m.total - before);
    m.busy = false;
    run(&m, &pace, 12000); /* its patience has grown meanwhile */
    const size_t alone = m.single_layers;
    run(&m, &pace, 1000);
    ck_assert_uint_lt(m.single_layers - alone, 50);
}
END_TEST

Suite *tw_suite_cpu_pace(void);
Suite *tw_suite_cpu_pace(void) {
    Suite *suite = suite_create("cpu pace");
    TCase *tcase = tcase_create("decoding");
    tcase_add_test(tcase, one_thread_stays_one);
    tcase_add_test(tcase, quiet_machine_uses_all_threads);
    tcase_add_test(tcase, busy_neighbour_costs_its_core);
    tcase_add_test(tcase, neighbour_comes_and_goes);
    suite_add_tcase(suite, tcase);
    return suite;
}
