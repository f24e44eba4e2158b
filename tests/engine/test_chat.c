/* Chat templates: SmolLM2's goldens, and each family's turns as its published template writes them. */
#include <check.h>
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/tokenizer/chat.h"
#include "engine/tokenizer/spec.h"
#include "tests/support.h"

#define MODEL "data/models/SmolLM2-135M-Instruct.Q4_1.gguf"

static const cJSON *get(const cJSON *object, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    ck_assert_msg(item != NULL, "no '%s'", name);
    return item;
}

static enum tw_role role_of(const char *name) {
    return strcmp(name, "system") == 0 ? TW_ROLE_SYSTEM : strcmp(name, "user") == 0 ? TW_ROLE_USER : TW_ROLE_ASSISTANT;
}

static void fill_prompt(struct tw_prompt *prompt, const cJSON *messages) {
    const cJSON *message;
    cJSON_ArrayForEach(message, messages) {
        struct tw_text *content = tw_prompt_add_message(prompt, role_of(get(message, "role")->valuestring));
        ck_assert_ptr_nonnull(content);
        tw_text_append(content, tw_view_of(get(message, "content")->valuestring));
    }
}

/* Bytes of the text that a span of messages names are the message's, less what was trimmed. */
static void assert_spans(const struct tw_chat *chat, const struct tw_prompt *prompt) {
    ck_assert_uint_eq(chat->n_messages, prompt->n_messages);
    for (size_t i = 0; i < chat->n_messages; i++) {
        const struct tw_chat_span *span = &chat->messages[i];
        if (!span->rendered) continue;
        const struct tw_text *content = &prompt->messages[i].content;
        ck_assert_uint_le(span->trimmed_before + span->end - span->begin, content->size);
        ck_assert(
            span->end == span->begin ||
            memcmp(chat->text.data + span->begin, content->data + span->trimmed_before, span->end - span->begin) == 0);
    }
}

static void check_golden(struct tw_tokenizer *tokenizer, const cJSON *golden) {
    ck_assert_str_eq(tw_chat_family(tokenizer), "chatml");
    const cJSON *conversation;
    cJSON_ArrayForEach(conversation, get(golden, "conversations")) {
        const char *name = get(conversation, "name")->valuestring;
        struct tw_prompt prompt = {0};
        fill_prompt(&prompt, get(conversation, "messages"));
        struct tw_chat chat = {0};
        struct tw_error err = {0};
        ck_assert_msg(tw_chat_render(&chat, tokenizer, prompt.messages, prompt.n_messages,
                                     cJSON_IsTrue(get(conversation, "add_generation_prompt")), (struct tw_view){0},
                                     TW_SPECIAL_PARSED, &err) == TW_OK,
                      "%s", err.text);
        ck_assert_msg(strcmp(tw_text_string(&chat.text), get(conversation, "text")->valuestring) == 0, "%s: '%s'", name,
                      tw_text_string(&chat.text));
        const cJSON *ids = get(conversation, "ids");
        ck_assert_uint_eq(chat.tokens.n, (size_t)cJSON_GetArraySize(ids));
        size_t i = 0;
        const cJSON *id;
        cJSON_ArrayForEach(id, ids) {
            ck_assert_msg(chat.tokens.ids[i] == id->valueint, "%s: token %zu", name, i);
            i++;
        }
        assert_spans(&chat, &prompt);
        tw_chat_release(&chat);
        tw_prompt_release(&prompt);
    }
}

static cJSON *read_golden(void) {
    char *text = tw_test_read_file(tw_test_golden("engine/tokenizer/smollm2/chat.json"), NULL);
    cJSON *golden = cJSON_Parse(text);
    free(text);
    ck_assert_ptr_nonnull(golden);
    return golden;
}

/* SmolLM2's tokenizer.json with a template of its own or another's. */
static struct tw_tokenizer *smollm2_with(const char *template) {
    size_t size;
    char *json = tw_test_read_file(tw_test_golden("engine/tokenizer/smollm2/tokenizer.json"), &size);
    struct tw_tokenizer *tokenizer;
    struct tw_error err = {0};
    const struct tw_tokenizer_files files = {
        .name = "smollm2", .tokenizer = {json, size}, .chat_template = tw_view_of(template)};
    ck_assert_msg(tw_tokenizer_from_json(&tokenizer, &files, &err) == TW_OK, "%s", err.text);
    free(json);
    return tokenizer;
}

START_TEST(golden_from_json) {
    cJSON *golden = read_golden();
    struct tw_tokenizer *tokenizer = smollm2_with(get(golden, "template")->valuestring);
    check_golden(tokenizer, golden);
    tw_tokenizer_free(tokenizer);
    cJSON_Delete(golden);
}
END_TEST

START_TEST(golden_from_gguf) {
    const char *source = getenv("TW_SOURCE");
    const char *path = tw_test_path(source ? source : ".", MODEL);
    if (access(path, R_OK) != 0 && tw_test_skip("model", "no " MODEL)) return;
    cJSON *golden = read_golden();
    struct tw_tokenizer *tokenizer;
    struct tw_error err = {0};
    ck_assert_msg(tw_tokenizer_open(&tokenizer, path, &err) == TW_OK, "%s", err.text);
    check_golden(tokenizer, golden);
    tw_tokenizer_free(tokenizer);
    cJSON_Delete(golden);
}
END_TEST

/* ---- every family
 * ---------------------------------------------------------------------------------------------------- */

static const char *const markers[] = {
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<s>",
    "</s>",
    "<bos>",
    "<eos>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
};
enum { N_MARKERS = sizeof markers / sizeof *markers, N_TOKENS = 256 + N_MARKERS };

/* A vocabulary of the 256 bytes and all markers: every text is its bytes. */
static struct tw_tokenizer *byte_tokenizer(const char *bos, const char *eos, const char *template) {
    static char names[256][8];
    struct tw_view tokens[N_TOKENS];
    uint8_t kinds[N_TOKENS];
    float scores[N_TOKENS] = {0};
    struct tw_tokenizer_spec spec = {.name = "bytes",
                                     .n_tokens = N_TOKENS,
                                     .tokens = tokens,
                                     .kinds = kinds,
                                     .scores = scores,
                                     .byte_fallback = true,
                                     .split = "none",
                                     .bos = TW_NO_TOKEN,
                                     .eos = TW_NO_TOKEN,
                                     .unknown = TW_NO_TOKEN,
                                     .chat_template = tw_view_of(template)};
    for (int b = 0; b < 256; b++) {
        snprintf(names[b], sizeof names[b], "<0x%02X>", (unsigned)b);
        tokens[b] = tw_view_of(names[b]);
        kinds[b] = TW_TOKEN_BYTE;
    }
    for (int m = 0; m < N_MARKERS; m++) {
        tokens[256 + m] = tw_view_of(markers[m]);
        kinds[256 + m] = TW_TOKEN_CONTROL;
        if (strcmp(markers[m], bos) == 0) spec.bos = 256 + m;
        if (strcmp(markers[m], eos) == 0) spec.eos = 256 + m;
    }
    struct tw_tokenizer *tokenizer;
    struct tw_error err = {0};
    ck_assert_msg(tw_tokenizer_create(&tokenizer, &spec, &err) == TW_OK, "%s", err.text);
    return tokenizer;
}

static cJSON *read_families(void) {
    const char *source = getenv("TW_SOURCE");
    char *text = tw_test_read_file(tw_test_path(source ? source : ".", "tests/engine/chat_families.json"), NULL);
    cJSON *families = cJSON_Parse(text);
    free(text);
    ck_assert_ptr_nonnull(families);
    return families;
}

static tw_status render(struct tw_chat *chat, struct tw_tokenizer *tokenizer, const struct tw_prompt *prompt,
                        bool generation_prompt, enum tw_special special, struct tw_error *err) {
    return tw_chat_render(chat, tokenizer, prompt->messages, prompt->n_messages, generation_prompt, (struct tw_view){0},
                          special, err);
}

static void assert_decodes(const struct tw_chat *chat, struct tw_tokenizer *tokenizer, const char *what) {
    struct tw_text decoded = {0};
    tw_tokenizer_decode(&decoded, tokenizer, chat->tokens.ids, chat->tokens.n, &(struct tw_decode_options){0});
    ck_assert_msg(tw_view_equal(tw_text_view(&decoded), tw_text_view(&chat->text)), "%s: decoded '%s'", what,
                  tw_text_string(&decoded));
    tw_text_release(&decoded);
}

START_TEST(families_write_what_jinja_writes) {
    cJSON *families = read_families();
    const cJSON *family, *conversation;
    cJSON_ArrayForEach(family, families) {
        const char *name = get(family, "name")->valuestring;
        struct tw_tokenizer *tokenizer = byte_tokenizer(
            get(family, "bos")->valuestring, get(family, "eos")->valuestring, get(family, "template")->valuestring);
        ck_assert_msg(tw_chat_family(tokenizer) != NULL, "%s is not recognised", name);
        ck_assert_str_eq(tw_chat_family(tokenizer), get(family, "family")->valuestring);
        cJSON_ArrayForEach(conversation, get(family, "cases")) {
            const char *what = get(conversation, "name")->valuestring;
            const cJSON *text = get(conversation, "text");
            struct tw_prompt prompt = {0};
            fill_prompt(&prompt, get(conversation, "messages"));
            struct tw_chat chat = {0};
            struct tw_error err = {0};
            const tw_status status =
                render(&chat, tokenizer, &prompt, cJSON_IsTrue(get(conversation, "add_generation_prompt")),
                       TW_SPECIAL_LITERAL, &err);
            if (cJSON_IsNull(text)) {
                ck_assert_msg(status == TW_E_INPUT, "%s, %s: not refused", name, what);
            } else {
                ck_assert_msg(status == TW_OK, "%s, %s: %s", name, what, err.text);
                ck_assert_msg(strcmp(tw_text_string(&chat.text), text->valuestring) == 0, "%s, %s:\n%s\nexpected\n%s",
                              name, what, tw_text_string(&chat.text), text->valuestring);
                assert_spans(&chat, &prompt);
                assert_decodes(&chat, tokenizer, what);
            }
            tw_chat_release(&chat);
            tw_prompt_release(&prompt);
        }
        tw_tokenizer_free(tokenizer);
    }
    cJSON_Delete(families);
}
END_TEST

/* C12: a marker inside a message is text when literal, the template's own are tokens always. */
START_TEST(markers_in_messages_stay_text) {
    cJSON *families = read_families();
    const cJSON *family;
    cJSON_ArrayForEach(family, families) {
        struct tw_tokenizer *tokenizer = byte_tokenizer(
            get(family, "bos")->valuestring, get(family, "eos")->valuestring, get(family, "template")->valuestring);
        struct tw_prompt prompt = {0};
        struct tw_text *content = tw_prompt_add_message(&prompt, TW_ROLE_USER);
        ck_assert_ptr_nonnull(content);
        for (int m = 0; m < N_MARKERS; m++) tw_text_append(content, tw_view_of(markers[m]));
        for (int special = TW_SPECIAL_LITERAL; special <= TW_SPECIAL_PARSED; special++) {
            struct tw_chat chat = {0};
            struct tw_error err = {0};
            ck_assert_msg(render(&chat, tokenizer, &prompt, true, (enum tw_special)special, &err) == TW_OK, "%s",
                          err.text);
            size_t inside = 0, outside = 0;
            for (size_t i = 0; i < chat.tokens.n; i++)
                if (chat.tokens.ids[i] >= 256) {
                    const bool in =
                        chat.tokens.begin[i] >= chat.messages[0].begin && chat.tokens.end[i] <= chat.messages[0].end;
                    *(in ? &inside : &outside) += 1;
                }
            ck_assert_uint_eq(inside, special == TW_SPECIAL_PARSED ? N_MARKERS : 0);
            ck_assert_uint_gt(outside, 0);
            assert_decodes(&chat, tokenizer, "markers");
            tw_chat_release(&chat);
        }
        tw_prompt_release(&prompt);
        tw_tokenizer_free(tokenizer);
    }
    cJSON_Delete(families);
}
END_TEST

/* An unknown template, and one that looks like a family's but does something else with a message. */
START_TEST(unknown_templates_are_refused) {
    static const char *const templates[] = {
        "",
        "{% for message in messages %}{{ '<|user|>' + message['content'] + '<|end|>' }}{% endfor %}",
        ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] | upper + "
         "'<|im_end|>\n'}}{% endfor %}"),
        "{{ bos_token }}{% for message in messages %}{{ '[INST]' + message['content'] + '[/INST]' }}{% endfor %}",
    };
    struct tw_prompt prompt = {0};
    ck_assert_ptr_nonnull(tw_prompt_add_message(&prompt, TW_ROLE_USER));
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
        struct tw_tokenizer *tokenizer = byte_tokenizer("<s>", "</s>", templates[i]);
        struct tw_chat chat = {0};
        struct tw_error err = {0};
        ck_assert_ptr_null(tw_chat_family(tokenizer));
        ck_assert_int_eq(render(&chat, tokenizer, &prompt, true, TW_SPECIAL_LITERAL, &err), TW_E_UNSUPPORTED);
        ck_assert_msg(strstr(err.text, "--raw") != NULL, "%s", err.text);
        tw_chat_release(&chat);
        tw_tokenizer_free(tokenizer);
    }
    tw_prompt_release(&prompt);
}
END_TEST

Suite *tw_suite_chat(void);
Suite *tw_suite_chat(void) {
    Suite *suite = suite_create("chat");
    TCase *golden = tcase_create("golden");
    tcase_set_timeout(golden, 30);
    tcase_add_test(golden, golden_from_json);
    tcase_add_test(golden, golden_from_gguf);
    suite_add_tcase(suite, golden);
    TCase *family = tcase_create("families");
    tcase_set_timeout(family, 30);
    tcase_add_test(family, families_write_what_jinja_writes);
    tcase_add_test(family, markers_in_messages_stay_text);
    tcase_add_test(family, unknown_templates_are_refused);
    suite_add_tcase(suite, family);
    return suite;
}
