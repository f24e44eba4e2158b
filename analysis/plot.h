/*
 * The kinds of figure. Each is one file, analysis/plot_<name>.c, and one line in TW_PLOT_KINDS; it turns tables (read
 * from CSV or JSON) or traces into a figure, which figure.h draws.
 */
#ifndef TW_ANALYSIS_PLOT_H
#define TW_ANALYSIS_PLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "analysis/figure.h"
#include "base/error.h"
#include "base/progress.h"
#include "base/table.h"
#include "traces/trace.h"

/* What a figure is made from: tables or traces, as its kind says. Owned by the caller. */
struct tw_plot_input {
    const struct tw_table *tables; /* [n_tables] */
    const char *const *names;      /* [n_tables] their files, for messages */
    size_t n_tables;
    struct tw_trace *const *traces; /* [n_traces] */
    size_t n_traces;
    struct tw_progress *progress; /* may be NULL */
};

/* Zero-initialised: everything by itself. */
struct tw_plot_options {
    const char *title;               /* NULL: from the data */
    const char *model, *task, *unit; /* only rows of these; NULL: all */
    uint64_t page_size;              /* only rows of this size, pages of this size; 0: all, 16 */
    size_t layer, head;              /* of `attention` */
};

struct tw_plot_kind {
    const char *name, *summary;
    bool wants_traces;   /* otherwise tables */
    const char *columns; /* of tables: the columns it needs, for --help; NULL for traces */
    /* Fills the figure. Fails with TW_E_INPUT when the input lacks what is drawn. */
    tw_status (*make)(struct tw_figure *figure, const struct tw_plot_input *input,
                      const struct tw_plot_options *options, struct tw_error *err);
};

/* clang-format off */
#define TW_PLOT_KINDS(X) \
    X(miss_rate) \
    X(matched) \
    X(churn) \
    X(heads) \
    X(attention) \
    X(wakeups) \
    X(precision_recall) \
    X(timeline) \
    X(pareto)
/* clang-format on */

#define TW_DECLARE_PLOT(symbol) extern const struct tw_plot_kind tw_plot_##symbol;
TW_PLOT_KINDS(TW_DECLARE_PLOT)
#undef TW_DECLARE_PLOT

/* Ends with NULL. */
extern const struct tw_plot_kind *const tw_plot_kinds[];

/*
 * Makes and draws in one go. `notes` gets a line for each thing that a user should be told (a curve left out, another
 * terminal), also on failure; may be NULL.
 */
tw_status tw_plot(const struct tw_plot_kind *kind, const struct tw_plot_input *input,
                  const struct tw_plot_options *options, const char *path, bool keep_script, struct tw_text *notes,
                  struct tw_error *err);

/*
 * Reads a table from a file, `-` being standard input: CSV, or JSON as our commands write it (an object with "rows", a
 * list of flat objects with the same members; the members' names become the columns). On failure nothing is held.
 */
tw_status tw_plot_read_table(struct tw_table *table, const char *path, struct tw_error *err);
/* The same from text; `name` stands for the file in messages. */
tw_status tw_plot_parse_table(struct tw_table *table, struct tw_view text, const char *name, struct tw_error *err);

#endif
