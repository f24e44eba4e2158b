/* A growable, always terminated byte string; may hold NUL bytes (size counts them). And UTF-8 repair. */
#ifndef TW_BASE_TEXT_H
#define TW_BASE_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/view.h"

/*
 * Invariant: data is NULL (empty) or data[size] == 0. When memory runs out `failed` is set, the text stays as it was
 * and every later append does nothing: check once at the end with tw_text_ok().
 */
struct tw_text {
    char *data;
    size_t size;
    size_t capacity;
    bool failed;
};

void tw_text_release(struct tw_text *text); /* leaves it empty and usable; copes with {0} */
void tw_text_clear(struct tw_text *text);   /* keeps the memory */
void tw_text_append(struct tw_text *text, struct tw_view view);
void tw_text_append_char(struct tw_text *text, char byte);
void tw_text_printf(struct tw_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void tw_text_vprintf(struct tw_text *text, const char *format, va_list args);
/* Appends as the body of a JSON string, quotes included; invalid UTF-8 becomes U+FFFD. */
void tw_text_append_json(struct tw_text *text, struct tw_view view);
/* Appends the UTF-8 form of a code point. */
void tw_text_append_code_point(struct tw_text *text, uint32_t code_point);

static inline bool tw_text_ok(const struct tw_text *text) { return !text->failed; }
static inline const char *tw_text_string(const struct tw_text *text) { return text->data ? text->data : ""; }
static inline struct tw_view tw_text_view(const struct tw_text *text) {
    return (struct tw_view){text->data, text->size};
}

/*
 * Decodes one code point at data[0..size), size > 0. Returns its length in bytes (1 to 4) and stores it; on invalid
 * UTF-8 returns 0 and stores in *bad_size the length of the maximal invalid part (Unicode 15, section 3.9, "U+FFFD
 * substitution of maximal subparts"), at least 1. Overlong forms, surrogates and values over 10FFFF are invalid.
 */
size_t tw_utf8_decode(uint32_t *code_point, size_t *bad_size, const char *data, size_t size);

/* Appends `view` with every maximal invalid part replaced by U+FFFD. With `keep_nul` false, NUL bytes too. */
void tw_text_append_utf8_repaired(struct tw_text *text, struct tw_view view, bool keep_nul);

#endif
