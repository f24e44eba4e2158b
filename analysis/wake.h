/*
 * Wake-ups of one head, and the signals that might predict them (WakeKV, section 2 and appendix B; HeteroCache,
 * arXiv:2601.13684, eq. 1, 2, 9, 10). Pure arithmetic over arrays.
 */
#ifndef TW_ANALYSIS_WAKE_H
#define TW_ANALYSIS_WAKE_H

#include <stddef.h>
#include <stdint.h>

#include "analysis/head_churn.h"

enum {
    TW_WAKE_QUIET_STEPS = 8, /* consecutive quiet steps before a wake-up */
    TW_Z_WINDOW = 32,        /* values that a causal z-score looks back on */
    TW_Z_MINIMUM = 4,        /* with fewer it is 0 */
};
#define TW_WAKE_ABOVE     0.2f  /* needle score of a wake-up, compared as float32 */
#define TW_WAKE_QUIET     0.05f /* needle score below which a step is quiet */
#define TW_Z_ABOVE        2.0   /* a z-score that counts */
#define TW_ENSEMBLE_ABOVE 1.5   /* how many such z-scores make the ensemble fire */
#define TW_Z_LIMIT        10.0  /* of a value that differs from constant ones */

/* One series a head, higher = waking. */
enum tw_signal {
    TW_SIGNAL_CHANGE,   /* 1 - RCO of the page sets of t-1 and t */
    TW_SIGNAL_DRIFT,    /* 1 - median of the last 8 overlaps with the page set of step 0 */
    TW_SIGNAL_ENTROPY,  /* entropy of the renormalised weights minus its mean over the previous 8 steps */
    TW_SIGNAL_NEEDLE,   /* needle score minus its mean over the previous 4 steps */
    TW_SIGNAL_ENSEMBLE, /* how many of the four z-scores exceed 2 */
    TW_N_SIGNALS,
    TW_N_PLAIN_SIGNALS = TW_SIGNAL_ENSEMBLE,
};
extern const char *const tw_signal_names[TW_N_SIGNALS];

/*
 * Wake events: needle score > 0.2 after at least 8 consecutive steps below 0.05; the count restarts after an event and
 * at every step that is not below.
 *
 *   step    [n_steps]  out: ascending; returns how many
 *   needle  score of step t at needle[t * stride]
 */
size_t tw_wake_events(uint32_t *step, const float *needle, size_t stride, size_t n_steps);

/* The signals; each writes value [n_steps]. Scratch: both [n_steps]. */
void tw_signal_change(double *value, const struct tw_page_sets *sets, const size_t *pool, uint32_t *both,
                      struct tw_head_workspace *workspace);
void tw_signal_drift(double *value, const struct tw_page_sets *sets, uint32_t *both,
                     struct tw_head_workspace *workspace);
/* raw[t] minus the mean of up to `back` values before it; 0 at t = 0. */
void tw_signal_above_recent(double *value, const double *raw, size_t n_steps, size_t back);
enum { TW_ENTROPY_BACK = 8, TW_NEEDLE_BACK = 4 };

/* Entropy (natural logarithm) of a row's weights, divided by their sum; 0 for a row without weight.
 * position, weight [top_k]; entries whose position is -1 are left out; weights are bits of halves. */
double tw_row_entropy(const int32_t *position, const uint16_t *weight, size_t top_k);

/*
 * Causal z-score: (x_t - mean) / standard deviation of the previous 32 values, 0 with fewer than 4; where they do not
 * deviate by more than 1e-9 it is +10 or -10 when x_t does, else 0.
 */
void tw_causal_z(double *z, const double *value, size_t n_steps);

/* How many of the four z-scores exceed 2 at each step. */
void tw_signal_ensemble(double *value, const double *const z[TW_N_PLAIN_SIGNALS], size_t n_steps);

#endif
