#include "cli/engine/measure.h"

#include <stdlib.h>
#include <string.h>

#include "base/parse.h"
#include "engine/backend/image.h"

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
    {.name = "dtype",
     .type = TW_OPTION_TEXT,
     .offset = SPAN(dtypes),
     .default_value = "auto",
     .value_name = "LIST",
     .help = "precisions, bf16 or f32; auto is bf16 where the processor or device has it"},
    {0},
};

static const char *const dtype_names[] = {[TW_DTYPE_AUTO] = "auto", [TW_DTYPE_BF16] = "bf16", [TW_DTYPE_F32] = "f32"};

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

static tw_status dtype_of(enum tw_dtype *dtype, const char *text, struct tw_error *err) {
    for (size_t i = 0; i < sizeof dtype_names / sizeof *dtype_names; i++)
        if (strcmp(text, dtype_names[i]) == 0) {
            *dtype = (enum tw_dtype)i;
            return TW_OK;
        }
    return TW_FAIL(err, TW_E_OPTION, "option '--dtype': '%s' is none of auto, bf16, f32", text);
}

/* What is left to the backend, as it chooses; a backend that cannot run the model says so when it is opened. */
static void resolve(enum tw_dtype *dtype, const char *backend, const struct tw_model *model) {
    const struct tw_backend_image *image;
    struct tw_backend_options options = {.dtype = *dtype, .window = 1};
    struct tw_error ignored;
    if (tw_image_find(&image, backend, &ignored) == TW_OK && image->resolve(&options, model, &ignored) == TW_OK)
        *dtype = options.dtype;
}

/* The lists of options, as strings; the last of each is NULL. */
struct pieces {
    char **schedules, **selectors, **dtypes, **budgets;
};

static tw_status span_schedule(struct tw_configurations *list, const struct tw_span_settings *settings,
                               const struct pieces *pieces, char *schedule, const char *backend,
                               const struct tw_model *model, struct tw_error *err) {
    struct tw_configuration c = {.schedule = schedule};
    struct tw_schedule_choice choice;
    TW_TRY(tw_schedule_choose(&choice, c.schedule, err));
    const bool evicts = choice.schedule->evicts, whole_prompt = choice.schedule->whole_prompt;
    tw_schedule_choice_release(&choice);
    for (char **selector = pieces->selectors; *selector; selector++)
        for (char **dtype = pieces->dtypes; *dtype; dtype++)
            for (char **budget = pieces->budgets; *budget; budget++) {
                struct tw_selector_choice selected;
                c.selector = *selector;
                TW_TRY(tw_selector_choose(&selected, c.selector, err));
                const struct tw_selector *chosen = selected.selector;
                const bool by_chunk = chosen->by_chunk && chosen->by_chunk(selected.options);
                tw_selector_choice_release(&selected);
                TW_TRY(dtype_of(&c.dtype, *dtype, err));
                TW_TRY(budget_of(&c.budget, *budget, err));
                if (c.dtype == TW_DTYPE_AUTO) resolve(&c.dtype, backend, model);
                if (!evicts && budget != pieces->budgets) continue;
                if (!evicts) c.budget = 0;
                if (c.budget == 0 && selector != pieces->selectors) continue;
                c.no_chunk = whole_prompt && !(c.budget && by_chunk);
                c.at_most = c.budget && chosen->head_budget;
                for (size_t i = 0; i < settings->contexts.n; i++)
                    for (size_t j = 0; j < (c.no_chunk ? 1 : settings->chunks.n); j++) {
                        c.context = settings->contexts.values[i];
                        c.chunk = settings->chunks.values[j];
                        TW_TRY(add(list, &c, err));
                    }
            }
    return TW_OK;
}

tw_status tw_configurations_span(struct tw_configurations *configurations, const struct tw_span_settings *settings,
                                 const char *backend, const struct tw_model *model, struct tw_error *err) {
    memset(configurations, 0, sizeof *configurations);
    struct pieces pieces = {.schedules = split(settings->schedules),
                            .selectors = split(settings->selectors),
                            .dtypes = split(settings->dtypes),
                            .budgets = split(settings->budgets)};
    tw_status status = TW_OK;
    if (!pieces.schedules || !pieces.selectors || !pieces.dtypes || !pieces.budgets)
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory: lists of options");
    for (char **schedule = pieces.schedules; status == TW_OK && *schedule; schedule++)
        status = span_schedule(configurations, settings, &pieces, *schedule, backend, model, err);
    free(pieces.schedules);
    free(pieces.selectors);
    free(pieces.dtypes);
    free(pieces.budgets);
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
    tw_table_put_text(table, configuration->schedule);
    if (configuration->budget)
        tw_table_put_text(table, configuration->selector);
    else
        tw_table_put_empty(table);
    tw_table_put_text(table, dtype_names[configuration->dtype]);
    tw_table_put_uint(table, configuration->context);
    if (configuration->budget)
        tw_table_put_uint(table, configuration->budget);
    else
        tw_table_put_text(table, "full");
    if (configuration->no_chunk)
        tw_table_put_empty(table);
    else
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
    const struct tw_memory_source *source = &engine->accountant.source;
    measurement->on_device = source->device;
    if (source->inspect) source->inspect(source->context, &measurement->device);
}
