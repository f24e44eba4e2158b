/*
 * Every kernel of the cpu backend against plain loops in float64, at every instruction set that the machine has: random
 * shapes, tails and alignments, ties, masked rows; guard bytes around every output. TW_SEED reruns a case.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/half.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/sizes.h"
#include "tests/engine/model_random.h"
#include "tests/support.h"

enum { N_FLOAT_KITS = TW_CPU_AVX512 + 1, N_KITS = N_FLOAT_KITS + 2, N_ROUNDS = 40 };

/* The tables of one level: float32 ones up to AVX-512, then those of bf16 activations. */
struct kit {
    const char *name;
    const struct tw_cpu_kernels *kernels;
    const struct tw_cpu_common *common;
    bool bf16;
    struct tw_random random;
    uint64_t seed;
};

static bool kit_of(struct kit *kit, int i, uint64_t stream) {
    const enum tw_cpu_level level =
        i < N_FLOAT_KITS ? (enum tw_cpu_level)i : (enum tw_cpu_level)(TW_CPU_AVX512BF16 + i - N_FLOAT_KITS);
    if (level > tw_cpu_level_of_machine()) {
        printf("skipped: this processor has no %s\n", tw_cpu_level_names[level]);
        return false;
    }
    kit->bf16 = i >= N_FLOAT_KITS;
    kit->name = tw_cpu_level_names[level];
    kit->kernels = kit->bf16 ? tw_cpu_kernels_bf16(level) : tw_cpu_kernels_f32(level);
    kit->common = tw_cpu_common(level);
    kit->seed = tw_test_seed();
    tw_random_init(&kit->random, kit->seed, stream);
    return true;
}

static size_t below(struct kit *kit, size_t n) { return tw_random_below(&kit->random, n); }

/* ---- guarded memory --------------------------------------------------------------------------------------------- */

enum { GUARD = 64 };

/* `bytes` bytes at an address that is `off` beyond a multiple of 64, between guards. */
struct space {
    unsigned char *whole, *data;
    size_t bytes;
};
static struct space space_make(size_t bytes, size_t off) {
    struct space s = {.bytes = bytes};
    s.whole = aligned_alloc(64, tw_round_up(bytes + 2 * GUARD + 64, 64));
    ck_assert_ptr_nonnull(s.whole);
    memset(s.whole, 0xa5, bytes + 2 * GUARD + 64);
    s.data = s.whole + GUARD + off;
    memset(s.data, 0, bytes);
    return s;
}
static void space_free(struct space *s, const struct kit *kit, const char *what) {
    for (unsigned char *p = s->whole; p < s->data; p++)
        ck_assert_msg(*p == 0xa5, "%s, %s, seed %llu: written before", kit->name, what, (unsigned long long)kit->seed);
    for (size_t i = 0; i < GUARD; i++)
        ck_assert_msg(s->data[s->bytes + i] == 0xa5, "%s, %s, seed %llu: written behind (%zu)", kit->name, what,
                      (unsigned long long)kit->seed, i);
    free(s->whole);
}

/* Elements of a kit: numbers that both precisions hold. */
static size_t size_of(const struct kit *kit) { return kit->bf16 ? 2 : 4; }
static void set(const struct kit *kit, void *elements, size_t i, float value) {
    if (kit->bf16)
        ((uint16_t *)elements)[i] = tw_bf16_from_float(value);
    else
        ((float *)elements)[i] = value;
}
static float get(const struct kit *kit, const void *elements, size_t i) {
    return kit->bf16 ? tw_float_from_bf16(((const uint16_t *)elements)[i]) : ((const float *)elements)[i];
}
static float rounded(float value) { return tw_float_from_bf16(tw_bf16_from_float(value)); }
static void fill(struct kit *kit, void *elements, size_t n, float scale) {
    for (size_t i = 0; i < n; i++) set(kit, elements, i, rounded(scale * tw_random_float(&kit->random)));
}

static void near(const struct kit *kit, double got, double expected, double tolerance, const char *what, size_t i) {
    if (!(fabs(got - expected) <= tolerance))
        ck_abort_msg("%s, %s, seed %llu: %zu is %.9g, expected %.9g", kit->name, what, (unsigned long long)kit->seed, i,
                     got, expected);
}
/* What an element may be off: float32's sums, or a rounding to bf16. */
static double slack(const struct kit *kit, double size) { return size * (kit->bf16 ? 0x1p-8 : 3e-6) + 1e-30; }

/* ---- stored rows ------------------------------------------------------------------------------------------------- */

static const enum tw_type types[] = {TW_TYPE_F32,  TW_TYPE_F16,  TW_TYPE_BF16, TW_TYPE_Q4_0,
                                     TW_TYPE_Q4_1, TW_TYPE_Q8_0, TW_TYPE_Q4_K, TW_TYPE_Q6_K};

static void check_pack(struct kit *kit, tw_cpu_pack_fn *pack, bool bf16, enum tw_type type, size_t n) {
    const struct tw_type_traits *traits = tw_type_traits(type);
    const size_t row_bytes = tw_type_row_bytes(traits, n), padded = tw_round_up(n, bf16 ? 32 : 16);
    const size_t dwords = bf16 ? padded / 2 : padded;
    const uint8_t *rows[16];
    float *values = malloc(16 * padded * sizeof *values);
    struct space out = space_make(dwords * 256, 0);
    memset(out.data, 0x77, out.bytes);
    for (size_t r = 0; r < 16; r++) {
        uint8_t *row = malloc(row_bytes);
        tw_random_row(row, type, n, 1, &kit->random);
        memset(values + r * padded, 0, padded * sizeof *values);
        traits->dequantise(values + r * padded, row, n);
        rows[r] = row;
    }
    const size_t quarter = below(kit, 4);
    pack((char *)out.data + quarter * 64, rows, n);
    for (size_t t = 0; t < dwords; t++)
        for (size_t byte = 0; byte < 256; byte += bf16 ? 2 : 4) {
            const unsigned char *at = out.data + t * 256 + byte;
            if (byte / 64 != quarter) {
                ck_assert_msg(at[0] == 0x77, "%s: another quarter was written", kit->name);
                continue;
            }
            const size_t r = byte % 64 / 4;
            if (bf16) {
                const uint16_t expected = tw_bf16_from_float(values[r * padded + 2 * t + byte % 4 / 2]);
                ck_assert_msg(memcmp(at, &expected, 2) == 0, "%s, pack %s, %zu columns", kit->name, traits->name, n);
            } else {
                float got;
                memcpy(&got, at, 4);
                ck_assert_msg(got == values[r * padded + t], "%s, pack %s, %zu columns", kit->name, traits->name, n);
            }
        }
    for (size_t r = 0; r < 16; r++) free((void *)(size_t)rows[r]);
    free(values);
    space_free(&out, kit, "pack");
}

/* The row stands at the very end of its memory: behind it nothing may be read. */
static void check_fixed(struct kit *kit, enum tw_type type, const uint8_t *row, size_t row_bytes, const float *x,
                        size_t n, double sum, double size) {
    struct space fixed = space_make(tw_cpu_fixed_bytes(n), 0);
    uint8_t *last = malloc(row_bytes);
    memcpy(last, row, row_bytes);
    kit->common->fix[type](fixed.data, x, n);
    near(kit, kit->common->fixed_dot[type](last, fixed.data, n), sum, size * 1e-6 + 1e-12, "fixed point", n);
    free(last);
    space_free(&fixed, kit, "fixed point");
}

START_TEST(stored_rows) {
    struct kit kit;
    if (!kit_of(&kit, _i, 1)) return;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int round = 0; round < 6; round++) {
            const struct tw_type_traits *traits = tw_type_traits(types[t]);
            const size_t n =
                traits->block_values == 1 ? 1 + below(&kit, 300) : traits->block_values * (1 + below(&kit, 7));
            const size_t row_bytes = tw_type_row_bytes(traits, n), padded = tw_round_up(n, 32);
            const size_t off = traits->block_values == 1 ? 4 * below(&kit, 8) : 2 * below(&kit, 8);
            uint8_t *memory = malloc(row_bytes + off + 64), *row = memory + off;
            float *values = malloc(n * sizeof *values), *x = calloc(padded, sizeof *x);
            tw_random_row(row, types[t], n, 1, &kit.random);
            traits->dequantise(values, row, n);
            double sum = 0, size = 0;
            for (size_t i = 0; i < n; i++) {
                x[i] = tw_random_float(&kit.random);
                sum += (double)values[i] * x[i];
                size += fabs((double)values[i] * x[i]);
            }
            ck_assert_ptr_nonnull(kit.common->dot[types[t]]);
            near(&kit, kit.common->dot[types[t]](row, x, n), sum, size * 1e-6 + 1e-12, traits->name, n);
            if (kit.common->fix[types[t]]) check_fixed(&kit, types[t], row, row_bytes, x, n, sum, size);
            struct space out = space_make(n * sizeof(float), 4 * below(&kit, 4));
            kit.common->expand[types[t]]((float *)(void *)out.data, row, n);
            ck_assert_msg(memcmp(out.data, values, out.bytes) == 0, "%s: %s expands to other bits", kit.name,
                          traits->name);
            space_free(&out, &kit, "expand");
            if (kit.common->pack_f32[types[t]]) check_pack(&kit, kit.common->pack_f32[types[t]], false, types[t], n);
            if (kit.common->pack_bf16[types[t]]) check_pack(&kit, kit.common->pack_bf16[types[t]], true, types[t], n);
            free(memory);
            free(values);
            free(x);
        }
}
END_TEST

/* ---- rows of activations -------------------------------------------------------------------------------------------
 */

static double silu(double x) { return x / (1 + exp(-x)); }
static double gelu(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

START_TEST(row_kernels) {
    struct kit kit;
    if (!kit_of(&kit, _i, 2)) return;
    for (int round = 0; round < N_ROUNDS; round++) {
        const size_t n = 1 + below(&kit, 4), width = 1 + below(&kit, 150), e = size_of(&kit), off = e * below(&kit, 8);
        struct space in = space_make(n * 2 * width * e, off), out = space_make(n * width * e, off);
        struct space real = space_make(n * width * sizeof(float), 4 * below(&kit, 8));
        struct space sum = space_make(n * width * sizeof(float), 0);
        float *weight = malloc(width * sizeof *weight), *floats = (float *)(void *)real.data;
        float *sums = (float *)(void *)sum.data;
        const float scale = (float[]){1e-4f, 1, 30}[below(&kit, 3)];
        fill(&kit, in.data, n * 2 * width, scale);
        for (size_t i = 0; i < width; i++) weight[i] = tw_random_float(&kit.random);

        for (int form = 0; form < 3; form++) { /* elements, floats, added */
            for (size_t i = 0; i < n * width; i++) {
                floats[i] = get(&kit, in.data, i);
                sums[i] = 0.25f;
            }
            if (form == 0) kit.kernels->norm(out.data, in.data, weight, n, width, 1e-5f);
            if (form == 1) kit.kernels->norm_float(out.data, floats, weight, n, width, 1e-5f);
            if (form == 2) kit.kernels->add_normed(sums, floats, weight, n, width, 1e-5f);
            for (size_t r = 0; r < n; r++) {
                double square = 0;
                for (size_t i = 0; i < width; i++) square += (double)floats[r * width + i] * floats[r * width + i];
                const double factor = 1 / sqrt(square / (double)width + 1e-5f);
                for (size_t i = 0; i < width; i++) {
                    const size_t at = r * width + i;
                    const double expected = floats[at] * factor * weight[i];
                    if (form == 2)
                        near(&kit, sums[at], expected + 0.25, 1e-5 * (1 + fabs(expected)), "add_normed", at);
                    else
                        near(&kit, get(&kit, out.data, at), expected, slack(&kit, fabs(expected)) + 1e-7, "norm", at);
                }
            }
        }
        for (int a = 0; a < 2; a++) {
            const enum tw_activation activation = a ? TW_ACTIVATION_GELU_TANH : TW_ACTIVATION_SILU;
            kit.kernels->activate(out.data, in.data, n, width, activation);
            for (size_t r = 0; r < n; r++)
                for (size_t i = 0; i < width; i++) {
                    const double gate = get(&kit, in.data, r * 2 * width + i),
                                 up = get(&kit, in.data, (r * 2 + 1) * width + i);
                    const double expected = (a ? gelu(gate) : silu(gate)) * up;
                    near(&kit, get(&kit, out.data, r * width + i), expected,
                         slack(&kit, fabs(expected)) + 1e-6 * fabs(gate * up), "activate", i);
                }
        }
        kit.kernels->to_float(floats, in.data, n * width);
        kit.kernels->from_float(out.data, floats, n * width, 0.5f);
        for (size_t i = 0; i < n * width; i++) {
            ck_assert(floats[i] == get(&kit, in.data, i));
            ck_assert(get(&kit, out.data, i) == 0.5f * floats[i]);
        }
        free(weight);
        space_free(&in, &kit, "activate in");
        space_free(&out, &kit, "rows");
        space_free(&real, &kit, "to_float");
        space_free(&sum, &kit, "add_normed");
    }
}
END_TEST

/* ---- attention ------------------------------------------------------------------------------------------------------
 */

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

/* ---- layer ends and the log
 * ------------------------------------------------------------------------------------------ */

START_TEST(folds) {
    struct kit kit;
    if (!kit_of(&kit, _i, 5)) return;
    for (int round = 0; round < 200; round++) {
        float logits[3 * 64], score[64] = {0}, maximum = -INFINITY, sum = 0;
        const size_t first = below(&kit, 150), end = first + 1 + below(&kit, 192 - first);
        const float size = (float[]){1, 50, 1000}[below(&kit, 3)], scale = 0.7f;
        for (size_t i = 0; i < 192; i++) logits[i] = i < first || i >= end ? NAN : size * tw_random_float(&kit.random);
        double peak = -INFINITY, total = 0;
        for (size_t i = first; i < end; i++) peak = fmax(peak, (double)(logits[i] * scale));
        for (size_t i = first; i < end; i++) total += exp2((double)(logits[i] * scale) - peak);
        for (size_t block = 0; block < 192; block += 64)
            kit.common->fold(&maximum, &sum, logits + block, block, first, end, scale);
        near(&kit, maximum, peak, 1e-6 * fabs(peak), "fold maximum", (size_t)round);
        near(&kit, sum, total, 1e-5 * total, "fold sum", (size_t)round);
        const size_t block = first / 64 * 64;
        for (int twice = 0; twice < 2; twice++)
            kit.common->weigh(score, logits + block, block, first, end, scale, maximum, sum);
        for (size_t i = 0; i < 64; i++) {
            const bool inside = block + i >= first && block + i < end;
            const double expected = inside ? 2 * exp2((double)(logits[block + i] * scale) - peak) / total : 0;
            near(&kit, score[i], expected, inside ? 3e-6 * size * expected + 1e-30 : 0, "weigh", i);
        }
    }
    for (size_t n = 0; n < 200; n++) {
        struct space space = space_make(n * sizeof(float), 4);
        float *row = (float *)(void *)space.data;
        double sum = 0;
        for (size_t i = 0; i < n; i++) sum += row[i] = (float)tw_random_unit(&kit.random);
        near(&kit, kit.common->sum(row, n), sum, 1e-5 * (1 + sum), "sum", n);
        kit.common->scale(row, n, 2);
        near(&kit, kit.common->sum(row, n), 2 * sum, 2e-5 * (1 + sum), "scale", n);
        space_free(&space, &kit, "scale");
    }
}
END_TEST

static const float *sorted_row;
static int by_weight(const void *a, const void *b) {
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    if (sorted_row[i] != sorted_row[j]) return sorted_row[i] < sorted_row[j] ? 1 : -1;
    return i < j ? -1 : i > j;
}

START_TEST(greatest) {
    struct kit kit;
    if (!kit_of(&kit, _i, 6)) return;
    for (int round = 0; round < 300; round++) {
        static const size_t ks[] = {1, 2, 8, 63, 64, 65, 100, 300};
        const size_t k = ks[below(&kit, 8)];
        size_t n = below(&kit, 4) ? below(&kit, 3000) : k + below(&kit, 3) - 1;
        const size_t kind = below(&kit, 5);
        float *row = calloc(n + 1, sizeof *row);
        int32_t *order = calloc(n + 1, sizeof *order);
        for (size_t i = 0; i < n; i++) {
            const double u = tw_random_unit(&kit.random);
            row[i] = kind == 0   ? (float)u
                     : kind == 1 ? 0.01f                          /* all equal */
                     : kind == 2 ? (float)exp(-60 * u)            /* many magnitudes, as softmax has */
                     : kind == 3 ? (float)below(&kit, 5) * 0.125f /* many ties, zeros too */
                                 : (u < 0.9 ? 0 : (float)u);      /* mostly zero */
            order[i] = (int32_t)i;
        }
        sorted_row = row;
        qsort(order, n, sizeof *order, by_weight);
        struct space weight = space_make(k * 4, 0), index = space_make(k * 4, 0),
                     work = space_make(tw_cpu_top_bytes(k), 0);
        const size_t found =
            kit.common->top((float *)(void *)weight.data, (int32_t *)(void *)index.data, row, n, k, work.data);
        ck_assert_uint_eq(found, n < k ? n : k);
        for (size_t i = 0; i < found; i++) {
            ck_assert_msg(((int32_t *)(void *)index.data)[i] == order[i],
                          "%s, seed %llu, kind %zu, %zu of %zu: rank %zu is %d, not %d", kit.name,
                          (unsigned long long)kit.seed, kind, k, n, i, ((int32_t *)(void *)index.data)[i], order[i]);
            ck_assert(((float *)(void *)weight.data)[i] == row[order[i]]);
        }
        free(row);
        free(order);
        space_free(&weight, &kit, "top weights");
        space_free(&index, &kit, "top indices");
        space_free(&work, &kit, "top workspace");
    }
}
END_TEST

Suite *tw_suite_cpu_kernels(void);
Suite *tw_suite_cpu_kernels(void) {
    Suite *suite = suite_create("cpu kernels");
    TCase *tcase = tcase_create("kernels");
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, stored_rows, 0, N_KITS);
    tcase_add_loop_test(tcase, row_kernels, 0, N_KITS);
    tcase_add_loop_test(tcase, attention, 0, N_KITS);
    tcase_add_loop_test(tcase, rotation_kernel, 0, N_KITS);
    tcase_add_loop_test(tcase, folds, 0, N_KITS);
    tcase_add_loop_test(tcase, greatest, 0, N_KITS);
    suite_add_tcase(suite, tcase);
    return suite;
}
