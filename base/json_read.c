#include "base/json_read.h"

#include "base/text.h"

struct tw_json_reader tw_json_reader(struct tw_view text) {
    struct tw_json_reader reader = {.start = text.data, .at = text.data, .end = text.data + text.size};
    return reader;
}

bool tw_json_refuse(struct tw_json_reader *reader, const char *fault) {
    if (!reader->fault) {
        reader->fault = fault;
        reader->fault_at = (size_t)(reader->at - reader->start);
    }
    return false;
}

static void skip_space(struct tw_json_reader *reader) {
    while (reader->at < reader->end &&
           (*reader->at == ' ' || *reader->at == '\n' || *reader->at == '\r' || *reader->at == '\t'))
        reader->at++;
}

char tw_json_peek(struct tw_json_reader *reader) {
    if (reader->fault) return 0;
    skip_space(reader);
    return reader->at < reader->end ? *reader->at : 0;
}

static bool take(struct tw_json_reader *reader, char byte) {
    if (tw_json_peek(reader) != byte || reader->at == reader->end) return false;
    reader->at++;
    return true;
}

bool tw_json_enter(struct tw_json_reader *reader, char kind) {
    if (!take(reader, kind)) return tw_json_refuse(reader, kind == '{' ? "expected an object" : "expected an array");
    if (reader->depth == TW_JSON_DEPTH_MAX) return tw_json_refuse(reader, "nested too deeply");
    reader->open[reader->depth++] = kind;
    reader->first = true;
    return true;
}

/* To the next member or element of a container that `close` ends. */
static bool next(struct tw_json_reader *reader, char close) {
    if (reader->fault) return false;
    if (take(reader, close)) {
        reader->depth--;
        reader->first = false;
        return false;
    }
    if (!reader->first && !take(reader, ',')) return tw_json_refuse(reader, "expected a comma or a closing bracket");
    reader->first = false;
    return true;
}

bool tw_json_next_member(struct tw_json_reader *reader, struct tw_view *name) {
    if (!next(reader, '}')) return false;
    if (tw_json_peek(reader) != '"') return tw_json_refuse(reader, "expected a name");
    if (!tw_json_read_string(reader, name)) return false;
    return take(reader, ':') || tw_json_refuse(reader, "expected a colon");
}

bool tw_json_next_element(struct tw_json_reader *reader) { return next(reader, ']'); }

static bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

bool tw_json_read_string(struct tw_json_reader *reader, struct tw_view *raw) {
    if (!take(reader, '"')) return tw_json_refuse(reader, "expected a string");
    const char *const start = reader->at;
    while (reader->at < reader->end && *reader->at != '"') {
        const unsigned char byte = (unsigned char)*reader->at;
        const size_t left = (size_t)(reader->end - reader->at);
        if (byte < 0x20) return tw_json_refuse(reader, "a control character in a string");
        if (byte >= 0x80) {
            uint32_t code_point;
            size_t bad;
            const size_t n = tw_utf8_decode(&code_point, &bad, reader->at, left);
            if (n == 0) return tw_json_refuse(reader, "invalid UTF-8 in a string");
            reader->at += n;
        } else if (byte == '\\') {
            if (left < 2) return tw_json_refuse(reader, "the text ends inside a string");
            const char escape = reader->at[1];
            if (escape == 'u') {
                for (size_t i = 2; i < 6; i++)
                    if (left <= i || !is_hex(reader->at[i])) return tw_json_refuse(reader, "a broken \\u in a string");
                reader->at += 6;
            } else if (escape && memchr("\"\\/bfnrt", escape, 8)) {
                reader->at += 2;
            } else {
                return tw_json_refuse(reader, "an unknown escape in a string");
            }
        } else {
            reader->at++;
        }
    }
    if (reader->at >= reader->end) return tw_json_refuse(reader, "the text ends inside a string");
    *raw = (struct tw_view){start, (size_t)(reader->at - start)};
    reader->at++;
    return true;
}

static bool is_digit(const struct tw_json_reader *reader) {
    return reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9';
}

bool tw_json_read_u64(struct tw_json_reader *reader, uint64_t *value) {
    tw_json_peek(reader);
    if (reader->fault) return false;
    const char *const start = reader->at;
    uint64_t number = 0;
    if (!is_digit(reader)) return tw_json_refuse(reader, "expected a whole number from 0 on");
    for (; is_digit(reader); reader->at++)
        if (__builtin_mul_overflow(number, 10, &number) ||
            __builtin_add_overflow(number, (unsigned)(*reader->at - '0'), &number))
            return tw_json_refuse(reader, "a whole number beyond 64 bits");
    if (*start == '0' && reader->at - start > 1) return tw_json_refuse(reader, "a number with a leading zero");
    if (reader->at < reader->end && (*reader->at == '.' || *reader->at == 'e' || *reader->at == 'E'))
        return tw_json_refuse(reader, "expected a whole number from 0 on");
    *value = number;
    return true;
}

static bool skip_digits(struct tw_json_reader *reader) {
    if (!is_digit(reader)) return tw_json_refuse(reader, "expected a digit");
    while (is_digit(reader)) reader->at++;
    return true;
}

static bool skip_number(struct tw_json_reader *reader) {
    if (*reader->at == '-') reader->at++;
    if (reader->at < reader->end && *reader->at == '0')
        reader->at++;
    else if (!skip_digits(reader))
        return false;
    if (reader->at < reader->end && *reader->at == '.') {
        reader->at++;
        if (!skip_digits(reader)) return false;
    }
    if (reader->at < reader->end && (*reader->at == 'e' || *reader->at == 'E')) {
        reader->at++;
        if (reader->at < reader->end && (*reader->at == '+' || *reader->at == '-')) reader->at++;
        return skip_digits(reader);
    }
    return true;
}

static bool skip_word(struct tw_json_reader *reader, struct tw_view word) {
    const struct tw_view rest = {reader->at, (size_t)(reader->end - reader->at)};
    if (!tw_view_starts_with(rest, word)) return tw_json_refuse(reader, "expected a value");
    reader->at += word.size;
    return true;
}

static bool skip_scalar(struct tw_json_reader *reader, char first) {
    struct tw_view raw;
    switch (first) {
    case '"': return tw_json_read_string(reader, &raw);
    case 't': return skip_word(reader, TW_VIEW("true"));
    case 'f': return skip_word(reader, TW_VIEW("false"));
    case 'n': return skip_word(reader, TW_VIEW("null"));
    default:
        if (first == '-' || (first >= '0' && first <= '9')) return skip_number(reader);
        return tw_json_refuse(reader, "expected a value");
    }
}

bool tw_json_skip(struct tw_json_reader *reader) {
    const unsigned outside = reader->depth;
    struct tw_view name;
    do {
        const char first = tw_json_peek(reader);
        if (reader->fault) return false;
        if (first == '{' || first == '[') {
            if (!tw_json_enter(reader, first)) return false;
        } else if (!skip_scalar(reader, first)) {
            return false;
        }
        /* Out of all containers that end here, to the next value inside one that goes on. */
        while (reader->depth > outside && !(reader->open[reader->depth - 1] == '{' ? tw_json_next_member(reader, &name)
                                                                                   : tw_json_next_element(reader)))
            if (reader->fault) return false;
    } while (reader->depth > outside);
    return true;
}

bool tw_json_finish(struct tw_json_reader *reader) {
    tw_json_peek(reader);
    if (reader->fault) return false;
    return reader->at == reader->end || tw_json_refuse(reader, "something follows the value");
}
