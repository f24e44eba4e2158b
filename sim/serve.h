/* The driver of policies that serve step by step: one budget after the other, counted into the tally of a sweep. */
#ifndef TW_SIM_SERVE_H
#define TW_SIM_SERVE_H

#include "sim/tally.h"

/*
 * Runs one layer under all budgets. Fails with what the policy's open says, TW_E_MEMORY, or TW_E_INPUT when a policy
 * reports what cannot be (more misses than wishes); `label` names it in messages.
 */
tw_status tw_serve_sweep(struct tw_tally *tally, const struct tw_sweep *sweep, const struct tw_policy *policy,
                         const char *label, struct tw_error *err);

#endif
