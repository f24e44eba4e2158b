/*
 * Hugging Face's tokenizer.json, with what tokenizer_config.json, generation_config.json and chat_template.jinja add to
 * it. The file describes a pipeline (normalizer, pre_tokenizer, model, post_processor, decoder) that could be anything;
 * the pipelines of the tokenizers that we have are recognised, and whatever else there is in one is refused by name.
 *
 * Added tokens are matched in the text as it is written, also those marked "normalized": their texts are the same under
 * the normalisers that we have.
 */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>

#include "base/checked.h"
#include "engine/tokenizer/added.h"
#include "engine/tokenizer/pretokenize.h"
#include "engine/tokenizer/spec.h"
#include "engine/tokenizer/tokenizer.h"

#define SPACE_MARK "\xe2\x96\x81"

struct reader {
    const struct tw_tokenizer_files *files;
    struct tw_error *err;
    struct tw_tokenizer_spec spec;
    struct tw_text warnings, scratch;
    /* What is in the pipeline. */
    bool digits_alone, gpt2_split;
    const char *written_split; /* NULL: none */
    const char *bos_text;      /* of the post-processor's template; NULL: none */
    struct tw_view *tokens;
    uint8_t *kinds;
    struct tw_merge_rule *merges;
    struct tw_added_rule *added_rules;
    int32_t *ends;
};

#define REFUSE(r, status, ...) refuse((r), (status), __VA_ARGS__)

__attribute__((format(printf, 3, 4))) static tw_status refuse(struct reader *r, tw_status status, const char *format,
                                                              ...) {
    va_list args;
    va_start(args, format);
    tw_text_clear(&r->scratch);
    tw_text_vprintf(&r->scratch, format, args);
    va_end(args);
    return TW_FAIL(r->err, status, "tokenizer '%s': %s", r->files->name, tw_text_string(&r->scratch));
}

/* A member of an object, JSON's null being as good as none. */
static const cJSON *member(const cJSON *object, const char *name) {
    const cJSON *item = cJSON_IsObject(object) ? cJSON_GetObjectItemCaseSensitive(object, name) : NULL;
    return item && !cJSON_IsNull(item) ? item : NULL;
}

static const char *text_member(const cJSON *object, const char *name) {
    const cJSON *item = member(object, name);
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

static bool flag_member(const cJSON *object, const char *name, bool otherwise) {
    const cJSON *item = member(object, name);
    return cJSON_IsBool(item) ? cJSON_IsTrue(item) : otherwise;
}

static bool is_text(const char *text, const char *expected) { return text && strcmp(text, expected) == 0; }

/* True for a whole number in [0, 2^31 - 1). */
static bool id_value(int32_t *id, const cJSON *item) {
    if (!cJSON_IsNumber(item)) return false;
    const double value = item->valuedouble;
    if (!(value >= 0 && value < INT32_MAX) || value != (double)(int32_t)value) return false;
    *id = (int32_t)value;
    return true;
}

/*
 * Calls `step` for a pipeline's element, or for each of them when it is a sequence of `list`. Sequences in sequences
 * are followed: cJSON bounds the depth.
 */
typedef tw_status step_fn(struct reader *r, const cJSON *element, const char *type);

static tw_status each_step(struct reader *r, const cJSON *element, const char *list, const char *what, step_fn *step) {
    if (!element) return TW_OK;
    const char *type = text_member(element, "type");
    if (!type) return REFUSE(r, TW_E_INPUT, "its %s has no type", what);
    if (strcmp(type, "Sequence") != 0) return step(r, element, type);
    const cJSON *child;
    cJSON_ArrayForEach(child, member(element, list)) TW_TRY(each_step(r, child, list, what, step));
    return TW_OK;
}

static tw_status normalizer_step(struct reader *r, const cJSON *element, const char *type) {
    const cJSON *pattern = member(element, "pattern");
    if (strcmp(type, "NFC") == 0) {
        r->spec.nfc = true;
    } else if (strcmp(type, "Prepend") == 0 && is_text(text_member(element, "prepend"), SPACE_MARK)) {
        r->spec.prefix = TW_PREFIX_EACH;
    } else if (strcmp(type, "Replace") == 0 && is_text(text_member(pattern, "String"), " ") &&
               is_text(text_member(element, "content"), SPACE_MARK)) {
        r->spec.space_marks = true;
    } else {
        return REFUSE(r, TW_E_UNSUPPORTED, "the normalizer '%s' is not one that we have (NFC, and spaces as U+2581)",
                      type);
    }
    return TW_OK;
}

static tw_status metaspace_step(struct reader *r, const cJSON *element) {
    const char *mark = text_member(element, "replacement");
    if (mark && strcmp(mark, SPACE_MARK) != 0)
        return REFUSE(r, TW_E_UNSUPPORTED, "its Metaspace replaces spaces by '%s', not by U+2581", mark);
    const char *scheme = text_member(element, "prepend_scheme");
    if (is_text(scheme, "first"))
        r->spec.prefix = TW_PREFIX_FIRST;
    else if (is_text(scheme, "never") || (!scheme && !flag_member(element, "add_prefix_space", true)))
        r->spec.prefix = TW_PREFIX_NEVER;
    else if (!scheme || is_text(scheme, "always"))
        r->spec.prefix = TW_PREFIX_ALWAYS;
    else
        return REFUSE(r, TW_E_UNSUPPORTED, "its Metaspace has the unknown prepend_scheme '%s'", scheme);
    r->spec.space_marks = true;
    r->spec.split_at_spaces = flag_member(element, "split", true);
    return TW_OK;
}

static tw_status pre_tokenizer_step(struct reader *r, const cJSON *element, const char *type) {
    if (strcmp(type, "ByteLevel") == 0) {
        r->spec.byte_level = true;
        r->gpt2_split = flag_member(element, "use_regex", true);
        if (flag_member(element, "add_prefix_space", true)) r->spec.prefix = TW_PREFIX_ALWAYS;
        return TW_OK;
    }
    if (strcmp(type, "Digits") == 0) {
        if (!flag_member(element, "individual_digits", false))
            return REFUSE(r, TW_E_UNSUPPORTED,
                          "its pre_tokenizer splits off runs of digits, a rule that we do not have");
        r->digits_alone = true;
        return TW_OK;
    }
    if (strcmp(type, "Metaspace") == 0) return metaspace_step(r, element);
    if (strcmp(type, "Split") == 0) {
        const cJSON *pattern = member(element, "pattern");
        const char *behavior = text_member(element, "behavior");
        const bool invert = flag_member(element, "invert", false);
        /* The rules match every character: dropping what they do not match drops nothing. */
        if (text_member(pattern, "Regex") && !r->written_split &&
            (is_text(behavior, "Isolated") || (is_text(behavior, "Removed") && invert))) {
            r->written_split = text_member(pattern, "Regex");
            return TW_OK;
        }
        /* Gemma's: there are no spaces any more when it is applied. */
        if (is_text(text_member(pattern, "String"), " ") && r->spec.space_marks) return TW_OK;
        return REFUSE(r, TW_E_UNSUPPORTED, "its pre_tokenizer has a Split that is not one of the rules that we have");
    }
    return REFUSE(r, TW_E_UNSUPPORTED,
                  "the pre_tokenizer '%s' is not one that we have (ByteLevel, Digits, Split, Metaspace)", type);
}

static tw_status choose_split(struct reader *r) {
    r->spec.split = "none";
    if (!r->written_split && !r->gpt2_split && !r->digits_alone) return TW_OK;
    const struct tw_split_rule *gpt2 = tw_split_rule_named(TW_VIEW("gpt2"));
    const struct tw_split_rule *rule = NULL;
    if (!(r->written_split && r->gpt2_split))
        rule = tw_split_rule_written(tw_view_of(r->written_split ? r->written_split
                                                : r->gpt2_split  ? gpt2->written
                                                                 : ""),
                                     r->digits_alone);
    if (rule) {
        r->spec.split = rule->name;
        return TW_OK;
    }
    struct tw_text names = {0};
    tw_split_rule_names(&names);
    REFUSE(r, TW_E_UNSUPPORTED, "its pre_tokenizer is none of the split rules that are known (%s)%s%.100s",
           tw_text_string(&names), r->written_split ? ": " : "", r->written_split ? r->written_split : "");
    tw_text_release(&names);
    return TW_E_UNSUPPORTED;
}

static tw_status post_processor_step(struct reader *r, const cJSON *element, const char *type) {
    if (strcmp(type, "ByteLevel") == 0) return TW_OK;
    if (strcmp(type, "TemplateProcessing") != 0)
        return REFUSE(r, TW_E_UNSUPPORTED, "the post_processor '%s' is not one that we have (TemplateProcessing)",
                      type);
    bool behind = false;
    const cJSON *piece;
    cJSON_ArrayForEach(piece, member(element, "single")) {
        const char *special = text_member(member(piece, "SpecialToken"), "id");
        if (member(piece, "Sequence"))
            behind = true;
        else if (special && !behind && !r->bos_text)
            r->bos_text = special;
        else if (special && behind)
            tw_text_printf(
                &r->warnings,
                "the tokenizer would put '%.40s' behind every text; it is left out, since the model is to go on\n",
                special);
    }
    return TW_OK;
}

/* Stores a token. The id has been checked against n_tokens. */
static tw_status store(struct reader *r, int32_t id, const char *text, enum tw_token_kind kind) {
    const struct tw_view view = tw_view_of(text);
    if (r->kinds[id] != TW_TOKEN_MISSING && !tw_view_equal(r->tokens[id], view))
        return REFUSE(r, TW_E_INPUT, "tokens '%.40s' and '%.40s' have the same id %d", r->tokens[id].data, text, id);
    r->tokens[id] = view;
    r->kinds[id] = (uint8_t)kind;
    return TW_OK;
}

static bool is_byte_token(const char *text) { return strlen(text) == 6 && memcmp(text, "<0x", 3) == 0; }

static tw_status read_tokens(struct reader *r, const cJSON *vocab, const cJSON *added) {
    size_t count = 0;
    int32_t highest = -1;
    const char *highest_text = "";
    const cJSON *lists[] = {vocab, added};
    for (int l = 0; l < 2; l++) {
        const cJSON *item;
        cJSON_ArrayForEach(item, lists[l]) {
            const char *text = l ? text_member(item, "content") : item->string;
            int32_t id;
            if (!text) return REFUSE(r, TW_E_INPUT, "added token %zu has no content", count);
            const cJSON *value = l ? member(item, "id") : item;
            if (!id_value(&id, value))
                return REFUSE(r, TW_E_INPUT, "the id of token '%.40s' is %.17g, not a whole number from 0 to 2^31 - 2",
                              text, cJSON_IsNumber(value) ? value->valuedouble : NAN);
            count++;
            if (id > highest) {
                highest = id;
                highest_text = text;
            }
        }
    }
    if (count == 0) return REFUSE(r, TW_E_INPUT, "its vocabulary is empty");
    /* Some ids may be left out, but memory goes by what the file holds. */
    if ((size_t)highest > 4 * count + 65536)
        return REFUSE(r, TW_E_INPUT, "token '%.40s' has the id %d, but there are only %zu tokens", highest_text,
                      highest, count);
    r->spec.n_tokens = (size_t)highest + 1;
    r->tokens = calloc(r->spec.n_tokens, sizeof *r->tokens);
    r->kinds = calloc(r->spec.n_tokens, 1);
    r->added_rules = malloc((size_t)(cJSON_GetArraySize(added) + 1) * sizeof *r->added_rules);
    if (!r->tokens || !r->kinds || !r->added_rules) return REFUSE(r, TW_E_MEMORY, "no memory for %zu tokens", count);

    const cJSON *item;
    int32_t id = 0;
    cJSON_ArrayForEach(item, vocab) {
        id_value(&id, item);
        TW_TRY(store(r, id, item->string,
                     r->spec.byte_fallback && is_byte_token(item->string) ? TW_TOKEN_BYTE : TW_TOKEN_NORMAL));
    }
    cJSON_ArrayForEach(item, added) {
        const char *text = text_member(item, "content");
        id_value(&id, member(item, "id"));
        const bool marker = flag_member(item, "special", false) || tw_added_looks_like_marker(tw_view_of(text));
        TW_TRY(store(r, id, text, marker ? TW_TOKEN_CONTROL : TW_TOKEN_USER_DEFINED));
        const struct tw_added_rule rule = {.id = id,
                                           .strip_left = flag_member(item, "lstrip", false),
                                           .strip_right = flag_member(item, "rstrip", false),
                                           .single_word = flag_member(item, "single_word", false)};
        if (rule.strip_left || rule.strip_right || rule.single_word) r->added_rules[r->spec.n_added_rules++] = rule;
    }
    return TW_OK;
}

static tw_status read_merges(struct reader *r, const cJSON *merges) {
    if (!cJSON_IsArray(merges)) return REFUSE(r, TW_E_INPUT, "its model has no merges");
    r->merges = malloc((size_t)(cJSON_GetArraySize(merges) + 1) * sizeof *r->merges);
    if (!r->merges) return REFUSE(r, TW_E_MEMORY, "no memory for its merges");
    const cJSON *item;
    cJSON_ArrayForEach(item, merges) {
        const size_t n = r->spec.n_merges;
        const char *left = NULL, *right = NULL;
        size_t left_size = 0;
        if (cJSON_IsString(item)) {
            const char *space = strchr(item->valuestring, ' ');
            if (space && !strchr(space + 1, ' ')) {
                left = item->valuestring;
                left_size = (size_t)(space - left);
                right = space + 1;
            }
        } else if (cJSON_IsArray(item) && cJSON_GetArraySize(item) == 2 && cJSON_IsString(item->child) &&
                   cJSON_IsString(item->child->next)) {
            left = item->child->valuestring;
            left_size = strlen(left);
            right = item->child->next->valuestring;
        }
        if (!left || left_size == 0 || *right == 0)
            return REFUSE(r, TW_E_INPUT, "merge %zu is not two tokens: neither \"a b\" nor [\"a\", \"b\"]%s%.60s", n,
                          cJSON_IsString(item) ? ": " : "", cJSON_IsString(item) ? item->valuestring : "");
        r->merges[r->spec.n_merges++] = (struct tw_merge_rule){{left, left_size}, tw_view_of(right)};
    }
    return TW_OK;
}

/* The id of a token by its text, or TW_NO_TOKEN; from the end, where the added tokens are. */
static int32_t find_token(const struct reader *r, const char *text) {
    if (!text) return TW_NO_TOKEN;
    for (size_t id = r->spec.n_tokens; id-- > 0;)
        if (r->kinds[id] != TW_TOKEN_MISSING && tw_view_equal(r->tokens[id], tw_view_of(text))) return (int32_t)id;
    return TW_NO_TOKEN;
}

static tw_status read_model(struct reader *r, const cJSON *root) {
    const cJSON *model = member(root, "model");
    const char *type = text_member(model, "type");
    if (!model) return REFUSE(r, TW_E_INPUT, "it has no model");
    if (type && strcmp(type, "BPE") != 0)
        return REFUSE(r, TW_E_UNSUPPORTED, "its model is a '%.40s'; only BPE is supported", type);
    if (!cJSON_IsObject(member(model, "vocab"))) return REFUSE(r, TW_E_INPUT, "its model has no vocabulary");
    const char *affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; i++) {
        const char *affix = text_member(model, affixes[i]);
        if (affix && *affix) return REFUSE(r, TW_E_UNSUPPORTED, "its model has a %s, which we do not have", affixes[i]);
    }
    const cJSON *dropout = member(model, "dropout");
    if (dropout && !(cJSON_IsNumber(dropout) && dropout->valuedouble == 0))
        return REFUSE(r, TW_E_UNSUPPORTED, "its model has dropout: the same text would have many encodings");
    r->spec.byte_fallback = flag_member(model, "byte_fallback", false);
    r->spec.fuse_unknown = flag_member(model, "fuse_unk", false);
    r->spec.ignore_merges = flag_member(model, "ignore_merges", false);
    TW_TRY(read_tokens(r, member(model, "vocab"), member(root, "added_tokens")));
    TW_TRY(read_merges(r, member(model, "merges")));
    const char *unknown = text_member(model, "unk_token");
    r->spec.unknown = find_token(r, unknown);
    if (unknown && r->spec.unknown == TW_NO_TOKEN)
        return REFUSE(r, TW_E_INPUT, "its unknown token '%.40s' is not in the vocabulary", unknown);
    return TW_OK;
}

/* "bos_token": a text, or an object with "content". */
static const char *config_token(const cJSON *config, const char *name) {
    const cJSON *item = member(config, name);
    return cJSON_IsString(item) ? item->valuestring : text_member(item, "content");
}

/* A text, or a list of named ones of which "default" counts. */
static const char *config_template(const cJSON *config) {
    const cJSON *item = member(config, "chat_template");
    if (cJSON_IsString(item)) return item->valuestring;
    const cJSON *named;
    if (!cJSON_IsArray(item)) return NULL;
    cJSON_ArrayForEach(named, item) {
        if (is_text(text_member(named, "name"), "default")) return text_member(named, "template");
    }
    return NULL;
}

static tw_status read_ends(struct reader *r, const cJSON *generation) {
    const cJSON *item = member(generation, "eos_token_id");
    const bool list = cJSON_IsArray(item);
    r->ends = malloc((size_t)(1 + (list ? cJSON_GetArraySize(item) : 0)) * sizeof *r->ends);
    if (!r->ends) return REFUSE(r, TW_E_MEMORY, "out of memory");
    for (const cJSON *one = list ? item->child : item; one; one = list ? one->next : NULL)
        if (id_value(&r->ends[r->spec.n_ends], one)) r->spec.n_ends++;
    return TW_OK;
}

static void read_config(struct reader *r, const cJSON *config) {
    r->spec.bos = find_token(r, r->bos_text ? r->bos_text : config_token(config, "bos_token"));
    r->spec.eos = find_token(r, config_token(config, "eos_token"));
    r->spec.add_bos = flag_member(config, "add_bos_token", r->bos_text != NULL);
    const char *template = config_template(config);
    r->spec.chat_template = r->files->chat_template;
    if (r->spec.chat_template.size == 0 && template) r->spec.chat_template = tw_view_of(template);
}

static tw_status parse(struct reader *r, cJSON **json, struct tw_view text, const char *what) {
    *json = NULL;
    if (text.size == 0) return TW_OK;
    const char *end = NULL;
    *json = cJSON_ParseWithLengthOpts(text.data, text.size, &end, false);
    if (*json) return TW_OK;
    /* cJSON gives up without a reason; where it stopped is the best there is. */
    return REFUSE(r, TW_E_INPUT, "%s is not JSON (it breaks off or goes wrong near byte %zu of %zu)", what,
                  end ? (size_t)(end - text.data) : 0, text.size);
}

static tw_status read_all(struct reader *r, const cJSON *root, const cJSON *config, const cJSON *generation) {
    if (!cJSON_IsObject(root)) return REFUSE(r, TW_E_INPUT, "it is not a JSON object");
    TW_TRY(each_step(r, member(root, "normalizer"), "normalizers", "normalizer", normalizer_step));
    TW_TRY(each_step(r, member(root, "pre_tokenizer"), "pretokenizers", "pre_tokenizer", pre_tokenizer_step));
    TW_TRY(each_step(r, member(root, "post_processor"), "processors", "post_processor", post_processor_step));
    TW_TRY(choose_split(r));
    TW_TRY(read_model(r, root));
    TW_TRY(read_ends(r, generation));
    read_config(r, config);
    r->spec.tokens = r->tokens;
    r->spec.kinds = r->kinds;
    r->spec.merges = r->merges;
    r->spec.added_rules = r->added_rules;
    r->spec.ends = r->ends;
    r->spec.warnings = tw_text_view(&r->warnings);
    return TW_OK;
}

tw_status tw_tokenizer_from_json(struct tw_tokenizer **tokenizer, const struct tw_tokenizer_files *files,
                                 struct tw_error *err) {
    *tokenizer = NULL;
    struct reader r = {.files = files,
                       .err = err,
                       .spec = {.name = files->name, .bos = TW_NO_TOKEN, .eos = TW_NO_TOKEN, .unknown = TW_NO_TOKEN}};
    cJSON *root = NULL, *config = NULL, *generation = NULL;
    tw_status status;
    TW_TRY_GOTO(status, done, parse(&r, &root, files->tokenizer, "it"));
    TW_TRY_GOTO(status, done, parse(&r, &config, files->config, "its tokenizer_config.json"));
    TW_TRY_GOTO(status, done, parse(&r, &generation, files->generation_config, "its generation_config.json"));
    TW_TRY_GOTO(status, done, read_all(&r, root, config, generation));
    status = tw_tokenizer_create(tokenizer, &r.spec, err);
done:
    cJSON_Delete(root);
    cJSON_Delete(config);
    cJSON_Delete(generation);
    free(r.tokens);
    free(r.kinds);
    free(r.merges);
    free(r.added_rules);
    free(r.ends);
    tw_text_release(&r.warnings);
    tw_text_release(&r.scratch);
    return status;
}
