/*
 * Figures: a gnuplot script with its data inside is put together in memory, run, and the picture appears under its name
 * when it is complete. One style for all: the colours of Okabe and Ito (which colour-blind readers can tell apart) with
 * point shapes and dashes that differ too, so that a grey print still reads; axes with units; legends beside the data.
 *
 * gnuplot is a program of its own: where it is missing, the script, with the data in it, is written beside the place of
 * the figure, and the failure says so.
 *
 * Scripts may use `small`, the font of numbers beside points, and give sizes of points as multiples of `mark`.
 *
 * Text from files (names of models, tasks, policies) goes through tw_figure_quote: gnuplot then shows it as it is
 * typed, whatever underscores, quotes, braces, backslashes or '@' it holds.
 */
#ifndef TW_ANALYSIS_FIGURE_H
#define TW_ANALYSIS_FIGURE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/text.h"

struct tw_figure {
    struct tw_text data;    /* named data blocks */
    struct tw_text script;  /* what draws them */
    unsigned width, height; /* in points of 1/96 inch; 0: the default, 720 x 450 */
    size_t n_blocks;
    struct tw_text notes; /* what the reader of the figure should be told, a line each: a curve left out, a fallback */
};

void tw_figure_release(struct tw_figure *figure); /* copes with {0} */

/* Appends `text` as a gnuplot string: quoted, control characters as blanks. The whole figure is drawn noenhanced. */
void tw_figure_quote(struct tw_text *script, const char *text);

/* Begins a data block and returns its number n: `$d<n>` in the script. Lines of numbers follow in figure->data, then
 * tw_figure_end_block. A blank line breaks a curve. */
size_t tw_figure_begin_block(struct tw_figure *figure);
void tw_figure_end_block(struct tw_figure *figure);
/* One number and a blank behind it; NaN as "NaN". */
void tw_figure_number(struct tw_figure *figure, double value);

/* A curve's look: colour, point shape and dashes that go together. From TW_N_LOOKS on colours come again with other
 * shapes and dashes. */
enum { TW_N_LOOKS = 8 };
/* Appends " linecolor ... pointtype ... dashtype ..." */
void tw_figure_look(struct tw_text *script, size_t look);
/* The same for a line alone: without the point shape. */
void tw_figure_line_look(struct tw_text *script, size_t look);
/* The colour alone, "#rrggbb". */
const char *tw_figure_colour(size_t look);

/* Adds a line to the notes. */
void tw_figure_note(struct tw_figure *figure, const char *format, ...) __attribute__((format(printf, 2, 3)));

/*
 * Draws into `path`, whose ending chooses: .svg, .png or .pdf (anything else is TW_E_OPTION). Where gnuplot lacks the
 * best terminal for it, the next one is taken, in the end SVG under a name ending in .svg, and a note says so.
 *
 *   keep_script  also writes the script: the path with its ending replaced by ".gp"
 *
 * Fails with TW_E_UNSUPPORTED where gnuplot is missing (the script is written), TW_E_IO when gnuplot fails (too), and
 * as tw_output_open.
 */
tw_status tw_figure_draw(struct tw_figure *figure, const char *path, bool keep_script, struct tw_error *err);

/* Refuses a path that tw_figure_draw could not draw to, before any work is done. */
tw_status tw_figure_check_path(const char *path, struct tw_error *err);

#endif
