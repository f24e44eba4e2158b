#include "traces/pack.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#define ZSTD_STATIC_LINKING_ONLY /* for one parameter's name; the function that takes it is of the stable interface */
#include <zstd.h>

#include "traces/frame.h"
#include "traces/shuffle.h"

struct tw_pack {
    struct compressor {
        ZSTD_CCtx *matching, *coding; /* tw_pack_job's `matches` or not */
        ZSTD_CCtx *probing;           /* whether noise is noise */
        uint8_t *planes, *middle;     /* a shuffled chunk; what zstd made of some of its planes */
        size_t planes_capacity, middle_capacity;
    } * compressors; /* [the team's threads] */
    struct tw_team *team;
};

static bool set(ZSTD_CCtx *zstd, ZSTD_cParameter parameter, int value) {
    return !ZSTD_isError(ZSTD_CCtx_setParameter(zstd, parameter, value));
}

/* Matches of 7 bytes and more: shorter ones are slow to write and slow to read. */
static ZSTD_CCtx *new_matching(void) {
    ZSTD_CCtx *const zstd = ZSTD_createCCtx();
    if (zstd && set(zstd, ZSTD_c_compressionLevel, TW_PACK_LEVEL) && set(zstd, ZSTD_c_minMatch, 7)) return zstd;
    ZSTD_freeCCtx(zstd);
    return NULL;
}

/* As good as no search for matches (strides of 64 Ki), and then a Huffman code. */
static ZSTD_CCtx *new_coding(void) {
    ZSTD_CCtx *const zstd = new_matching();
    if (zstd && set(zstd, ZSTD_c_hashLog, ZSTD_HASHLOG_MIN) && set(zstd, ZSTD_c_targetLength, 1 << 16)) {
        set(zstd, ZSTD_c_literalCompressionMode, 1); /* always; a zstd without it leaves more as it is */
        return zstd;
    }
    ZSTD_freeCCtx(zstd);
    return NULL;
}

/* Strides of 64, and no code. */
static ZSTD_CCtx *new_probing(void) {
    ZSTD_CCtx *const zstd = new_matching();
    if (zstd && set(zstd, ZSTD_c_targetLength, 64)) return zstd;
    ZSTD_freeCCtx(zstd);
    return NULL;
}

struct tw_pack *tw_pack_new(struct tw_team *team) {
    struct tw_pack *const pack = calloc(1, sizeof *pack);
    if (!pack) return NULL;
    pack->team = team;
    const size_t n_threads = tw_team_threads(team);
    pack->compressors = calloc(n_threads, sizeof *pack->compressors);
    bool made = pack->compressors != NULL;
    for (size_t i = 0; made && i < n_threads; i++) {
        struct compressor *const compressor = &pack->compressors[i];
        made = (compressor->matching = new_matching()) && (compressor->coding = new_coding()) &&
               (compressor->probing = new_probing());
    }
    if (made) return pack;
    tw_pack_free(pack);
    return NULL;
}

void tw_pack_free(struct tw_pack *pack) {
    if (!pack) return;
    for (size_t i = 0; pack->compressors && i < tw_team_threads(pack->team); i++) {
        struct compressor *const compressor = &pack->compressors[i];
        ZSTD_freeCCtx(compressor->matching);
        ZSTD_freeCCtx(compressor->coding);
        ZSTD_freeCCtx(compressor->probing);
        free(compressor->planes);
        free(compressor->middle);
    }
    free(pack->compressors);
    free(pack);
}

void tw_pack_job_release(struct tw_pack_job *job) {
    free(job->packed);
    *job = (struct tw_pack_job){0};
}

enum { SKIPPABLE_HEADER = 8 };

size_t tw_pack_bound(size_t chunk_bytes) { return tw_frame_bound(chunk_bytes) + SKIPPABLE_HEADER; }

/* Decompressors pass over a skippable frame (RFC 8878, 3.1.2). */
static void pad(uint8_t *bytes, size_t size) {
    assert(size >= SKIPPABLE_HEADER);
    const uint32_t header[2] = {ZSTD_MAGIC_SKIPPABLE_START, (uint32_t)(size - SKIPPABLE_HEADER)};
    memcpy(bytes, header, sizeof header);
    memset(bytes + sizeof header, 0, size - sizeof header);
}

static bool reserve(uint8_t **memory, size_t *capacity, size_t needed) {
    if (needed <= *capacity) return true;
    free(*memory);
    *memory = malloc(needed);
    *capacity = *memory ? needed : 0;
    return *memory != NULL;
}

static bool constant(const uint8_t *bytes, size_t n) { return memcmp(bytes, bytes + 1, n - 1) == 0; }

static size_t compress(struct compressor *compressor, ZSTD_CCtx *zstd, const uint8_t *bytes, size_t n) {
    const size_t bound = ZSTD_compressBound(n);
    if (!reserve(&compressor->middle, &compressor->middle_capacity, bound)) return 0;
    const size_t size = ZSTD_compress2(zstd, compressor->middle, bound, bytes, n);
    return ZSTD_isError(size) ? 0 : size;
}

/*
 * The planes [element_size][n] in up to three parts: noise, which is stored; what zstd compresses, in one go; and those
 * that repeat one byte (the high bytes of positions). Noise that repeats itself after all (uniform attention) is none.
 *
 * SmolLM2, 16 steps of a layer, 9 KB a plane (Zen 5, zstd 1.5.4): positions' second bytes take 10 us and 18 % (512
 * tokens) to 39 % (8000) by a code alone, 27 us and 24 to 40 % with matches. Weights' high bytes, 26 us and 37 % with
 * matches, would take 10 us and 65 % without. Whole chunks left to zstd (levels -1 and 1) took 77 us a pair instead of
 * 39, a sixteenth more room, and a fifth more time in reading.
 */
static bool put_planes(struct compressor *compressor, struct tw_frame *frame, const struct tw_pack_job *job,
                       const uint8_t *planes) {
    const size_t n = job->n_elements, n_planes = job->element_size;
    size_t first = 0, last = n_planes;
    while (last > 0 && constant(planes + (last - 1) * n, n)) last--;
    for (; first < last && first < job->n_noisy; first++) {
        const size_t probed = compress(compressor, compressor->probing, planes + first * n, n);
        if (!probed) return false;
        if (probed < n - n / 8) break;
        tw_frame_put_stored(frame, planes + first * n, n);
    }
    if (first < last) {
        const bool matches = job->matches || first < job->n_noisy || last - first > 1;
        ZSTD_CCtx *const zstd = matches ? compressor->matching : compressor->coding;
        const size_t packed = compress(compressor, zstd, planes + first * n, (last - first) * n);
        if (!packed) return false;
        tw_frame_put_frame(frame, compressor->middle, packed);
    }
    for (; last < n_planes; last++) tw_frame_put_run(frame, planes[last * n], n);
    return true;
}

static bool run_job(struct compressor *compressor, struct tw_pack_job *job) {
    const size_t bytes = job->n_elements * job->element_size, bound = tw_pack_bound(bytes);
    if (!reserve(&job->packed, &job->packed_capacity, bound)) return false;
    const uint8_t *plain = job->elements;
    if (job->element_size > 1) {
        if (!reserve(&compressor->planes, &compressor->planes_capacity, bytes)) return false;
        tw_shuffle(compressor->planes, job->elements, job->n_elements, job->element_size);
        plain = compressor->planes;
    }
    struct tw_frame frame;
    tw_frame_begin(&frame, job->packed, bytes);
    if (bytes && !put_planes(compressor, &frame, job, plain)) return false;
    tw_frame_end(&frame, plain, bytes);
    job->packed_size = frame.size;
    if (job->pad) {
        pad(job->packed + job->packed_size, bound - job->packed_size);
        job->packed_size = bound;
    }
    return true;
}

struct run {
    struct tw_pack *pack;
    struct tw_pack_job *jobs;
    _Atomic bool failed;
};

static void run_jobs(void *context, size_t first, size_t end, size_t thread) {
    struct run *const run = context;
    for (size_t i = first; i < end; i++)
        if (!run_job(&run->pack->compressors[thread], &run->jobs[i])) run->failed = true;
}

tw_status tw_pack_run(struct tw_pack *pack, struct tw_pack_job *jobs, size_t n_jobs, struct tw_error *err) {
    struct run run = {.pack = pack, .jobs = jobs};
    tw_team_run(pack->team, n_jobs, 1, run_jobs, &run);
    return run.failed ? TW_FAIL(err, TW_E_MEMORY, "out of memory for compressing %zu chunks", n_jobs) : TW_OK;
}
