/*
 * Spreading replay over the processes of an MPI job (`make MPI=1`). Without MPI there is one rank, and adding up over
 * the ranks is doing nothing.
 */
#ifndef TW_SIM_RANKS_H
#define TW_SIM_RANKS_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Joins the job, once a process; leaves it at exit. Fails with TW_E_UNSUPPORTED when MPI refuses. */
tw_status tw_ranks_join(struct tw_error *err);
size_t tw_ranks_count(void); /* 1 before joining */
size_t tw_ranks_own(void);   /* this process, from 0 */

/*
 * Element-wise sums over all ranks, in place, the same on every rank. Every rank must call with the same n. Doubles
 * must be 0 on all ranks but one, so that no sum rounds.
 */
void tw_ranks_sum_u64(uint64_t *values, size_t n);
void tw_ranks_sum_u32(uint32_t *values, size_t n);
void tw_ranks_sum_double(double *values, size_t n);

/* The worst status of all ranks. On ranks where it was TW_OK, a failure elsewhere leaves a sentence that says so. */
tw_status tw_ranks_agree(tw_status status, struct tw_error *err);

#endif
