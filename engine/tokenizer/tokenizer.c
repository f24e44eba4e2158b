/* Making a tokenizer from its description, and what it knows about its tokens. Encoding is in encode.c. */
#include <stdlib.h>

#include "base/checked.h"
#include "engine/tokenizer/internal.h"

/* Markers that end a generation whatever the file says: end of text, of a turn, of a message to a tool. */
static const char *const end_markers[] = {
    "<|endoftext|>", "<|end_of_text|>", "<|im_end|>",    "<|eot_id|>",    "<|eom_id|>",
    "<|end|>",       "<|eot|>",         "<end_of_turn>", "<end_of_text>", "<｜end▁of▁sentence｜>",
    "<|EOT|>",       "<EOT>",           "</s>",
};

static tw_status create_ends(struct tw_tokenizer *t, const struct tw_tokenizer_spec *spec, struct tw_error *err) {
    const size_t n = t->vocabulary.n_tokens;
    t->is_end = calloc(n, 1);
    if (!t->is_end) return TW_FAIL(err, TW_E_MEMORY, "tokenizer '%s': out of memory", spec->name);
    if (t->eos != TW_NO_TOKEN) t->is_end[t->eos] = 1;
    for (size_t i = 0; i < spec->n_ends; i++)
        if (spec->ends[i] >= 0 && (size_t)spec->ends[i] < n) t->is_end[spec->ends[i]] = 1;
    for (size_t i = 0; i < sizeof end_markers / sizeof *end_markers; i++) {
        const int32_t id = tw_added_marker(&t->added, tw_view_of(end_markers[i]));
        if (id != TW_NO_TOKEN) t->is_end[id] = 1;
    }
    return TW_OK;
}

static tw_status check_id(const struct tw_tokenizer_spec *spec, int32_t id, const char *what, struct tw_error *err) {
    if (id == TW_NO_TOKEN || (id >= 0 && (size_t)id < spec->n_tokens)) return TW_OK;
    return TW_FAIL(err, TW_E_INPUT, "tokenizer '%s': the %s token's id %d is not in the vocabulary of %zu", spec->name,
                   what, id, spec->n_tokens);
}

static tw_status create(struct tw_tokenizer *t, const struct tw_tokenizer_spec *spec, struct tw_error *err) {
    TW_TRY(check_id(spec, spec->bos, "begin", err));
    TW_TRY(check_id(spec, spec->eos, "end", err));
    TW_TRY(check_id(spec, spec->unknown, "unknown", err));
    TW_TRY(tw_vocabulary_init(&t->vocabulary, spec, err));
    TW_TRY(tw_added_init(&t->added, spec, err));
    t->split_name = "none";
    if (strcmp(spec->split, "none") != 0) {
        const struct tw_split_rule *rule = tw_split_rule_named(tw_view_of(spec->split));
        if (!rule) {
            struct tw_text names = {0};
            tw_split_rule_names(&names);
            tw_fail(err, TW_E_UNSUPPORTED, "tokenizer '%s': the split rule '%s' is not known (known are %s)",
                    spec->name, spec->split, tw_text_string(&names));
            tw_text_release(&names);
            return TW_E_UNSUPPORTED;
        }
        t->split_name = rule->name;
        TW_TRY(tw_splitter_create(&t->splitter, rule, err));
    }
    t->normalize = (struct tw_normalize_rules){.nfc = spec->nfc, .space_marks = spec->space_marks};
    t->symbols = (struct tw_symbol_rules){
        .kind = spec->byte_level ? TW_SYMBOLS_BYTES : TW_SYMBOLS_CHARACTERS,
        .byte_fallback = spec->byte_fallback,
        .unknown = spec->unknown,
    };
    t->prefix = spec->prefix;
    t->fuse_unknown = spec->fuse_unknown;
    t->ignore_merges = spec->ignore_merges;
    t->split_at_spaces = spec->split_at_spaces;
    t->strip_first_space = spec->space_marks && spec->prefix != TW_PREFIX_NEVER;
    /* Where characters may vanish, those on both sides become neighbours. Single bytes are looked at in encode.c. */
    t->may_cut = spec->byte_level || spec->scores || spec->unknown != TW_NO_TOKEN ||
                 (spec->byte_fallback && t->vocabulary.all_bytes);
    t->add_bos = spec->add_bos && spec->bos != TW_NO_TOKEN;
    t->bos = spec->bos;
    t->eos = spec->eos;
    TW_TRY(create_ends(t, spec, err));
    tw_text_append(&t->chat_template, spec->chat_template);
    tw_text_append(&t->warnings, spec->warnings);
    t->name = strdup(spec->name);
    t->cache = calloc(TW_CACHED_PIECES, sizeof *t->cache);
    if (!t->name || !t->cache || !tw_text_ok(&t->chat_template) || !tw_text_ok(&t->warnings))
        return TW_FAIL(err, TW_E_MEMORY, "tokenizer '%s': out of memory", spec->name);
    return TW_OK;
}

tw_status tw_tokenizer_create(struct tw_tokenizer **tokenizer, const struct tw_tokenizer_spec *spec,
                              struct tw_error *err) {
    *tokenizer = NULL;
    struct tw_tokenizer *t = calloc(1, sizeof *t);
    if (!t) return TW_FAIL(err, TW_E_MEMORY, "tokenizer '%s': out of memory", spec->name);
    const tw_status status = create(t, spec, err);
    if (status != TW_OK) {
        tw_tokenizer_free(t);
        return status;
    }
    *tokenizer = t;
    return TW_OK;
}

void tw_tokenizer_free(struct tw_tokenizer *t) {
    if (!t) return;
    tw_vocabulary_release(&t->vocabulary);
    tw_added_release(&t->added);
    tw_splitter_free(t->splitter);
    tw_merger_release(&t->merger);
    tw_normalized_release(&t->normalized);
    tw_text_release(&t->chat_template);
    tw_text_release(&t->warnings);
    free(t->is_end);
    free(t->cache);
    free(t->name);
    free(t);
}

struct tw_view tw_tokenizer_warnings(const struct tw_tokenizer *t) {
    return tw_text_view(&t->warnings);
}
size_t tw_tokenizer_size(const struct tw_tokenizer *t) { return t->vocabulary.n_tokens; }
const char *tw_tokenizer_split_name(const struct tw_tokenizer *t) { return t->split_name; }
int32_t tw_tokenizer_bos(const struct tw_tokenizer *t) { return t->bos; }
int32_t tw_tokenizer_eos(const struct tw_tokenizer *t) { return t->eos; }
bool tw_tokenizer_adds_bos(const struct tw_tokenizer *t) { return t->add_bos; }

static bool has_token(const struct tw_tokenizer *t, int32_t id) {
    return id >= 0 && (size_t)id < t->vocabulary.n_tokens && t->vocabulary.kind[id] != TW_TOKEN_MISSING;
}

bool tw_tokenizer_is_end(const struct tw_tokenizer *t, int32_t id) { return has_token(t, id) && t->is_end[id]; }

bool tw_tokenizer_is_special(const struct tw_tokenizer *t, int32_t id) {
    return has_token(t, id) &&
           (t->vocabulary.kind[id] == TW_TOKEN_CONTROL || t->vocabulary.kind[id] == TW_TOKEN_UNKNOWN);
}

int32_t tw_tokenizer_marker(const struct tw_tokenizer *t, struct tw_view text) {
    return tw_added_marker(&t->added, text);
}

struct tw_view tw_tokenizer_bytes(const struct tw_tokenizer *t, int32_t id) {
    return has_token(t, id) ? tw_vocabulary_bytes(&t->vocabulary, id) : (struct tw_view){0};
}

tw_status tw_tokenizer_check_rows(const struct tw_tokenizer *t, size_t n_rows, struct tw_error *err) {
    for (size_t id = t->vocabulary.n_tokens; id-- > n_rows;) {
        if (!has_token(t, (int32_t)id)) continue;
        const struct tw_view bytes = tw_tokenizer_bytes(t, (int32_t)id);
        return TW_FAIL(err, TW_E_INPUT,
                       "tokenizer '%s': token '%.*s' has the id %zu, but the embedding has only %zu rows", t->name,
                       (int)tw_min_size(bytes.size, 40), bytes.data, id, n_rows);
    }
    return TW_OK;
}

void tw_tokenizer_append(struct tw_text *text, const struct tw_tokenizer *t, int32_t id) {
    if (has_token(t, id))
        tw_text_append(text, tw_vocabulary_bytes(&t->vocabulary, id));
    else
        tw_text_printf(text, "[token %d]", id);
}

void tw_tokenizer_decode(struct tw_text *text, const struct tw_tokenizer *t, const int32_t *ids, size_t n_ids,
                         const struct tw_decode_options *options) {
    const size_t start = text->size;
    for (size_t i = 0; i < n_ids; i++)
        if (!options->skip_special || !tw_tokenizer_is_special(t, ids[i])) tw_tokenizer_append(text, t, ids[i]);
    if (!t->strip_first_space || options->continued || text->size == start || text->data[start] != ' ') return;
    memmove(text->data + start, text->data + start + 1, text->size - start); /* with the closing 0 */
    text->size--;
}

void tw_tokens_release(struct tw_tokens *tokens) {
    free(tokens->ids);
    free(tokens->begin);
    free(tokens->end);
    *tokens = (struct tw_tokens){0};
}

void tw_tokens_span(const struct tw_tokens *tokens, size_t begin, size_t end, size_t *first, size_t *past) {
    *first = *past = 0;
    bool any = false;
    for (size_t i = 0; i < tokens->n; i++) {
        if (tokens->begin[i] == tokens->end[i] || tokens->end[i] <= begin || tokens->begin[i] >= end) continue;
        if (!any) *first = i;
        any = true;
        *past = i + 1;
    }
}
