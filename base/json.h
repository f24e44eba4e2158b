/*
 * Writes nested JSON: commas, quotation and indentation are done here. (Reading is cJSON's.)
 *
 *     struct tw_json json = {.out = &text};
 *     tw_json_begin_object(&json, NULL);
 *     tw_json_uint(&json, "steps", 300);
 *     tw_json_begin_array(&json, "heads");
 *     tw_json_double(&json, NULL, 0.5);
 *     tw_json_end_array(&json);
 *     tw_json_end_object(&json);
 *
 * `name` is NULL inside arrays and for the outermost value. NaN and infinities become null.
 */
#ifndef TW_BASE_JSON_H
#define TW_BASE_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"

struct tw_json {
    struct tw_text *out;
    unsigned depth;
    bool not_first[32]; /* [depth] whether a comma is due */
};

void tw_json_begin_object(struct tw_json *json, const char *name);
void tw_json_end_object(struct tw_json *json);
void tw_json_begin_array(struct tw_json *json, const char *name);
void tw_json_end_array(struct tw_json *json);
void tw_json_uint(struct tw_json *json, const char *name, uint64_t value);
void tw_json_int(struct tw_json *json, const char *name, int64_t value);
void tw_json_double(struct tw_json *json, const char *name, double value);
void tw_json_bool(struct tw_json *json, const char *name, bool value);
void tw_json_null(struct tw_json *json, const char *name);
void tw_json_text(struct tw_json *json, const char *name, struct tw_view value);

#endif
