/*
 * Wake-ups of a whole trace, and whether they can be predicted (WakeKV, section 2 and appendix B).
 *
 * A trace is measured by itself (tw_wakeups_measure); gradings, token markers and clustering (grading.h, markers.h,
 * clustering.h) pool any number of measured runs.
 */
#ifndef TW_ANALYSIS_WAKEUPS_H
#define TW_ANALYSIS_WAKEUPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "analysis/churn.h"
#include "analysis/wake.h"
#include "base/error.h"
#include "base/progress.h"
#include "traces/trace.h"

/* A head that woke at least once, or whose series was asked for. */
struct tw_wake_head {
    size_t head;     /* layer * n_heads + head */
    uint32_t *event; /* [n_events] steps, ascending */
    size_t n_events;
    double *value[TW_N_SIGNALS];   /* [n_steps] each */
    uint8_t *fires[TW_N_SIGNALS];  /* [n_steps] each: z-score above 2; of the ensemble: its count above 1.5 */
    double *z[TW_N_PLAIN_SIGNALS]; /* [n_steps] each; NULL unless the head's series was asked for */
    bool asked;
};

struct tw_wakeups {
    struct tw_trace_name name;
    size_t n_steps, n_layers, n_heads; /* n_heads: of a layer */
    size_t head_dim;
    uint64_t page_size;
    bool has_needle;            /* without needle scores nothing below is defined, and there are no heads */
    struct tw_wake_head *heads; /* [n] by head */
    size_t n;
    size_t n_events, n_heads_with_event;
    double pages_at_event; /* mean number of pages that a head wants when it wakes; NaN without events */
    int32_t *token_id;     /* [n_steps] generated */
};

/*
 *   asked  [n_asked] heads whose series are kept, in any order; numbers beyond the model's are TW_E_OPTION
 *
 * Fails as the reader does, or with TW_E_MEMORY, TW_E_OPTION, TW_E_INTERRUPTED.
 */
tw_status tw_wakeups_measure(struct tw_wakeups *wakeups, struct tw_trace *trace, uint64_t page_size,
                             const uint64_t *asked, size_t n_asked, struct tw_progress *progress, struct tw_error *err);
void tw_wakeups_release(struct tw_wakeups *wakeups); /* copes with {0} */

/* woken [n_steps]: whether any head wakes at each step. */
void tw_wakeups_by_step(uint8_t *woken, const struct tw_wakeups *wakeups);

/* Steps that a transfer takes: pages * page_bytes / bytes_per_second / step_seconds. */
static inline double tw_transfer_steps(double pages, double page_bytes, double bytes_per_second, double step_seconds) {
    return pages * page_bytes / bytes_per_second / step_seconds;
}

#endif
