#include "engine/tokenizer/vocabulary.h"

#include <math.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/text.h"
#include "engine/tokenizer/alphabet.h"
#include "engine/tokenizer/tokenizer.h"

#define ID_MASK 0xffffffffu

static inline uint64_t load8(const char *p) {
    uint64_t value;
    memcpy(&value, p, 8);
    return value;
}
static inline uint64_t load4(const char *p) {
    uint32_t value;
    memcpy(&value, p, 4);
    return value;
}
static inline uint64_t mix(uint64_t a, uint64_t b) {
    const unsigned __int128 product = (unsigned __int128)(a ^ 0x9e3779b97f4a7c15) * (b ^ 0xd1b54a32d192ed03);
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

uint64_t tw_vocabulary_hash(const char *data, size_t size) {
    uint64_t state = size * 0xff51afd7ed558ccd;
    while (size > 16) {
        state = mix(load8(data) ^ state, load8(data + 8));
        data += 16;
        size -= 16;
    }
    uint64_t a = 0, b = 0;
    if (size >= 8) {
        a = load8(data);
        b = load8(data + size - 8);
    } else if (size >= 4) {
        a = load4(data);
        b = load4(data + size - 4);
    } else if (size > 0) {
        a = (uint64_t)(uint8_t)data[0] << 16 | (uint64_t)(uint8_t)data[size / 2] << 8 | (uint8_t)data[size - 1];
    }
    return mix(a ^ state, b);
}

int32_t tw_vocabulary_find(const struct tw_vocabulary *v, const char *data, size_t size) {
    if (size == 0 || size > v->longest) return TW_NO_TOKEN;
    const uint64_t hash = tw_vocabulary_hash(data, size);
    for (size_t i = hash & v->slot_mask; v->slots[i]; i = (i + 1) & v->slot_mask) {
        if ((v->slots[i] ^ hash) & ~(uint64_t)ID_MASK) continue;
        const int32_t id = (int32_t)((v->slots[i] & ID_MASK) - 1);
        const struct tw_view bytes = tw_vocabulary_bytes(v, id);
        if (bytes.size == size && memcmp(bytes.data, data, size) == 0) return id;
    }
    return TW_NO_TOKEN;
}

/* A later token of the same bytes takes the place of the earlier one, as in the readers that files are made for. */
static void insert(struct tw_vocabulary *v, int32_t id) {
    const struct tw_view bytes = tw_vocabulary_bytes(v, id);
    const uint64_t hash = tw_vocabulary_hash(bytes.data, bytes.size);
    size_t i = hash & v->slot_mask;
    for (; v->slots[i]; i = (i + 1) & v->slot_mask)
        if (!((v->slots[i] ^ hash) & ~(uint64_t)ID_MASK) &&
            tw_view_equal(tw_vocabulary_bytes(v, (int32_t)((v->slots[i] & ID_MASK) - 1)), bytes))
            break;
    v->slots[i] = (hash & ~(uint64_t)ID_MASK) | ((uint32_t)id + 1);
    v->longest = tw_max_size(v->longest, bytes.size);
}

/* "<0x0A>" */
static bool parse_byte(uint8_t *byte, struct tw_view text) {
    if (text.size != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>') return false;
    unsigned value = 0;
    for (int i = 3; i < 5; i++) {
        const char c = text.data[i];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                                 : -1;
        if (digit < 0) return false;
        value = value * 16 + (unsigned)digit;
    }
    *byte = (uint8_t)value;
    return true;
}

/*
 * Writes the bytes that a token's text stands for, never more than its text has; *reachable says whether text can
 * become this token by merging.
 */
static size_t token_bytes(char *out, bool *reachable, const struct tw_tokenizer_spec *spec, struct tw_view text,
                          enum tw_token_kind kind) {
    const bool ordinary = kind == TW_TOKEN_NORMAL || kind == TW_TOKEN_UNUSED;
    *reachable = text.size > 0 && (ordinary || kind == TW_TOKEN_USER_DEFINED);
    size_t size;
    if (spec->byte_level && ordinary) {
        if (tw_alphabet_decode(out, &size, text)) return size;
        *reachable = false;
    } else if (spec->space_marks) {
        /* All spaces of a text are marks to these models, so nothing becomes a token written with a space itself. */
        if (memchr(text.data, ' ', text.size)) *reachable = false;
        return tw_alphabet_unmark(out, text);
    }
    memcpy(out, text.data, text.size);
    return text.size;
}

static tw_status build_tokens(struct tw_vocabulary *v, const struct tw_tokenizer_spec *spec, struct tw_error *err) {
    size_t total = 0;
    for (size_t id = 0; id < spec->n_tokens; id++) {
        if (spec->kinds[id] > TW_TOKEN_BYTE)
            return TW_FAIL(err, TW_E_INPUT, "tokenizer '%s': token %zu has the unknown type %u", spec->name, id,
                           spec->kinds[id]);
        if (!tw_add_size(&total, total, spec->tokens[id].size) || total > UINT32_MAX)
            return TW_FAIL(err, TW_E_INPUT, "tokenizer '%s': the tokens have more than 4 GiB of text", spec->name);
    }
    size_t n_slots = 16;
    while (n_slots < 2 * spec->n_tokens) n_slots *= 2;
    v->n_tokens = spec->n_tokens;
    v->bytes = malloc(total + 1);
    v->offset = malloc((spec->n_tokens + 1) * sizeof *v->offset);
    v->kind = malloc(spec->n_tokens + 1);
    v->slots = calloc(n_slots, sizeof *v->slots);
    v->slot_mask = n_slots - 1;
    if (!v->bytes || !v->offset || !v->kind || !v->slots)
        return TW_FAIL(err, TW_E_MEMORY, "tokenizer '%s': no memory for %zu tokens", spec->name, spec->n_tokens);
    for (int b = 0; b < 256; b++) v->byte_token[b] = TW_NO_TOKEN;

    uint32_t at = 0;
    for (size_t id = 0; id < spec->n_tokens; id++) {
        v->offset[id] = at;
        v->kind[id] = spec->kinds[id];
        const struct tw_view text = spec->tokens[id];
        bool reachable = false;
        if (v->kind[id] == TW_TOKEN_BYTE) {
            uint8_t byte;
            if (!parse_byte(&byte, text))
                return TW_FAIL(err, TW_E_INPUT,
                               "tokenizer '%s': token %zu is of type byte, but '%.*s' is not <0x00> to <0xFF>",
                               spec->name, id, (int)tw_min_size(text.size, 40), text.data);
            v->bytes[at++] = (char)byte;
            v->byte_token[byte] = (int32_t)id;
        } else if (v->kind[id] != TW_TOKEN_MISSING && text.size > 0) {
            at += (uint32_t)token_bytes(v->bytes + at, &reachable, spec, text, v->kind[id]);
        }
        v->offset[id + 1] = at;
        if (reachable) insert(v, (int32_t)id);
    }
    for (int b = 0; b < 256; b++) {
        const char byte = (char)b;
        if (spec->byte_level) v->byte_token[b] = tw_vocabulary_find(v, &byte, 1);
        if (b < 128) v->character_token[b] = tw_vocabulary_find(v, &byte, 1);
    }
    v->all_bytes = true;
    for (int b = 0; b < 256; b++) v->all_bytes &= v->byte_token[b] != TW_NO_TOKEN;
    return TW_OK;
}

static void note_joins(struct tw_vocabulary *v, struct tw_view bytes) {
    for (size_t i = 1; i < bytes.size; i++) {
        const unsigned bit = (uint8_t)bytes.data[i - 1] * 256u + (uint8_t)bytes.data[i];
        v->joins[bit / 64] |= UINT64_C(1) << bit % 64;
    }
}

static tw_status build_scores(struct tw_vocabulary *v, const struct tw_tokenizer_spec *spec, struct tw_error *err) {
    v->score_rank = malloc((v->n_tokens + 1) * sizeof *v->score_rank);
    if (!v->score_rank)
        return TW_FAIL(err, TW_E_MEMORY, "tokenizer '%s': no memory for %zu scores", spec->name, spec->n_tokens);
    for (size_t id = 0; id < v->n_tokens; id++) {
        if (!isfinite(spec->scores[id]))
            return TW_FAIL(err, TW_E_INPUT, "tokenizer '%s': the score of token %zu is not a finite number", spec->name,
                           id);
        /* Floats order like their bits when negative ones are inverted and positive ones get the top bit; -0 is 0. */
        const float score = spec->scores[id] + 0.0f;
        uint32_t bits;
        memcpy(&bits, &score, sizeof bits);
        bits = bits >> 31 ? ~bits : bits | 0x80000000u;
        v->score_rank[id] = ~bits;
    }
    for (size_t i = 0; i <= v->slot_mask; i++)
        if (v->slots[i]) note_joins(v, tw_vocabulary_bytes(v, (int32_t)((v->slots[i] & ID_MASK) - 1)));
    return TW_OK;
}

/*
 * Markers may be parts or results of rules in files that were converted without care. They are in no slot, so they are
 * found in a list of their own, sorted by their bytes.
 */
struct markers {
    const struct tw_vocabulary *v;
    int32_t *ids; /* [n] */
    size_t n;
};

static int compare_views(struct tw_view a, struct tw_view b) {
    const size_t common = tw_min_size(a.size, b.size);
    const int order = common ? memcmp(a.data, b.data, common) : 0;
    return order ? order : (a.size > b.size) - (a.size < b.size);
}

static int compare_markers(const void *a, const void *b, void *vocabulary) {
    return compare_views(tw_vocabulary_bytes(vocabulary, *(const int32_t *)a),
                         tw_vocabulary_bytes(vocabulary, *(const int32_t *)b));
}

static tw_status collect_markers(struct markers *markers, struct tw_vocabulary *v, const char *name,
                                 struct tw_error *err) {
    size_t n = 0;
    for (size_t id = 0; id < v->n_tokens; id++) n += v->kind[id] == TW_TOKEN_CONTROL || v->kind[id] == TW_TOKEN_UNKNOWN;
    *markers = (struct markers){v, malloc((n + 1) * sizeof *markers->ids), 0};
    if (!markers->ids) return TW_FAIL(err, TW_E_MEMORY, "tokenizer '%s': no memory for %zu markers", name, n);
    for (size_t id = 0; id < v->n_tokens; id++)
        if (v->kind[id] == TW_TOKEN_CONTROL || v->kind[id] == TW_TOKEN_UNKNOWN)
            markers->ids[markers->n++] = (int32_t)id;
    qsort_r(markers->ids, markers->n, sizeof *markers->ids, compare_markers, v);
    return TW_OK;
}

static int32_t find_any(const struct markers *markers, struct tw_view bytes) {
    const int32_t id = tw_vocabulary_find(markers->v, bytes.data, bytes.size);
    if (id != TW_NO_TOKEN) return id;
    size_t low = 0, high = markers->n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = compare_views(tw_vocabulary_bytes(markers->v, markers->ids[middle]), bytes);
        if (order == 0) return markers->ids[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return TW_NO_TOKEN;
}

static tw_status bad_merge(const struct tw_tokenizer_spec *spec, size_t rank, const char *what, struct tw_error *err) {
    const struct tw_merge_rule *rule = &spec->merges[rank];
    return TW_FAIL(err, TW_E_INPUT, "tokenizer '%s': merge %zu, '%.*s' with '%.*s': %s", spec->name, rank,
                   (int)tw_min_size(rule->left.size, 40), rule->left.data, (int)tw_min_size(rule->right.size, 40),
                   rule->right.data, what);
}

static tw_status build_merges(struct tw_vocabulary *v, const struct tw_tokenizer_spec *spec, struct tw_error *err) {
    if (spec->n_merges >= TW_NO_RANK)
        return TW_FAIL(err, TW_E_INPUT, "tokenizer '%s': %zu merges are too many", spec->name, spec->n_merges);
    size_t n_slots = 16;
    while (n_slots < spec->n_merges + spec->n_merges / 2) n_slots *= 2;
    v->merges = malloc(n_slots * sizeof *v->merges);
    v->merge_mask = n_slots - 1;
    if (!v->merges)
        return TW_FAIL(err, TW_E_MEMORY, "tokenizer '%s': no memory for %zu merges", spec->name, spec->n_merges);
    memset(v->merges, 0xff, n_slots * sizeof *v->merges);

    struct markers markers;
    tw_status status = collect_markers(&markers, v, spec->name, err);
    struct tw_text joined = {0};
    for (size_t rank = 0; rank < spec->n_merges && status == TW_OK; rank++) {
        const struct tw_merge_rule *rule = &spec->merges[rank];
        tw_text_clear(&joined);
        tw_text_append(&joined, rule->left);
        tw_text_append(&joined, rule->right);
        if (!tw_text_ok(&joined)) {
            status = TW_FAIL(err, TW_E_MEMORY, "tokenizer '%s': no memory for its merges", spec->name);
            break;
        }
        if (rule->left.size == 0 || rule->right.size == 0) {
            status = bad_merge(spec, rank, "a part is empty", err);
            break;
        }
        /* Undone in place: the bytes are never more than the text. */
        size_t left_size = rule->left.size, right_size = rule->right.size;
        char *const right = joined.data + left_size;
        if (spec->byte_level) {
            if (!tw_alphabet_decode(joined.data, &left_size, rule->left) ||
                !tw_alphabet_decode(right, &right_size, rule->right)) {
                status = bad_merge(spec, rank, "a part holds characters that stand for no byte", err);
                break;
            }
        } else if (spec->space_marks) {
            left_size = tw_alphabet_unmark(joined.data, rule->left);
            right_size = tw_alphabet_unmark(right, rule->right);
        }
        memmove(joined.data + left_size, right, right_size);
        const int32_t left = find_any(&markers, (struct tw_view){joined.data, left_size});
        const int32_t second = find_any(&markers, (struct tw_view){joined.data + left_size, right_size});
        const int32_t merged = find_any(&markers, (struct tw_view){joined.data, left_size + right_size});
        if (left == TW_NO_TOKEN || second == TW_NO_TOKEN) {
            status = bad_merge(spec, rank, "a part is not in the vocabulary", err);
            break;
        }
        if (merged == TW_NO_TOKEN) {
            status = bad_merge(spec, rank, "the result is not in the vocabulary", err);
            break;
        }
        /* Text must not grow into a marker by itself: that would undo `--special literal`. */
        if (v->kind[merged] == TW_TOKEN_CONTROL) continue;
        note_joins(v, (struct tw_view){joined.data, left_size + right_size});
        const uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)second;
        size_t i = tw_vocabulary_pair_slot(v, pair);
        while (v->merges[i].pair != UINT64_MAX && v->merges[i].pair != pair) i = (i + 1) & v->merge_mask;
        v->merges[i] = (struct tw_merge_slot){pair, (uint32_t)rank, merged};
    }
    tw_text_release(&joined);
    free(markers.ids);
    return status;
}

tw_status tw_vocabulary_init(struct tw_vocabulary *v, const struct tw_tokenizer_spec *spec, struct tw_error *err) {
    *v = (struct tw_vocabulary){0};
    if (spec->n_tokens == 0) return TW_FAIL(err, TW_E_INPUT, "tokenizer '%s': the vocabulary is empty", spec->name);
    if (spec->n_tokens >= INT32_MAX)
        return TW_FAIL(err, TW_E_INPUT, "tokenizer '%s': %zu tokens are too many", spec->name, spec->n_tokens);
    tw_status status = build_tokens(v, spec, err);
    if (status == TW_OK) status = spec->scores ? build_scores(v, spec, err) : build_merges(v, spec, err);
    if (status != TW_OK) tw_vocabulary_release(v);
    return status;
}

void tw_vocabulary_release(struct tw_vocabulary *v) {
    free(v->bytes);
    free(v->offset);
    free(v->kind);
    free(v->slots);
    free(v->merges);
    free(v->score_rank);
    *v = (struct tw_vocabulary){0};
}
