#include "base/json.h"

#include <assert.h>
#include <math.h>

#include "base/table.h"

static void begin_value(struct tw_json *json, const char *name) {
    if (json->not_first[json->depth]) tw_text_append_char(json->out, ',');
    if (json->depth) {
        /* Members go on lines of their own; arrays of numbers stay on one. */
        if (name)
            tw_text_printf(json->out, "\n%*s", (int)(2 * json->depth), "");
        else if (json->not_first[json->depth])
            tw_text_append_char(json->out, ' ');
    }
    json->not_first[json->depth] = true;
    if (name) {
        tw_text_append_json(json->out, tw_view_of(name));
        tw_text_append(json->out, TW_VIEW(": "));
    }
}

static void open(struct tw_json *json, const char *name, char bracket) {
    begin_value(json, name);
    tw_text_append_char(json->out, bracket);
    json->depth++;
    assert(json->depth < sizeof json->not_first / sizeof *json->not_first);
    json->not_first[json->depth] = false;
}

void tw_json_begin_object(struct tw_json *json, const char *name) { open(json, name, '{'); }
void tw_json_begin_array(struct tw_json *json, const char *name) { open(json, name, '['); }

void tw_json_end_object(struct tw_json *json) {
    const bool any = json->not_first[json->depth--];
    if (any) tw_text_printf(json->out, "\n%*s", (int)(2 * json->depth), "");
    tw_text_append_char(json->out, '}');
    if (json->depth == 0) tw_text_append_char(json->out, '\n');
}

void tw_json_end_array(struct tw_json *json) {
    json->depth--;
    tw_text_append_char(json->out, ']');
    if (json->depth == 0) tw_text_append_char(json->out, '\n');
}

void tw_json_uint(struct tw_json *json, const char *name, uint64_t value) {
    begin_value(json, name);
    tw_text_printf(json->out, "%llu", (unsigned long long)value);
}
void tw_json_int(struct tw_json *json, const char *name, int64_t value) {
    begin_value(json, name);
    tw_text_printf(json->out, "%lld", (long long)value);
}
void tw_json_double(struct tw_json *json, const char *name, double value) {
    if (!isfinite(value)) {
        tw_json_null(json, name);
        return;
    }
    begin_value(json, name);
    tw_text_append_double(json->out, value);
}
void tw_json_bool(struct tw_json *json, const char *name, bool value) {
    begin_value(json, name);
    tw_text_append(json->out, tw_view_of(value ? "true" : "false"));
}
void tw_json_null(struct tw_json *json, const char *name) {
    begin_value(json, name);
    tw_text_append(json->out, TW_VIEW("null"));
}
void tw_json_text(struct tw_json *json, const char *name, struct tw_view value) {
    begin_value(json, name);
    tw_text_append_json(json->out, value);
}
