/*
 * The window of 16 steps would need 15 intersections a step. Instead each page remembers, as bits, in which of the last
 * 16 steps it was wanted; adding these bits up over a step's pages gives all 15 sizes at once, eight to a 64-bit word.
 */
#include "analysis/head_churn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/similarity.h"
#include "analysis/stats.h"
#include "base/checked.h"

struct tw_page_seen {
    uint32_t step;    /* the last step that wanted the page, + 1; 0: none yet */
    uint16_t history; /* bit j: wanted at step - 1 - j */
    bool in_baseline;
};

tw_status tw_head_workspace_init(struct tw_head_workspace *workspace, size_t n_pages, struct tw_error *err) {
    *workspace = (struct tw_head_workspace){.n_pages = n_pages};
    workspace->seen = calloc(n_pages + 1, sizeof *workspace->seen);
    if (!workspace->seen) return TW_FAIL(err, TW_E_MEMORY, "out of memory for %zu pages", n_pages);
    return TW_OK;
}

void tw_head_workspace_release(struct tw_head_workspace *workspace) {
    free(workspace->seen);
    *workspace = (struct tw_head_workspace){0};
}

/* Walks the head's own pages: the workspace may be far larger than what it uses. */
static void forget(const struct tw_page_sets *sets, struct tw_head_workspace *workspace) {
    for (uint64_t i = sets->begin[0]; i < sets->begin[sets->n_steps]; i++)
        workspace->seen[sets->page[i]] = (struct tw_page_seen){0};
}

/* byte i of spread[b] is bit i of b */
static const uint64_t *spread_table(void) {
#define BIT(b, i) ((uint64_t)((b) >> (i)&1) << (8 * (i)))
#define ROW(b)    (BIT(b, 0) | BIT(b, 1) | BIT(b, 2) | BIT(b, 3) | BIT(b, 4) | BIT(b, 5) | BIT(b, 6) | BIT(b, 7))
#define ROW4(b)   ROW(b), ROW((b) + 1), ROW((b) + 2), ROW((b) + 3)
#define ROW16(b)  ROW4(b), ROW4((b) + 4), ROW4((b) + 8), ROW4((b) + 12)
#define ROW64(b)  ROW16(b), ROW16((b) + 16), ROW16((b) + 32), ROW16((b) + 48)
    static const uint64_t table[256] = {ROW64(0), ROW64(64), ROW64(128), ROW64(192)};
#undef BIT
#undef ROW
#undef ROW4
#undef ROW16
#undef ROW64
    return table;
}

/* both[j] = |pages of t n pages of t - j|, j = 1..15; both[0] = |pages of t|. Records step t in the workspace. */
static void count_window(uint32_t both[TW_STABILITY_WINDOW], const struct tw_page_sets *sets, size_t t,
                         struct tw_page_seen *seen) {
    const uint64_t *const spread = spread_table();
    const uint32_t *const page = sets->page + sets->begin[t];
    const size_t n = tw_page_sets_size(sets, t);
    memset(both, 0, TW_STABILITY_WINDOW * sizeof *both);
    for (size_t from = 0; from < n; from += 255) { /* a byte holds 255 */
        uint64_t low = 0, high = 0;
        const size_t to = tw_min_size(n, from + 255);
        for (size_t i = from; i < to; i++) {
            struct tw_page_seen *const p = &seen[page[i]];
            const size_t ago = t + 1 - p->step;
            const unsigned history = (ago < TW_STABILITY_WINDOW ? (unsigned)p->history << ago : 0) | 1;
            p->history = (uint16_t)history;
            p->step = (uint32_t)t + 1;
            low += spread[history & 0xff];
            high += spread[history >> 8 & 0xff];
        }
        for (unsigned j = 0; j < 8; j++) {
            both[j] += low >> (8 * j) & 0xff;
            both[j + 8] += high >> (8 * j) & 0xff;
        }
    }
}

static void set_baseline(const struct tw_page_sets *sets, size_t t, bool value, struct tw_page_seen *seen) {
    for (size_t i = sets->begin[t]; i < sets->begin[t + 1]; i++) seen[sets->page[i]].in_baseline = value;
}

static uint32_t count_baseline(const struct tw_page_sets *sets, size_t t, const struct tw_page_seen *seen) {
    uint32_t n = 0;
    for (size_t i = sets->begin[t]; i < sets->begin[t + 1]; i++) n += seen[sets->page[i]].in_baseline;
    return n;
}

void tw_head_churn_measure(struct tw_head_churn *churn, double *jaccard, uint32_t *drift,
                           const struct tw_page_sets *sets, const size_t *pool, struct tw_head_workspace *workspace) {
    struct tw_page_seen *const seen = workspace->seen;
    const size_t n_steps = sets->n_steps;
    const size_t window = tw_min_size(TW_STABILITY_WINDOW, n_steps);
    double stability = 0, adjacent = 0;
    double history[TW_DRIFT_HISTORY];
    size_t n_history = 0, baseline = 0;
    churn->n_drifts = 0;
    for (size_t t = 0; t < n_steps; t++) {
        uint32_t both[TW_STABILITY_WINDOW];
        count_window(both, sets, t, seen);
        const size_t n_here = tw_page_sets_size(sets, t);
        if (t == 0) {
            set_baseline(sets, 0, true, seen);
            continue;
        }
        for (size_t d = 1; d < window && d <= t; d++)
            if (t - d <= n_steps - window)
                stability += tw_rco(both[d], tw_page_sets_size(sets, t - d), n_here, pool[t]);
        const double alike = tw_jaccard(both[1], tw_page_sets_size(sets, t - 1), n_here);
        adjacent += alike;
        if (jaccard) jaccard[t - 1] = alike;

        history[n_history++ % TW_DRIFT_HISTORY] =
            tw_overlap(count_baseline(sets, t, seen), tw_page_sets_size(sets, baseline), n_here);
        if (n_history >= TW_DRIFT_HISTORY && tw_median_small(history, TW_DRIFT_HISTORY) < TW_DRIFT_BELOW) {
            if (drift) drift[churn->n_drifts] = (uint32_t)t - 1;
            churn->n_drifts++;
            set_baseline(sets, baseline, false, seen);
            set_baseline(sets, t, true, seen);
            baseline = t;
            n_history = 0;
        }
    }
    forget(sets, workspace);
    const bool defined = n_steps > 1;
    churn->stability = defined ? stability / (double)(window - 1) / (double)(n_steps - window + 1) : NAN;
    churn->adjacent_jaccard = defined ? adjacent / (double)(n_steps - 1) : NAN;
}

void tw_head_overlap_with_first(uint32_t *both, const struct tw_page_sets *sets, struct tw_head_workspace *workspace) {
    set_baseline(sets, 0, true, workspace->seen);
    for (size_t t = 0; t < sets->n_steps; t++) both[t] = count_baseline(sets, t, workspace->seen);
    set_baseline(sets, 0, false, workspace->seen);
}

void tw_head_overlap_with_previous(uint32_t *both, const struct tw_page_sets *sets,
                                   struct tw_head_workspace *workspace) {
    both[0] = 0;
    for (size_t t = 1; t < sets->n_steps; t++) {
        set_baseline(sets, t - 1, true, workspace->seen);
        both[t] = count_baseline(sets, t, workspace->seen);
        set_baseline(sets, t - 1, false, workspace->seen);
    }
}
