#include "sim/match.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sim/replay.h"

void tw_match_summaries_release(struct tw_match_summaries *summaries) {
    for (size_t i = 0; i < summaries->n; i++) free(summaries->policies[i].policy);
    free(summaries->policies);
    *summaries = (struct tw_match_summaries){0};
}

static int by_memory(const void *a, const void *b) {
    const struct tw_match_point *x = a, *y = b;
    if (x->memory != y->memory) return x->memory < y->memory ? -1 : 1;
    return (x->miss_rate > y->miss_rate) - (x->miss_rate < y->miss_rate);
}

double tw_match_interpolate(struct tw_match_point *points, size_t n, double memory) {
    if (n == 0) return NAN;
    qsort(points, n, sizeof *points, by_memory);
    size_t n_distinct = 1;
    for (size_t i = 1; i < n; i++)
        if (points[i].memory != points[n_distinct - 1].memory) points[n_distinct++] = points[i];
    if (!(memory >= points[0].memory && memory <= points[n_distinct - 1].memory)) return NAN;
    if (n_distinct == 1) return points[0].miss_rate;
    size_t i = 0;
    while (memory > points[i + 1].memory) i++;
    const struct tw_match_point a = points[i], b = points[i + 1];
    return a.miss_rate + (b.miss_rate - a.miss_rate) * ((memory - a.memory) / (b.memory - a.memory));
}

/* Columns by name; SIZE_MAX where the table has none. */
enum { MODEL, TASK, POLICY, UNIT, PAGE_SIZE, BUDGET, MEMORY, MISS_RATE, N_COLUMNS };
static const char *const column_names[N_COLUMNS] = {"model",     "task",   "policy",        "unit",
                                                    "page_size", "budget", "mean_resident", "miss_rate"};
static const bool required[N_COLUMNS] = {[POLICY] = true, [BUDGET] = true, [MEMORY] = true, [MISS_RATE] = true};
/* What the comparator and its reference share. */
static const int shared[] = {MODEL, TASK, UNIT, PAGE_SIZE};

struct matching {
    const struct tw_table *table;
    size_t column[N_COLUMNS];
};

static const struct tw_cell *cell(const struct matching *matching, size_t row, int column) {
    static const struct tw_cell empty = {.type = TW_CELL_EMPTY};
    return matching->column[column] == SIZE_MAX ? &empty
                                                : tw_table_cell(matching->table, row, matching->column[column]);
}

static bool same(const struct tw_cell *a, const struct tw_cell *b) {
    double x, y;
    if (tw_cell_number(&x, a) && tw_cell_number(&y, b)) return x == y;
    if (a->type != b->type) return false;
    return a->type != TW_CELL_TEXT || !strcmp(a->text, b->text);
}

static bool same_group(const struct matching *matching, size_t a, size_t b) {
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        if (!same(cell(matching, a, shared[i]), cell(matching, b, shared[i]))) return false;
    return true;
}

/* The policy's text; "" when the cell is none. */
static const char *policy_of(const struct matching *matching, size_t row) {
    const struct tw_cell *policy = cell(matching, row, POLICY);
    return policy->type == TW_CELL_TEXT ? policy->text : "";
}

/* Whether the policy called `label` is `name`, with whatever options. */
static bool is_policy(const char *label, const char *name) {
    const size_t n = strlen(name);
    return !strncmp(label, name, n) && (label[n] == 0 || label[n] == ':');
}

static bool point_of(struct tw_match_point *point, const struct matching *matching, size_t row) {
    return tw_cell_number(&point->memory, cell(matching, row, MEMORY)) &&
           tw_cell_number(&point->miss_rate, cell(matching, row, MISS_RATE));
}

/* Whether the policy of row `of` has a point of the same budget as row `row` in the same group. */
static bool has_budget(const struct matching *matching, size_t of, size_t row) {
    for (size_t i = 0; i < matching->table->n_rows; i++)
        if (!strcmp(policy_of(matching, i), policy_of(matching, of)) && same_group(matching, i, of) &&
            same(cell(matching, i, BUDGET), cell(matching, row, BUDGET)))
            return true;
    return false;
}

/* The reference's miss rate to hold the row against; NAN when there is none. points [n_rows] is scratch. */
static double reference_of(const struct matching *matching, size_t row, const char *reference,
                           struct tw_match_point *points) {
    const bool equal_budget = is_policy(policy_of(matching, row), "evict");
    struct tw_match_point own;
    size_t n = 0;
    if (!point_of(&own, matching, row)) return NAN;
    for (size_t i = 0; i < matching->table->n_rows; i++) {
        if (strcmp(policy_of(matching, i), reference) || !same_group(matching, i, row)) continue;
        struct tw_match_point point;
        if (!point_of(&point, matching, i)) continue;
        if (equal_budget) {
            if (same(cell(matching, i, BUDGET), cell(matching, row, BUDGET))) return point.miss_rate;
        } else if (has_budget(matching, row, i)) {
            points[n++] = point;
        }
    }
    return equal_budget ? NAN : tw_match_interpolate(points, n, own.memory);
}

static void put_copy(struct tw_table *out, const struct tw_cell *from) {
    switch (from->type) {
    case TW_CELL_EMPTY: tw_table_put_empty(out); break;
    case TW_CELL_TEXT: tw_table_put_text(out, from->text); break;
    case TW_CELL_UINT: tw_table_put_uint(out, from->u); break;
    case TW_CELL_INT: tw_table_put_int(out, from->i); break;
    case TW_CELL_DOUBLE: /* a mean over runs of a whole number is printed as one */
        if (from->d >= 0 && from->d < 0x1p53 && from->d == floor(from->d))
            tw_table_put_uint(out, (uint64_t)from->d);
        else
            tw_table_put_double(out, from->d);
        break;
    }
}

static struct tw_match_summary *summary_of(struct tw_match_summaries *summaries, const char *policy) {
    for (size_t i = 0; i < summaries->n; i++)
        if (!strcmp(summaries->policies[i].policy, policy)) return &summaries->policies[i];
    struct tw_match_summary *grown = realloc(summaries->policies, (summaries->n + 1) * sizeof *summaries->policies);
    if (!grown) return NULL;
    summaries->policies = grown;
    grown[summaries->n] = (struct tw_match_summary){.policy = strdup(policy)};
    return grown[summaries->n].policy ? &grown[summaries->n++] : NULL;
}

static tw_status compare(struct tw_table *out, struct tw_match_summaries *summaries, const struct matching *matching,
                         const char *reference, struct tw_error *err) {
    struct tw_match_point *points = malloc((matching->table->n_rows + 1) * sizeof *points);
    if (!points) return TW_FAIL(err, TW_E_MEMORY, "not enough memory to compare %zu rows", matching->table->n_rows);
    tw_status status = TW_OK;
    for (size_t row = 0; status == TW_OK && row < matching->table->n_rows; row++) {
        const char *policy = policy_of(matching, row);
        if (!strcmp(policy, reference) || is_policy(policy, "full") || is_policy(policy, "min")) continue;
        if (is_policy(policy, "reactive")) continue;
        const double rate = reference_of(matching, row, reference, points);
        tw_table_begin_row(out);
        for (int c = 0; c < N_COLUMNS; c++) put_copy(out, cell(matching, row, c));
        struct tw_match_summary *summary = summary_of(summaries, policy);
        if (!summary) {
            status = TW_FAIL(err, TW_E_MEMORY, "not enough memory to compare %zu rows", matching->table->n_rows);
            break;
        }
        tw_table_put_double(out, rate);
        struct tw_match_point own;
        if (isnan(rate) || !point_of(&own, matching, row)) {
            tw_table_put_empty(out);
            summary->left_out++;
            continue;
        }
        const bool win = rate <= own.miss_rate + TW_MATCH_TOLERANCE;
        tw_table_put_uint(out, win);
        summary->wins += win;
        summary->compared++;
    }
    free(points);
    return status;
}

tw_status tw_match_run(struct tw_table *out, struct tw_match_summaries *summaries, const struct tw_table *in,
                       const char *name, const char *reference, struct tw_error *err) {
    *out = (struct tw_table){0};
    *summaries = (struct tw_match_summaries){0};
    for (int c = 0; c < N_COLUMNS; c++)
        if (required[c] && tw_table_column(in, column_names[c]) == SIZE_MAX)
            return TW_FAIL(err, TW_E_INPUT, "table '%s' has no column '%s': it takes a table made by replay", name,
                           column_names[c]);
    for (size_t c = 0; c < in->n_columns; c++)
        if (!strcmp(in->columns[c], "layer") || !strcmp(in->columns[c], "step"))
            return TW_FAIL(err, TW_E_INPUT, "table '%s' is split by %s: matching takes whole runs", name,
                           in->columns[c]);
    struct tw_table average;
    TW_TRY(tw_replay_average(&average, in, err));
    struct matching matching = {.table = &average};
    for (int c = 0; c < N_COLUMNS; c++) matching.column[c] = tw_table_column(&average, column_names[c]);
    bool there = false;
    for (size_t row = 0; row < average.n_rows; row++) there |= !strcmp(policy_of(&matching, row), reference);
    static const char *const out_columns[] = {
        "model", "task", "policy", "unit", "page_size", "budget", "mean_resident", "miss_rate", "reference_miss_rate",
        "win"};
    tw_table_init(out, out_columns, sizeof out_columns / sizeof *out_columns);
    tw_status status =
        there ? compare(out, summaries, &matching, reference, err)
              : TW_FAIL(err, TW_E_INPUT, "table '%s' has no rows of the policy '%s' to compare with", name, reference);
    if (status == TW_OK && out->failed) status = TW_FAIL(err, TW_E_MEMORY, "not enough memory for the table");
    tw_table_release(&average);
    if (status != TW_OK) {
        tw_table_release(out);
        tw_match_summaries_release(summaries);
    }
    return status;
}
