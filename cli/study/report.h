/*
 * A report: one self-contained HTML page, built from top to bottom, that any browser opens without a network. Figures
 * are embedded, tables come from struct tw_table, text is escaped here.
 */
#ifndef TW_CLI_STUDY_REPORT_H
#define TW_CLI_STUDY_REPORT_H

#include "base/error.h"
#include "base/table.h"
#include "base/text.h"

struct tw_report {
    struct tw_text head, body; /* head: the list of contents, collected while the body is written */
    size_t n_sections;
};

/* What a claim of a paper came to here. */
enum tw_verdict {
    TW_VERDICT_HOLDS,
    TW_VERDICT_FAILS,
    TW_VERDICT_OPEN,   /* too little was measured to tell */
    TW_VERDICT_NOT_RUN /* the study did not ask for it */
};

void tw_report_release(struct tw_report *report); /* copes with {0} */

void tw_report_section(struct tw_report *report, const char *title);
/* A paragraph; what is printed is plain text and escaped. A note is one in small print. */
void tw_report_paragraph(struct tw_report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));
void tw_report_note(struct tw_report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* What follows is folded away under `title` until the reader opens it, up to the end. */
void tw_report_fold(struct tw_report *report, const char *title);
void tw_report_fold_end(struct tw_report *report);

/*
 * How a table is shown. Columns that say the same in every row move into the caption, long texts are cut, and numbers
 * of a column get equally many decimals: `csv`, the file named under the table (may be NULL), has everything exactly.
 */
struct tw_report_listing {
    const char *caption;
    const char *columns; /* "miss_rate,runs": these, in this order, those that the table has; NULL: all */
    size_t n_keys;       /* only so many of the columns, from the left, may move into the caption; 0: any */
    size_t max_rows;     /* 0: all; otherwise a note says how many there are */
    const char *csv;
};
void tw_report_table(struct tw_report *report, const struct tw_table *table, const struct tw_report_listing *listing);
/* Embeds an SVG file. `alt` says in words what the figure shows. */
tw_status tw_report_figure(struct tw_report *report, const char *svg_path, const char *caption, const char *alt,
                           struct tw_error *err);
/* One claim beside what was measured. Claims come in runs: the table around them is opened and closed by itself. */
void tw_report_claim(struct tw_report *report, enum tw_verdict verdict, const char *claim, const char *published,
                     const char *measured);
/* The whole page. */
tw_status tw_report_write(struct tw_report *report, const char *path, const char *title, const char *subtitle,
                          struct tw_error *err);

#endif
