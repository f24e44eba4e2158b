/* How a chat family writes a conversation: for chat.c and the families. Private to tokenizer/. */
#ifndef TW_ENGINE_TOKENIZER_CHAT_RENDER_H
#define TW_ENGINE_TOKENIZER_CHAT_RENDER_H

#include "engine/tokenizer/chat.h"

/* A conversation being written. Marks which bytes the template wrote and where each content lies. */
struct tw_chat_writer {
    struct tw_chat *chat;
    struct tw_view template; /* the model's, as text */
    struct tw_view bos, eos; /* how those tokens are written; empty where there are none */
    const struct tw_message *messages;
    size_t n_messages;
    bool generation_prompt;
    struct tw_byte_span *parsed; /* [n_parsed] what the template wrote */
    size_t n_parsed, capacity;
    bool failed; /* memory ran out */
};

/* A family: how it is recognised, and how it writes. */
struct tw_chat_family {
    const char *name;
    bool (*is)(struct tw_view template);
    tw_status (*render)(struct tw_chat_writer *writer, struct tw_error *err);
};

/* Ends with a NULL name; the first that recognises the template counts. */
extern const struct tw_chat_family tw_chat_families[];

/* The template writes. */
void tw_chat_put(struct tw_chat_writer *writer, struct tw_view text);
static inline void tw_chat_puts(struct tw_chat_writer *writer, const char *text) {
    tw_chat_put(writer, tw_view_of(text));
}
/* The content of message i, or of it what is left after dropping `before` bytes in front and all from `end` on. */
void tw_chat_put_content(struct tw_chat_writer *writer, size_t i, size_t before, size_t end);
void tw_chat_put_message(struct tw_chat_writer *writer, size_t i);         /* all of it */
void tw_chat_put_trimmed_message(struct tw_chat_writer *writer, size_t i); /* white space at both ends dropped */

bool tw_chat_contains(struct tw_view text, const char *part);

#endif
