/*
 * Two-pass streaming compression (spec: prefill; TideKV, section 4): scores of a layer's rows, block by block, pooled
 * along the sequence, without a buffer of S scores.
 *
 * The first pass is the backend's `observe`; the second calls `score` for one block of keys after another. Pooling
 * needs neighbours across block edges: the last `kernel` - 1 raw scores are carried along (the halo). What comes out
 * does not depend on the block size, to the bit. A backend that ranks scores itself does both, and only what is best
 * comes to the host.
 */
#ifndef TW_ENGINE_PREFILL_COMPRESS_H
#define TW_ENGINE_PREFILL_COMPRESS_H

#include "engine/prefill/selector.h"

/*
 * Takes the pooled scores of rows [first, first + n): score [n_kv_heads][n], -INFINITY beyond a head's scored rows.
 * Blocks come in ascending order without gaps.
 */
typedef tw_status tw_take_scores_fn(void *sink, size_t first, size_t n, const float *score, struct tw_error *err);

/*
 * Streams the scores of rows [0, n_scored[g]) of every head. TW_SCORE_ATTENTION runs `observe` first. Memory:
 * n_kv_heads * (3 * block + 3 * kernel) floats, COMPRESSION.
 */
tw_status tw_compress_scores(const struct tw_selection_context *context, size_t l, const struct tw_kv *kv,
                             struct tw_observation *observation, enum tw_score_kind kind, const double *key_mean,
                             struct tw_pooling pooling, const size_t *n_scored, tw_take_scores_fn *take, void *sink,
                             struct tw_error *err);

/*
 * Where the backend ranks itself (context->ranks): `observe` where attention is scored, then `rank` with the context's
 * block. `best` as there.
 */
tw_status tw_compress_rank(const struct tw_selection_context *context, size_t l, const struct tw_kv *kv,
                           struct tw_observation *observation, struct tw_ranking ranking, struct tw_scored *best,
                           struct tw_error *err);

/*
 * The best n_best[g] of the first n_scored[g] rows of each head, and after them the head's last rows from n_scored[g]
 * on (the window; none when n_scored is the length).
 */
tw_status tw_compress_best(struct tw_kept *kept, const struct tw_selection_context *context, size_t l,
                           const struct tw_kv *kv, struct tw_observation *observation, enum tw_score_kind kind,
                           const double *key_mean, struct tw_pooling pooling, const size_t *n_scored,
                           const size_t *n_best, struct tw_error *err);

/*
 * The rule of snapkv and its kin: of every head of kv the `budget` rows that are best by pooled attention of the
 * observation's queries, whose own rows, the last ones, are always among them. Everything where no head holds more.
 */
tw_status tw_compress_windowed(struct tw_kept *kept, const struct tw_selection_context *context, size_t l,
                               const struct tw_kv *kv, struct tw_observation *observation, struct tw_pooling pooling,
                               size_t budget, struct tw_error *err);

/* The options that attention selectors share. */
struct tw_pooling_options {
    uint64_t kernel;
    unsigned pool; /* avg, max */
};
/* Rows of an option table for a struct that begins with struct tw_pooling_options. */
#define TW_POOLING_OPTION_ROWS                                                                                         \
    {.name = "kernel",                                                                                                 \
     .type = TW_OPTION_U64,                                                                                            \
     .offset = offsetof(struct tw_pooling_options, kernel),                                                            \
     .default_value = "5",                                                                                             \
     .minimum = 1,                                                                                                     \
     .maximum = 1023,                                                                                                  \
     .value_name = "N",                                                                                                \
     .help = "width of the pooling, odd"},                                                                             \
    {                                                                                                                  \
        .name = "pool", .type = TW_OPTION_CHOICE, .offset = offsetof(struct tw_pooling_options, pool),                 \
        .default_value = "avg", .choices = "avg|max", .help = "average or maximum"                                     \
    }
tw_status tw_pooling_of(struct tw_pooling *pooling, const struct tw_pooling_options *options, const char *selector,
                        struct tw_error *err);

#endif
