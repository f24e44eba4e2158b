/* Steps that both orders of prefill share. Private to prefill/. */
#ifndef TW_ENGINE_PREFILL_STEPS_H
#define TW_ENGINE_PREFILL_STEPS_H

#include "engine/prefill/schedule.h"

/* Embeds n tokens from first_position on into the bridge's rows from first_row on. */
tw_status tw_prefill_embed(struct tw_prefill *prefill, size_t first_row, size_t first_position, size_t n,
                           struct tw_error *err);
/* One layer over one chunk: append, attend, finish. */
tw_status tw_prefill_chunk(struct tw_prefill *prefill, size_t l, size_t first_row, size_t first_position, size_t n,
                           struct tw_kv *kv, struct tw_error *err);
/*
 * The end of layer l: selects among the rows of kv and gathers them into the empty cache[l], with room for `reserve`
 * more. With `last`, the watch is told. Time and phase are booked.
 */
tw_status tw_prefill_compress(struct tw_prefill *prefill, size_t l, const struct tw_kv *kv, size_t reserve, bool last,
                              struct tw_error *err);
/* Tells the watch about a layer that keeps everything. */
tw_status tw_prefill_keep(struct tw_prefill *prefill, size_t l, const struct tw_kv *kv, struct tw_error *err);
/* A KV with `capacity` rows in every head. */
tw_status tw_prefill_kv(struct tw_prefill *prefill, struct tw_kv *kv, size_t capacity, bool with_positions,
                        enum tw_category category, size_t l, struct tw_error *err);
/* Keeps the bridge's row of the last position, and releases everything private. */
tw_status tw_prefill_last_row(struct tw_prefill *prefill, size_t row, struct tw_error *err);
void tw_prefill_release_private(struct tw_prefill *prefill);

#endif
