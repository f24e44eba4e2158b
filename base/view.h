/* A view of bytes that somebody else owns: not terminated, may hold any byte, NUL included. */
#ifndef TW_BASE_VIEW_H
#define TW_BASE_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct tw_view {
    const char *data; /* may be NULL when size is 0 */
    size_t size;      /* bytes */
};

#define TW_VIEW(literal) ((struct tw_view){(literal), sizeof(literal) - 1})

static inline struct tw_view tw_view_of(const char *terminated) {
    return (struct tw_view){terminated, terminated ? strlen(terminated) : 0};
}

static inline bool tw_view_equal(struct tw_view a, struct tw_view b) {
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

static inline bool tw_view_starts_with(struct tw_view text, struct tw_view prefix) {
    return text.size >= prefix.size && (prefix.size == 0 || memcmp(text.data, prefix.data, prefix.size) == 0);
}

#endif
