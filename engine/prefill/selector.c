#include "engine/prefill/selector.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/parse.h"
#include "engine/prefill/selectors.h"

#define DECLARE(symbol) extern const struct tw_selector tw_selector_##symbol;
#define POINTER(symbol) &tw_selector_##symbol,
TW_SELECTORS(DECLARE)
const struct tw_selector *const tw_selector_table[] = {TW_SELECTORS(POINTER) NULL};

void tw_kept_release(struct tw_kept *kept, struct tw_accountant *accountant) {
    tw_buffer_release(&kept->data, accountant);
    free(kept->n_rows);
    free(kept->row);
    memset(kept, 0, sizeof *kept);
}

tw_status tw_kept_allocate(struct tw_kept *kept, struct tw_accountant *accountant, size_t n_kv_heads,
                           const size_t *n_rows, struct tw_error *err) {
    size_t total = 0;
    memset(kept, 0, sizeof *kept);
    for (size_t g = 0; g < n_kv_heads; g++) total += n_rows[g];
    TW_TRY(tw_buffer_allocate_host(&kept->data, accountant, total * sizeof(int32_t), TW_CATEGORY_COMPRESSION,
                                   "kept rows", err));
    kept->n_kv_heads = n_kv_heads;
    kept->n_rows = malloc(n_kv_heads * sizeof *kept->n_rows);
    kept->row = malloc(n_kv_heads * sizeof *kept->row);
    if (!kept->n_rows || !kept->row) {
        tw_kept_release(kept, accountant);
        return TW_FAIL(err, TW_E_MEMORY, "out of memory: kept rows");
    }
    int32_t *at = kept->data.data;
    for (size_t g = 0; g < n_kv_heads; g++) {
        kept->n_rows[g] = n_rows[g];
        kept->row[g] = at;
        at += n_rows[g];
    }
    return TW_OK;
}

tw_status tw_kept_all(struct tw_kept *kept, struct tw_accountant *accountant, const struct tw_kv *kv,
                      struct tw_error *err) {
    TW_TRY(tw_kept_allocate(kept, accountant, kv->n_kv_heads, kv->length, err));
    for (size_t g = 0; g < kv->n_kv_heads; g++)
        for (size_t r = 0; r < kv->length[g]; r++) kept->row[g][r] = (int32_t)r;
    return TW_OK;
}

tw_status tw_uniform_budget(size_t *budget, const struct tw_selection_context *context, bool windowed, const char *name,
                            struct tw_error *err) {
    *budget = context->prompt_length;
    if (context->budget == 0 || context->budget >= context->prompt_length) return TW_OK;
    if (windowed && context->budget < context->window && context->window < context->prompt_length)
        return TW_FAIL(err, TW_E_OPTION,
                       "selector '%s': a budget of %zu is smaller than the window of %zu, which is always kept", name,
                       context->budget, context->window);
    *budget = context->budget;
    return TW_OK;
}

tw_status tw_selector_head_budget(size_t *budget, const struct tw_selector *selector,
                                  const struct tw_selection_context *context, const void *options, size_t l,
                                  struct tw_error *err) {
    return (selector->head_budget ? selector->head_budget : selector->layer_budget)(budget, context, options, l, err);
}

tw_status tw_selector_choose(struct tw_selector_choice *choice, const char *specification, struct tw_error *err) {
    struct tw_view name, rest = tw_view_of(specification);
    tw_parse_next(&name, &rest, ':');
    memset(choice, 0, sizeof *choice);
    struct tw_text names = {0};
    for (const struct tw_selector *const *s = tw_selector_table; *s; s++) {
        if (tw_view_equal(name, tw_view_of((*s)->name))) choice->selector = *s;
        tw_text_printf(&names, "%s%s", names.size ? ", " : "", (*s)->name);
    }
    tw_status status = TW_OK;
    if (!choice->selector)
        status = TW_FAIL(err, TW_E_OPTION, "there is no selector '%.*s'; there are: %s", (int)name.size, name.data,
                         tw_text_string(&names));
    tw_text_release(&names);
    if (status != TW_OK) return status;
    const struct tw_selector *selector = choice->selector;
    if (!selector->options) {
        if (rest.data && rest.size) return TW_FAIL(err, TW_E_OPTION, "selector '%s' has no options", selector->name);
        return TW_OK;
    }
    choice->options = malloc(selector->options_size);
    if (!choice->options) return TW_FAIL(err, TW_E_MEMORY, "out of memory: options of a selector");
    tw_options_init(choice->options, selector->options_size, selector->options);
    char what[64];
    snprintf(what, sizeof what, "selector '%s'", selector->name);
    if (rest.data) status = tw_options_parse_specification(choice->options, selector->options, rest, what, err);
    if (status != TW_OK) tw_selector_choice_release(choice);
    return status;
}

void tw_selector_choice_release(struct tw_selector_choice *choice) {
    if (choice->options) tw_options_release(choice->options, choice->selector->options);
    free(choice->options);
    memset(choice, 0, sizeof *choice);
}

void tw_selector_choice_describe(struct tw_text *text, const struct tw_selector_choice *choice) {
    tw_text_printf(text, "%s", choice->selector->name);
    if (choice->options) tw_options_describe(text, choice->options, choice->selector->options);
}
