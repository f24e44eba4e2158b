/* Chain of thought: word problems that need several steps (WakeKV, section 2). The needle is the problem's statement.
 */
#include <assert.h>
#include <stdio.h>

#include "base/parse.h"
#include "engine/task/material.h"

/* The answer of a template: sums of products of the numbers a to d, "a*b-c+d". */
static int64_t evaluate(struct tw_view expression, const uint64_t *numbers) {
    int64_t sum = 0, product = 1, sign = 1;
    for (size_t i = 0; i <= expression.size; i++) {
        const char c = i < expression.size ? expression.data[i] : '+';
        if (c >= 'a' && c <= 'd') {
            product *= (int64_t)numbers[c - 'a'];
        } else if (c == '+' || c == '-') {
            sum += sign * product;
            product = 1;
            sign = c == '-' ? -1 : 1;
        } else {
            assert(c == '*');
        }
    }
    return sum;
}

static tw_status make(struct tw_prompt *prompt, const struct tw_task_request *request,
                      const struct tw_token_counter *counter, struct tw_error *err) {
    (void)counter;
    struct tw_random random;
    tw_random_init(&random, request->seed, 2);
    /* a*b is at least 60 and c at most 35, so that every quantity of the story stays positive. */
    const uint64_t numbers[4] = {6 + tw_random_below(&random, 9), 10 + tw_random_below(&random, 16),
                                 12 + tw_random_below(&random, 24), 5 + tw_random_below(&random, 30)};
    struct tw_view template,
        expression = tw_list_line(TW_LIST_PROBLEMS, (size_t)tw_random_below(&random, tw_list_size(TW_LIST_PROBLEMS)));
    tw_parse_next(&template, &expression, '\t');

    struct tw_text *content = tw_prompt_add_message(prompt, TW_ROLE_USER);
    if (!content) return TW_FAIL(err, TW_E_MEMORY, "out of memory for a prompt");
    prompt->needle_begin = content->size;
    for (size_t i = 0; i < template.size; i++) {
        if (template.data[i] == '{') {
            tw_text_printf(content, "%llu", (unsigned long long)numbers[template.data[i + 1] - 'a']);
            i += 2;
        } else {
            tw_text_append_char(content, template.data[i]);
        }
    }
    prompt->needle_end = content->size;
    tw_text_append(content, TW_VIEW(" Think step by step, and write down every step before you give the answer."));
    char answer[32];
    snprintf(answer, sizeof answer, "%lld", (long long)evaluate(expression, numbers));
    return tw_prompt_expect(prompt, tw_view_of(answer), err);
}

const struct tw_task tw_task_cot = {
    .name = "cot",
    .summary = "a word problem of several steps, to be thought through",
    .source = "WakeKV, section 2",
    .answer_tokens = 256,
    .make = make,
};
