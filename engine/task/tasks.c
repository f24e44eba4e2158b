/* All tasks. To add one: its file (or a few of a family in one), and a line here. */
#include "engine/task/task.h"

#include <string.h>

#define TW_TASKS(X)                                                                                                    \
    X(niah) X(cot) X(multiturn) X(multikey) X(multivalue) X(multiquery) X(variables) X(common_words) X(frequent_words)

#define DECLARE(symbol) extern const struct tw_task tw_task_##symbol;
TW_TASKS(DECLARE)
#define POINTER(symbol) &tw_task_##symbol,
const struct tw_task *const tw_task_table[] = {TW_TASKS(POINTER) NULL};

tw_status tw_task_find(const struct tw_task **task, const char *name, struct tw_error *err) {
    struct tw_text names = {0};
    for (const struct tw_task *const *t = tw_task_table; *t; t++) {
        if (strcmp((*t)->name, name) == 0) {
            *task = *t;
            tw_text_release(&names);
            return TW_OK;
        }
        tw_text_printf(&names, "%s%s", names.size ? ", " : "", (*t)->name);
    }
    const tw_status status =
        TW_FAIL(err, TW_E_OPTION, "there is no task '%s'; there are: %s", name, tw_text_string(&names));
    tw_text_release(&names);
    return status;
}

tw_status tw_task_make(struct tw_prompt *prompt, const struct tw_task *task, const struct tw_task_request *request,
                       const struct tw_token_counter *counter, struct tw_error *err) {
    struct tw_task_request filled = *request;
    if (filled.context_tokens == 0) filled.context_tokens = task->default_tokens;
    *prompt = (struct tw_prompt){.chat = true};
    tw_status status = task->make(prompt, &filled, counter, err);
    tw_text_printf(&prompt->task, "%s", task->name);
    if (task->default_tokens)
        tw_text_printf(&prompt->run, "%s-%zu-%.3g-%llu", task->name, filled.context_tokens, filled.depth,
                       (unsigned long long)filled.seed);
    else
        tw_text_printf(&prompt->run, "%s-%llu", task->name, (unsigned long long)filled.seed);
    for (size_t i = 0; i < prompt->n_messages && status == TW_OK; i++)
        if (!tw_text_ok(&prompt->messages[i].content))
            status = TW_FAIL(err, TW_E_MEMORY, "out of memory for a prompt of task '%s'", task->name);
    if (status != TW_OK) tw_prompt_release(prompt);
    return status;
}
