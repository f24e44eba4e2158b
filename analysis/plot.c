#include "analysis/plot.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "base/file.h"

#define ENTRY(symbol) &tw_plot_##symbol,
const struct tw_plot_kind *const tw_plot_kinds[] = {TW_PLOT_KINDS(ENTRY) NULL};
#undef ENTRY

tw_status tw_plot(const struct tw_plot_kind *kind, const struct tw_plot_input *input,
                  const struct tw_plot_options *options, const char *path, bool keep_script, struct tw_text *notes,
                  struct tw_error *err) {
    struct tw_figure figure = {0};
    tw_status status = tw_figure_check_path(path, err);
    if (status == TW_OK) status = kind->make(&figure, input, options, err);
    if (status == TW_OK) status = tw_figure_draw(&figure, path, keep_script, err);
    if (notes) tw_text_append(notes, tw_text_view(&figure.notes));
    tw_figure_release(&figure);
    return status;
}

static void put_json(struct tw_table *table, const cJSON *value) {
    if (cJSON_IsString(value))
        tw_table_put_text(table, value->valuestring);
    else if (cJSON_IsNumber(value))
        tw_table_put_double(table, value->valuedouble);
    else if (cJSON_IsBool(value))
        tw_table_put_uint(table, cJSON_IsTrue(value));
    else
        tw_table_put_empty(table);
}

static tw_status read_json(struct tw_table *table, struct tw_view text, const char *path, struct tw_error *err) {
    cJSON *const root = cJSON_ParseWithLength(text.data, text.size);
    const cJSON *const rows = cJSON_GetObjectItemCaseSensitive(root, "rows");
    tw_status status = TW_OK;
    tw_table_init(table, NULL, 0);
    if (!root) {
        status = TW_FAIL(err, TW_E_INPUT, "table '%s' is neither CSV nor sound JSON", path);
    } else if (!cJSON_IsArray(rows)) {
        status = TW_FAIL(err, TW_E_INPUT, "table '%s' has no list 'rows', which tables in JSON have", path);
    } else if (rows->child && !(cJSON_IsObject(rows->child) && rows->child->child)) {
        status = TW_FAIL(err, TW_E_INPUT, "table '%s': the first of 'rows' is no object with members", path);
    } else {
        const cJSON *row, *member;
        cJSON_ArrayForEach(member, rows->child) {
            if (tw_table_column(table, member->string) == SIZE_MAX) tw_table_add_column(table, member->string);
        }
        size_t n = 0;
        cJSON_ArrayForEach(row, rows) {
            n++;
            bool same = cJSON_IsObject(row) && (size_t)cJSON_GetArraySize(row) == table->n_columns;
            for (size_t c = 0; same && c < table->n_columns; c++)
                same = cJSON_GetObjectItemCaseSensitive(row, table->columns[c]) != NULL;
            if (!same) {
                status = TW_FAIL(err, TW_E_INPUT, "table '%s': row %zu has other members than the first", path, n);
                break;
            }
            tw_table_begin_row(table);
            for (size_t c = 0; c < table->n_columns; c++)
                put_json(table, cJSON_GetObjectItemCaseSensitive(row, table->columns[c]));
        }
    }
    if (status == TW_OK && table->failed) status = TW_FAIL(err, TW_E_MEMORY, "out of memory for table '%s'", path);
    cJSON_Delete(root);
    if (status != TW_OK) tw_table_release(table);
    return status;
}

tw_status tw_plot_parse_table(struct tw_table *table, struct tw_view text, const char *name, struct tw_error *err) {
    size_t blank = 0;
    while (blank < text.size && memchr(" \t\r\n", text.data[blank], 4)) blank++;
    return blank < text.size && text.data[blank] == '{' ? read_json(table, text, name, err)
                                                        : tw_table_read_csv(table, text, name, err);
}

tw_status tw_plot_read_table(struct tw_table *table, const char *path, struct tw_error *err) {
    struct tw_text text = {0};
    *table = (struct tw_table){0};
    tw_status status = tw_file_read(&text, path, (size_t)1 << 30, "table", err);
    if (status == TW_OK)
        status = tw_plot_parse_table(table, tw_text_view(&text), strcmp(path, "-") == 0 ? "standard input" : path, err);
    tw_text_release(&text);
    return status;
}
