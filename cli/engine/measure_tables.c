/* The tables of measurements: every figure for CSV and JSON, laid out for people. */
#include "cli/engine/measure.h"

#include <assert.h>
#include <stdio.h>

/* Sums first, then the peak of every category over all phases, then what a device's allocator and driver say. */
static const char *const columns[] = {
    "peak_bytes",
    "steady_bytes",
    "transient_bytes",
    "live_peak_bytes",
    "cache_bytes",
    "reserved_bytes",
    "resident_bytes",
    "staging_bytes",
    "prefill_peak_bytes",
    "layer_end_peak_bytes",
    "decode_peak_bytes",
    "retained_positions",
    /* in the order of enum tw_category */
    "weights_bytes",
    "unpacked_layer_bytes",
    "bridge_bytes",
    "active_kv_bytes",
    "compact_cache_bytes",
    "chunk_activations_bytes",
    "compression_bytes",
    "logits_bytes",
    "other_bytes",
    "process_bytes",
    "inactive_split_bytes",
    "largest_inactive_split_bytes",
    "allocation_retries",
    "refusal",
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

const struct tw_layout_column tw_measurement_layout[] = {
    {.title = "Memory", .name = "peak_bytes", .heading = "peak", .shown = TW_SHOWN_BYTES},
    {.name = "steady_bytes", .heading = "steady", .shown = TW_SHOWN_BYTES},
    {.name = "transient_bytes", .heading = "transient", .shown = TW_SHOWN_BYTES},
    {.name = "cache_bytes", .heading = "cache", .shown = TW_SHOWN_BYTES},
    {.name = "resident_bytes", .heading = "resident", .shown = TW_SHOWN_BYTES},
    {.title = "Peaks of the larger categories (--detail has all)",
     .name = "weights_bytes",
     .heading = "weights",
     .shown = TW_SHOWN_BYTES},
    {.name = "unpacked_layer_bytes", .heading = "unpacked", .shown = TW_SHOWN_BYTES},
    {.name = "bridge_bytes", .heading = "bridge", .shown = TW_SHOWN_BYTES},
    {.name = "active_kv_bytes", .heading = "active KV", .shown = TW_SHOWN_BYTES},
    {.name = "compact_cache_bytes", .heading = "compact", .shown = TW_SHOWN_BYTES},
    {.name = "chunk_activations_bytes", .heading = "activations", .shown = TW_SHOWN_BYTES},
    {.name = "compression_bytes", .heading = "compression", .shown = TW_SHOWN_BYTES},
    {0},
};

const struct tw_layout_column tw_device_layout[] = {
    {.title = "Device", .name = "reserved_bytes", .heading = "reserved", .shown = TW_SHOWN_BYTES},
    {.name = "process_bytes", .heading = "process (NVML)", .shown = TW_SHOWN_BYTES},
    {.name = "inactive_split_bytes", .heading = "inactive splits", .shown = TW_SHOWN_BYTES},
    {.name = "largest_inactive_split_bytes", .heading = "largest", .shown = TW_SHOWN_BYTES},
    {.name = "allocation_retries", .heading = "retries"},
    {.name = "staging_bytes", .heading = "staging on host", .shown = TW_SHOWN_BYTES},
    {0},
};

void tw_measurement_add_columns(struct tw_table *table) {
    for (size_t i = 0; i < N_COLUMNS; i++) tw_table_add_column(table, columns[i]);
}

static void put_if(struct tw_table *table, bool known, size_t value) {
    if (known)
        tw_table_put_uint(table, value);
    else
        tw_table_put_empty(table);
}

void tw_measurement_put(struct tw_table *table, const struct tw_measurement *measurement) {
    const struct tw_accountant *books = &measurement->books;
    const struct tw_device_memory *device = &measurement->device;
    if (measurement->refusal.size) {
        for (size_t i = 0; i + 1 < N_COLUMNS; i++) tw_table_put_empty(table);
        tw_table_put_text(table, tw_text_string(&measurement->refusal));
        return;
    }
    const size_t peak = tw_accountant_peak(books);
    tw_table_put_uint(table, peak);
    tw_table_put_uint(table, measurement->steady_bytes);
    tw_table_put_uint(table, peak - measurement->steady_bytes);
    tw_table_put_uint(table, books->peak_live);
    tw_table_put_uint(table, measurement->cache_bytes);
    tw_table_put_uint(table, measurement->reserved_bytes);
    put_if(table, measurement->resident_bytes, measurement->resident_bytes);
    tw_table_put_uint(table, books->peak_staging);
    tw_table_put_uint(table, books->peak_total[TW_PHASE_PREFILL]);
    tw_table_put_uint(table, books->peak_total[TW_PHASE_LAYER_END]);
    tw_table_put_uint(table, books->peak_total[TW_PHASE_DECODE]);
    tw_table_put_uint(table, measurement->retained_rows);
    for (int c = 0; c < TW_N_CATEGORIES; c++)
        tw_table_put_uint(table, tw_accountant_category_peak(books, (enum tw_category)c));
    put_if(table, device->process_bytes, device->process_bytes);
    put_if(table, device->has_splits, device->inactive_splits);
    put_if(table, device->has_splits, device->largest_inactive_split);
    put_if(table, device->has_splits, device->retries);
    tw_table_put_empty(table);
}

tw_status tw_write_configurations(struct tw_invocation *invocation, const struct tw_table_options *options,
                                  struct tw_table *table, const struct tw_layout_column *const *parts, size_t n_parts,
                                  const struct tw_model *model, const char *backend, struct tw_error *err) {
    struct tw_layout_column all[48] = {{0}};
    size_t n = 0;
    for (size_t i = 0; i < n_parts; i++)
        for (const struct tw_layout_column *column = parts[i]; column->name; column++) {
            assert(n + 1 < sizeof all / sizeof *all);
            all[n++] = *column;
        }
    tw_table_set_metadata(table, "model", model->config.name);
    tw_table_set_metadata(table, "backend", backend);
    char subject[160];
    snprintf(subject, sizeof subject, "%s on %s", model->config.name, backend);
    const struct tw_layout layout = {.subject = subject,
                                     .keys = tw_configuration_columns,
                                     .n_keys = TW_CONFIGURATION_N_COLUMNS,
                                     .columns = all,
                                     .remark = tw_table_column(table, "refusal") == SIZE_MAX ? NULL : "refusal"};
    return tw_write_laid_out(invocation, options, table, &layout, err);
}

/* ---- every phase and category ---- */

static const char *const detail_columns[] = {"phase", "category", "peak_bytes", "at_peak_bytes", "current_bytes"};

static void put_detail(struct tw_table *table, const struct tw_measurement *m) {
    const struct tw_accountant *books = &m->books;
    for (int p = 0; m->refusal.size == 0 && p < TW_N_PHASES; p++)
        for (int c = 0; c < TW_N_CATEGORIES; c++) {
            tw_table_begin_row(table);
            tw_configuration_put(table, m->configuration);
            tw_table_put_text(table, tw_phase_names[p]);
            tw_table_put_text(table, tw_category_names[c]);
            tw_table_put_uint(table, books->peak[p][c]);
            tw_table_put_uint(table, books->at_peak[p][c]);
            tw_table_put_uint(table, books->current[c]);
        }
}

static const char *const page_columns[] = {"category", "load", "prefill", "layer-end", "decode", "at the peak"};
static const struct tw_layout_column page_layout[] = {
    {.title = "Peak in each phase", .name = "load", .heading = "load", .shown = TW_SHOWN_BYTES},
    {.name = "prefill", .heading = "prefill", .shown = TW_SHOWN_BYTES},
    {.name = "layer-end", .heading = "layer-end", .shown = TW_SHOWN_BYTES},
    {.name = "decode", .heading = "decode", .shown = TW_SHOWN_BYTES},
    {.name = "at the peak", .heading = "at the peak", .shown = TW_SHOWN_BYTES},
    {0},
};

/* One configuration for people: categories down, phases across, and what the largest sum of all was made of. */
static void write_page(struct tw_text *out, const struct tw_measurement *m, size_t width) {
    const struct tw_accountant *books = &m->books;
    struct tw_table table;
    int top = 0;
    tw_table_init(&table, page_columns, sizeof page_columns / sizeof *page_columns);
    for (int p = 0; p < TW_N_PHASES; p++)
        if (books->peak_total[p] > books->peak_total[top]) top = p;
    for (int c = 0; c <= TW_N_CATEGORIES; c++) {
        const bool sum = c == TW_N_CATEGORIES;
        if (!sum && tw_accountant_category_peak(books, (enum tw_category)c) == 0) continue;
        tw_table_begin_row(&table);
        tw_table_put_text(&table, sum ? "sum" : tw_category_names[c]);
        for (int p = 0; p < TW_N_PHASES; p++) tw_table_put_uint(&table, sum ? books->peak_total[p] : books->peak[p][c]);
        tw_table_put_uint(&table, sum ? books->peak_total[top] : books->at_peak[top][c]);
    }
    tw_layout_write(out, &table, &(struct tw_layout){.keys = page_columns, .n_keys = 1, .columns = page_layout}, width);
    if (table.failed) out->failed = true;
    tw_table_release(&table);
}

static void write_heading(struct tw_text *out, const char *subject, const struct tw_configuration *c, size_t width) {
    struct tw_table table;
    struct tw_text line = {0};
    tw_table_init(&table, tw_configuration_columns, TW_CONFIGURATION_N_COLUMNS);
    tw_table_begin_row(&table);
    tw_configuration_put(&table, c);
    for (size_t i = 0, n = 0; i < TW_CONFIGURATION_N_COLUMNS; i++) {
        const struct tw_cell *cell = tw_table_cell(&table, 0, i);
        if (cell->type == TW_CELL_EMPTY) continue;
        tw_text_printf(&line, "%s%s ", n ? ", " : subject, tw_configuration_columns[i]);
        tw_text_append_cell(&line, cell);
        n++;
    }
    tw_text_append_wrapped(out, tw_text_view(&line), width, ",:");
    tw_text_release(&line);
    tw_table_release(&table);
}

tw_status tw_write_detail(struct tw_invocation *invocation, const struct tw_table_options *options,
                          const struct tw_measurement *const *measurements, size_t n, const struct tw_model *model,
                          const char *backend, struct tw_error *err) {
    if (tw_table_format_of(invocation, options) != TW_TABLE_PLAIN) {
        struct tw_table table;
        tw_table_init(&table, tw_configuration_columns, TW_CONFIGURATION_N_COLUMNS);
        for (size_t i = 0; i < sizeof detail_columns / sizeof *detail_columns; i++)
            tw_table_add_column(&table, detail_columns[i]);
        for (size_t i = 0; i < n; i++) put_detail(&table, measurements[i]);
        tw_table_set_metadata(&table, "model", model->config.name);
        tw_table_set_metadata(&table, "backend", backend);
        const tw_status status = tw_write_table(invocation, options, &table, err);
        tw_table_release(&table);
        return status;
    }
    struct tw_text text = {0}, line = {0};
    const size_t width = tw_table_width(options);
    char subject[160];
    snprintf(subject, sizeof subject, "%s on %s: ", model->config.name, backend);
    for (size_t i = 0; i < n; i++) {
        if (i) tw_text_append(&text, TW_VIEW("\n"));
        write_heading(&text, subject, measurements[i]->configuration, width);
        if (measurements[i]->refusal.size == 0) {
            write_page(&text, measurements[i], width);
            continue;
        }
        tw_text_clear(&line);
        tw_text_printf(&line, "refused: %s", tw_text_string(&measurements[i]->refusal));
        tw_text_append_wrapped(&text, tw_text_view(&line), width, NULL);
    }
    const tw_status status = tw_write_text(options, &text, err);
    tw_text_release(&line);
    tw_text_release(&text);
    return status;
}
