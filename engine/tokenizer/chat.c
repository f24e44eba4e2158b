#include "engine/tokenizer/chat.h"

#include <stdlib.h>

#include "engine/tokenizer/chat_render.h"
#include "engine/tokenizer/internal.h"

struct tw_view tw_chat_template(const struct tw_tokenizer *tokenizer) {
    return tw_text_view(&tokenizer->chat_template);
}

static const struct tw_chat_family *family_of(const struct tw_tokenizer *tokenizer) {
    const struct tw_view template = tw_chat_template(tokenizer);
    if (template.size == 0) return NULL;
    for (const struct tw_chat_family *f = tw_chat_families; f->name; f++)
        if (f->is(template)) return f;
    return NULL;
}

const char *tw_chat_family(const struct tw_tokenizer *tokenizer) {
    const struct tw_chat_family *family = family_of(tokenizer);
    return family ? family->name : NULL;
}

bool tw_chat_contains(struct tw_view text, const char *part) {
    return text.size && memmem(text.data, text.size, part, strlen(part)) != NULL;
}

void tw_chat_put(struct tw_chat_writer *writer, struct tw_view text) {
    if (text.size == 0) return;
    const size_t begin = writer->chat->text.size;
    tw_text_append(&writer->chat->text, text);
    if (writer->n_parsed && writer->parsed[writer->n_parsed - 1].end == begin) {
        writer->parsed[writer->n_parsed - 1].end += text.size;
        return;
    }
    if (writer->n_parsed == writer->capacity) {
        const size_t capacity = writer->capacity ? writer->capacity * 2 : 16;
        struct tw_byte_span *larger = realloc(writer->parsed, capacity * sizeof *larger);
        if (!larger) {
            writer->failed = true;
            return;
        }
        writer->parsed = larger;
        writer->capacity = capacity;
    }
    writer->parsed[writer->n_parsed++] = (struct tw_byte_span){begin, begin + text.size};
}

void tw_chat_put_content(struct tw_chat_writer *writer, size_t i, size_t before, size_t end) {
    const struct tw_text *content = &writer->messages[i].content;
    struct tw_chat_span *span = &writer->chat->messages[i];
    *span = (struct tw_chat_span){.begin = writer->chat->text.size, .trimmed_before = before, .rendered = true};
    if (end > before) tw_text_append(&writer->chat->text, (struct tw_view){content->data + before, end - before});
    span->end = writer->chat->text.size;
}

void tw_chat_put_message(struct tw_chat_writer *writer, size_t i) {
    tw_chat_put_content(writer, i, 0, writer->messages[i].content.size);
}

/* What Jinja's trim drops: white space. */
static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

void tw_chat_put_trimmed_message(struct tw_chat_writer *writer, size_t i) {
    const struct tw_text *content = &writer->messages[i].content;
    size_t begin = 0, end = content->size;
    while (begin < end && is_space(content->data[begin])) begin++;
    while (end > begin && is_space(content->data[end - 1])) end--;
    tw_chat_put_content(writer, i, begin, end);
}

static struct tw_view written_as(const struct tw_tokenizer *tokenizer, int32_t id) {
    return id == TW_NO_TOKEN ? (struct tw_view){0} : tw_tokenizer_bytes(tokenizer, id);
}

tw_status tw_chat_render(struct tw_chat *chat, struct tw_tokenizer *tokenizer, const struct tw_message *messages,
                         size_t n_messages, bool generation_prompt, struct tw_view answer_opening,
                         enum tw_special special, struct tw_error *err) {
    const struct tw_chat_family *family = family_of(tokenizer);
    if (tw_chat_template(tokenizer).size == 0)
        return TW_FAIL(err, TW_E_UNSUPPORTED, "'%s' has no chat template; --raw runs the text as it is",
                       tokenizer->name);
    if (!family)
        return TW_FAIL(err, TW_E_UNSUPPORTED,
                       "the chat template of '%s' is of no family that is known; --raw runs the text as it is",
                       tokenizer->name);
    if (n_messages == 0) return TW_FAIL(err, TW_E_INPUT, "a conversation without messages cannot be rendered");
    struct tw_chat_writer writer = {
        .chat = chat,
        .template = tw_chat_template(tokenizer),
        .bos = written_as(tokenizer, tw_tokenizer_bos(tokenizer)),
        .eos = written_as(tokenizer, tw_tokenizer_eos(tokenizer)),
        .messages = messages,
        .n_messages = n_messages,
        .generation_prompt = generation_prompt,
    };
    chat->messages = calloc(n_messages, sizeof *chat->messages);
    chat->n_messages = n_messages;
    tw_status status = TW_OK;
    if (!chat->messages) writer.failed = true;
    if (!writer.failed) status = family->render(&writer, err);
    if (status == TW_OK) tw_text_append(&chat->text, answer_opening);
    if (status == TW_OK && (writer.failed || !tw_text_ok(&chat->text)))
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory for a conversation of %zu messages", n_messages);
    if (status == TW_OK) {
        const struct tw_encode_options options = {
            .special = special, .parsed_spans = writer.parsed, .n_parsed_spans = writer.n_parsed};
        status = tw_tokenizer_encode(&chat->tokens, tokenizer, tw_text_view(&chat->text), &options, NULL, err);
    }
    free(writer.parsed);
    return status;
}

void tw_chat_release(struct tw_chat *chat) {
    tw_text_release(&chat->text);
    tw_tokens_release(&chat->tokens);
    free(chat->messages);
    *chat = (struct tw_chat){0};
}
