/* Users' own prompts: a file of one JSON object {"prompt": text, "answer": text} a line. */
#ifndef TW_CLI_ENGINE_PROMPT_LINES_H
#define TW_CLI_ENGINE_PROMPT_LINES_H

#include "engine/prompt.h"

/*
 * Calls `take` with the prompt of each line, in order; `answer` is optional. Prompts are named NAME (their task) and
 * NAME-0001 (their run, by line). Stops at the first failure, which names file and line.
 */
tw_status tw_prompt_lines(const char *path, const char *name,
                          tw_status (*take)(void *context, struct tw_prompt *prompt, struct tw_error *err),
                          void *context, struct tw_error *err);

#endif
