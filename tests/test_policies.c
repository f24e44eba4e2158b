/* The one-pass policies against their plain forms, over random small traces and by hand. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "base/random.h"
#include "sim/policies.h"
#include "tests/oracle.h"
#include "tests/support.h"
#include "tests/sweeps.h"

/* Instrumented builds are several times slower. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_RANDOM_TRACES 1500
#else
#define N_RANDOM_TRACES 10000
#endif

START_TEST(random_traces_as_the_plain_forms) {
    const uint64_t seed = tw_test_seed();
    const bool one = getenv("TW_SEED") != NULL;
    for (uint64_t i = 0; i < (one ? 1 : N_RANDOM_TRACES); i++) {
        char difference[512];
        ck_assert_msg(tw_test_sweeps_agree(seed + i, difference, sizeof difference), "%s (TW_SEED=%llu reruns it)",
                      difference, (unsigned long long)(seed + i));
    }
}
END_TEST

Suite *tw_suite_policies(void);
Suite *tw_suite_policies(void) {
    Suite *suite = suite_create("policies");
    TCase *c = tcase_create("against the plain forms");
    tcase_set_timeout(c, 240);
    tcase_add_test(c, random_traces_as_the_plain_forms);
    suite_add_tcase(suite, c);
    return suite;
}
