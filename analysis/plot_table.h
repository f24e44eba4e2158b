/* What the kinds of figure share: columns and rows of tables, names of panels, placing panels, the ramp of heat maps.
 */
#ifndef TW_ANALYSIS_PLOT_TABLE_H
#define TW_ANALYSIS_PLOT_TABLE_H

#include "analysis/plot.h"

/* Text of a cell, "" where the column is missing (SIZE_MAX) or the cell empty; numbers as they are written. The buffer
 * is for numbers. */
const char *tw_plot_cell_text(char buffer[32], const struct tw_table *table, size_t row, size_t column);
/* The number in a cell; NaN where the column is missing, the cell is empty or holds text. */
double tw_plot_cell_number(const struct tw_table *table, size_t row, size_t column);

/* Fails with TW_E_INPUT, naming the file and the column, unless all of the table's `columns` ("a,b,c") exist. */
tw_status tw_plot_need_columns(const struct tw_table *table, const char *name, const char *columns,
                               struct tw_error *err);

/* Whether the row is one that the options ask for: model, task, unit and page size. Missing columns match anything. */
bool tw_plot_row_wanted(const struct tw_table *table, size_t row, const struct tw_plot_options *options);

/* A list of distinct texts in order of first appearance. Zero-initialise; items are owned by the list. */
struct tw_plot_names {
    char **items;
    size_t n;
};
/* The index of `text`, added if it is new; SIZE_MAX when memory ran out. */
size_t tw_plot_name(struct tw_plot_names *names, const char *text);
void tw_plot_names_release(struct tw_plot_names *names); /* copes with {0} */

/* The look of a policy's curve: the same one in every figure, by the name before any ':'. `other` counts the policies
 * that have none of their own, so that they differ. */
size_t tw_plot_policy_look(const char *policy, size_t *other);

/*
 * Panels side by side in one figure. Sets the figure's size, opens the multiplot, and leaves room for the legend
 * (`legend_width` in 1/96 inch, 0: none), in the cell behind the last panel where one is free, otherwise in a strip on
 * the right; and a strip on top for the title.
 */
struct tw_plot_panels {
    size_t n, columns, rows;
    unsigned panel_width, panel_height, legend_width, top;
    bool colour_box;  /* panels have one on their right */
    bool key_below;   /* the legend lies below the first panel, in one line */
    bool key_in_cell; /* set by tw_plot_panels_begin: the legend lies in a free cell */
};
void tw_plot_panels_begin(struct tw_figure *figure, struct tw_plot_panels *panels, const char *title);
/* Margins and the key's place for panel i; its own title. */
void tw_plot_panel(struct tw_figure *figure, const struct tw_plot_panels *panels, size_t i, const char *title);
/* After tw_plot_panel: only the part of its height between `low` and `high` (0: bottom, 1: top). */
void tw_plot_panel_part(struct tw_figure *figure, const struct tw_plot_panels *panels, size_t i, double low,
                        double high);
void tw_plot_panels_end(struct tw_figure *figure);

/* "model, task", or what there is of both; the trace's name where there is neither. */
void tw_plot_trace_title(char *title, size_t size, const struct tw_trace *trace);

/* Heat maps: white is least and dark blue is most, which also reads in grey. */
void tw_plot_ramp(struct tw_text *script);

enum { TW_PLOT_MAX_PANELS = 9, TW_PLOT_PAGE_SIZE = 16 };
static inline uint64_t tw_plot_page_size(const struct tw_plot_options *options) {
    return options->page_size ? options->page_size : TW_PLOT_PAGE_SIZE;
}

#endif
