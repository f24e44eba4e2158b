/*
 * Variable tracking (RULER, VT): a chain of assignments hidden in filler text, X1 = number, X2 = X1, ...; all variables
 * with that value are asked for. A second chain with another number distracts. The needle is the first assignment.
 */
#include <stdlib.h>

#include "engine/task/material.h"

enum { HOPS = 4, CHAINS = 2 };

static tw_status make(struct tw_prompt *prompt, const struct tw_task_request *request,
                      const struct tw_token_counter *counter, struct tw_error *err) {
    struct tw_random random;
    tw_random_init(&random, request->seed, 4);
    char names[CHAINS * (HOPS + 1)][6];
    for (size_t i = 0; i < CHAINS * (HOPS + 1); i++) {
        bool again = true;
        while (again) {
            for (size_t c = 0; c < 5; c++) names[i][c] = (char)('A' + tw_random_below(&random, 26));
            names[i][5] = 0;
            again = false;
            for (size_t j = 0; j < i; j++) again = again || memcmp(names[i], names[j], 5) == 0;
        }
    }
    /* Assignments keep their order within a chain; the chains are interleaved. */
    struct tw_needle needles[CHAINS * (HOPS + 1)] = {0};
    struct tw_text number = {0};
    size_t n = 0;
    for (size_t hop = 0; hop <= HOPS; hop++)
        for (size_t chain = 0; chain < CHAINS; chain++, n++) {
            const char *name = names[chain * (HOPS + 1) + hop];
            needles[n].depth =
                hop == 0 && chain == 0 ? 0 : ((double)n + tw_random_unit(&random)) / (CHAINS * (HOPS + 1));
            if (hop == 0) {
                struct tw_text value = {0};
                tw_text_printf(&value, "%llu", (unsigned long long)(10000 + tw_random_below(&random, 90000)));
                tw_text_printf(&needles[n].sentence, "VAR %s = %s.", name, tw_text_string(&value));
                if (chain == 0) tw_text_append(&number, tw_text_view(&value));
                tw_text_release(&value);
            } else {
                tw_text_printf(&needles[n].sentence, "VAR %s = VAR %s.", name, names[chain * (HOPS + 1) + hop - 1]);
            }
        }
    struct tw_text question = {0};
    tw_text_printf(
        &question,
        "\n\nFind all variables that are assigned the value %s in the text above, directly or through other variables.",
        tw_text_string(&number));
    tw_text_printf(&prompt->answer_opening, "The %d variables that are assigned the value %s are", HOPS + 1,
                   tw_text_string(&number));
    tw_status status = TW_OK;
    for (size_t hop = 0; hop <= HOPS && status == TW_OK; hop++)
        status = tw_prompt_expect(prompt, tw_view_of(names[hop]), err);
    struct tw_text *content = tw_prompt_add_message(prompt, TW_ROLE_USER);
    if (!content && status == TW_OK) status = TW_FAIL(err, TW_E_MEMORY, "out of memory for a prompt");
    if (status == TW_OK) {
        tw_text_append(
            content,
            TW_VIEW("Memorize and track the chains of variable assignments hidden in the following text.\n\n"));
        const size_t around = counter->count(counter->context, tw_text_view(content)) +
                              counter->count(counter->context, tw_text_view(&question)) +
                              counter->count(counter->context, tw_text_view(&prompt->answer_opening));
        struct tw_text haystack = {0};
        status = tw_haystack(&haystack, needles, n,
                             request->context_tokens > around ? request->context_tokens - around : 0, counter, err);
        prompt->needle_begin = content->size + needles[0].begin;
        prompt->needle_end = content->size + needles[0].end;
        tw_text_append(content, tw_text_view(&haystack));
        tw_text_append(content, tw_text_view(&question));
        tw_text_release(&haystack);
    }
    for (size_t k = 0; k < n; k++) tw_text_release(&needles[k].sentence);
    tw_text_release(&number);
    tw_text_release(&question);
    return status;
}

const struct tw_task tw_task_variables = {
    .name = "variables",
    .summary = "a chain of variable assignments hidden in filler text",
    .source = "RULER, VT",
    .default_tokens = 2048,
    .answer_tokens = 64,
    .make = make,
};
