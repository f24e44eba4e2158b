#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/tokenizer/pretokenize.h"

#include <pcre2.h>
#include <stdlib.h>

/* Unicode's White_Space. PCRE2's own \s would take U+180E too, which has not been a space since Unicode 6.3. */
#define SPACE  "\\t-\\r\\x{85}\\p{Z}"
#define IS     "[" SPACE "]"
#define IS_NOT "[^" SPACE "]"
#define OTHER  "[^" SPACE "\\p{L}\\p{N}]" /* neither space, letter nor number */
#define SHORTS "'(?:[stmd]|re|ve|ll)"
/* Llama-3's rule and Qwen2's differ in how many digits go together. */
#define LLAMA3(digits)                                                                                                 \
    "(?i:" SHORTS ")|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}" digits "| ?+" OTHER "++[\\r\\n]*+|" IS "*[\\r\\n]++|" IS  \
    "+(?!" IS_NOT ")|" IS "++"
#define WRITTEN_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define WRITTEN_LLAMA3(digits)                                                                                         \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits                                         \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct tw_split_rule rules[] = {
    {.name = "gpt2",
     .aliases = "gpt-2",
     .written = WRITTEN_GPT2,
     .pattern = SHORTS "| ?+\\p{L}++| ?+\\p{N}++| ?+" OTHER "++|" IS "+(?!" IS_NOT ")|" IS "++"},
    {.name = "llama-bpe",
     .aliases = "llama3|llama-v3",
     .written = WRITTEN_LLAMA3("{1,3}"),
     .pattern = LLAMA3("{1,3}+"),
     .add_bos = true,
     .ignore_merges = true},
    {.name = "qwen2", .aliases = "deepseek-r1-qwen", .written = WRITTEN_LLAMA3(""), .pattern = LLAMA3(""), .nfc = true},
    /* Every digit alone, then GPT-2's rule between the digits, for which a digit is the end of the text. */
    {.name = "smollm",
     .aliases = "starcoder",
     .written = WRITTEN_GPT2,
     .digits_alone = true,
     .pattern = "\\p{N}|" SHORTS "| ?+\\p{L}++| ?+" OTHER "++|" IS "+(?![^" SPACE "\\p{N}])|" IS "++"},
};
enum { N_RULES = sizeof rules / sizeof *rules };

static bool is_among(struct tw_view name, const char *aliases) {
    for (const char *at = aliases; *at;) {
        const size_t size = strcspn(at, "|");
        if (tw_view_equal(name, (struct tw_view){at, size})) return true;
        at += size + (at[size] == '|');
    }
    return false;
}

const struct tw_split_rule *tw_split_rule_named(struct tw_view name) {
    for (int i = 0; i < N_RULES; i++)
        if (tw_view_equal(name, tw_view_of(rules[i].name)) || is_among(name, rules[i].aliases)) return &rules[i];
    return NULL;
}

const struct tw_split_rule *tw_split_rule_written(struct tw_view expression, bool digits_alone) {
    for (int i = 0; i < N_RULES; i++)
        if (rules[i].digits_alone == digits_alone && tw_view_equal(expression, tw_view_of(rules[i].written)))
            return &rules[i];
    return NULL;
}

void tw_split_rule_names(struct tw_text *text) {
    for (int i = 0; i < N_RULES; i++) tw_text_printf(text, "%s%s", i ? ", " : "", rules[i].name);
}

struct tw_splitter {
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    const PCRE2_SIZE *bounds; /* [2] of the last match */
    bool jit;
};

void tw_splitter_free(struct tw_splitter *s) {
    if (!s) return;
    pcre2_match_data_free(s->match);
    pcre2_match_context_free(s->context);
    pcre2_jit_stack_free(s->stack);
    pcre2_code_free(s->code);
    free(s);
}

tw_status tw_splitter_create(struct tw_splitter **splitter, const struct tw_split_rule *rule, struct tw_error *err) {
    *splitter = NULL;
    struct tw_splitter *s = calloc(1, sizeof *s);
    if (!s) return TW_FAIL(err, TW_E_MEMORY, "split rule '%s': out of memory", rule->name);
    int code;
    PCRE2_SIZE where;
    s->code = pcre2_compile((PCRE2_SPTR)rule->pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED,
                            &code, &where, NULL);
    if (!s->code) {
        PCRE2_UCHAR words[128];
        pcre2_get_error_message(code, words, sizeof words);
        tw_splitter_free(s);
        return TW_FAIL(
            err, TW_E_UNSUPPORTED,
            "split rule '%s': this PCRE2 cannot compile it (%s at %zu); it must be built with Unicode support",
            rule->name, (const char *)words, (size_t)where);
    }
    s->jit = pcre2_jit_compile(s->code, PCRE2_JIT_COMPLETE) == 0;
    s->match = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    if (s->jit) s->stack = pcre2_jit_stack_create(32 * 1024, 1024 * 1024, NULL);
    if (!s->match || !s->context || (s->jit && !s->stack)) {
        tw_splitter_free(s);
        return TW_FAIL(err, TW_E_MEMORY, "split rule '%s': out of memory", rule->name);
    }
    /* The rules give back what they took at most once, in steps of a character: the limit against runaway expressions
     * would only refuse long runs of white space. */
    pcre2_set_match_limit(s->context, UINT32_MAX);
    if (s->jit) pcre2_jit_stack_assign(s->context, NULL, s->stack);
    s->bounds = pcre2_get_ovector_pointer(s->match);
    *splitter = s;
    return TW_OK;
}

tw_status tw_splitter_next(size_t *end, struct tw_splitter *s, struct tw_view text, size_t from, struct tw_error *err) {
    /* Matching is anchored: a rule matches any character, so that a failure means a piece of one character. */
    const uint32_t options = PCRE2_NO_UTF_CHECK;
    const int n = s->jit
                      ? pcre2_jit_match(s->code, (PCRE2_SPTR)text.data, text.size, from, options, s->match, s->context)
                      : pcre2_match(s->code, (PCRE2_SPTR)text.data, text.size, from, options, s->match, s->context);
    if (n > 0 && s->bounds[1] > from) {
        *end = s->bounds[1];
        return TW_OK;
    }
    if (n == PCRE2_ERROR_NOMATCH || n > 0) {
        *end = from + 1;
        while (*end < text.size && ((uint8_t)text.data[*end] & 0xc0) == 0x80) ++*end;
        return TW_OK;
    }
    PCRE2_UCHAR words[128];
    pcre2_get_error_message(n, words, sizeof words);
    return TW_FAIL(err, TW_E_MEMORY, "splitting the text into pieces failed at byte %zu: %s", from,
                   (const char *)words);
}
