#include "analysis/figure.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/output.h"
#include "base/stop.h"
#include "base/table.h"

extern char **environ;

enum { DEFAULT_WIDTH = 720, DEFAULT_HEIGHT = 450 };

/* In the order of preference within one ending; the last row is what remains when none of an ending's is there. */
static const struct terminal {
    const char *ending, *name;
    const char *options; /* a printf format of width and height in 1/96 inch */
    double scale;        /* of width and height */
    double small;        /* size of the small font, for numbers beside points */
    double mark;         /* size of points, so that they look the same everywhere */
} terminals[] = {
    {".png", "pngcairo", "size %.0f,%.0f font 'Sans,18' linewidth 1.8 pointscale 1.8 background '#ffffff'", 2, 15, 1},
    {".png", "png", "size %.0f,%.0f large background '#ffffff'", 2, 15, 1.5},
    {".pdf", "pdfcairo", "size %.3fin,%.3fin font 'Sans,9' linewidth 1 pointscale 0.6 background '#ffffff'", 1.0 / 96,
     7.5, 1},
    {".pdf", "pdf", "size %.3fin,%.3fin", 1.0 / 96, 7.5, 1},
    {".svg", "svg", "size %.0f,%.0f font 'sans-serif,12' background '#ffffff'", 1, 10, 0.7},
};
enum { N_TERMINALS = sizeof terminals / sizeof *terminals };

/* Okabe and Ito, "Color Universal Design" (2008), ordered so that neighbours also differ in lightness. */
static const struct {
    const char *colour;
    int point;
    const char *dash;
} looks[TW_N_LOOKS] = {
    {"#0072b2", 7, "1"},           /* blue, disc */
    {"#d55e00", 9, "(12,4)"},      /* vermilion, triangle */
    {"#009e73", 5, "(4,3)"},       /* green, square */
    {"#cc79a7", 13, "(12,4,2,4)"}, /* purple, diamond */
    {"#e69f00", 11, "(8,3)"},      /* orange, triangle down */
    {"#56b4e9", 6, "(2,2)"},       /* sky blue, ring */
    {"#000000", 2, "(6,6)"},       /* black, cross */
    {"#7f7f7f", 4, "(16,4,4,4)"},  /* grey, open square */
};

void tw_figure_release(struct tw_figure *figure) {
    tw_text_release(&figure->data);
    tw_text_release(&figure->script);
    tw_text_release(&figure->notes);
    *figure = (struct tw_figure){0};
}

void tw_figure_quote(struct tw_text *script, const char *text) {
    struct tw_text sound = {0};
    tw_text_append_utf8_repaired(&sound, tw_view_of(text), false);
    tw_text_append_char(script, '\'');
    for (const char *c = tw_text_string(&sound); *c; c++) {
        if (*c == '\'') tw_text_append_char(script, '\''); /* doubled: the only special character inside '...' */
        tw_text_append_char(script, (unsigned char)*c < ' ' || *c == 0x7f ? ' ' : *c);
    }
    tw_text_append_char(script, '\'');
    tw_text_release(&sound);
}

size_t tw_figure_begin_block(struct tw_figure *figure) {
    tw_text_printf(&figure->data, "$d%zu << EOD\n", figure->n_blocks);
    return figure->n_blocks++;
}

void tw_figure_end_block(struct tw_figure *figure) { tw_text_append(&figure->data, TW_VIEW("EOD\n")); }

void tw_figure_number(struct tw_figure *figure, double value) {
    if (isfinite(value))
        tw_text_append_double(&figure->data, value);
    else
        tw_text_append(&figure->data, TW_VIEW("NaN"));
    tw_text_append_char(&figure->data, ' ');
}

static const char *dash_of(size_t look) { return looks[look < TW_N_LOOKS ? look : (look + 3) % TW_N_LOOKS].dash; }

void tw_figure_look(struct tw_text *script, size_t look) {
    static const int further_points[TW_N_LOOKS] = {12, 10, 8, 14, 4, 3, 1, 6}; /* mostly open shapes */
    tw_text_printf(script, " linecolor rgb '%s' pointtype %d dashtype %s", tw_figure_colour(look),
                   look < TW_N_LOOKS ? looks[look].point : further_points[look % TW_N_LOOKS], dash_of(look));
}

void tw_figure_line_look(struct tw_text *script, size_t look) {
    tw_text_printf(script, " linecolor rgb '%s' dashtype %s", tw_figure_colour(look), dash_of(look));
}

const char *tw_figure_colour(size_t look) { return looks[look < TW_N_LOOKS ? look : (look + 3) % TW_N_LOOKS].colour; }

void tw_figure_note(struct tw_figure *figure, const char *format, ...) {
    va_list args;
    va_start(args, format);
    tw_text_vprintf(&figure->notes, format, args);
    va_end(args);
    tw_text_append_char(&figure->notes, '\n');
}

static const char *ending_of(const char *path) {
    const char *const slash = strrchr(path, '/');
    const char *const dot = strrchr(slash ? slash : path, '.');
    return dot ? dot : path + strlen(path);
}

tw_status tw_figure_check_path(const char *path, struct tw_error *err) {
    if (!path || strcmp(path, "-") == 0)
        return TW_FAIL(err, TW_E_OPTION, "a figure needs a file: -o FIG.svg, FIG.png or FIG.pdf");
    for (size_t i = 0; i < N_TERMINALS; i++)
        if (strcasecmp(ending_of(path), terminals[i].ending) == 0) return TW_OK;
    return TW_FAIL(err, TW_E_OPTION, "figure '%s': the name must end in .svg, .png or .pdf", path);
}

/* Appends `path` with its ending replaced. */
static void with_ending(struct tw_text *out, const char *path, const char *ending) {
    tw_text_append(out, (struct tw_view){path, (size_t)(ending_of(path) - path)});
    tw_text_append(out, tw_view_of(ending));
}

static void append_header(struct tw_text *out, const struct tw_figure *figure, const struct terminal *terminal,
                          const char *output) {
    const double width = figure->width ? figure->width : DEFAULT_WIDTH;
    const double height = figure->height ? figure->height : DEFAULT_HEIGHT;
    tw_text_printf(out, "# Made by tidewake; run it with gnuplot.\nset encoding utf8\nset terminal %s noenhanced ",
                   terminal->name);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    tw_text_printf(out, terminal->options, width * terminal->scale, height * terminal->scale);
#pragma GCC diagnostic pop
    tw_text_append(out, TW_VIEW("\nset output "));
    tw_figure_quote(out, output);
    tw_text_printf(out, "\nsmall = ',%.3g'\nmark = %g\n", terminal->small, terminal->mark);
    tw_text_append(out, TW_VIEW("set datafile missing 'NaN'\n"
                                "set border 3 linewidth 1 linecolor rgb '#404040'\nset pointintervalbox 0\n"
                                "set tics nomirror textcolor rgb '#202020'\n"
                                "set grid back linetype 1 linecolor rgb '#e4e4e4' linewidth 0.7\n"
                                "set key outside right top vertical Left reverse samplen 3 spacing 1.15 noenhanced\n"));
}

/*
 * The environment without what would change the picture: the user's locale (gnuplot warns in one that is not UTF-8) and
 * gnuplot's own variables. NULL when memory ran out; free with free().
 */
static char **gnuplot_environment(void) {
    static const char *const dropped[] = {"LC_", "LANG=", "LANGUAGE=", "GNUTERM=", "GNUPLOT_"};
    size_t n = 0, kept = 0;
    while (environ[n]) n++;
    char **const own = calloc(n + 2, sizeof *own);
    if (!own) return NULL;
    for (size_t i = 0; i < n; i++) {
        bool drop = false;
        for (size_t d = 0; d < sizeof dropped / sizeof *dropped; d++)
            drop = drop || strncmp(environ[i], dropped[d], strlen(dropped[d])) == 0;
        if (!drop) own[kept++] = environ[i];
    }
    static char locale[] = "LC_ALL=C.UTF-8";
    own[kept] = locale;
    return own;
}

/* Runs gnuplot; what it says on standard output and error goes to `said`. Returns its exit status, 127 when it cannot
 * be started, -1 when the system refuses. */
static int run_gnuplot(struct tw_text *said, const char *const *arguments) {
    int ends[2];
    char **const environment = gnuplot_environment();
    if (!environment || pipe(ends) != 0) {
        free(environment);
        return -1;
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", 0, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    pid_t child;
    const int failed =
        posix_spawnp(&child, "gnuplot", &actions, NULL, (char *const *)(uintptr_t)arguments, environment);
    free(environment);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (failed) {
        close(ends[0]);
        return failed == ENOENT || failed == EACCES ? 127 : -1;
    }
    char buffer[4096];
    for (;;) {
        const ssize_t n = read(ends[0], buffer, sizeof buffer);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        tw_text_append(said, (struct tw_view){buffer, (size_t)n});
    }
    close(ends[0]);
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Whether `name` is a word of the list. */
static bool has_word(const char *list, const char *name) {
    const size_t n = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at += n)
        if ((at == list || at[-1] == ' ' || at[-1] == '\n') && (at[n] == ' ' || at[n] == 0 || at[n] == '\n'))
            return true;
    return false;
}

/* The best terminal for the ending; the SVG one when there is none for it; NULL when there is not even that. */
static const struct terminal *choose_terminal(const char *ending, const char *available) {
    for (size_t i = 0; i < N_TERMINALS; i++)
        if (strcasecmp(terminals[i].ending, ending) == 0 && has_word(available, terminals[i].name))
            return &terminals[i];
    return has_word(available, terminals[N_TERMINALS - 1].name) ? &terminals[N_TERMINALS - 1] : NULL;
}

static const struct terminal *first_terminal(const char *ending) {
    for (size_t i = 0; i < N_TERMINALS; i++)
        if (strcasecmp(terminals[i].ending, ending) == 0) return &terminals[i];
    return &terminals[N_TERMINALS - 1];
}

/* The whole script under `path`. */
static tw_status write_script(const struct tw_figure *figure, const struct terminal *terminal, const char *output,
                              const char *path, struct tw_error *err) {
    struct tw_text text = {0};
    append_header(&text, figure, terminal, output);
    tw_text_append(&text, tw_text_view(&figure->data));
    tw_text_append(&text, tw_text_view(&figure->script));
    tw_status status = TW_OK;
    if (!tw_text_ok(&text) || !tw_text_ok(&figure->data) || !tw_text_ok(&figure->script))
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory for figure '%s'", output);
    else
        status = tw_output_write(path, tw_text_view(&text), err);
    tw_text_release(&text);
    return status;
}

/* One line of what gnuplot said, for a message: the last that is not empty and not a pointer to the column. */
static void last_line(char *line, size_t size, const struct tw_text *said) {
    struct tw_text copy = {0};
    tw_text_append(&copy, tw_text_view(said));
    snprintf(line, size, "it said nothing");
    char *rest = copy.data;
    for (char *l; rest && (l = strsep(&rest, "\n"));) {
        while (*l == ' ' || *l == '\t') l++;
        if (*l && *l != '^') snprintf(line, size, "%s", l);
    }
    tw_text_release(&copy);
}

/* Browsers blur the pictures inside an SVG when they enlarge them, so that the cells of a heat map run into each other:
 * each is told to keep its pixels. */
static tw_status keep_pixels(const char *path, struct tw_error *err) {
    static const char image[] = "<image ", style[] = "style='image-rendering:pixelated' ";
    struct tw_text svg = {0}, out = {0};
    tw_status status = tw_file_read(&svg, path, (size_t)1 << 30, "figure", err);
    const char *from = tw_text_string(&svg);
    for (const char *at; status == TW_OK && (at = strstr(from, image)); from = at + strlen(image)) {
        tw_text_append(&out, (struct tw_view){from, (size_t)(at - from) + strlen(image)});
        tw_text_append(&out, tw_view_of(style));
    }
    if (status == TW_OK && out.size) {
        tw_text_append(&out, tw_view_of(from));
        status = tw_text_ok(&out) ? tw_output_write(path, tw_text_view(&out), err)
                                  : TW_FAIL(err, TW_E_MEMORY, "out of memory for figure '%s'", path);
    }
    tw_text_release(&svg);
    tw_text_release(&out);
    return status;
}

/* Draws to a temporary name beside `path`, then renames. */
static tw_status draw_with(struct tw_figure *figure, const struct terminal *terminal, const char *path,
                           const char *script_path, struct tw_error *err) {
    struct tw_text picture = {0}, script = {0}, said = {0};
    struct stat st;
    tw_text_printf(&picture, "%s.%ld.new", path, (long)getpid());
    tw_text_printf(&script, "%s.%ld.gp", path, (long)getpid());
    tw_status status;
    char line[512];
    TW_TRY_GOTO(status, done, write_script(figure, terminal, picture.data, script.data, err));
    const char *const arguments[] = {"gnuplot", "-d", script.data, NULL};
    const int exit_status = run_gnuplot(&said, arguments);
    last_line(line, sizeof line, &said);
    if (tw_stop_requested()) {
        status = TW_FAIL(err, TW_E_INTERRUPTED, "interrupted while drawing '%s'", path);
    } else if (exit_status != 0 || stat(picture.data, &st) != 0 || st.st_size == 0) {
        status = write_script(figure, terminal, path, script_path, err);
        if (status == TW_OK)
            status =
                TW_FAIL(err, TW_E_IO, "gnuplot could not draw '%s': %s; its script is '%s'", path, line, script_path);
    } else if (strcmp(terminal->name, "svg") == 0 && (status = keep_pixels(picture.data, err)) != TW_OK) {
        goto done;
    } else if (rename(picture.data, path) != 0) {
        status = TW_FAIL(err, TW_E_IO, "cannot write '%s': %s", path, strerror(errno));
    } else if (said.size) {
        tw_figure_note(figure, "gnuplot says of '%s': %s", path, line);
    }
done:
    if (picture.data) unlink(picture.data);
    if (script.data) unlink(script.data);
    tw_text_release(&picture);
    tw_text_release(&script);
    tw_text_release(&said);
    return status;
}

tw_status tw_figure_draw(struct tw_figure *figure, const char *path, bool keep_script, struct tw_error *err) {
    TW_TRY(tw_figure_check_path(path, err));
    struct tw_text available = {0}, script_path = {0}, other = {0};
    with_ending(&script_path, path, ".gp");
    tw_status status = TW_OK;
    const char *const ending = ending_of(path);
    static const char *const arguments[] = {"gnuplot", "-d", "-e", "set print '-'; print GPVAL_TERMINALS", NULL};
    const int exit_status = run_gnuplot(&available, arguments);
    const char *target = path;
    if (exit_status != 0) {
        status = write_script(figure, first_terminal(ending), path, script_path.data, err);
        if (status == TW_OK)
            status = TW_FAIL(err, TW_E_UNSUPPORTED,
                             "gnuplot %s, so '%s' is not drawn; its script and data are in '%s': install gnuplot and "
                             "run 'gnuplot %s'",
                             exit_status == 127 ? "is not there" : "cannot be started", path, script_path.data,
                             script_path.data);
        goto done;
    }
    const struct terminal *const terminal = choose_terminal(ending, tw_text_string(&available));
    if (!terminal) {
        status = write_script(figure, first_terminal(ending), path, script_path.data, err);
        if (status == TW_OK)
            status = TW_FAIL(err, TW_E_UNSUPPORTED,
                             "gnuplot has no terminal for '%s', nor one for SVG; its script and data are in '%s'", path,
                             script_path.data);
        goto done;
    }
    if (strcasecmp(terminal->ending, ending) != 0) {
        with_ending(&other, path, terminal->ending);
        target = other.data;
        tw_figure_note(figure, "gnuplot has no terminal for '%s': '%s' is drawn instead", ending, target);
    } else if (terminal != first_terminal(ending)) {
        tw_figure_note(figure, "gnuplot has no terminal '%s': '%s' is drawn with '%s'", first_terminal(ending)->name,
                       path, terminal->name);
    }
    if (keep_script) TW_TRY_GOTO(status, done, write_script(figure, terminal, target, script_path.data, err));
    status = draw_with(figure, terminal, target, script_path.data, err);
done:
    tw_text_release(&available);
    tw_text_release(&script_path);
    tw_text_release(&other);
    return status;
}
