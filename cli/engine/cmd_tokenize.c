/* `tidewake tokenize`: text to token ids and back, as the model's tokenizer does it. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/parse.h"
#include "cli/engine/engine_options.h"
#include "engine/tokenizer/chat.h"

struct tokenize_options {
    const char *text, *file, *chat;
    bool lines, decode, render, bos;
    unsigned special;
};

#define AT(field) offsetof(struct tokenize_options, field)

static const struct tw_option option_rows[] = {
    {.name = "text", .type = TW_OPTION_TEXT, .offset = AT(text), .value_name = "STRING", .help = "the text itself"},
    {.name = "file",
     .type = TW_OPTION_TEXT,
     .offset = AT(file),
     .value_name = "FILE",
     .help = "read the text from here; - is standard input, the default"},
    {.name = "lines", .type = TW_OPTION_FLAG, .offset = AT(lines), .help = "every line is a text: an array a line"},
    {.name = "special",
     .type = TW_OPTION_CHOICE,
     .offset = AT(special),
     .default_value = "literal",
     .choices = "literal|parsed",
     .help = "what the text of a special token inside the text is: ordinary text, or that token"},
    {.name = "bos",
     .type = TW_OPTION_FLAG,
     .offset = AT(bos),
     .help = "put the begin token in front where the model expects one, as trace does"},
    {.name = "decode", .type = TW_OPTION_FLAG, .offset = AT(decode), .help = "the input is ids; write their bytes"},
    {.name = "chat",
     .type = TW_OPTION_TEXT,
     .offset = AT(chat),
     .value_name = "FILE.json",
     .help = "render {\"messages\": [{\"role\", \"content\"}], \"add_generation_prompt\": true} and encode it"},
    {.name = "render", .type = TW_OPTION_FLAG, .offset = AT(render), .help = "with --chat: print the rendered text"},
    {0},
};

static const struct tw_option_group groups[] = {{NULL, option_rows, 0}, {0}};

#define MAX_INPUT_BYTES ((size_t)1 << 30)

static tw_status check_options(const struct tw_invocation *invocation, struct tw_error *err) {
    const struct tokenize_options *o = invocation->options;
    if (!!o->text + !!o->file + !!o->chat > 1)
        return TW_FAIL(err, TW_E_OPTION, "--text, --file and --chat exclude one another");
    if (o->render && !o->chat) return TW_FAIL(err, TW_E_OPTION, "--render prints what --chat FILE.json renders");
    const struct {
        const char *a, *b;
        bool both;
    } pairs[] = {
        {"decode", "chat", o->decode && o->chat},
        {"decode", "bos", o->decode && o->bos},
        {"decode", "special", o->decode && tw_given(invocation, "special")},
        {"lines", "chat", o->lines && o->chat},
        {"bos", "chat", o->bos && o->chat},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i].both) return TW_FAIL(err, TW_E_OPTION, "--%s does not go with --%s", pairs[i].a, pairs[i].b);
    return TW_OK;
}

static tw_status write_out(const struct tw_text *text, struct tw_error *err) {
    if (!tw_text_ok(text)) return TW_FAIL(err, TW_E_MEMORY, "no memory for the output");
    fwrite(tw_text_string(text), 1, text->size, stdout); /* the program checks standard output when it ends */
    return TW_OK;
}

static void append_ids(struct tw_text *out, const struct tw_tokens *tokens) {
    tw_text_append_char(out, '[');
    for (size_t i = 0; i < tokens->n; i++) tw_text_printf(out, i ? ", %d" : "%d", (int)tokens->ids[i]);
    tw_text_append(out, TW_VIEW("]\n"));
}

static tw_status encode(struct tw_text *out, struct tw_tokenizer *tokenizer, struct tw_view text,
                        const struct tokenize_options *o, struct tw_text *warnings, struct tw_error *err) {
    struct tw_tokens tokens = {0};
    const struct tw_encode_options options = {.special = (enum tw_special)o->special, .add_bos = o->bos};
    const tw_status status = tw_tokenizer_encode(&tokens, tokenizer, text, &options, warnings, err);
    if (status == TW_OK) append_ids(out, &tokens);
    tw_tokens_release(&tokens);
    return status;
}

/* Ids between white space, commas and brackets: what encoding writes, and token files. */
static tw_status decode(struct tw_text *out, struct tw_tokenizer *tokenizer, struct tw_view text,
                        const struct tokenize_options *o, struct tw_text *warnings, struct tw_error *err) {
    (void)o;
    static const char separators[] = " \t\r\n\v\f,[]";
    int32_t *ids = NULL;
    size_t n = 0, capacity = 0;
    tw_status status = TW_OK;
    for (size_t at = 0; at < text.size && status == TW_OK;) {
        if (memchr(separators, text.data[at], sizeof separators - 1)) {
            at++;
            continue;
        }
        const size_t begin = at;
        while (at < text.size && !memchr(separators, text.data[at], sizeof separators - 1)) at++;
        const struct tw_view word = {text.data + begin, at - begin};
        uint64_t value;
        if (!tw_parse_u64(&value, word) || value > INT32_MAX) {
            status = TW_FAIL(err, TW_E_INPUT, "--decode: '%.*s' is not a token id",
                             (int)(word.size < 40 ? word.size : 40), word.data);
            break;
        }
        if (n == capacity) {
            capacity = capacity ? 2 * capacity : 1024;
            int32_t *larger = realloc(ids, capacity * sizeof *larger);
            if (!larger) {
                status = TW_FAIL(err, TW_E_MEMORY, "no memory for %zu ids", capacity);
                break;
            }
            ids = larger;
        }
        ids[n++] = (int32_t)value;
    }
    if (status == TW_OK) {
        tw_tokenizer_decode(out, tokenizer, ids, n, &(struct tw_decode_options){0});
        for (size_t i = 0; i < n; i++)
            if (!tw_tokenizer_bytes(tokenizer, ids[i]).data) {
                tw_text_printf(warnings, "there is no token %d; it is written as [token %d]\n", (int)ids[i],
                               (int)ids[i]);
                break;
            }
    }
    free(ids);
    return status;
}

typedef tw_status convert_fn(struct tw_text *out, struct tw_tokenizer *tokenizer, struct tw_view text,
                             const struct tokenize_options *o, struct tw_text *warnings, struct tw_error *err);

static tw_status convert(struct tw_tokenizer *tokenizer, const struct tokenize_options *o, struct tw_error *err) {
    convert_fn *const one = o->decode ? decode : encode;
    struct tw_text input = {0}, out = {0}, warnings = {0};
    tw_status status = TW_OK;
    if (o->text)
        tw_text_append(&input, tw_view_of(o->text));
    else
        status = tw_file_read(&input, o->file ? o->file : "-", MAX_INPUT_BYTES, "text", err);
    if (status == TW_OK && !tw_text_ok(&input)) status = TW_FAIL(err, TW_E_MEMORY, "no memory for the text");
    if (status == TW_OK && !o->lines) status = one(&out, tokenizer, tw_text_view(&input), o, &warnings, err);
    for (size_t at = 0; o->lines && status == TW_OK && at < input.size;) {
        const char *line = input.data + at, *end = memchr(line, '\n', input.size - at);
        const size_t size = end ? (size_t)(end - line) : input.size - at;
        status = one(&out, tokenizer, (struct tw_view){line, size}, o, &warnings, err);
        if (o->decode) tw_text_append_char(&out, '\n');
        at += size + 1;
    }
    if (status == TW_OK) tw_warn_lines(tw_text_view(&warnings));
    if (status == TW_OK) status = write_out(&out, err);
    tw_text_release(&input);
    tw_text_release(&out);
    tw_text_release(&warnings);
    return status;
}

/* cJSON ends a text at a NUL; better no prompt than half of one. */
static bool has_nul_escape(const struct tw_text *json) {
    for (size_t at = 0; at + 6 <= json->size; at++) {
        if (json->data[at] != '\\') continue;
        if (memcmp(json->data + at, "\\u0000", 6) == 0) return true;
        at++; /* an escaped backslash begins nothing */
    }
    return false;
}

static tw_status add_message(struct tw_prompt *prompt, const cJSON *item, const char *path, struct tw_error *err) {
    static const char *const roles[] = {"system", "user", "assistant"};
    const cJSON *role = cJSON_GetObjectItemCaseSensitive(item, "role");
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(item, "content");
    int r = 0;
    while (r < 3 && !(cJSON_IsString(role) && strcmp(role->valuestring, roles[r]) == 0)) r++;
    if (r == 3)
        return TW_FAIL(err, TW_E_INPUT,
                       "chat file '%s': message %zu has no role that is known (system, user, assistant)", path,
                       prompt->n_messages);
    if (!cJSON_IsString(content))
        return TW_FAIL(err, TW_E_INPUT, "chat file '%s': message %zu has no content that is a text", path,
                       prompt->n_messages);
    struct tw_text *text = tw_prompt_add_message(prompt, (enum tw_role)r);
    if (text) tw_text_append(text, tw_view_of(content->valuestring));
    if (!text || !tw_text_ok(text)) return TW_FAIL(err, TW_E_MEMORY, "chat file '%s': out of memory", path);
    return TW_OK;
}

static tw_status read_chat(struct tw_prompt *prompt, bool *generation_prompt, const char *path, struct tw_error *err) {
    struct tw_text json = {0};
    cJSON *root = NULL;
    tw_status status;
    TW_TRY_GOTO(status, done, tw_file_read(&json, path, MAX_INPUT_BYTES, "chat file", err));
    if (has_nul_escape(&json)) {
        status = TW_FAIL(err, TW_E_UNSUPPORTED, "chat file '%s': messages with U+0000 in them cannot be read", path);
        goto done;
    }
    root = cJSON_ParseWithLength(tw_text_string(&json), json.size);
    const cJSON *messages = cJSON_GetObjectItemCaseSensitive(root, "messages");
    if (!cJSON_IsArray(messages)) {
        status = TW_FAIL(err, TW_E_INPUT,
                         root ? "chat file '%s': it has no list \"messages\"" : "chat file '%s': it is not JSON", path);
        goto done;
    }
    *generation_prompt = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(root, "add_generation_prompt"));
    const cJSON *item;
    cJSON_ArrayForEach(item, messages) TW_TRY_GOTO(status, done, add_message(prompt, item, path, err));
done:
    cJSON_Delete(root);
    tw_text_release(&json);
    return status;
}

static tw_status chat(struct tw_tokenizer *tokenizer, const struct tokenize_options *o, struct tw_error *err) {
    struct tw_prompt prompt = {0};
    struct tw_chat rendered = {0};
    struct tw_text out = {0};
    bool generation_prompt = false;
    tw_status status;
    TW_TRY_GOTO(status, done, read_chat(&prompt, &generation_prompt, o->chat, err));
    TW_TRY_GOTO(status, done,
                tw_chat_render(&rendered, tokenizer, prompt.messages, prompt.n_messages, generation_prompt,
                               (struct tw_view){0}, (enum tw_special)o->special, err));
    if (o->render)
        tw_text_append(&out, tw_text_view(&rendered.text));
    else
        append_ids(&out, &rendered.tokens);
    status = write_out(&out, err);
done:
    tw_chat_release(&rendered);
    tw_prompt_release(&prompt);
    tw_text_release(&out);
    return status;
}

static tw_status run(struct tw_invocation *invocation, struct tw_error *err) {
    const struct tokenize_options *o = invocation->options;
    TW_TRY(check_options(invocation, err));
    struct tw_tokenizer *tokenizer;
    TW_TRY(tw_tokenizer_open(&tokenizer, invocation->operands[0], err));
    tw_warn_lines(tw_tokenizer_warnings(tokenizer));
    const tw_status status = o->chat ? chat(tokenizer, o, err) : convert(tokenizer, o, err);
    tw_tokenizer_free(tokenizer);
    return status;
}

const struct tw_command tw_command_tokenize = {
    .name = "tokenize",
    .summary = "text to token ids and back, chat templates",
    .usage = "MODEL [--text STRING | --file FILE | --chat FILE.json] [options]",
    .description =
        "MODEL is a GGUF (tensors are not needed), a Hugging Face folder, or a tokenizer.json. The whole input is\n"
        "one text, whatever its bytes; out comes one JSON array of ids. Nothing is put in front without --bos.",
    .example = "tidewake tokenize data/models/SmolLM2-135M-Instruct.Q4_1.gguf --text 'The tide comes in.'\n"
               "tidewake tokenize tokenizer.json --lines < prompts.txt\n"
               "echo '[504, 29210]' | tidewake tokenize model.gguf --decode",
    .groups = groups,
    .options_size = sizeof(struct tokenize_options),
    .min_operands = 1,
    .max_operands = 1,
    .run = run,
};
