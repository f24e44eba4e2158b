/* Averages over the runs of one model and task. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sim/replay.h"

/* What tells rows apart that are not averaged with each other. */
static const char *const key_names[] = {"model",  "task",  "policy", "unit", "page_size",
                                        "budget", "layer", "head",   "step"};
/* What tells runs apart. */
static const char *const run_names[] = {"trace", "run"};

static bool is_one_of(const char *name, const char *const *names, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!strcmp(name, names[i])) return true;
    return false;
}
#define IS_ONE_OF(name, names) is_one_of(name, names, sizeof names / sizeof *names)

static int compare_cells(const struct tw_cell *a, const struct tw_cell *b) {
    if (a->type != b->type) return a->type < b->type ? -1 : 1;
    switch (a->type) {
    case TW_CELL_TEXT: return strcmp(a->text, b->text);
    case TW_CELL_UINT: return (a->u > b->u) - (a->u < b->u);
    case TW_CELL_INT: return (a->i > b->i) - (a->i < b->i);
    case TW_CELL_DOUBLE: return (a->d > b->d) - (a->d < b->d);
    case TW_CELL_EMPTY: break;
    }
    return 0;
}

struct grouping {
    const struct tw_table *in;
    size_t keys[sizeof key_names / sizeof *key_names];
    size_t n_keys;
};

static int compare_keys(const struct grouping *grouping, size_t a, size_t b) {
    for (size_t k = 0; k < grouping->n_keys; k++) {
        const int order = compare_cells(tw_table_cell(grouping->in, a, grouping->keys[k]),
                                        tw_table_cell(grouping->in, b, grouping->keys[k]));
        if (order) return order;
    }
    return 0;
}

static int by_key(const void *a, const void *b, void *grouping) {
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    const int order = compare_keys(grouping, x, y);
    return order ? order : (x > y) - (x < y);
}

struct group {
    size_t first, n; /* in the rows sorted by key: first is also the group's first row in the table's order */
    size_t row;
};

static int by_row(const void *a, const void *b) {
    const size_t x = ((const struct group *)a)->row, y = ((const struct group *)b)->row;
    return (x > y) - (x < y);
}

/* Mean and standard deviation of a column over a group; how many cells have a number. */
static size_t moments(double *mean, double *deviation, const struct tw_table *in, const size_t *rows, size_t n,
                      size_t column) {
    double sum = 0, squares = 0;
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        double value;
        if (!tw_cell_number(&value, tw_table_cell(in, rows[i], column))) continue;
        sum += value;
        count++;
    }
    *mean = count ? sum / (double)count : NAN;
    for (size_t i = 0; i < n; i++) {
        double value;
        if (!tw_cell_number(&value, tw_table_cell(in, rows[i], column))) continue;
        squares += (value - *mean) * (value - *mean);
    }
    *deviation = count > 1 ? sqrt(squares / (double)(count - 1)) : NAN;
    return count;
}

/* `runs` goes behind `task`, or in front of everything else when there is no task. */
static void put_group(struct tw_table *out, const struct tw_table *in, const size_t *rows, size_t n) {
    const size_t task = tw_table_column(in, "task");
    tw_table_begin_row(out);
    if (task == SIZE_MAX) tw_table_put_uint(out, n);
    for (size_t c = 0; c < in->n_columns; c++) {
        const char *name = in->columns[c];
        if (IS_ONE_OF(name, run_names)) continue;
        if (IS_ONE_OF(name, key_names)) {
            tw_table_put_copy(out, tw_table_cell(in, rows[0], c));
        } else {
            double mean, deviation;
            moments(&mean, &deviation, in, rows, n, c);
            tw_table_put_double(out, mean);
            if (!strcmp(name, "miss_rate")) tw_table_put_double(out, deviation);
        }
        if (c == task) tw_table_put_uint(out, n);
    }
}

tw_status tw_replay_average(struct tw_table *out, const struct tw_table *in, struct tw_error *err) {
    struct grouping grouping = {.in = in};
    const size_t task = tw_table_column(in, "task");
    *out = (struct tw_table){0};
    if (task == SIZE_MAX) tw_table_add_column(out, "runs");
    for (size_t c = 0; c < in->n_columns; c++) {
        const char *name = in->columns[c];
        if (IS_ONE_OF(name, key_names)) grouping.keys[grouping.n_keys++] = c;
        if (IS_ONE_OF(name, run_names)) continue;
        tw_table_add_column(out, name);
        if (c == task) tw_table_add_column(out, "runs");
        if (!strcmp(name, "miss_rate")) tw_table_add_column(out, "miss_rate_sd");
    }
    size_t *rows = malloc((in->n_rows + 1) * sizeof *rows);
    struct group *groups = malloc((in->n_rows + 1) * sizeof *groups);
    if (!rows || !groups) {
        free(rows);
        free(groups);
        tw_table_release(out);
        return TW_FAIL(err, TW_E_MEMORY, "not enough memory to average %zu rows", in->n_rows);
    }
    for (size_t i = 0; i < in->n_rows; i++) rows[i] = i;
    qsort_r(rows, in->n_rows, sizeof *rows, by_key, &grouping);
    size_t n_groups = 0;
    for (size_t i = 0; i < in->n_rows; i++) {
        if (i == 0 || compare_keys(&grouping, rows[i - 1], rows[i]))
            groups[n_groups++] = (struct group){.first = i, .row = rows[i]};
        groups[n_groups - 1].n++;
    }
    if (n_groups) qsort(groups, n_groups, sizeof *groups, by_row);
    for (size_t g = 0; g < n_groups; g++) put_group(out, in, rows + groups[g].first, groups[g].n);
    free(rows);
    free(groups);
    if (!out->failed) return TW_OK;
    tw_table_release(out);
    return TW_FAIL(err, TW_E_MEMORY, "not enough memory to average %zu rows", in->n_rows);
}
