#include "analysis/wake.h"

#include <math.h>

#include "analysis/similarity.h"
#include "analysis/stats.h"
#include "base/checked.h"
#include "base/half.h"

const char *const tw_signal_names[TW_N_SIGNALS] = {"change", "drift", "entropy", "needle", "ensemble"};

size_t tw_wake_events(uint32_t *step, const float *needle, size_t stride, size_t n_steps) {
    size_t n_events = 0, quiet = 0;
    for (size_t t = 0; t < n_steps; t++) {
        const float score = needle[t * stride];
        if (score > TW_WAKE_ABOVE && quiet >= TW_WAKE_QUIET_STEPS) step[n_events++] = (uint32_t)t;
        quiet = score < TW_WAKE_QUIET ? quiet + 1 : 0;
    }
    return n_events;
}

void tw_signal_change(double *value, const struct tw_page_sets *sets, const size_t *pool, uint32_t *both,
                      struct tw_head_workspace *workspace) {
    tw_head_overlap_with_previous(both, sets, workspace);
    value[0] = 0;
    for (size_t t = 1; t < sets->n_steps; t++)
        value[t] = 1 - tw_rco(both[t], tw_page_sets_size(sets, t - 1), tw_page_sets_size(sets, t), pool[t]);
}

void tw_signal_drift(double *value, const struct tw_page_sets *sets, uint32_t *both,
                     struct tw_head_workspace *workspace) {
    tw_head_overlap_with_first(both, sets, workspace);
    double last[TW_DRIFT_HISTORY];
    for (size_t t = 0; t < sets->n_steps; t++) {
        last[t % TW_DRIFT_HISTORY] = tw_overlap(both[t], tw_page_sets_size(sets, 0), tw_page_sets_size(sets, t));
        value[t] = 1 - tw_median_small(last, tw_min_size(t + 1, TW_DRIFT_HISTORY));
    }
}

void tw_signal_above_recent(double *value, const double *raw, size_t n_steps, size_t back) {
    for (size_t t = 0; t < n_steps; t++) {
        const size_t n = tw_min_size(t, back);
        value[t] = n ? raw[t] - tw_mean(raw + t - n, n) : 0;
    }
}

double tw_row_entropy(const int32_t *position, const uint16_t *weight, size_t top_k) {
    /* -sum p ln p with p = w/sum is ln sum - (sum w ln w)/sum: one pass. */
    double sum = 0, weighted = 0;
    for (size_t k = 0; k < top_k; k++) {
        if (position[k] < 0) continue;
        const double w = (double)tw_float_from_half(weight[k]);
        if (w > 0) sum += w, weighted += w * log(w);
    }
    return sum > 0 ? log(sum) - weighted / sum : 0;
}

void tw_causal_z(double *z, const double *value, size_t n_steps) {
    for (size_t t = 0; t < n_steps; t++) {
        const size_t n = tw_min_size(t, TW_Z_WINDOW);
        if (n < TW_Z_MINIMUM) {
            z[t] = 0;
            continue;
        }
        const double above = value[t] - tw_mean(value + t - n, n), deviation = tw_deviation(value + t - n, n);
        if (deviation > TW_ABOVE_BY)
            z[t] = above / deviation;
        else
            z[t] = above > TW_ABOVE_BY ? TW_Z_LIMIT : above < -TW_ABOVE_BY ? -TW_Z_LIMIT : 0;
    }
}

void tw_signal_ensemble(double *value, const double *const z[TW_N_PLAIN_SIGNALS], size_t n_steps) {
    for (size_t t = 0; t < n_steps; t++) {
        value[t] = 0;
        for (size_t s = 0; s < TW_N_PLAIN_SIGNALS; s++) value[t] += tw_above(z[s][t], TW_Z_ABOVE);
    }
}
