/* Tasks: seeded, of the length asked for, with a needle span that holds the needle and an answer that scores 1. */
#include <check.h>
#include <ctype.h>
#include <math.h>
#include <string.h>

#include "engine/task/task.h"
#include "tests/support.h"

/* A stand-in for a tokenizer: words and single punctuation marks. */
static size_t count_words(void *context, struct tw_view text) {
    (void)context;
    size_t n = 0;
    for (size_t i = 0; i < text.size; i++) {
        const bool word = isalnum((unsigned char)text.data[i]);
        const bool before = i && isalnum((unsigned char)text.data[i - 1]);
        if (word ? !before : !isspace((unsigned char)text.data[i])) n++;
    }
    return n;
}
static const struct tw_token_counter counter = {count_words, NULL};

static void joined(struct tw_text *all, const struct tw_prompt *prompt) {
    for (size_t i = 0; i < prompt->n_messages; i++) {
        tw_text_append(all, tw_text_view(&prompt->messages[i].content));
        tw_text_append_char(all, '\n');
    }
}

START_TEST(every_task_keeps_its_promises) {
    struct tw_error err = {0};
    size_t made = 0;
    for (const struct tw_task *const *task = tw_task_table; *task; task++)
        for (uint64_t seed = 0; seed < 5; seed++) {
            const size_t lengths[] = {0, 900, 4000};
            for (size_t i = 0; i < 3; i++) {
                struct tw_prompt prompt, again;
                const struct tw_task_request request = {lengths[i], 0.25 * (double)(seed % 5), seed};
                ck_assert_msg(tw_task_make(&prompt, *task, &request, &counter, &err) == TW_OK, "%s: %s", (*task)->name,
                              err.text);
                ck_assert_int_eq(tw_task_make(&again, *task, &request, &counter, &err), TW_OK);
                struct tw_text a = {0}, b = {0}, answer = {0};
                joined(&a, &prompt), joined(&b, &again);
                ck_assert_msg(tw_view_equal(tw_text_view(&a), tw_text_view(&b)), "%s is not reproducible",
                              (*task)->name);
                /* The length asked for, turns and short lists come in larger steps. */
                const size_t wanted = lengths[i] ? lengths[i] : (*task)->default_tokens;
                if ((*task)->default_tokens) {
                    const size_t n = count_words(NULL, tw_text_view(&a));
                    ck_assert_msg(n <= wanted &&
                                      (strcmp((*task)->name, "common_words") == 0 || n + 200 >= wanted * 3 / 4),
                                  "%s: %zu of %zu tokens", (*task)->name, n, wanted);
                }
                ck_assert_uint_gt(prompt.n_expected, 0);
                for (size_t e = 0; e < prompt.n_expected; e++) {
                    tw_text_append(&answer, tw_text_view(&prompt.expected[e]));
                    tw_text_append(&answer, TW_VIEW(",\n "));
                }
                ck_assert(tw_prompt_score(&prompt, tw_text_view(&answer)) == 1);
                ck_assert(tw_prompt_score(&prompt, TW_VIEW("I do not know.")) == 0);
                ck_assert_uint_le(prompt.needle_begin, prompt.needle_end);
                if (prompt.needle_end > prompt.needle_begin) {
                    const struct tw_text *content = &prompt.messages[prompt.needle_message].content;
                    ck_assert_uint_le(prompt.needle_end, content->size);
                    const char first = content->data[prompt.needle_begin], last = content->data[prompt.needle_end - 1];
                    ck_assert(isalpha((unsigned char)first) && (last == '.' || last == '?'));
                }
                made++;
                tw_text_release(&a), tw_text_release(&b), tw_text_release(&answer);
                tw_prompt_release(&prompt), tw_prompt_release(&again);
            }
        }
    ck_assert_uint_gt(made, 100);
}
END_TEST

START_TEST(the_needle_stands_at_its_depth) {
    struct tw_error err = {0};
    const struct tw_task *task;
    ck_assert_int_eq(tw_task_find(&task, "niah", &err), TW_OK);
    for (int d = 0; d <= 10; d++) {
        struct tw_prompt prompt;
        const struct tw_task_request request = {3000, d / 10.0, 7};
        ck_assert_int_eq(tw_task_make(&prompt, task, &request, &counter, &err), TW_OK);
        const struct tw_text *content = &prompt.messages[0].content;
        const char *needle = content->data + prompt.needle_begin;
        ck_assert(memcmp(needle, "The special magic number for", 28) == 0);
        ck_assert(memmem(needle, prompt.needle_end - prompt.needle_begin, prompt.expected[0].data,
                         prompt.expected[0].size) != NULL);
        ck_assert(fabs((double)prompt.needle_begin / (double)content->size - d / 10.0) < 0.03);
        tw_prompt_release(&prompt);
    }
}
END_TEST

START_TEST(impossible_requests_are_refused) {
    struct tw_error err = {0};
    const struct tw_task *task;
    ck_assert_int_eq(tw_task_find(&task, "nihа", &err), TW_E_OPTION);
    ck_assert(strstr(err.text, "niah") != NULL);
    static const char *const sized[] = {"niah", "multivalue", "variables", "common_words", "frequent_words"};
    for (size_t i = 0; i < sizeof sized / sizeof *sized; i++) {
        struct tw_prompt prompt;
        ck_assert_int_eq(tw_task_find(&task, sized[i], &err), TW_OK);
        ck_assert_int_eq(tw_task_make(&prompt, task, &(const struct tw_task_request){20, 0.5, 1}, &counter, &err),
                         TW_E_OPTION);
        ck_assert_msg(strstr(err.text, "too short"), "%s", err.text);
        ck_assert_uint_eq(prompt.n_messages, 0);
    }
}
END_TEST

Suite *tw_suite_task(void);
Suite *tw_suite_task(void) {
    Suite *suite = suite_create("task");
    TCase *c = tcase_create("task");
    tcase_add_test(c, every_task_keeps_its_promises);
    tcase_add_test(c, the_needle_stands_at_its_depth);
    tcase_add_test(c, impossible_requests_are_refused);
    suite_add_tcase(suite, c);
    return suite;
}
