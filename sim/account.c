#include "sim/account.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "sim/ranks.h"

size_t tw_account_sections(const struct tw_account_shape *shape) {
    return shape->by == TW_REPLAY_BY_HEAD ? shape->n_units : 1;
}

bool tw_account_wants_steps(const struct tw_account_shape *shape) { return shape->by == TW_REPLAY_BY_STEP; }

static bool has_total(const struct tw_account_shape *shape) {
    return shape->by == TW_REPLAY_BY_RUN || shape->by == TW_REPLAY_BY_STEP;
}

tw_status tw_account_init(struct tw_account *account, const struct tw_account_shape *shape, struct tw_error *err) {
    *account = (struct tw_account){.shape = *shape};
    const size_t n_all_units = shape->n_layers * shape->n_units;
    account->n_groups = shape->by == TW_REPLAY_BY_RUN     ? 1
                        : shape->by == TW_REPLAY_BY_LAYER ? shape->n_layers
                        : shape->by == TW_REPLAY_BY_HEAD  ? n_all_units
                                                          : shape->n_steps;
    size_t n_rows;
    if (tw_mul_size(&n_rows, account->n_groups, shape->n_budgets))
        account->rows = calloc(n_rows + 1, sizeof *account->rows);
    account->kept = calloc(shape->n_layers + 1, sizeof *account->kept);
    account->measure = calloc(n_all_units + 1, sizeof *account->measure);
    account->layer_fetches = calloc(shape->n_layers + 1, sizeof *account->layer_fetches);
    if (!account->rows || !account->kept || !account->measure || !account->layer_fetches)
        return TW_FAIL(err, TW_E_MEMORY, "not enough memory for the results of %zu groups under %zu budgets",
                       account->n_groups, shape->n_budgets);
    if (!has_total(shape)) return TW_OK;
    return tw_tally_begin(&account->total, 1, shape->n_steps, shape->n_budgets, tw_account_wants_steps(shape), err);
}

void tw_account_release(struct tw_account *account, void (*free_kept)(void *)) {
    for (size_t l = 0; l < account->shape.n_layers; l++) {
        if (account->kept && account->kept[l] && free_kept) free_kept(account->kept[l]);
        if (account->layer_fetches) free(account->layer_fetches[l]);
    }
    tw_tally_release(&account->total);
    free(account->layer_fetches);
    free(account->rows);
    free(account->kept);
    free(account->measure);
    *account = (struct tw_account){0};
}

/* ---- adding tallies ---- */

static void add_u64(uint64_t *restrict to, const uint64_t *restrict from, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] += from[i];
}

static void add_u32(uint32_t *restrict to, const uint32_t *restrict from, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] += from[i];
}

/* Adds what a row of the resident pages' changes holds to the sum of the rows before it. */
static void add_moved(uint64_t *now, const struct tw_tally *tally, size_t section, size_t step) {
    const struct tw_span moved = tally->moved[section * tally->n_steps + step];
    add_u64(now + moved.low, tw_tally_row(tally, tally->resident, section, step) + moved.low, moved.high - moved.low);
}

/* Of the same steps and budgets, each with one section. */
static void add_tally(struct tw_tally *total, const struct tw_tally *tally) {
    const size_t width = tally->width, cells = tally->n_steps * width;
    add_u64(total->misses, tally->misses, width);
    add_u64(total->prefetch, tally->prefetch, width);
    for (size_t t = 0; t < tally->n_steps; t++) {
        const struct tw_span moved = tally->moved[t], fetched = tally->fetched[t];
        if (moved.high) {
            const size_t at = t * width + moved.low;
            tw_span_touch(&total->moved[t], moved.low, moved.high);
            add_u64(total->resident + at, tally->resident + at, moved.high - moved.low);
        }
        if (fetched.high) {
            const size_t at = t * width + fetched.low;
            tw_span_touch(&total->fetched[t], fetched.low, fetched.high);
            add_u32(total->fetches + at, tally->fetches + at, fetched.high - fetched.low);
        }
    }
    if (!total->step_misses) return;
    add_u32(total->step_misses, tally->step_misses, cells);
    add_u32(total->step_prefetch, tally->step_prefetch, cells);
}

/* ---- values from differences ---- */

static void values_below(uint64_t *restrict value, const uint64_t *restrict d, size_t n_budgets) {
    uint64_t sum = 0;
    for (size_t b = n_budgets; b-- > 0;) value[b] = sum += d[b + 1];
}

/* The same of 32-bit differences, which wrap around at their own width. */
static void values_below_32(uint64_t *restrict value, const uint32_t *restrict d, size_t n_budgets) {
    uint32_t sum = 0;
    for (size_t b = n_budgets; b-- > 0;) value[b] = sum += d[b + 1];
}

/* Scratch of reducing one section, all [n_budgets] or [width]. */
struct scratch {
    uint64_t *now;   /* [width] differences of the resident pages at this step */
    uint64_t *value; /* [n_budgets] */
    uint64_t *pages; /* [n_budgets][n_layers] fetches of one step */
    double *stall;   /* [n_budgets][n_steps] */
};

static tw_status reserve_scratch(struct scratch *scratch, const struct tw_account_shape *shape, size_t n_layers,
                                 struct tw_error *err) {
    const size_t n = shape->n_budgets + 1;
    size_t n_pages, n_stalls;
    *scratch = (struct scratch){0};
    if (tw_mul_size(&n_pages, n, n_layers + 1) && tw_mul_size(&n_stalls, n, shape->n_steps + 1)) {
        scratch->now = calloc(n, sizeof *scratch->now);
        scratch->value = calloc(n, sizeof *scratch->value);
        scratch->pages = calloc(shape->link ? n_pages : 1, sizeof *scratch->pages);
        scratch->stall = calloc(shape->link ? n_stalls : 1, sizeof *scratch->stall);
    }
    if (scratch->now && scratch->value && scratch->pages && scratch->stall) return TW_OK;
    return TW_FAIL(err, TW_E_MEMORY, "not enough memory to add up %zu steps under %zu budgets", shape->n_steps,
                   shape->n_budgets);
}

static void release_scratch(struct scratch *scratch) {
    free(scratch->now);
    free(scratch->value);
    free(scratch->pages);
    free(scratch->stall);
}

/*
 * The rows of one section of a tally. fetches [n_layers] are those of the layers that share the link, each
 * [n_steps][width] or NULL.
 */
static void reduce(struct tw_account_row *rows, const struct tw_account_shape *shape, const struct tw_tally *tally,
                   size_t section, uint32_t *const *fetches, size_t n_layers, struct scratch *scratch) {
    const size_t n_budgets = shape->n_budgets, width = tally->width;
    uint64_t *const value = scratch->value;
    values_below(value, tally->misses + section * width, n_budgets);
    for (size_t b = 0; b < n_budgets; b++) rows[b].misses = value[b];
    values_below(value, tally->prefetch + section * width, n_budgets);
    for (size_t b = 0; b < n_budgets; b++) rows[b].fetches = value[b];
    memset(scratch->now, 0, width * sizeof *scratch->now);
    for (size_t t = 0; t < shape->n_steps; t++) {
        add_moved(scratch->now, tally, section, t);
        uint64_t resident = 0;
        for (size_t b = 0; b < n_budgets; b++) {
            resident += scratch->now[b];
            rows[b].resident_page_steps += resident;
            if (resident > rows[b].peak_resident) rows[b].peak_resident = resident;
        }
        const uint32_t high =
            tally->fetched[section * tally->n_steps + t].high; /* the budgets from there on fetch nothing */
        if (high) values_below_32(value, tw_tally_row(tally, tally->fetches, section, t), high - 1);
        for (size_t b = 0; b + 1 < high; b++) {
            rows[b].fetches += value[b];
            rows[b].stall_steps += value[b] != 0;
        }
        if (!shape->link) continue;
        for (size_t l = 0; l < n_layers; l++) {
            if (fetches[l])
                values_below_32(value, fetches[l] + t * width, n_budgets);
            else
                memset(value, 0, n_budgets * sizeof *value);
            for (size_t b = 0; b < n_budgets; b++) scratch->pages[b * n_layers + l] = value[b];
        }
        for (size_t b = 0; b < n_budgets; b++) {
            const double stall = tw_stall_step(shape->link, shape->page_bytes, scratch->pages + b * n_layers, n_layers);
            rows[b].stall_seconds += stall;
            scratch->stall[b * shape->n_steps + t] = stall;
        }
    }
    if (!shape->link) return;
    for (size_t b = 0; b < n_budgets; b++)
        rows[b].stall_seconds_p99 = tw_stall_quantile(scratch->stall + b * shape->n_steps, shape->n_steps, 0.99);
}

/* A section's fetches as the only ones on the link: its layer's place in the step stays. */
static void lone_fetches(uint32_t **fetches, const struct tw_tally *tally, size_t section, size_t layer,
                         size_t n_layers) {
    memset(fetches, 0, n_layers * sizeof *fetches);
    fetches[layer] = tw_tally_row(tally, tally->fetches, section, 0);
}

static tw_status add_groups(struct tw_account *account, const struct tw_tally *tally, size_t layer,
                            struct tw_error *err) {
    const struct tw_account_shape *shape = &account->shape;
    struct scratch scratch;
    uint32_t **fetches = malloc((shape->n_layers + 1) * sizeof *fetches);
    tw_status status = fetches ? TW_OK : TW_FAIL(err, TW_E_MEMORY, "not enough memory to add up a layer");
    if (status == TW_OK) {
        status = reserve_scratch(&scratch, shape, shape->n_layers, err);
        for (size_t s = 0; status == TW_OK && s < tally->n_sections; s++) {
            lone_fetches(fetches, tally, s, layer, shape->n_layers);
            reduce(account->rows + (layer * tally->n_sections + s) * shape->n_budgets, shape, tally, s, fetches,
                   shape->n_layers, &scratch);
        }
        release_scratch(&scratch);
    }
    free(fetches);
    return status;
}

static bool any_fetch(const struct tw_tally *tally) {
    for (size_t t = 0; t < tally->n_steps; t++)
        if (tally->fetched[t].high) return true;
    return false;
}

tw_status tw_account_add(struct tw_account *account, const struct tw_tally *tally, size_t layer, struct tw_error *err) {
    const struct tw_account_shape *shape = &account->shape;
    if (!has_total(shape)) return add_groups(account, tally, layer, err);
    if (shape->link && any_fetch(tally)) {
        const size_t bytes = shape->n_steps * tally->width * sizeof *tally->fetches;
        account->layer_fetches[layer] = malloc(bytes);
        if (!account->layer_fetches[layer])
            return TW_FAIL(err, TW_E_MEMORY, "not enough memory for the fetches of a layer (%zu bytes)", bytes);
        memcpy(account->layer_fetches[layer], tally->fetches, bytes);
    }
#pragma omp critical(tw_account)
    add_tally(&account->total, tally);
    return TW_OK;
}

/* ---- finishing ---- */

static void sum_total(struct tw_account *account) {
    struct tw_tally *total = &account->total;
    const size_t cells = total->n_steps * total->width;
    if (tw_ranks_count() == 1) return;
    for (size_t t = 0; t < total->n_steps; t++) {
        tw_span_touch(&total->moved[t], 0, total->width);
        tw_span_touch(&total->fetched[t], 0, total->width);
    }
    tw_ranks_sum_u64(total->misses, total->width);
    tw_ranks_sum_u64(total->prefetch, total->width);
    tw_ranks_sum_u64(total->resident, cells);
    tw_ranks_sum_u32(total->fetches, cells);
    if (!total->step_misses) return;
    tw_ranks_sum_u32(total->step_misses, cells);
    tw_ranks_sum_u32(total->step_prefetch, cells);
}

/* Every rank gets the fetches of every layer that has any. */
static tw_status sum_layer_fetches(struct tw_account *account, struct tw_error *err) {
    const size_t cells = account->total.n_steps * account->total.width;
    if (!account->shape.link || tw_ranks_count() == 1) return TW_OK;
    for (size_t l = 0; l < account->shape.n_layers; l++) {
        uint64_t there = account->layer_fetches[l] != NULL;
        tw_ranks_sum_u64(&there, 1);
        if (!there) continue;
        tw_status status = TW_OK;
        if (!account->layer_fetches[l]) {
            account->layer_fetches[l] = calloc(cells, sizeof **account->layer_fetches);
            if (!account->layer_fetches[l])
                status = TW_FAIL(err, TW_E_MEMORY, "not enough memory for the fetches of a layer");
        }
        TW_TRY(tw_ranks_agree(status, err));
        tw_ranks_sum_u32(account->layer_fetches[l], cells);
    }
    return TW_OK;
}

static tw_status sum_rows(struct tw_account *account, struct tw_error *err) {
    enum { COUNTS = 5, SECONDS = 2 };
    const size_t n = account->n_groups * account->shape.n_budgets;
    if (tw_ranks_count() == 1) return TW_OK;
    uint64_t *counts = malloc((n + 1) * COUNTS * sizeof *counts);
    double *seconds = malloc((n + 1) * SECONDS * sizeof *seconds);
    tw_status status = counts && seconds ? TW_OK : TW_FAIL(err, TW_E_MEMORY, "not enough memory to add up %zu rows", n);
    TW_TRY_GOTO(status, done, tw_ranks_agree(status, err));
    for (size_t i = 0; i < n; i++) {
        const struct tw_account_row *row = &account->rows[i];
        const uint64_t c[COUNTS] = {row->misses, row->fetches, row->stall_steps, row->resident_page_steps,
                                    row->peak_resident};
        const double d[SECONDS] = {row->stall_seconds, row->stall_seconds_p99};
        memcpy(counts + i * COUNTS, c, sizeof c);
        memcpy(seconds + i * SECONDS, d, sizeof d);
    }
    tw_ranks_sum_u64(counts, n * COUNTS);
    tw_ranks_sum_double(seconds, n * SECONDS);
    for (size_t i = 0; i < n; i++) {
        const uint64_t *c = counts + i * COUNTS;
        const double *d = seconds + i * SECONDS;
        account->rows[i] = (struct tw_account_row){c[0], c[1], c[2], c[3], c[4], d[0], d[1]};
    }
done:
    free(counts);
    free(seconds);
    return status;
}

/* Every step of the run as a run of one step. */
static tw_status reduce_steps(struct tw_account *account, uint32_t **fetches, struct scratch *scratch,
                              struct tw_error *err) {
    const struct tw_tally *total = &account->total;
    struct tw_account_shape shape = account->shape;
    const size_t width = total->width;
    uint64_t *const running = calloc(2 * width, sizeof *running), *const none = running + width;
    struct tw_span all = {0, (uint32_t)width};
    if (!running) return TW_FAIL(err, TW_E_MEMORY, "not enough memory to add up the steps of a run");
    shape.n_steps = 1;
    for (size_t t = 0; t < total->n_steps; t++) {
        add_moved(running, total, 0, t);
        const struct tw_tally one = {.n_sections = 1,
                                     .n_steps = 1,
                                     .width = width,
                                     .misses = none,
                                     .prefetch = none,
                                     .resident = running,
                                     .moved = &all,
                                     .fetches = total->fetches + t * width,
                                     .fetched = total->fetched + t};
        for (size_t l = 0; l < shape.n_layers; l++)
            fetches[l] = account->layer_fetches[l] ? account->layer_fetches[l] + t * width : NULL;
        struct tw_account_row *const rows = account->rows + t * shape.n_budgets;
        reduce(rows, &shape, &one, 0, fetches, shape.n_layers, scratch);
        values_below_32(scratch->value, total->step_misses + t * width, shape.n_budgets);
        for (size_t b = 0; b < shape.n_budgets; b++) rows[b].misses = scratch->value[b];
        values_below_32(scratch->value, total->step_prefetch + t * width, shape.n_budgets);
        for (size_t b = 0; b < shape.n_budgets; b++) rows[b].fetches += scratch->value[b];
    }
    free(running);
    return TW_OK;
}

tw_status tw_account_finish(struct tw_account *account, struct tw_error *err) {
    const struct tw_account_shape *shape = &account->shape;
    if (!has_total(shape)) return sum_rows(account, err);
    sum_total(account);
    TW_TRY(sum_layer_fetches(account, err));
    struct scratch scratch;
    tw_status status = reserve_scratch(&scratch, shape, shape->n_layers, err);
    uint32_t **fetches = calloc(shape->n_layers + 1, sizeof *fetches);
    if (status == TW_OK && !fetches) status = TW_FAIL(err, TW_E_MEMORY, "not enough memory to add up a run");
    if (status == TW_OK) {
        if (shape->by == TW_REPLAY_BY_STEP)
            status = reduce_steps(account, fetches, &scratch, err);
        else
            reduce(account->rows, shape, &account->total, 0, account->layer_fetches, shape->n_layers, &scratch);
    }
    free(fetches);
    release_scratch(&scratch);
    return status;
}
