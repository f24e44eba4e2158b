/* What the tasks are made of: the lists of data/tasks/, and haystacks of a wanted length. Private to engine/task/. */
#ifndef TW_ENGINE_TASK_MATERIAL_H
#define TW_ENGINE_TASK_MATERIAL_H

#include "base/random.h"
#include "engine/task/task.h"

enum tw_list { TW_LIST_FILLER, TW_LIST_PLACES, TW_LIST_WORDS, TW_LIST_PROBLEMS, TW_LIST_FACTS, TW_LIST_DISTRACTORS };

size_t tw_list_size(enum tw_list list);
/* Line i, without its line break. */
struct tw_view tw_list_line(enum tw_list list, size_t i);
/* n different numbers below tw_list_size(list) in random order; n must not exceed it. */
void tw_list_draw(size_t *indices, size_t n, enum tw_list list, struct tw_random *random);

/* A sentence that is hidden in a haystack. */
struct tw_needle {
    struct tw_text sentence;
    double depth;      /* 0 to 1 */
    size_t begin, end; /* out: its bytes in the haystack */
};

/*
 * Appends filler sentences, in the list's order and over again, until the text would have more than `tokens` tokens,
 * with the needles (in ascending depth) in between at their depths. Fails when not even the needles fit.
 */
tw_status tw_haystack(struct tw_text *text, struct tw_needle *needles, size_t n_needles, size_t tokens,
                      const struct tw_token_counter *counter, struct tw_error *err);

/* A seven-digit number, as text. */
void tw_random_number(struct tw_text *text, struct tw_random *random);

#endif
