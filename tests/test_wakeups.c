/* Wake-ups: the arithmetic by hand and against slow oracles, and every figure of the golden traces. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/clustering.h"
#include "analysis/grading.h"
#include "analysis/markers.h"
#include "analysis/wake.h"
#include "base/half.h"
#include "base/random.h"
#include "tests/golden_json.h"
#include "tests/support.h"

#define ck_near(a, b)                                                                                                  \
    ck_assert_msg(fabs((a) - (b)) <= 1e-12, "%s is %.17g, expected %.17g", #a, (double)(a), (double)(b))

START_TEST(wake_events_by_hand) {
    float score[40] = {0};
    uint32_t event[40];
    score[8] = 0.3f; /* after 8 quiet steps: 0..7 */
    ck_assert_uint_eq(tw_wake_events(event, score, 1, 40), 1);
    ck_assert_uint_eq(event[0], 8);
    score[8] = 0;
    score[7] = 0.3f;  /* after 7: none, and the count restarts */
    score[15] = 0.3f; /* after 7 again */
    ck_assert_uint_eq(tw_wake_events(event, score, 1, 40), 0);
    score[24] = 0.2f;  /* not above; and not below 0.05 */
    score[33] = 0.05f; /* not below: restarts the count */
    score[39] = 0.9f;
    ck_assert_uint_eq(tw_wake_events(event, score, 1, 40), 0);
    score[33] = nextafterf(0.05f, 0); /* as float32 */
    score[24] = nextafterf(0.2f, 1);
    ck_assert_uint_eq(tw_wake_events(event, score, 1, 40), 2);
    ck_assert_uint_eq(event[0], 24);
    ck_assert_uint_eq(event[1], 39);
    const float two_heads[18] = {[16] = 1, [17] = 0.01f}; /* strided */
    ck_assert_uint_eq(tw_wake_events(event, two_heads, 2, 9), 1);
    ck_assert_uint_eq(tw_wake_events(event, two_heads + 1, 2, 9), 0);
}
END_TEST

START_TEST(entropy_of_rows) {
    const int32_t position[4] = {5, -1, 9, 2};
    const uint16_t weight[4] = {tw_half_from_float(0.25f), tw_half_from_float(0.5f), tw_half_from_float(0.25f), 0};
    ck_near(tw_row_entropy(position, weight, 4), log(2)); /* the padding's weight is left out, 0 ln 0 is 0 */
    const int32_t none[2] = {-1, -1};
    ck_near(tw_row_entropy(none, weight, 2), 0);
    ck_near(tw_row_entropy(position + 3, weight + 3, 1), 0);
}
END_TEST

START_TEST(z_scores_by_hand) {
    double value[40], z[40];
    for (int t = 0; t < 40; t++) value[t] = t % 2; /* mean 0.5, deviation 0.5 over an even number of values */
    tw_causal_z(z, value, 40);
    ck_near(z[3], 0); /* three values before */
    ck_near(z[4], -1);
    ck_near(z[37], 1);
    for (int t = 0; t < 40; t++) value[t] = 0.1;
    value[20] = 0.3, value[22] = -1;
    value[10] = 0.1 + 1e-10; /* rounding */
    tw_causal_z(z, value, 40);
    ck_near(z[10], 0);
    ck_near(z[20], 10);
    value[20] = 0;
    tw_causal_z(z, value, 40);
    ck_near(z[20], -10);
    const double raw[4] = {1, 2, 4, 8};
    tw_signal_above_recent(value, raw, 4, 2);
    ck_near(value[0], 0);
    ck_near(value[1], 1);
    ck_near(value[3], 5);
}
END_TEST

START_TEST(alarms_as_defined) {
    enum { MAX = 90 };
    for (uint64_t seed = tw_test_seed(); seed < tw_test_seed() + 300; seed++) {
        struct tw_random random;
        tw_random_init(&random, seed, 1);
        const size_t n_steps = 1 + tw_random_below(&random, MAX);
        const uint64_t rare = 1 + tw_random_below(&random, 20);
        uint8_t alarm[MAX], is_event[MAX];
        uint32_t event[MAX];
        size_t n_events = 0;
        for (size_t t = 0; t < n_steps; t++) {
            alarm[t] = tw_random_below(&random, rare) == 0;
            is_event[t] = tw_random_below(&random, rare) == 0;
            if (is_event[t]) event[n_events++] = (uint32_t)t;
        }
        struct tw_alarms got = {0};
        tw_alarms_add(&got, alarm, n_steps, event, n_events);
        ck_assert_uint_eq(got.events, n_events);
        for (size_t i = 0; i < TW_N_LEADS; i++) {
            const size_t k = tw_leads[i];
            size_t caught = 0, right = 0, alarms = 0;
            for (size_t t = 0; t < n_steps; t++) {
                bool any = false;
                for (size_t s = t > k ? t - k : 0; s < t; s++) any = any || alarm[s];
                caught += is_event[t] && any;
                any = false;
                for (size_t e = t + 1; e <= t + k && e < n_steps; e++) any = any || is_event[e];
                right += alarm[t] && any;
                alarms += alarm[t];
            }
            ck_assert_msg(got.caught[i] == caught && got.true_alarms[i] == right && got.alarms == alarms,
                          "seed %llu, lead %zu", (unsigned long long)seed, k);
        }
    }
}
END_TEST

/* ---- pooled measures over runs made by hand ---- */

enum { STEPS = 100 };
static uint32_t events_of[3][4] = {{10, 40, 70}, {11, 41, 71}, {12, 42, 72}};

static struct tw_wakeups make_run(struct tw_wake_head *heads, size_t n, int32_t *token_id) {
    struct tw_wakeups run = {.n_steps = STEPS, .n_layers = 1, .n_heads = 3, .has_needle = true, .heads = heads, .n = n};
    for (size_t h = 0; h < n; h++) {
        heads[h] = (struct tw_wake_head){.head = h, .event = events_of[h], .n_events = 3};
        run.n_events += 3;
        run.n_heads_with_event++;
    }
    for (size_t t = 0; t < STEPS; t++) token_id[t] = (int32_t)(t % 25);
    run.token_id = token_id;
    return run;
}

START_TEST(clustering_by_hand) {
    struct tw_wake_head heads[3];
    int32_t token_id[STEPS];
    const struct tw_wakeups run = make_run(heads, 3, token_id);
    const struct tw_wakeups *const runs[] = {&run};
    struct tw_clustering c, again, other;
    ck_assert_int_eq(tw_clustering_measure(&c, runs, 1, 7, NULL), TW_OK);
    ck_near(c.share, 0.8 * 8.5 / STEPS); /* 6.8 steps */
    ck_assert_uint_eq(c.runs[0].busy_steps, 7);
    ck_near(c.runs[0].concentration, 7.0 / 9); /* of nine equally busy steps the seven later ones */
    ck_near(c.runs[0].trigger_recall, 1);      /* all lie within 4 of another */
    ck_near(c.runs[0].fano, 0.91);
    ck_assert_uint_eq(c.runs[0].most_together, 1);
    ck_assert(c.runs[0].shuffled_mean > 7.0 / 9 && c.runs[0].z < 0); /* shuffled, some fall together */
    ck_assert_int_eq(tw_clustering_measure(&again, runs, 1, 7, NULL), TW_OK);
    ck_assert(again.z == c.z && again.runs[0].shuffled_mean == c.runs[0].shuffled_mean);
    ck_assert_int_eq(tw_clustering_measure(&other, runs, 1, 8, NULL), TW_OK);
    ck_assert(other.z != c.z);
    tw_clustering_release(&c);
    tw_clustering_release(&again);
    tw_clustering_release(&other);
    /* No events: nothing is defined. */
    const struct tw_wakeups quiet = {.n_steps = STEPS, .has_needle = true};
    const struct tw_wakeups *const none[] = {&quiet};
    ck_assert_int_eq(tw_clustering_measure(&c, none, 1, 7, NULL), TW_OK);
    ck_assert(isnan(c.share) && isnan(c.z) && c.n_runs == 0);
    tw_clustering_release(&c);
}
END_TEST

START_TEST(heads_that_wake_together_stand_out) {
    struct tw_wake_head heads[3];
    int32_t token_id[STEPS];
    struct tw_wakeups run = make_run(heads, 3, token_id);
    for (size_t h = 0; h < 3; h++) heads[h].event = events_of[0];
    const struct tw_wakeups *const runs[] = {&run};
    struct tw_clustering c;
    ck_assert_int_eq(tw_clustering_measure(&c, runs, 1, 0, NULL), TW_OK);
    ck_near(c.runs[0].concentration, 1);
    ck_assert_uint_eq(c.runs[0].most_together, 3);
    ck_assert(c.z > 1.5);
    tw_clustering_release(&c);
}
END_TEST

START_TEST(markers_by_hand) {
    /* Token 7 stands 3 steps before every event and nowhere else; all others are 1. */
    struct tw_wake_head head = {.head = 0};
    uint32_t event[10];
    int32_t token_id[200];
    for (size_t t = 0; t < 200; t++) token_id[t] = 1;
    for (size_t i = 0; i < 10; i++) event[i] = (uint32_t)(10 + 20 * i), token_id[7 + 20 * i] = 7;
    head.event = event, head.n_events = 10;
    struct tw_wakeups run = {.n_steps = 200,
                             .has_needle = true,
                             .heads = &head,
                             .n = 1,
                             .n_events = 10,
                             .n_heads_with_event = 1,
                             .token_id = token_id};
    const struct tw_wakeups *const runs[] = {&run};
    struct tw_markers m;
    ck_assert_int_eq(tw_markers_find(&m, runs, 1, NULL), TW_OK);
    ck_assert_uint_eq(m.steps, 100);
    ck_assert_uint_eq(m.steps_before_event, 40);
    ck_assert_uint_eq(m.n_tested, 2);
    ck_assert_int_eq(m.tested[1].token, 7);
    ck_assert(m.tested[1].count == 5 && m.tested[1].hits == 5 && m.tested[1].found && !m.tested[0].found);
    const double p = 45.0 / 105;
    ck_near(m.tested[1].z, (1 - 0.4) / sqrt(p * (1 - p) * (0.2 + 0.01)));
    ck_assert(fabs(m.z_bar - 1.959963984540054) < 1e-12); /* 0.025 */
    const struct tw_alarms *const half = &m.graded[TW_MARKERS_SECOND_HALF], *const whole =
                                                                                &m.graded[TW_MARKERS_WHOLE_RUN];
    ck_assert(half->events == 5 && half->alarms == 5 && whole->events == 5 && whole->alarms == 10);
    ck_assert(half->caught[1] == 0 && half->caught[2] == 5 && half->true_alarms[2] == 5); /* leads 2 and 4 */
    ck_assert(whole->true_alarms[2] == 5);
    tw_markers_release(&m);
}
END_TEST

/* ---- the golden traces ---- */

static const char *const traces[] = {"plain",   "gqa",        "mqa",        "six",       "ties", "padded",
                                     "short",   "under128",   "long",       "k16",       "wide", "busy",
                                     "noscore", "study/run0", "study/run1", "study/run2"};
enum { N_TRACES = sizeof traces / sizeof *traces };

START_TEST(every_figure_of_a_trace) {
    static const char *const members[] = {"trace",  "steps",   "layers",     "heads",  "page_size", "wake",
                                          "tokens", "grading", "clustering", "series", NULL};
    const char *const name = traces[_i];
    char file[64], heads[64] = "";
    snprintf(file, sizeof file, "replay/%s.churn.json", name);
    cJSON *const golden = tw_test_json_file(tw_test_golden(file));
    const cJSON *entry;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(golden, "series")) {
        const size_t n = strlen(heads);
        snprintf(heads + n, sizeof heads - n, "%s%d", n ? "," : "--series ",
                 cJSON_GetObjectItemCaseSensitive(entry, "head")->valueint);
    }
    snprintf(file, sizeof file, "replay/%s.h5", name);
    struct tw_test_run run = tw_test_run("wakeups %s --format json %s", tw_test_golden(file), heads);
    ck_assert_msg(run.exit_status == 0, "%s", tw_text_string(&run.err));
    cJSON *const got = tw_test_json_text(tw_text_string(&run.out));
    tw_test_json_members(got, golden, members, name);
    const bool told = strstr(tw_text_string(&run.err), "has no /score/needle") != NULL;
    ck_assert_int_eq(told, strcmp(name, "noscore") == 0);
    cJSON_Delete(got);
    cJSON_Delete(golden);
    tw_test_run_release(&run);
}
END_TEST

START_TEST(runs_are_pooled) {
    static const char *const members[] = {"model",  "task",    "page_size",  "runs", "wakes",
                                          "tokens", "grading", "clustering", NULL};
    cJSON *const golden = tw_test_json_file(tw_test_golden("replay/study/churn.json"));
    struct tw_test_run run = tw_test_run("wakeups %s --average --format json", tw_test_golden("replay/study"));
    ck_assert_msg(run.exit_status == 0, "%s", tw_text_string(&run.err));
    cJSON *const got = tw_test_json_text(tw_text_string(&run.out));
    tw_test_json_members(got, golden, members, "study");
    cJSON_Delete(got);
    cJSON_Delete(golden);
    tw_test_run_release(&run);
}
END_TEST

START_TEST(the_seed_decides_and_threads_do_not) {
    const char *const folder = tw_test_folder();
    struct tw_test_run run =
        tw_test_shell("set -e; o=%s; w=\"$TW_PROGRAM wakeups %s --average --format json\";"
                      "OMP_NUM_THREADS=1 $w --seed 3 > $o/a; OMP_NUM_THREADS=3 $w --seed 3 > $o/b; $w --seed 4 > $o/c;"
                      "cmp $o/a $o/b; ! cmp -s $o/a $o/c",
                      folder, tw_test_golden("replay/study"));
    ck_assert_msg(run.exit_status == 0, "%s", tw_text_string(&run.err));
    tw_test_run_release(&run);
}
END_TEST

START_TEST(tables) {
    static const struct {
        const char *options, *says;
        size_t lines;
    } cases[] = {
        {"--format csv", "\nrun0,synthetic-1b,multiturn,run0,16,180,", 4},
        {"--average --format csv", "\nsynthetic-1b,multiturn,3,16,773,", 2},
        {"--average --rows grading --format csv", "\nsynthetic-1b,multiturn,3,ensemble,zscore,32,1.5,35,54,15,24,",
         1 + 90 + 12},
        {"--rows events --format csv", "\nrun0,", 1 + 35},
        {"--link 1GB/s --step-time 1ms --page-bytes 1000 --pages 8000 --format csv", ",8\n", 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tw_test_run run = tw_test_run("wakeups %s %s", tw_test_golden("replay/study"), cases[i].options);
        ck_assert_msg(run.exit_status == 0 && run.err.size == 0, "%s", tw_text_string(&run.err));
        ck_assert_msg(strstr(tw_text_string(&run.out), cases[i].says), "%s", tw_text_string(&run.out));
        size_t lines = 0;
        for (const char *c = tw_text_string(&run.out); *c; c++) lines += *c == '\n';
        ck_assert_uint_eq(lines, cases[i].lines);
        tw_test_run_release(&run);
    }
}
END_TEST

START_TEST(refusals) {
    static const struct {
        const char *options, *says;
    } cases[] = {
        {"--link 1GB/s", "--link needs --step-time"},
        {"--pages 3", "need --link"},
        {"--series 1", "--series needs --format json"},
        {"--series 1 --format json --average", "leave out --average"},
        {"--series 8 --format json", "there is no head 8"},
        {"--page-size 0", "--page-size"},
        {"--rows all", "summary"},
    };
    struct tw_test_run run = tw_test_run("wakeups %s %s", tw_test_golden("replay/plain.h5"), cases[_i].options);
    ck_assert_int_eq(run.exit_status, 2);
    ck_assert_msg(strstr(tw_text_string(&run.err), cases[_i].says), "%s", tw_text_string(&run.err));
    ck_assert_uint_eq(run.out.size, 0);
    tw_test_run_release(&run);
}
END_TEST

Suite *tw_suite_wakeups(void);
Suite *tw_suite_wakeups(void) {
    Suite *suite = suite_create("wakeups");
    TCase *arithmetic = tcase_create("arithmetic");
    tcase_set_timeout(arithmetic, 30);
    tcase_add_test(arithmetic, wake_events_by_hand);
    tcase_add_test(arithmetic, entropy_of_rows);
    tcase_add_test(arithmetic, z_scores_by_hand);
    tcase_add_test(arithmetic, alarms_as_defined);
    tcase_add_test(arithmetic, clustering_by_hand);
    tcase_add_test(arithmetic, heads_that_wake_together_stand_out);
    tcase_add_test(arithmetic, markers_by_hand);
    suite_add_tcase(suite, arithmetic);
    TCase *golden = tcase_create("golden");
    tcase_set_timeout(golden, 60);
    tcase_add_loop_test(golden, every_figure_of_a_trace, 0, N_TRACES);
    tcase_add_test(golden, runs_are_pooled);
    tcase_add_test(golden, the_seed_decides_and_threads_do_not);
    tcase_add_test(golden, tables);
    tcase_add_loop_test(golden, refusals, 0, 7);
    suite_add_tcase(suite, golden);
    return suite;
}
