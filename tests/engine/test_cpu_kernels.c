/*
 * The kernels of the cpu backend, but for attention, against plain loops in float64, at every instruction set that the
 * machine has: random shapes, tails and alignments, ties, masked rows; guard bytes around every output.
 */
#include "tests/engine/cpu_kit.h"

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

/*
 * Several rows with gaps between them, the last at the very end of its memory: behind it nothing may be read. Alone a
 * row gives the same bits. `greatest` makes every number as large as its place in whole numbers allows. A number that
 * is none makes every row's product none.
 */
static void check_fixed(struct kit *kit, enum tw_type type, size_t n, bool greatest) {
    const struct tw_type_traits *traits = tw_type_traits(type);
    const size_t bytes = tw_type_row_bytes(traits, n), gap = 2 * below(kit, 20), n_rows = 1 + below(kit, 9);
    const size_t last = (n_rows - 1) * (bytes + gap);
    struct space fixed = space_make(tw_cpu_fixed_bytes(n), 0), out = space_make(n_rows * sizeof(float), 4);
    float *x = calloc(tw_round_up(n, 32), sizeof *x), *values = malloc(n * sizeof *values), alone;
    uint8_t *rows = calloc(1, last + bytes);
    for (size_t i = 0; i < n; i++) x[i] = greatest ? -0x1.fffffep3f : tw_random_float(&kit->random);
    for (size_t r = 0; r < n_rows; r++) {
        uint8_t *row = rows + r * (bytes + gap);
        tw_random_row(row, type, n, 1, &kit->random);
        for (size_t b = 0; greatest && b < n / traits->block_values; b++) {
            uint8_t *block = row + b * traits->block_bytes, *end = block + traits->block_bytes;
            const size_t stored = traits->block_values * (type == TW_TYPE_Q8_0 ? 8 : 4) / 8;
            if (type == TW_TYPE_Q6_K) /* -32 or 31 */
                memset(block, below(kit, 2) ? 0 : 0xff, 192);
            else
                memset(end - stored, type == TW_TYPE_Q8_0 ? 0x7f : 0xff, stored);
        }
    }
    kit->common->fix[type](fixed.data, x, n);
    kit->common->fixed_rows[type]((float *)(void *)out.data, rows, bytes + gap, n_rows, fixed.data, n);
    for (size_t r = 0; r < n_rows; r++) {
        double sum = 0, size = 0;
        const uint8_t *row = rows + r * (bytes + gap);
        const float got = ((float *)(void *)out.data)[r];
        traits->dequantise(values, row, n);
        for (size_t i = 0; i < n; i++) {
            sum += (double)values[i] * x[i];
            size += fabs((double)values[i] * x[i]);
        }
        near(kit, got, sum, size * 1e-6 + 1e-12, "fixed point", r);
        kit->common->fixed_rows[type](&alone, row, bytes, 1, fixed.data, n);
        ck_assert_msg(memcmp(&alone, &got, sizeof got) == 0, "%s, %s: row %zu of %zu differs alone", kit->name,
                      traits->name, r, n_rows);
    }
    x[below(kit, n)] = (float[]){NAN, INFINITY, -INFINITY}[below(kit, 3)];
    kit->common->fix[type](fixed.data, x, n);
    kit->common->fixed_rows[type]((float *)(void *)out.data, rows, bytes + gap, n_rows, fixed.data, n);
    for (size_t r = 0; r < n_rows; r++)
        ck_assert_msg(isnan(((float *)(void *)out.data)[r]), "%s, %s: row %zu hides what is no number", kit->name,
                      traits->name, r);
    free(rows);
    free(x);
    free(values);
    space_free(&fixed, kit, "fixed point");
    space_free(&out, kit, "rows in fixed point");
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
            if (kit.common->fix[types[t]])
                check_fixed(&kit, types[t], traits->block_values * (1 + below(&kit, round ? 40 : 300)), round % 3 == 2);
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
    tcase_add_loop_test(tcase, folds, 0, N_KITS);
    tcase_add_loop_test(tcase, greatest, 0, N_KITS);
    suite_add_tcase(suite, tcase);
    return suite;
}
