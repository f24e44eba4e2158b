/* The order of a row of a trace among equal weights. */
#ifndef TW_ENGINE_TIES_H
#define TW_ENGINE_TIES_H

#include <stddef.h>
#include <stdint.h>

/*
 * Equal weights stand in ascending order of position; rounding to half makes more of them equal, so the runs of what
 * will be stored are sorted again: by their positions alone, since their weights will be the same.
 *
 *   position [top_k]        in/out; padding, at the end, is -1 and stays there
 *   weight   [top_k]        descending, 0 where padded
 *   half, disorder [top_k]  space
 */
void tw_order_stored_ties(int32_t *restrict position, const float *restrict weight, uint16_t *restrict half,
                          uint8_t *restrict disorder, size_t top_k);

#endif
