/*
 * What `plan` and `prefill` share: the configurations that lists of options span, what one run of a configuration has
 * come to, and the tables of it.
 */
#ifndef TW_CLI_ENGINE_MEASURE_H
#define TW_CLI_ENGINE_MEASURE_H

#include "cli/engine/engine_options.h"
#include "cli/layout.h"

/* Lists that span configurations. */
struct tw_span_settings {
    const char *schedules, *selectors, *dtypes;
    struct tw_u64_list contexts, chunks;
    const char *budgets; /* "full,1024,4K" */
};
extern const struct tw_option tw_span_option_rows[];

/* One point of the span. Texts are owned. */
struct tw_configuration {
    char *schedule, *selector;
    size_t context, budget, chunk; /* budget 0: full */
    bool no_chunk;                 /* the chunk changes nothing: the schedule takes the whole prompt at once */
    bool at_most;                  /* heads share a budget: what is planned is a bound, otherwise exact */
    enum tw_dtype dtype;
};

struct tw_configurations {
    struct tw_configuration *at; /* [n] */
    size_t n;
};

/*
 * All points, schedules slowest; what a point has no use for does not multiply it: a schedule that evicts nothing has
 * no budget, a full budget no selector, a schedule that takes the whole prompt no chunk. Precisions that are left to
 * the backend are resolved for `backend` and `model`. Fails with TW_E_OPTION on what no engine could be opened with.
 */
tw_status tw_configurations_span(struct tw_configurations *configurations, const struct tw_span_settings *settings,
                                 const char *backend, const struct tw_model *model, struct tw_error *err);
void tw_configurations_release(struct tw_configurations *configurations); /* copes with {0} */

/* What a run of one configuration has come to. */
struct tw_measurement {
    const struct tw_configuration *configuration;
    struct tw_accountant books; /* a copy: figures alone */
    size_t steady_bytes, cache_bytes, retained_rows, reserved_bytes, resident_bytes;
    bool on_device;                 /* the memory is a device's */
    struct tw_device_memory device; /* with a device that says something: all 0 otherwise */
    struct tw_text refusal;         /* why it did not run (a memory limit); empty when it did */
};
void tw_measurement_release(struct tw_measurement *measurement);
/* Takes the books, after prefill and whatever decoding there was. */
void tw_measurement_take(struct tw_measurement *measurement, const struct tw_engine *engine);

/* Memory columns: names, to be added to a table, and the cells of one row: bytes, and why it was refused. */
void tw_measurement_add_columns(struct tw_table *table);
void tw_measurement_put(struct tw_table *table, const struct tw_measurement *measurement);
/* How they are laid out for people. Ends with {0}. */
extern const struct tw_layout_column tw_measurement_layout[];
extern const struct tw_layout_column tw_device_layout[]; /* for memory that is a device's */

/* The configuration's own columns: schedule, selector, dtype, context, budget, chunk. Empty where it has no use for
 * one. */
extern const char *const tw_configuration_columns[];
enum { TW_CONFIGURATION_N_COLUMNS = 6 };
void tw_configuration_put(struct tw_table *table, const struct tw_configuration *configuration);

/*
 * Writes a table that begins with the configuration's columns as the options say; for people laid out, with `columns`
 * [n_parts] lists, each of which ends with {0}.
 */
tw_status tw_write_configurations(struct tw_invocation *invocation, const struct tw_table_options *options,
                                  struct tw_table *table, const struct tw_layout_column *const *parts, size_t n_parts,
                                  const struct tw_model *model, const char *backend, struct tw_error *err);

/*
 * What --detail shows. One row a phase and category (CSV, JSON): peak there, and what it held when the phase's sum
 * peaked. For people a table a configuration: categories down, phases across.
 */
tw_status tw_write_detail(struct tw_invocation *invocation, const struct tw_table_options *options,
                          const struct tw_measurement *const *measurements, size_t n, const struct tw_model *model,
                          const char *backend, struct tw_error *err);

/* What an engine is opened with for a configuration. */
void tw_configuration_apply(struct tw_engine_options *options, const struct tw_configuration *configuration,
                            const struct tw_machine_settings *machine);

#endif
