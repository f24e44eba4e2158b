/* The families of chat templates: which one a template is, and how each writes a conversation. For chat.c. */
#ifndef TW_ENGINE_TOKENIZER_CHAT_FAMILIES_H
#define TW_ENGINE_TOKENIZER_CHAT_FAMILIES_H

#include "engine/tokenizer/chat.h"

/*
 * A template in two readings. `plain` is its text with the escape \n resolved. `squeezed` is what differs in writing
 * only made one: double quotes are single, message.role is message['role'], there are no spaces around + and |, and
 * neighbouring string literals are one ('a' + 'b' is 'ab').
 */
struct tw_chat_template_text {
    struct tw_text plain, squeezed;
};
void tw_chat_template_read(struct tw_chat_template_text *text, struct tw_view source);
void tw_chat_template_release(struct tw_chat_template_text *text);

/* What a family writes to. Memory failures are noted in the texts and in `failed`. */
struct tw_chat_writer {
    struct tw_chat *chat;
    struct tw_byte_span *markers; /* [n_markers] what the template itself wrote */
    size_t n_markers, markers_capacity;
    bool failed;

    const struct tw_chat_template_text *source;
    struct tw_view bos, eos; /* the tokens' texts; empty when there are none */
    const struct tw_message *messages;
    size_t n_messages;
    bool generation_prompt;
};
/* Text of the template: markers in it are parsed. */
void tw_chat_say(struct tw_chat_writer *writer, struct tw_view text);
/* Text from a message: markers in it are whatever the caller of tw_chat_render wants. */
void tw_chat_quote(struct tw_chat_writer *writer, struct tw_view text);
/* The part `part` of message i's content, noted as where it lies. */
void tw_chat_put(struct tw_chat_writer *writer, size_t i, struct tw_view part);

struct tw_chat_family {
    const char *name;
    /* Whether a template is of this family, from its squeezed text. */
    bool (*recognise)(const char *squeezed);
    /* TW_E_INPUT when the template itself would raise an exception. */
    tw_status (*render)(struct tw_chat_writer *writer, struct tw_error *err);
};

/* The family of a template, or NULL. */
const struct tw_chat_family *tw_chat_family_of(const struct tw_chat_template_text *text);
/* Appends the names, separated by commas. */
void tw_chat_family_names(struct tw_text *text);

/* Python's str.strip(): white space off both ends. */
struct tw_view tw_chat_trim(struct tw_view text);

#endif
