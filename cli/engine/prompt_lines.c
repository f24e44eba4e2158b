#include "cli/engine/prompt_lines.h"

#include <cJSON.h>

#include "base/file.h"
#include "base/parse.h"

#define MAX_PROMPTS_BYTES ((size_t)1 << 32)

static tw_status prompt_of_line(struct tw_prompt *prompt, struct tw_view line, struct tw_error *err) {
    cJSON *json = cJSON_ParseWithLength(line.data, line.size);
    const cJSON *text = json ? cJSON_GetObjectItemCaseSensitive(json, "prompt") : NULL;
    const cJSON *answer = json ? cJSON_GetObjectItemCaseSensitive(json, "answer") : NULL;
    tw_status status = TW_OK;
    if (!json)
        status = TW_FAIL(err, TW_E_INPUT, "not JSON");
    else if (!cJSON_IsString(text) || (answer && !cJSON_IsString(answer)))
        status = TW_FAIL(err, TW_E_INPUT, "expected {\"prompt\": text, \"answer\": text}");
    if (status == TW_OK) {
        struct tw_text *content = tw_prompt_add_message(prompt, TW_ROLE_USER);
        if (!content) status = TW_FAIL(err, TW_E_MEMORY, "out of memory: prompt");
        if (content) tw_text_append(content, tw_view_of(text->valuestring));
        if (status == TW_OK && answer && *answer->valuestring)
            status = tw_prompt_expect(prompt, tw_view_of(answer->valuestring), err);
    }
    cJSON_Delete(json);
    return status;
}

tw_status tw_prompt_lines(const char *path, const char *name,
                          tw_status (*take)(void *context, struct tw_prompt *prompt, struct tw_error *err),
                          void *context, struct tw_error *err) {
    struct tw_text text = {0};
    tw_status status = tw_file_read(&text, path, MAX_PROMPTS_BYTES, "prompts", err);
    struct tw_view line, rest = tw_text_view(&text);
    size_t n_prompts = 0;
    for (size_t number = 1; status == TW_OK && tw_parse_next(&line, &rest, '\n'); number++) {
        while (line.size && (line.data[line.size - 1] == '\r' || line.data[line.size - 1] == ' ')) line.size--;
        if (line.size == 0) continue;
        n_prompts++;
        struct tw_prompt prompt = {.chat = true};
        tw_text_printf(&prompt.task, "%s", name);
        tw_text_printf(&prompt.run, "%s-%04zu", name, number);
        status = prompt_of_line(&prompt, line, err);
        if (status == TW_OK) status = take(context, &prompt, err);
        if (status != TW_OK && status != TW_E_INTERRUPTED)
            status = tw_fail_prefix(err, status, "prompts '%s', line %zu: ", path, number);
        tw_prompt_release(&prompt);
    }
    if (status == TW_OK && n_prompts == 0) status = TW_FAIL(err, TW_E_INPUT, "prompts '%s': no lines", path);
    tw_text_release(&text);
    return status;
}
