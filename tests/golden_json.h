/* Compares JSON that the program wrote with a golden file: every field of the golden must be there and equal. */
#ifndef TW_TESTS_GOLDEN_JSON_H
#define TW_TESTS_GOLDEN_JSON_H

#include <cjson/cJSON.h>

/*
 * Whole numbers exactly, others to 1e-9 relative or absolute (members called z_bar to 1e-7), texts and null exactly,
 * lists element by element, objects by the golden's members. Fails the test and names the place.
 */
void tw_test_json_equal(const cJSON *got, const cJSON *golden, const char *where);

/* The same for some members of an object (a list that ends with NULL); what the golden file lacks must be missing. */
void tw_test_json_members(const cJSON *got, const cJSON *golden, const char *const *members, const char *where);

/* Parses a file or text; fails the test when it is unsound. Free with cJSON_Delete. */
cJSON *tw_test_json_file(const char *path);
cJSON *tw_test_json_text(const char *text);

#endif
