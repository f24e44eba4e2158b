/* The tokenizer in the metadata of a GGUF file (keys tokenizer.ggml.*, tokenizer.chat_template). */
#include <stdlib.h>

#include "base/checked.h"
#include "engine/model/gguf.h"
#include "engine/tokenizer/added.h"
#include "engine/tokenizer/pretokenize.h"
#include "engine/tokenizer/spec.h"
#include "engine/tokenizer/tokenizer.h"

struct reader {
    const struct tw_gguf *gguf;
    struct tw_error *err;
    struct tw_tokenizer_spec spec;
    struct tw_text warnings;
    const struct tw_split_rule *rule; /* NULL for SentencePiece */
    struct tw_view *tokens;
    uint8_t *kinds;
    float *scores;
    struct tw_merge_rule *merges;
    int32_t ends[2];
};

static tw_status no_memory(struct reader *r) {
    return TW_FAIL(r->err, TW_E_MEMORY, "tokenizer '%s': out of memory", r->gguf->path);
}

static tw_status read_rule(struct reader *r) {
    struct tw_view name = {0};
    TW_TRY(tw_gguf_get_string(&name, r->gguf, "tokenizer.ggml.pre", false, r->err));
    const bool given = name.size > 0 && !tw_view_equal(name, TW_VIEW("default"));
    r->rule = tw_split_rule_named(given ? name : TW_VIEW("gpt2"));
    if (!r->rule) {
        struct tw_text names = {0};
        tw_split_rule_names(&names);
        tw_fail(r->err, TW_E_UNSUPPORTED,
                "tokenizer '%s': the split rule '%.*s' (tokenizer.ggml.pre) is not known; known are %s", r->gguf->path,
                (int)tw_min_size(name.size, 40), name.data, tw_text_string(&names));
        tw_text_release(&names);
        return TW_E_UNSUPPORTED;
    }
    if (!given)
        tw_text_printf(&r->warnings,
                       "the file names no split rule (tokenizer.ggml.pre is %s): '%s' is used, which may give other "
                       "tokens than the model was trained with\n",
                       name.size ? "'default'" : "missing", r->rule->name);
    return TW_OK;
}

static tw_status read_tokens(struct reader *r) {
    struct tw_gguf_array array;
    TW_TRY(tw_gguf_get_array(&array, r->gguf, "tokenizer.ggml.tokens", TW_GGUF_STRINGS, true, r->err));
    const size_t n = array.n;
    r->spec.n_tokens = n;
    r->tokens = malloc((n + 1) * sizeof *r->tokens);
    r->kinds = malloc(n + 1);
    if (!r->tokens || !r->kinds) return no_memory(r);
    struct tw_gguf_strings at = tw_gguf_strings(&array);
    for (size_t i = 0; i < n && tw_gguf_strings_next(&r->tokens[i], &at); i++) r->kinds[i] = TW_TOKEN_NORMAL;
    r->spec.tokens = r->tokens;
    r->spec.kinds = r->kinds;

    struct tw_gguf_array types = {0};
    TW_TRY(tw_gguf_get_array(&types, r->gguf, "tokenizer.ggml.token_type", TW_GGUF_INTEGERS, false, r->err));
    if (!types.data) return TW_OK;
    if (types.n != n)
        return TW_FAIL(r->err, TW_E_INPUT, "tokenizer '%s': tokenizer.ggml.token_type has %zu entries for %zu tokens",
                       r->gguf->path, types.n, n);
    for (size_t i = 0; i < n; i++) {
        const int64_t kind = tw_gguf_array_int(&types, i);
        if (kind < TW_TOKEN_NORMAL || kind > TW_TOKEN_BYTE)
            return TW_FAIL(r->err, TW_E_INPUT, "tokenizer '%s': token %zu has the unknown type %lld", r->gguf->path, i,
                           (long long)kind);
        r->kinds[i] = (uint8_t)kind;
        if (kind == TW_TOKEN_USER_DEFINED && tw_added_looks_like_marker(r->tokens[i])) r->kinds[i] = TW_TOKEN_CONTROL;
    }
    return TW_OK;
}

static tw_status read_scores(struct reader *r) {
    struct tw_gguf_array array;
    TW_TRY(tw_gguf_get_array(&array, r->gguf, "tokenizer.ggml.scores", TW_GGUF_FLOATS, true, r->err));
    if (array.n != r->spec.n_tokens)
        return TW_FAIL(r->err, TW_E_INPUT, "tokenizer '%s': tokenizer.ggml.scores has %zu entries for %zu tokens",
                       r->gguf->path, array.n, r->spec.n_tokens);
    r->scores = malloc((array.n + 1) * sizeof *r->scores);
    if (!r->scores) return no_memory(r);
    for (size_t i = 0; i < array.n; i++) r->scores[i] = (float)tw_gguf_array_double(&array, i);
    r->spec.scores = r->scores;
    return TW_OK;
}

static tw_status read_merges(struct reader *r) {
    struct tw_gguf_array array;
    TW_TRY(tw_gguf_get_array(&array, r->gguf, "tokenizer.ggml.merges", TW_GGUF_STRINGS, true, r->err));
    r->merges = malloc((array.n + 1) * sizeof *r->merges);
    if (!r->merges) return no_memory(r);
    struct tw_gguf_strings at = tw_gguf_strings(&array);
    struct tw_view text;
    while (tw_gguf_strings_next(&text, &at)) {
        const char *space = text.size ? memchr(text.data, ' ', text.size) : NULL;
        const size_t left = space ? (size_t)(space - text.data) : 0;
        if (left == 0 || left + 1 == text.size || memchr(space + 1, ' ', text.size - left - 1))
            return TW_FAIL(r->err, TW_E_INPUT, "tokenizer '%s': merge %zu is not two tokens \"a b\": '%.*s'",
                           r->gguf->path, r->spec.n_merges, (int)tw_min_size(text.size, 60), text.data);
        r->merges[r->spec.n_merges++] = (struct tw_merge_rule){{text.data, left}, {space + 1, text.size - left - 1}};
    }
    r->spec.merges = r->merges;
    return TW_OK;
}

static tw_status read_id(int32_t *id, struct reader *r, const char *name) {
    uint64_t value = UINT64_MAX;
    TW_TRY(tw_gguf_get_uint(&value, r->gguf, name, false, r->err));
    *id = TW_NO_TOKEN;
    /* Some writers put -1 in an unsigned field for "none". */
    if (value == UINT64_MAX || value == UINT32_MAX) return TW_OK;
    if (value >= r->spec.n_tokens)
        return TW_FAIL(r->err, TW_E_INPUT, "tokenizer '%s': %s is %llu, but there are %zu tokens", r->gguf->path, name,
                       (unsigned long long)value, r->spec.n_tokens);
    *id = (int32_t)value;
    return TW_OK;
}

static tw_status read_all(struct reader *r) {
    struct tw_view model = {0};
    TW_TRY(tw_gguf_get_string(&model, r->gguf, "tokenizer.ggml.model", true, r->err));
    const bool byte_level = tw_view_equal(model, TW_VIEW("gpt2"));
    if (!byte_level && !tw_view_equal(model, TW_VIEW("llama")))
        return TW_FAIL(r->err, TW_E_UNSUPPORTED,
                       "tokenizer '%s': the model '%.*s' (tokenizer.ggml.model) is not supported; supported are gpt2 "
                       "(byte-level BPE) and llama (SentencePiece BPE)",
                       r->gguf->path, (int)tw_min_size(model.size, 40), model.data);
    if (byte_level) TW_TRY(read_rule(r));
    TW_TRY(read_tokens(r));
    TW_TRY(byte_level ? read_merges(r) : read_scores(r));

    struct tw_tokenizer_spec *spec = &r->spec;
    spec->byte_level = byte_level;
    spec->space_marks = spec->byte_fallback = spec->fuse_unknown = !byte_level;
    spec->split = byte_level ? r->rule->name : "none";
    spec->ignore_merges = byte_level && r->rule->ignore_merges;
    spec->nfc = byte_level && r->rule->nfc;
    spec->add_bos = byte_level ? r->rule->add_bos : true;
    bool space_prefix = !byte_level, add_eos = false;
    TW_TRY(tw_gguf_get_bool(&space_prefix, r->gguf, "tokenizer.ggml.add_space_prefix", false, r->err));
    TW_TRY(tw_gguf_get_bool(&spec->add_bos, r->gguf, "tokenizer.ggml.add_bos_token", false, r->err));
    TW_TRY(tw_gguf_get_bool(&add_eos, r->gguf, "tokenizer.ggml.add_eos_token", false, r->err));
    if (!byte_level) spec->prefix = space_prefix ? TW_PREFIX_EACH : TW_PREFIX_NEVER;
    if (add_eos)
        tw_text_printf(&r->warnings, "the tokenizer would put its end token behind every text "
                                     "(tokenizer.ggml.add_eos_token); it is left out, since the model is to go on\n");
    TW_TRY(read_id(&spec->bos, r, "tokenizer.ggml.bos_token_id"));
    TW_TRY(read_id(&spec->eos, r, "tokenizer.ggml.eos_token_id"));
    /* Byte-level vocabularies may name an unknown token, but nothing is unknown to them: bytes without a token vanish.
     */
    if (!byte_level) TW_TRY(read_id(&spec->unknown, r, "tokenizer.ggml.unknown_token_id"));
    TW_TRY(read_id(&r->ends[0], r, "tokenizer.ggml.eot_token_id"));
    TW_TRY(read_id(&r->ends[1], r, "tokenizer.ggml.eom_token_id"));
    spec->ends = r->ends;
    spec->n_ends = 2;
    TW_TRY(tw_gguf_get_string(&spec->chat_template, r->gguf, "tokenizer.chat_template", false, r->err));
    spec->warnings = tw_text_view(&r->warnings);
    return TW_OK;
}

tw_status tw_tokenizer_from_gguf(struct tw_tokenizer **tokenizer, const struct tw_gguf *gguf, struct tw_error *err) {
    *tokenizer = NULL;
    struct reader r = {.gguf = gguf,
                       .err = err,
                       .spec = {.name = gguf->path, .bos = TW_NO_TOKEN, .eos = TW_NO_TOKEN, .unknown = TW_NO_TOKEN}};
    tw_status status = read_all(&r);
    if (status == TW_OK) status = tw_tokenizer_create(tokenizer, &r.spec, err);
    free(r.tokens);
    free(r.kinds);
    free(r.scores);
    free(r.merges);
    tw_text_release(&r.warnings);
    return status;
}
