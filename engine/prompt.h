/*
 * What is asked of a model: messages, and what a task knows about them (where the needle is, what the answer should
 * be). Made by the command line (--text, --prompt, --prompts) or by a task (engine/task/).
 */
#ifndef TW_ENGINE_PROMPT_H
#define TW_ENGINE_PROMPT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/text.h"

enum tw_role { TW_ROLE_SYSTEM, TW_ROLE_USER, TW_ROLE_ASSISTANT };

struct tw_message {
    enum tw_role role;
    struct tw_text content; /* any bytes */
};

/* Zero-initialised it is an empty prompt. Everything is owned. */
struct tw_prompt {
    struct tw_message *messages; /* [n_messages]; plain text is one user message, run without a chat template */
    size_t n_messages;
    bool chat; /* to be rendered with the model's chat template where it has one */
    /* The first words of the answer, put behind the generation prompt ("The number is"). May be empty. */
    struct tw_text answer_opening;
    /* The inserted fact (spec: churn): bytes [needle_begin, needle_end) of that message's content; none when equal. */
    size_t needle_message, needle_begin, needle_end;
    struct tw_text *expected; /* [n_expected] strings that a right answer contains; none: not scored */
    size_t n_expected;
    struct tw_text task, run; /* names for the trace: "niah", "niah-2048-0.5-0" */
};

void tw_prompt_release(struct tw_prompt *prompt); /* leaves it empty */
/* Appends a message; the returned text is to be filled. NULL when memory runs out. */
struct tw_text *tw_prompt_add_message(struct tw_prompt *prompt, enum tw_role role);
/* Appends an expected string. */
tw_status tw_prompt_expect(struct tw_prompt *prompt, struct tw_view expected, struct tw_error *err);

/*
 * The share of the expected strings that `answer` contains, in [0, 1], letter case and runs of white space ignored
 * (RULER's string match); NaN when nothing is expected.
 */
double tw_prompt_score(const struct tw_prompt *prompt, struct tw_view answer);

#endif
