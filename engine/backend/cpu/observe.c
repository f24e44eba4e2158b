/* The end of a layer: the two streaming passes' operations, and gathering. */
#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "engine/backend/cpu/cpu.h"

#define TASK_ROWS 32 /* of a task of the first pass: each task reads all keys of its head once */

/*
 * The observation's queries of a KV head lie one after another, [group][W], of which the first n_queries of each W are
 * held. A run of rows that are all held: all of them, or those of one head.
 */
struct runs {
    size_t n, length, step;
};
static struct runs runs_of(const struct tw_backend *b, const struct tw_observation *observation) {
    const size_t group = tw_cpu_group(b), window = b->shape.window;
    if (observation->n_queries == window) return (struct runs){1, group * window, 0};
    return (struct runs){group, observation->n_queries, window};
}

struct pass {
    const struct tw_backend *b;
    const struct tw_kv *kv;
    const struct tw_observation *observation;
    size_t sliding_window;
    struct runs runs;
};

/* observation: NULL where keys alone are looked at. */
static struct pass pass_of(const struct tw_backend *b, size_t l, const struct tw_kv *kv,
                           const struct tw_observation *observation) {
    struct pass p = {
        .b = b, .kv = kv, .observation = observation, .sliding_window = b->model->layers[l].sliding_window};
    if (observation) p.runs = runs_of(b, observation);
    return p;
}

static const char *queries_of(const struct pass *p, size_t g, size_t row) {
    const struct tw_cpu_shape *s = &p->b->shape;
    return (const char *)p->observation->query.data +
           (g * tw_cpu_group(p->b) * s->window + row) * s->head_dim * s->element_bytes;
}

/* The rows of the cache that row `row` of the queries of KV head g may see. */
static void visible(const struct pass *p, size_t g, size_t row, size_t *first, size_t *end) {
    tw_cpu_visible(first, end, p->kv, g, p->kv->length[g], p->observation->first_position + row % p->b->shape.window,
                   p->sliding_window);
}

static void fold_rows(const struct pass *p, size_t g, size_t row, size_t n) {
    const struct tw_backend *b = p->b;
    const size_t base = g * tw_cpu_group(b) * b->shape.window + row;
    float *maximum = (float *)p->observation->maximum.data + base, *sum = (float *)p->observation->sum.data + base;
    size_t first[TASK_ROWS], end[TASK_ROWS];
    for (size_t i = 0; i < n; i++) {
        maximum[i] = -INFINITY;
        sum[i] = 0;
        visible(p, g, row + i, &first[i], &end[i]);
    }
    const char *key = tw_cpu_key_of(b, p->kv, g);
    float logits[TW_CPU_PRODUCT_ROWS * 64] __attribute__((aligned(64)));
    for (size_t block = 0; block < p->kv->length[g]; block += 64)
        for (size_t i = 0; i < n; i += TW_CPU_PRODUCT_ROWS) {
            const size_t m = tw_min_size(TW_CPU_PRODUCT_ROWS, n - i);
            b->kernels->products(logits, queries_of(p, g, row + i), key, block, m, b->shape.head_dim);
            for (size_t j = 0; j < m; j++)
                if (first[i + j] < block + 64 && end[i + j] > block)
                    b->common->fold(&maximum[i + j], &sum[i + j], logits + j * 64, block, first[i + j], end[i + j],
                                    b->scale);
        }
}

static size_t pieces_of(const struct pass *p) { return tw_divide_up(p->runs.length, TASK_ROWS); }

static void fold_tasks(void *context, size_t first, size_t end, size_t thread) {
    (void)thread;
    const struct pass *p = context;
    const size_t pieces = pieces_of(p), a_head = p->runs.n * pieces;
    for (size_t task = first; task < end; task++) {
        const size_t run = task % a_head / pieces, piece = task % pieces;
        const size_t row = run * p->runs.step + piece * TASK_ROWS;
        fold_rows(p, task / a_head, row, tw_min_size(TASK_ROWS, p->runs.length - piece * TASK_ROWS));
    }
}

/* Maxima are kept in powers of two: of q.k * scale * log2(e). */
tw_status tw_cpu_observe(struct tw_backend *b, size_t l, const struct tw_kv *kv, struct tw_observation *observation,
                         size_t block, struct tw_error *err) {
    (void)block, (void)err; /* blocks are of 64 keys whatever is asked for: results do not depend on it */
    struct pass p = pass_of(b, l, kv, observation);
    tw_team_run(b->team, kv->n_kv_heads * p.runs.n * pieces_of(&p), 1, fold_tasks, &p);
    return TW_OK;
}

/* ---- scores ---- */

/* Scores of the 64 rows from `block` of head g. */
static void attention_scores(const struct pass *p, size_t g, size_t block, float *score) {
    const struct tw_backend *b = p->b;
    const struct runs runs = p->runs;
    const size_t base = g * tw_cpu_group(b) * b->shape.window;
    const float *maximum = (const float *)p->observation->maximum.data + base;
    const float *sum = (const float *)p->observation->sum.data + base;
    const char *key = tw_cpu_key_of(b, p->kv, g);
    float logits[TW_CPU_PRODUCT_ROWS * 64] __attribute__((aligned(64)));
    memset(score, 0, 64 * sizeof *score);
    for (size_t run = 0; run < runs.n; run++)
        for (size_t i = 0; i < runs.length; i += TW_CPU_PRODUCT_ROWS) {
            const size_t n = tw_min_size(TW_CPU_PRODUCT_ROWS, runs.length - i), row = run * runs.step + i;
            b->kernels->products(logits, queries_of(p, g, row), key, block, n, b->shape.head_dim);
            for (size_t j = 0; j < n; j++) {
                size_t first, end;
                visible(p, g, row + j, &first, &end);
                if (first < block + 64 && end > block)
                    b->common->weigh(score, logits + j * 64, block, first, end, b->scale, maximum[row + j],
                                     sum[row + j]);
            }
        }
    const float mean = 1.0f / (float)(tw_cpu_group(b) * p->observation->n_queries);
    b->common->scale(score, 64, mean);
}

static double length_of(const float *key, size_t d) {
    double square = 0;
    for (size_t j = 0; j < d; j++) square += (double)key[j] * key[j];
    return sqrt(square);
}

static float *key_row(const struct tw_backend *b, size_t thread) {
    return (float *)(void *)(tw_cpu_scratch_of(b, thread) + b->scratch.row);
}

static void key_scores(const struct pass *p, size_t g, size_t block, enum tw_score_kind kind, const double *mean,
                       float *score, float *row) {
    const size_t d = p->kv->head_dim;
    const size_t n = tw_min_size(64, p->kv->length[g] - block);
    double mean_length = 0;
    for (size_t j = 0; mean && j < d; j++) mean_length += mean[j] * mean[j];
    mean_length = fmax(sqrt(mean_length), DBL_MIN);
    for (size_t i = 0; i < n; i++) {
        p->b->kernels->load_key(row, tw_cpu_key_of(p->b, p->kv, g), block + i, d);
        const double length = length_of(row, d);
        if (kind == TW_SCORE_KEY_NORM) {
            score[i] = (float)-length;
            continue;
        }
        double dot = 0;
        for (size_t j = 0; j < d; j++) dot += row[j] * mean[j];
        score[i] = (float)(-dot / (fmax(length, DBL_MIN) * mean_length));
    }
}

struct scoring {
    struct pass pass;
    enum tw_score_kind kind;
    const double *key_mean;
    size_t first, n, start, n_blocks; /* rows; blocks of 64 */
    float *score;
};

static void score_tasks(void *context, size_t first_task, size_t end_task, size_t thread) {
    const struct scoring *s = context;
    const struct tw_kv *kv = s->pass.kv;
    for (size_t task = first_task; task < end_task; task++) {
        const size_t g = task / s->n_blocks, block = (s->start + task % s->n_blocks) * 64;
        const size_t from = tw_max_size(s->first, block), to = tw_min_size(s->first + s->n, block + 64);
        float found[64] __attribute__((aligned(64)));
        if (block < kv->length[g]) {
            if (s->kind == TW_SCORE_ATTENTION)
                attention_scores(&s->pass, g, block, found);
            else
                key_scores(&s->pass, g, block, s->kind,
                           s->kind == TW_SCORE_KEYDIFF ? s->key_mean + g * kv->head_dim : NULL, found,
                           key_row(s->pass.b, thread));
        }
        for (size_t r = from; r < to; r++)
            s->score[g * s->n + (r - s->first)] = r < kv->length[g] ? found[r - block] : -INFINITY;
    }
}

tw_status tw_cpu_score(struct tw_backend *b, size_t l, const struct tw_kv *kv, const struct tw_observation *observation,
                       enum tw_score_kind kind, const double *key_mean, size_t first, size_t n, float *score,
                       struct tw_error *err) {
    (void)err;
    if (n == 0) return TW_OK;
    struct scoring s = {
        .pass = pass_of(b, l, kv, observation),
        .kind = kind,
        .key_mean = key_mean,
        .first = first,
        .n = n,
        .start = first / 64,
        .n_blocks = tw_divide_up(first + n, 64) - first / 64,
        .score = score,
    };
    tw_team_run(b->team, kv->n_kv_heads * s.n_blocks, 2, score_tasks, &s);
    return TW_OK;
}

struct key_means {
    const struct tw_backend *b;
    const struct tw_kv *kv;
    double *mean; /* [n_kv_heads][head_dim] */
};

static void key_mean_tasks(void *context, size_t first, size_t end, size_t thread) {
    const struct key_means *m = context;
    const struct tw_kv *kv = m->kv;
    const size_t d = kv->head_dim;
    float *key = key_row(m->b, thread);
    for (size_t g = first; g < end; g++) {
        double *mean = m->mean + g * d;
        memset(mean, 0, d * sizeof *mean);
        for (size_t r = 0; r < kv->length[g]; r++) {
            m->b->kernels->load_key(key, tw_cpu_key_of(m->b, kv, g), r, d);
            const double length = fmax(length_of(key, d), DBL_MIN);
            for (size_t j = 0; j < d; j++) mean[j] += key[j] / length;
        }
    }
}

tw_status tw_cpu_key_mean(struct tw_backend *b, const struct tw_kv *kv, double *key_mean, struct tw_error *err) {
    (void)err;
    struct key_means m = {b, kv, key_mean};
    tw_team_run(b->team, kv->n_kv_heads, 1, key_mean_tasks, &m);
    return TW_OK;
}

/* ---- gathering ---- */

/* Copies row `from` to row `to` of one head: dwords of keys 64 bytes apart, values of a row or of half a pair of rows.
 */
static void copy_row(const struct tw_backend *b, const struct tw_kv *to_kv, const struct tw_kv *from_kv, size_t g,
                     size_t to, size_t from) {
    const size_t d = to_kv->head_dim, width = tw_cpu_value_width(d);
    const bool bf16 = b->shape.element_bytes == 2;
    const size_t dwords = bf16 ? d / 2 : d;
    const uint32_t *key =
        (const uint32_t *)(const void *)tw_cpu_key_of(b, from_kv, g) + from / 16 * dwords * 16 + from % 16;
    uint32_t *key_out = (uint32_t *)(void *)tw_cpu_key_of(b, to_kv, g) + to / 16 * dwords * 16 + to % 16;
    for (size_t i = 0; i < dwords; i++) key_out[i * 16] = key[i * 16];
    if (bf16) {
        const uint16_t *value =
            (const uint16_t *)(const void *)tw_cpu_value_of(b, from_kv, g) + from / 2 * width * 2 + from % 2;
        uint16_t *value_out = (uint16_t *)(void *)tw_cpu_value_of(b, to_kv, g) + to / 2 * width * 2 + to % 2;
        for (size_t i = 0; i < width; i++) value_out[2 * i] = value[2 * i];
    } else {
        memcpy((float *)(void *)tw_cpu_value_of(b, to_kv, g) + to * width,
               (const float *)(const void *)tw_cpu_value_of(b, from_kv, g) + from * width, width * sizeof(float));
    }
}

#define GATHER_ROWS 512 /* of a task: whole pairs of rows */

struct gathering {
    const struct tw_backend *b;
    const struct tw_kv *to, *from;
    const int32_t *const *kept;
    const size_t *n_kept;
    size_t pieces; /* of a head */
};

static void gather_tasks(void *context, size_t first_task, size_t end_task, size_t thread) {
    (void)thread;
    const struct gathering *a = context;
    for (size_t task = first_task; task < end_task; task++) {
        const size_t g = task / a->pieces, first = task % a->pieces * GATHER_ROWS;
        for (size_t r = first; r < first + GATHER_ROWS && r < a->n_kept[g]; r++)
            copy_row(a->b, a->to, a->from, g, r, (size_t)a->kept[g][r]);
    }
}

tw_status tw_cpu_gather(struct tw_backend *b, struct tw_kv *to, const struct tw_kv *from, const int32_t *const *kept,
                        const size_t *n_kept, struct tw_error *err) {
    (void)err;
    tw_kv_gather_books(to, from, kept, n_kept);
    struct gathering a = {b, to, from, kept, n_kept, tw_divide_up(tw_kv_longest(to), GATHER_ROWS)};
    tw_team_run(b->team, to->n_kv_heads * a.pieces, 1, gather_tasks, &a);
    tw_cpu_seal(b, to);
    return TW_OK;
}
