/*
 * A pull reader for JSON from outside: allocates nothing, keeps integers exact, sees repeated names, and checks
 * everything that it passes (grammar, UTF-8, depth). For large or hostile documents; small ones are cJSON's.
 *
 *     struct tw_json_reader reader = tw_json_reader(text);
 *     struct tw_view name;
 *     tw_json_enter(&reader, '{');
 *     while (tw_json_next_member(&reader, &name))
 *         if (tw_view_equal(name, TW_VIEW("size"))) tw_json_read_u64(&reader, &size);
 *         else tw_json_skip(&reader);
 *     tw_json_finish(&reader);
 *     if (reader.fault) ... "%s at byte %zu", reader.fault, reader.fault_at
 *
 * After a fault every call returns false and changes nothing, so that one check at the end is enough.
 */
#ifndef TW_BASE_JSON_READ_H
#define TW_BASE_JSON_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/view.h"

enum { TW_JSON_DEPTH_MAX = 256 };

struct tw_json_reader {
    const char *start, *at, *end;
    const char *fault; /* NULL: none so far; otherwise a phrase: "expected a string" */
    size_t fault_at;   /* byte */
    unsigned depth;
    char open[TW_JSON_DEPTH_MAX]; /* [depth] '{' or '[' */
    bool first;                   /* no member or element of the innermost container has been read */
};

struct tw_json_reader tw_json_reader(struct tw_view text);

/* The first byte of the value that comes next: '{', '[', '"', '-', a digit, 't', 'f', 'n'; 0 at the end or a fault. */
char tw_json_peek(struct tw_json_reader *reader);

/* Enters an object ('{') or array ('['). */
bool tw_json_enter(struct tw_json_reader *reader, char kind);
/*
 * Whether the innermost container goes on; leaves it when it does not. `name` is what stands between the quotes,
 * escapes as they are. The value must be read, entered or skipped before the next call.
 */
bool tw_json_next_member(struct tw_json_reader *reader, struct tw_view *name);
bool tw_json_next_element(struct tw_json_reader *reader);

/* What stands between the quotes: valid UTF-8, escapes as they are (there are some where it holds a backslash). */
bool tw_json_read_string(struct tw_json_reader *reader, struct tw_view *raw);
/* A whole number from 0 to 2^64-1 without sign, fraction or exponent. */
bool tw_json_read_u64(struct tw_json_reader *reader, uint64_t *value);
/* Passes over any value, checking it. */
bool tw_json_skip(struct tw_json_reader *reader);
/* Nothing but white space may follow. */
bool tw_json_finish(struct tw_json_reader *reader);

/* Notes a fault of the caller's own at the reader's place; always false. */
bool tw_json_refuse(struct tw_json_reader *reader, const char *fault);

#endif
