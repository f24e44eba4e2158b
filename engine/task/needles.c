/*
 * Needles in a haystack: one (WakeKV, section 2; RULER's S-NIAH), and RULER's multi-key, multi-value and multi-query
 * forms. One generator: `n_keys` places have numbers, the place asked for has `n_values` of them, `n_queries` places
 * are asked for.
 */
#include "engine/task/material.h"

#include <stdlib.h>

struct shape {
    size_t n_keys, n_values, n_queries;
};

static void append_number_sentence(struct tw_text *text, struct tw_view place, struct tw_view number) {
    tw_text_printf(text, "The special magic number for %.*s is %.*s.", (int)place.size, place.data, (int)number.size,
                   number.data);
}

static int by_depth(const void *a, const void *b) {
    const struct tw_needle *x = a, *y = b;
    return (x->depth > y->depth) - (x->depth < y->depth);
}

/* "a", "a and b", "a, b and c" */
static void append_list_item(struct tw_text *text, size_t i, size_t n, struct tw_view item) {
    if (i) tw_text_append(text, i + 1 == n ? TW_VIEW(" and ") : TW_VIEW(", "));
    tw_text_append(text, item);
}

static tw_status make(struct tw_prompt *prompt, const struct tw_task_request *request,
                      const struct tw_token_counter *counter, const struct shape *shape, struct tw_error *err) {
    struct tw_random random;
    tw_random_init(&random, request->seed, 1);
    size_t places[16];
    tw_list_draw(places, shape->n_keys, TW_LIST_PLACES, &random);

    /* Needle 0 is the one that the trace marks: the first value of the first place that is asked for. */
    const size_t n_needles = shape->n_values + shape->n_keys - 1;
    struct tw_needle needles[16] = {0};
    struct tw_text asked = {0}, question = {0}, numbers[16] = {0};
    for (size_t k = 0; k < n_needles; k++) {
        const size_t key = k < shape->n_values ? 0 : k - shape->n_values + 1;
        tw_random_number(&numbers[k], &random);
        append_number_sentence(&needles[k].sentence, tw_list_line(TW_LIST_PLACES, places[key]),
                               tw_text_view(&numbers[k]));
        needles[k].depth = k == 0 ? request->depth : tw_random_unit(&random);
    }
    tw_status status = TW_OK;
    for (size_t k = 0; k < n_needles && status == TW_OK; k++)
        if (k < shape->n_values || k - shape->n_values + 1 < shape->n_queries)
            status = tw_prompt_expect(prompt, tw_text_view(&numbers[k]), err);
    const struct tw_view marked = tw_text_view(&needles[0].sentence);
    qsort(needles, n_needles, sizeof *needles, by_depth);

    for (size_t q = 0; q < shape->n_queries; q++)
        append_list_item(&asked, q, shape->n_queries, tw_list_line(TW_LIST_PLACES, places[q]));
    const bool plural = shape->n_values > 1 || shape->n_queries > 1;
    tw_text_printf(&question, "\n\nWhat %s the special magic number%s for %s mentioned in the text above?",
                   plural ? "are" : "is", plural ? "s" : "", tw_text_string(&asked));
    tw_text_printf(&prompt->answer_opening, "The special magic number%s for %s mentioned in the text %s",
                   plural ? "s" : "", tw_text_string(&asked), plural ? "are" : "is");

    struct tw_text *content = tw_prompt_add_message(prompt, TW_ROLE_USER);
    if (!content && status == TW_OK) status = TW_FAIL(err, TW_E_MEMORY, "out of memory for a prompt");
    if (status == TW_OK) {
        tw_text_append(content,
                       TW_VIEW("Some special magic numbers are hidden in the following text. Memorize them.\n\n"));
        const size_t around = counter->count(counter->context, tw_text_view(content)) +
                              counter->count(counter->context, tw_text_view(&question)) +
                              counter->count(counter->context, tw_text_view(&prompt->answer_opening));
        const size_t room = request->context_tokens > around ? request->context_tokens - around : 0;
        struct tw_text haystack = {0};
        status = tw_haystack(&haystack, needles, n_needles, room, counter, err);
        for (size_t k = 0; k < n_needles; k++)
            if (needles[k].sentence.data == marked.data) {
                prompt->needle_begin = content->size + needles[k].begin;
                prompt->needle_end = content->size + needles[k].end;
            }
        tw_text_append(content, tw_text_view(&haystack));
        tw_text_append(content, tw_text_view(&question));
        tw_text_release(&haystack);
    }
    for (size_t k = 0; k < n_needles; k++) {
        tw_text_release(&needles[k].sentence);
        tw_text_release(&numbers[k]);
    }
    tw_text_release(&asked);
    tw_text_release(&question);
    return status;
}

#define NEEDLE_TASK(symbol, text, from, answer, ...)                                                                   \
    static tw_status make_##symbol(struct tw_prompt *prompt, const struct tw_task_request *request,                    \
                                   const struct tw_token_counter *counter, struct tw_error *err) {                     \
        return make(prompt, request, counter, &(const struct shape){__VA_ARGS__}, err);                                \
    }                                                                                                                  \
    const struct tw_task tw_task_##symbol = {.name = #symbol,                                                          \
                                             .summary = text,                                                          \
                                             .source = from,                                                           \
                                             .default_tokens = 2048,                                                   \
                                             .answer_tokens = answer,                                                  \
                                             .make = make_##symbol}

NEEDLE_TASK(niah, "a seven-digit number hidden in filler text", "WakeKV, section 2; RULER, S-NIAH", 32, 1, 1, 1);
NEEDLE_TASK(multikey, "the number of one of eight places", "RULER, MK-NIAH", 32, 8, 1, 1);
NEEDLE_TASK(multivalue, "the four numbers of one place", "RULER, MV-NIAH", 96, 1, 4, 1);
NEEDLE_TASK(multiquery, "the numbers of four places", "RULER, MQ-NIAH", 96, 4, 1, 4);
