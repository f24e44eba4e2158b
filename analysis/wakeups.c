#include "analysis/wakeups.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/layers.h"
#include "analysis/stats.h"
#include "base/checked.h"
#include "traces/demand.h"

struct work {
    struct tw_wakeups *wakeups;
    bool *asked;                    /* [n_layers * n_heads] */
    struct tw_wake_head *all_heads; /* [n_layers * n_heads]; those that are neither asked for nor wake stay {0} */
    size_t *pages_at_events;        /* [n_layers] */
    size_t *pool;                   /* [n_steps] */
};

/* Of one thread. */
struct scratch {
    struct tw_demand demand;
    struct tw_trace_raw *raw;
    struct tw_trace_scratch *decoding;
    struct tw_head_workspace heads;
    float *needle;     /* [n_steps][n_heads] */
    uint32_t *events;  /* [n_steps] */
    uint32_t *both;    /* [n_steps] */
    double *entropy;   /* [n_heads][n_steps] */
    double *series;    /* [n_steps] */
    double *z;         /* [TW_N_PLAIN_SIGNALS][n_steps] */
    int32_t *position; /* [block][n_heads][top_k], allocated at the first block */
    uint16_t *weight;
    size_t block_capacity;
};

static void scratch_free(void *memory) {
    struct scratch *const s = memory;
    if (!s) return;
    tw_demand_release(&s->demand);
    tw_trace_raw_free(s->raw);
    tw_trace_scratch_free(s->decoding);
    tw_head_workspace_release(&s->heads);
    free(s->needle);
    free(s->events);
    free(s->both);
    free(s->entropy);
    free(s->series);
    free(s->z);
    free(s->position);
    free(s->weight);
    free(s);
}

static void *scratch_new(const void *context) {
    const struct tw_wakeups *const w = ((const struct work *)context)->wakeups;
    struct scratch *const s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->raw = tw_trace_raw_new();
    s->decoding = tw_trace_scratch_new();
    s->needle = calloc(w->n_steps * w->n_heads + 1, sizeof *s->needle);
    s->events = calloc(w->n_steps + 1, sizeof *s->events);
    s->both = calloc(w->n_steps + 1, sizeof *s->both);
    s->entropy = calloc(w->n_steps * w->n_heads + 1, sizeof *s->entropy);
    s->series = calloc(w->n_steps + 1, sizeof *s->series);
    s->z = calloc(TW_N_PLAIN_SIGNALS * w->n_steps + 1, sizeof *s->z);
    if (s->raw && s->decoding && s->needle && s->events && s->both && s->entropy && s->series && s->z) return s;
    scratch_free(s);
    return NULL;
}

static void head_release(struct tw_wake_head *head) {
    free(head->event);
    for (size_t i = 0; i < TW_N_SIGNALS; i++) {
        free(head->value[i]);
        free(head->fires[i]);
    }
    for (size_t i = 0; i < TW_N_PLAIN_SIGNALS; i++) free(head->z[i]);
    *head = (struct tw_wake_head){0};
}

/* Room for a head's events and series. */
static tw_status head_init(struct tw_wake_head *head, size_t number, const uint32_t *events, size_t n_events,
                           size_t n_steps, bool asked, struct tw_error *err) {
    *head = (struct tw_wake_head){.head = number, .n_events = n_events, .asked = asked};
    bool ok = (head->event = malloc((n_events + 1) * sizeof *head->event)) != NULL;
    for (size_t i = 0; i < TW_N_SIGNALS; i++) {
        ok = ok && (head->value[i] = malloc(n_steps * sizeof *head->value[i]));
        ok = ok && (head->fires[i] = malloc(n_steps));
    }
    for (size_t i = 0; asked && i < TW_N_PLAIN_SIGNALS; i++)
        ok = ok && (head->z[i] = malloc(n_steps * sizeof *head->z[i]));
    if (!ok) return TW_FAIL(err, TW_E_MEMORY, "out of memory for the signals of head %zu", number);
    memcpy(head->event, events, n_events * sizeof *events);
    return TW_OK;
}

/* One reading of the layer: its page sets, and the entropy of the rows of the heads that are looked at. */
static tw_status read_layer(struct work *work, struct scratch *s, struct tw_trace *trace, size_t layer,
                            struct tw_error *err) {
    const struct tw_wakeups *const w = work->wakeups;
    const size_t top_k = tw_trace_info(trace)->top_k, row = w->n_heads * top_k;
    const struct tw_demand_source source = {
        .page_size = w->page_size, .unit = TW_UNIT_QUERY, .first_step = 0, .n_steps = w->n_steps};
    struct tw_demand_shape shape;
    TW_TRY(tw_demand_shape_of(&shape, trace, &source, err));
    TW_TRY(tw_trace_raw_read(s->raw, trace, layer, 0, w->n_steps, err));
    const size_t block = tw_trace_raw_block_steps(s->raw);
    if (block > s->block_capacity) {
        size_t cells;
        free(s->position);
        free(s->weight);
        s->weight = NULL;
        s->position = tw_mul_size(&cells, block, row) ? calloc(cells, sizeof *s->position) : NULL;
        if (s->position) s->weight = calloc(cells, sizeof *s->weight);
        s->block_capacity = s->weight ? block : 0;
        if (!s->weight) return TW_FAIL(err, TW_E_MEMORY, "out of memory for %zu steps of a layer", block);
    }
    TW_TRY(tw_demand_begin(&s->demand, &shape, err));
    for (size_t b = 0; b < tw_trace_raw_n_blocks(s->raw); b++) {
        size_t first, n;
        tw_trace_raw_block_range(s->raw, b, &first, &n);
        TW_TRY(tw_trace_raw_decode(s->raw, b, s->position, s->weight, s->decoding, err));
        tw_demand_append(&s->demand, s->position, s->weight, n);
        for (size_t h = 0; h < w->n_heads; h++) {
            if (!work->all_heads[layer * w->n_heads + h].event) continue;
            for (size_t t = 0; t < n; t++)
                s->entropy[h * w->n_steps + first + t] =
                    tw_row_entropy(s->position + t * row + h * top_k, s->weight + t * row + h * top_k, top_k);
        }
    }
    return tw_demand_end(&s->demand, err);
}

static void measure_head(struct work *work, struct scratch *s, struct tw_wake_head *head, size_t h) {
    const struct tw_wakeups *const w = work->wakeups;
    const size_t n_steps = w->n_steps;
    const struct tw_page_sets sets = tw_demand_page_sets(&s->demand, h);
    tw_signal_change(head->value[TW_SIGNAL_CHANGE], &sets, work->pool, s->both, &s->heads);
    tw_signal_drift(head->value[TW_SIGNAL_DRIFT], &sets, s->both, &s->heads);
    tw_signal_above_recent(head->value[TW_SIGNAL_ENTROPY], s->entropy + h * n_steps, n_steps, TW_ENTROPY_BACK);
    for (size_t t = 0; t < n_steps; t++) s->series[t] = s->needle[t * w->n_heads + h];
    tw_signal_above_recent(head->value[TW_SIGNAL_NEEDLE], s->series, n_steps, TW_NEEDLE_BACK);

    const double *z[TW_N_PLAIN_SIGNALS];
    for (size_t i = 0; i < TW_N_PLAIN_SIGNALS; i++) {
        double *const here = s->z + i * n_steps;
        z[i] = here;
        tw_causal_z(here, head->value[i], n_steps);
        for (size_t t = 0; t < n_steps; t++) head->fires[i][t] = tw_above(here[t], TW_Z_ABOVE);
        if (head->z[i]) memcpy(head->z[i], here, n_steps * sizeof *here);
    }
    tw_signal_ensemble(head->value[TW_SIGNAL_ENSEMBLE], z, n_steps);
    for (size_t t = 0; t < n_steps; t++)
        head->fires[TW_SIGNAL_ENSEMBLE][t] = tw_above(head->value[TW_SIGNAL_ENSEMBLE][t], TW_ENSEMBLE_ABOVE);
}

static tw_status measure_layer(void *context, void *memory, struct tw_trace *trace, size_t layer,
                               struct tw_error *err) {
    struct work *const work = context;
    struct scratch *const s = memory;
    const struct tw_wakeups *const w = work->wakeups;
    struct tw_wake_head *const heads = work->all_heads + layer * w->n_heads;
    bool any = false;
    TW_TRY(tw_trace_read_needle(trace, s->needle, layer, 0, w->n_steps, err));
    for (size_t h = 0; h < w->n_heads; h++) {
        const size_t n_events = tw_wake_events(s->events, s->needle + h, w->n_heads, w->n_steps);
        const size_t number = layer * w->n_heads + h;
        if (!n_events && !work->asked[number]) continue;
        TW_TRY(head_init(&heads[h], number, s->events, n_events, w->n_steps, work->asked[number], err));
        any = true;
    }
    if (!any) return TW_OK; /* most layers of most traces: their rows need not be read */
    TW_TRY(read_layer(work, s, trace, layer, err));
    if (s->heads.n_pages < s->demand.n_pages) {
        tw_head_workspace_release(&s->heads);
        TW_TRY(tw_head_workspace_init(&s->heads, s->demand.n_pages, err));
    }
    for (size_t h = 0; h < w->n_heads; h++) {
        if (!heads[h].event) continue;
        measure_head(work, s, &heads[h], h);
        const struct tw_page_sets sets = tw_demand_page_sets(&s->demand, h);
        for (size_t i = 0; i < heads[h].n_events; i++)
            work->pages_at_events[layer] += tw_page_sets_size(&sets, heads[h].event[i]);
    }
    return TW_OK;
}

static tw_status mark_asked(struct work *work, const uint64_t *asked, size_t n_asked, struct tw_error *err) {
    const struct tw_wakeups *const w = work->wakeups;
    for (size_t i = 0; i < n_asked; i++) {
        if (asked[i] >= w->n_layers * w->n_heads)
            return TW_FAIL(err, TW_E_OPTION, "trace '%s' has %zu heads (layer * %zu + head), so there is no head %llu",
                           w->name.trace, w->n_layers * w->n_heads, w->n_heads, (unsigned long long)asked[i]);
        work->asked[asked[i]] = true;
    }
    return TW_OK;
}

/* Takes the heads that have something out of the whole list. */
static tw_status gather(struct work *work, struct tw_error *err) {
    struct tw_wakeups *const w = work->wakeups;
    const size_t n_all = w->n_layers * w->n_heads;
    size_t n = 0, pages = 0;
    for (size_t h = 0; h < n_all; h++) n += work->all_heads[h].event != NULL;
    w->heads = malloc((n + 1) * sizeof *w->heads);
    if (!w->heads) return TW_FAIL(err, TW_E_MEMORY, "out of memory for the wake-ups of %zu heads", n);
    for (size_t h = 0; h < n_all; h++) {
        if (!work->all_heads[h].event) continue;
        w->heads[w->n++] = work->all_heads[h];
        w->n_events += work->all_heads[h].n_events;
        w->n_heads_with_event += work->all_heads[h].n_events > 0;
        work->all_heads[h] = (struct tw_wake_head){0};
    }
    for (size_t l = 0; l < w->n_layers; l++) pages += work->pages_at_events[l];
    w->pages_at_event = tw_ratio(pages, w->n_events);
    return TW_OK;
}

tw_status tw_wakeups_measure(struct tw_wakeups *wakeups, struct tw_trace *trace, uint64_t page_size,
                             const uint64_t *asked, size_t n_asked, struct tw_progress *progress,
                             struct tw_error *err) {
    const struct tw_trace_info *const info = tw_trace_info(trace);
    const size_t n_all = info->n_layers * info->n_heads;
    *wakeups = (struct tw_wakeups){.n_steps = info->n_steps,
                                   .n_layers = info->n_layers,
                                   .n_heads = info->n_heads,
                                   .head_dim = info->head_dim,
                                   .page_size = page_size,
                                   .has_needle = tw_trace_has(trace, TW_TRACE_NEEDLE),
                                   .pages_at_event = NAN};
    if (info->n_steps == 0)
        return TW_FAIL(err, TW_E_INPUT, "trace '%s' holds no steps, so there are no wake-ups to find",
                       tw_trace_path(trace));
    if (page_size == 0) return TW_FAIL(err, TW_E_OPTION, "a page size of 0 tokens makes no pages");
    struct work work = {.wakeups = wakeups,
                        .asked = calloc(n_all + 1, sizeof *work.asked),
                        .all_heads = calloc(n_all + 1, sizeof *work.all_heads),
                        .pages_at_events = calloc(info->n_layers + 1, sizeof *work.pages_at_events),
                        .pool = calloc(info->n_steps + 1, sizeof *work.pool)};
    wakeups->token_id = calloc(info->n_steps + 1, sizeof *wakeups->token_id);
    tw_status status = TW_OK;
    if (!work.asked || !work.all_heads || !work.pages_at_events || !work.pool || !wakeups->token_id) {
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory for the wake-ups of trace '%s'", tw_trace_path(trace));
        goto done;
    }
    TW_TRY_GOTO(status, done, tw_trace_name_init(&wakeups->name, trace, err));
    TW_TRY_GOTO(status, done, mark_asked(&work, asked, n_asked, err));
    TW_TRY_GOTO(status, done, tw_trace_read_token_ids(trace, wakeups->token_id, err));
    const int32_t *const context_length = tw_trace_context_length(trace);
    for (size_t t = 0; t < info->n_steps; t++) work.pool[t] = tw_page_pool(context_length[t], page_size);
    if (wakeups->has_needle) {
        const struct tw_layer_job job = {"wake-ups", &work, scratch_new, scratch_free, measure_layer};
        TW_TRY_GOTO(status, done, tw_layers_run(&job, trace, progress, err));
    }
    status = gather(&work, err);
done:
    for (size_t h = 0; work.all_heads && h < n_all; h++) head_release(&work.all_heads[h]);
    free(work.asked);
    free(work.all_heads);
    free(work.pages_at_events);
    free(work.pool);
    if (status != TW_OK) tw_wakeups_release(wakeups);
    return status;
}

void tw_wakeups_release(struct tw_wakeups *wakeups) {
    for (size_t i = 0; i < wakeups->n; i++) head_release(&wakeups->heads[i]);
    free(wakeups->heads);
    free(wakeups->token_id);
    tw_trace_name_release(&wakeups->name);
    *wakeups = (struct tw_wakeups){0};
}

void tw_wakeups_by_step(uint8_t *woken, const struct tw_wakeups *wakeups) {
    memset(woken, 0, wakeups->n_steps);
    for (size_t h = 0; h < wakeups->n; h++)
        for (size_t i = 0; i < wakeups->heads[h].n_events; i++) woken[wakeups->heads[h].event[i]] = 1;
}
