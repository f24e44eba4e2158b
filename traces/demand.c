#include "traces/demand.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

/* Up to this many pages tables by page are used, and ids are the pages: 1 Mi pages, 9 MiB of tables. */
#define TW_DEMAND_DENSE_PAGES ((uint64_t)1 << 20)

struct entry {
    uint64_t score;
    uint32_t page;
};

struct tw_demand_builder {
    /* Dense: pages of the row being built as bits, which words of `bits` are not 0, and the pages' scores (0 between
     * rows). */
    uint64_t *bits, *used, *sum;
    size_t n_words, n_used;
    struct entry *entry; /* sparse: [row width] */
    uint64_t *cursor;    /* [n_units] where the unit's next row goes */
    /* page = position * multiplier >> shift, exact for positions below 2^31 (Granlund and Montgomery, 1994). */
    uint64_t multiplier;
    unsigned shift;
    bool dense;
    size_t row_width;    /* positions of one unit and step */
    uint64_t page_limit; /* every page is below it */
    /* What was allocated, in elements. */
    size_t offset_capacity, page_capacity, score_capacity, bits_capacity, entry_capacity, cursor_capacity;
    /* Blocks of a layer on their way into the stream. */
    int32_t *position;
    uint16_t *weight;
    size_t block_capacity;
};

const char *tw_unit_name(enum tw_unit unit) { return unit == TW_UNIT_KV ? "kv" : "query"; }

/* Makes room for n elements, whose content is lost; keeps what is large enough. */
static tw_status reserve(void *pointer, size_t *capacity, size_t n, size_t size, struct tw_error *err) {
    void **array = pointer;
    if (n <= *capacity && *array) return TW_OK;
    free(*array);
    *array = NULL;
    *capacity = 0;
    size_t bytes;
    if (!tw_mul_size(&bytes, n ? n : 1, size) || !(*array = malloc(bytes)))
        return TW_FAIL(err, TW_E_MEMORY, "not enough memory for the demand of one layer (%zu elements of %zu bytes)", n,
                       size);
    *capacity = n;
    return TW_OK;
}

static void set_division(struct tw_demand_builder *work, uint64_t page_size, uint64_t position_limit) {
    work->multiplier = 1;
    if (page_size >= position_limit) { /* one page */
        work->shift = 31;
        return;
    }
    work->shift = 0;
    while ((uint64_t)1 << work->shift < page_size) work->shift++;
    if ((uint64_t)1 << work->shift == page_size) return;
    work->shift += 31;
    work->multiplier = ((uint64_t)1 << work->shift) / page_size + 1;
}

static tw_status prepare(struct tw_demand *demand, struct tw_error *err) {
    const struct tw_demand_shape *shape = &demand->shape;
    struct tw_demand_builder *work = demand->work;
    const size_t group = shape->unit == TW_UNIT_KV ? shape->n_heads / shape->n_kv_heads : 1;
    demand->n_units = shape->n_heads / group;
    set_division(work, shape->page_size, shape->position_limit);
    work->page_limit = shape->position_limit / shape->page_size + (shape->position_limit % shape->page_size != 0);
    work->dense = work->page_limit <= TW_DEMAND_DENSE_PAGES;

    size_t rows, elements, offsets;
    if (!tw_mul_size(&work->row_width, group, shape->top_k) || !tw_mul_size(&rows, demand->n_units, shape->n_steps) ||
        !tw_add_size(&offsets, rows, demand->n_units) ||
        !tw_mul_size(&elements, rows, tw_min_size(work->row_width, (size_t)work->page_limit)))
        return TW_FAIL(err, TW_E_INPUT, "the demand of one layer has more entries than can be counted");
    TW_TRY(reserve(&demand->offset, &work->offset_capacity, offsets, sizeof *demand->offset, err));
    /* The bound is generous; what is not written is never backed by memory. */
    TW_TRY(reserve(&demand->page, &work->page_capacity, elements, sizeof *demand->page, err));
    if (shape->scores) {
        TW_TRY(reserve(&demand->score, &work->score_capacity, elements, sizeof *demand->score, err));
    } else {
        free(demand->score);
        demand->score = NULL;
        work->score_capacity = 0;
    }
    TW_TRY(reserve(&work->cursor, &work->cursor_capacity, demand->n_units, sizeof *work->cursor, err));
    for (size_t u = 0; u < demand->n_units; u++) {
        work->cursor[u] = u * (elements / (demand->n_units ? demand->n_units : 1));
        demand->offset[u * (shape->n_steps + 1)] = work->cursor[u];
    }
    if (work->dense) {
        work->n_words = (size_t)(work->page_limit + 63) / 64;
        work->n_used = (work->n_words + 63) / 64;
        const size_t n = work->n_words + work->n_used + (size_t)work->page_limit;
        TW_TRY(reserve(&work->bits, &work->bits_capacity, n, sizeof *work->bits, err));
        memset(work->bits, 0, n * sizeof *work->bits);
        work->used = work->bits + work->n_words;
        work->sum = work->used + work->n_used;
    } else {
        TW_TRY(reserve(&work->entry, &work->entry_capacity, work->row_width, sizeof *work->entry, err));
    }
    return TW_OK;
}

tw_status tw_demand_begin(struct tw_demand *demand, const struct tw_demand_shape *shape, struct tw_error *err) {
    assert(shape->page_size > 0 && shape->n_kv_heads > 0 && shape->n_heads % shape->n_kv_heads == 0);
    if (!demand->work && !(demand->work = calloc(1, sizeof *demand->work)))
        return TW_FAIL(err, TW_E_MEMORY, "not enough memory for the demand of one layer");
    free(demand->true_page);
    demand->true_page = NULL;
    demand->shape = *shape;
    demand->n_steps = 0;
    demand->n_pages = 0;
    demand->n_accesses = 0;
    return prepare(demand, err);
}

/* 2^24 times the half, a whole number. */
static inline uint64_t weight_units(uint16_t half) {
    const unsigned exponent = half >> 10 & 0x1f;
    const uint64_t normal = exponent != 0;
    return ((half & 0x3ff) | normal << 10) << (exponent - normal);
}

static inline uint32_t page_of(const struct tw_demand_builder *work, int32_t position) {
    return (uint32_t)((uint64_t)position * work->multiplier >> work->shift);
}

/* One row into out_page and out_score, through the table of pages. Returns its length. */
static inline size_t dense_row(struct tw_demand_builder *restrict work, uint32_t *restrict out_page,
                               uint64_t *restrict out_score, const int32_t *restrict position,
                               const uint16_t *restrict weight, const bool scores) {
    uint64_t *restrict const bits = work->bits, *restrict const used = work->used, *restrict const sum = work->sum;
    const size_t width = work->row_width;
    for (size_t i = 0; i < width; i++) {
        if (position[i] < 0) continue;
        const uint32_t page = page_of(work, position[i]);
        bits[page >> 6] |= (uint64_t)1 << (page & 63);
        used[page >> 12] |= (uint64_t)1 << (page >> 6 & 63);
        if (scores) sum[page] += weight_units(weight[i]);
    }
    size_t n = 0;
    for (size_t v = 0; v < work->n_used; v++) {
        uint64_t words = used[v];
        used[v] = 0;
        for (; words; words &= words - 1) {
            const size_t w = v * 64 + (size_t)__builtin_ctzll(words);
            uint64_t pages = bits[w];
            bits[w] = 0;
            for (; pages; pages &= pages - 1) {
                const size_t page = w * 64 + (size_t)__builtin_ctzll(pages);
                out_page[n] = (uint32_t)page;
                if (scores) {
                    out_score[n] = sum[page];
                    sum[page] = 0;
                }
                n++;
            }
        }
    }
    return n;
}

static int by_page(const void *a, const void *b) {
    const uint32_t x = ((const struct entry *)a)->page, y = ((const struct entry *)b)->page;
    return (x > y) - (x < y);
}

/* The same by sorting, where a table of all pages would be too large. */
static size_t sparse_row(struct tw_demand_builder *work, uint32_t *out_page, uint64_t *out_score,
                         const int32_t *position, const uint16_t *weight, const bool scores) {
    size_t n_entries = 0;
    for (size_t i = 0; i < work->row_width; i++)
        if (position[i] >= 0)
            work->entry[n_entries++] = (struct entry){scores ? weight_units(weight[i]) : 0, page_of(work, position[i])};
    qsort(work->entry, n_entries, sizeof *work->entry, by_page);
    size_t n = 0;
    for (size_t i = 0; i < n_entries; i++) {
        if (n == 0 || out_page[n - 1] != work->entry[i].page) {
            out_page[n] = work->entry[i].page;
            if (scores) out_score[n] = 0;
            n++;
        }
        if (scores) out_score[n - 1] += work->entry[i].score;
    }
    return n;
}

void tw_demand_append(struct tw_demand *demand, const int32_t *position, const uint16_t *weight, size_t n_steps) {
    struct tw_demand_builder *work = demand->work;
    const size_t stride = demand->shape.n_steps + 1, width = work->row_width;
    const bool scores = demand->shape.scores;
    assert(demand->n_steps + n_steps <= demand->shape.n_steps);
    for (size_t t = 0; t < n_steps; t++) {
        for (size_t u = 0; u < demand->n_units; u++) {
            const uint64_t at = work->cursor[u];
            const size_t row = (t * demand->n_units + u) * width;
            uint32_t *const page = demand->page + at;
            uint64_t *const score = scores ? demand->score + at : NULL;
            size_t n;
            if (!work->dense)
                n = sparse_row(work, page, score, position + row, scores ? weight + row : NULL, scores);
            else if (scores)
                n = dense_row(work, page, score, position + row, weight + row, true);
            else
                n = dense_row(work, page, NULL, position + row, NULL, false);
            work->cursor[u] = at + n;
            demand->n_accesses += n;
            demand->offset[u * stride + demand->n_steps + t + 1] = at + n;
        }
    }
    demand->n_steps += n_steps;
}

static int by_value(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Gives ids to the pages that occur, in their order, and renames the rows. */
static tw_status number_pages(struct tw_demand *demand, struct tw_error *err) {
    const size_t stride = demand->shape.n_steps + 1;
    uint32_t *pages = malloc((demand->n_accesses ? demand->n_accesses : 1) * sizeof *pages);
    if (!pages)
        return TW_FAIL(err, TW_E_MEMORY, "not enough memory to number the pages of one layer (%llu accesses)",
                       (unsigned long long)demand->n_accesses);
    size_t n = 0;
    for (size_t u = 0; u < demand->n_units; u++) {
        const uint64_t begin = demand->offset[u * stride], end = demand->offset[u * stride + demand->n_steps];
        memcpy(pages + n, demand->page + begin, (size_t)(end - begin) * sizeof *pages);
        n += (size_t)(end - begin);
    }
    qsort(pages, n, sizeof *pages, by_value);
    size_t n_pages = 0;
    for (size_t i = 0; i < n; i++)
        if (n_pages == 0 || pages[n_pages - 1] != pages[i]) pages[n_pages++] = pages[i];
    for (size_t u = 0; u < demand->n_units; u++)
        for (uint64_t i = demand->offset[u * stride]; i < demand->offset[u * stride + demand->n_steps]; i++) {
            const uint32_t *found = bsearch(&demand->page[i], pages, n_pages, sizeof *pages, by_value);
            demand->page[i] = (uint32_t)(found - pages);
        }
    demand->true_page = pages;
    demand->n_pages = n_pages;
    return TW_OK;
}

tw_status tw_demand_end(struct tw_demand *demand, struct tw_error *err) {
    assert(demand->n_steps == demand->shape.n_steps);
    if (!demand->work->dense) return number_pages(demand, err);
    demand->n_pages = (size_t)demand->work->page_limit;
    return TW_OK;
}

void tw_demand_release(struct tw_demand *demand) {
    struct tw_demand_builder *work = demand->work;
    if (work) {
        free(work->bits);
        free(work->entry);
        free(work->cursor);
        free(work->position);
        free(work->weight);
    }
    free(work);
    free(demand->offset);
    free(demand->page);
    free(demand->score);
    free(demand->true_page);
    *demand = (struct tw_demand){0};
}

tw_status tw_demand_shape_of(struct tw_demand_shape *shape, const struct tw_trace *trace,
                             const struct tw_demand_source *source, struct tw_error *err) {
    const struct tw_trace_info *info = tw_trace_info(trace);
    if (source->page_size == 0) return TW_FAIL(err, TW_E_OPTION, "a page size of 0 tokens cannot be replayed");
    assert(source->first_step <= info->n_steps && source->n_steps <= info->n_steps - source->first_step);
    const int32_t *context = tw_trace_context_length(trace);
    int32_t limit = 0;
    for (size_t t = source->first_step; t < source->first_step + source->n_steps; t++)
        if (context[t] > limit) limit = context[t];
    *shape = (struct tw_demand_shape){
        .n_steps = source->n_steps,
        .n_heads = info->n_heads,
        .n_kv_heads = info->n_kv_heads,
        .top_k = info->top_k,
        .page_size = source->page_size,
        .unit = source->unit,
        .scores = source->scores,
        .position_limit = (uint64_t)limit,
    };
    return TW_OK;
}

/* Room for one decoded block, in the first stream's scratch. */
static tw_status reserve_block(struct tw_demand_builder *work, size_t n, bool scores, struct tw_error *err) {
    if (n <= work->block_capacity && (!scores || work->weight)) return TW_OK;
    free(work->position);
    free(work->weight);
    work->block_capacity = 0;
    work->position = malloc((n ? n : 1) * sizeof *work->position);
    work->weight = malloc((n ? n : 1) * sizeof *work->weight);
    if (!work->position || !work->weight)
        return TW_FAIL(err, TW_E_MEMORY, "not enough memory to decode a block of %zu positions", n);
    work->block_capacity = n;
    return TW_OK;
}

tw_status tw_demand_read_many(struct tw_demand *demands, struct tw_trace *trace, const struct tw_demand_source *sources,
                              size_t n, size_t layer, struct tw_trace_raw *raw, struct tw_trace_scratch *scratch,
                              struct tw_error *err) {
    const struct tw_trace_info *info = tw_trace_info(trace);
    bool scores = false;
    for (size_t i = 0; i < n; i++) {
        struct tw_demand_shape shape;
        assert(sources[i].first_step == sources[0].first_step && sources[i].n_steps == sources[0].n_steps);
        TW_TRY(tw_demand_shape_of(&shape, trace, &sources[i], err));
        TW_TRY(tw_demand_begin(&demands[i], &shape, err));
        scores |= sources[i].scores;
    }
    if (n > 0 && sources[0].n_steps > 0) {
        TW_TRY(tw_trace_raw_read(raw, trace, layer, sources[0].first_step, sources[0].n_steps, err));
        struct tw_demand_builder *work = demands[0].work;
        size_t row, block;
        if (!tw_mul_size(&row, info->n_heads, info->top_k) || !tw_mul_size(&block, row, tw_trace_raw_block_steps(raw)))
            return TW_FAIL(err, TW_E_INPUT, "trace '%s': a block has more positions than can be counted",
                           tw_trace_path(trace));
        TW_TRY(reserve_block(work, block, scores, err));
        for (size_t b = 0; b < tw_trace_raw_n_blocks(raw); b++) {
            size_t first, n_steps;
            tw_trace_raw_block_range(raw, b, &first, &n_steps);
            TW_TRY(tw_trace_raw_decode(raw, b, work->position, scores ? work->weight : NULL, scratch, err));
            for (size_t i = 0; i < n; i++) tw_demand_append(&demands[i], work->position, work->weight, n_steps);
        }
    }
    for (size_t i = 0; i < n; i++) TW_TRY(tw_demand_end(&demands[i], err));
    return TW_OK;
}

tw_status tw_demand_read(struct tw_demand *demand, struct tw_trace *trace, const struct tw_demand_source *source,
                         size_t layer, struct tw_error *err) {
    struct tw_trace_raw *raw = tw_trace_raw_new();
    struct tw_trace_scratch *scratch = tw_trace_scratch_new();
    const tw_status status = raw && scratch ? tw_demand_read_many(demand, trace, source, 1, layer, raw, scratch, err)
                                            : TW_FAIL(err, TW_E_MEMORY, "not enough memory to read a layer");
    tw_trace_raw_free(raw);
    tw_trace_scratch_free(scratch);
    return status;
}

size_t tw_demand_common(const uint32_t *a, size_t n_a, const uint32_t *b, size_t n_b) {
    size_t i = 0, j = 0, n = 0;
    while (i < n_a && j < n_b) {
        const uint32_t x = a[i], y = b[j];
        n += x == y;
        i += x <= y;
        j += y <= x;
    }
    return n;
}
