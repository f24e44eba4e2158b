/*
 * Attention of the cpu backend against plain loops in float64, at every instruction set that the machine has: tiles of
 * prefill, ranges of decoding, the pieces of the layer-end passes, and the rotation that appends to the cache.
 */
#include "tests/engine/cpu_kit.h"

/* Keys and values of one head, also as plain rows. What is behind the last row holds NaN. */
struct cache {
    size_t rows, d, w;
    struct space key, value;
    float *plain_key, *plain_value;
};
static struct cache cache_make(struct kit *kit, size_t rows, size_t d) {
    struct cache c = {.rows = rows, .d = d, .w = tw_cpu_value_width(d)};
    const size_t room = tw_cpu_kv_rows(rows), e = size_of(kit);
    c.key = space_make(room * d * e, 0);
    c.value = space_make(room * c.w * e, 0);
    memset(c.key.data, 0xff, c.key.bytes);
    memset(c.value.data, 0xff, c.value.bytes);
    c.plain_key = malloc(rows * d * sizeof *c.plain_key);
    c.plain_value = malloc(rows * d * sizeof *c.plain_value);
    float *row = malloc(d * sizeof *row);
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < d; i++) {
            c.plain_key[r * d + i] = rounded(2 * tw_random_float(&kit->random));
            c.plain_value[r * d + i] = rounded(tw_random_float(&kit->random));
        }
        kit->kernels->store_key((char *)c.key.data, r, c.plain_key + r * d, d);
        kit->kernels->store_value((char *)c.value.data, r, c.plain_value + r * d, d);
        kit->kernels->load_key(row, (char *)c.key.data, r, d);
        ck_assert(memcmp(row, c.plain_key + r * d, d * sizeof *row) == 0);
        kit->kernels->load_value(row, (char *)c.value.data, r, d);
        ck_assert(memcmp(row, c.plain_value + r * d, d * sizeof *row) == 0);
    }
    free(row);
    return c;
}
static void cache_free(struct cache *c, const struct kit *kit) {
    space_free(&c->key, kit, "keys");
    space_free(&c->value, kit, "values");
    free(c->plain_key);
    free(c->plain_value);
}

static double dot_of(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

/* Softmax in powers of two of scale * q.k over rows [first, end): weights, and the output. */
static void attend_plainly(double *weight, double *out, double *peak, double *sum, const struct cache *c,
                           const float *q, size_t first, size_t end, double scale) {
    *peak = -INFINITY;
    *sum = 0;
    for (size_t r = first; r < end; r++) {
        weight[r] = scale * dot_of(q, c->plain_key + r * c->d, c->d);
        *peak = fmax(*peak, weight[r]);
    }
    for (size_t i = 0; i < c->d; i++) out[i] = 0;
    for (size_t r = first; r < end; r++) {
        weight[r] = exp2(weight[r] - *peak);
        *sum += weight[r];
        for (size_t i = 0; i < c->d; i++) out[i] += weight[r] * c->plain_value[r * c->d + i];
    }
}

static size_t random_head_dim(struct kit *kit) {
    static const size_t dims[] = {2, 6, 8, 16, 18, 34, 64, 64, 80, 128, 130};
    return dims[below(kit, sizeof dims / sizeof *dims)];
}

static void check_tile(struct kit *kit, const struct cache *c) {
    const size_t d = c->d, group = 1 + below(kit, 16), e = size_of(kit);
    const size_t n = 1 + below(kit, tw_min_size(TW_CPU_TILE_ROWS / group, c->rows));
    const size_t stride = group * d + below(kit, 9), start = below(kit, c->rows - n + 1);
    const struct tw_cpu_shape shape = {.head_dim = d};
    struct space rows = space_make(n * stride * e, 0), space = space_make(tw_cpu_tile_bytes(&shape), 0);
    float *plain = malloc(n * stride * sizeof *plain);
    size_t first[TW_CPU_TILE_ROWS], end[TW_CPU_TILE_ROWS];
    const size_t window = below(kit, 2) ? 1 + below(kit, 100) : c->rows;
    fill(kit, rows.data, n * stride, 1);
    for (size_t i = 0; i < n * stride; i++) plain[i] = get(kit, rows.data, i);
    for (size_t p = 0; p < n; p++) {
        end[p] = start + p + 1;
        first[p] = end[p] > window ? end[p] - window : 0;
    }
    const float scale = 2 / sqrtf((float)d);
    kit->kernels->tile(&(struct tw_cpu_tile){.rows = rows.data,
                                             .stride = stride,
                                             .n_positions = n,
                                             .n_group = group,
                                             .head_dim = d,
                                             .key = (char *)c->key.data,
                                             .value = (char *)c->value.data,
                                             .first = first,
                                             .end = end,
                                             .scale = scale,
                                             .workspace = space.data});
    double *weight = malloc(c->rows * sizeof *weight), out[256], peak, sum;
    for (size_t p = 0; p < n; p++)
        for (size_t h = 0; h < group; h++) {
            attend_plainly(weight, out, &peak, &sum, c, plain + p * stride + h * d, first[p], end[p], scale);
            for (size_t i = 0; i < d; i++)
                near(kit, get(kit, rows.data, p * stride + h * d + i), out[i] / sum, kit->bf16 ? 0.01 : 1e-5, "tile",
                     p * stride + h * d + i);
        }
    for (size_t p = 0; p < n; p++) /* what lies between the rows stays */
        for (size_t i = group * d; i < stride; i++)
            ck_assert(get(kit, rows.data, p * stride + i) == plain[p * stride + i]);
    free(weight);
    free(plain);
    space_free(&rows, kit, "tile");
    space_free(&space, kit, "tile workspace");
}

static void check_range(struct kit *kit, const struct cache *c) {
    const size_t d = c->d, group = 1 + below(kit, 9), base = below(kit, tw_divide_up(c->rows, 256)) * 256;
    const size_t most = tw_min_size(256, c->rows - base), first = base + below(kit, most);
    const size_t end = first + 1 + below(kit, base + most - first), stride = 256 + 16 * below(kit, 3);
    struct space row = space_make(((group - 1) * stride + 256) * 4, 0), out = space_make(group * c->w * 4, 0);
    float *query = malloc(group * d * sizeof *query), peaks[16], sums[16];
    double *weight = malloc(c->rows * sizeof *weight), expected[256], peak, sum;
    const bool with_values = below(kit, 4) != 0;
    for (size_t i = 0; i < group * d; i++) query[i] = tw_random_float(&kit->random) / sqrtf((float)d) * 3;
    kit->kernels->range(&(struct tw_cpu_range){.query = query,
                                               .n_group = group,
                                               .head_dim = d,
                                               .key = (char *)c->key.data,
                                               .value = with_values ? (char *)c->value.data : NULL,
                                               .first = first,
                                               .end = end,
                                               .row = (float *)(void *)row.data,
                                               .row_stride = stride,
                                               .peak = peaks,
                                               .sum = sums,
                                               .output = (float *)(void *)out.data});
    for (size_t h = 0; h < group; h++) {
        attend_plainly(weight, expected, &peak, &sum, c, query + h * d, first, end, 1);
        near(kit, peaks[h], peak, 1e-5, "range peak", h);
        near(kit, sums[h], sum, 2e-5 * sum, "range sum", h);
        for (size_t r = base; r < base + 256; r++)
            near(kit, ((float *)(void *)row.data)[h * stride + r - base], r >= first && r < end ? weight[r] : 0,
                 r >= first && r < end ? 1e-5 : 0, "range row", r - base);
        for (size_t i = 0; with_values && i < d; i++)
            near(kit, ((float *)(void *)out.data)[h * c->w + i], expected[i], 2e-5 * sum, "range output", i);
    }
    free(query);
    free(weight);
    space_free(&row, kit, "range row");
    space_free(&out, kit, "range output");
}

static void check_block(struct kit *kit, const struct cache *c) {
    const size_t d = c->d, n = 1 + below(kit, 6), block = below(kit, tw_divide_up(c->rows, 64)) * 64, e = size_of(kit);
    const size_t n_keys = 1 + below(kit, tw_min_size(64, c->rows - block));
    struct space rows = space_make(n * d * e, e * below(kit, 4)), logits = space_make(n * 64 * 4, 0);
    struct space out = space_make(n * c->w * 4, 0);
    float *found = (float *)(void *)logits.data, *output = (float *)(void *)out.data, plain[256];
    fill(kit, rows.data, n * d, 1);
    kit->kernels->products(found, rows.data, (char *)c->key.data, block, n, d);
    for (size_t r = 0; r < n; r++) {
        for (size_t i = 0; i < d; i++) plain[i] = get(kit, rows.data, r * d + i);
        for (size_t k = 0; k < tw_min_size(64, c->rows - block); k++)
            near(kit, found[r * 64 + k], dot_of(plain, c->plain_key + (block + k) * d, d), 1e-5 * (double)d, "products",
                 k);
        for (size_t k = 0; k < 64; k++)
            found[r * 64 + k] = rounded(k < n_keys ? (float)tw_random_unit(&kit->random) : 0);
    }
    for (size_t i = 0; i < n * c->w; i++) output[i] = 0.5f;
    kit->kernels->combine(output, found, (char *)c->value.data, block, n_keys, n, d);
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < d; i++) {
            double sum = 0.5;
            for (size_t k = 0; k < n_keys; k++) sum += (double)found[r * 64 + k] * c->plain_value[(block + k) * d + i];
            near(kit, output[r * c->w + i], sum, 1e-4, "combine", i);
        }
    space_free(&rows, kit, "products in");
    space_free(&logits, kit, "products");
    space_free(&out, kit, "combine");
}

START_TEST(attention) {
    struct kit kit;
    if (!kit_of(&kit, _i, 3)) return;
    for (int round = 0; round < N_ROUNDS; round++) {
        struct cache cache = cache_make(&kit, 1 + below(&kit, 600), random_head_dim(&kit));
        check_tile(&kit, &cache);
        check_range(&kit, &cache);
        check_block(&kit, &cache);
        cache_free(&cache, &kit);
    }
}
END_TEST

START_TEST(rotation_kernel) {
    struct kit kit;
    if (!kit_of(&kit, _i, 4)) return;
    for (int round = 0; round < N_ROUNDS; round++) {
        const size_t d = random_head_dim(&kit), n_heads = 1 + below(&kit, 5), n_kv_heads = 1 + below(&kit, 2),
                     e = size_of(&kit);
        const size_t n = 1 + below(&kit, 5), start = below(&kit, 20), width = (n_heads + 2 * n_kv_heads) * d;
        const bool normed = below(&kit, 2), halves = below(&kit, 2);
        struct space query = space_make(n * n_heads * d * e, 0), scratch = space_make(2 * d * 4, 0);
        struct space key[2], value[2];
        char *keys[2], *values[2];
        size_t row[2];
        for (size_t g = 0; g < 2; g++) {
            key[g] = space_make(64 * d * e, 0);
            value[g] = space_make(64 * tw_cpu_value_width(d) * e, 0);
            keys[g] = (char *)key[g].data;
            values[g] = (char *)value[g].data;
            row[g] = start + g;
        }
        float *qkv = malloc(n * width * sizeof *qkv), *rotation = malloc(n * 2 * d * sizeof *rotation);
        float *weight = malloc(d * sizeof *weight), got[256];
        for (size_t i = 0; i < n * width; i++) qkv[i] = tw_random_float(&kit.random);
        for (size_t i = 0; i < d; i++) weight[i] = tw_random_float(&kit.random);
        for (size_t r = 0; r < n; r++)
            for (size_t j = 0; j < d / 2; j++) {
                const double angle = 6.28 * tw_random_unit(&kit.random);
                float *own = rotation + r * 2 * d, *partner = own + d;
                const size_t low = halves ? j : 2 * j, high = halves ? j + d / 2 : 2 * j + 1;
                own[low] = own[high] = (float)cos(angle);
                partner[low] = (float)-sin(angle);
                partner[high] = (float)sin(angle);
            }
        kit.kernels->rotate(&(struct tw_cpu_rotate){.qkv = qkv,
                                                    .n = n,
                                                    .n_heads = n_heads,
                                                    .n_kv_heads = n_kv_heads,
                                                    .head_dim = d,
                                                    .query_norm = normed ? weight : NULL,
                                                    .key_norm = normed ? weight : NULL,
                                                    .epsilon = 1e-6f,
                                                    .pairs = halves ? TW_ROPE_HALVES : TW_ROPE_INTERLEAVED,
                                                    .rotation = rotation,
                                                    .query = query.data,
                                                    .key = keys,
                                                    .value = values,
                                                    .row = row,
                                                    .scratch = (float *)(void *)scratch.data});
        for (size_t r = 0; r < n; r++)
            for (size_t h = 0; h < n_heads + 2 * n_kv_heads; h++) {
                const float *in = qkv + r * width + h * d;
                double head[256], square = 0;
                for (size_t i = 0; i < d; i++) square += (double)in[i] * in[i];
                for (size_t i = 0; i < d; i++)
                    head[i] = normed ? in[i] / sqrt(square / (double)d + 1e-6) * weight[i] : in[i];
                if (h < n_heads)
                    for (size_t i = 0; i < d; i++) got[i] = get(&kit, query.data, (r * n_heads + h) * d + i);
                else if (h < n_heads + n_kv_heads)
                    kit.kernels->load_key(got, keys[h - n_heads], row[h - n_heads] + r, d);
                else
                    kit.kernels->load_value(got, values[h - n_heads - n_kv_heads], row[h - n_heads - n_kv_heads] + r,
                                            d);
                for (size_t i = 0; i < d; i++) {
                    const float *own = rotation + r * 2 * d, *partner = own + d;
                    const size_t other = halves ? (i + d / 2) % d : i ^ 1;
                    const double expected =
                        h >= n_heads + n_kv_heads ? in[i] : head[i] * own[i] + head[other] * partner[i];
                    near(&kit, got[i], expected, (kit.bf16 ? 0x1p-8 : 1e-6) * (fabs(expected) + 1e-3) * 2 + 1e-6,
                         "rotate", i);
                }
            }
        free(qkv);
        free(rotation);
        free(weight);
        space_free(&query, &kit, "rotate queries");
        space_free(&scratch, &kit, "rotate scratch");
        for (size_t g = 0; g < 2; g++) {
            space_free(&key[g], &kit, "rotate keys");
            space_free(&value[g], &kit, "rotate values");
        }
    }
}
END_TEST

Suite *tw_suite_cpu_attention(void);
Suite *tw_suite_cpu_attention(void) {
    Suite *suite = suite_create("cpu attention");
    TCase *tcase = tcase_create("kernels");
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, attention, 0, N_KITS);
    tcase_add_loop_test(tcase, rotation_kernel, 0, N_KITS);
    suite_add_tcase(suite, tcase);
    return suite;
}
