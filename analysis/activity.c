#include "analysis/activity.h"

#include <math.h>
#include <stdlib.h>

#include "analysis/head_churn.h"
#include "analysis/similarity.h"
#include "analysis/stats.h"
#include "base/checked.h"

const struct tw_activity_rule tw_activity_rules[TW_N_ACTIVITY_RULES] = {
    {"copy_paste", 0},
    {"needle>0.1", 0.1f},
    {"needle>0.2", 0.2f},
    {"needle>0.3", 0.3f},
};

struct counted {
    uint64_t count;
    size_t head;
};

static int more_active_first(const void *a, const void *b) {
    const struct counted *const x = a, *const y = b;
    if (x->count != y->count) return x->count < y->count ? 1 : -1;
    return x->head < y->head ? 1 : -1;
}

static size_t count_both(const uint8_t *a, const uint8_t *b, size_t n) {
    size_t both = 0;
    for (size_t h = 0; h < n; h++) both += a[h] & b[h];
    return both;
}

tw_status tw_activity_measure(struct tw_activity *activity, double *jaccard, uint32_t *size, const uint8_t *active,
                              size_t n_steps, size_t n_heads, struct tw_error *err) {
    uint64_t *const counts = calloc(n_heads + 1, sizeof *counts);
    struct counted *const ranked = calloc(n_heads + 1, sizeof *ranked);
    uint8_t *const top = calloc(n_heads + 1, 1);
    double *const sizes = calloc(n_steps + 1, sizeof *sizes);
    tw_status status = TW_OK;
    if (!counts || !ranked || !top || !sizes) {
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory for the activity of %zu heads", n_heads);
        goto done;
    }
    for (size_t t = 0; t < n_steps; t++)
        for (size_t h = 0; h < n_heads; h++) {
            sizes[t] += active[t * n_heads + h];
            counts[h] += active[t * n_heads + h];
        }
    *activity = (struct tw_activity){.active_mean = tw_mean(sizes, n_steps),
                                     .active_std = tw_deviation(sizes, n_steps),
                                     .entropy = tw_entropy_of_counts(counts, n_heads)};
    for (size_t h = 0; h < n_heads; h++) {
        activity->distinct += counts[h] > 0;
        ranked[h] = (struct counted){counts[h], h};
    }
    qsort(ranked, n_heads, sizeof *ranked, more_active_first);
    const size_t n_top = tw_min_size(TW_TOP_ACTIVE, n_heads);
    for (size_t i = 0; i < n_top; i++) top[ranked[i].head] = 1;

    double adjacent = 0, with_top = 0;
    size_t n_empty = 0;
    for (size_t t = 0; t < n_steps; t++) {
        const uint8_t *const here = active + t * n_heads;
        const size_t n_here = (size_t)sizes[t];
        if (size) size[t] = (uint32_t)n_here;
        n_empty += n_here == 0;
        if (n_here) with_top += tw_jaccard(count_both(here, top, n_heads), n_here, n_top);
        if (t == 0) continue;
        const double alike = tw_jaccard(count_both(here - n_heads, here, n_heads), (size_t)sizes[t - 1], n_here);
        if (jaccard) jaccard[t - 1] = alike;
        adjacent += alike;
    }
    activity->adjacent_jaccard = n_steps > 1 ? adjacent / (double)(n_steps - 1) : NAN;
    activity->empty_share = tw_ratio(n_empty, n_steps);
    activity->jaccard_top20 = n_empty < n_steps ? with_top / (double)(n_steps - n_empty) : NAN;
done:
    free(counts);
    free(ranked);
    free(top);
    free(sizes);
    return status;
}
