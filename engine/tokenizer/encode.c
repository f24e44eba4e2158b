/*
 * Encoding: added tokens are found first, the stretches between them are normalised, split into pieces by the rule, and
 * each piece is merged.
 *
 * Two things make it fast without changing its result. Pieces are cached. And a piece is cut wherever two bytes stand
 * side by side that stand so in no token: merging could never reach across. That turns SentencePiece's text without
 * pieces into words, which the cache then knows, and keeps long runs short.
 */
#include <stdlib.h>

#include "base/checked.h"
#include "engine/tokenizer/internal.h"

static bool reserve(struct tw_tokens *tokens, size_t more) {
    const size_t needed = tokens->n + more;
    if (needed <= tokens->capacity) return true;
    const size_t capacity = tw_max_size(tw_max_size(needed, 256), tokens->capacity + tokens->capacity / 2);
    int32_t *ids = realloc(tokens->ids, capacity * sizeof *ids);
    if (ids) tokens->ids = ids;
    uint32_t *begin = realloc(tokens->begin, capacity * sizeof *begin);
    if (begin) tokens->begin = begin;
    uint32_t *end = realloc(tokens->end, capacity * sizeof *end);
    if (end) tokens->end = end;
    if (!ids || !begin || !end) return false;
    tokens->capacity = capacity;
    return true;
}

/* There must be room. */
static inline void put(struct tw_tokens *tokens, int32_t id, size_t begin, size_t end) {
    tokens->ids[tokens->n] = id;
    tokens->begin[tokens->n] = (uint32_t)begin;
    tokens->end[tokens->n] = (uint32_t)end;
    tokens->n++;
}

/* Encodes text[begin, end); `word` is the number of tokens before the piece of the split rule that this is part of. */
static bool encode_cut(struct tw_tokens *tokens, struct tw_tokenizer *t, struct tw_view text, size_t begin, size_t end,
                       size_t word) {
    const struct tw_view piece = {text.data + begin, end - begin};
    struct tw_cached_piece *cached = NULL;
    if (piece.size <= sizeof cached->text) {
        cached = &t->cache[tw_vocabulary_hash(piece.data, piece.size) % TW_CACHED_PIECES];
        if (cached->size == piece.size && memcmp(cached->text, piece.data, piece.size) == 0) {
            if (!reserve(tokens, cached->n)) return false;
            for (unsigned i = 0; i < cached->n; i++) {
                const size_t size = tw_vocabulary_bytes(&t->vocabulary, cached->ids[i]).size;
                put(tokens, cached->ids[i], begin, begin + size);
                begin += size;
            }
            return true;
        }
    }
    if (!tw_merger_encode(&t->merger, &t->vocabulary, &t->symbols, piece, TW_MERGE_BY_LENGTH)) return false;
    const size_t n = t->merger.n;
    if (!reserve(tokens, n)) return false;
    const int32_t unknown = t->symbols.unknown;
    size_t covered = 0;
    for (size_t i = 0; i < n; i++) {
        const struct tw_symbol *symbol = &t->merger.symbols[i];
        const size_t size = symbol->end - symbol->begin;
        if (symbol->begin == covered && size == tw_vocabulary_bytes(&t->vocabulary, symbol->id).size) covered += size;
        if (symbol->id == unknown && t->fuse_unknown && tokens->n > word && tokens->ids[tokens->n - 1] == unknown &&
            tokens->end[tokens->n - 1] == begin + symbol->begin) {
            tokens->end[tokens->n - 1] = (uint32_t)(begin + symbol->end);
            cached = NULL;
            continue;
        }
        if (symbol->id == unknown) cached = NULL;
        put(tokens, symbol->id, begin + symbol->begin, begin + symbol->end);
    }
    if (cached && covered == piece.size && n <= sizeof cached->ids / sizeof *cached->ids) {
        cached->size = (uint8_t)piece.size;
        cached->n = (uint8_t)n;
        memcpy(cached->text, piece.data, piece.size);
        for (size_t i = 0; i < n; i++) cached->ids[i] = t->merger.symbols[i].id;
    }
    return true;
}

/* Whether nothing merges across the boundary between these bytes. */
static inline bool is_cut(const struct tw_tokenizer *t, uint8_t left, uint8_t right) {
    if (tw_vocabulary_joins(&t->vocabulary, left, right)) return false;
    if (t->symbols.kind == TW_SYMBOLS_CHARACTERS) return (right & 0xc0) != 0x80;
    /* A byte without a token vanishes and makes neighbours of those beside it. */
    return t->vocabulary.byte_token[left] != TW_NO_TOKEN && t->vocabulary.byte_token[right] != TW_NO_TOKEN;
}

/* Pieces up to this long are not worth cutting: the split rule made them words. */
enum { SHORT_PIECE = 16 };

/* Encodes a piece of the split rule. */
static bool encode_piece(struct tw_tokens *tokens, struct tw_tokenizer *t, struct tw_view text, size_t begin,
                         size_t end) {
    const size_t word = tokens->n;
    if (t->ignore_merges) {
        const int32_t id = tw_vocabulary_find(&t->vocabulary, text.data + begin, end - begin);
        if (id != TW_NO_TOKEN) {
            if (!reserve(tokens, 1)) return false;
            put(tokens, id, begin, end);
            return true;
        }
    }
    if (t->may_cut && end - begin > SHORT_PIECE) {
        for (size_t i = begin + 1; i < end; i++) {
            if (!is_cut(t, (uint8_t)text.data[i - 1], (uint8_t)text.data[i])) continue;
            if (!encode_cut(tokens, t, text, begin, i, word)) return false;
            begin = i;
        }
    }
    return encode_cut(tokens, t, text, begin, end, word);
}

static tw_status no_memory(const struct tw_tokenizer *t, struct tw_error *err) {
    return TW_FAIL(err, TW_E_MEMORY, "tokenizer '%s': no memory to encode the text", t->name);
}

/* Encodes a normalised stretch; offsets are into it. */
static tw_status encode_pieces(struct tw_tokens *tokens, struct tw_tokenizer *t, struct tw_view text,
                               struct tw_error *err) {
    for (size_t begin = 0, end; begin < text.size; begin = end) {
        end = text.size;
        if (t->splitter) {
            TW_TRY(tw_splitter_next(&end, t->splitter, text, begin, err));
        } else if (t->split_at_spaces) {
            const char *space = memchr(text.data + begin + 1, ' ', text.size - begin - 1);
            if (space) end = (size_t)(space - text.data);
        }
        if (!encode_piece(tokens, t, text, begin, end)) return no_memory(t, err);
    }
    return TW_OK;
}

static bool needs_prefix(const struct tw_tokenizer *t, struct tw_view stretch, size_t begin) {
    if (stretch.size == 0) return false;
    const bool spaced = stretch.data[0] == ' ' ||
                        (t->normalize.space_marks && stretch.size >= 3 && memcmp(stretch.data, "\xe2\x96\x81", 3) == 0);
    switch (t->prefix) {
    case TW_PREFIX_NEVER: return false;
    case TW_PREFIX_EACH: return true;
    case TW_PREFIX_ALWAYS: return !spaced;
    case TW_PREFIX_FIRST: return !spaced && begin == 0;
    }
    return false;
}

/* Encodes text[begin, end), in which no added token is. */
static tw_status encode_stretch(struct tw_tokens *tokens, struct tw_tokenizer *t, struct tw_view text, size_t begin,
                                size_t end, struct tw_error *err) {
    if (begin == end) return TW_OK;
    const struct tw_view stretch = {text.data + begin, end - begin};
    struct tw_normalized *n = &t->normalized;
    if (!tw_normalize(n, stretch, &t->normalize, needs_prefix(t, stretch, begin))) return no_memory(t, err);
    const size_t first = tokens->n;
    TW_TRY(encode_pieces(tokens, t, n->view, err));
    for (size_t i = first; i < tokens->n; i++) {
        size_t from = tokens->begin[i], to = tokens->end[i];
        if (n->changed) {
            to = n->sources[to - 1].end;
            from = n->sources[from].begin;
        } else {
            from -= from ? n->shift : 0;
            to -= n->shift;
        }
        tokens->begin[i] = (uint32_t)(begin + from);
        tokens->end[i] = (uint32_t)(begin + to);
    }
    return TW_OK;
}

static tw_status encode(struct tw_tokens *tokens, struct tw_tokenizer *t, struct tw_view text,
                        const struct tw_encode_options *options, struct tw_error *err) {
    const struct tw_marker_spans where = {.everywhere = options->special == TW_SPECIAL_PARSED,
                                          .spans = options->parsed_spans,
                                          .n = options->n_parsed_spans};
    for (size_t at = 0;;) {
        const struct tw_added_match match = tw_added_find(&t->added, text, at, &where);
        TW_TRY(encode_stretch(tokens, t, text, at, match.begin, err));
        if (match.id == TW_NO_TOKEN) return TW_OK;
        if (!reserve(tokens, 1)) return no_memory(t, err);
        put(tokens, match.id, match.begin, match.end);
        at = match.end;
    }
}

tw_status tw_tokenizer_encode(struct tw_tokens *tokens, struct tw_tokenizer *t, struct tw_view text,
                              const struct tw_encode_options *options, struct tw_text *warnings, struct tw_error *err) {
    /* Room for the space in front and for U+FFFD, which is three bytes in place of one. */
    if (text.size > UINT32_MAX / 3 - 1)
        return TW_FAIL(err, TW_E_INPUT, "the text has %zu bytes: at most 1.3 GiB can be encoded at once", text.size);
    const size_t before = tokens->n;
    const bool add_bos = options->add_bos && t->add_bos;
    if (add_bos) {
        if (!reserve(tokens, 1)) return no_memory(t, err);
        put(tokens, t->bos, 0, 0);
    }
    const tw_status status = encode(tokens, t, text, options, err);
    if (status != TW_OK) {
        tokens->n = before;
        return status;
    }
    if (add_bos && tokens->n > before + 1 && tokens->ids[before + 1] == t->bos) {
        tokens->n--;
        memmove(tokens->ids + before, tokens->ids + before + 1, (tokens->n - before) * sizeof *tokens->ids);
        memmove(tokens->begin + before, tokens->begin + before + 1, (tokens->n - before) * sizeof *tokens->begin);
        memmove(tokens->end + before, tokens->end + before + 1, (tokens->n - before) * sizeof *tokens->end);
        if (warnings) {
            const struct tw_view bos = tw_tokenizer_bytes(t, t->bos);
            tw_text_printf(warnings, "the text begins with '%.*s' itself, so no other is put in front\n",
                           (int)tw_min_size(bos.size, 40), bos.data);
        }
    }
    return TW_OK;
}
