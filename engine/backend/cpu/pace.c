#include "engine/backend/cpu/pace.h"

#include <string.h>

#define FIRST_SAMPLE  4          /* layers with all threads before the first sample alone: they warm up */
#define PATIENCE      (12 * 60)  /* layers alone before all threads are tried again */
#define MOST_PATIENCE (192 * 60) /* and at most, when they were slower again and again */
#define RENEWAL       32         /* windows with all threads after which `alone` is measured anew: caches grow */

void tw_cpu_pace_init(struct tw_cpu_pace *pace, size_t n_threads) {
    memset(pace, 0, sizeof *pace);
    pace->n_threads = n_threads;
    pace->patience = PATIENCE;
}

size_t tw_cpu_pace_threads(const struct tw_cpu_pace *pace) { return pace->single ? 1 : pace->n_threads; }

static void go(struct tw_cpu_pace *pace, bool single, size_t samples) {
    pace->single = single;
    pace->samples = samples;
    pace->layers = 0;
    pace->seconds = 0;
}

/* The mean of a sample but for its two slowest layers, which may have been interrupted. */
static double mean_of(double *sample) {
    double sum = 0;
    for (size_t i = 1; i < TW_CPU_PACE_SAMPLE; i++)
        for (size_t j = i; j && sample[j - 1] > sample[j]; j--) {
            const double other = sample[j];
            sample[j] = sample[j - 1];
            sample[j - 1] = other;
        }
    for (size_t i = 0; i < TW_CPU_PACE_SAMPLE - 2; i++) sum += sample[i];
    return sum / (TW_CPU_PACE_SAMPLE - 2);
}

static void took_alone(struct tw_cpu_pace *pace, double seconds) {
    pace->sample[pace->layers++ % TW_CPU_PACE_SAMPLE] = seconds;
    if (pace->layers % TW_CPU_PACE_SAMPLE == 0) pace->alone = mean_of(pace->sample);
    if (--pace->samples) return;
    pace->windows = 0;
    go(pace, false, 0);
}

static void took_together(struct tw_cpu_pace *pace, double seconds) {
    pace->layers++;
    pace->seconds += seconds;
    if (pace->alone == 0) {
        if (pace->layers == FIRST_SAMPLE) go(pace, true, TW_CPU_PACE_SAMPLE);
        return;
    }
    if (pace->seconds > TW_CPU_PACE_WINDOW * pace->alone) {
        const bool failed_at_once = pace->windows == 0;
        if (!failed_at_once)
            pace->patience = PATIENCE;
        else if (pace->patience < MOST_PATIENCE)
            pace->patience *= 2;
        go(pace, true, pace->patience);
    } else if (pace->layers == TW_CPU_PACE_WINDOW) {
        const bool renew = ++pace->windows % RENEWAL == 0;
        go(pace, renew, TW_CPU_PACE_SAMPLE);
    }
}

void tw_cpu_pace_took(struct tw_cpu_pace *pace, double seconds) {
    if (pace->n_threads == 1) return;
    if (pace->single)
        took_alone(pace, seconds);
    else
        took_together(pace, seconds);
}
