/*
 * Word extraction (RULER): of a long numbered list, the ten words that occur most often (common words, CWE: ten words
 * thirty times as against three; frequent words, FWE: frequencies fall as 1/rank, the three most frequent are asked
 * for). There is no one place that answers, so no needle.
 */
#include <math.h>
#include <stdlib.h>

#include "engine/task/material.h"

enum { COMMON = 10, COMMON_TIMES = 30, UNCOMMON_TIMES = 3, FREQUENT = 3, RANKS = 40 };

/* Appends "1. word 2. word ..." of `counts[i]` times word i, shuffled. */
static tw_status append_shuffled(struct tw_text *text, const size_t *words, const size_t *counts, size_t n,
                                 struct tw_random *random, bool numbered, struct tw_error *err) {
    size_t total = 0, at = 0;
    for (size_t i = 0; i < n; i++) total += counts[i];
    size_t *sequence = malloc((total + 1) * sizeof *sequence);
    if (!sequence) return TW_FAIL(err, TW_E_MEMORY, "out of memory for a list of %zu words", total);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < counts[i]; k++) sequence[at++] = words[i];
    for (size_t i = total; i > 1; i--) {
        const size_t j = (size_t)tw_random_below(random, i);
        const size_t swap = sequence[i - 1];
        sequence[i - 1] = sequence[j];
        sequence[j] = swap;
    }
    for (size_t i = 0; i < total; i++) {
        if (i) tw_text_append_char(text, ' ');
        if (numbered) tw_text_printf(text, "%zu. ", i + 1);
        tw_text_append(text, tw_list_line(TW_LIST_WORDS, sequence[i]));
    }
    free(sequence);
    return TW_OK;
}

static tw_status finish(struct tw_prompt *prompt, const char *introduction, const char *question, const char *opening,
                        const size_t *words, const size_t *counts, size_t n, size_t n_asked, struct tw_random *random,
                        bool numbered, struct tw_error *err) {
    struct tw_text *content = tw_prompt_add_message(prompt, TW_ROLE_USER);
    if (!content) return TW_FAIL(err, TW_E_MEMORY, "out of memory for a prompt");
    tw_text_append(content, tw_view_of(introduction));
    TW_TRY(append_shuffled(content, words, counts, n, random, numbered, err));
    tw_text_append(content, tw_view_of(question));
    tw_text_append(&prompt->answer_opening, tw_view_of(opening));
    for (size_t i = 0; i < n_asked; i++) TW_TRY(tw_prompt_expect(prompt, tw_list_line(TW_LIST_WORDS, words[i]), err));
    return TW_OK;
}

/* Tokens that one list item costs, on average over all words. */
static double cost_per_word(const struct tw_token_counter *counter, bool numbered) {
    struct tw_text all = {0};
    const size_t n = tw_list_size(TW_LIST_WORDS);
    for (size_t i = 0; i < n; i++) {
        tw_text_append_char(&all, ' ');
        if (numbered) tw_text_printf(&all, "%zu. ", 100 + i);
        tw_text_append(&all, tw_list_line(TW_LIST_WORDS, i));
    }
    const size_t tokens = counter->count(counter->context, tw_text_view(&all));
    tw_text_release(&all);
    return (double)tokens / (double)n;
}

static const char common_introduction[] =
    "Below is a numbered list of words. Some of them appear more often than others. Memorize the ones that appear most often.\n\n";
static const char common_question[] = "\n\nWhat are the 10 most common words in the list above?";
static const char common_opening[] = "The 10 most common words in the list are:";

static tw_status make_common(struct tw_prompt *prompt, const struct tw_task_request *request,
                             const struct tw_token_counter *counter, struct tw_error *err) {
    struct tw_random random;
    tw_random_init(&random, request->seed, 5);
    size_t words[256], counts[256];
    const size_t n_list = tw_list_size(TW_LIST_WORDS);
    tw_list_draw(words, n_list < 256 ? n_list : 256, TW_LIST_WORDS, &random);
    const double room = (double)request->context_tokens - 80;
    double items = room > 0 ? room / cost_per_word(counter, true) : 0;
    size_t times = COMMON_TIMES, uncommon = UNCOMMON_TIMES;
    if (items < COMMON * COMMON_TIMES + 60) times = 10, uncommon = 1; /* a short context: RULER's smaller ratio */
    if (items < (double)(COMMON * times + 10))
        return TW_FAIL(err, TW_E_OPTION,
                       "a context of %zu tokens is too short for task 'common_words'; it needs about %.0f",
                       request->context_tokens, 80 + cost_per_word(counter, true) * (double)(COMMON * 10 + 10));
    size_t n = COMMON;
    for (size_t i = 0; i < COMMON; i++) counts[i] = times, items -= (double)times;
    while (n < n_list && n < 256 && items >= (double)uncommon) counts[n++] = uncommon, items -= (double)uncommon;
    return finish(prompt, common_introduction, common_question, common_opening, words, counts, n, COMMON, &random, true,
                  err);
}

static const char frequent_introduction[] =
    "Read the following coded text and track the frequency of each coded word. Find the three most frequent coded words.\n\n";
static const char frequent_question[] = "\n\nWhat are the three most frequent coded words in the text above?";
static const char frequent_opening[] = "The three most frequent coded words are:";

static tw_status make_frequent(struct tw_prompt *prompt, const struct tw_task_request *request,
                               const struct tw_token_counter *counter, struct tw_error *err) {
    struct tw_random random;
    tw_random_init(&random, request->seed, 6);
    size_t words[RANKS], counts[RANKS];
    tw_list_draw(words, RANKS, TW_LIST_WORDS, &random);
    const double room = (double)request->context_tokens - 80;
    const double items = room > 0 ? room / cost_per_word(counter, false) : 0;
    double harmonic = 0;
    for (size_t r = 0; r < RANKS; r++) harmonic += 1.0 / (double)(r + 1);
    if (items < 3 * harmonic * 8)
        return TW_FAIL(err, TW_E_OPTION,
                       "a context of %zu tokens is too short for task 'frequent_words'; it needs about %.0f",
                       request->context_tokens, 80 + cost_per_word(counter, false) * 3 * harmonic * 8);
    for (size_t r = 0; r < RANKS; r++) counts[r] = (size_t)floor(items / harmonic / (double)(r + 1));
    return finish(prompt, frequent_introduction, frequent_question, frequent_opening, words, counts, RANKS, FREQUENT,
                  &random, false, err);
}

const struct tw_task tw_task_common_words = {
    .name = "common_words",
    .summary = "the ten words that occur most often in a list",
    .source = "RULER, CWE",
    .default_tokens = 2048,
    .answer_tokens = 96,
    .make = make_common,
};

const struct tw_task tw_task_frequent_words = {
    .name = "frequent_words",
    .summary = "the three most frequent words of a text",
    .source = "RULER, FWE",
    .default_tokens = 2048,
    .answer_tokens = 48,
    .make = make_frequent,
};
