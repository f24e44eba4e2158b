/* Rendering a conversation with the family's writer, and encoding it with the template's own markers told apart. */
#include "engine/tokenizer/chat.h"

#include <stdlib.h>

#include "base/checked.h"
#include "engine/tokenizer/chat_families.h"
#include "engine/tokenizer/internal.h"

struct tw_view tw_chat_template(const struct tw_tokenizer *t) {
    return tw_text_view(&t->chat_template);
}

const char *tw_chat_family(const struct tw_tokenizer *t) {
    struct tw_chat_template_text source;
    tw_chat_template_read(&source, tw_chat_template(t));
    const struct tw_chat_family *family = tw_chat_family_of(&source);
    tw_chat_template_release(&source);
    return family ? family->name : NULL;
}

void tw_chat_say(struct tw_chat_writer *w, struct tw_view text) {
    const size_t begin = w->chat->text.size;
    tw_text_append(&w->chat->text, text);
    const size_t end = w->chat->text.size;
    if (w->n_markers && w->markers[w->n_markers - 1].end == begin) {
        w->markers[w->n_markers - 1].end = end;
        return;
    }
    if (w->n_markers == w->markers_capacity) {
        const size_t capacity = tw_max_size(16, 2 * w->markers_capacity);
        struct tw_byte_span *markers = realloc(w->markers, capacity * sizeof *markers);
        if (!markers) {
            w->failed = true;
            return;
        }
        w->markers = markers;
        w->markers_capacity = capacity;
    }
    w->markers[w->n_markers++] = (struct tw_byte_span){begin, end};
}

void tw_chat_quote(struct tw_chat_writer *w, struct tw_view text) { tw_text_append(&w->chat->text, text); }

void tw_chat_put(struct tw_chat_writer *w, size_t i, struct tw_view part) {
    struct tw_chat_span *span = &w->chat->messages[i];
    span->begin = w->chat->text.size;
    tw_chat_quote(w, part);
    span->end = w->chat->text.size;
    span->trimmed_before = part.data ? (size_t)(part.data - tw_text_view(&w->messages[i].content).data) : 0;
    span->rendered = true;
}

static tw_status render(struct tw_chat_writer *w, struct tw_tokenizer *t, struct tw_view answer_opening,
                        struct tw_error *err) {
    if (t->chat_template.size == 0)
        return TW_FAIL(err, TW_E_UNSUPPORTED,
                       "model '%s' has no chat template; use --raw to give it the text without one", t->name);
    const struct tw_chat_family *family = tw_chat_family_of(w->source);
    if (!family) {
        struct tw_text names = {0};
        tw_chat_family_names(&names);
        tw_fail(err, TW_E_UNSUPPORTED,
                "model '%s': its chat template is none of those that are known (%s); use --raw to give it the text "
                "without one",
                t->name, tw_text_string(&names));
        tw_text_release(&names);
        return TW_E_UNSUPPORTED;
    }
    if (w->n_messages == 0) return TW_FAIL(err, TW_E_INPUT, "a conversation needs at least one message");
    TW_TRY(family->render(w, err));
    if (w->generation_prompt) tw_chat_quote(w, answer_opening);
    if (w->failed || !tw_text_ok(&w->chat->text))
        return TW_FAIL(err, TW_E_MEMORY, "model '%s': no memory for the rendered conversation", t->name);
    return TW_OK;
}

tw_status tw_chat_render(struct tw_chat *chat, struct tw_tokenizer *t, const struct tw_message *messages,
                         size_t n_messages, bool generation_prompt, struct tw_view answer_opening,
                         enum tw_special special, struct tw_error *err) {
    tw_chat_release(chat);
    struct tw_chat_template_text source;
    tw_chat_template_read(&source, tw_chat_template(t));
    struct tw_chat_writer writer = {.chat = chat,
                                    .source = &source,
                                    .bos = tw_tokenizer_bytes(t, t->bos),
                                    .eos = tw_tokenizer_bytes(t, t->eos),
                                    .messages = messages,
                                    .n_messages = n_messages,
                                    .generation_prompt = generation_prompt};
    chat->messages = calloc(n_messages + 1, sizeof *chat->messages);
    chat->n_messages = chat->messages ? n_messages : 0;
    tw_status status = chat->messages && tw_text_ok(&source.plain) && tw_text_ok(&source.squeezed)
                           ? TW_OK
                           : TW_FAIL(err, TW_E_MEMORY, "model '%s': no memory for the conversation", t->name);
    if (status == TW_OK) status = render(&writer, t, answer_opening, err);
    if (status == TW_OK) {
        const struct tw_encode_options options = {
            .special = special, .parsed_spans = writer.markers, .n_parsed_spans = writer.n_markers};
        status = tw_tokenizer_encode(&chat->tokens, t, tw_text_view(&chat->text), &options, NULL, err);
    }
    free(writer.markers);
    tw_chat_template_release(&source);
    return status;
}

void tw_chat_release(struct tw_chat *chat) {
    tw_text_release(&chat->text);
    tw_tokens_release(&chat->tokens);
    free(chat->messages);
    *chat = (struct tw_chat){0};
}
