/*
 * How each family writes a conversation, after the templates published with the models. What a family's templates
 * differ in is read from the template at hand; what they have for tools, images and documents is left out.
 */
#include "engine/tokenizer/chat_families.h"

#include <string.h>

#include "engine/tokenizer/normalize.h"

static bool has(const char *text, const char *part) { return strstr(text, part) != NULL; }

static void say(struct tw_chat_writer *w, const char *text) { tw_chat_say(w, tw_view_of(text)); }

static struct tw_view content_of(const struct tw_chat_writer *w, size_t i) {
    return tw_text_view(&w->messages[i].content);
}

static const char *role_name(enum tw_role role) {
    static const char *const names[] = {"system", "user", "assistant"};
    return names[role];
}

struct tw_view tw_chat_trim(struct tw_view text) {
    size_t begin = 0, end = 0, bad;
    uint32_t c;
    bool leading = true;
    for (size_t i = 0; i < text.size;) {
        const size_t size = tw_utf8_decode(&c, &bad, text.data + i, text.size - i);
        const size_t step = size ? size : bad;
        /* Python counts the four separators below the space too. */
        const bool space = size && (tw_is_space(c) || (c >= 0x1c && c <= 0x1f));
        i += step;
        if (!space) {
            if (leading) begin = i - step;
            leading = false;
            end = i;
        }
    }
    return leading ? (struct tw_view){text.data, 0} : (struct tw_view){text.data + begin, end - begin};
}

static struct tw_view strip_left(struct tw_view text, char byte) {
    while (text.size && *text.data == byte) text = (struct tw_view){text.data + 1, text.size - 1};
    return text;
}

static struct tw_view strip_right(struct tw_view text, char byte) {
    while (text.size && text.data[text.size - 1] == byte) text.size--;
    return text;
}

/* What stands behind the last `mark` in the text, all of it if there is none. */
static struct tw_view behind_last(struct tw_view text, const char *mark) {
    const size_t size = strlen(mark);
    for (size_t i = text.size + 1; i-- > 0;)
        if (i + size <= text.size && memcmp(text.data + i, mark, size) == 0)
            return (struct tw_view){text.data + i + size, text.size - i - size};
    return text;
}

/* What stands before the first `mark`, all of it if there is none. */
static struct tw_view before_first(struct tw_view text, const char *mark) {
    const char *at = text.size ? memmem(text.data, text.size, mark, strlen(mark)) : NULL;
    return at ? (struct tw_view){text.data, (size_t)(at - text.data)} : text;
}

/* Messages from `first` on must be user, assistant, user, ... */
static tw_status check_turns(const struct tw_chat_writer *w, size_t first, bool system_allowed, struct tw_error *err) {
    if (first == 0 && w->n_messages && w->messages[0].role == TW_ROLE_SYSTEM && !system_allowed)
        return TW_FAIL(err, TW_E_INPUT, "this model's chat template has no place for a system message");
    for (size_t i = first; i < w->n_messages; i++)
        if (w->messages[i].role != ((i - first) % 2 ? TW_ROLE_ASSISTANT : TW_ROLE_USER))
            return TW_FAIL(err, TW_E_INPUT,
                           "this model's chat template wants user and assistant by turns, a user first: message %zu is "
                           "from '%s'",
                           i, role_name(w->messages[i].role));
    return TW_OK;
}

static bool begins_with_system(const struct tw_chat_writer *w) {
    return w->n_messages > 0 && w->messages[0].role == TW_ROLE_SYSTEM;
}

/* ---- ChatML: SmolLM2, Qwen2, Qwen2.5 --------------------------------------------------------------------------------
 */

static bool is_chatml(const char *t) {
    return has(t, "<|im_start|>'+message['role']+'\n'+message['content']+'<|im_end|>\n") && !has(t, "|trim") &&
           !has(t, "strip(") && !has(t, "strftime");
}

/*
 * The system message that the template writes when there is none: a string literal that holds all of it. (Literals that
 * end behind "system\n" go on with the message given.)
 */
static bool default_system(struct tw_text *system, const char *template) {
    static const char open[] = "<|im_start|>system\n", close[] = "<|im_end|>";
    for (const char *at = template; (at = strstr(at, open)); at += sizeof open - 1) {
        if (at == template || (at[-1] != '\'' && at[-1] != '"')) continue;
        tw_text_clear(system);
        for (const char *c = at + sizeof open - 1; *c && *c != at[-1]; c++) {
            if (strncmp(c, close, sizeof close - 1) == 0) return true;
            if (*c == '\\' && c[1]) c++;
            tw_text_append_char(system, *c);
        }
    }
    return false;
}

static void open_chatml(struct tw_chat_writer *w, enum tw_role role) {
    say(w, "<|im_start|>");
    say(w, role_name(role));
    say(w, "\n");
}

static tw_status render_chatml(struct tw_chat_writer *w, struct tw_error *err) {
    (void)err;
    struct tw_text preset = {0};
    if (!begins_with_system(w) && default_system(&preset, tw_text_string(&w->source->plain))) {
        open_chatml(w, TW_ROLE_SYSTEM);
        tw_chat_say(w, tw_text_view(&preset));
        say(w, "<|im_end|>\n");
    }
    w->failed |= !tw_text_ok(&preset);
    tw_text_release(&preset);
    for (size_t i = 0; i < w->n_messages; i++) {
        open_chatml(w, w->messages[i].role);
        tw_chat_put(w, i, content_of(w, i));
        say(w, "<|im_end|>\n");
    }
    if (w->generation_prompt) open_chatml(w, TW_ROLE_ASSISTANT);
    return TW_OK;
}

/* ---- Qwen3: ChatML with thoughts, which are dropped from all but the last answers
 * ------------------------------------ */

static bool is_qwen3(const char *t) {
    return has(t, "last_query_index") &&
           has(t, "<|im_start|>'+message['role']+'\n<think>\n'+reasoning_content.strip(") && has(t, "<|im_end|>\n");
}

static bool is_tool_response(struct tw_view text) {
    static const char open[] = "<tool_response>", close[] = "</tool_response>";
    return tw_view_starts_with(text, TW_VIEW(open)) && text.size >= sizeof close - 1 &&
           memcmp(text.data + text.size - (sizeof close - 1), close, sizeof close - 1) == 0;
}

static tw_status render_qwen3(struct tw_chat_writer *w, struct tw_error *err) {
    (void)err;
    size_t last_query = w->n_messages ? w->n_messages - 1 : 0;
    for (size_t i = w->n_messages; i-- > 0;)
        if (w->messages[i].role == TW_ROLE_USER && !is_tool_response(content_of(w, i))) {
            last_query = i;
            break;
        }
    for (size_t i = 0; i < w->n_messages; i++) {
        const struct tw_view content = content_of(w, i);
        open_chatml(w, w->messages[i].role);
        if (w->messages[i].role != TW_ROLE_ASSISTANT) {
            tw_chat_put(w, i, content);
            say(w, "<|im_end|>\n");
            continue;
        }
        struct tw_view answer = content, thoughts = {0};
        if (memmem(content.data, content.size, "</think>", 8)) {
            answer = strip_left(behind_last(content, "</think>"), '\n');
            thoughts = behind_last(strip_right(before_first(content, "</think>"), '\n'), "<think>");
            thoughts = strip_left(thoughts, '\n');
        }
        if (i > last_query && (i + 1 == w->n_messages || thoughts.size)) {
            say(w, "<think>\n");
            tw_chat_quote(w, strip_left(strip_right(thoughts, '\n'), '\n'));
            say(w, "\n</think>\n\n");
            answer = strip_left(answer, '\n');
        }
        tw_chat_put(w, i, answer);
        say(w, "<|im_end|>\n");
    }
    if (w->generation_prompt) {
        open_chatml(w, TW_ROLE_ASSISTANT);
        if (has(tw_text_string(&w->source->squeezed), "<|im_start|>assistant\n<think>\n'")) say(w, "<think>\n");
    }
    return TW_OK;
}

/* ---- Llama-3 and 3.1
 * ------------------------------------------------------------------------------------------------- */

static bool is_llama3_turn(const char *t) {
    return has(t, "<|start_header_id|>'+message['role']+'<|end_header_id|>\n\n'+message['content']|trim+'<|eot_id|>'");
}
static bool is_llama3(const char *t) { return is_llama3_turn(t) && !has(t, "Date: "); }
static bool is_llama31(const char *t) {
    return is_llama3_turn(t) && has(t, "'Cutting Knowledge Date: ") && has(t, "'Today Date: '+date_string+'\n\n'");
}

static void open_llama3(struct tw_chat_writer *w, enum tw_role role) {
    say(w, "<|start_header_id|>");
    say(w, role_name(role));
    say(w, "<|end_header_id|>\n\n");
}

static void finish_llama3(struct tw_chat_writer *w, size_t first) {
    for (size_t i = first; i < w->n_messages; i++) {
        open_llama3(w, w->messages[i].role);
        tw_chat_put(w, i, tw_chat_trim(content_of(w, i)));
        say(w, "<|eot_id|>");
    }
    /* The first release's template opened the answer whether it was asked to or not. */
    if (w->generation_prompt || !has(tw_text_string(&w->source->squeezed), "add_generation_prompt"))
        open_llama3(w, TW_ROLE_ASSISTANT);
}

static tw_status render_llama3(struct tw_chat_writer *w, struct tw_error *err) {
    (void)err;
    if (w->n_messages) tw_chat_say(w, w->bos);
    finish_llama3(w, 0);
    return TW_OK;
}

/* The text between `before` and `after` in the template. */
static struct tw_view literal_between(const char *template, const char *before, char after) {
    const char *at = strstr(template, before);
    if (!at) return (struct tw_view){0};
    at += strlen(before);
    const char *end = strchr(at, after);
    return (struct tw_view){at, end ? (size_t)(end - at) : 0};
}

static tw_status render_llama31(struct tw_chat_writer *w, struct tw_error *err) {
    const char *template = tw_text_string(&w->source->squeezed);
    /* Later templates ask for today's date where the renderer knows it; the date written there is the same every day.
     */
    const struct tw_view date = literal_between(template, "date_string = '", '\'');
    if (date.size == 0)
        return TW_FAIL(err, TW_E_UNSUPPORTED, "the chat template has no date to fall back on; use --raw");
    tw_chat_say(w, w->bos);
    open_llama3(w, TW_ROLE_SYSTEM);
    say(w, "Cutting Knowledge Date: ");
    tw_chat_say(w, literal_between(template, "'Cutting Knowledge Date: ", '\n'));
    say(w, "\nToday Date: ");
    tw_chat_say(w, date);
    say(w, "\n\n");
    const bool system = begins_with_system(w);
    if (system) tw_chat_put(w, 0, tw_chat_trim(content_of(w, 0)));
    say(w, "<|eot_id|>");
    finish_llama3(w, system);
    return TW_OK;
}

/* ---- Llama-2
 * --------------------------------------------------------------------------------------------------------- */

static bool is_llama2(const char *t) {
    const bool strip =
        has(t, "bos_token+'[INST] '+content.strip()+' [/INST]'") && has(t, "' '+content.strip()+' '+eos_token");
    const bool trim = has(t, "bos_token+'[INST] '+content|trim+' [/INST]'") && has(t, "' '+content|trim+' '+eos_token");
    return (strip || trim) && has(t, "'<<SYS>>\n'+system_message+'\n<</SYS>>\n\n'+message['content']");
}

static tw_status render_llama2(struct tw_chat_writer *w, struct tw_error *err) {
    const size_t first = begins_with_system(w);
    TW_TRY(check_turns(w, first, true, err));
    for (size_t i = first; i < w->n_messages; i++) {
        const struct tw_view content = content_of(w, i);
        if (w->messages[i].role == TW_ROLE_ASSISTANT) {
            say(w, " ");
            tw_chat_put(w, i, tw_chat_trim(content));
            say(w, " ");
            tw_chat_say(w, w->eos);
            continue;
        }
        tw_chat_say(w, w->bos);
        say(w, "[INST] ");
        if (i == first && first == 1) {
            /* The whole is trimmed. It begins with a marker, so only its end can be: the message's, and with an empty
             * message the line breaks before it. */
            const struct tw_view trimmed = tw_chat_trim(content);
            const size_t end = trimmed.size ? (size_t)(trimmed.data - content.data) + trimmed.size : 0;
            say(w, "<<SYS>>\n");
            tw_chat_put(w, 0, content_of(w, 0));
            say(w, end ? "\n<</SYS>>\n\n" : "\n<</SYS>>");
            tw_chat_put(w, i, (struct tw_view){content.data, end});
        } else {
            tw_chat_put(w, i, tw_chat_trim(content));
        }
        say(w, " [/INST]");
    }
    return TW_OK;
}

/* ---- Mistral-Instruct v0.1 and v0.2
 * ---------------------------------------------------------------------------------- */

static bool is_mistral(const char *t) {
    return has(t, "[INST] '+message['content']+' [/INST]'") && has(t, "message['content']+eos_token") &&
           !has(t, "<<SYS>>") && !has(t, "trim") && !has(t, "strip(");
}

static tw_status render_mistral(struct tw_chat_writer *w, struct tw_error *err) {
    const char *t = tw_text_string(&w->source->squeezed);
    const bool takes_system = has(t, "[INST] '+system_message+'\n\n'+message['content']+' [/INST]'");
    const char *const open = has(t, "' [INST] '+message['content']") ? " [INST] " : "[INST] ";
    const bool space_before = has(t, "' '+message['content']+eos_token");
    const bool space_behind = has(t, "message['content']+eos_token+' '");
    const size_t first = takes_system && begins_with_system(w);
    TW_TRY(check_turns(w, first, takes_system, err));
    tw_chat_say(w, w->bos);
    for (size_t i = first; i < w->n_messages; i++) {
        if (w->messages[i].role == TW_ROLE_ASSISTANT) {
            if (space_before) say(w, " ");
            tw_chat_put(w, i, content_of(w, i));
            tw_chat_say(w, w->eos);
            if (space_behind) say(w, " ");
            continue;
        }
        say(w, open);
        if (i == first && first == 1) {
            tw_chat_put(w, 0, content_of(w, 0));
            say(w, "\n\n");
        }
        tw_chat_put(w, i, content_of(w, i));
        say(w, " [/INST]");
    }
    return TW_OK;
}

/* ---- Gemma-2 and 3
 * --------------------------------------------------------------------------------------------------- */

static bool is_gemma2(const char *t) {
    return has(t, "'<start_of_turn>'+role+'\n'+message['content']|trim+'<end_of_turn>\n'");
}
static bool is_gemma3(const char *t) {
    return has(t, "'<start_of_turn>'+role+'\n'+(first_user_prefix if loop.first else '')") &&
           has(t, "message['content']|trim") && has(t, "'<end_of_turn>\n'");
}

static tw_status render_gemma(struct tw_chat_writer *w, struct tw_error *err) {
    const bool takes_system = has(tw_text_string(&w->source->squeezed), "first_user_prefix");
    const size_t first = takes_system && begins_with_system(w);
    TW_TRY(check_turns(w, first, takes_system, err));
    tw_chat_say(w, w->bos);
    for (size_t i = first; i < w->n_messages; i++) {
        say(w, w->messages[i].role == TW_ROLE_ASSISTANT ? "<start_of_turn>model\n" : "<start_of_turn>user\n");
        if (i == first && first == 1) {
            tw_chat_put(w, 0, content_of(w, 0));
            say(w, "\n\n");
        }
        tw_chat_put(w, i, tw_chat_trim(content_of(w, i)));
        say(w, "<end_of_turn>\n");
    }
    if (w->generation_prompt) say(w, "<start_of_turn>model\n");
    return TW_OK;
}

/* ---- DeepSeek-R1-Distill
 * --------------------------------------------------------------------------------------------- */

static bool is_deepseek(const char *t) {
    return has(t, "'<｜User｜>'+message['content']") && has(t, "'<｜Assistant｜>'+content+'<｜end▁of▁sentence｜>'") &&
           has(t, "content.split('</think>')[-1]");
}

static tw_status render_deepseek(struct tw_chat_writer *w, struct tw_error *err) {
    (void)err;
    const char *t = tw_text_string(&w->source->squeezed);
    tw_chat_say(w, w->bos);
    /* System messages go in front: the last of them, or in later templates all. */
    const bool all = has(t, "is_first_sp");
    size_t last = w->n_messages;
    for (size_t i = 0; i < w->n_messages; i++)
        if (w->messages[i].role == TW_ROLE_SYSTEM) last = i;
    bool any = false;
    for (size_t i = 0; i < w->n_messages; i++) {
        if (w->messages[i].role != TW_ROLE_SYSTEM || (!all && i != last)) continue;
        if (any) say(w, "\n\n");
        tw_chat_put(w, i, content_of(w, i));
        any = true;
    }
    for (size_t i = 0; i < w->n_messages; i++) {
        if (w->messages[i].role == TW_ROLE_USER) {
            say(w, "<｜User｜>");
            tw_chat_put(w, i, content_of(w, i));
        } else if (w->messages[i].role == TW_ROLE_ASSISTANT) {
            say(w, "<｜Assistant｜>");
            tw_chat_put(w, i, behind_last(content_of(w, i), "</think>"));
            say(w, "<｜end▁of▁sentence｜>");
        }
    }
    if (w->generation_prompt)
        say(w, has(t, "'<｜Assistant｜><think>\n'") ? "<｜Assistant｜><think>\n" : "<｜Assistant｜>");
    return TW_OK;
}

/* ---- the table
 * ------------------------------------------------------------------------------------------------------- */

static const struct tw_chat_family families[] = {
    {"chatml", is_chatml, render_chatml},          {"qwen3", is_qwen3, render_qwen3},
    {"llama-3", is_llama3, render_llama3},         {"llama-3.1", is_llama31, render_llama31},
    {"llama-2", is_llama2, render_llama2},         {"mistral", is_mistral, render_mistral},
    {"gemma-2", is_gemma2, render_gemma},          {"gemma-3", is_gemma3, render_gemma},
    {"deepseek-r1", is_deepseek, render_deepseek},
};
enum { N_FAMILIES = sizeof families / sizeof *families };

const struct tw_chat_family *tw_chat_family_of(const struct tw_chat_template_text *text) {
    for (int i = 0; i < N_FAMILIES; i++)
        if (families[i].recognise(tw_text_string(&text->squeezed))) return &families[i];
    return NULL;
}

void tw_chat_family_names(struct tw_text *text) {
    for (int i = 0; i < N_FAMILIES; i++) tw_text_printf(text, "%s%s", i ? ", " : "", families[i].name);
}

/* ---- reading a template
 * ---------------------------------------------------------------------------------------------- */

void tw_chat_template_release(struct tw_chat_template_text *text) {
    tw_text_release(&text->plain);
    tw_text_release(&text->squeezed);
}

/* Appends `text` with every `from` replaced. */
static void replace(struct tw_text *out, const char *text, const char *from, const char *to) {
    const size_t size = strlen(from);
    for (const char *found; (found = strstr(text, from)); text = found + size) {
        tw_text_append(out, (struct tw_view){text, (size_t)(found - text)});
        tw_text_append(out, tw_view_of(to));
    }
    tw_text_append(out, tw_view_of(text));
}

static bool is_blank(char c) { return c == ' ' || c == '\t'; }

void tw_chat_template_read(struct tw_chat_template_text *text, struct tw_view source) {
    *text = (struct tw_chat_template_text){0};
    struct tw_text raw = {0}, work = {0}, next = {0};
    tw_text_append(&raw, source);
    replace(&text->plain, tw_text_string(&raw), "\\n", "\n");
    for (const char *at = tw_text_string(&text->plain); *at;) {
        const char *end = at;
        while (is_blank(*end)) end++;
        const bool before_operator = *end == '+' || *end == '|';
        if (end > at && (before_operator || (work.size && strchr("+|", work.data[work.size - 1])))) {
            at = end;
        } else {
            tw_text_append_char(&work, *at == '"' ? '\'' : *at);
            at++;
        }
    }
    static const char *const rewrites[][2] = {
        {"message.role", "message['role']"}, {"message.content", "message['content']"}, {"'+'", ""}};
    for (size_t i = 0; i < sizeof rewrites / sizeof *rewrites; i++) {
        tw_text_clear(&next);
        replace(&next, tw_text_string(&work), rewrites[i][0], rewrites[i][1]);
        const struct tw_text other = work;
        work = next;
        next = other;
    }
    text->squeezed = work;
    tw_text_release(&raw);
    tw_text_release(&next);
}
