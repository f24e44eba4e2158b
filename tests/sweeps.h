/* Small traces in memory through the one-pass policies, and the comparison with their plain forms. */
#ifndef TW_TESTS_SWEEPS_H
#define TW_TESTS_SWEEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/random.h"
#include "sim/account.h"
#include "tests/oracle.h"

/* How a small trace is replayed. */
struct tw_test_sweep {
    enum tw_replay_by by;
    uint64_t page_size;
    enum tw_unit unit;
    const uint64_t *budgets; /* [n_budgets] */
    size_t n_budgets;
};

/*
 * Runs one policy ("rkv:interval=3") over a trace in memory as replay does, without files. The account is finished;
 * release it with tw_account_release(account, NULL). Aborts when memory runs out.
 */
void tw_test_sweep_run(struct tw_account *account, const struct tw_oracle_trace *trace,
                       const struct tw_test_sweep *sweep, const char *policy);

/*
 * Compares every figure of every policy with its plain form, for one trace, cut and list of budgets. False with the
 * first difference in words.
 */
bool tw_test_sweep_compare(const struct tw_oracle_trace *trace, const struct tw_test_sweep *sweep, uint64_t every,
                           double unstable, char *difference, size_t size);

/* A whole random case: trace, cut, budgets and options. */
bool tw_test_sweeps_agree(uint64_t seed, char *difference, size_t size);

/* Allocates the arrays of a trace whose dimensions are set; position -1, weight 0. */
void tw_oracle_trace_allocate(struct tw_oracle_trace *trace);
void tw_oracle_trace_release(struct tw_oracle_trace *trace);

#endif
