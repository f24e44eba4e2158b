#include "analysis/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/layers.h"
#include "base/checked.h"
#include "base/half.h"

enum { BLOCK_STEPS = 64 };

struct tw_difference tw_difference_none(void) {
    return (struct tw_difference){.overlap_min = 1};
}

void tw_difference_add(struct tw_difference *sum, const struct tw_difference *more) {
    sum->rows += more->rows;
    sum->top_equal += more->top_equal;
    sum->common += more->common;
    sum->overlap += more->overlap;
    sum->overlap_min = fmin(sum->overlap_min, more->overlap_min);
    sum->weight_l1 += more->weight_l1;
    sum->weight_squares += more->weight_squares;
    sum->weight_max = fmax(sum->weight_max, more->weight_max);
}

/* One row of a trace. */
struct row {
    const int32_t *position; /* [top_k] */
    const uint16_t *weight;
    size_t top_k;
};

/* What is known of a position while two rows are compared; `stamp` tells this comparison from earlier ones. */
struct mark {
    uint64_t stamp; /* 2n + 1: in A of comparison n; 2n + 2: seen in B */
    float weight;   /* in A */
};

/* The most attended position of a row so far: of equal weights the lowest. */
struct top {
    int32_t position;
    float weight;
};

static void see(struct top *top, int32_t position, float weight) {
    if (weight > top->weight || (weight == top->weight && position < top->position))
        *top = (struct top){position, weight};
}

static void compare_rows(struct tw_difference *sum, const struct row *a, const struct row *b, struct mark *marks,
                         uint64_t number) {
    const uint64_t in_a = 2 * number + 1, in_b = 2 * number + 2;
    size_t n_a = 0, n_b = 0, both = 0;
    double l1 = 0;
    struct top top_a = {-1, -1}, top_b = {-1, -1};
    for (size_t k = 0; k < a->top_k; k++) {
        if (a->position[k] < 0) continue;
        struct mark *const m = &marks[a->position[k]];
        if (m->stamp == in_a) continue; /* twice in a row: the first counts */
        *m = (struct mark){in_a, tw_float_from_half(a->weight[k])};
        see(&top_a, a->position[k], m->weight);
        l1 += (double)m->weight; /* as if B lacked it; taken back below */
        n_a++;
    }
    for (size_t k = 0; k < b->top_k; k++) {
        if (b->position[k] < 0) continue;
        struct mark *const m = &marks[b->position[k]];
        if (m->stamp == in_b) continue;
        const double weight = (double)tw_float_from_half(b->weight[k]);
        see(&top_b, b->position[k], (float)weight);
        if (m->stamp == in_a) {
            const double difference = fabs((double)m->weight - weight);
            l1 += difference - (double)m->weight;
            sum->weight_squares += difference * difference;
            sum->weight_max = fmax(sum->weight_max, difference);
            both++;
        } else {
            l1 += weight;
        }
        m->stamp = in_b;
        n_b++;
    }
    const size_t larger = tw_max_size(n_a, n_b);
    const double overlap = larger ? (double)both / (double)larger : 1;
    sum->rows++;
    sum->overlap += overlap;
    sum->overlap_min = fmin(sum->overlap_min, overlap);
    sum->weight_l1 += fmax(0, l1);
    sum->common += both;
    sum->top_equal += top_a.position == top_b.position;
}

struct work {
    struct tw_comparison *comparison;
    struct tw_trace *a, *b;
    size_t n_heads, n_positions; /* positions are below */
};

struct scratch {
    struct mark *marks;               /* [n_positions] */
    int32_t *position_a, *position_b; /* [BLOCK_STEPS][n_heads][top_k] */
    uint16_t *weight_a, *weight_b;
    uint64_t number;
};

static void scratch_free(void *memory) {
    struct scratch *const s = memory;
    if (!s) return;
    free(s->marks);
    free(s->position_a);
    free(s->position_b);
    free(s->weight_a);
    free(s->weight_b);
    free(s);
}

static void *scratch_new(const void *context) {
    const struct work *const work = context;
    const size_t k_a = tw_trace_info(work->a)->top_k, k_b = tw_trace_info(work->b)->top_k;
    struct scratch *const s = calloc(1, sizeof *s);
    size_t rows;
    if (!s || !tw_mul_size(&rows, BLOCK_STEPS, work->n_heads)) {
        free(s);
        return NULL;
    }
    s->marks = calloc(work->n_positions, sizeof *s->marks);
    s->position_a = calloc(rows, k_a * sizeof *s->position_a);
    s->position_b = calloc(rows, k_b * sizeof *s->position_b);
    s->weight_a = calloc(rows, k_a * sizeof *s->weight_a);
    s->weight_b = calloc(rows, k_b * sizeof *s->weight_b);
    if (s->marks && s->position_a && s->position_b && s->weight_a && s->weight_b) return s;
    scratch_free(s);
    return NULL;
}

static tw_status compare_layer(void *context, void *memory, struct tw_trace *trace, size_t layer,
                               struct tw_error *err) {
    (void)trace;
    const struct work *const work = context;
    struct scratch *const s = memory;
    const struct tw_comparison *const c = work->comparison;
    const size_t k_a = tw_trace_info(work->a)->top_k, k_b = tw_trace_info(work->b)->top_k;
    for (size_t first = 0; first < c->n_steps; first += BLOCK_STEPS) {
        const size_t n = tw_min_size(BLOCK_STEPS, c->n_steps - first);
        TW_TRY(tw_trace_read_layer(work->a, s->position_a, s->weight_a, layer, first, n, err));
        TW_TRY(tw_trace_read_layer(work->b, s->position_b, s->weight_b, layer, first, n, err));
        for (size_t t = 0; t < n; t++) {
            struct tw_difference *const sum = &c->differences[layer * c->n_steps + first + t];
            *sum = tw_difference_none();
            for (size_t h = 0; h < work->n_heads; h++) {
                const size_t r = t * work->n_heads + h;
                const struct row a = {s->position_a + r * k_a, s->weight_a + r * k_a, k_a};
                const struct row b = {s->position_b + r * k_b, s->weight_b + r * k_b, k_b};
                compare_rows(sum, &a, &b, s->marks, s->number++);
            }
        }
    }
    return TW_OK;
}

/* The first index at which two lists differ; n if they do not. */
static size_t first_difference(const int32_t *a, const int32_t *b, size_t n) {
    size_t i = 0;
    while (i < n && a[i] == b[i]) i++;
    return i;
}

static tw_status check_tokens(struct tw_trace *a, struct tw_trace *b, size_t n_steps, struct tw_error *err) {
    const struct tw_trace_info *const info_a = tw_trace_info(a), *const info_b = tw_trace_info(b);
    const char *const path_a = tw_trace_path(a), *const path_b = tw_trace_path(b);
    const size_t longest = tw_max_size(info_a->prompt_length, tw_max_size(info_a->n_steps, info_b->n_steps));
    int32_t *const tokens_a = malloc((longest + 1) * sizeof *tokens_a), *const tokens_b =
                                                                            malloc((longest + 1) * sizeof *tokens_b);
    tw_status status = TW_OK;
    if (!tokens_a || !tokens_b) {
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory for the tokens of '%s'", path_a);
        goto done;
    }
    TW_TRY_GOTO(status, done, tw_trace_read_prompt(a, tokens_a, err));
    TW_TRY_GOTO(status, done, tw_trace_read_prompt(b, tokens_b, err));
    size_t at = first_difference(tokens_a, tokens_b, info_a->prompt_length);
    if (at < info_a->prompt_length) {
        status = TW_FAIL(err, TW_E_INPUT,
                         "traces '%s' and '%s' are of different tokens: token %zu of the prompt is %d in one and %d in "
                         "the other",
                         path_a, path_b, at, tokens_a[at], tokens_b[at]);
        goto done;
    }
    TW_TRY_GOTO(status, done, tw_trace_read_token_ids(a, tokens_a, err));
    TW_TRY_GOTO(status, done, tw_trace_read_token_ids(b, tokens_b, err));
    at = first_difference(tokens_a, tokens_b, n_steps - 1); /* what the last step generated was not fed yet */
    if (at < n_steps - 1)
        status = TW_FAIL(err, TW_E_INPUT,
                         "traces '%s' and '%s' are of different tokens: step %zu generated %d in one and %d in the "
                         "other; 'trace --continue FILE' feeds both the same",
                         path_a, path_b, at, tokens_a[at], tokens_b[at]);
done:
    free(tokens_a);
    free(tokens_b);
    return status;
}

static tw_status check_shapes(size_t *n_steps, size_t *n_positions, struct tw_trace *a, struct tw_trace *b,
                              struct tw_error *err) {
    const struct tw_trace_info *const info_a = tw_trace_info(a), *const info_b = tw_trace_info(b);
    const char *const path_a = tw_trace_path(a), *const path_b = tw_trace_path(b);
    const struct {
        const char *what;
        size_t a, b;
    } shapes[] = {{"layers", info_a->n_layers, info_b->n_layers},
                  {"query heads", info_a->n_heads, info_b->n_heads},
                  {"prompt tokens", info_a->prompt_length, info_b->prompt_length}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (shapes[i].a != shapes[i].b)
            return TW_FAIL(err, TW_E_INPUT, "traces '%s' and '%s' cannot be compared: one has %zu %s, the other %zu",
                           path_a, path_b, shapes[i].a, shapes[i].what, shapes[i].b);
    *n_steps = tw_min_size(info_a->n_steps, info_b->n_steps);
    if (*n_steps == 0) return TW_FAIL(err, TW_E_INPUT, "trace '%s' holds no steps", info_a->n_steps ? path_b : path_a);
    const int32_t *const length_a = tw_trace_context_length(a), *const length_b = tw_trace_context_length(b);
    *n_positions = 1;
    for (size_t t = 0; t < *n_steps; t++) {
        if (length_a[t] != length_b[t])
            return TW_FAIL(err, TW_E_INPUT,
                           "traces '%s' and '%s' cannot be compared: at step %zu one context is %d long, the other %d",
                           path_a, path_b, t, length_a[t], length_b[t]);
        *n_positions = tw_max_size(*n_positions, (size_t)length_a[t]);
    }
    return TW_OK;
}

tw_status tw_compare(struct tw_comparison *comparison, struct tw_trace *a, struct tw_trace *b,
                     struct tw_progress *progress, struct tw_error *err) {
    *comparison = (struct tw_comparison){.n_layers = tw_trace_info(a)->n_layers};
    struct work work = {.comparison = comparison, .a = a, .b = b, .n_heads = tw_trace_info(a)->n_heads};
    TW_TRY(check_shapes(&comparison->n_steps, &work.n_positions, a, b, err));
    TW_TRY(check_tokens(a, b, comparison->n_steps, err));
    comparison->differences = calloc(comparison->n_layers * comparison->n_steps, sizeof *comparison->differences);
    if (!comparison->differences)
        return TW_FAIL(err, TW_E_MEMORY, "out of memory for comparing '%s'", tw_trace_path(a));
    const struct tw_layer_job job = {"compare", &work, scratch_new, scratch_free, compare_layer};
    const tw_status status = tw_layers_run(&job, a, progress, err);
    if (status != TW_OK) tw_comparison_release(comparison);
    return status;
}

void tw_comparison_release(struct tw_comparison *comparison) {
    free(comparison->differences);
    *comparison = (struct tw_comparison){0};
}

static void put_difference(struct tw_table *table, const struct tw_difference *d) {
    tw_table_put_uint(table, d->rows);
    tw_table_put_double(table, d->overlap / (double)d->rows);
    tw_table_put_double(table, d->overlap_min);
    tw_table_put_double(table, (double)d->top_equal / (double)d->rows);
    tw_table_put_double(table, d->weight_l1 / (double)d->rows);
    tw_table_put_double(table, d->common ? sqrt(d->weight_squares / (double)d->common) : NAN);
    tw_table_put_double(table, d->common ? d->weight_max : NAN);
}

void tw_comparison_table(struct tw_table *table, const struct tw_comparison *comparison, enum tw_compare_by by) {
    static const char *const figures[] = {"rows",      "overlap",    "overlap_min", "top_equal",
                                          "weight_l1", "weight_rms", "weight_max"};
    const bool layers = by == TW_COMPARE_BY_LAYER || by == TW_COMPARE_BY_BOTH;
    const bool steps = by == TW_COMPARE_BY_STEP || by == TW_COMPARE_BY_BOTH;
    tw_table_init(table, NULL, 0);
    if (layers) tw_table_add_column(table, "layer");
    if (steps) tw_table_add_column(table, "step");
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) tw_table_add_column(table, figures[i]);
    for (size_t i = 0; i < (layers ? comparison->n_layers : 1); i++)
        for (size_t j = 0; j < (steps ? comparison->n_steps : 1); j++) {
            struct tw_difference sum = tw_difference_none();
            for (size_t l = layers ? i : 0; l < (layers ? i + 1 : comparison->n_layers); l++)
                for (size_t t = steps ? j : 0; t < (steps ? j + 1 : comparison->n_steps); t++)
                    tw_difference_add(&sum, &comparison->differences[l * comparison->n_steps + t]);
            tw_table_begin_row(table);
            if (layers) tw_table_put_uint(table, i);
            if (steps) tw_table_put_uint(table, j);
            put_difference(table, &sum);
        }
}
