#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void make_printable(char *text) {
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = '?';
}

tw_status tw_fail(struct tw_error *err, tw_status status, const char *format, ...) {
    if (!err) return status;
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    make_printable(err->text);
    return status;
}

tw_status tw_fail_prefix(struct tw_error *err, tw_status status, const char *format, ...) {
    if (!err) return status;
    char old[sizeof err->text];
    memcpy(old, err->text, sizeof old);
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof err->text) snprintf(err->text + n, sizeof err->text - (size_t)n, "%s", old);
    make_printable(err->text);
    return status;
}
