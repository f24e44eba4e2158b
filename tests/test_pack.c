/* Chunks as they are packed: zstd itself takes them apart, and notices what is not as it was. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "base/random.h"
#include "tests/support.h"
#include "traces/frame.h"
#include "traces/pack.h"
#include "traces/shuffle.h"

static struct tw_random random_state;

enum content { NOISE, CONSTANT, RUNS, PERIOD, SMALL, N_CONTENTS };

static void fill(uint8_t *bytes, size_t n, enum content content) {
    const uint8_t first = (uint8_t)tw_random_next(&random_state);
    for (size_t i = 0; i < n; i++) switch (content) {
        case CONSTANT: bytes[i] = first; break;
        case RUNS: bytes[i] = i && tw_random_below(&random_state, 40) ? bytes[i - 1] : (uint8_t)(first + i); break;
        case PERIOD: bytes[i] = i < 64 ? (uint8_t)tw_random_next(&random_state) : bytes[i - 64]; break;
        case SMALL: bytes[i] = (uint8_t)tw_random_below(&random_state, 3); break;
        default: bytes[i] = (uint8_t)tw_random_next(&random_state);
        }
}

static uint8_t *copy_of(const uint8_t *bytes, size_t n) {
    uint8_t *const copy = malloc(n ? n : 1); /* of exactly that size: for AddressSanitizer */
    memcpy(copy, bytes, n);
    return copy;
}

/* What a reader gets; NULL if it refuses. Free it. */
static uint8_t *unpacked(const uint8_t *packed, size_t packed_size, size_t n) {
    uint8_t *const plain = malloc(n + 1), *const copy = copy_of(packed, packed_size);
    const size_t got = ZSTD_decompress(plain, n, copy, packed_size);
    free(copy);
    if (got == n) return plain;
    free(plain);
    return NULL;
}

/* Every plane of every kind, sizes around those of a block of a frame; padded or not. */
START_TEST(planes_come_back) {
    static const size_t sizes[] = {1, 2, 3, 4, 7, 31, 32, 33, 64, 255, 256, 4096, 9216, 131071, 131072, 131073, 300000};
    tw_random_init(&random_state, tw_test_seed(), 1);
    struct tw_error err = {0};
    struct tw_team *team;
    ck_assert_int_eq(tw_team_create(&team, 1, &err), TW_OK);
    struct tw_pack *const pack = tw_pack_new(team);
    ck_assert_ptr_nonnull(pack);
    struct tw_pack_job job = {0};
    for (int round = 0; round < 1500; round++) {
        const size_t n = sizes[tw_random_below(&random_state, round % 16 ? 13 : sizeof sizes / sizeof *sizes)];
        const size_t size = round % 4 == 3 ? 4 : 1 + (size_t)round % 4, bytes = n * size;
        uint8_t *const planes = malloc(bytes), *const elements = malloc(bytes);
        for (size_t b = 0; b < size; b++)
            fill(planes + b * n, n, (enum content)tw_random_below(&random_state, N_CONTENTS));
        tw_unshuffle(elements, planes, n, 0, n, size);
        job.elements = elements;
        job.n_elements = n;
        job.element_size = size;
        job.n_noisy = tw_random_below(&random_state, size + 1);
        job.matches = tw_random_below(&random_state, 2);
        job.pad = tw_random_below(&random_state, 4) == 0;
        ck_assert_int_eq(tw_pack_run(pack, &job, 1, &err), TW_OK);
        ck_assert_uint_le(job.packed_size, tw_pack_bound(bytes));
        ck_assert(!job.pad || job.packed_size == tw_pack_bound(bytes));
        ck_assert_uint_eq(ZSTD_getFrameContentSize(job.packed, job.packed_size), bytes);
        uint8_t *const back = unpacked(job.packed, job.packed_size, bytes);
        ck_assert_msg(back && memcmp(back, planes, bytes) == 0, "round %d: %zu elements of %zu, %zu of them noise, %d",
                      round, n, size, job.n_noisy, job.matches);
        free(back);
        free(planes);
        free(elements);
    }
    tw_pack_job_release(&job);
    tw_pack_free(pack);
    tw_team_free(team);
}
END_TEST

START_TEST(nothing_is_a_frame_too) {
    uint8_t bytes[64];
    struct tw_frame frame;
    tw_frame_begin(&frame, bytes, 0);
    tw_frame_end(&frame, bytes, 0);
    ck_assert_uint_le(frame.size, tw_frame_bound(0));
    uint8_t *const back = unpacked(bytes, frame.size, 0);
    ck_assert_ptr_nonnull(back);
    free(back);
}
END_TEST

/* A stored byte that has changed is a fault of the checksum alone. */
START_TEST(flipped_bits_are_noticed) {
    enum { N = 1000 };
    tw_random_init(&random_state, tw_test_seed(), 2);
    for (size_t n = 0; n < N; n += n < 70 ? 1 : 93) {
        uint8_t content[N], bytes[N + 64];
        ck_assert_uint_le(tw_frame_bound(n), sizeof bytes);
        fill(content, n, NOISE);
        struct tw_frame frame;
        tw_frame_begin(&frame, bytes, n);
        tw_frame_put_stored(&frame, content, n);
        tw_frame_end(&frame, content, n);
        uint8_t *back = unpacked(bytes, frame.size, n);
        ck_assert_msg(back && memcmp(back, content, n) == 0, "%zu bytes", n);
        free(back);
        for (int i = 0; i < 20; i++) {
            const size_t at = 9 + tw_random_below(&random_state, frame.size - 9),
                         bit = tw_random_below(&random_state, 8);
            bytes[at] ^= (uint8_t)(1u << bit);
            back = unpacked(bytes, frame.size, n);
            ck_assert_msg(!back, "%zu bytes: bit %zu of byte %zu", n, bit, at);
            bytes[at] ^= (uint8_t)(1u << bit);
        }
    }
}
END_TEST

/* Many jobs, one and many threads: the same bytes. */
START_TEST(threads_change_nothing) {
    enum { N_JOBS = 40, N = 2000 };
    static uint32_t elements[N_JOBS][N];
    static struct tw_pack_job jobs[2][N_JOBS];
    struct tw_error err = {0};
    tw_random_init(&random_state, tw_test_seed(), 3);
    for (int i = 0; i < N_JOBS; i++) fill((uint8_t *)elements[i], sizeof elements[i], (enum content)(i % N_CONTENTS));
    for (int t = 0; t < 2; t++) {
        struct tw_team *team;
        ck_assert_int_eq(tw_team_create(&team, t ? 4 : 1, &err), TW_OK);
        struct tw_pack *const pack = tw_pack_new(team);
        for (int i = 0; i < N_JOBS; i++)
            jobs[t][i] = (struct tw_pack_job){
                .elements = elements[i], .n_elements = N, .element_size = 4, .n_noisy = 1, .matches = i % 2};
        for (int again = 0; again < 2; again++) ck_assert_int_eq(tw_pack_run(pack, jobs[t], N_JOBS, &err), TW_OK);
        tw_pack_free(pack);
        tw_team_free(team);
    }
    for (int i = 0; i < N_JOBS; i++) {
        ck_assert_uint_eq(jobs[0][i].packed_size, jobs[1][i].packed_size);
        ck_assert_mem_eq(jobs[0][i].packed, jobs[1][i].packed, jobs[0][i].packed_size);
        for (int t = 0; t < 2; t++) tw_pack_job_release(&jobs[t][i]);
    }
}
END_TEST

Suite *tw_suite_pack(void);
Suite *tw_suite_pack(void) {
    Suite *suite = suite_create("pack");
    TCase *tcase = tcase_create("pack");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, planes_come_back);
    tcase_add_test(tcase, nothing_is_a_frame_too);
    tcase_add_test(tcase, flipped_bits_are_noticed);
    tcase_add_test(tcase, threads_change_nothing);
    suite_add_tcase(suite, tcase);
    return suite;
}
