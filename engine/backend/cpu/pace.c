#include "engine/backend/cpu/pace.h"

#include <string.h>

#define TRIAL_STEPS   3 /* steps that a trial of the other mode takes */
#define FIRST_TRIAL   4 /* the first trial of one thread comes after so many steps: it gives the mark to compare with */
#define PATIENCE      24 /* steps alone before all threads are tried again; doubles while they stay slower */
#define MOST_PATIENCE 192
#define RENEWAL       512 /* steps with all threads after which the mark is measured anew: caches grow */

void tw_cpu_pace_init(struct tw_cpu_pace *pace, size_t n_threads) {
    memset(pace, 0, sizeof *pace);
    pace->n_threads = n_threads;
    pace->patience = PATIENCE;
}

static bool single_now(const struct tw_cpu_pace *pace) { return pace->trial ? !pace->single : pace->single; }

size_t tw_cpu_pace_threads(const struct tw_cpu_pace *pace) {
    return pace->n_threads == 1 || single_now(pace) ? 1 : pace->n_threads;
}

/* The middle one of the recent steps' times; 0 when there are none. */
static double middle(const struct tw_cpu_pace *pace, int mode) {
    double sorted[TW_CPU_PACE_RECENT];
    const size_t n = pace->n_recent[mode] < TW_CPU_PACE_RECENT ? pace->n_recent[mode] : TW_CPU_PACE_RECENT;
    for (size_t i = 0; i < n; i++) {
        size_t at = i;
        for (; at > 0 && sorted[at - 1] > pace->recent[mode][i]; at--) sorted[at] = sorted[at - 1];
        sorted[at] = pace->recent[mode][i];
    }
    return n ? sorted[n / 2] : 0;
}

static void start_trial(struct tw_cpu_pace *pace) {
    pace->trial = TRIAL_STEPS;
    pace->n_recent[!pace->single] = 0;
}

static void end_trial(struct tw_cpu_pace *pace) {
    pace->steps = 0;
    const double all = middle(pace, 0), alone = middle(pace, 1);
    const bool was = pace->single;
    pace->single = alone < all;
    if (!was || !pace->single)
        pace->patience = PATIENCE;
    else if (pace->patience < MOST_PATIENCE)
        pace->patience *= 2;
}

void tw_cpu_pace_took(struct tw_cpu_pace *pace, double seconds, bool ends) {
    if (pace->n_threads == 1) return;
    pace->seconds += seconds;
    if (!ends) return;
    const int mode = single_now(pace);
    pace->recent[mode][pace->n_recent[mode]++ % TW_CPU_PACE_RECENT] = pace->seconds;
    pace->seconds = 0;
    pace->steps++;
    if (pace->trial) {
        if (--pace->trial == 0) end_trial(pace);
        return;
    }
    if (pace->single) {
        if (pace->steps >= pace->patience) start_trial(pace);
    } else if (pace->n_recent[1] == 0) {
        if (pace->steps >= FIRST_TRIAL) start_trial(pace);
    } else if (pace->steps >= RENEWAL) {
        start_trial(pace);
    } else if (pace->n_recent[0] >= 2 && middle(pace, 0) > middle(pace, 1)) {
        /* All threads have become slower than one was. */
        pace->single = true;
        pace->steps = 0;
        pace->patience = PATIENCE;
    }
}
