#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>

static bool reserve(struct tw_text *text, size_t more) {
    if (text->failed) return false;
    if (more > SIZE_MAX / 2 - text->size) {
        text->failed = true;
        return false;
    }
    const size_t wanted = text->size + more + 1;
    if (wanted <= text->capacity) return true;
    size_t capacity = text->capacity ? text->capacity : 64;
    while (capacity < wanted) capacity *= 2;
    char *data = realloc(text->data, capacity);
    if (!data) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->capacity = capacity;
    return true;
}

void tw_text_release(struct tw_text *text) {
    free(text->data);
    *text = (struct tw_text){0};
}

void tw_text_clear(struct tw_text *text) {
    text->size = 0;
    if (text->data) text->data[0] = 0;
}

void tw_text_append(struct tw_text *text, struct tw_view view) {
    if (!reserve(text, view.size)) return;
    if (view.size) memcpy(text->data + text->size, view.data, view.size);
    text->size += view.size;
    text->data[text->size] = 0;
}

void tw_text_append_char(struct tw_text *text, char byte) { tw_text_append(text, (struct tw_view){&byte, 1}); }

void tw_text_vprintf(struct tw_text *text, const char *format, va_list args) {
    va_list again;
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, format, args);
    if (n < 0) text->failed = true;
    if (n >= 0 && reserve(text, (size_t)n)) {
        vsnprintf(text->data + text->size, (size_t)n + 1, format, again);
        text->size += (size_t)n;
    }
    va_end(again);
}

void tw_text_printf(struct tw_text *text, const char *format, ...) {
    va_list args;
    va_start(args, format);
    tw_text_vprintf(text, format, args);
    va_end(args);
}

void tw_text_append_code_point(struct tw_text *text, uint32_t c) {
    char bytes[4];
    size_t n = 0;
    if (c < 0x80) {
        bytes[n++] = (char)c;
    } else if (c < 0x800) {
        bytes[n++] = (char)(0xc0 | c >> 6);
        bytes[n++] = (char)(0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
        bytes[n++] = (char)(0xe0 | c >> 12);
        bytes[n++] = (char)(0x80 | (c >> 6 & 0x3f));
        bytes[n++] = (char)(0x80 | (c & 0x3f));
    } else {
        bytes[n++] = (char)(0xf0 | c >> 18);
        bytes[n++] = (char)(0x80 | (c >> 12 & 0x3f));
        bytes[n++] = (char)(0x80 | (c >> 6 & 0x3f));
        bytes[n++] = (char)(0x80 | (c & 0x3f));
    }
    tw_text_append(text, (struct tw_view){bytes, n});
}

size_t tw_utf8_decode(uint32_t *code_point, size_t *bad_size, const char *data, size_t size) {
    const unsigned char *s = (const unsigned char *)data;
    const unsigned char lead = s[0];
    *bad_size = 1;
    if (lead < 0x80) {
        *code_point = lead;
        return 1;
    }
    /* The second byte's range excludes overlong forms, surrogates and what lies beyond 10FFFF (Unicode, table 3-7). */
    unsigned char low = 0x80, high = 0xbf;
    size_t length;
    uint32_t value;
    if (lead >= 0xc2 && lead <= 0xdf) {
        length = 2, value = lead & 0x1f;
    } else if (lead >= 0xe0 && lead <= 0xef) {
        length = 3, value = lead & 0x0f;
        if (lead == 0xe0) low = 0xa0;
        if (lead == 0xed) high = 0x9f;
    } else if (lead >= 0xf0 && lead <= 0xf4) {
        length = 4, value = lead & 0x07;
        if (lead == 0xf0) low = 0x90;
        if (lead == 0xf4) high = 0x8f;
    } else {
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if (i >= size || s[i] < low || s[i] > high) {
            *bad_size = i;
            return 0;
        }
        value = value << 6 | (s[i] & 0x3f);
        low = 0x80, high = 0xbf;
    }
    *code_point = value;
    return length;
}

void tw_text_append_utf8_repaired(struct tw_text *text, struct tw_view view, bool keep_nul) {
    for (size_t i = 0; i < view.size;) {
        uint32_t code_point;
        size_t bad_size;
        const size_t n = tw_utf8_decode(&code_point, &bad_size, view.data + i, view.size - i);
        if (n == 0 || (code_point == 0 && !keep_nul)) {
            tw_text_append_code_point(text, 0xfffd);
            i += n == 0 ? bad_size : n;
        } else {
            tw_text_append(text, (struct tw_view){view.data + i, n});
            i += n;
        }
    }
}

void tw_text_append_json(struct tw_text *text, struct tw_view view) {
    tw_text_append_char(text, '"');
    for (size_t i = 0; i < view.size;) {
        uint32_t c;
        size_t bad_size;
        const size_t n = tw_utf8_decode(&c, &bad_size, view.data + i, view.size - i);
        if (n == 0) {
            tw_text_append_code_point(text, 0xfffd);
            i += bad_size;
            continue;
        }
        if (c == '"' || c == '\\') {
            tw_text_append_char(text, '\\');
            tw_text_append_char(text, (char)c);
        } else if (c == '\n') {
            tw_text_append(text, TW_VIEW("\\n"));
        } else if (c == '\t') {
            tw_text_append(text, TW_VIEW("\\t"));
        } else if (c < 0x20 || c == 0x7f) {
            tw_text_printf(text, "\\u%04x", (unsigned)c);
        } else {
            tw_text_append(text, (struct tw_view){view.data + i, n});
        }
        i += n;
    }
    tw_text_append_char(text, '"');
}
