/*
 * NFC itself is utf8proc's: its tables, its composition. Cutting the text into stretches that normalise independently,
 * and the canonical order of marks, are done here: utf8proc sorts marks by exchanging neighbours, which takes quadratic
 * time on a megabyte of them, and its result does not tell where it came from.
 */
#include "engine/tokenizer/normalize.h"

#include <stdlib.h>
#include <utf8proc.h>

#include "base/checked.h"

bool tw_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

void tw_normalized_release(struct tw_normalized *n) {
    tw_text_release(&n->text);
    free(n->sources);
    free(n->run);
    *n = (struct tw_normalized){0};
}

static void append(struct tw_normalized *n, const char *data, size_t size, struct tw_source source) {
    if (n->n_sources + size > n->capacity) {
        const size_t capacity = tw_max_size(2 * n->capacity, tw_max_size(n->n_sources + size, 1024));
        struct tw_source *sources = realloc(n->sources, capacity * sizeof *sources);
        if (!sources) {
            n->failed = true;
            return;
        }
        n->sources = sources;
        n->capacity = capacity;
    }
    tw_text_append(&n->text, (struct tw_view){data, size});
    for (size_t i = 0; i < size; i++) n->sources[n->n_sources++] = source;
}

/* As `append`, for bytes that stay what they are: each comes from itself. */
static void append_same(struct tw_normalized *n, const char *data, size_t begin, size_t end) {
    const size_t first = n->n_sources;
    append(n, data + begin, end - begin, (struct tw_source){0, 0});
    if (n->failed) return;
    for (size_t i = begin; i < end; i++)
        n->sources[first + i - begin] = (struct tw_source){(uint32_t)i, (uint32_t)i + 1};
}

/*
 * Whether a character stays as it is under NFC whatever stands in front of it, so that a stretch may end before it. All
 * characters that compose with one before them are marks or Hangul vowels and finals (or Kirat Rai vowels, since
 * Unicode 16); all that decompose have a canonical decomposition. Below U+0300 there are none of either.
 */
static bool is_inert(uint32_t c) {
    if (c < 0x300) return true;
    if ((c >= 0x1160 && c <= 0x11ff) || (c >= 0x16d63 && c <= 0x16d6a)) return false;
    const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)c);
    if (p->category >= UTF8PROC_CATEGORY_MN && p->category <= UTF8PROC_CATEGORY_ME) return false;
    return p->combining_class == 0 && (p->decomp_seqindex == UINT16_MAX || p->decomp_type != 0);
}

static unsigned combining_class(utf8proc_int32_t c) { return (unsigned)utf8proc_get_property(c)->combining_class; }

/* Sorts marks run[begin, end) by their combining class, those of equal class staying in order. */
static bool order_marks(int32_t *run, size_t begin, size_t end) {
    const size_t n = end - begin;
    if (n <= 32) {
        for (size_t i = begin + 1; i < end; i++) {
            const int32_t mark = run[i];
            const unsigned class = combining_class(mark);
            size_t j = i;
            for (; j > begin && combining_class(run[j - 1]) > class; j--) run[j] = run[j - 1];
            run[j] = mark;
        }
        return true;
    }
    int32_t *sorted = malloc(n * sizeof *sorted);
    if (!sorted) return false;
    size_t start[257] = {0};
    for (size_t i = begin; i < end; i++) start[combining_class(run[i]) % 256 + 1]++;
    for (int class = 0; class < 256; class ++) start[class + 1] += start[class];
    for (size_t i = begin; i < end; i++) sorted[start[combining_class(run[i]) % 256]++] = run[i];
    memcpy(run + begin, sorted, n * sizeof *sorted);
    free(sorted);
    return true;
}

/* Appends the NFC form of text[begin, end), which is UTF-8 and normalises independently of its surroundings. */
static void append_nfc(struct tw_normalized *n, struct tw_view text, size_t begin, size_t end) {
    /* No canonical decomposition has more than 4 code points (UAX 15, and 3 times the bytes for Hangul's 3). */
    const size_t most = 4 * (end - begin);
    if (most > n->run_capacity) {
        int32_t *grown = realloc(n->run, 2 * most * sizeof *grown);
        if (!grown) {
            n->failed = true;
            return;
        }
        n->run = grown;
        n->run_capacity = 2 * most;
    }
    int32_t *const run = n->run;
    size_t size = 0;
    for (size_t i = begin; i < end;) {
        uint32_t code_point;
        size_t bad;
        i += tw_utf8_decode(&code_point, &bad, text.data + i, end - i);
        int boundary = 0;
        const utf8proc_ssize_t made =
            utf8proc_decompose_char((utf8proc_int32_t)code_point, run + size, (utf8proc_ssize_t)(most - size),
                                    UTF8PROC_STABLE | UTF8PROC_COMPOSE, &boundary);
        if (made > 0 && (size_t)made <= most - size) {
            size += (size_t)made;
        } else {
            run[size++] = (utf8proc_int32_t)code_point;
        }
    }
    for (size_t i = 0; i < size;) {
        if (combining_class(run[i]) == 0) {
            i++;
            continue;
        }
        size_t past = i;
        while (past < size && combining_class(run[past]) != 0) past++;
        if (!order_marks(run, i, past)) {
            n->failed = true;
            return;
        }
        i = past;
    }
    const utf8proc_ssize_t composed =
        utf8proc_normalize_utf32(run, (utf8proc_ssize_t)size, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (composed > 0) size = (size_t)composed;
    for (size_t i = 0; i < size; i++) {
        utf8proc_uint8_t bytes[4];
        const utf8proc_ssize_t length = utf8proc_encode_char(run[i], bytes);
        append(n, (const char *)bytes, (size_t)length, (struct tw_source){(uint32_t)begin, (uint32_t)end});
    }
}

/* How many bytes from `at` on are plain ASCII. */
static size_t ascii_run(struct tw_view text, size_t at) {
    size_t i = at;
    for (; i + 8 <= text.size; i += 8) {
        uint64_t eight;
        memcpy(&eight, text.data + i, 8);
        if (eight & 0x8080808080808080) break;
    }
    while (i < text.size && !((uint8_t)text.data[i] & 0x80)) i++;
    return i - at;
}

static bool needs_change(struct tw_view text, const struct tw_normalize_rules *rules) {
    for (size_t i = 0; i < text.size;) {
        i += ascii_run(text, i);
        if (i == text.size) break;
        uint32_t code_point;
        size_t bad;
        const size_t length = tw_utf8_decode(&code_point, &bad, text.data + i, text.size - i);
        if (length == 0 || (rules->nfc && !is_inert(code_point)) || (rules->space_marks && code_point == 0x2581))
            return true;
        i += length;
    }
    return false;
}

static void change(struct tw_normalized *n, struct tw_view text, const struct tw_normalize_rules *rules) {
    size_t start = 0;   /* what is before it is done */
    size_t starter = 0; /* where the last character began */
    for (size_t i = 0; i < text.size && !n->failed;) {
        uint32_t code_point;
        size_t bad;
        const size_t length = tw_utf8_decode(&code_point, &bad, text.data + i, text.size - i);
        if (length == 0) {
            append_same(n, text.data, start, i);
            append(n, "\xef\xbf\xbd", 3, (struct tw_source){(uint32_t)i, (uint32_t)(i + bad)});
            start = starter = i += bad;
            continue;
        }
        if (rules->space_marks && code_point == 0x2581) {
            append_same(n, text.data, start, i);
            append(n, " ", 1, (struct tw_source){(uint32_t)i, (uint32_t)(i + length)});
            start = starter = i += length;
            continue;
        }
        if (!rules->nfc || is_inert(code_point)) {
            starter = i;
            i += length;
            continue;
        }
        /* A stretch: the inert character before, and all up to the next one. */
        const size_t begin = tw_max_size(starter, start);
        append_same(n, text.data, start, begin);
        while (i < text.size) {
            const size_t more = tw_utf8_decode(&code_point, &bad, text.data + i, text.size - i);
            if (more == 0 || is_inert(code_point)) break;
            i += more;
        }
        append_nfc(n, text, begin, i);
        start = starter = i;
    }
    append_same(n, text.data, start, text.size);
}

bool tw_normalize(struct tw_normalized *n, struct tw_view text, const struct tw_normalize_rules *rules, bool prefix) {
    n->changed = needs_change(text, rules);
    n->shift = prefix ? 1 : 0;
    n->n_sources = 0;
    n->failed = false;
    n->view = text;
    if (!n->changed && !prefix) return true;
    tw_text_clear(&n->text);
    if (n->changed) {
        if (prefix) append(n, " ", 1, (struct tw_source){0, 0});
        change(n, text, rules);
    } else {
        tw_text_append_char(&n->text, ' ');
        tw_text_append(&n->text, text);
    }
    n->failed |= !tw_text_ok(&n->text);
    n->view = tw_text_view(&n->text);
    return !n->failed;
}
