/*
 * Numbers, sizes, rates and times as people write them on the command line and in study files. The whole text must be
 * consumed: "8pages", "8.5" for an integer, "" and "+" are refused. Every function returns false on a refusal and
 * leaves its result untouched.
 */
#ifndef TW_BASE_PARSE_H
#define TW_BASE_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/view.h"

bool tw_parse_u64(uint64_t *value, struct tw_view text);  /* decimal digits only */
bool tw_parse_i64(int64_t *value, struct tw_view text);   /* an optional minus sign */
bool tw_parse_double(double *value, struct tw_view text); /* finite; a point whatever the locale */
bool tw_parse_size(uint64_t *value, struct tw_view text); /* "4096", "4K", "1.5G": powers of 1024; K M G T, k m g t */
bool tw_parse_rate(double *bytes_per_second, struct tw_view text); /* "25GB/s", "800MB/s": decimal; B KB MB GB TB */
bool tw_parse_time(double *seconds, struct tw_view text); /* "10us", "30ms", "1.5s", "200ns": the unit is required */

/*
 * Splits off what stands before the next `separator` and moves `rest` behind it. Returns false when `rest` is used up;
 * start with the whole text in `rest`. "" gives one empty piece, "a,," gives "a", "" and "".
 */
bool tw_parse_next(struct tw_view *piece, struct tw_view *rest, char separator);

/* "3", "1..64", "8,4,4", "1..4,16": ascending, duplicates once. Free with free(). Refuses more than 2^20 values. */
bool tw_parse_u64_list(uint64_t **values, size_t *n_values, struct tw_view text);

/* How far two names are apart (Damerau-Levenshtein, adjacent transpositions), for "did you mean". */
size_t tw_parse_distance(const char *a, const char *b);

#endif
