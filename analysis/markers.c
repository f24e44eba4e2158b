#include "analysis/markers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/stats.h"

const char *const tw_marker_grading_names[TW_N_MARKER_GRADINGS] = {"second_half", "whole_run"};

/* One step of a first half. */
struct seen {
    int32_t token;
    bool before_event;
};

static int by_token(const void *a, const void *b) {
    const struct seen *const x = a, *const y = b;
    return (x->token > y->token) - (x->token < y->token);
}

/* Whether an event follows step t within 8 steps. */
static bool event_follows(const uint8_t *woken, size_t n_steps, size_t t) {
    for (size_t d = 1; d <= TW_MARKER_WITHIN && t + d < n_steps; d++)
        if (woken[t + d]) return true;
    return false;
}

/* z of hits/count against base_hits/base_count with the pooled standard error. */
static double two_proportions(size_t hits, size_t count, size_t base_hits, size_t base_count) {
    const double p = (double)(hits + base_hits) / (double)(count + base_count);
    const double error = sqrt(p * (1 - p) * (1 / (double)count + 1 / (double)base_count));
    return error > 0 ? ((double)hits / (double)count - (double)base_hits / (double)base_count) / error : NAN;
}

static tw_status test_tokens(struct tw_markers *markers, struct seen *seen, struct tw_error *err) {
    qsort(seen, markers->steps, sizeof *seen, by_token);
    markers->tested = malloc((markers->steps / TW_MARKER_AT_LEAST + 1) * sizeof *markers->tested);
    if (!markers->tested) return TW_FAIL(err, TW_E_MEMORY, "out of memory for the token markers");
    for (size_t i = 0, end; i < markers->steps; i = end) {
        size_t hits = 0;
        for (end = i; end < markers->steps && seen[end].token == seen[i].token; end++) hits += seen[end].before_event;
        if (end - i < TW_MARKER_AT_LEAST) continue;
        const size_t count = end - i;
        const double rate = (double)hits / (double)count, base = tw_ratio(markers->steps_before_event, markers->steps);
        markers->tested[markers->n_tested++] =
            (struct tw_marker){.token = seen[i].token,
                               .count = count,
                               .hits = hits,
                               .z = two_proportions(hits, count, markers->steps_before_event, markers->steps),
                               .more_often = tw_above(rate, base)};
    }
    const double tests = markers->n_tested ? (double)markers->n_tested : 1;
    markers->z_bar = tw_normal_upper(TW_MARKER_SIGNIFICANCE / tests);
    for (size_t i = 0; i < markers->n_tested; i++) {
        struct tw_marker *const m = &markers->tested[i];
        m->found = m->more_often && tw_above(m->z, markers->z_bar); /* a NaN is not above */
        markers->n_found += m->found;
    }
    return TW_OK;
}

static bool is_found(const struct tw_markers *markers, int32_t token) {
    size_t low = 0, high = markers->n_tested;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (markers->tested[middle].token < token)
            low = middle + 1;
        else
            high = middle;
    }
    return low < markers->n_tested && markers->tested[low].token == token && markers->tested[low].found;
}

static void grade(struct tw_markers *markers, const struct tw_wakeups *run, const uint8_t *woken, uint8_t *alarm,
                  uint32_t *event) {
    const size_t half = run->n_steps / 2;
    size_t n_events = 0;
    for (size_t t = half; t < run->n_steps; t++)
        if (woken[t]) event[n_events++] = (uint32_t)t;
    for (size_t t = 0; t < run->n_steps; t++) alarm[t] = is_found(markers, run->token_id[t]);
    tw_alarms_add(&markers->graded[TW_MARKERS_WHOLE_RUN], alarm, run->n_steps, event, n_events);
    memset(alarm, 0, half);
    tw_alarms_add(&markers->graded[TW_MARKERS_SECOND_HALF], alarm, run->n_steps, event, n_events);
}

tw_status tw_markers_find(struct tw_markers *markers, const struct tw_wakeups *const *runs, size_t n_runs,
                          struct tw_error *err) {
    *markers = (struct tw_markers){0};
    size_t longest = 0, total = 0;
    for (size_t r = 0; r < n_runs; r++) {
        total += runs[r]->n_steps / 2;
        if (runs[r]->n_steps > longest) longest = runs[r]->n_steps;
    }
    struct seen *const seen = malloc((total + 1) * sizeof *seen);
    uint8_t *const woken = malloc(longest + 1), *const alarm = malloc(longest + 1);
    uint32_t *const event = malloc((longest + 1) * sizeof *event);
    tw_status status = TW_OK;
    if (!seen || !woken || !alarm || !event) {
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory for the token markers of %zu steps", total);
        goto done;
    }
    for (size_t r = 0; r < n_runs; r++) {
        tw_wakeups_by_step(woken, runs[r]);
        for (size_t t = 0; t < runs[r]->n_steps / 2; t++) {
            const bool before_event = event_follows(woken, runs[r]->n_steps, t);
            seen[markers->steps++] = (struct seen){runs[r]->token_id[t], before_event};
            markers->steps_before_event += before_event;
        }
    }
    TW_TRY_GOTO(status, done, test_tokens(markers, seen, err));
    for (size_t r = 0; r < n_runs; r++) {
        tw_wakeups_by_step(woken, runs[r]);
        grade(markers, runs[r], woken, alarm, event);
    }
done:
    free(seen);
    free(woken);
    free(alarm);
    free(event);
    if (status != TW_OK) tw_markers_release(markers);
    return status;
}

void tw_markers_release(struct tw_markers *markers) {
    free(markers->tested);
    *markers = (struct tw_markers){0};
}
