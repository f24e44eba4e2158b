/* Parsing the command line by the tables of the commands, --help, and the exit status. */
#include "cli/command.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/output.h"
#include "base/parse.h"
#include "base/stop.h"
#include "cli/commands.h"
#include "cli/progress_line.h"
#include "traces/h5.h"

#define STANDARD_WIDTH 80 /* of what is written for people, where there is no terminal */

#define STRING_(x) #x
#define STRING(x)  STRING_(x)
const char tw_version[] = STRING(TW_VERSION);

static void message(const char *kind, const char *format, va_list args) {
    tw_progress_line_clear();
    fprintf(stderr, "tidewake: %s", kind);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
}

void tw_warn(const char *format, ...) {
    va_list args;
    va_start(args, format);
    message("warning: ", format, args);
    va_end(args);
}

void tw_note(const char *format, ...) {
    va_list args;
    va_start(args, format);
    message("", format, args);
    va_end(args);
}

/* One option of a command, found: its row and its struct. */
struct found {
    const struct tw_option *option;
    size_t group_offset;
    size_t index; /* over all groups, for `given` */
};

static size_t count_options(const struct tw_command *command) {
    size_t n = 0;
    for (const struct tw_option_group *g = command->groups; g && g->options; g++)
        for (const struct tw_option *o = g->options; o->name; o++) n++;
    return n;
}

static bool find_option(struct found *found, const struct tw_command *command, struct tw_view name, char letter) {
    size_t index = 0;
    for (const struct tw_option_group *g = command->groups; g && g->options; g++)
        for (const struct tw_option *o = g->options; o->name; o++, index++)
            if (letter ? o->letter == letter : tw_view_equal(name, tw_view_of(o->name))) {
                *found = (struct found){o, g->offset, index};
                return true;
            }
    return false;
}

bool tw_given(const struct tw_invocation *invocation, const char *name) {
    struct found found;
    const bool there = find_option(&found, invocation->command, tw_view_of(name), 0);
    assert(there);
    return there && invocation->given[found.index];
}

static tw_status unknown_option(const struct tw_command *command, struct tw_view name, struct tw_error *err) {
    char wanted[64];
    const size_t n = name.size < sizeof wanted ? name.size : sizeof wanted - 1;
    memcpy(wanted, name.data, n);
    wanted[n] = 0;
    const char *nearest = NULL;
    size_t best = SIZE_MAX;
    for (const struct tw_option_group *g = command->groups; g && g->options; g++)
        for (const struct tw_option *o = g->options; o->name; o++) {
            const size_t distance = tw_parse_distance(wanted, o->name);
            if (distance < best) best = distance, nearest = o->name;
        }
    if (nearest && best <= 1 + n / 3)
        return TW_FAIL(err, TW_E_OPTION, "%s has no option '--%s'; did you mean '--%s'?", command->name, wanted,
                       nearest);
    return TW_FAIL(err, TW_E_OPTION, "%s has no option '--%s'; see 'tidewake %s --help'", command->name, wanted,
                   command->name);
}

static void print_command_help(const struct tw_command *command) {
    struct tw_text text = {0};
    tw_text_printf(&text, "Usage: tidewake %s%s%s\n\n%s\n", command->name, *command->usage ? " " : "", command->usage,
                   command->summary);
    if (command->description) tw_text_printf(&text, "\n%s\n", command->description);
    for (const struct tw_option_group *g = command->groups; g && g->options; g++) {
        tw_text_printf(&text, "\n%s:\n", g->title ? g->title : "Options");
        tw_options_help(&text, g->options);
    }
    tw_text_printf(&text, "\nExample:\n");
    struct tw_view line, rest = tw_view_of(command->example);
    while (tw_parse_next(&line, &rest, '\n')) tw_text_printf(&text, "  %.*s\n", (int)line.size, line.data);
    fwrite(text.data, 1, text.size, stdout);
    tw_text_release(&text);
}

static void print_help(void) {
    printf("Usage: tidewake COMMAND [options] FILES\n\n"
           "A toolkit for the key-value cache of large language models: trace attention with TideKV prefill,\n"
           "replay residency policies, measure head churn.\n\nCommands:\n");
    for (const struct tw_command *const *c = tw_command_table; *c; c++)
        printf("  %-10s %s\n", (*c)->name, (*c)->summary);
    printf("\n'tidewake COMMAND --help' tells more about each, with an example.\n");
}

/* Fills the options struct; `operands` must have room for argc. */
static tw_status parse_arguments(void *options, bool *given, const char **operands, size_t *n_operands, bool *help,
                                 const struct tw_command *command, int argc, char **argv, struct tw_error *err) {
    bool only_operands = false;
    for (int i = 0; i < argc; i++) {
        const char *argument = argv[i];
        if (only_operands || argument[0] != '-' || argument[1] == 0) {
            operands[(*n_operands)++] = argument;
            continue;
        }
        if (strcmp(argument, "--") == 0) {
            only_operands = true;
            continue;
        }
        if (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0) {
            *help = true;
            return TW_OK;
        }
        struct found found;
        const char *value = NULL;
        struct tw_view name;
        if (argument[1] == '-') {
            struct tw_view rest = tw_view_of(argument + 2);
            tw_parse_next(&name, &rest, '=');
            if (rest.data) value = rest.data;
            if (!find_option(&found, command, name, 0)) return unknown_option(command, name, err);
        } else {
            name = (struct tw_view){argument + 1, 1};
            if (!find_option(&found, command, name, argument[1]))
                return TW_FAIL(err, TW_E_OPTION, "%s has no option '-%c'; see 'tidewake %s --help'", command->name,
                               argument[1], command->name);
            if (argument[2]) value = argument[2] == '=' ? argument + 3 : argument + 2;
        }
        if (found.option->type == TW_OPTION_FLAG) {
            if (value) return TW_FAIL(err, TW_E_OPTION, "option '--%s' takes no value", found.option->name);
            value = "1";
        } else if (!value) {
            if (i + 1 >= argc) return TW_FAIL(err, TW_E_OPTION, "option '--%s' needs a value", found.option->name);
            value = argv[++i];
        }
        TW_TRY(tw_options_set((char *)options + found.group_offset, found.option, value, "--", err));
        given[found.index] = true;
    }
    if (*n_operands < command->min_operands)
        return TW_FAIL(err, TW_E_OPTION, "%s needs %s: tidewake %s %s", command->name,
                       command->min_operands == 1 ? "an operand" : "more operands", command->name, command->usage);
    if (*n_operands > command->max_operands)
        return TW_FAIL(err, TW_E_OPTION, "%s takes no operand '%s': tidewake %s %s", command->name,
                       operands[command->max_operands], command->name, command->usage);
    return TW_OK;
}

static int exit_status_of(tw_status status) {
    switch (status) {
    case TW_OK: return 0;
    case TW_E_INPUT:
    case TW_E_OPTION:
    case TW_E_UNSUPPORTED: return 2;
    case TW_E_MEMORY:
    case TW_E_IO:
    case TW_E_DEVICE: return 3;
    case TW_E_INTERRUPTED: return 130;
    }
    return 3;
}

static void say(const char *text) {
    const ssize_t n = write(STDERR_FILENO, text, strlen(text));
    (void)n;
}

/*
 * A crash while libhdf5 reads a trace is the file's fault: one line, as for any other damage. Any other crash takes its
 * course: the handler is gone, and what failed fails again. Nothing here but what a signal handler may call.
 */
static void on_crash(int signal) {
    (void)signal;
    const char *const path = tw_h5_reading();
    if (!path) return;
    say("tidewake: trace '");
    say(path);
    say("': is damaged: the HDF5 library crashed on it\n");
    _exit(2);
}

static void on_signal(int signal) {
    (void)signal;
    tw_stop_request();
}

static void install_signals(void) {
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART | SA_RESETHAND; /* a second Ctrl-C ends the program at once */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    static char room[1 << 16]; /* a stack for when the other one is used up */
    const stack_t stack = {.ss_sp = room, .ss_size = sizeof room};
    struct sigaction crash = {.sa_handler = on_crash,
                              .sa_flags = SA_RESETHAND | (sigaltstack(&stack, NULL) ? 0 : SA_ONSTACK)};
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGILL};
    for (size_t i = 0; i < sizeof crashes / sizeof *crashes; i++) sigaction(crashes[i], &crash, NULL);
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is a write error with a message */
    signal(SIGXFSZ, SIG_IGN); /* a file size limit, too */
}

static int run_command(const struct tw_command *command, int argc, char **argv) {
    struct tw_error err = {0};
    void *options = calloc(1, command->options_size + 1);
    bool *given = calloc(count_options(command) + 1, sizeof *given);
    const char **operands = calloc((size_t)argc + 1, sizeof *operands);
    int exit_status = 3;
    if (!options || !given || !operands) {
        tw_note("out of memory");
        goto done;
    }
    for (const struct tw_option_group *g = command->groups; g && g->options; g++)
        tw_options_init((char *)options + g->offset, 0, g->options);
    struct tw_invocation invocation = {
        .options = options, .operands = operands, .command = command, .given = given, .progress = tw_progress_line()};
    bool help = false;
    tw_status status =
        parse_arguments(options, given, operands, &invocation.n_operands, &help, command, argc, argv, &err);
    if (status == TW_OK && help)
        print_command_help(command);
    else if (status == TW_OK)
        status = command->run(&invocation, &err);
    tw_progress_line_clear();
    errno = 0;
    if (status == TW_OK && (fflush(stdout) != 0 || ferror(stdout)))
        status = TW_FAIL(&err, TW_E_IO, "cannot write to standard output: %s", strerror(errno));
    if (status != TW_OK) tw_note("%s", err.text);
    exit_status = status == TW_OK ? invocation.answer : exit_status_of(status);
    for (const struct tw_option_group *g = command->groups; g && g->options; g++)
        tw_options_release((char *)options + g->offset, g->options);
done:
    free(options);
    free(given);
    free(operands);
    return exit_status;
}

int tw_main(int argc, char **argv) {
    install_signals();
    if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        if (argc > 2 && !strcmp(argv[1], "help")) {
            for (const struct tw_command *const *c = tw_command_table; *c; c++)
                if (!strcmp((*c)->name, argv[2])) return print_command_help(*c), 0;
        }
        print_help();
        return argc < 2 ? 2 : 0;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("tidewake %s\n", tw_version);
        return 0;
    }
    const char *nearest = NULL;
    size_t best = SIZE_MAX;
    for (const struct tw_command *const *c = tw_command_table; *c; c++) {
        if (!strcmp((*c)->name, argv[1])) return run_command(*c, argc - 2, argv + 2);
        const size_t distance = tw_parse_distance((*c)->name, argv[1]);
        if (distance < best) best = distance, nearest = (*c)->name;
    }
    if (nearest && best <= 2)
        tw_note("there is no command '%s'; did you mean '%s'?", argv[1], nearest);
    else
        tw_note("there is no command '%s'; 'tidewake --help' lists them", argv[1]);
    return 2;
}

const struct tw_option tw_table_option_rows[] = {
    {.name = "output",
     .letter = 'o',
     .type = TW_OPTION_TEXT,
     .offset = offsetof(struct tw_table_options, output),
     .value_name = "FILE",
     .help = "where the table goes; - is standard output, the default"},
    {.name = "format",
     .type = TW_OPTION_CHOICE,
     .offset = offsetof(struct tw_table_options, format),
     .default_value = "table",
     .choices = "table|csv|json",
     .help = "how it is written; an output name ending in .csv or .json chooses by itself"},
    {0},
};

static bool ends_with(const char *text, const char *ending) {
    const size_t n = strlen(text), m = strlen(ending);
    return n >= m && strcmp(text + n - m, ending) == 0;
}

enum tw_table_format tw_table_format_of(const struct tw_invocation *invocation,
                                        const struct tw_table_options *options) {
    if (tw_given(invocation, "format") || !options->output) return (enum tw_table_format)options->format;
    if (ends_with(options->output, ".csv")) return TW_TABLE_CSV;
    if (ends_with(options->output, ".json")) return TW_TABLE_JSON;
    return TW_TABLE_PLAIN;
}

tw_status tw_write_text(const struct tw_table_options *options, const struct tw_text *text, struct tw_error *err) {
    tw_progress_line_clear();
    if (!tw_text_ok(text)) return TW_FAIL(err, TW_E_MEMORY, "out of memory while writing a table");
    return tw_output_write(options->output, tw_text_view(text), err);
}

tw_status tw_write_table(struct tw_invocation *invocation, const struct tw_table_options *options,
                         struct tw_table *table, struct tw_error *err) {
    tw_table_set_metadata(table, "tidewake", tw_version);
    tw_table_set_metadata(table, "command", invocation->command->name);
    struct tw_text text = {0};
    tw_status status = tw_table_write(&text, table, tw_table_format_of(invocation, options), err);
    if (status == TW_OK) status = tw_write_text(options, &text, err);
    tw_text_release(&text);
    return status;
}

tw_status tw_write_laid_out(struct tw_invocation *invocation, const struct tw_table_options *options,
                            struct tw_table *table, const struct tw_layout *layout, struct tw_error *err) {
    if (tw_table_format_of(invocation, options) != TW_TABLE_PLAIN)
        return tw_write_table(invocation, options, table, err);
    struct tw_text text = {0};
    tw_layout_write(&text, table, layout, tw_table_width(options));
    const tw_status status = tw_write_text(options, &text, err);
    tw_text_release(&text);
    return status;
}

size_t tw_table_width(const struct tw_table_options *options) {
    struct winsize window = {0};
    const bool shown = !options->output || strcmp(options->output, "-") == 0;
    return shown && ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col ? window.ws_col : STANDARD_WIDTH;
}
