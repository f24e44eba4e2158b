/* From the tallies of layers to the figures of a row: the counts of one policy over one stream of one trace. */
#ifndef TW_SIM_ACCOUNT_H
#define TW_SIM_ACCOUNT_H

#include "sim/replay.h"
#include "sim/tally.h"

/* The figures of one budget. */
struct tw_account_row {
    uint64_t misses, fetches, stall_steps, resident_page_steps, peak_resident;
    double stall_seconds, stall_seconds_p99;
};

/*
 * What a whole account is about. `by` says what is kept apart; groups are layers (n_layers) or units (n_layers *
 * n_units), otherwise there is one.
 */
struct tw_account_shape {
    size_t n_layers, n_units, n_steps, n_budgets;
    enum tw_replay_by by;
    const struct tw_link *link; /* NULL: no model of time */
    double page_bytes;
};

struct tw_account {
    struct tw_account_shape shape;
    struct tw_tally total; /* by run and by step: the sum over layers */
    uint32_t *
        *layer_fetches; /* by run and by step, with a link: [n_layers][n_steps][width] below; NULL where nothing */
    struct tw_account_row *rows; /* [n_groups][n_budgets]; by step: [n_steps][n_budgets], filled by finish */
    size_t n_groups;
    void **kept;     /* [n_layers] what the policy keeps of each layer */
    double *measure; /* [n_layers][n_units] */
};

tw_status tw_account_init(struct tw_account *account, const struct tw_account_shape *shape, struct tw_error *err);
/* Frees what the policy kept through free_kept. Copes with {0}. */
void tw_account_release(struct tw_account *account, void (*free_kept)(void *));

/* Sections the tally of a layer needs, and whether it needs misses by step. */
size_t tw_account_sections(const struct tw_account_shape *shape);
bool tw_account_wants_steps(const struct tw_account_shape *shape);

/*
 * Adds one layer. Whatever must not happen twice at a time is inside an OpenMP critical section, so that many threads
 * may call it with different layers.
 */
tw_status tw_account_add(struct tw_account *account, const struct tw_tally *tally, size_t layer, struct tw_error *err);

/* After the last layer: sums over the ranks of an MPI job, and fills the rows. */
tw_status tw_account_finish(struct tw_account *account, struct tw_error *err);

#endif
