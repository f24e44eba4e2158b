/*
 * The CUDA backend's memory where there is no device: the caching allocator against an oracle, and the dry backend in
 * the image of `cuda` against the backend itself, byte for byte.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/random.h"
#include "engine/backend/cuda/pool.h"
#include "engine/engine.h"
#include "tests/engine/backend_run.h"
#include "tests/engine/tiny.h"
#include "tests/support.h"

Suite *tw_suite_cuda_memory(void);

/* ---- the allocator
 * ---------------------------------------------------------------------------------------------------
 */

struct driver {
    size_t left; /* bytes that there still are */
    size_t n_live;
    struct {
        char *data;
        size_t bytes;
    } segments[256];
};

static void *take(void *context, size_t bytes) {
    struct driver *const driver = context;
    if (bytes > driver->left) return NULL;
    driver->left -= bytes;
    for (size_t i = 0;; i++) {
        ck_assert_uint_lt(i, 256);
        if (driver->segments[i].data) continue;
        driver->segments[i].data = aligned_alloc(512, bytes);
        driver->segments[i].bytes = bytes;
        driver->n_live++;
        return driver->segments[i].data;
    }
}

static void give(void *context, void *data) {
    struct driver *const driver = context;
    size_t i = 0;
    while (driver->segments[i].data != data) ck_assert_uint_lt(++i, 256);
    driver->left += driver->segments[i].bytes;
    driver->n_live--;
    free(data);
    driver->segments[i].data = NULL;
}

START_TEST(blocks_never_overlap) {
    enum { N = 60 };
    struct driver driver = {.left = (size_t)200 << 20};
    struct tw_cuda_pool pool = {.context = &driver, .take = take, .give = give};
    struct tw_random random;
    char *data[N] = {NULL};
    size_t bytes[N], held = 0;
    tw_random_init(&random, tw_test_seed() + (uint64_t)_i, 9);
    for (int step = 0; step < 2000; step++) {
        const size_t i = tw_random_below(&random, N);
        if (data[i]) {
            for (size_t b = 0; b < bytes[i]; b += 4096) ck_assert_int_eq(data[i][b], (char)i);
            ck_assert_int_eq(data[i][bytes[i] - 1], (char)i);
            tw_cuda_pool_free(&pool, data[i]);
            data[i] = NULL;
            held -= bytes[i];
            continue;
        }
        bytes[i] = 1 + tw_random_below(&random, (size_t)1 << (5 + tw_random_below(&random, 20)));
        data[i] = tw_cuda_pool_allocate(&pool, bytes[i]);
        if (!data[i]) continue; /* the driver has no more: allowed */
        ck_assert_uint_eq((uintptr_t)data[i] % 512, 0);
        for (size_t b = 0; b < bytes[i]; b += 4096) data[i][b] = (char)i;
        data[i][bytes[i] - 1] = (char)i;
        held += bytes[i];
        ck_assert_uint_ge(pool.allocated, held);
        ck_assert_uint_ge(pool.reserved, pool.allocated);
        ck_assert_uint_ge(tw_cuda_pool_splits(&pool), tw_cuda_pool_largest_split(&pool));
    }
    for (size_t i = 0; i < N; i++)
        if (data[i]) tw_cuda_pool_free(&pool, data[i]);
    ck_assert_uint_eq(pool.allocated, 0);
    ck_assert_uint_eq(tw_cuda_pool_splits(&pool), 0); /* all has been joined again */
    tw_cuda_pool_trim(&pool);
    ck_assert_uint_eq(pool.reserved, 0);
    ck_assert_uint_eq(driver.n_live, 0);
    ck_assert_ptr_null(pool.blocks);
}
END_TEST

START_TEST(unused_segments_go_before_failure) {
    struct driver driver = {.left = (size_t)64 << 20};
    struct tw_cuda_pool pool = {.context = &driver, .take = take, .give = give};
    void *const first = tw_cuda_pool_allocate(&pool, (size_t)40 << 20);
    ck_assert_ptr_nonnull(first);
    tw_cuda_pool_free(&pool, first);
    ck_assert_uint_eq(pool.reserved, (size_t)40 << 20);
    void *const second = tw_cuda_pool_allocate(&pool, (size_t)50 << 20);
    ck_assert_ptr_nonnull(second);
    ck_assert_uint_eq(pool.retries, 1);
    ck_assert_ptr_null(tw_cuda_pool_allocate(&pool, (size_t)30 << 20));
    ck_assert_uint_eq(pool.retries, 2);
    tw_cuda_pool_free(&pool, second);
    tw_cuda_pool_trim(&pool);
    ck_assert_uint_eq(driver.n_live, 0);
}
END_TEST

/* A middle block of a segment that comes free is an inactive split. */
START_TEST(splits_are_counted) {
    struct driver driver = {.left = (size_t)64 << 20};
    struct tw_cuda_pool pool = {.context = &driver, .take = take, .give = give};
    void *const a = tw_cuda_pool_allocate(&pool, (size_t)4 << 20);
    void *const b = tw_cuda_pool_allocate(&pool, (size_t)6 << 20);
    void *const c = tw_cuda_pool_allocate(&pool, (size_t)3 << 20);
    ck_assert_uint_eq(pool.reserved, (size_t)20 << 20);
    tw_cuda_pool_free(&pool, b);
    ck_assert_uint_eq(tw_cuda_pool_largest_split(&pool), (size_t)7 << 20); /* what is left behind c */
    ck_assert_uint_eq(tw_cuda_pool_splits(&pool), (size_t)13 << 20);
    tw_cuda_pool_free(&pool, a);
    tw_cuda_pool_free(&pool, c);
    ck_assert_uint_eq(tw_cuda_pool_splits(&pool), 0);
    tw_cuda_pool_trim(&pool);
}
END_TEST

/* ---- the image
 * -------------------------------------------------------------------------------------------------------
 */

static void run_and_read(const struct tw_model *model, const struct tw_engine_options *options,
                         size_t peak[TW_N_PHASES][TW_N_CATEGORIES], size_t *total) {
    struct tw_engine *engine;
    struct tw_error err = {0};
    int32_t *const tokens = tw_tiny_tokens(model, 60, 1);
    ck_assert_msg(tw_engine_open(&engine, model, options, &err) == TW_OK, "%s", err.text);
    ck_assert_msg(tw_engine_prefill(engine, tokens, 60, 3, NULL, NULL, &err) == TW_OK, "%s", err.text);
    ck_assert_msg(tw_engine_decode(engine, tokens[0], NULL, &err) == TW_OK, "%s", err.text);
    memcpy(peak, engine->accountant.peak, sizeof engine->accountant.peak);
    *total = tw_accountant_peak(&engine->accountant);
    tw_engine_free(engine);
    free(tokens);
}

START_TEST(dry_agrees_to_the_byte) {
    static const char *const schedules[] = {"tide", "oneshot", "postprefill", "block"};
    struct tw_model *const model = tw_tiny_model(&tw_tiny_llama, 1);
    struct tw_engine_options options;
    tw_engine_options_init(&options);
    options.schedule = schedules[_i / 2];
    options.budget = strcmp(options.schedule, "oneshot") == 0 ? 0 : 20;
    options.chunk = 24;
    options.block = 16;
    options.backend_options.window = 8;
    options.backend_options.weights = _i % 2 ? TW_WEIGHTS_STREAM : TW_WEIGHTS_MAPPED;
    size_t real[TW_N_PHASES][TW_N_CATEGORIES], dry[TW_N_PHASES][TW_N_CATEGORIES], real_total, dry_total;
    tw_test_cuda_library();
    options.backend = "cuda";
    run_and_read(model, &options, real, &real_total);
    options.backend = "dry";
    options.image = "cuda";
    run_and_read(model, &options, dry, &dry_total);
    for (int phase = 0; phase < TW_N_PHASES; phase++)
        for (int category = 0; category < TW_N_CATEGORIES; category++)
            ck_assert_msg(real[phase][category] == dry[phase][category], "%s, %s, %s: %zu bytes, planned %zu",
                          options.schedule, tw_phase_names[phase], tw_category_names[category], real[phase][category],
                          dry[phase][category]);
    ck_assert_uint_eq(real_total, dry_total);
    tw_tiny_free(model);
}
END_TEST

Suite *tw_suite_cuda_memory(void) {
    Suite *const suite = suite_create("cuda memory");
    TCase *const pool = tcase_create("pool");
    tcase_set_timeout(pool, 60);
    tcase_add_loop_test(pool, blocks_never_overlap, 0, 4);
    tcase_add_test(pool, unused_segments_go_before_failure);
    tcase_add_test(pool, splits_are_counted);
    suite_add_tcase(suite, pool);
    TCase *const image = tcase_create("image");
    tcase_set_timeout(image, 60);
    tcase_add_loop_test(image, dry_agrees_to_the_byte, 0, 8);
    suite_add_tcase(suite, image);
    return suite;
}
