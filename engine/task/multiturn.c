/*
 * Recall over several turns (WakeKV, section 2): a fact in turn one, distractor turns, the question about it in the
 * last. The needle is the fact. With a length asked for, distractors are added until it is reached.
 */
#include "base/parse.h"
#include "engine/task/material.h"

static tw_status add(struct tw_prompt *prompt, enum tw_role role, struct tw_view text, struct tw_error *err) {
    struct tw_text *content = tw_prompt_add_message(prompt, role);
    if (!content) return TW_FAIL(err, TW_E_MEMORY, "out of memory for a prompt");
    tw_text_append(content, text);
    return TW_OK;
}

static tw_status make(struct tw_prompt *prompt, const struct tw_task_request *request,
                      const struct tw_token_counter *counter, struct tw_error *err) {
    struct tw_random random;
    tw_random_init(&random, request->seed, 3);
    struct tw_view fact, question,
        opening = tw_list_line(TW_LIST_FACTS, (size_t)tw_random_below(&random, tw_list_size(TW_LIST_FACTS)));
    tw_parse_next(&fact, &opening, '\t');
    tw_parse_next(&question, &opening, '\t');
    struct tw_text number = {0}, first = {0};
    tw_random_number(&number, &random);
    tw_text_append(&first, TW_VIEW("Please remember this for later. "));
    prompt->needle_begin = first.size;
    for (size_t i = 0; i < fact.size; i++) {
        if (fact.data[i] == '{') {
            tw_text_append(&first, tw_text_view(&number));
            i++;
        } else {
            tw_text_append_char(&first, fact.data[i]);
        }
    }
    prompt->needle_end = first.size;

    tw_status status = add(prompt, TW_ROLE_USER, tw_text_view(&first), err);
    if (status == TW_OK)
        status = add(prompt, TW_ROLE_ASSISTANT, TW_VIEW("I will remember it. What else can I do for you?"), err);
    /* What a turn costs beside its text: the template's markers. */
    enum { MARKERS = 10 };
    size_t used = counter->count(counter->context, tw_text_view(&first)) + 60;
    const size_t n = tw_list_size(TW_LIST_DISTRACTORS);
    size_t order[64];
    tw_list_draw(order, n, TW_LIST_DISTRACTORS, &random);
    for (size_t k = 0; status == TW_OK; k++) {
        struct tw_view asked, answer = tw_list_line(TW_LIST_DISTRACTORS, order[k % n]);
        tw_parse_next(&asked, &answer, '\t');
        used += counter->count(counter->context, asked) + counter->count(counter->context, answer) + MARKERS;
        if (k > 0 && used > request->context_tokens) break;
        status = add(prompt, TW_ROLE_USER, asked, err);
        if (status == TW_OK) status = add(prompt, TW_ROLE_ASSISTANT, answer, err);
    }
    if (status == TW_OK) status = add(prompt, TW_ROLE_USER, question, err);
    if (status == TW_OK) status = tw_prompt_expect(prompt, tw_text_view(&number), err);
    tw_text_append(&prompt->answer_opening, opening);
    tw_text_release(&number);
    tw_text_release(&first);
    return status;
}

const struct tw_task tw_task_multiturn = {
    .name = "multiturn",
    .summary = "a fact told in the first turn, asked for after distractor turns",
    .source = "WakeKV, section 2",
    .default_tokens = 600,
    .answer_tokens = 48,
    .make = make,
};
