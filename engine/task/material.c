#include "engine/task/material.h"

#include <assert.h>
#include <stdlib.h>

#include "base/parse.h"

/* The files are compiled in, so that the program needs no folder of data beside it. */
#define EMBED(name)                                                                                                    \
    __asm__(".pushsection .rodata\n"                                                                                   \
            ".global tw_task_data_" #name "\n"                                                                         \
            ".hidden tw_task_data_" #name "\n"                                                                         \
            "tw_task_data_" #name ":\n"                                                                                \
            ".incbin \"data/tasks/" #name ".txt\"\n"                                                                   \
            ".global tw_task_data_" #name "_end\n"                                                                     \
            ".hidden tw_task_data_" #name "_end\n"                                                                     \
            "tw_task_data_" #name "_end:\n"                                                                            \
            ".byte 0\n"                                                                                                \
            ".popsection\n");                                                                                          \
    extern const char tw_task_data_##name[] __attribute__((visibility("hidden")));                                     \
    extern const char tw_task_data_##name##_end[] __attribute__((visibility("hidden")))

EMBED(filler);
EMBED(places);
EMBED(words);
EMBED(problems);
EMBED(facts);
EMBED(distractors);

static struct tw_view content(enum tw_list list) {
    static const char *const bounds[][2] = {
        [TW_LIST_FILLER] = {tw_task_data_filler, tw_task_data_filler_end},
        [TW_LIST_PLACES] = {tw_task_data_places, tw_task_data_places_end},
        [TW_LIST_WORDS] = {tw_task_data_words, tw_task_data_words_end},
        [TW_LIST_PROBLEMS] = {tw_task_data_problems, tw_task_data_problems_end},
        [TW_LIST_FACTS] = {tw_task_data_facts, tw_task_data_facts_end},
        [TW_LIST_DISTRACTORS] = {tw_task_data_distractors, tw_task_data_distractors_end},
    };
    return (struct tw_view){bounds[list][0], (size_t)(bounds[list][1] - bounds[list][0])};
}

size_t tw_list_size(enum tw_list list) {
    const struct tw_view text = content(list);
    size_t n = 0;
    for (size_t i = 0; i < text.size; i++) n += text.data[i] == '\n';
    return n;
}

struct tw_view tw_list_line(enum tw_list list, size_t i) {
    struct tw_view line = {0}, rest = content(list);
    for (size_t n = 0; n <= i; n++) {
        const bool more = tw_parse_next(&line, &rest, '\n');
        assert(more);
        (void)more;
    }
    return line;
}

void tw_list_draw(size_t *indices, size_t n, enum tw_list list, struct tw_random *random) {
    const size_t size = tw_list_size(list);
    assert(n <= size);
    for (size_t k = 0; k < n; k++) {
        bool again = true;
        while (again) {
            indices[k] = (size_t)tw_random_below(random, size);
            again = false;
            for (size_t j = 0; j < k; j++) again = again || indices[j] == indices[k];
        }
    }
}

tw_status tw_haystack(struct tw_text *text, struct tw_needle *needles, size_t n_needles, size_t tokens,
                      const struct tw_token_counter *counter, struct tw_error *err) {
    const size_t n_filler = tw_list_size(TW_LIST_FILLER);
    /* A sentence's tokens hardly depend on its neighbours: counted once, with the blank in front. */
    size_t cost[64], used = 0;
    assert(n_filler <= sizeof cost / sizeof *cost);
    struct tw_text sentence = {0};
    for (size_t i = 0; i < n_filler; i++) {
        tw_text_clear(&sentence);
        tw_text_append_char(&sentence, ' ');
        tw_text_append(&sentence, tw_list_line(TW_LIST_FILLER, i));
        cost[i] = counter->count(counter->context, tw_text_view(&sentence));
    }
    tw_text_release(&sentence);
    for (size_t k = 0; k < n_needles; k++)
        used += counter->count(counter->context, tw_text_view(&needles[k].sentence)) + 1;
    if (used > tokens)
        return TW_FAIL(err, TW_E_OPTION,
                       "a context of %zu tokens is too short for this task: its needles alone have %zu", tokens, used);
    size_t n_sentences = 0;
    while (used + cost[n_sentences % n_filler] <= tokens) used += cost[n_sentences++ % n_filler];

    size_t k = 0;
    for (size_t i = 0; i <= n_sentences; i++) {
        while (k < n_needles && (i == n_sentences || (double)i >= needles[k].depth * (double)n_sentences)) {
            if (text->size) tw_text_append_char(text, ' ');
            needles[k].begin = text->size;
            tw_text_append(text, tw_text_view(&needles[k].sentence));
            needles[k].end = text->size;
            k++;
        }
        if (i == n_sentences) break;
        if (text->size) tw_text_append_char(text, ' ');
        tw_text_append(text, tw_list_line(TW_LIST_FILLER, i % n_filler));
    }
    if (!tw_text_ok(text)) return TW_FAIL(err, TW_E_MEMORY, "out of memory for a haystack of %zu tokens", tokens);
    return TW_OK;
}

void tw_random_number(struct tw_text *text, struct tw_random *random) {
    tw_text_printf(text, "%llu", (unsigned long long)(1000000 + tw_random_below(random, 9000000)));
}
