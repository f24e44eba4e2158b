#include "sim/ranks.h"

#if TW_MPI
#include <mpi.h>
#include <stdlib.h>

/* MPI counts with int. */
#define TW_RANKS_AT_ONCE ((size_t)1 << 28)

static int n_ranks = 1, own_rank;

static void leave(void) {
    int done = 0;
    MPI_Finalized(&done);
    if (!done) MPI_Finalize();
}

tw_status tw_ranks_join(struct tw_error *err) {
    int there = 0, level;
    MPI_Initialized(&there);
    if (!there) {
        if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS)
            return TW_FAIL(err, TW_E_UNSUPPORTED, "MPI does not start; start the program with mpirun");
        atexit(leave);
    }
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &own_rank);
    return TW_OK;
}

size_t tw_ranks_count(void) { return (size_t)n_ranks; }
size_t tw_ranks_own(void) { return (size_t)own_rank; }

static void sum(char *values, size_t n, size_t size, MPI_Datatype type) {
    if (n_ranks == 1) return;
    while (n > 0) {
        const size_t part = n < TW_RANKS_AT_ONCE ? n : TW_RANKS_AT_ONCE;
        MPI_Allreduce(MPI_IN_PLACE, values, (int)part, type, MPI_SUM, MPI_COMM_WORLD);
        values += part * size;
        n -= part;
    }
}

void tw_ranks_sum_u64(uint64_t *values, size_t n) { sum((char *)values, n, sizeof *values, MPI_UINT64_T); }
void tw_ranks_sum_u32(uint32_t *values, size_t n) { sum((char *)values, n, sizeof *values, MPI_UINT32_T); }
void tw_ranks_sum_double(double *values, size_t n) { sum((char *)values, n, sizeof *values, MPI_DOUBLE); }

tw_status tw_ranks_agree(tw_status status, struct tw_error *err) {
    int worst = (int)status;
    if (n_ranks > 1) MPI_Allreduce(MPI_IN_PLACE, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (status == TW_OK && worst != TW_OK)
        return TW_FAIL(err, (tw_status)worst, "rank %d stops because another rank failed", own_rank);
    return status;
}

#else

tw_status tw_ranks_join(struct tw_error *err) {
    (void)err;
    return TW_OK;
}
size_t tw_ranks_count(void) { return 1; }
size_t tw_ranks_own(void) { return 0; }
void tw_ranks_sum_u64(uint64_t *values, size_t n) { (void)values, (void)n; }
void tw_ranks_sum_u32(uint32_t *values, size_t n) { (void)values, (void)n; }
void tw_ranks_sum_double(double *values, size_t n) { (void)values, (void)n; }
tw_status tw_ranks_agree(tw_status status, struct tw_error *err) {
    (void)err;
    return status;
}

#endif
