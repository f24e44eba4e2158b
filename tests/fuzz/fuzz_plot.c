/* Tables as CSV or JSON, and every figure that is made from tables, up to its script. */
#include <stdlib.h>
#include <string.h>

#include "analysis/plot.h"
#include "tests/fuzz/fuzz.h"

/* What stands between the data blocks and the end must be lines whose quotation marks pair: no text from a table may
 * end the string it stands in. */
static void check_quotes(const struct tw_text *script) {
    size_t quotes = 0;
    for (size_t i = 0; i < script->size; i++) {
        quotes += script->data[i] == '\'';
        if (script->data[i] == 0) abort();
        if (script->data[i] == '\n') {
            if (quotes % 2) abort();
            quotes = 0;
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct tw_table table;
    struct tw_error err = {0};
    if (tw_plot_parse_table(&table, (struct tw_view){(const char *)data, size}, "fuzz", &err) != TW_OK) return 0;
    const char *const name = "fuzz";
    const struct tw_plot_input input = {.tables = &table, .names = &name, .n_tables = 1};
    const struct tw_plot_options options = {0};
    for (const struct tw_plot_kind *const *kind = tw_plot_kinds; *kind; kind++) {
        struct tw_figure figure = {0};
        if ((*kind)->wants_traces) continue;
        if ((*kind)->make(&figure, &input, &options, &err) == TW_OK) check_quotes(&figure.script);
        tw_figure_release(&figure);
    }
    tw_table_release(&table);
    return 0;
}
