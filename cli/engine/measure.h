/*
 * What `plan` and `prefill` share: the configurations that lists of options span, what one run of a configuration has
 * come to, and the tables of it.
 */
#ifndef TW_CLI_ENGINE_MEASURE_H
#define TW_CLI_ENGINE_MEASURE_H

#include "base/table.h"
#include "cli/engine/engine_options.h"

/* Lists that span configurations. */
struct tw_span_settings {
    const char *schedules, *selectors;
    struct tw_u64_list contexts, chunks;
    const char *budgets; /* "full,1024,4K" */
};
extern const struct tw_option tw_span_option_rows[];

/* One point of the span. Texts are owned. */
struct tw_configuration {
    char *schedule, *selector;
    size_t context, budget, chunk;
    enum tw_dtype dtype;
};

struct tw_configurations {
    struct tw_configuration *at; /* [n] */
    size_t n;
};

/*
 * All points, schedules slowest. Schedules that evict nothing take no budget (they appear once), the others every one.
 * dtypes [n_dtypes]. Fails with TW_E_OPTION on what no engine could be opened with.
 */
tw_status tw_configurations_span(struct tw_configurations *configurations, const struct tw_span_settings *settings,
                                 const enum tw_dtype *dtypes, size_t n_dtypes, struct tw_error *err);
void tw_configurations_release(struct tw_configurations *configurations); /* copes with {0} */

/* What a run of one configuration has come to. */
struct tw_measurement {
    const struct tw_configuration *configuration;
    struct tw_accountant books; /* a copy: figures alone */
    size_t steady_bytes, cache_bytes, retained_rows, reserved_bytes, resident_bytes;
    struct tw_text refusal; /* why it did not run (a memory limit); empty when it did */
};
void tw_measurement_release(struct tw_measurement *measurement);
/* Takes the books, after prefill and whatever decoding there was. */
void tw_measurement_take(struct tw_measurement *measurement, const struct tw_engine *engine);

/* Memory columns: names, to be added to a table, and the cells of one row. With `plain`, MiB to one decimal. */
void tw_measurement_add_columns(struct tw_table *table, bool plain);
void tw_measurement_put(struct tw_table *table, const struct tw_measurement *measurement, bool plain);
/* The configuration's own columns: schedule, selector, dtype, context, budget, chunk. */
extern const char *const tw_configuration_columns[];
enum { TW_CONFIGURATION_N_COLUMNS = 6 };
void tw_configuration_put(struct tw_table *table, const struct tw_configuration *configuration);

/* One row a phase and category: peak there, and what it held when the phase's sum peaked. */
void tw_measurement_detail_init(struct tw_table *table);
void tw_measurement_detail_put(struct tw_table *table, const struct tw_measurement *measurement);

/* What an engine is opened with for a configuration. */
void tw_configuration_apply(struct tw_engine_options *options, const struct tw_configuration *configuration,
                            const struct tw_machine_settings *machine);

#endif
