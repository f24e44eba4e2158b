/*
 * Option tables: one row an option, from which come parsing, ranges, defaults, --help, completion and the man page.
 * Commands use them for `--name=value`, policies and selectors for `name:option=value:option=value`.
 *
 *     struct rkv_options { uint64_t interval; };
 *     static const struct tw_option rkv_options[] = {
 *         {.name = "interval", .type = TW_OPTION_U64, .offset = offsetof(struct rkv_options, interval),
 *          .default_value = "128", .minimum = 1, .value_name = "STEPS", .help = "steps between two prunings"},
 *         {0},
 *     };
 */
#ifndef TW_BASE_OPTIONS_H
#define TW_BASE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"

/* The type of the field at `offset`, in brackets. */
enum tw_option_type {
    TW_OPTION_FLAG,        /* [bool] no value on the command line; `name=0|1` among a plug-in's options */
    TW_OPTION_U64,         /* [uint64_t] */
    TW_OPTION_DOUBLE,      /* [double] */
    TW_OPTION_SIZE,        /* [uint64_t] bytes or counts with K, M, G */
    TW_OPTION_RATE,        /* [double] bytes a second */
    TW_OPTION_TIME,        /* [double] seconds */
    TW_OPTION_TEXT,        /* [const char *] points into the argument; NULL when absent */
    TW_OPTION_CHOICE,      /* [unsigned] index into `choices`, "a|b|c": the order of the enum that the user of it has */
    TW_OPTION_U64_LIST,    /* [struct tw_u64_list] "8,16", "1..64" */
    TW_OPTION_SIZE_LIST,   /* [struct tw_u64_list] "512,2K": in the order given, duplicates kept */
    TW_OPTION_DOUBLE_LIST, /* [struct tw_double_list] "0.1,0.5", in the order given */
    TW_OPTION_BUDGET,      /* [uint64_t] "full" (0) or a count with K, M */
};

struct tw_u64_list {
    uint64_t *values; /* owned by the options struct; released by tw_options_release */
    size_t n;
};

struct tw_double_list {
    double *values; /* owned by the options struct; released by tw_options_release */
    size_t n;
};

struct tw_option {
    const char *name; /* long name without dashes; NULL ends a table */
    char letter;      /* short name, or 0: 'o' for -o */
    enum tw_option_type type;
    size_t offset;             /* of the field in the options struct */
    const char *default_value; /* as it would be typed; NULL: absent (zero, NULL or an empty list) */
    double minimum, maximum;   /* of numbers and every element of a list; both 0: no bounds beyond the type's */
    const char *choices;       /* TW_OPTION_CHOICE: "literal|parsed" */
    const char *value_name;    /* in --help: FILE, N, LIST; NULL for flags and choices */
    const char *help;          /* one phrase, lower case, without a full stop */
};

/*
 * Fills every field with its default, after zeroing `size` bytes (0: the caller has zeroed the struct). A wrong default
 * is an assertion.
 */
void tw_options_init(void *target, size_t size, const struct tw_option *options);
void tw_options_release(void *target, const struct tw_option *options);

/* The row called `name` (dashes excluded), or NULL. */
const struct tw_option *tw_options_find(const struct tw_option *options, struct tw_view name);

/* The text of choice `index` of a TW_OPTION_CHOICE row. */
struct tw_view tw_option_choice(const struct tw_option *option, unsigned index);

/*
 * Parses `value` into the row's field. Fails with TW_E_OPTION: "option '--budget': '8pages' is not a whole number".
 * `prefix` stands before the name in messages ("--", or "policy 'rkv': "). `value` must outlive the struct.
 */
tw_status tw_options_set(void *target, const struct tw_option *option, const char *value, const char *prefix,
                         struct tw_error *err);

/*
 * Parses the part of a plug-in's specification behind its name: "interval=8:seed=3" ("" is fine). `specification` must
 * outlive the struct if the table has text options; it is not modified. Unknown names list the valid ones.
 * `what` is "policy 'rkv'" in messages. The struct must have been initialised.
 */
tw_status tw_options_parse_specification(void *target, const struct tw_option *options, struct tw_view specification,
                                         const char *what, struct tw_error *err);

/*
 * Appends ":name=value" for every option whose value differs from its default, in the table's order: how a policy with
 * options is named in results.
 */
void tw_options_describe(struct tw_text *text, const void *target, const struct tw_option *options);

/* Appends the --help lines of a table: "  --budget LIST    budgets in pages a unit (default 8,16,32,64)". */
void tw_options_help(struct tw_text *text, const struct tw_option *options);

#endif
