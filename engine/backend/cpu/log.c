#include "engine/backend/cpu/log.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/checked.h"

struct span {
    size_t first, end;
};

static struct span clipped(size_t first, size_t end, size_t low, size_t high) {
    first = tw_max_size(first, low);
    end = tw_min_size(end, high);
    return (struct span){first, tw_max_size(first, end)};
}

static double mass(const struct tw_backend *b, const float *weight, struct span span) {
    return span.end > span.first ? b->common->sum(weight + span.first, span.end - span.first) : 0;
}

/* The rows of head g whose positions are on the needle, and those that are neither among the first nor the last ones.
 */
static void spans_of(struct span *needle, struct span *middle, const struct tw_attention_log *log,
                     const struct tw_kv *kv, size_t g, size_t position) {
    needle->first = tw_cpu_row_at(kv, g, log->needle_begin);
    needle->end = tw_cpu_row_at(kv, g, log->needle_end);
    const size_t last = position + 1 > log->local_window ? position + 1 - log->local_window : 0;
    middle->first = tw_cpu_row_at(kv, g, log->sink_tokens);
    middle->end = tw_cpu_row_at(kv, g, last);
    if (middle->end < middle->first) middle->end = middle->first;
}

static void add_masses(double *on_needle, double *on_rest, const struct tw_backend *b, const float *weight,
                       struct span needle, struct span middle, size_t low, size_t high) {
    const struct span n = clipped(needle.first, needle.end, low, high),
                      m = clipped(middle.first, middle.end, low, high);
    *on_needle += mass(b, weight, n);
    /* The middle, and what of the needle lies before or behind it. */
    *on_rest += mass(b, weight, m);
    if (m.end == m.first) {
        *on_rest += mass(b, weight, n);
    } else {
        *on_rest += mass(b, weight, clipped(n.first, n.end, low, m.first));
        *on_rest += mass(b, weight, clipped(n.first, n.end, m.end, high));
    }
}

static void write_head(struct tw_attention_log *log, size_t h, const struct tw_kv *kv, size_t g, const float *weight,
                       const int32_t *row, size_t n) {
    for (size_t k = 0; k < log->top_k; k++) {
        log->position[h * log->top_k + k] = k < n ? (int32_t)tw_kv_position(kv, g, (size_t)row[k]) : -1;
        log->weight[h * log->top_k + k] = k < n ? weight[k] : 0;
    }
}

static bool wants_needle(const struct tw_attention_log *log) { return log->needle_end > log->needle_begin; }

void tw_cpu_log_head(const struct tw_backend *b, struct tw_attention_log *log, size_t h, const struct tw_kv *kv,
                     size_t g, const float *weight, size_t first, size_t end, size_t position, void *workspace) {
    float *best = log->weight + h * log->top_k;
    int32_t *row = log->position + h * log->top_k;
    const size_t n = b->common->top(best, row, weight + first, end - first, log->top_k, workspace);
    for (size_t k = 0; k < n; k++) row[k] = (int32_t)tw_kv_position(kv, g, first + (size_t)row[k]);
    for (size_t k = n; k < log->top_k; k++) {
        row[k] = -1;
        best[k] = 0;
    }
    if (!wants_needle(log)) return;
    struct span needle, middle;
    spans_of(&needle, &middle, log, kv, g, position);
    double on_needle = 0, on_rest = 0;
    add_masses(&on_needle, &on_rest, b, weight, needle, middle, first, end);
    log->needle_mass[h] = (float)on_needle;
    log->rest_mass[h] = (float)on_rest;
    if (log->top_k) {
        log->argmax[h] = row[0];
    } else {
        float most;
        int32_t at;
        const size_t found = b->common->top(&most, &at, weight + first, end - first, 1, workspace);
        log->argmax[h] = found ? (int32_t)tw_kv_position(kv, g, first + (size_t)at) : -1;
    }
}

/* ---- the row at the end of a layer: streamed, so that no buffer holds a row ---- */

struct stream {
    const struct tw_backend *b;
    const struct tw_kv *kv;
    struct tw_attention_log *log;
    struct tw_cpu_log_layout layout;
    char *space;
    const char *query; /* head h at query + h * query_stride bytes */
    size_t query_stride, position, sliding_window, top_k;
};

/* Part `part` of the rows that head h sees, on the grid of key blocks. */
static struct span part_of(const struct stream *s, size_t h, size_t part) {
    struct span all;
    const size_t g = h / tw_cpu_group(s->b);
    tw_cpu_visible(&all.first, &all.end, s->kv, g, s->kv->length[g], s->position, s->sliding_window);
    const size_t start = all.first / 64 * 64, end = tw_max_size(all.first, all.end);
    const size_t step = tw_round_up(tw_max_size(tw_divide_up(end - start, TW_CPU_LOG_PARTS), 1), 64);
    return clipped(start + part * step, start + (part + 1) * step, all.first, end);
}

static void logits_of(const struct stream *s, float *logits, size_t h, size_t block) {
    s->b->kernels->products(logits, s->query + h * s->query_stride, tw_cpu_key_of(s->b, s->kv, h / tw_cpu_group(s->b)),
                            block, 1, s->b->shape.head_dim);
}

static void normalise_part(const struct stream *s, size_t h, size_t part) {
    const struct span span = part_of(s, h, part);
    float peak = -INFINITY, sum = 0, logits[64] __attribute__((aligned(64)));
    for (size_t block = span.first / 64 * 64; block < span.end; block += 64) {
        logits_of(s, logits, h, block);
        s->b->common->fold(&peak, &sum, logits, block, span.first, span.end, s->b->scale);
    }
    ((float *)(void *)(s->space + s->layout.peak))[h * TW_CPU_LOG_PARTS + part] = peak;
    ((float *)(void *)(s->space + s->layout.sum))[h * TW_CPU_LOG_PARTS + part] = sum;
}

/* Maximum and sum of the whole row, from those of the parts in order. */
static void whole_row(const struct stream *s, size_t h, float *peak, float *sum) {
    const float *peaks = (const float *)(const void *)(s->space + s->layout.peak) + h * TW_CPU_LOG_PARTS;
    const float *sums = (const float *)(const void *)(s->space + s->layout.sum) + h * TW_CPU_LOG_PARTS;
    *peak = -INFINITY;
    *sum = 0;
    for (size_t part = 0; part < TW_CPU_LOG_PARTS; part++) *peak = fmaxf(*peak, peaks[part]);
    for (size_t part = 0; part < TW_CPU_LOG_PARTS; part++)
        if (sums[part] > 0) *sum += sums[part] * exp2f(peaks[part] - *peak);
}

static void select_part(const struct stream *s, size_t h, size_t part, size_t thread) {
    const struct tw_backend *b = s->b;
    const size_t g = h / tw_cpu_group(b);
    const struct span span = part_of(s, h, part);
    void *workspace = s->space + s->layout.workspace + thread * s->layout.workspace_bytes;
    float *weight = (float *)(void *)(s->space + s->layout.stream_weight) + thread * s->layout.stream;
    int32_t *row = (int32_t *)(void *)(s->space + s->layout.stream_row) + thread * s->layout.stream;
    const size_t slot = h * TW_CPU_LOG_PARTS + part;
    float *best = (float *)(void *)(s->space + s->layout.weight) + slot * s->top_k;
    int32_t *at = (int32_t *)(void *)(s->space + s->layout.row) + slot * s->top_k;
    double *masses = (double *)(void *)(s->space + s->layout.mass) + slot * 2;
    struct span needle = {0, 0}, middle = {0, 0};
    if (wants_needle(s->log)) spans_of(&needle, &middle, s->log, s->kv, g, s->position);
    masses[0] = masses[1] = 0;
    float peak, sum;
    whole_row(s, h, &peak, &sum);
    size_t n = 0, found = 0;
    for (size_t block = span.first / 64 * 64; block < span.end; block += 64) {
        float logits[64] __attribute__((aligned(64))), weights[64] __attribute__((aligned(64))) = {0};
        const size_t low = tw_max_size(span.first, block), high = tw_min_size(span.end, block + 64);
        logits_of(s, logits, h, block);
        b->common->weigh(weights, logits, block, low, high, b->scale, peak, sum);
        if (wants_needle(s->log)) {
            const struct span here = {needle.first - tw_min_size(needle.first, block),
                                      needle.end - tw_min_size(needle.end, block)};
            const struct span between = {middle.first - tw_min_size(middle.first, block),
                                         middle.end - tw_min_size(middle.end, block)};
            add_masses(&masses[0], &masses[1], b, weights, here, between, low - block, high - block);
        }
        for (size_t r = low; r < high; r++) {
            weight[n] = weights[r - block];
            row[n++] = (int32_t)r;
        }
        if (n + 64 > s->layout.stream || block + 64 >= span.end) {
            /* The best so far stand first and are older: of equal weights the lower row stays in front. */
            found = b->common->top(best, at, weight, n, s->top_k, workspace);
            for (size_t k = 0; k < found; k++) at[k] = row[at[k]];
            memcpy(weight, best, found * sizeof *weight);
            memcpy(row, at, found * sizeof *row);
            n = found;
        }
    }
    ((size_t *)(void *)(s->space + s->layout.found))[slot] = found;
}

static void merge_head(const struct stream *s, size_t h, size_t thread) {
    const size_t g = h / tw_cpu_group(s->b);
    float *weight = (float *)(void *)(s->space + s->layout.stream_weight) + thread * s->layout.stream;
    int32_t *row = (int32_t *)(void *)(s->space + s->layout.stream_row) + thread * s->layout.stream;
    float *best = (float *)(void *)(s->space + s->layout.weight) + h * TW_CPU_LOG_PARTS * s->top_k;
    int32_t *at = (int32_t *)(void *)(s->space + s->layout.row) + h * TW_CPU_LOG_PARTS * s->top_k;
    const double *masses = (const double *)(const void *)(s->space + s->layout.mass) + h * TW_CPU_LOG_PARTS * 2;
    const size_t *found = (const size_t *)(const void *)(s->space + s->layout.found) + h * TW_CPU_LOG_PARTS;
    size_t n = 0;
    double on_needle = 0, on_rest = 0;
    for (size_t part = 0; part < TW_CPU_LOG_PARTS; part++) {
        memcpy(weight + n, best + part * s->top_k, found[part] * sizeof *weight);
        memcpy(row + n, at + part * s->top_k, found[part] * sizeof *row);
        n += found[part];
        on_needle += masses[2 * part];
        on_rest += masses[2 * part + 1];
    }
    const size_t kept = s->b->common->top(best, at, weight, n, s->top_k,
                                          s->space + s->layout.workspace + thread * s->layout.workspace_bytes);
    for (size_t k = 0; k < kept; k++) at[k] = row[at[k]];
    write_head(s->log, h, s->kv, g, best, at, tw_min_size(kept, s->log->top_k));
    if (!wants_needle(s->log)) return;
    s->log->needle_mass[h] = (float)on_needle;
    s->log->rest_mass[h] = (float)on_rest;
    s->log->argmax[h] = kept ? (int32_t)tw_kv_position(s->kv, g, (size_t)at[0]) : -1;
}

static void normalise_tasks(void *context, size_t first, size_t end, size_t thread) {
    (void)thread;
    for (size_t task = first; task < end; task++)
        normalise_part(context, task / TW_CPU_LOG_PARTS, task % TW_CPU_LOG_PARTS);
}
static void select_tasks(void *context, size_t first, size_t end, size_t thread) {
    for (size_t task = first; task < end; task++)
        select_part(context, task / TW_CPU_LOG_PARTS, task % TW_CPU_LOG_PARTS, thread);
}
static void merge_tasks(void *context, size_t first, size_t end, size_t thread) {
    for (size_t h = first; h < end; h++) merge_head(context, h, thread);
}

tw_status tw_cpu_log_row(struct tw_backend *b, size_t l, const struct tw_kv *kv,
                         const struct tw_observation *observation, struct tw_attention_log *log, struct tw_error *err) {
    assert(observation->n_queries > 0);
    const size_t w = observation->n_queries - 1, query_bytes = b->shape.head_dim * b->shape.element_bytes;
    const size_t top_k = tw_max_size(log->top_k, 1); /* the greatest is wanted in any case */
    struct tw_buffers buffers;
    TW_TRY(tw_buffers_allocate(&buffers, b->accountant, &tw_cpu_image, b->model, &b->options,
                               &(struct tw_moment_of){.moment = TW_MOMENT_LOG_ROW, .n = top_k}, err));
    struct stream s = {
        .b = b,
        .kv = kv,
        .log = log,
        .space = buffers.buffer[0].data,
        .query = (const char *)observation->query.data + w * query_bytes,
        .query_stride = b->shape.window * query_bytes,
        .position = observation->first_position + w,
        .sliding_window = b->model->layers[l].sliding_window,
        .top_k = top_k,
    };
    tw_cpu_log_layout(&s.layout, &b->shape, top_k);
    const size_t n_tasks = b->shape.n_heads * TW_CPU_LOG_PARTS;
    tw_team_run(b->team, n_tasks, 2, normalise_tasks, &s);
    tw_team_run(b->team, n_tasks, 2, select_tasks, &s);
    tw_team_run(b->team, b->shape.n_heads, 1, merge_tasks, &s);
    tw_buffers_release(&buffers, b->accountant);
    return TW_OK;
}
