/* Rows of a trace, sorted again after rounding: against a plain sort of (stored weight, position). */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "base/random.h"
#include "engine/ties.h"
#include "tests/support.h"

struct entry {
    uint16_t half;
    uint32_t position; /* -1 is the last of all */
};

static int by_stored(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    if (x->half != y->half) return x->half > y->half ? -1 : 1;
    return (x->position > y->position) - (x->position < y->position);
}

static int descending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

START_TEST(as_a_plain_sort) {
    enum { MOST = 130 };
    struct tw_random random;
    tw_random_init(&random, tw_test_seed(), 1);
    for (int round = 0; round < 20000; round++) {
        const size_t top_k = 1 + tw_random_below(&random, round % 2 ? 64 : MOST - 1);
        const size_t n = tw_random_below(&random, top_k + 1); /* the rest is padding */
        const int spread = (int)tw_random_below(&random, 3);
        int32_t position[MOST + 1], shuffled[4 * MOST];
        float weight[MOST];
        uint16_t half[MOST + 1];
        uint8_t disorder[MOST + 1];
        struct entry expected[MOST];
        for (int32_t i = 0; i < 4 * MOST; i++) shuffled[i] = i;
        for (size_t i = 0; i < top_k; i++) {
            const size_t other = i + tw_random_below(&random, 4 * MOST - i);
            const int32_t p = shuffled[i];
            shuffled[i] = shuffled[other];
            shuffled[other] = p;
            position[i] = i < n ? shuffled[i] : -1;
            /* Weights apart, weights of which several become one half, and weights of which most become 0. */
            const double unit = tw_random_unit(&random);
            weight[i] = i >= n        ? 0
                        : spread == 0 ? (float)unit
                        : spread == 1 ? (float)(0.5 + unit / 64)
                                      : (float)(unit * 0x1p-22);
        }
        qsort(weight, n, sizeof *weight, descending);
        for (size_t i = 0; i < top_k; i++)
            expected[i] = (struct entry){tw_half_from_float(weight[i]), (uint32_t)position[i]};
        qsort(expected, top_k, sizeof *expected, by_stored);
        position[top_k] = 12345;
        half[top_k] = 12345;
        disorder[top_k] = 123;
        tw_order_stored_ties(position, weight, half, disorder, top_k);
        for (size_t i = 0; i < top_k; i++)
            ck_assert_msg((uint32_t)position[i] == expected[i].position, "round %d: entry %zu of %zu", round, i, top_k);
        ck_assert(position[top_k] == 12345 && half[top_k] == 12345 && disorder[top_k] == 123);
    }
}
END_TEST

Suite *tw_suite_ties(void);
Suite *tw_suite_ties(void) {
    Suite *suite = suite_create("ties");
    TCase *tcase = tcase_create("ties");
    tcase_add_test(tcase, as_a_plain_sort);
    suite_add_tcase(suite, tcase);
    return suite;
}
