#include "sim/match.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sim/policies.h"
#include "sim/replay.h"

void tw_match_summaries_release(struct tw_match_summaries *summaries) {
    for (size_t i = 0; i < summaries->n; i++) free(summaries->policies[i].policy);
    free(summaries->policies);
    free(summaries->unpruned);
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
enum { MODEL, TASK, POLICY, UNIT, PAGE_SIZE, BUDGET, MEMORY, MISS_RATE, N_COPIED, PRUNES = N_COPIED, N_COLUMNS };
static const char *const column_names[N_COLUMNS] = {"model",  "task",          "policy",    "unit",  "page_size",
                                                    "budget", "mean_resident", "miss_rate", "prunes"};
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

static int compare_cells(const struct tw_cell *a, const struct tw_cell *b) {
    double x, y;
    if (tw_cell_number(&x, a) && tw_cell_number(&y, b)) return (x > y) - (x < y);
    if (a->type != b->type) return a->type < b->type ? -1 : 1;
    return a->type == TW_CELL_TEXT ? strcmp(a->text, b->text) : 0;
}

static int compare_groups(const struct matching *matching, size_t a, size_t b) {
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
        const int order = compare_cells(cell(matching, a, shared[i]), cell(matching, b, shared[i]));
        if (order) return order;
    }
    return 0;
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

/* Whether the row is of a policy with an interval that never came round. Tables of other programs do not say. */
static bool never_pruned(const struct matching *matching, size_t row) {
    double prunes;
    if (!tw_cell_number(&prunes, cell(matching, row, PRUNES)) || prunes > 0) return false;
    for (const struct tw_policy *const *p = tw_policy_table; *p; p++)
        if ((*p)->prunes_every && is_policy(policy_of(matching, row), (*p)->name)) return true;
    return false;
}

static bool point_of(struct tw_match_point *point, const struct matching *matching, size_t row) {
    return tw_cell_number(&point->memory, cell(matching, row, MEMORY)) &&
           tw_cell_number(&point->miss_rate, cell(matching, row, MISS_RATE));
}

/* Curves: rows sorted by group, then policy, then budget; a curve is a run of them of one group and policy. */
static int by_curve(const void *a, const void *b, void *matching) {
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    int order = compare_groups(matching, x, y);
    if (!order) order = strcmp(policy_of(matching, x), policy_of(matching, y));
    if (!order) order = compare_cells(cell(matching, x, BUDGET), cell(matching, y, BUDGET));
    return order ? order : (x > y) - (x < y);
}

static size_t curve_end(const struct matching *matching, const size_t *rows, size_t begin) {
    size_t end = begin + 1;
    while (end < matching->table->n_rows && !compare_groups(matching, rows[begin], rows[end]) &&
           !strcmp(policy_of(matching, rows[begin]), policy_of(matching, rows[end])))
        end++;
    return end;
}

/* The reference's miss rate for each row of one curve; reference [n_reference] are the rows of the reference's. */
static void match_curve(double *rate, const struct matching *matching, const size_t *curve, size_t n,
                        const size_t *reference, size_t n_reference, struct tw_match_point *points) {
    const bool equal_budget = is_policy(policy_of(matching, curve[0]), "evict");
    size_t n_points = 0;
    for (size_t i = 0, j = 0; i < n && j < n_reference;) {
        const int order = compare_cells(cell(matching, curve[i], BUDGET), cell(matching, reference[j], BUDGET));
        struct tw_match_point point;
        if (order == 0 && point_of(&point, matching, reference[j])) {
            points[n_points++] = point;
            if (equal_budget) rate[curve[i]] = point.miss_rate;
        }
        i += order <= 0;
        j += order >= 0;
    }
    if (equal_budget) return;
    for (size_t i = 0; i < n; i++) {
        struct tw_match_point own;
        if (point_of(&own, matching, curve[i])) rate[curve[i]] = tw_match_interpolate(points, n_points, own.memory);
    }
}

/* rate [n_rows]: the reference's miss rate to hold each row against; NAN where there is none. */
static tw_status match_rows(double *rate, const struct matching *matching, const char *reference,
                            struct tw_error *err) {
    const size_t n_rows = matching->table->n_rows;
    size_t *rows = malloc((n_rows + 1) * sizeof *rows);
    struct tw_match_point *points = malloc((n_rows + 1) * sizeof *points);
    if (!rows || !points) {
        free(rows);
        free(points);
        return TW_FAIL(err, TW_E_MEMORY, "not enough memory to compare %zu rows", n_rows);
    }
    for (size_t i = 0; i < n_rows; i++) rows[i] = i, rate[i] = NAN;
    qsort_r(rows, n_rows, sizeof *rows, by_curve, (void *)matching);
    for (size_t begin = 0, end; begin < n_rows; begin = end) { /* a group */
        size_t from = begin, n_reference = 0;
        for (end = begin; end < n_rows && !compare_groups(matching, rows[begin], rows[end]); end++)
            if (!strcmp(policy_of(matching, rows[end]), reference)) {
                if (n_reference++ == 0) from = end;
            }
        for (size_t at = begin, next; at < end; at = next) { /* a curve of it */
            next = curve_end(matching, rows, at);
            match_curve(rate, matching, rows + at, next - at, rows + from, n_reference, points);
        }
    }
    free(rows);
    free(points);
    return TW_OK;
}

static void put_copy(struct tw_table *out, const struct tw_cell *from) {
    /* A mean over runs of a whole number is printed as one. */
    if (from->type == TW_CELL_DOUBLE && from->d >= 0 && from->d < 0x1p53 && from->d == floor(from->d))
        tw_table_put_uint(out, (uint64_t)from->d);
    else
        tw_table_put_copy(out, from);
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
    const size_t n_rows = matching->table->n_rows;
    double *rate = malloc((n_rows + 1) * sizeof *rate);
    summaries->unpruned = calloc(n_rows + 1, sizeof *summaries->unpruned);
    tw_status status = rate && summaries->unpruned
                           ? match_rows(rate, matching, reference, err)
                           : TW_FAIL(err, TW_E_MEMORY, "not enough memory to compare %zu rows", n_rows);
    for (size_t row = 0; status == TW_OK && row < n_rows; row++) {
        const char *policy = policy_of(matching, row);
        if (!strcmp(policy, reference) || is_policy(policy, "full") || is_policy(policy, "reactive") ||
            is_policy(policy, "min"))
            continue;
        struct tw_match_summary *summary = summary_of(summaries, policy);
        if (!summary) {
            status = TW_FAIL(err, TW_E_MEMORY, "not enough memory to compare %zu rows", n_rows);
            break;
        }
        tw_table_begin_row(out);
        for (int c = 0; c < N_COPIED; c++) put_copy(out, cell(matching, row, c));
        tw_table_put_double(out, rate[row]);
        struct tw_match_point own;
        const bool comparable = !isnan(rate[row]) && point_of(&own, matching, row);
        const bool win = comparable && rate[row] <= own.miss_rate + TW_MATCH_TOLERANCE;
        if (comparable)
            tw_table_put_uint(out, win);
        else
            tw_table_put_empty(out);
        const bool unpruned = summaries->unpruned[out->n_rows - 1] = never_pruned(matching, row);
        summary->unpruned += unpruned;
        summary->left_out += !unpruned && !comparable;
        summary->compared += !unpruned && comparable;
        summary->wins += !unpruned && win;
    }
    free(rate);
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
