/*
 * A command of `tidewake`: one file and one line in commands.h. Its options are tables, from which parsing, --help,
 * shell completion and the man page come.
 */
#ifndef TW_CLI_COMMAND_H
#define TW_CLI_COMMAND_H

#include "base/error.h"
#include "base/options.h"
#include "base/progress.h"
#include "base/table.h"
#include "cli/layout.h"

/* A table of options with its place in the command's options struct; shared tables (the engine's) are groups too. */
struct tw_option_group {
    const char *title;               /* "Running"; NULL: no title */
    const struct tw_option *options; /* NULL ends the list of groups */
    size_t offset;                   /* of the group's struct in the command's */
};

struct tw_invocation {
    const void *options;         /* the command's options struct, filled */
    const char *const *operands; /* [n_operands] what is not an option */
    size_t n_operands;
    struct tw_progress *progress; /* never NULL; silent unless standard error is a terminal */
    int answer;                   /* set to 1 when the work was done and the answer is no */
    const struct tw_command *command;
    const bool *given; /* internal: see tw_given */
};

struct tw_command {
    const char *name;
    const char *summary;                  /* one phrase, for the list of commands */
    const char *usage;                    /* what follows the name: "MODEL -o RUN.h5 [options]" */
    const char *description;              /* sentences, wrapped by hand at 100 columns; may be NULL */
    const char *example;                  /* whole lines, each "tidewake ..." */
    const struct tw_option_group *groups; /* ends with {0}; NULL: no options */
    size_t options_size;                  /* of the options struct */
    size_t min_operands, max_operands;
    tw_status (*run)(struct tw_invocation *invocation, struct tw_error *err);
};

/* Whether the option called `name` stood on the command line (to find contradictions). */
bool tw_given(const struct tw_invocation *invocation, const char *name);

/* One line on standard error: "tidewake: warning: ...". For cli/ alone. */
void tw_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* One line on standard error without "warning:". */
void tw_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/*
 * The two options every command with a table has, and writing it: `-o FILE` (default standard output) and
 * `--format table|csv|json`, where an output name ending in .csv or .json chooses by itself.
 */
struct tw_table_options {
    const char *output;
    unsigned format; /* enum tw_table_format */
};
extern const struct tw_option tw_table_option_rows[];
/* Adds the program's version and the command to the metadata. */
tw_status tw_write_table(struct tw_invocation *invocation, const struct tw_table_options *options,
                         struct tw_table *table, struct tw_error *err);
/* The same with every column for CSV and JSON, laid out (cli/layout.h) for people. */
tw_status tw_write_laid_out(struct tw_invocation *invocation, const struct tw_table_options *options,
                            struct tw_table *table, const struct tw_layout *layout, struct tw_error *err);
/* What a command has written for people itself. */
tw_status tw_write_text(const struct tw_table_options *options, const struct tw_text *text, struct tw_error *err);
/* Columns that what is written for people may take. */
size_t tw_table_width(const struct tw_table_options *options);
/* Chosen by --format if given, else by the name's ending, else table. */
enum tw_table_format tw_table_format_of(const struct tw_invocation *invocation, const struct tw_table_options *options);

/* Parses arguments and runs; returns the exit status of cli.md. argv[0] is the program's name. */
int tw_main(int argc, char **argv);

extern const char tw_version[];

#endif
