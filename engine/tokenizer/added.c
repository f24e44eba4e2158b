#include "engine/tokenizer/added.h"

#include <stdlib.h>
#include <utf8proc.h>

#include "base/checked.h"
#include "base/text.h"
#include "engine/tokenizer/normalize.h"
#include "engine/tokenizer/tokenizer.h"

/* Added tokens that are matched at all: a base vocabulary's unknown token is one too when it is written as a marker. */
static bool is_added(uint8_t kind, size_t size) {
    return size > 0 && (kind == TW_TOKEN_CONTROL || kind == TW_TOKEN_USER_DEFINED || kind == TW_TOKEN_UNKNOWN);
}

static struct tw_view text_of(const struct tw_added *added, const struct tw_added_token *token) {
    return (struct tw_view){added->text + token->offset, token->size};
}

static int compare_views(struct tw_view a, struct tw_view b) {
    const size_t common = tw_min_size(a.size, b.size);
    const int order = memcmp(a.data, b.data, common);
    return order ? order : (a.size > b.size) - (a.size < b.size);
}

static int compare(const void *a, const void *b, void *added) {
    const struct tw_added_token *left = a, *right = b;
    const int order = compare_views(text_of(added, left), text_of(added, right));
    return order ? order : (left->id > right->id) - (left->id < right->id);
}

static int compare_rules(const void *a, const void *b) {
    const struct tw_added_rule *left = a, *right = b;
    return (left->id > right->id) - (left->id < right->id);
}

tw_status tw_added_init(struct tw_added *added, const struct tw_tokenizer_spec *spec, struct tw_error *err) {
    *added = (struct tw_added){0};
    size_t n = 0, total = 0;
    for (size_t id = 0; id < spec->n_tokens; id++)
        if (is_added(spec->kinds[id], spec->tokens[id].size)) {
            n++;
            total += spec->tokens[id].size;
        }
    added->tokens = calloc(n + 1, sizeof *added->tokens);
    added->text = malloc(total + 1);
    struct tw_added_rule *rules = malloc((spec->n_added_rules + 1) * sizeof *rules);
    if (!added->tokens || !added->text || !rules) {
        free(rules);
        tw_added_release(added);
        return TW_FAIL(err, TW_E_MEMORY, "tokenizer '%s': no memory for %zu added tokens", spec->name, n);
    }
    if (spec->n_added_rules) memcpy(rules, spec->added_rules, spec->n_added_rules * sizeof *rules);
    qsort(rules, spec->n_added_rules, sizeof *rules, compare_rules);

    uint32_t at = 0;
    for (size_t id = 0; id < spec->n_tokens; id++) {
        const struct tw_view text = spec->tokens[id];
        if (!is_added(spec->kinds[id], text.size)) continue;
        struct tw_added_token *token = &added->tokens[added->n++];
        *token = (struct tw_added_token){.offset = at,
                                         .size = (uint32_t)text.size,
                                         .id = (int32_t)id,
                                         .marker = spec->kinds[id] != TW_TOKEN_USER_DEFINED};
        memcpy(added->text + at, text.data, text.size);
        at += (uint32_t)text.size;
        added->any_text |= !token->marker;
        const struct tw_added_rule *rule = spec->n_added_rules
                                               ? bsearch(&(struct tw_added_rule){.id = (int32_t)id}, rules,
                                                         spec->n_added_rules, sizeof *rules, compare_rules)
                                               : NULL;
        if (!rule) continue;
        token->strip_left = rule->strip_left;
        token->strip_right = rule->strip_right;
        token->single_word = rule->single_word;
    }
    free(rules);
    qsort_r(added->tokens, added->n, sizeof *added->tokens, compare, added);
    size_t i = 0;
    for (unsigned b = 0; b < 256; b++) {
        added->first[b] = (uint32_t)i;
        while (i < added->n && (uint8_t)text_of(added, &added->tokens[i]).data[0] == b) i++;
    }
    added->first[256] = (uint32_t)i;
    return TW_OK;
}

void tw_added_release(struct tw_added *added) {
    free(added->tokens);
    free(added->text);
    *added = (struct tw_added){0};
}

int32_t tw_added_marker(const struct tw_added *added, struct tw_view text) {
    size_t low = 0, high = added->n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = compare_views(text_of(added, &added->tokens[middle]), text);
        if (order == 0) return added->tokens[middle].marker ? added->tokens[middle].id : TW_NO_TOKEN;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return TW_NO_TOKEN;
}

/* The first of tokens [low, high), which agree in their first `depth` bytes, whose byte at `depth` is not below `byte`.
 */
static size_t lower_bound(const struct tw_added *added, size_t low, size_t high, size_t depth, unsigned byte) {
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const struct tw_added_token *token = &added->tokens[middle];
        if (token->size <= depth || (uint8_t)added->text[token->offset + depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool is_word(uint32_t c) {
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NO) || category == UTF8PROC_CATEGORY_PC;
}

/* The code point that ends at `at`, its beginning in *begin; U+FFFD for what is not UTF-8. */
static uint32_t before(struct tw_view text, size_t at, size_t *begin) {
    size_t start = at - 1;
    while (start > 0 && at - start < 4 && ((uint8_t)text.data[start] & 0xc0) == 0x80) start--;
    uint32_t code_point;
    size_t bad;
    if (tw_utf8_decode(&code_point, &bad, text.data + start, at - start) == at - start) {
        *begin = start;
        return code_point;
    }
    *begin = at - 1;
    return 0xfffd;
}

static uint32_t after(struct tw_view text, size_t at, size_t *end) {
    uint32_t code_point;
    size_t bad;
    const size_t size = tw_utf8_decode(&code_point, &bad, text.data + at, text.size - at);
    *end = at + (size ? size : bad);
    return size ? code_point : 0xfffd;
}

static bool stands_alone(struct tw_view text, size_t begin, size_t end) {
    size_t ignored;
    return !(begin > 0 && is_word(before(text, begin, &ignored))) &&
           !(end < text.size && is_word(after(text, end, &ignored)));
}

/* The longest token at `begin`, or NULL. */
static const struct tw_added_token *match_at(const struct tw_added *added, struct tw_view text, size_t begin,
                                             size_t marker_end) {
    size_t low = added->first[(uint8_t)text.data[begin]], high = added->first[(uint8_t)text.data[begin] + 1];
    const struct tw_added_token *best = NULL;
    for (size_t depth = 1; low < high; depth++) {
        const size_t end = begin + depth;
        /* Of equal texts the first; a shorter text stands before those it begins. */
        if (added->tokens[low].size == depth) {
            const struct tw_added_token *token = &added->tokens[low];
            if ((!token->marker || end <= marker_end) && (!token->single_word || stands_alone(text, begin, end)))
                best = token;
        }
        if (end == text.size) break;
        const unsigned byte = (uint8_t)text.data[end];
        const size_t from = lower_bound(added, low, high, depth, byte);
        high = lower_bound(added, from, high, depth, byte + 1);
        low = from;
    }
    return best;
}

struct tw_added_match tw_added_find(const struct tw_added *added, struct tw_view text, size_t from,
                                    const struct tw_marker_spans *where) {
    size_t s = 0;
    for (size_t begin = from; begin < text.size; begin++) {
        while (s < where->n && where->spans[s].end <= begin) s++;
        if (!where->everywhere && !added->any_text) {
            /* Nothing can match outside the spans. */
            if (s == where->n) break;
            if (where->spans[s].begin > begin) begin = where->spans[s].begin;
            if (begin >= text.size) break;
        }
        const uint8_t byte = (uint8_t)text.data[begin];
        if (added->first[byte] == added->first[byte + 1]) continue;
        size_t marker_end = 0; /* markers must end here or before */
        if (where->everywhere)
            marker_end = text.size;
        else if (s < where->n && where->spans[s].begin <= begin)
            marker_end = where->spans[s].end;
        const struct tw_added_token *token = match_at(added, text, begin, marker_end);
        if (!token) continue;
        struct tw_added_match match = {begin, begin + token->size, token->id};
        size_t edge;
        while (token->strip_left && match.begin > from && tw_is_space(before(text, match.begin, &edge)) && edge >= from)
            match.begin = edge;
        while (token->strip_right && match.end < text.size && tw_is_space(after(text, match.end, &edge)))
            match.end = edge;
        return match;
    }
    return (struct tw_added_match){text.size, text.size, TW_NO_TOKEN};
}

bool tw_added_looks_like_marker(struct tw_view text) {
    static const char full_bar[] = "\xef\xbd\x9c"; /* U+FF5C, DeepSeek's */
    const char *data = text.data;
    const size_t size = text.size;
    return (size > 4 && memcmp(data, "<|", 2) == 0 && memcmp(data + size - 2, "|>", 2) == 0) ||
           (size > 8 && data[0] == '<' && memcmp(data + 1, full_bar, 3) == 0 &&
            memcmp(data + size - 4, full_bar, 3) == 0 && data[size - 1] == '>');
}
