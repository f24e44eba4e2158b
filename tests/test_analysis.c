/* The arithmetic of the analysis over plain arrays, against cases by hand and slow, obvious oracles. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/activity.h"
#include "analysis/head_churn.h"
#include "analysis/similarity.h"
#include "analysis/stats.h"
#include "base/random.h"
#include "tests/support.h"

#define ck_near(a, b)                                                                                                  \
    ck_assert_msg(fabs((a) - (b)) <= 1e-12, "%s is %.17g, expected %.17g", #a, (double)(a), (double)(b))

START_TEST(quantiles_interpolate_linearly) {
    const double values[] = {1, 2, 3, 4};
    ck_near(tw_quantile_sorted(values, 4, 0.1), 1.3);
    ck_near(tw_quantile_sorted(values, 4, 0.9), 3.7);
    ck_near(tw_quantile_sorted(values, 4, 0), 1);
    ck_near(tw_quantile_sorted(values, 4, 1), 4);
    ck_near(tw_quantile_sorted(values, 1, 0.7), 1);
    ck_assert(isnan(tw_quantile_sorted(values, 0, 0.5)));
}
END_TEST

START_TEST(medians_means_and_deviations) {
    const double values[] = {5, 1, 4, 2};
    ck_near(tw_median_small(values, 4), 3);
    ck_near(tw_median_small(values, 3), 4);
    ck_near(tw_median_small(values, 1), 5);
    ck_assert(isnan(tw_median_small(values, 0)));
    ck_near(tw_mean(values, 4), 3);
    ck_near(tw_deviation(values, 4), sqrt(2.5)); /* of the population */
    ck_assert(isnan(tw_mean(values, 0)) && isnan(tw_deviation(values, 0)));
    ck_near(tw_f1(0, 0), 0);
    ck_near(tw_f1(0.5, 1), 2.0 / 3);
    ck_assert(isnan(tw_f1(NAN, 1)));
    ck_assert(isnan(tw_ratio(0, 0)));
}
END_TEST

START_TEST(normal_tail) { /* the usual table */
    ck_assert(fabs(tw_normal_upper(0.05) - 1.6448536269514722) < 1e-12);
    ck_assert(fabs(tw_normal_upper(0.01) - 2.3263478740408408) < 1e-12);
    ck_assert(fabs(tw_normal_upper(0.5)) < 1e-12);
    ck_assert(fabs(tw_normal_upper(1e-6) - 4.753424308822899) < 1e-11);
}
END_TEST

START_TEST(similarities) {
    ck_near(tw_jaccard(0, 0, 0), 1);
    ck_near(tw_jaccard(1, 2, 3), 0.25);
    ck_near(tw_overlap(0, 0, 3), 0);
    ck_near(tw_overlap(2, 2, 5), 1);
    ck_near(tw_rco(0, 0, 4, 10), 1);       /* K = 0 */
    ck_near(tw_rco(1, 4, 4, 4), 1);        /* the pool is no larger than K */
    ck_near(tw_rco(2, 4, 5, 10), 1.0 / 6); /* (0.5 - 0.4) / 0.6 */
    ck_near(tw_rco(1, 4, 4, 10), 0);       /* below chance */
    ck_near(tw_rco(4, 4, 4, 10), 1);
}
END_TEST

/* ---- one head against the definitions, written out ---- */

enum { MAX_STEPS = 80, MAX_PAGES = 700 };
struct case_sets {
    bool wanted[MAX_STEPS][MAX_PAGES];
    size_t n_steps, n_pages;
    uint64_t begin[MAX_STEPS + 1];
    uint32_t page[MAX_STEPS * MAX_PAGES + 3];
    size_t pool[MAX_STEPS];
};

static void make_sets(struct case_sets *c, struct tw_random *random) {
    c->n_steps = 1 + tw_random_below(random, MAX_STEPS);
    const size_t sizes[] = {1, 3, 9, 40, MAX_PAGES};
    c->n_pages = sizes[tw_random_below(random, 5)];
    const double density = tw_random_unit(random), change = tw_random_unit(random);
    size_t n = 3; /* another head's pages stand before: they must not be touched */
    memset(c->page, 0xff, 3 * sizeof *c->page);
    for (size_t t = 0; t < c->n_steps; t++) {
        const bool empty = tw_random_below(random, 8) == 0;
        c->begin[t] = n;
        for (size_t p = 0; p < c->n_pages; p++) {
            const bool fresh = t == 0 || tw_random_unit(random) < change;
            c->wanted[t][p] = !empty && (fresh ? tw_random_unit(random) < density : c->wanted[t - 1][p]);
            if (c->wanted[t][p]) c->page[n++] = (uint32_t)p;
        }
        /* Sometimes a pool smaller than the set, which a sound trace does not have. */
        c->pool[t] = 1 + tw_random_below(random, 2 * c->n_pages);
    }
    c->begin[c->n_steps] = n;
}

static size_t size_of(const struct case_sets *c, size_t t) { return c->begin[t + 1] - c->begin[t]; }
static size_t both_of(const struct case_sets *c, size_t a, size_t b) {
    size_t n = 0;
    for (size_t p = 0; p < c->n_pages; p++) n += c->wanted[a][p] && c->wanted[b][p];
    return n;
}
static double plain_rco(double both, double a, double b, double n) {
    const double k = fmin(a, b);
    if (k == 0 || n <= k) return 1;
    return fmax(0, (fmin(1, both / k) - k / n) / (1 - k / n));
}

static void plain_churn(struct tw_head_churn *churn, uint32_t *drift, const struct case_sets *c) {
    const size_t S = c->n_steps, W = S < 16 ? S : 16;
    double all = 0, adjacent = 0;
    for (size_t s = 0; s + W <= S; s++) {
        double ts = 0;
        for (size_t d = 1; d < W; d++)
            ts += plain_rco(both_of(c, s, s + d), size_of(c, s), size_of(c, s + d), c->pool[s + d]);
        all += ts / (double)(W - 1);
    }
    churn->stability = all / (double)(S - W + 1);
    for (size_t t = 1; t < S; t++) {
        const size_t both = both_of(c, t - 1, t), either = size_of(c, t - 1) + size_of(c, t) - both;
        adjacent += either ? (double)both / (double)either : 1;
    }
    churn->adjacent_jaccard = adjacent / (double)(S - 1);
    double history[MAX_STEPS];
    size_t n = 0, baseline = 0;
    churn->n_drifts = 0;
    for (size_t t = 1; t < S; t++) {
        const double smaller = fmin(size_of(c, baseline), size_of(c, t));
        history[n++] = smaller ? both_of(c, baseline, t) / smaller : 0;
        if (n < 8) continue;
        double last[8];
        memcpy(last, history + n - 8, sizeof last);
        tw_sort_doubles(last, 8);
        if ((last[3] + last[4]) / 2 < 0.5) {
            drift[churn->n_drifts++] = (uint32_t)t - 1;
            baseline = t;
            n = 0;
        }
    }
}

START_TEST(one_head_as_defined) {
    struct case_sets *const c = malloc(sizeof *c);
    ck_assert_ptr_nonnull(c);
    for (uint64_t seed = tw_test_seed(); seed < tw_test_seed() + 150; seed++) {
        struct tw_random random;
        tw_random_init(&random, seed, 0);
        make_sets(c, &random);
        struct tw_head_workspace workspace;
        ck_assert_int_eq(tw_head_workspace_init(&workspace, c->n_pages, NULL), TW_OK);
        const struct tw_page_sets sets = {c->n_steps, c->begin, c->page};
        struct tw_head_churn expected, got;
        uint32_t expected_drift[MAX_STEPS], drift[MAX_STEPS], both[MAX_STEPS];
        double jaccard[MAX_STEPS];
        plain_churn(&expected, expected_drift, c);
        for (int again = 0; again < 2; again++) { /* the workspace is left as it was */
            tw_head_churn_measure(&got, jaccard, drift, &sets, c->pool, &workspace);
            ck_assert_msg(got.n_drifts == expected.n_drifts &&
                              memcmp(drift, expected_drift, got.n_drifts * sizeof *drift) == 0,
                          "seed %llu: drift events", (unsigned long long)seed);
            if (c->n_steps > 1) {
                ck_assert_msg(fabs(got.stability - expected.stability) < 1e-12, "seed %llu: stability %.17g, %.17g",
                              (unsigned long long)seed, got.stability, expected.stability);
                ck_assert_msg(fabs(got.adjacent_jaccard - expected.adjacent_jaccard) < 1e-12, "seed %llu: Jaccard",
                              (unsigned long long)seed);
                ck_assert(fabs(tw_mean(jaccard, c->n_steps - 1) - got.adjacent_jaccard) < 1e-12);
            } else {
                ck_assert(isnan(got.stability) && isnan(got.adjacent_jaccard));
            }
        }
        tw_head_overlap_with_first(both, &sets, &workspace);
        for (size_t t = 0; t < c->n_steps; t++) ck_assert_uint_eq(both[t], both_of(c, 0, t));
        tw_head_overlap_with_previous(both, &sets, &workspace);
        for (size_t t = 0; t < c->n_steps; t++) ck_assert_uint_eq(both[t], t ? both_of(c, t - 1, t) : 0);
        tw_head_workspace_release(&workspace);
    }
    free(c);
}
END_TEST

START_TEST(drift_needs_eight_overlaps) {
    /* Step 0 wants page 0, every later step page 1: the eighth overlap (step 8, numbered 7) decides, then again. */
    uint64_t begin[31];
    uint32_t page[30];
    size_t pool[30];
    for (size_t t = 0; t < 30; t++) begin[t] = t, page[t] = t < 1 ? 0 : t < 9 ? 1 : 2, pool[t] = 10;
    begin[30] = 30;
    struct tw_head_workspace workspace;
    ck_assert_int_eq(tw_head_workspace_init(&workspace, 3, NULL), TW_OK);
    const struct tw_page_sets sets = {30, begin, page};
    struct tw_head_churn churn;
    uint32_t drift[30];
    tw_head_churn_measure(&churn, NULL, drift, &sets, pool, &workspace);
    ck_assert_uint_eq(churn.n_drifts, 2);
    ck_assert_uint_eq(drift[0], 7);
    ck_assert_uint_eq(drift[1], 15);
    tw_head_workspace_release(&workspace);
}
END_TEST

/* ---- active sets ---- */

START_TEST(active_sets_by_hand) {
    /* 3 heads, 4 steps: {0}, {0, 1}, {}, {} */
    const uint8_t active[4][3] = {{1, 0, 0}, {1, 1, 0}, {0, 0, 0}, {0, 0, 0}};
    struct tw_activity a;
    double jaccard[3];
    uint32_t size[4];
    ck_assert_int_eq(tw_activity_measure(&a, jaccard, size, &active[0][0], 4, 3, NULL), TW_OK);
    ck_assert(size[0] == 1 && size[1] == 2 && size[2] == 0 && size[3] == 0);
    ck_near(jaccard[0], 0.5);
    ck_near(jaccard[1], 0);
    ck_near(jaccard[2], 1); /* both empty */
    ck_near(a.adjacent_jaccard, 0.5);
    ck_near(a.empty_share, 0.5);
    ck_near(a.active_mean, 0.75);
    ck_near(a.active_std, sqrt(11.0) / 4);
    ck_assert_uint_eq(a.distinct, 2);
    ck_near(a.jaccard_top20, 0.5); /* with all three: 1/3 and 2/3 */
    ck_near(a.entropy, -(2.0 / 3 * log(2.0 / 3) + 1.0 / 3 * log(1.0 / 3)));
}
END_TEST

START_TEST(the_higher_of_equally_active_heads_comes_first) {
    enum { HEADS = 25 };
    uint8_t active[HEADS][HEADS] = {{0}}; /* every head once: the 20 are 5..24 */
    for (size_t t = 0; t < HEADS; t++) active[t][t] = 1;
    struct tw_activity a;
    ck_assert_int_eq(tw_activity_measure(&a, NULL, NULL, &active[0][0], HEADS, HEADS, NULL), TW_OK);
    ck_near(a.jaccard_top20, 20.0 / HEADS / 20);
    uint8_t lowest[2][HEADS] = {{1}, {0}}; /* head 0, filled up by 6..24 */
    ck_assert_int_eq(tw_activity_measure(&a, NULL, NULL, &lowest[0][0], 2, HEADS, NULL), TW_OK);
    ck_near(a.jaccard_top20, 0.05);
    const uint8_t one[1] = {0};
    ck_assert_int_eq(tw_activity_measure(&a, NULL, NULL, one, 1, 1, NULL), TW_OK);
    ck_assert(isnan(a.adjacent_jaccard) && isnan(a.jaccard_top20));
    ck_near(a.entropy, 0);
}
END_TEST

Suite *tw_suite_analysis(void);
Suite *tw_suite_analysis(void) {
    Suite *suite = suite_create("analysis");
    TCase *stats = tcase_create("stats");
    tcase_add_test(stats, quantiles_interpolate_linearly);
    tcase_add_test(stats, medians_means_and_deviations);
    tcase_add_test(stats, normal_tail);
    tcase_add_test(stats, similarities);
    suite_add_tcase(suite, stats);
    TCase *churn = tcase_create("churn");
    tcase_set_timeout(churn, 60);
    tcase_add_test(churn, one_head_as_defined);
    tcase_add_test(churn, drift_needs_eight_overlaps);
    tcase_add_test(churn, active_sets_by_hand);
    tcase_add_test(churn, the_higher_of_equally_active_heads_comes_first);
    suite_add_tcase(suite, churn);
    return suite;
}
