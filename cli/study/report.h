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
enum tw_verdict { TW_VERDICT_HOLDS, TW_VERDICT_FAILS, TW_VERDICT_OPEN };

void tw_report_release(struct tw_report *report); /* copes with {0} */

void tw_report_section(struct tw_report *report, const char *title);
/* A paragraph; `text` is plain and escaped. */
void tw_report_paragraph(struct tw_report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* All rows, or the first `max_rows` with a note on how many there are and that `csv` has them all (csv may be NULL). */
void tw_report_table(struct tw_report *report, const struct tw_table *table, const char *caption, size_t max_rows,
                     const char *csv);
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
