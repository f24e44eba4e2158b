#include "base/options.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/parse.h"

static void *field(void *target, const struct tw_option *option) { return (char *)target + option->offset; }
static const void *field_const(const void *target, const struct tw_option *option) {
    return (const char *)target + option->offset;
}

static bool bounded(const struct tw_option *option) { return option->minimum != 0 || option->maximum != 0; }

static bool inside(const struct tw_option *option, double value) {
    if (!bounded(option)) return true;
    return value >= option->minimum && (option->maximum == 0 || value <= option->maximum);
}

static tw_status refuse(const struct tw_option *option, const char *value, const char *prefix, const char *expected,
                        struct tw_error *err) {
    return TW_FAIL(err, TW_E_OPTION, "option '%s%s': '%s' is not %s", prefix, option->name, value, expected);
}

static tw_status out_of_range(const struct tw_option *option, const char *value, const char *prefix,
                              struct tw_error *err) {
    if (option->maximum == 0)
        return TW_FAIL(err, TW_E_OPTION, "option '%s%s': '%s' is below %.15g", prefix, option->name, value,
                       option->minimum);
    return TW_FAIL(err, TW_E_OPTION, "option '%s%s': '%s' is not between %.15g and %.15g", prefix, option->name, value,
                   option->minimum, option->maximum);
}

/* The index of `value` in "a|b|c"; false if it is not there. */
static bool find_choice(unsigned *index, const char *choices, struct tw_view value) {
    struct tw_view piece, rest = tw_view_of(choices);
    for (unsigned i = 0; tw_parse_next(&piece, &rest, '|'); i++)
        if (tw_view_equal(piece, value)) {
            *index = i;
            return true;
        }
    return false;
}

struct tw_view tw_option_choice(const struct tw_option *option, unsigned index) {
    struct tw_view piece = {0}, rest = tw_view_of(option->choices);
    for (unsigned i = 0; tw_parse_next(&piece, &rest, '|') && i < index; i++) {
    }
    return piece;
}

static bool parse_size_list(struct tw_u64_list *list, struct tw_view text) {
    struct tw_view piece, rest = text;
    uint64_t *values = NULL;
    size_t n = 0;
    while (tw_parse_next(&piece, &rest, ',')) {
        uint64_t value;
        uint64_t *larger = NULL;
        if (!tw_parse_size(&value, piece) || !(larger = realloc(values, (n + 1) * sizeof *values))) {
            free(values);
            return false;
        }
        values = larger;
        values[n++] = value;
    }
    list->values = values;
    list->n = n;
    return true;
}

static bool parse_double_list(struct tw_double_list *list, struct tw_view text) {
    struct tw_view piece, rest = text;
    double *values = NULL;
    size_t n = 0;
    while (tw_parse_next(&piece, &rest, ',')) {
        double value, *larger = NULL;
        if (!tw_parse_double(&value, piece) || !(larger = realloc(values, (n + 1) * sizeof *values))) {
            free(values);
            return false;
        }
        values = larger;
        values[n++] = value;
    }
    list->values = values;
    list->n = n;
    return true;
}

tw_status tw_options_set(void *target, const struct tw_option *option, const char *value, const char *prefix,
                         struct tw_error *err) {
    const struct tw_view view = tw_view_of(value);
    void *const at = field(target, option);
    uint64_t u = 0;
    double d = 0;
    switch (option->type) {
    case TW_OPTION_FLAG:
        if (strcmp(value, "0") && strcmp(value, "1")) return refuse(option, value, prefix, "0 or 1", err);
        *(bool *)at = value[0] == '1';
        return TW_OK;
    case TW_OPTION_U64:
        if (!tw_parse_u64(&u, view)) return refuse(option, value, prefix, "a whole number", err);
        if (!inside(option, (double)u)) return out_of_range(option, value, prefix, err);
        *(uint64_t *)at = u;
        return TW_OK;
    case TW_OPTION_SIZE:
        if (!tw_parse_size(&u, view)) return refuse(option, value, prefix, "a size like 4096, 64K or 2M", err);
        if (!inside(option, (double)u)) return out_of_range(option, value, prefix, err);
        *(uint64_t *)at = u;
        return TW_OK;
    case TW_OPTION_BUDGET:
        if (!strcmp(value, "full")) {
            *(uint64_t *)at = 0;
            return TW_OK;
        }
        if (!tw_parse_size(&u, view) || u == 0) return refuse(option, value, prefix, "'full' or a positive count", err);
        if (!inside(option, (double)u)) return out_of_range(option, value, prefix, err);
        *(uint64_t *)at = u;
        return TW_OK;
    case TW_OPTION_DOUBLE:
        if (!tw_parse_double(&d, view)) return refuse(option, value, prefix, "a number", err);
        if (!inside(option, d)) return out_of_range(option, value, prefix, err);
        *(double *)at = d;
        return TW_OK;
    case TW_OPTION_RATE:
        if (!tw_parse_rate(&d, view)) return refuse(option, value, prefix, "a rate like 25GB/s or 800MB/s", err);
        *(double *)at = d;
        return TW_OK;
    case TW_OPTION_TIME:
        if (!tw_parse_time(&d, view)) return refuse(option, value, prefix, "a time like 10us, 30ms or 1.5s", err);
        *(double *)at = d;
        return TW_OK;
    case TW_OPTION_TEXT: *(const char **)at = value; return TW_OK;
    case TW_OPTION_CHOICE: {
        unsigned index;
        if (!find_choice(&index, option->choices, view)) {
            char expected[256] = "one of ";
            strncat(expected, option->choices, sizeof expected - strlen(expected) - 1);
            for (char *c = expected; *c; c++)
                if (*c == '|') *c = ',';
            return refuse(option, value, prefix, expected, err);
        }
        *(unsigned *)at = index;
        return TW_OK;
    }
    case TW_OPTION_DOUBLE_LIST: {
        struct tw_double_list list = {0};
        if (!parse_double_list(&list, view))
            return refuse(option, value, prefix, "a list of numbers like 0.1,0.5", err);
        for (size_t i = 0; i < list.n; i++)
            if (!inside(option, list.values[i])) {
                free(list.values);
                return out_of_range(option, value, prefix, err);
            }
        free(((struct tw_double_list *)at)->values);
        *(struct tw_double_list *)at = list;
        return TW_OK;
    }
    case TW_OPTION_U64_LIST:
    case TW_OPTION_SIZE_LIST: {
        struct tw_u64_list list = {0};
        const bool ok = option->type == TW_OPTION_U64_LIST ? tw_parse_u64_list(&list.values, &list.n, view)
                                                           : parse_size_list(&list, view);
        if (!ok)
            return refuse(option, value, prefix,
                          option->type == TW_OPTION_U64_LIST ? "a list of whole numbers like 8,16 or 1..64"
                                                             : "a list of sizes like 512,2K",
                          err);
        for (size_t i = 0; i < list.n; i++)
            if (!inside(option, (double)list.values[i])) {
                free(list.values);
                return out_of_range(option, value, prefix, err);
            }
        free(((struct tw_u64_list *)at)->values);
        *(struct tw_u64_list *)at = list;
        return TW_OK;
    }
    }
    return TW_FAIL(err, TW_E_OPTION, "option '%s%s' has no type", prefix, option->name);
}

void tw_options_init(void *target, size_t size, const struct tw_option *options) {
    memset(target, 0, size);
    for (const struct tw_option *o = options; o && o->name; o++) {
        if (!o->default_value) continue;
        struct tw_error err = {0};
        const tw_status status = tw_options_set(target, o, o->default_value, "", &err);
        assert(status == TW_OK);
        (void)status;
    }
}

void tw_options_release(void *target, const struct tw_option *options) {
    for (const struct tw_option *o = options; o && o->name; o++)
        if (o->type == TW_OPTION_U64_LIST || o->type == TW_OPTION_SIZE_LIST) {
            struct tw_u64_list *list = field(target, o);
            free(list->values);
            *list = (struct tw_u64_list){0};
        } else if (o->type == TW_OPTION_DOUBLE_LIST) {
            struct tw_double_list *list = field(target, o);
            free(list->values);
            *list = (struct tw_double_list){0};
        }
}

const struct tw_option *tw_options_find(const struct tw_option *options, struct tw_view name) {
    for (const struct tw_option *o = options; o && o->name; o++)
        if (tw_view_equal(name, tw_view_of(o->name))) return o;
    return NULL;
}

static tw_status unknown(const struct tw_option *options, struct tw_view name, const char *what, struct tw_error *err) {
    struct tw_text names = {0};
    for (const struct tw_option *o = options; o && o->name; o++)
        tw_text_printf(&names, "%s%s", names.size ? ", " : "", o->name);
    const tw_status status =
        names.size ? TW_FAIL(err, TW_E_OPTION, "%s has no option '%.*s'; it has: %s", what, (int)name.size, name.data,
                             tw_text_string(&names))
                   : TW_FAIL(err, TW_E_OPTION, "%s has no options, so not '%.*s'", what, (int)name.size, name.data);
    tw_text_release(&names);
    return status;
}

tw_status tw_options_parse_specification(void *target, const struct tw_option *options, struct tw_view specification,
                                         const char *what, struct tw_error *err) {
    if (specification.size == 0) return TW_OK;
    struct tw_view piece, rest = specification;
    while (tw_parse_next(&piece, &rest, ':')) {
        struct tw_view value = piece, name;
        if (!tw_parse_next(&name, &value, '=') || !value.data)
            return TW_FAIL(err, TW_E_OPTION, "%s: '%.*s' is not of the form option=value", what, (int)piece.size,
                           piece.data);
        const struct tw_option *option = tw_options_find(options, name);
        if (!option) return unknown(options, name, what, err);
        char copy[256];
        if (value.size >= sizeof copy)
            return TW_FAIL(err, TW_E_OPTION, "%s: the value of '%s' is too long", what, option->name);
        assert(option->type != TW_OPTION_TEXT); /* the copy does not outlive this call */
        memcpy(copy, value.data, value.size);
        copy[value.size] = 0;
        char prefix[128];
        size_t n = strlen(what);
        if (n > sizeof prefix - 3) n = sizeof prefix - 3;
        memcpy(prefix, what, n);
        memcpy(prefix + n, ": ", 3);
        TW_TRY(tw_options_set(target, option, copy, prefix, err));
    }
    return TW_OK;
}

static void append_value(struct tw_text *text, const void *target, const struct tw_option *o) {
    const void *at = field_const(target, o);
    switch (o->type) {
    case TW_OPTION_FLAG: tw_text_printf(text, "%d", *(const bool *)at); break;
    case TW_OPTION_U64:
    case TW_OPTION_SIZE: tw_text_printf(text, "%llu", (unsigned long long)*(const uint64_t *)at); break;
    case TW_OPTION_BUDGET:
        if (*(const uint64_t *)at == 0)
            tw_text_printf(text, "full");
        else
            tw_text_printf(text, "%llu", (unsigned long long)*(const uint64_t *)at);
        break;
    case TW_OPTION_DOUBLE: tw_text_printf(text, "%.15g", *(const double *)at); break;
    case TW_OPTION_RATE: tw_text_printf(text, "%.15gB/s", *(const double *)at); break;
    case TW_OPTION_TIME: tw_text_printf(text, "%.15gs", *(const double *)at); break;
    case TW_OPTION_TEXT: tw_text_printf(text, "%s", *(const char *const *)at ? *(const char *const *)at : ""); break;
    case TW_OPTION_CHOICE: tw_text_append(text, tw_option_choice(o, *(const unsigned *)at)); break;
    case TW_OPTION_DOUBLE_LIST: {
        const struct tw_double_list *list = at;
        for (size_t i = 0; i < list->n; i++) tw_text_printf(text, "%s%.15g", i ? "," : "", list->values[i]);
        break;
    }
    case TW_OPTION_U64_LIST:
    case TW_OPTION_SIZE_LIST: {
        const struct tw_u64_list *list = at;
        for (size_t i = 0; i < list->n; i++)
            tw_text_printf(text, "%s%llu", i ? "," : "", (unsigned long long)list->values[i]);
        break;
    }
    }
}

void tw_options_describe(struct tw_text *text, const void *target, const struct tw_option *options) {
    for (const struct tw_option *o = options; o && o->name; o++) {
        /* A scratch struct of one field, holding the default, is compared as text. */
        union {
            bool flag;
            uint64_t u;
            double d;
            unsigned choice;
            const char *s;
            struct tw_u64_list list;
            struct tw_double_list doubles;
        } fallback;
        memset(&fallback, 0, sizeof fallback);
        struct tw_option alone = *o;
        alone.offset = 0;
        if (o->default_value) (void)tw_options_set(&fallback, &alone, o->default_value, "", NULL);
        struct tw_text mine = {0}, theirs = {0};
        append_value(&mine, target, o);
        append_value(&theirs, &fallback, &alone);
        if (!tw_view_equal(tw_text_view(&mine), tw_text_view(&theirs)))
            tw_text_printf(text, ":%s=%s", o->name, tw_text_string(&mine));
        tw_text_release(&mine);
        tw_text_release(&theirs);
        tw_options_release(&fallback, (const struct tw_option[]){alone, {0}});
    }
}

void tw_options_help(struct tw_text *text, const struct tw_option *options) {
    enum { COLUMN = 28, WIDTH = 110 };
    for (const struct tw_option *o = options; o && o->name; o++) {
        const size_t start = text->size;
        if (o->letter)
            tw_text_printf(text, "  -%c, --%s", o->letter, o->name);
        else
            tw_text_printf(text, "  --%s", o->name);
        const char *value = o->type == TW_OPTION_CHOICE ? o->choices : o->value_name;
        if (value && o->type != TW_OPTION_FLAG) tw_text_printf(text, " %s", value);
        if (text->size - start + 2 > COLUMN)
            tw_text_printf(text, "\n%*s", COLUMN, "");
        else
            tw_text_printf(text, "%*s", (int)(COLUMN - (text->size - start)), "");
        struct tw_text help = {0};
        tw_text_printf(&help, "%s", o->help);
        if (o->default_value && o->type != TW_OPTION_FLAG) tw_text_printf(&help, " (default %s)", o->default_value);
        /* Wrapped at spaces. */
        size_t used = COLUMN;
        struct tw_view word, rest = tw_text_view(&help);
        for (bool first = true; tw_parse_next(&word, &rest, ' '); first = false) {
            if (!first && used + 1 + word.size > WIDTH) {
                tw_text_printf(text, "\n%*s", COLUMN, "");
                used = COLUMN;
            } else if (!first) {
                tw_text_append_char(text, ' ');
                used++;
            }
            tw_text_append(text, word);
            used += word.size;
        }
        tw_text_append_char(text, '\n');
        tw_text_release(&help);
    }
}
