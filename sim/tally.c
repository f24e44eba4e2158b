#include "sim/tally.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

/* Up to this budget the index is a table. */
#define TW_BUDGETS_TABLE 65536

static int by_value(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

tw_status tw_budgets_init(struct tw_budgets *budgets, const uint64_t *values, size_t n, struct tw_error *err) {
    *budgets = (struct tw_budgets){0};
    budgets->value = malloc((n ? n : 1) * sizeof *budgets->value);
    if (!budgets->value) return TW_FAIL(err, TW_E_MEMORY, "not enough memory for %zu budgets", n);
    if (n) memcpy(budgets->value, values, n * sizeof *values);
    qsort(budgets->value, n, sizeof *budgets->value, by_value);
    for (size_t i = 0; i < n; i++)
        if (budgets->n == 0 || budgets->value[budgets->n - 1] != budgets->value[i])
            budgets->value[budgets->n++] = budgets->value[i];
    const uint64_t largest = budgets->n ? budgets->value[budgets->n - 1] : 0;
    const size_t upto_n = (size_t)(largest < TW_BUDGETS_TABLE ? largest : TW_BUDGETS_TABLE) + 1;
    budgets->upto = malloc(upto_n * sizeof *budgets->upto);
    if (!budgets->upto) {
        tw_budgets_release(budgets);
        return TW_FAIL(err, TW_E_MEMORY, "not enough memory for %zu budgets", n);
    }
    budgets->upto_n = upto_n;
    size_t at = 0;
    for (size_t x = 0; x < upto_n; x++) {
        while (at < budgets->n && budgets->value[at] <= x) at++;
        budgets->upto[x] = (uint32_t)at;
    }
    return TW_OK;
}

void tw_budgets_release(struct tw_budgets *budgets) {
    free(budgets->value);
    free(budgets->upto);
    *budgets = (struct tw_budgets){0};
}

size_t tw_budgets_search(const struct tw_budgets *budgets, uint64_t x) {
    size_t low = 0, high = budgets->n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (budgets->value[middle] <= x)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* All zeros again, at the cost of what was touched. */
static void clear(struct tw_tally *tally) {
    const size_t n_rows = tally->n_sections * tally->n_steps, width = tally->width;
    if (!tally->memory) return;
    memset(tally->misses, 0, tally->n_sections * width * sizeof *tally->misses);
    memset(tally->prefetch, 0, tally->n_sections * width * sizeof *tally->prefetch);
    for (size_t i = 0; i < n_rows; i++) {
        const struct tw_span moved = tally->moved[i], fetched = tally->fetched[i];
        memset(tally->resident + i * width + moved.low, 0, (moved.high - moved.low) * sizeof *tally->resident);
        memset(tally->fetches + i * width + fetched.low, 0, (fetched.high - fetched.low) * sizeof *tally->fetches);
    }
    memset(tally->moved, 0, n_rows * sizeof *tally->moved);
    memset(tally->fetched, 0, n_rows * sizeof *tally->fetched);
    if (!tally->step_misses) return;
    memset(tally->step_misses, 0, n_rows * width * sizeof *tally->step_misses);
    memset(tally->step_prefetch, 0, n_rows * width * sizeof *tally->step_prefetch);
}

tw_status tw_tally_begin(struct tw_tally *tally, size_t n_sections, size_t n_steps, size_t n_budgets, bool steps,
                         struct tw_error *err) {
    const size_t width = n_budgets + 1;
    size_t rows, cells, bytes, small, spans;
    const size_t arrays_32 = steps ? 3 : 1;
    if (!tw_mul_size(&rows, n_sections, n_steps) || !tw_mul_size(&cells, rows, width) || width > UINT32_MAX ||
        !tw_mul_size(&bytes, cells, sizeof(uint64_t) + arrays_32 * sizeof(uint32_t)) ||
        !tw_mul_size(&small, n_sections, 2 * width * sizeof(uint64_t)) || !tw_add_size(&bytes, bytes, small) ||
        !tw_mul_size(&spans, rows, 2 * sizeof(struct tw_span)) || !tw_add_size(&bytes, bytes, spans))
        return TW_FAIL(err, TW_E_MEMORY, "the counts of %zu steps and %zu budgets cannot be held in memory", n_steps,
                       n_budgets);
    if (bytes > tally->capacity) {
        tw_tally_release(tally);
        tally->memory = calloc(1, bytes); /* what nobody touches takes no memory */
        if (!tally->memory)
            return TW_FAIL(err, TW_E_MEMORY,
                           "not enough memory for the counts of %zu steps and %zu budgets (%zu bytes): replay fewer "
                           "budgets at once",
                           n_steps, n_budgets, bytes);
        tally->capacity = bytes;
    } else {
        clear(tally);
    }
    tally->n_sections = n_sections;
    tally->n_steps = n_steps;
    tally->width = width;
    tally->misses = tally->memory;
    tally->prefetch = tally->misses + n_sections * width;
    tally->resident = tally->prefetch + n_sections * width;
    tally->moved = (struct tw_span *)(tally->resident + cells);
    tally->fetched = tally->moved + rows;
    tally->fetches = (uint32_t *)(tally->fetched + rows);
    tally->step_misses = steps ? tally->fetches + cells : NULL;
    tally->step_prefetch = steps ? tally->step_misses + cells : NULL;
    return TW_OK;
}

void tw_tally_release(struct tw_tally *tally) {
    free(tally->memory);
    *tally = (struct tw_tally){0};
}

void tw_tally_resident_capped(struct tw_tally *tally, size_t section, size_t step, const struct tw_budgets *budgets,
                              uint64_t before, uint64_t after) {
    const uint64_t low = before < after ? before : after, high = before < after ? after : before;
    const int64_t change = before < after ? 1 : -1;
    /* min(B, n) - min(B, n - 1) is 1 for the budgets from n on: those above n - 1. */
    for (uint64_t n = low; n < high; n++) {
        const size_t from = tw_budgets_upto(budgets, n);
        if (from == budgets->n) break;
        tw_tally_resident(tally, section, step, from, change);
    }
}
