/* The end of a layer: the two streaming passes' operations, gathering, and the logged row. */
#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "engine/backend/ref/ref.h"

static const float *observed_query(const struct tw_backend *backend, const struct tw_observation *observation, size_t h,
                                   size_t w) {
    return (const float *)observation->query.data + (h * backend->options.window + w) * backend->model->config.head_dim;
}

/*
 * The scaled logit of one query and row, in double: weights far below the largest are as exact as the others. -INFINITY
 * where the query may not look.
 */
static double exact_logit(const float *query, const struct tw_kv *kv, size_t g, size_t row, size_t position,
                          size_t sliding_window, float scale) {
    const size_t at = tw_kv_position(kv, g, row);
    if (at > position || (sliding_window && at + sliding_window <= position)) return -INFINITY;
    const float *key = tw_ref_key(kv, g, row);
    double sum = 0;
    for (size_t j = 0; j < kv->head_dim; j++) sum += (double)query[j] * key[j];
    return sum * scale;
}

/*
 * Maximum and normaliser of one query's row, folding in key after key: the contract's `block` bounds memory, and this
 * needs none.
 */
static void normaliser(float *maximum, float *sum, const float *query, const struct tw_kv *kv, size_t g,
                       size_t position, size_t sliding_window, float scale) {
    double total = 0;
    *maximum = -INFINITY;
    for (size_t r = 0; r < kv->length[g]; r++) {
        const double logit = exact_logit(query, kv, g, r, position, sliding_window, scale);
        if (logit == -INFINITY) continue;
        if ((float)logit > *maximum) {
            total *= exp(*maximum - (double)(float)logit);
            *maximum = (float)logit;
        }
        total += exp(logit - *maximum);
    }
    *sum = (float)total;
}

tw_status tw_ref_observe(struct tw_backend *backend, size_t l, const struct tw_kv *kv,
                         struct tw_observation *observation, size_t block, struct tw_error *err) {
    (void)block, (void)err;
    const struct tw_model_config *config = &backend->model->config;
    const size_t group = config->n_heads / config->n_kv_heads, window = backend->options.window;
    float *maximum = observation->maximum.data, *sum = observation->sum.data;
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads((int)backend->options.n_threads)
    for (size_t h = 0; h < config->n_heads; h++)
        for (size_t w = 0; w < observation->n_queries; w++)
            normaliser(&maximum[h * window + w], &sum[h * window + w], observed_query(backend, observation, h, w), kv,
                       h / group, observation->first_position + w, backend->model->layers[l].sliding_window,
                       config->attention_scale);
    return TW_OK;
}

/* Mean over the group's heads and the observation's queries of exp(a - M) / Z. */
static float attention_score(const struct tw_backend *backend, size_t l, const struct tw_kv *kv,
                             const struct tw_observation *observation, size_t g, size_t row) {
    const struct tw_model_config *config = &backend->model->config;
    const size_t group = config->n_heads / config->n_kv_heads, window = backend->options.window;
    const float *maximum = observation->maximum.data, *sum = observation->sum.data;
    double total = 0;
    for (size_t h = g * group; h < (g + 1) * group; h++)
        for (size_t w = 0; w < observation->n_queries; w++) {
            const double logit =
                exact_logit(observed_query(backend, observation, h, w), kv, g, row, observation->first_position + w,
                            backend->model->layers[l].sliding_window, config->attention_scale);
            total += exp(logit - maximum[h * window + w]) / sum[h * window + w];
        }
    return (float)(total / (double)(group * observation->n_queries));
}

static double length_of(const float *key, size_t d) {
    double square = 0;
    for (size_t j = 0; j < d; j++) square += (double)key[j] * key[j];
    return sqrt(square);
}

static float keydiff_score(const float *key, const double *mean, size_t d) {
    double dot = 0, mean_square = 0;
    for (size_t j = 0; j < d; j++) {
        dot += key[j] * mean[j];
        mean_square += mean[j] * mean[j];
    }
    return (float)(-dot / (fmax(length_of(key, d), DBL_MIN) * fmax(sqrt(mean_square), DBL_MIN)));
}

tw_status tw_ref_score(struct tw_backend *backend, size_t l, const struct tw_kv *kv,
                       const struct tw_observation *observation, enum tw_score_kind kind, const double *key_mean,
                       size_t first, size_t n, float *score, struct tw_error *err) {
    (void)err;
    const size_t d = kv->head_dim;
#pragma omp parallel for collapse(2) schedule(static) num_threads((int)backend->options.n_threads)
    for (size_t g = 0; g < kv->n_kv_heads; g++)
        for (size_t i = 0; i < n; i++) {
            float *s = &score[g * n + i];
            if (first + i >= kv->length[g])
                *s = -INFINITY;
            else if (kind == TW_SCORE_ATTENTION)
                *s = attention_score(backend, l, kv, observation, g, first + i);
            else if (kind == TW_SCORE_KEYDIFF)
                *s = keydiff_score(tw_ref_key(kv, g, first + i), key_mean + g * d, d);
            else
                *s = (float)-length_of(tw_ref_key(kv, g, first + i), d);
        }
    return TW_OK;
}

tw_status tw_ref_key_mean(struct tw_backend *backend, const struct tw_kv *kv, double *key_mean, struct tw_error *err) {
    (void)backend, (void)err;
    const size_t d = kv->head_dim;
    for (size_t g = 0; g < kv->n_kv_heads; g++) {
        double *mean = key_mean + g * d;
        memset(mean, 0, d * sizeof *mean);
        for (size_t r = 0; r < kv->length[g]; r++) {
            const float *key = tw_ref_key(kv, g, r);
            const double length = fmax(length_of(key, d), DBL_MIN);
            for (size_t j = 0; j < d; j++) mean[j] += key[j] / length;
        }
    }
    return TW_OK;
}

tw_status tw_ref_gather(struct tw_backend *backend, struct tw_kv *to, const struct tw_kv *from,
                        const int32_t *const *kept, const size_t *n_kept, struct tw_error *err) {
    (void)backend, (void)err;
    tw_kv_gather_books(to, from, kept, n_kept);
    for (size_t g = 0; g < to->n_kv_heads; g++)
        for (size_t r = 0; r < n_kept[g]; r++) {
            memcpy(tw_ref_key(to, g, r), tw_ref_key(from, g, (size_t)kept[g][r]), to->head_dim * sizeof(float));
            memcpy(tw_ref_value(to, g, r), tw_ref_value(from, g, (size_t)kept[g][r]), to->head_dim * sizeof(float));
        }
    return TW_OK;
}

/* ---- the logged row ---- */

/* Inserts into a list of descending weights; positions come in ascending order, so equals stay behind. */
static void insert_sorted(struct tw_attention_log *log, size_t h, size_t *n, int32_t position, float weight) {
    int32_t *positions = log->position + h * log->top_k;
    float *weights = log->weight + h * log->top_k;
    size_t at = *n;
    if (at == log->top_k) {
        if (at == 0 || !(weight > weights[at - 1])) return;
        at--;
    } else {
        ++*n;
    }
    for (; at > 0 && weight > weights[at - 1]; at--) {
        weights[at] = weights[at - 1];
        positions[at] = positions[at - 1];
    }
    weights[at] = weight;
    positions[at] = position;
}

static void log_head(const struct tw_backend *backend, size_t l, const struct tw_kv *kv, const float *query, size_t h,
                     size_t position, struct tw_attention_log *log) {
    const struct tw_model_config *config = &backend->model->config;
    const size_t g = h / (config->n_heads / config->n_kv_heads);
    const size_t sliding_window = backend->model->layers[l].sliding_window;
    float maximum, sum, best = -1;
    normaliser(&maximum, &sum, query, kv, g, position, sliding_window, config->attention_scale);
    size_t n_listed = 0;
    double needle = 0, rest = 0;
    int32_t argmax = -1;
    for (size_t r = 0; r < kv->length[g]; r++) {
        const size_t at = tw_kv_position(kv, g, r);
        const double logit = exact_logit(query, kv, g, r, position, sliding_window, config->attention_scale);
        if (logit == -INFINITY) continue; /* not attended at all */
        const float weight = (float)(exp(logit - maximum) / sum);
        insert_sorted(log, h, &n_listed, (int32_t)at, weight);
        if (weight > best) {
            best = weight;
            argmax = (int32_t)at;
        }
        const bool in_needle = at >= log->needle_begin && at < log->needle_end;
        const bool excluded = at < log->sink_tokens || at + log->local_window > position;
        if (in_needle) needle += weight;
        if (in_needle || !excluded) rest += weight;
    }
    for (size_t k = n_listed; k < log->top_k; k++) {
        log->position[h * log->top_k + k] = -1;
        log->weight[h * log->top_k + k] = 0;
    }
    if (log->needle_end > log->needle_begin) {
        log->needle_mass[h] = (float)needle;
        log->rest_mass[h] = (float)rest;
        log->argmax[h] = argmax;
    }
}

void tw_ref_log_attention(const struct tw_backend *backend, size_t l, const struct tw_kv *kv, const float *query,
                          size_t stride, size_t position, struct tw_attention_log *log) {
#pragma omp parallel for schedule(dynamic) num_threads((int)backend->options.n_threads)
    for (size_t h = 0; h < backend->model->config.n_heads; h++)
        log_head(backend, l, kv, query + h * stride, h, position, log);
}

tw_status tw_ref_log_row(struct tw_backend *backend, size_t l, const struct tw_kv *kv,
                         const struct tw_observation *observation, struct tw_attention_log *log, struct tw_error *err) {
    (void)err;
    assert(observation->n_queries > 0);
    const size_t w = observation->n_queries - 1;
    tw_ref_log_attention(backend, l, kv, observed_query(backend, observation, 0, w),
                         backend->options.window * backend->model->config.head_dim, observation->first_position + w,
                         log);
    return TW_OK;
}
