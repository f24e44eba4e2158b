#include "analysis/churn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/head_churn.h"
#include "analysis/layers.h"
#include "analysis/stats.h"
#include "base/checked.h"
#include "traces/demand.h"

/* What the layers share: every layer writes its own part, and sums over heads are added up by layer afterwards. */
struct work {
    struct tw_churn *churn;
    struct tw_demand_source *sources;     /* [n_pages] */
    size_t **pool;                        /* [n_pages][n_steps] */
    double *jaccard_sums;                 /* [n_pages][n_layers][n_steps - 1] */
    uint32_t **drift;                     /* [n_pages][n_layers * n_heads] malloced steps of each head's events */
    size_t *n_drift;                      /* [n_pages][n_layers * n_heads] */
    uint8_t *active[TW_N_ACTIVITY_RULES]; /* [n_steps][n_layers * n_heads] */
};

/* Of one thread. */
struct scratch {
    struct tw_demand *demands; /* [n_pages] */
    size_t n_demands;
    struct tw_trace_raw *raw;
    struct tw_trace_scratch *decoding;
    struct tw_head_workspace heads;
    double *jaccard;     /* [n_steps] */
    uint32_t *drift;     /* [n_steps] */
    float *needle;       /* [n_steps][n_heads] */
    uint8_t *copy_paste; /* [n_steps][n_heads] */
};

static void scratch_free(void *memory) {
    struct scratch *const s = memory;
    if (!s) return;
    for (size_t i = 0; s->demands && i < s->n_demands; i++) tw_demand_release(&s->demands[i]);
    free(s->demands);
    tw_trace_raw_free(s->raw);
    tw_trace_scratch_free(s->decoding);
    tw_head_workspace_release(&s->heads);
    free(s->jaccard);
    free(s->drift);
    free(s->needle);
    free(s->copy_paste);
    free(s);
}

static void *scratch_new(const void *context) {
    const struct work *const work = context;
    const struct tw_churn *const churn = work->churn;
    struct scratch *const s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->n_demands = churn->n_pages;
    s->demands = calloc(churn->n_pages, sizeof *s->demands);
    s->raw = tw_trace_raw_new();
    s->decoding = tw_trace_scratch_new();
    s->jaccard = calloc(churn->n_steps + 1, sizeof *s->jaccard);
    s->drift = calloc(churn->n_steps + 1, sizeof *s->drift);
    s->needle = calloc(churn->n_steps * churn->n_heads + 1, sizeof *s->needle);
    s->copy_paste = calloc(churn->n_steps * churn->n_heads + 1, sizeof *s->copy_paste);
    if (s->demands && s->raw && s->decoding && s->jaccard && s->drift && s->needle && s->copy_paste) return s;
    scratch_free(s);
    return NULL;
}

static tw_status measure_pages(struct work *work, struct scratch *s, size_t p, size_t layer, struct tw_error *err) {
    struct tw_churn *const churn = work->churn;
    struct tw_page_churn *const pages = &churn->pages[p];
    const struct tw_demand *const demand = &s->demands[p];
    double *const sums = work->jaccard_sums + (p * churn->n_layers + layer) * (churn->n_steps - 1);
    if (s->heads.n_pages < demand->n_pages) {
        tw_head_workspace_release(&s->heads);
        TW_TRY(tw_head_workspace_init(&s->heads, demand->n_pages, err));
    }
    for (size_t h = 0; h < churn->n_heads; h++) {
        const struct tw_page_sets sets = tw_demand_page_sets(demand, h);
        struct tw_head_churn head;
        tw_head_churn_measure(&head, s->jaccard, s->drift, &sets, work->pool[p], &s->heads);
        const size_t number = layer * churn->n_heads + h;
        pages->stability[number] = head.stability;
        for (size_t t = 0; t + 1 < churn->n_steps; t++) sums[t] += s->jaccard[t];
        if (head.n_drifts) {
            uint32_t *const copy = malloc(head.n_drifts * sizeof *copy);
            if (!copy) return TW_FAIL(err, TW_E_MEMORY, "out of memory for %zu drift events", head.n_drifts);
            memcpy(copy, s->drift, head.n_drifts * sizeof *copy);
            work->drift[p * churn->n_layers * churn->n_heads + number] = copy;
        }
        work->n_drift[p * churn->n_layers * churn->n_heads + number] = head.n_drifts;
    }
    return TW_OK;
}

static tw_status read_scores(struct work *work, struct scratch *s, struct tw_trace *trace, size_t layer,
                             struct tw_error *err) {
    struct tw_churn *const churn = work->churn;
    const size_t n_steps = churn->n_steps, n_heads = churn->n_heads, all_heads = churn->n_layers * n_heads;
    if (churn->has_copy_paste) {
        TW_TRY(tw_trace_read_copy_paste(trace, s->copy_paste, layer, 0, n_steps, err));
        uint8_t *const active = work->active[TW_ACTIVITY_COPY_PASTE] + layer * n_heads;
        for (size_t t = 0; t < n_steps; t++) memcpy(active + t * all_heads, s->copy_paste + t * n_heads, n_heads);
    }
    if (!churn->has_needle) return TW_OK;
    TW_TRY(tw_trace_read_needle(trace, s->needle, layer, 0, n_steps, err));
    for (size_t r = TW_ACTIVITY_FIRST_NEEDLE; r < TW_N_ACTIVITY_RULES; r++)
        for (size_t t = 0; t < n_steps; t++)
            for (size_t h = 0; h < n_heads; h++)
                work->active[r][t * all_heads + layer * n_heads + h] =
                    s->needle[t * n_heads + h] > tw_activity_rules[r].threshold;
    for (size_t h = 0; h < n_heads; h++) {
        double sum = 0;
        for (size_t t = 0; t < n_steps; t++) sum += s->needle[t * n_heads + h];
        churn->needle_mean[layer * n_heads + h] = sum / (double)n_steps;
    }
    return TW_OK;
}

static tw_status measure_layer(void *context, void *memory, struct tw_trace *trace, size_t layer,
                               struct tw_error *err) {
    struct work *const work = context;
    struct scratch *const s = memory;
    TW_TRY(
        tw_demand_read_many(s->demands, trace, work->sources, work->churn->n_pages, layer, s->raw, s->decoding, err));
    for (size_t p = 0; p < work->churn->n_pages; p++) TW_TRY(measure_pages(work, s, p, layer, err));
    return read_scores(work, s, trace, layer, err);
}

static tw_status summarise_pages(struct work *work, size_t p, struct tw_error *err) {
    struct tw_churn *const churn = work->churn;
    struct tw_page_churn *const pages = &churn->pages[p];
    const size_t all_heads = churn->n_layers * churn->n_heads;
    const size_t *const n_drift = work->n_drift + p * all_heads;
    size_t n_unstable = 0, n_with_drift = 0;
    for (size_t h = 0; h < all_heads; h++) {
        n_unstable += pages->stability[h] < TW_UNSTABLE_BELOW;
        n_with_drift += n_drift[h] > 0;
        pages->n_drifts += n_drift[h];
    }
    pages->drift = malloc((pages->n_drifts + 1) * sizeof *pages->drift);
    double *const sorted = malloc((all_heads + 1) * sizeof *sorted);
    if (!pages->drift || !sorted) {
        free(sorted);
        return TW_FAIL(err, TW_E_MEMORY, "out of memory for the churn of %zu heads", all_heads);
    }
    size_t n = 0;
    for (size_t h = 0; h < all_heads; h++)
        for (size_t i = 0; i < n_drift[h]; i++)
            pages->drift[n++] = (struct tw_head_event){(uint32_t)h, work->drift[p * all_heads + h][i]};
    pages->drift_mean = tw_ratio(pages->n_drifts, all_heads);
    pages->heads_with_drift = tw_ratio(n_with_drift, all_heads);

    const bool defined = churn->n_steps > 1;
    memcpy(sorted, pages->stability, all_heads * sizeof *sorted);
    if (defined) tw_sort_doubles(sorted, all_heads);
    pages->stability_mean = tw_mean(pages->stability, all_heads);
    pages->stability_p10 = defined ? tw_quantile_sorted(sorted, all_heads, 0.1) : NAN;
    pages->stability_p90 = defined ? tw_quantile_sorted(sorted, all_heads, 0.9) : NAN;
    pages->unstable_fraction = defined ? tw_ratio(n_unstable, all_heads) : NAN;
    free(sorted);

    for (size_t t = 0; t + 1 < churn->n_steps; t++) {
        for (size_t l = 0; l < churn->n_layers; l++)
            pages->jaccard[t] += work->jaccard_sums[(p * churn->n_layers + l) * (churn->n_steps - 1) + t];
        pages->jaccard[t] /= (double)all_heads;
    }
    pages->jaccard_mean = tw_mean(pages->jaccard, churn->n_steps - 1);
    return TW_OK;
}

static tw_status allocate(struct work *work, const uint64_t *page_sizes, const struct tw_trace *trace,
                          struct tw_error *err) {
    struct tw_churn *const churn = work->churn;
    const size_t n = churn->n_pages, n_steps = churn->n_steps, all_heads = churn->n_layers * churn->n_heads;
    churn->pages = calloc(n, sizeof *churn->pages);
    work->sources = calloc(n, sizeof *work->sources);
    work->pool = calloc(n, sizeof *work->pool);
    work->drift = calloc(n * all_heads, sizeof *work->drift);
    work->n_drift = calloc(n * all_heads, sizeof *work->n_drift);
    work->jaccard_sums = calloc(n * churn->n_layers * (n_steps - 1) + 1, sizeof *work->jaccard_sums);
    bool ok = churn->pages && work->sources && work->pool && work->drift && work->n_drift && work->jaccard_sums;
    for (size_t p = 0; ok && p < n; p++) {
        struct tw_page_churn *const pages = &churn->pages[p];
        pages->page_size = page_sizes[p];
        pages->stability = calloc(all_heads, sizeof *pages->stability);
        pages->jaccard = calloc(n_steps, sizeof *pages->jaccard);
        work->pool[p] = calloc(n_steps, sizeof *work->pool[p]);
        ok = pages->stability && pages->jaccard && work->pool[p];
        work->sources[p] = (struct tw_demand_source){
            .page_size = page_sizes[p], .unit = TW_UNIT_QUERY, .first_step = 0, .n_steps = n_steps};
        const int32_t *const context_length = tw_trace_context_length(trace);
        for (size_t t = 0; ok && t < n_steps; t++) work->pool[p][t] = tw_page_pool(context_length[t], page_sizes[p]);
    }
    for (size_t r = 0; ok && r < TW_N_ACTIVITY_RULES; r++) {
        if (!tw_churn_has_rule(churn, r)) continue;
        work->active[r] = calloc(n_steps * all_heads, 1);
        churn->activity_jaccard[r] = calloc(n_steps, sizeof *churn->activity_jaccard[r]);
        churn->activity_size[r] = calloc(n_steps, sizeof *churn->activity_size[r]);
        ok = work->active[r] && churn->activity_jaccard[r] && churn->activity_size[r];
    }
    if (ok && churn->has_needle) {
        churn->needle_mean = calloc(all_heads, sizeof *churn->needle_mean);
        ok = churn->needle_mean;
    }
    if (ok) return TW_OK;
    return TW_FAIL(err, TW_E_MEMORY, "out of memory for the churn of trace '%s'", tw_trace_path(trace));
}

tw_status tw_churn_measure(struct tw_churn *churn, struct tw_trace *trace, const uint64_t *page_sizes, size_t n,
                           struct tw_progress *progress, struct tw_error *err) {
    const struct tw_trace_info *const info = tw_trace_info(trace);
    *churn = (struct tw_churn){.n_steps = info->n_steps,
                               .n_layers = info->n_layers,
                               .n_heads = info->n_heads,
                               .n_pages = n,
                               .has_copy_paste = tw_trace_has(trace, TW_TRACE_COPY_PASTE),
                               .has_needle = tw_trace_has(trace, TW_TRACE_NEEDLE)};
    struct work work = {.churn = churn};
    tw_status status = TW_OK;
    if (info->n_steps == 0)
        status = TW_FAIL(err, TW_E_INPUT, "trace '%s' holds no steps, so there is no churn to measure",
                         tw_trace_path(trace));
    if (status == TW_OK) status = tw_trace_name_init(&churn->name, trace, err);
    if (status == TW_OK) status = allocate(&work, page_sizes, trace, err);
    if (status == TW_OK) {
        const struct tw_layer_job job = {"churn", &work, scratch_new, scratch_free, measure_layer};
        status = tw_layers_run(&job, trace, progress, err);
    }
    for (size_t p = 0; status == TW_OK && p < n; p++) status = summarise_pages(&work, p, err);
    for (size_t r = 0; status == TW_OK && r < TW_N_ACTIVITY_RULES; r++)
        if (work.active[r])
            status = tw_activity_measure(&churn->activity[r], churn->activity_jaccard[r], churn->activity_size[r],
                                         work.active[r], churn->n_steps, churn->n_layers * churn->n_heads, err);

    for (size_t i = 0; work.drift && i < n * churn->n_layers * churn->n_heads; i++) free(work.drift[i]);
    for (size_t p = 0; work.pool && p < n; p++) free(work.pool[p]);
    for (size_t r = 0; r < TW_N_ACTIVITY_RULES; r++) free(work.active[r]);
    free(work.sources);
    free(work.pool);
    free(work.drift);
    free(work.n_drift);
    free(work.jaccard_sums);
    if (status != TW_OK) tw_churn_release(churn);
    return status;
}

void tw_churn_release(struct tw_churn *churn) {
    for (size_t p = 0; churn->pages && p < churn->n_pages; p++) {
        free(churn->pages[p].stability);
        free(churn->pages[p].drift);
        free(churn->pages[p].jaccard);
    }
    free(churn->pages);
    for (size_t r = 0; r < TW_N_ACTIVITY_RULES; r++) {
        free(churn->activity_jaccard[r]);
        free(churn->activity_size[r]);
    }
    free(churn->needle_mean);
    tw_trace_name_release(&churn->name);
    *churn = (struct tw_churn){0};
}
