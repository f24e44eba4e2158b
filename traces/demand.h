/*
 * The demand stream (spec: residency.md, "The stream"): one layer of a trace as, for each unit and step, the distinct
 * pages that it wants, ascending, with their scores. Built once a layer, page size and unit; shared by every policy,
 * budget and statistic.
 *
 * Units are query heads (TW_UNIT_QUERY: n_units = n_heads) or KV heads (TW_UNIT_KV: n_units = n_kv_heads, the demand of
 * a KV head is the union over the query heads of its group). The number of a unit in the whole trace is
 * layer * n_units + unit.
 *
 * Pages are ids in [0, n_pages) in the order of the true pages; true page = tw_demand_true_page(demand, id). Ids are
 * the true pages themselves unless the context is so long that tables by page would not be reasonable: then only pages
 * that occur in the layer have an id. Either way arrays of n_pages elements are fine, and order and equality mean the
 * same.
 *
 * Scores are whole numbers, 2^24 * weight summed over the page's positions (and the group's heads), hence exact.
 *
 *     struct tw_demand demand = {0};
 *     TW_TRY(tw_demand_read(&demand, trace, &source, layer, err));      again for the next layer: memory is reused
 *     for (size_t u = 0; u < demand.n_units; u++)
 *         for (size_t t = 0; t < demand.n_steps; t++) {
 *             const struct tw_demand_row row = tw_demand_row(&demand, u, t);
 *             for (size_t i = 0; i < row.n; i++) ... row.page[i], row.score[i] ...
 *         }
 *     tw_demand_release(&demand);
 */
#ifndef TW_TRACES_DEMAND_H
#define TW_TRACES_DEMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "traces/trace.h"

enum tw_unit { TW_UNIT_QUERY, TW_UNIT_KV };
/* "query", "kv" */
const char *tw_unit_name(enum tw_unit unit);

/* What one unit wants at one step. */
struct tw_demand_row {
    const uint32_t *page;  /* [n] ascending, distinct */
    const uint64_t *score; /* [n]; NULL when built without scores */
    size_t n;
};

/* How a stream is cut out of layers. */
struct tw_demand_shape {
    size_t n_steps;             /* steps in the stream */
    size_t n_heads, n_kv_heads; /* n_kv_heads divides n_heads */
    size_t top_k;               /* positions a row */
    uint64_t page_size;         /* tokens, > 0 */
    enum tw_unit unit;
    bool scores;             /* without them the stream is built faster */
    uint64_t position_limit; /* every position is below it: the longest context */
};

struct tw_demand {
    struct tw_demand_shape shape;
    size_t n_units, n_steps; /* n_steps: those appended so far, shape.n_steps in the end */
    size_t n_pages;          /* ids are in [0, n_pages) */
    uint64_t n_accesses;     /* rows' lengths summed */
    /* Internal: unit u's rows lie one after the other from offset[u][0] on. */
    uint64_t *offset; /* [n_units][n_steps + 1] into page and score */
    uint32_t *page;
    uint64_t *score;
    uint32_t *true_page;            /* [n_pages] ascending; NULL: ids are the pages */
    struct tw_demand_builder *work; /* scratch of the building, kept for the next layer */
};

static inline struct tw_demand_row tw_demand_row(const struct tw_demand *demand, size_t unit, size_t step) {
    const uint64_t *o = demand->offset + unit * (demand->shape.n_steps + 1) + step;
    return (struct tw_demand_row){demand->page + o[0], demand->score ? demand->score + o[0] : NULL,
                                  (size_t)(o[1] - o[0])};
}

static inline uint32_t tw_demand_true_page(const struct tw_demand *demand, uint32_t id) {
    return demand->true_page ? demand->true_page[id] : id;
}

/*
 * Building from rows in memory: begin, append blocks of steps in order, end. `demand` must be {0} or have been used
 * before (its content is dropped, its memory reused).
 *
 *   position [n_steps][n_heads][top_k]  below shape.position_limit; -1: padding
 *   weight   [n_steps][n_heads][top_k]  bits of halves, finite and not negative; not read (may be NULL) without scores
 *
 * Begin fails with TW_E_MEMORY, or TW_E_INPUT when the sizes overflow; end with TW_E_MEMORY.
 */
tw_status tw_demand_begin(struct tw_demand *demand, const struct tw_demand_shape *shape, struct tw_error *err);
void tw_demand_append(struct tw_demand *demand, const int32_t *position, const uint16_t *weight, size_t n_steps);
tw_status tw_demand_end(struct tw_demand *demand, struct tw_error *err);
void tw_demand_release(struct tw_demand *demand); /* copes with {0} */

/* Which stream to make of a trace. */
struct tw_demand_source {
    uint64_t page_size;
    enum tw_unit unit;
    bool scores;
    size_t first_step, n_steps; /* within the trace's steps */
};

/* The shape of that stream. Fails with TW_E_OPTION when the page size is 0. */
tw_status tw_demand_shape_of(struct tw_demand_shape *shape, const struct tw_trace *trace,
                             const struct tw_demand_source *source, struct tw_error *err);

/* One layer on the calling thread: reads, decodes and builds block by block, so that no whole layer is held. */
tw_status tw_demand_read(struct tw_demand *demand, struct tw_trace *trace, const struct tw_demand_source *source,
                         size_t layer, struct tw_error *err);

/*
 * Several streams of one layer (page sizes, units) from one reading of it: demands [n], sources [n] of equal first_step
 * and n_steps. `raw` and `scratch` are the caller's, reused from layer to layer.
 */
tw_status tw_demand_read_many(struct tw_demand *demands, struct tw_trace *trace, const struct tw_demand_source *sources,
                              size_t n, size_t layer, struct tw_trace_raw *raw, struct tw_trace_scratch *scratch,
                              struct tw_error *err);

/* How many pages two rows (ascending, distinct) have in common. */
size_t tw_demand_common(const uint32_t *a, size_t n_a, const uint32_t *b, size_t n_b);

#endif
