/*
 * What a study does, read from an INI file. Sections and their keys are option tables, so that defaults, ranges and
 * messages are those of the command line:
 *
 *     [study]          title, output
 *     [model NAME]     path                                 one section a model
 *     [engine]         the engine's options, as for `trace`
 *     [task NAME]      context, depth, runs, seed, max-new  one section a task of `tidewake list`
 *     [prompts NAME]   file, max-new                        users' own prompts, a .jsonl file
 *     [traces NAME]    path                                 traces that are there already
 *     [replay]         policy, budget, page-size, unit
 *     [quality]        task, context, runs, seed, selector, schedule, budget
 *
 * `;` and `#` begin comments; a key stands once in a section.
 */
#ifndef TW_CLI_STUDY_SETTINGS_H
#define TW_CLI_STUDY_SETTINGS_H

#include "base/error.h"
#include "base/options.h"
#include "base/text.h"

struct tw_study_section {
    const struct tw_study_kind *kind;
    char *name;   /* what stands behind the kind: "niah" of [task niah]; NULL for kinds that are there once */
    void *values; /* the kind's struct */
    struct tw_text keys_given; /* "\nruns\n...", to see repetitions */
};

/* A kind of section. */
struct tw_study_kind {
    const char *name;
    bool named; /* may be there several times, with a name */
    const struct tw_option *options;
    size_t size;
};

struct tw_study_general {
    const char *title, *output;
};
struct tw_study_model {
    const char *path;
};
struct tw_study_task {
    struct tw_u64_list context;
    struct tw_double_list depth;
    uint64_t runs, seed, max_new;
};
struct tw_study_prompts {
    const char *file;
    uint64_t max_new;
};
struct tw_study_traces {
    const char *path;
};
struct tw_study_replay {
    const char *policy, *unit;
    struct tw_u64_list budget, page_size;
};
struct tw_study_quality {
    const char *task, *selector, *schedule, *budget;
    struct tw_u64_list context;
    uint64_t runs, seed;
};

struct tw_study_settings {
    struct tw_study_section *sections; /* [n_sections], in the file's order */
    size_t n_sections;
    char **texts; /* what text options point to */
    size_t n_texts;
    struct tw_study_kind *kinds; /* with the engine's table in place */
};

/* Reads and checks. `engine` is the table of [engine] and its struct's size (NULL where the engine is left out). */
tw_status tw_study_settings_read(struct tw_study_settings *settings, const char *path, const struct tw_option *engine,
                                 size_t engine_size, struct tw_error *err);
/* The same from text that is at hand; `name` stands for the file in messages. */
tw_status tw_study_settings_parse(struct tw_study_settings *settings, const char *text, const char *name,
                                  const struct tw_option *engine, size_t engine_size, struct tw_error *err);
void tw_study_settings_release(struct tw_study_settings *settings); /* copes with {0} */

/* The values of a kind that is there once: those of its section, or NULL when the file has none. */
const void *tw_study_values(const struct tw_study_settings *settings, const char *kind);
/* The next section of a kind behind `after` (NULL: the first), or NULL. */
const struct tw_study_section *tw_study_next(const struct tw_study_settings *settings, const char *kind,
                                             const struct tw_study_section *after);

#endif
