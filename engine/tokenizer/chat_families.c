/*
 * The families of chat templates. Each is recognised by markers that only it has, and writes what the published
 * template writes; what differs between models of a family (default system messages, dates, spaces) is looked up in the
 * template.
 *
 * Sources: the chat_template of SmolLM2, Qwen2, Qwen2.5 and Qwen3; Llama-2-chat; Llama-3 and 3.1 Instruct;
 * Mistral-7B-Instruct v0.1 and v0.2 (both wordings); Gemma-2 and 3; DeepSeek-R1-Distill.
 */
#include "engine/tokenizer/chat_render.h"

static const char *role_name(enum tw_role role) {
    static const char *const names[] = {
        [TW_ROLE_SYSTEM] = "system", [TW_ROLE_USER] = "user", [TW_ROLE_ASSISTANT] = "assistant"};
    return names[role];
}

/* The first of the two conversations a template refuses: user and assistant must take turns, from `first` on. */
static tw_status check_turns(const struct tw_chat_writer *w, size_t first, const char *family, struct tw_error *err) {
    for (size_t i = first; i < w->n_messages; i++)
        if ((w->messages[i].role == TW_ROLE_USER) != ((i - first) % 2 == 0) || w->messages[i].role == TW_ROLE_SYSTEM)
            return TW_FAIL(
                err, TW_E_INPUT,
                "the %s template wants user and assistant to take turns, beginning with the user; message %zu is of "
                "the %s",
                family, i + 1, role_name(w->messages[i].role));
    return TW_OK;
}

/*
 * Writes a literal of the template from `at` on until one of the bytes in `ends`, its escapes (\n, \', \\) resolved; a
 * template in a file may hold line breaks as they are, or as escapes. Returns whether an end was found.
 */
static bool literal(struct tw_text *out, struct tw_view template, size_t at, const char *until) {
    const size_t n = strlen(until);
    for (; at + n <= template.size; at++) {
        const char c = template.data[at];
        if (memcmp(template.data + at, until, n) == 0) return true;
        if (c == '\'' || c == '"') return false; /* the literal ends before: not what was looked for */
        if (c == '\\' && at + 1 < template.size) {
            const char next = template.data[++at];
            tw_text_append_char(out, next == 'n' ? '\n' : next == 't' ? '\t' : next);
        } else {
            tw_text_append_char(out, c);
        }
    }
    return false;
}

/* ---- ChatML: SmolLM2, Qwen2, Qwen2.5 ---- */

static bool is_chatml(struct tw_view t) { return tw_chat_contains(t, "<|im_start|>"); }

/* "<|im_start|>system\n" + a text of the template's own + "<|im_end|>": what stands there without a system message. */
static void chatml_default_system(struct tw_text *out, struct tw_view t) {
    static const struct tw_view openings[] = {{"<|im_start|>system\\n", 20}, {"<|im_start|>system\n", 19}};
    for (size_t o = 0; o < 2; o++)
        for (size_t at = 0; at < t.size;) {
            const char *found = memmem(t.data + at, t.size - at, openings[o].data, openings[o].size);
            if (!found) break;
            at = (size_t)(found - t.data) + openings[o].size;
            tw_text_clear(out);
            if (literal(out, t, at, "<|im_end|>") && out->size) return;
        }
    tw_text_clear(out);
}

static tw_status render_chatml(struct tw_chat_writer *w, struct tw_error *err) {
    (void)err;
    const bool trims =
        tw_chat_contains(w->template, "['content'] | trim") || tw_chat_contains(w->template, "['content']|trim");
    struct tw_text fallback = {0};
    if (w->messages[0].role != TW_ROLE_SYSTEM) chatml_default_system(&fallback, w->template);
    if (fallback.size) {
        tw_chat_puts(w, "<|im_start|>system\n");
        tw_chat_put(w, tw_text_view(&fallback));
        tw_chat_puts(w, "<|im_end|>\n");
    }
    tw_text_release(&fallback);
    for (size_t i = 0; i < w->n_messages; i++) {
        tw_chat_puts(w, "<|im_start|>");
        tw_chat_puts(w, role_name(w->messages[i].role));
        tw_chat_puts(w, "\n");
        (trims ? tw_chat_put_trimmed_message : tw_chat_put_message)(w, i);
        tw_chat_puts(w, "<|im_end|>\n");
    }
    if (w->generation_prompt) tw_chat_puts(w, "<|im_start|>assistant\n");
    return TW_OK;
}

/* ---- Qwen3: thoughts of earlier turns are dropped ---- */

static bool is_qwen3(struct tw_view t) { return is_chatml(t) && tw_chat_contains(t, "reasoning_content"); }

/* Where the content begins behind its last "</think>" (0 without one); line breaks there are dropped with `strip`. */
static size_t behind_thoughts(const struct tw_text *content, bool strip) {
    static const char mark[] = "</think>";
    size_t begin = 0;
    for (size_t at = 0; content->size;) {
        const char *found = memmem(content->data + at, content->size - at, mark, sizeof mark - 1);
        if (!found) break;
        begin = at = (size_t)(found - content->data) + sizeof mark - 1;
    }
    while (strip && begin && begin < content->size && content->data[begin] == '\n') begin++;
    return begin;
}

/* The thoughts themselves: between "<think>" and the first "</think>", without line breaks at the ends. */
static struct tw_view thoughts(const struct tw_text *content) {
    const char *end = content->size ? memmem(content->data, content->size, "</think>", 8) : NULL;
    if (!end) return (struct tw_view){0};
    const char *begin = content->data;
    for (const char *found; (found = memmem(begin, (size_t)(end - begin), "<think>", 7));) begin = found + 7;
    while (begin < end && *begin == '\n') begin++;
    while (end > begin && end[-1] == '\n') end--;
    return (struct tw_view){begin, (size_t)(end - begin)};
}

static tw_status render_qwen3(struct tw_chat_writer *w, struct tw_error *err) {
    (void)err;
    size_t last_query = w->n_messages - 1;
    for (size_t i = 0; i < w->n_messages; i++)
        if (w->messages[i].role == TW_ROLE_USER) last_query = i;
    for (size_t i = 0; i < w->n_messages; i++) {
        const struct tw_message *m = &w->messages[i];
        tw_chat_puts(w, "<|im_start|>");
        tw_chat_puts(w, role_name(m->role));
        tw_chat_puts(w, "\n");
        if (m->role == TW_ROLE_ASSISTANT) {
            const struct tw_view thought = thoughts(&m->content);
            if (i > last_query && (i + 1 == w->n_messages || thought.size)) {
                tw_chat_puts(w, "<think>\n");
                tw_text_append(&w->chat->text, thought);
                tw_chat_puts(w, "\n</think>\n\n");
            }
            tw_chat_put_content(w, i, behind_thoughts(&m->content, true), m->content.size);
        } else {
            tw_chat_put_message(w, i);
        }
        tw_chat_puts(w, "<|im_end|>\n");
    }
    if (w->generation_prompt) tw_chat_puts(w, "<|im_start|>assistant\n");
    return TW_OK;
}

/* ---- Llama-3, and 3.1 with its dates ---- */

static bool is_llama3(struct tw_view t) { return tw_chat_contains(t, "<|start_header_id|>"); }
static bool is_llama31(struct tw_view t) { return is_llama3(t) && tw_chat_contains(t, "Cutting Knowledge Date"); }

static void llama3_turn(struct tw_chat_writer *w, const char *role) {
    tw_chat_puts(w, "<|start_header_id|>");
    tw_chat_puts(w, role);
    tw_chat_puts(w, "<|end_header_id|>\n\n");
}

static void llama3_messages(struct tw_chat_writer *w, size_t first) {
    for (size_t i = first; i < w->n_messages; i++) {
        llama3_turn(w, role_name(w->messages[i].role));
        tw_chat_put_trimmed_message(w, i);
        tw_chat_puts(w, "<|eot_id|>");
    }
    if (w->generation_prompt) llama3_turn(w, "assistant");
}

static tw_status render_llama3(struct tw_chat_writer *w, struct tw_error *err) {
    (void)err;
    tw_chat_put(w, w->bos);
    llama3_messages(w, 0);
    return TW_OK;
}

static tw_status render_llama31(struct tw_chat_writer *w, struct tw_error *err) {
    (void)err;
    /* `date_string` as the template sets it when the caller names none: the prompt is the same every day. */
    static const char *const marks[] = {"date_string = \"", "date_string = '"};
    struct tw_text date = {0};
    for (size_t m = 0; m < 2 && date.size == 0; m++) {
        const char *found = memmem(w->template.data, w->template.size, marks[m], strlen(marks[m]));
        const char until[2] = {marks[m][strlen(marks[m]) - 1], 0};
        if (found) literal(&date, w->template, (size_t)(found - w->template.data) + strlen(marks[m]), until);
    }
    const size_t first = w->messages[0].role == TW_ROLE_SYSTEM ? 1 : 0;
    tw_chat_put(w, w->bos);
    llama3_turn(w, "system");
    tw_chat_puts(w, "Cutting Knowledge Date: December 2023\nToday Date: ");
    tw_chat_put(w, date.size ? tw_text_view(&date) : TW_VIEW("26 Jul 2024"));
    tw_chat_puts(w, "\n\n");
    if (first) tw_chat_put_trimmed_message(w, 0);
    tw_chat_puts(w, "<|eot_id|>");
    llama3_messages(w, first);
    tw_text_release(&date);
    return TW_OK;
}

/* ---- Llama-2 ---- */

static bool is_llama2(struct tw_view t) { return tw_chat_contains(t, "<<SYS>>"); }

static tw_status render_llama2(struct tw_chat_writer *w, struct tw_error *err) {
    const size_t first = w->messages[0].role == TW_ROLE_SYSTEM ? 1 : 0;
    TW_TRY(check_turns(w, first, "Llama-2", err));
    for (size_t i = first; i < w->n_messages; i++) {
        if (w->messages[i].role == TW_ROLE_USER) {
            tw_chat_put(w, w->bos);
            tw_chat_puts(w, "[INST] ");
            if (i == 1 && first) {
                tw_chat_puts(w, "<<SYS>>\n");
                tw_chat_put_message(w, 0);
                tw_chat_puts(w, "\n<</SYS>>\n\n");
            }
            tw_chat_put_trimmed_message(w, i);
            tw_chat_puts(w, " [/INST]");
        } else {
            tw_chat_puts(w, " ");
            tw_chat_put_trimmed_message(w, i);
            tw_chat_puts(w, " ");
            tw_chat_put(w, w->eos);
        }
    }
    return TW_OK;
}

/* ---- Mistral-Instruct ---- */

static bool is_mistral(struct tw_view t) { return tw_chat_contains(t, "[INST]") && !is_llama2(t); }

static tw_status render_mistral(struct tw_chat_writer *w, struct tw_error *err) {
    const struct tw_view t = w->template;
    const bool takes_system = tw_chat_contains(t, "system_message");
    const bool space_before = tw_chat_contains(t, "' [INST] '") || tw_chat_contains(t, "\" [INST] \"");
    const bool space_before_answer =
        tw_chat_contains(t, "' ' + message['content']") || tw_chat_contains(t, "\" \" + message[\"content\"]");
    const bool space_behind_answer = tw_chat_contains(t, "eos_token + ' '") || tw_chat_contains(t, "eos_token + \" \"");
    const size_t first = w->messages[0].role == TW_ROLE_SYSTEM ? 1 : 0;
    if (first && !takes_system)
        return TW_FAIL(err, TW_E_INPUT,
                       "the Mistral template of this model has no place for a system message; put it into the user's");
    TW_TRY(check_turns(w, first, "Mistral", err));
    tw_chat_put(w, w->bos);
    for (size_t i = first; i < w->n_messages; i++) {
        if (w->messages[i].role == TW_ROLE_USER) {
            tw_chat_puts(w, space_before ? " [INST] " : "[INST] ");
            if (i == 1 && first) {
                tw_chat_put_message(w, 0);
                tw_chat_puts(w, "\n\n");
            }
            tw_chat_put_message(w, i);
            tw_chat_puts(w, " [/INST]");
        } else {
            if (space_before_answer) tw_chat_puts(w, " ");
            tw_chat_put_message(w, i);
            tw_chat_put(w, w->eos);
            if (space_behind_answer) tw_chat_puts(w, " ");
        }
    }
    return TW_OK;
}

/* ---- Gemma-2 and 3 ---- */

static bool is_gemma(struct tw_view t) { return tw_chat_contains(t, "<start_of_turn>"); }

static tw_status render_gemma(struct tw_chat_writer *w, struct tw_error *err) {
    const size_t first = w->messages[0].role == TW_ROLE_SYSTEM ? 1 : 0;
    if (first && !tw_chat_contains(w->template, "first_user_prefix"))
        return TW_FAIL(err, TW_E_INPUT,
                       "the Gemma template of this model has no place for a system message; put it into the user's");
    TW_TRY(check_turns(w, first, "Gemma", err));
    tw_chat_put(w, w->bos);
    for (size_t i = first; i < w->n_messages; i++) {
        tw_chat_puts(w, "<start_of_turn>");
        tw_chat_puts(w, w->messages[i].role == TW_ROLE_ASSISTANT ? "model" : "user");
        tw_chat_puts(w, "\n");
        if (i == 1 && first) {
            tw_chat_put_message(w, 0);
            tw_chat_puts(w, "\n\n");
        }
        tw_chat_put_trimmed_message(w, i);
        tw_chat_puts(w, "<end_of_turn>\n");
    }
    if (w->generation_prompt) tw_chat_puts(w, "<start_of_turn>model\n");
    return TW_OK;
}

/* ---- DeepSeek-R1-Distill ---- */

#define BAR "\xef\xbd\x9c" /* U+FF5C, the wide vertical line of its markers */

static bool is_deepseek(struct tw_view t) { return tw_chat_contains(t, "<" BAR "Assistant" BAR ">"); }

static tw_status render_deepseek(struct tw_chat_writer *w, struct tw_error *err) {
    (void)err;
    tw_chat_put(w, w->bos);
    /* System messages stand in front, wherever they were. */
    for (size_t i = 0; i < w->n_messages; i++)
        if (w->messages[i].role == TW_ROLE_SYSTEM) tw_chat_put_message(w, i);
    for (size_t i = 0; i < w->n_messages; i++) {
        if (w->messages[i].role == TW_ROLE_USER) {
            tw_chat_puts(w, "<" BAR "User" BAR ">");
            tw_chat_put_message(w, i);
        } else if (w->messages[i].role == TW_ROLE_ASSISTANT) {
            tw_chat_puts(w, "<" BAR "Assistant" BAR ">");
            tw_chat_put_content(w, i, behind_thoughts(&w->messages[i].content, false), w->messages[i].content.size);
            tw_chat_put(w, w->eos);
        }
    }
    if (w->generation_prompt) {
        tw_chat_puts(w, "<" BAR "Assistant" BAR ">");
        if (tw_chat_contains(w->template, "<" BAR "Assistant" BAR "><think>")) tw_chat_puts(w, "<think>\n");
    }
    return TW_OK;
}

const struct tw_chat_family tw_chat_families[] = {
    {"qwen3", is_qwen3, render_qwen3},
    {"chatml", is_chatml, render_chatml},
    {"llama-3.1", is_llama31, render_llama31},
    {"llama-3", is_llama3, render_llama3},
    {"llama-2", is_llama2, render_llama2},
    {"mistral", is_mistral, render_mistral},
    {"gemma", is_gemma, render_gemma},
    {"deepseek", is_deepseek, render_deepseek},
    {0},
};
