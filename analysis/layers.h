/*
 * What every analysis of a trace does: run over its layers in parallel, each thread with scratch of its own, and stop
 * at the first failure, an interruption included.
 */
#ifndef TW_ANALYSIS_LAYERS_H
#define TW_ANALYSIS_LAYERS_H

#include <stddef.h>
#include <stdint.h>

#include "analysis/head_churn.h"
#include "base/error.h"
#include "base/progress.h"
#include "traces/demand.h"
#include "traces/trace.h"

struct tw_layer_job {
    const char *phase;                         /* for the progress line */
    void *context;                             /* shared by all layers */
    void *(*scratch_new)(const void *context); /* one a thread; NULL: out of memory */
    void (*scratch_free)(void *scratch);       /* copes with NULL */
    /* Runs on any thread; layers in no order. */
    tw_status (*run)(void *context, void *scratch, struct tw_trace *trace, size_t layer, struct tw_error *err);
};

/* Of several failures the one of the lowest layer is reported. Fails with TW_E_INTERRUPTED when a stop is requested. */
tw_status tw_layers_run(const struct tw_layer_job *job, struct tw_trace *trace, struct tw_progress *progress,
                        struct tw_error *err);

/* A unit's page sets, as they lie in a finished demand stream. */
static inline struct tw_page_sets tw_demand_page_sets(const struct tw_demand *demand, size_t unit) {
    return (struct tw_page_sets){
        .n_steps = demand->n_steps, .begin = demand->offset + unit * (demand->shape.n_steps + 1), .page = demand->page};
}

/* How many pages a step can choose from: max(1, context_length / page_size + 1). */
static inline size_t tw_page_pool(int32_t context_length, uint64_t page_size) {
    return (size_t)((uint64_t)context_length / page_size) + 1;
}

#endif
