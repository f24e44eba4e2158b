#include "cli/engine/measure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parse.h"

#define SPAN(field) offsetof(struct tw_span_settings, field)

const struct tw_option tw_span_option_rows[] = {
    {.name = "schedule",
     .type = TW_OPTION_TEXT,
     .offset = SPAN(schedules),
     .default_value = "tide",
     .value_name = "LIST",
     .help = "orders of prefill"},
    {.name = "selector",
     .type = TW_OPTION_TEXT,
     .offset = SPAN(selectors),
     .default_value = "snapkv",
     .value_name = "LIST",
     .help = "what decides which positions are kept"},
    {.name = "context",
     .type = TW_OPTION_SIZE_LIST,
     .offset = SPAN(contexts),
     .minimum = 1,
     .maximum = 1 << 30,
     .value_name = "LIST",
     .help = "prompt lengths in tokens"},
    {.name = "budget",
     .type = TW_OPTION_TEXT,
     .offset = SPAN(budgets),
     .default_value = "full",
     .value_name = "LIST",
     .help = "positions that a KV head keeps after prefill, or full"},
    {.name = "chunk",
     .type = TW_OPTION_SIZE_LIST,
     .offset = SPAN(chunks),
     .default_value = "2048",
     .minimum = 1,
     .maximum = 1 << 30,
     .value_name = "LIST",
     .help = "prompt tokens a chunk"},
    {0},
};

const char *const tw_configuration_columns[TW_CONFIGURATION_N_COLUMNS] = {"schedule", "selector", "dtype",
                                                                          "context",  "budget",   "chunk"};

void tw_configurations_release(struct tw_configurations *configurations) {
    for (size_t i = 0; i < configurations->n; i++) {
        free(configurations->at[i].schedule);
        free(configurations->at[i].selector);
    }
    free(configurations->at);
    memset(configurations, 0, sizeof *configurations);
}

static tw_status add(struct tw_configurations *list, const struct tw_configuration *configuration,
                     struct tw_error *err) {
    struct tw_configuration *larger = realloc(list->at, (list->n + 1) * sizeof *larger);
    if (!larger) return TW_FAIL(err, TW_E_MEMORY, "out of memory: list of configurations");
    list->at = larger;
    struct tw_configuration *at = &list->at[list->n];
    *at = *configuration;
    at->schedule = strdup(configuration->schedule);
    at->selector = strdup(configuration->selector);
    list->n++;
    if (!at->schedule || !at->selector) return TW_FAIL(err, TW_E_MEMORY, "out of memory: list of configurations");
    return TW_OK;
}

/* The pieces of a list as strings; the last is NULL. Free with free(). */
static char **split(const char *list) {
    const size_t n = strlen(list);
    size_t pieces = 1;
    for (size_t i = 0; i < n; i++) pieces += list[i] == ',';
    char **out = malloc((pieces + 1) * sizeof *out + n + 1);
    if (!out) return NULL;
    char *text = memcpy(out + pieces + 1, list, n + 1);
    for (size_t p = 0; p < pieces; p++) {
        out[p] = text;
        text += strcspn(text, ",");
        *text++ = 0;
    }
    out[pieces] = NULL;
    return out;
}

static tw_status budget_of(size_t *budget, const char *text, struct tw_error *err) {
    uint64_t value = 0;
    if (strcmp(text, "full") != 0 && (!tw_parse_size(&value, tw_view_of(text)) || value == 0))
        return TW_FAIL(err, TW_E_OPTION, "option '--budget': '%s' is neither full nor a count", text);
    *budget = value;
    return TW_OK;
}

static tw_status span_budgets(struct tw_configurations *list, const struct tw_span_settings *settings,
                              struct tw_configuration c, char **budgets, struct tw_error *err) {
    struct tw_schedule_choice schedule;
    struct tw_selector_choice selector;
    TW_TRY(tw_schedule_choose(&schedule, c.schedule, err));
    const bool evicts = schedule.schedule->evicts;
    tw_schedule_choice_release(&schedule);
    TW_TRY(tw_selector_choose(&selector, c.selector, err));
    tw_selector_choice_release(&selector);
    for (char **b = budgets; *b; b++) {
        TW_TRY(budget_of(&c.budget, *b, err));
        if (!evicts) {
            if (b != budgets) break;
            c.budget = 0;
        }
        for (size_t i = 0; i < settings->contexts.n; i++)
            for (size_t j = 0; j < settings->chunks.n; j++) {
                c.context = settings->contexts.values[i];
                c.chunk = settings->chunks.values[j];
                TW_TRY(add(list, &c, err));
            }
    }
    return TW_OK;
}

tw_status tw_configurations_span(struct tw_configurations *configurations, const struct tw_span_settings *settings,
                                 const enum tw_dtype *dtypes, size_t n_dtypes, struct tw_error *err) {
    memset(configurations, 0, sizeof *configurations);
    char **schedules = split(settings->schedules), **selectors = split(settings->selectors);
    char **budgets = split(settings->budgets);
    tw_status status = TW_OK;
    if (!schedules || !selectors || !budgets) status = TW_FAIL(err, TW_E_MEMORY, "out of memory: lists of options");
    for (char **schedule = schedules; status == TW_OK && *schedule; schedule++)
        for (char **selector = selectors; status == TW_OK && *selector; selector++)
            for (size_t d = 0; status == TW_OK && d < n_dtypes; d++)
                status = span_budgets(
                    configurations, settings,
                    (struct tw_configuration){.schedule = *schedule, .selector = *selector, .dtype = dtypes[d]},
                    budgets, err);
    free(schedules);
    free(selectors);
    free(budgets);
    if (status != TW_OK) tw_configurations_release(configurations);
    return status;
}

void tw_configuration_apply(struct tw_engine_options *options, const struct tw_configuration *configuration,
                            const struct tw_machine_settings *machine) {
    tw_engine_options_init(options);
    tw_machine_settings_apply(options, machine);
    options->schedule = configuration->schedule;
    options->selector = configuration->selector;
    options->budget = configuration->budget;
    options->chunk = configuration->chunk;
    options->backend_options.dtype = configuration->dtype;
}

void tw_configuration_put(struct tw_table *table, const struct tw_configuration *configuration) {
    static const char *const dtypes[] = {"auto", "bf16", "f32"};
    tw_table_put_text(table, configuration->schedule);
    tw_table_put_text(table, configuration->selector);
    tw_table_put_text(table, dtypes[configuration->dtype]);
    tw_table_put_uint(table, configuration->context);
    if (configuration->budget)
        tw_table_put_uint(table, configuration->budget);
    else
        tw_table_put_text(table, "full");
    tw_table_put_uint(table, configuration->chunk);
}

void tw_measurement_release(struct tw_measurement *measurement) {
    tw_text_release(&measurement->refusal);
    memset(measurement, 0, sizeof *measurement);
}

void tw_measurement_take(struct tw_measurement *measurement, const struct tw_engine *engine) {
    measurement->books = engine->accountant;
    measurement->books.events = NULL;
    measurement->steady_bytes = engine->steady_bytes;
    measurement->cache_bytes = engine->cache_bytes;
    measurement->retained_rows = engine->retained_rows;
    measurement->reserved_bytes = tw_accountant_reserved(&engine->accountant);
    measurement->resident_bytes = tw_resident_set_bytes();
}

/* ---- tables ---- */

/* Sums first, then the peak of every category over all phases. */
static const char *const sums[] = {"peak",     "steady",  "transient",    "live_peak",      "cache",      "reserved",
                                   "resident", "staging", "prefill_peak", "layer_end_peak", "decode_peak"};
static const char *const categories[TW_N_CATEGORIES] = {"weights",     "unpacked_layer", "bridge",
                                                        "active_kv",   "compact_cache",  "chunk_activations",
                                                        "compression", "logits",         "other"};

void tw_measurement_add_columns(struct tw_table *table, bool plain) {
    char name[64];
    const char *unit = plain ? "mib" : "bytes";
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
        snprintf(name, sizeof name, "%s_%s", sums[i], unit);
        tw_table_add_column(table, name);
    }
    tw_table_add_column(table, "retained_positions");
    for (int c = 0; c < TW_N_CATEGORIES; c++) {
        snprintf(name, sizeof name, "%s_%s", categories[c], unit);
        tw_table_add_column(table, name);
    }
}

static void put_bytes(struct tw_table *table, size_t bytes, bool plain) {
    if (!plain) {
        tw_table_put_uint(table, bytes);
        return;
    }
    char text[32];
    snprintf(text, sizeof text, "%.1f", (double)bytes / 0x1p20);
    tw_table_put_text(table, text);
}

void tw_measurement_put(struct tw_table *table, const struct tw_measurement *measurement, bool plain) {
    const struct tw_accountant *books = &measurement->books;
    if (measurement->refusal.size) {
        for (size_t i = 0; i < sizeof sums / sizeof *sums + 1 + TW_N_CATEGORIES; i++) tw_table_put_empty(table);
        return;
    }
    const size_t peak = tw_accountant_peak(books);
    put_bytes(table, peak, plain);
    put_bytes(table, measurement->steady_bytes, plain);
    put_bytes(table, peak - measurement->steady_bytes, plain);
    put_bytes(table, books->peak_live, plain);
    put_bytes(table, measurement->cache_bytes, plain);
    put_bytes(table, measurement->reserved_bytes, plain);
    if (measurement->resident_bytes)
        put_bytes(table, measurement->resident_bytes, plain);
    else
        tw_table_put_empty(table);
    put_bytes(table, books->peak_staging, plain);
    put_bytes(table, books->peak_total[TW_PHASE_PREFILL], plain);
    put_bytes(table, books->peak_total[TW_PHASE_LAYER_END], plain);
    put_bytes(table, books->peak_total[TW_PHASE_DECODE], plain);
    tw_table_put_uint(table, measurement->retained_rows);
    for (int c = 0; c < TW_N_CATEGORIES; c++)
        put_bytes(table, tw_accountant_category_peak(books, (enum tw_category)c), plain);
}

void tw_measurement_detail_init(struct tw_table *table) {
    tw_table_init(table, tw_configuration_columns, TW_CONFIGURATION_N_COLUMNS);
    tw_table_add_column(table, "phase");
    tw_table_add_column(table, "category");
    tw_table_add_column(table, "peak_bytes");
    tw_table_add_column(table, "at_peak_bytes");
    tw_table_add_column(table, "current_bytes");
}

void tw_measurement_detail_put(struct tw_table *table, const struct tw_measurement *measurement) {
    const struct tw_accountant *books = &measurement->books;
    if (measurement->refusal.size) return;
    for (int p = 0; p < TW_N_PHASES; p++)
        for (int c = 0; c < TW_N_CATEGORIES; c++) {
            tw_table_begin_row(table);
            tw_configuration_put(table, measurement->configuration);
            tw_table_put_text(table, tw_phase_names[p]);
            tw_table_put_text(table, tw_category_names[c]);
            tw_table_put_uint(table, books->peak[p][c]);
            tw_table_put_uint(table, books->at_peak[p][c]);
            tw_table_put_uint(table, books->current[c]);
        }
}
