/*
 * Finding added tokens in a text: markers and user-defined tokens, which are matched before anything else. The leftmost
 * match wins, of those that begin at one byte the longest.
 */
#ifndef TW_ENGINE_TOKENIZER_ADDED_H
#define TW_ENGINE_TOKENIZER_ADDED_H

#include "base/error.h"
#include "engine/tokenizer/spec.h"
#include "engine/tokenizer/tokenizer.h"

struct tw_added_token {
    uint32_t offset, size; /* of its text as written in the file */
    int32_t id;
    bool marker; /* not matched where special tokens are literal */
    bool strip_left, strip_right, single_word;
};

struct tw_added {
    struct tw_added_token *tokens; /* [n] sorted by text */
    size_t n;
    char *text;
    uint32_t first[257]; /* tokens [first[b], first[b + 1]) begin with byte b */
    bool any_text;       /* whether there are any that are matched in literal text */
};

tw_status tw_added_init(struct tw_added *added, const struct tw_tokenizer_spec *spec, struct tw_error *err);
void tw_added_release(struct tw_added *added); /* copes with {0} */

struct tw_added_match {
    size_t begin, end; /* bytes of the text that the token stands for, stripped white space included */
    int32_t id;        /* TW_NO_TOKEN: no match; begin and end are the text's size */
};

/* Where markers are matched: everywhere, or where they lie within one of the spans (ascending, disjoint). */
struct tw_marker_spans {
    bool everywhere;
    const struct tw_byte_span *spans; /* [n] */
    size_t n;
};

/* The first match that begins at or behind `from`. */
struct tw_added_match tw_added_find(const struct tw_added *added, struct tw_view text, size_t from,
                                    const struct tw_marker_spans *where);

/*
 * "<|...|>" and DeepSeek's "<｜...｜>": the markers of chat templates. Files that call them user-defined are wrong:
 * text could then open and close turns.
 */
bool tw_added_looks_like_marker(struct tw_view text);

/* The id of the marker with this text, or TW_NO_TOKEN. */
int32_t tw_added_marker(const struct tw_added *added, struct tw_view text);

#endif
