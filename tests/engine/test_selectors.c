/* Selectors: against the goldens, and streaming against dense, on every backend in float32. */
#include <cJSON.h>
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/random.h"
#include "engine/prefill/compress.h"
#include "tests/engine/backend_run.h"
#include "tests/engine/tiny.h"
#include "tests/support.h"

/* On the emulated device; a build that watches memory is slower there. */
#ifdef __SANITIZE_ADDRESS__
enum { N_RANKINGS = 2, LONG_RANKING = 1100, GOLDENS_ON_CUDA = 2 };
#else
enum { N_RANKINGS = 4, LONG_RANKING = 2500, GOLDENS_ON_CUDA = 64 };
#endif

/* Queries and keys of one layer, on a backend. */
struct layer {
    struct tw_model *model;
    struct tw_engine *engine;
    struct tw_kv kv;
    struct tw_observation observation;
    struct tw_selection_context context;
};

static struct layer layer_of(const char *backend, size_t n_layers, size_t n_heads, size_t n_kv_heads, size_t head_dim,
                             size_t length, size_t window, size_t budget, const float *query, const float *key) {
    struct layer layer = {0};
    struct tw_error err = {0};
    const size_t n_queries = tw_min_size(window, length);
    layer.model = tw_tiny_model(&(struct tw_tiny_shape){.n_layers = n_layers,
                                                        .n_embd = n_heads * head_dim,
                                                        .n_heads = n_heads,
                                                        .n_kv_heads = n_kv_heads,
                                                        .head_dim = head_dim,
                                                        .n_mlp = 16,
                                                        .n_vocab = 16,
                                                        .context_length = 1 << 20},
                                1);
    struct tw_engine_options options;
    tw_engine_options_init(&options);
    options.backend = backend;
    options.backend_options.dtype = TW_DTYPE_F32;
    options.backend_options.n_threads = 1;
    options.backend_options.window = window;
    options.budget = budget;
    layer.engine = tw_tiny_engine(layer.model, &options);
    const struct tw_backend_ops *ops = layer.engine->ops;
    size_t *capacity = malloc(n_kv_heads * sizeof *capacity);
    for (size_t g = 0; g < n_kv_heads; g++) capacity[g] = length;
    ck_assert(ops->kv_create(layer.engine->backend, &layer.kv, capacity, false, TW_CATEGORY_ACTIVE_KV, "kv", &err) ==
              TW_OK);
    free(capacity);
    ck_assert(ops->write_kv(layer.engine->backend, &layer.kv, key, key, length, &err) == TW_OK);
    ck_assert(ops->observation_create(layer.engine->backend, &layer.observation, &err) == TW_OK);
    ck_assert(ops->write_observation(layer.engine->backend, &layer.observation, query, n_queries, length - n_queries,
                                     &err) == TW_OK);
    layer.context = tw_engine_selection(layer.engine, length);
    return layer;
}

static void layer_release(struct layer *layer) {
    layer->engine->ops->kv_release(layer->engine->backend, &layer->kv);
    layer->engine->ops->observation_release(layer->engine->backend, &layer->observation);
    tw_engine_free(layer->engine);
    tw_tiny_free(layer->model);
}

static struct tw_kept select_rows(struct layer *layer, const char *selector, size_t l) {
    struct tw_selector_choice choice;
    struct tw_kept kept;
    struct tw_error err = {0};
    ck_assert_msg(tw_selector_choose(&choice, selector, &err) == TW_OK, "%s", err.text);
    ck_assert_msg(choice.selector->select(&kept, &layer->context, choice.options, l, &layer->kv, &layer->observation,
                                          &err) == TW_OK,
                  "%s", err.text);
    size_t most;
    ck_assert(tw_selector_head_budget(&most, choice.selector, &layer->context, choice.options, l, &err) == TW_OK);
    for (size_t g = 0; g < kept.n_kv_heads; g++) {
        ck_assert_uint_le(kept.n_rows[g], most);
        for (size_t k = 1; k < kept.n_rows[g]; k++) ck_assert_int_lt(kept.row[g][k - 1], kept.row[g][k]);
    }
    tw_selector_choice_release(&choice);
    return kept;
}

/* ---- goldens ---- */

static const char *const folders[] = {
    "budget_above_length",
    "budget_is_length",
    "budget_just_above_window",
    "budget_near_length",
    "grouped",
    "length_just_above_window",
    "one_head_each",
    "one_kv_head",
    "peaked",
    "plain",
    "real_layer15",
    "real_layer3",
    "shorter_than_window",
    "unequal_heads",
    "wide_head",
    "window4",
};

/* Names of the goldens' entries, and what we call them. Pooling before the mean over the group is kvpress's order. */
static const struct {
    const char *entry, *selector;
} entries[] = {
    {"snapkv_avg5", "snapkv"},
    {"snapkv_avg7", "snapkv:kernel=7"},
    {"snapkv_max5", "snapkv:pool=max"},
    {"snapkv_max5_ties", "snapkv:pool=max"},
    {"snapkv_max7", "snapkv:kernel=7:pool=max"},
    {"snapkv_max7_ties", "snapkv:kernel=7:pool=max"},
    {"adakv", "adakv"},
    {"chunkkv_10", "chunkkv"},
    {"chunkkv_20", "chunkkv:size=20"},
    {"keydiff", "keydiff"},
    {"keydiff_online", "keydiff:online=1"},
    {"knorm", "knorm"},
    {"recent", "recent"},
    {"recent_sinks4", "recent:sinks=4"},
};

struct golden {
    cJSON *json;
    size_t n_heads, n_kv_heads, head_dim, length, window, budget;
    float *query, *key, *score;
};

static size_t field(const cJSON *json, const char *name) {
    const cJSON *item = cJSON_GetObjectItem(json, name);
    ck_assert_msg(cJSON_IsNumber(item), "%s", name);
    return (size_t)item->valuedouble;
}

static void *golden_file(const char *folder, const char *name, size_t *size) {
    char relative[256];
    snprintf(relative, sizeof relative, "engine/selectors/%s/%s", folder, name);
    return tw_test_read_file(tw_test_golden(relative), size);
}

static struct golden golden_of(const char *folder) {
    struct golden golden;
    size_t size;
    char *text = golden_file(folder, "expected.json", &size);
    golden.json = cJSON_ParseWithLength(text, size);
    ck_assert_ptr_nonnull(golden.json);
    free(text);
    golden.n_heads = field(golden.json, "query_heads");
    golden.n_kv_heads = field(golden.json, "kv_heads");
    golden.head_dim = field(golden.json, "head_size");
    golden.length = field(golden.json, "length");
    golden.window = field(golden.json, "window");
    golden.budget = field(golden.json, "budget");
    golden.query = golden_file(folder, "q.bin", &size);
    ck_assert_uint_eq(size, golden.n_heads * tw_min_size(golden.window, golden.length) * golden.head_dim * 4);
    golden.key = golden_file(folder, "k.bin", &size);
    ck_assert_uint_eq(size, golden.n_kv_heads * golden.length * golden.head_dim * 4);
    golden.score = golden.length > golden.window ? golden_file(folder, "score_avg5.bin", &size) : NULL;
    return golden;
}

static void golden_release(struct golden *golden) {
    cJSON_Delete(golden->json);
    free(golden->query);
    free(golden->key);
    free(golden->score);
}

static void compare_kept(const struct tw_kept *kept, const cJSON *expected, const char *what) {
    ck_assert_int_eq(cJSON_GetArraySize(expected), (int)kept->n_kv_heads);
    for (size_t g = 0; g < kept->n_kv_heads; g++) {
        const cJSON *rows = cJSON_GetArrayItem(expected, (int)g);
        ck_assert_msg((size_t)cJSON_GetArraySize(rows) == kept->n_rows[g], "%s: head %zu keeps %zu, expected %d", what,
                      g, kept->n_rows[g], cJSON_GetArraySize(rows));
        size_t k = 0;
        for (const cJSON *row = rows->child; row; row = row->next, k++)
            ck_assert_msg(kept->row[g][k] == row->valueint, "%s: head %zu, rank %zu: row %d, expected %d", what, g, k,
                          kept->row[g][k], row->valueint);
    }
}

static void check_entries(const struct golden *golden, const char *backend, const char *folder, size_t block) {
    const cJSON *selectors = cJSON_GetObjectItem(golden->json, "selectors");
    size_t compared = 0;
    for (size_t e = 0; e < sizeof entries / sizeof *entries; e++) {
        const cJSON *entry = cJSON_GetObjectItem(selectors, entries[e].entry);
        if (!entry) continue;
        const cJSON *own_budget = cJSON_GetObjectItem(entry, "budget");
        struct layer layer =
            layer_of(backend, 1, golden->n_heads, golden->n_kv_heads, golden->head_dim, golden->length, golden->window,
                     own_budget ? (size_t)own_budget->valuedouble : golden->budget, golden->query, golden->key);
        layer.context.block = block;
        if (cJSON_GetObjectItem(entry, "chunk")) layer.context.chunk = field(entry, "chunk");
        char what[128];
        snprintf(what, sizeof what, "%s, %s, %s, block %zu", folder, entries[e].entry, backend, block);
        struct tw_kept kept = select_rows(&layer, entries[e].selector, 0);
        compare_kept(&kept, cJSON_GetObjectItem(entry, "kept"), what);
        tw_kept_release(&kept, &layer.engine->accountant);
        layer_release(&layer);
        compared++;
    }
    ck_assert_uint_ge(compared, 10);
}

static void check_pyramid(const struct golden *golden, const char *backend, const char *folder) {
    const cJSON *entry = cJSON_GetObjectItem(cJSON_GetObjectItem(golden->json, "selectors"), "pyramidkv");
    if (!entry) return;
    const size_t n_layers = field(entry, "layers");
    struct layer layer = layer_of(backend, n_layers, golden->n_heads, golden->n_kv_heads, golden->head_dim,
                                  golden->length, golden->window, golden->budget, golden->query, golden->key);
    struct tw_selector_choice choice;
    struct tw_error err = {0};
    ck_assert(tw_selector_choose(&choice, "pyramidkv", &err) == TW_OK);
    for (size_t l = 0; l < n_layers; l++) {
        size_t budget;
        ck_assert(choice.selector->layer_budget(&budget, &layer.context, choice.options, l, &err) == TW_OK);
        ck_assert_uint_eq(budget,
                          (size_t)cJSON_GetArrayItem(cJSON_GetObjectItem(entry, "budget"), (int)l)->valuedouble);
        char number[24], what[64];
        snprintf(number, sizeof number, "%zu", l);
        snprintf(what, sizeof what, "%s, pyramidkv, layer %zu", folder, l);
        const cJSON *expected = cJSON_GetObjectItem(cJSON_GetObjectItem(entry, "kept_by_layer"), number);
        if (!expected) continue;
        struct tw_kept kept = select_rows(&layer, "pyramidkv", l);
        compare_kept(&kept, expected, what);
        tw_kept_release(&kept, &layer.engine->accountant);
    }
    tw_selector_choice_release(&choice);
    layer_release(&layer);
}

struct scores {
    float *score; /* [n_kv_heads][n] */
    size_t n_kv_heads, n;
};

static tw_status take(void *context, size_t first, size_t n, const float *score, struct tw_error *err) {
    (void)err;
    const struct scores *scores = context;
    for (size_t g = 0; g < scores->n_kv_heads; g++)
        memcpy(scores->score + g * scores->n + first, score + g * n, n * sizeof *score);
    return TW_OK;
}

/* Pooled scores of the rows before the window: [n_kv_heads][n]. Free with free(). */
static float *pooled_scores(struct layer *layer, size_t block, struct tw_pooling pooling) {
    const size_t n_kv_heads = layer->context.n_kv_heads, n = layer->kv.length[0] - layer->observation.n_queries;
    struct scores scores = {malloc((n_kv_heads * n + 1) * sizeof(float)), n_kv_heads, n};
    size_t n_scored[64];
    struct tw_error err = {0};
    for (size_t g = 0; g < n_kv_heads; g++) n_scored[g] = n;
    layer->context.block = block;
    ck_assert(tw_compress_scores(&layer->context, 0, &layer->kv, &layer->observation, TW_SCORE_ATTENTION, NULL, pooling,
                                 n_scored, take, &scores, &err) == TW_OK);
    return scores.score;
}

static void check_scores(const struct golden *golden, const char *backend, const char *folder) {
    if (golden->length <= golden->window) return;
    struct layer layer = layer_of(backend, 1, golden->n_heads, golden->n_kv_heads, golden->head_dim, golden->length,
                                  golden->window, 0, golden->query, golden->key);
    float *score = pooled_scores(&layer, 100, (struct tw_pooling){.kernel = 5});
    /* A float32 logit of size 50 is rounded by 2e-6: kernels that have no more may be that much off where nobody looks.
     */
    const bool exact = strcmp(backend, "ref") == 0;
    for (size_t i = 0; i < golden->n_kv_heads * (golden->length - golden->window); i++)
        ck_assert_msg(fabsf(score[i] - golden->score[i]) <=
                          (exact || golden->score[i] > 1e-9f ? 5e-6f : 2e-5f) * golden->score[i],
                      "%s, %s: score %zu is %g, not %g", folder, backend, i, score[i], golden->score[i]);
    free(score);
    layer_release(&layer);
}

START_TEST(goldens_are_met_exactly) {
    struct golden golden = golden_of(folders[_i]);
    for (const struct tw_backend_ops *const *ops = tw_backend_table; *ops; ops++) {
        if (!strcmp((*ops)->name, "dry")) continue;
        check_entries(&golden, (*ops)->name, folders[_i], 128);
        check_pyramid(&golden, (*ops)->name, folders[_i]);
        check_scores(&golden, (*ops)->name, folders[_i]);
    }
    tw_test_cuda_library();
    if (_i < GOLDENS_ON_CUDA) check_entries(&golden, "cuda", folders[_i], 128);
    golden_release(&golden);
}
END_TEST

/* ---- streaming against dense ---- */

/* Pooled attention scores the slow way: a whole row of probabilities a query, in double. */
static double *dense_scores(const float *query, const float *key, size_t n_heads, size_t n_kv_heads, size_t d,
                            size_t length, size_t n_queries, struct tw_pooling pooling) {
    const size_t n = length - n_queries, group = n_heads / n_kv_heads;
    double *raw = calloc(n_kv_heads * n, sizeof *raw), *pooled = calloc(n_kv_heads * n, sizeof *pooled);
    double *p = malloc(length * sizeof *p);
    for (size_t h = 0; h < n_heads; h++)
        for (size_t w = 0; w < n_queries; w++) {
            const float *q = query + (h * n_queries + w) * d;
            const float *k = key + h / group * length * d;
            const size_t visible = n + w + 1;
            double maximum = -INFINITY, sum = 0;
            for (size_t i = 0; i < visible; i++) {
                p[i] = 0;
                for (size_t j = 0; j < d; j++) p[i] += (double)q[j] * k[i * d + j];
                p[i] /= sqrt((double)d);
                maximum = fmax(maximum, p[i]);
            }
            for (size_t i = 0; i < visible; i++) sum += p[i] = exp(p[i] - maximum);
            for (size_t i = 0; i < n; i++) raw[h / group * n + i] += p[i] / sum / (double)(n_queries * group);
        }
    const ptrdiff_t half = (ptrdiff_t)pooling.kernel / 2;
    for (size_t g = 0; g < n_kv_heads; g++)
        for (ptrdiff_t i = 0; i < (ptrdiff_t)n; i++) {
            double sum = 0, maximum = -INFINITY;
            for (ptrdiff_t j = i - half; j <= i + half; j++)
                if (j >= 0 && j < (ptrdiff_t)n) {
                    sum += raw[g * n + (size_t)j];
                    maximum = fmax(maximum, raw[g * n + (size_t)j]);
                }
            pooled[g * n + (size_t)i] = pooling.maximum ? maximum : sum / (double)pooling.kernel;
        }
    free(p);
    free(raw);
    return pooled;
}

static float *random_floats(size_t n, struct tw_random *random, float scale) {
    float *x = malloc((n + 1) * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = scale * (float)(2 * tw_random_unit(random) - 1);
    return x;
}

/* Every block size from 1 to S gives the same scores to the bit, near the dense ones, and the same selections. */
START_TEST(block_size_changes_nothing) {
    struct tw_random random;
    tw_random_init(&random, tw_test_seed() + (uint64_t)_i, 2);
    const size_t n_kv_heads = 1 + tw_random_below(&random, 3), n_heads = n_kv_heads * (1 + tw_random_below(&random, 3));
    const size_t d = 8, length = 2 + tw_random_below(&random, 110), window = 1 + tw_random_below(&random, 12);
    const size_t n_queries = tw_min_size(window, length);
    const struct tw_pooling pooling = {1 + 2 * tw_random_below(&random, 6), tw_random_below(&random, 2)};
    float *query = random_floats(n_heads * n_queries * d, &random, 4),
          *key = random_floats(n_kv_heads * length * d, &random, 2);
    const size_t budget = tw_min_size(window + tw_random_below(&random, length), length);
    for (const struct tw_backend_ops *const *ops = tw_backend_table; *ops; ops++) {
        if (!strcmp((*ops)->name, "dry")) continue;
        struct layer layer = layer_of((*ops)->name, 2, n_heads, n_kv_heads, d, length, window, budget, query, key);
        const size_t n = n_kv_heads * (length - n_queries);
        double *dense = dense_scores(query, key, n_heads, n_kv_heads, d, length, n_queries, pooling);
        float *whole = pooled_scores(&layer, length, pooling);
        for (size_t i = 0; i < n; i++)
            ck_assert_msg(fabs(whole[i] - dense[i]) <= 1e-5 * dense[i] + 1e-30, "%g %g", whole[i], dense[i]);
        free(dense);
        for (size_t block = 1; block < length; block += 1 + block / 8) {
            float *score = pooled_scores(&layer, block, pooling);
            ck_assert_msg(memcmp(score, whole, n * sizeof *score) == 0, "block %zu of %zu", block, length);
            free(score);
        }
        free(whole);
        for (const struct tw_selector *const *s = tw_selector_table; *s; s++) {
            layer.context.block = length;
            struct tw_kept expected = select_rows(&layer, (*s)->name, 1);
            size_t total = 0, layer_budget;
            struct tw_selector_choice choice;
            struct tw_error err = {0};
            ck_assert(tw_selector_choose(&choice, (*s)->name, &err) == TW_OK);
            ck_assert((*s)->layer_budget(&layer_budget, &layer.context, choice.options, 1, &err) == TW_OK);
            tw_selector_choice_release(&choice);
            for (size_t g = 0; g < n_kv_heads; g++) total += expected.n_rows[g];
            ck_assert_msg(total == n_kv_heads * layer_budget, "%s", (*s)->name);
            for (size_t block = 1; block < length; block += 1 + block / 4) {
                layer.context.block = block;
                struct tw_kept kept = select_rows(&layer, (*s)->name, 1);
                for (size_t g = 0; g < n_kv_heads; g++) {
                    ck_assert_uint_eq(kept.n_rows[g], expected.n_rows[g]);
                    ck_assert_msg(memcmp(kept.row[g], expected.row[g], kept.n_rows[g] * sizeof(int32_t)) == 0,
                                  "%s, block %zu of %zu", (*s)->name, block, length);
                }
                tw_kept_release(&kept, &layer.engine->accountant);
            }
            tw_kept_release(&expected, &layer.engine->accountant);
        }
        layer_release(&layer);
    }
    free(query);
    free(key);
}
END_TEST

/* ---- ranking where the scores are ---- */

/* A few different keys over and over, and queries of whole numbers: many equal scores. */
static float *repeated_keys(size_t n_kv_heads, size_t length, size_t d, struct tw_random *random) {
    enum { N_KINDS = 5 };
    float *const kinds = random_floats(N_KINDS * d, random, 2), *const key =
                                                                    random_floats(n_kv_heads * length * d, random, 0);
    for (size_t r = 0; r < n_kv_heads * length; r++)
        memcpy(key + r * d, kinds + tw_random_below(random, N_KINDS) * d, d * sizeof *key);
    free(kinds);
    return key;
}

static void same_kept(const struct tw_kept *expected, const struct tw_kept *found, const char *what, size_t block) {
    for (size_t g = 0; g < expected->n_kv_heads; g++) {
        ck_assert_msg(found->n_rows[g] == expected->n_rows[g], "%s, block %zu, head %zu", what, block, g);
        for (size_t k = 0; k < expected->n_rows[g]; k++)
            ck_assert_msg(found->row[g][k] == expected->row[g][k],
                          "%s, block %zu: head %zu, rank %zu: row %d, expected %d", what, block, g, k, found->row[g][k],
                          expected->row[g][k]);
    }
}

/* Lists of different lengths over different numbers of rows, with their rest or not. */
static void rank_unequal(struct layer *layer, const size_t *n_scored, const size_t *n_best, size_t block) {
    const struct tw_pooling pooling = {.kernel = 3, .maximum = true};
    struct tw_kept kept[2];
    struct tw_error err = {0};
    layer->context.block = block;
    for (int ranks = 0; ranks < 2; ranks++) {
        layer->context.ranks = ranks;
        ck_assert_msg(tw_compress_best(&kept[ranks], &layer->context, 0, &layer->kv, &layer->observation,
                                       TW_SCORE_ATTENTION, NULL, pooling, n_scored, n_best, &err) == TW_OK,
                      "%s", err.text);
    }
    same_kept(&kept[0], &kept[1], "unequal heads", block);
    for (int ranks = 0; ranks < 2; ranks++) tw_kept_release(&kept[ranks], &layer->engine->accountant);
}

/* What `rank` keeps is what the stream of scores keeps, ties and all, on the emulated device. */
START_TEST(cuda_ranks_as_the_stream_does) {
    static const char *const specifications[] = {
        "snapkv",  "snapkv:kernel=7:pool=max", "pyramidkv",       "adakv",   "adakv:share=0", "adakv:share=1",
        "chunkkv", "chunkkv:size=3",           "chunkkv:size=30", "keydiff", "knorm",
    };
    struct tw_random random;
    tw_random_init(&random, tw_test_seed() + (uint64_t)_i, 8);
    const bool is_long = _i == 0;
    const size_t n_kv_heads = 1 + tw_random_below(&random, 3), n_heads = n_kv_heads * (1 + tw_random_below(&random, 2));
    const size_t d = 8, length = is_long ? LONG_RANKING : 20 + tw_random_below(&random, 150);
    const size_t window = 1 + tw_random_below(&random, 12);
    const size_t budget = window + tw_random_below(&random, length - window);
    float *query = random_floats(n_heads * window * d, &random, 4);
    float *key =
        _i % 2 ? repeated_keys(n_kv_heads, length, d, &random) : random_floats(n_kv_heads * length * d, &random, 2);
    const size_t blocks[] = {is_long ? 1000 : 1, is_long ? 1024 : 7, 64, length + 5};
    tw_test_cuda_library();
    struct layer layer = layer_of("cuda", 2, n_heads, n_kv_heads, d, length, window, budget, query, key);
    ck_assert(layer.context.ranks);
    for (size_t s = 0; s < sizeof specifications / sizeof *specifications; s++) {
        layer.context.ranks = false;
        layer.context.block = length;
        struct tw_kept expected = select_rows(&layer, specifications[s], 1);
        layer.context.ranks = true;
        for (size_t b = is_long ? 1 : 0; b < (is_long ? 2 : sizeof blocks / sizeof *blocks); b++) {
            layer.context.block = blocks[b];
            struct tw_kept kept = select_rows(&layer, specifications[s], 1);
            same_kept(&expected, &kept, specifications[s], blocks[b]);
            tw_kept_release(&kept, &layer.engine->accountant);
        }
        tw_kept_release(&expected, &layer.engine->accountant);
    }
    size_t n_scored[3], n_best[3];
    for (size_t g = 0; g < n_kv_heads; g++) {
        n_scored[g] = tw_random_below(&random, length + 1);
        n_best[g] = tw_random_below(&random, n_scored[g] + 1);
    }
    for (size_t b = is_long ? 3 : 1; b < 4; b++) rank_unequal(&layer, n_scored, n_best, blocks[b]);
    layer_release(&layer);
    free(query);
    free(key);
}
END_TEST

/* ---- budgets ---- */

/* C16 */
START_TEST(pyramid_budgets_at_the_edges) {
    static const struct {
        size_t n_layers, budget, length, expected[4];
    } cases[] = {
        {4, 132, 10000, {195, 132, 68, 5}},
        {4, 132, 180, {148, 116, 84, 52}},
        {1, 132, 10000, {100}},
    };
    struct tw_selector_choice choice;
    struct tw_error err = {0};
    ck_assert(tw_selector_choose(&choice, "pyramidkv", &err) == TW_OK);
    for (size_t c = 0; c < 3; c++)
        for (size_t l = 0; l < cases[c].n_layers; l++) {
            const struct tw_selection_context context = {.n_layers = cases[c].n_layers,
                                                         .window = 32,
                                                         .budget = cases[c].budget,
                                                         .prompt_length = cases[c].length};
            size_t budget;
            ck_assert(choice.selector->layer_budget(&budget, &context, choice.options, l, &err) == TW_OK);
            ck_assert_uint_eq(budget, 32 + cases[c].expected[l]);
        }
    tw_selector_choice_release(&choice);
}
END_TEST

START_TEST(budgets_below_the_window_are_refused) {
    for (const struct tw_selector *const *s = tw_selector_table; *s; s++) {
        struct tw_selector_choice choice;
        struct tw_error err = {0};
        size_t budget;
        struct tw_selection_context context = {
            .n_layers = 4, .n_kv_heads = 2, .window = 32, .budget = 31, .prompt_length = 100};
        ck_assert(tw_selector_choose(&choice, (*s)->name, &err) == TW_OK);
        const tw_status status = (*s)->layer_budget(&budget, &context, choice.options, 0, &err);
        ck_assert_int_eq(status, (*s)->windowed ? TW_E_OPTION : TW_OK);
        context.budget = 100;
        ck_assert((*s)->layer_budget(&budget, &context, choice.options, 3, &err) == TW_OK && budget == 100);
        context.budget = 0;
        ck_assert((*s)->layer_budget(&budget, &context, choice.options, 3, &err) == TW_OK && budget == 100);
        tw_selector_choice_release(&choice);
    }
}
END_TEST

START_TEST(wrong_specifications_are_refused) {
    static const char *const wrong[] = {"snap", "", "snapkv:kernel", "snapkv:kernel=0", "snapkv:pol=avg", "knorm:x=1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct tw_selector_choice choice;
        struct tw_error err = {0};
        ck_assert_msg(tw_selector_choose(&choice, wrong[i], &err) == TW_E_OPTION, "%s", wrong[i]);
        ck_assert(err.text[0] != 0);
    }
}
END_TEST

Suite *tw_suite_selectors(void);

Suite *tw_suite_selectors(void) {
    Suite *suite = suite_create("selectors");
    TCase *goldens = tcase_create("goldens");
    tcase_set_timeout(goldens, 120);
    tcase_add_loop_test(goldens, goldens_are_met_exactly, 0, sizeof folders / sizeof *folders);
    suite_add_tcase(suite, goldens);
    TCase *dense = tcase_create("dense");
    tcase_set_timeout(dense, 120);
    tcase_add_loop_test(dense, block_size_changes_nothing, 0, 12);
    suite_add_tcase(suite, dense);
    TCase *ranking = tcase_create("ranking");
    tcase_set_timeout(ranking, 120);
    tcase_add_loop_test(ranking, cuda_ranks_as_the_stream_does, 0, N_RANKINGS);
    suite_add_tcase(suite, ranking);
    TCase *budgets = tcase_create("budgets");
    tcase_add_test(budgets, pyramid_budgets_at_the_edges);
    tcase_add_test(budgets, budgets_below_the_window_are_refused);
    tcase_add_test(budgets, wrong_specifications_are_refused);
    suite_add_tcase(suite, budgets);
    return suite;
}
