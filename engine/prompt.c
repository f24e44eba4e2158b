#include "engine/prompt.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>

void tw_prompt_release(struct tw_prompt *prompt) {
    for (size_t i = 0; i < prompt->n_messages; i++) tw_text_release(&prompt->messages[i].content);
    for (size_t i = 0; i < prompt->n_expected; i++) tw_text_release(&prompt->expected[i]);
    free(prompt->messages);
    free(prompt->expected);
    tw_text_release(&prompt->answer_opening);
    tw_text_release(&prompt->task);
    tw_text_release(&prompt->run);
    *prompt = (struct tw_prompt){0};
}

struct tw_text *tw_prompt_add_message(struct tw_prompt *prompt, enum tw_role role) {
    struct tw_message *messages = realloc(prompt->messages, (prompt->n_messages + 1) * sizeof *messages);
    if (!messages) return NULL;
    prompt->messages = messages;
    messages[prompt->n_messages] = (struct tw_message){.role = role};
    return &messages[prompt->n_messages++].content;
}

tw_status tw_prompt_expect(struct tw_prompt *prompt, struct tw_view expected, struct tw_error *err) {
    struct tw_text *list = realloc(prompt->expected, (prompt->n_expected + 1) * sizeof *list);
    if (list) {
        prompt->expected = list;
        list[prompt->n_expected] = (struct tw_text){0};
        tw_text_append(&list[prompt->n_expected], expected);
        if (tw_text_ok(&list[prompt->n_expected++])) return TW_OK;
    }
    return TW_FAIL(err, TW_E_MEMORY, "out of memory for the expected answers of a prompt");
}

/* Lower case, white space runs as one blank, none at the ends. */
static void normalise(struct tw_text *out, struct tw_view text) {
    bool blank = false;
    for (size_t i = 0; i < text.size; i++) {
        const unsigned char c = (unsigned char)text.data[i];
        if (isspace(c)) {
            blank = true;
            continue;
        }
        if (blank && out->size) tw_text_append_char(out, ' ');
        blank = false;
        tw_text_append_char(out, (char)tolower(c));
    }
}

double tw_prompt_score(const struct tw_prompt *prompt, struct tw_view answer) {
    if (prompt->n_expected == 0) return NAN;
    struct tw_text said = {0};
    normalise(&said, answer);
    size_t found = 0;
    for (size_t i = 0; i < prompt->n_expected; i++) {
        struct tw_text wanted = {0};
        normalise(&wanted, tw_text_view(&prompt->expected[i]));
        if (wanted.size == 0 || (said.size && memmem(said.data, said.size, wanted.data, wanted.size))) found++;
        tw_text_release(&wanted);
    }
    tw_text_release(&said);
    return (double)found / (double)prompt->n_expected;
}
