/*
 * Tasks: prompts whose right answer, and the place of what it depends on, are known. Made from templates and word lists
 * (data/tasks/, compiled in), seeded, so that a trace of a task can be made again anywhere.
 *
 * Sources: WakeKV, section 2 (needle in a haystack, chain of thought, multi-turn recall); RULER (Hsieh et al., 2024)
 * for the synthetic families: multi-key, multi-value and multi-query needles, variable tracking, common and frequent
 * words.
 */
#ifndef TW_ENGINE_TASK_TASK_H
#define TW_ENGINE_TASK_TASK_H

#include <stdint.h>

#include "base/view.h"
#include "engine/prompt.h"

/* How many tokens a text has, by the model's tokenizer: lengths are asked for in tokens. */
struct tw_token_counter {
    size_t (*count)(void *context, struct tw_view text);
    void *context;
};

struct tw_task_request {
    size_t context_tokens; /* the prompt is to have about so many tokens, never more (template aside); 0: the task's
                              default */
    double depth;          /* where the needle stands, 0 the beginning, 1 the end */
    uint64_t seed;
};

struct tw_task {
    const char *name, *summary, *source;
    size_t default_tokens; /* for context_tokens = 0 */
    size_t answer_tokens;  /* how long an answer may have to be: a default for --max-new */
    /* Fills an empty prompt. Fails with TW_E_OPTION when the length asked for is too short for the task. */
    tw_status (*make)(struct tw_prompt *prompt, const struct tw_task_request *request,
                      const struct tw_token_counter *counter, struct tw_error *err);
};

extern const struct tw_task *const tw_task_table[]; /* ends with NULL */
/* Fails with TW_E_OPTION and lists the names. */
tw_status tw_task_find(const struct tw_task **task, const char *name, struct tw_error *err);
/* Makes the prompt and names its task and run ("niah-2048-0.5-0"). On failure the prompt is empty. */
tw_status tw_task_make(struct tw_prompt *prompt, const struct tw_task *task, const struct tw_task_request *request,
                       const struct tw_token_counter *counter, struct tw_error *err);

#endif
