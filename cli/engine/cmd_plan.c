/* `tidewake plan`: the memory of configurations, without weights or device. */
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "cli/engine/measure.h"

struct plan_options {
    struct tw_span_settings span;
    struct tw_machine_settings machine;
    struct tw_table_options table;
    uint64_t max_new;
    bool detail;
};

static const struct tw_option option_rows[] = {
    {.name = "max-new",
     .type = TW_OPTION_SIZE,
     .offset = offsetof(struct plan_options, max_new),
     .default_value = "32",
     .minimum = 1,
     .maximum = 1 << 30,
     .value_name = "N",
     .help = "tokens that will be generated"},
    {.name = "detail",
     .type = TW_OPTION_FLAG,
     .offset = offsetof(struct plan_options, detail),
     .help = "a row a phase and category instead"},
    {0},
};

static const struct tw_option_group groups[] = {
    {"What is planned; lists span all combinations", tw_span_option_rows, offsetof(struct plan_options, span)},
    {NULL, option_rows, 0},
    {"Machine", tw_planned_option_rows, offsetof(struct plan_options, machine)},
    {"Output", tw_table_option_rows, offsetof(struct plan_options, table)},
    {0},
};

struct planning {
    const struct tw_model *model;
    const struct plan_options *options;
    int32_t *tokens; /* [the longest context], all 0 */
};

/*
 * Runs the schedule on the dry backend. A configuration that does not fit the limit is a row with a reason, not a
 * failure.
 */
static tw_status measure(struct tw_measurement *m, const struct planning *p, const struct tw_configuration *c,
                         struct tw_error *err) {
    struct tw_engine_options options;
    struct tw_engine *engine;
    memset(m, 0, sizeof *m);
    m->configuration = c;
    tw_configuration_apply(&options, c, &p->options->machine);
    options.image = options.backend;
    options.backend = "dry";
    tw_status status = tw_engine_open(&engine, p->model, &options, err);
    if (status == TW_OK) status = tw_engine_prefill(engine, p->tokens, c->context, 0, NULL, NULL, err);
    /* The first token comes of prefill. */
    if (status == TW_OK && p->options->max_new > 1) status = tw_engine_reserve(engine, p->options->max_new - 1, err);
    if (status == TW_OK && p->options->max_new > 1 && c->context < p->model->config.context_length)
        status = tw_engine_decode(engine, 0, NULL, err);
    if (status == TW_OK) {
        tw_measurement_take(m, engine);
        m->resident_bytes = 0; /* of this process, which computes nothing */
    }
    tw_engine_free(engine);
    if (status == TW_E_MEMORY && p->options->machine.memory) {
        tw_text_printf(&m->refusal, "%s", err->text);
        return TW_OK;
    }
    return status;
}

static tw_status fits(bool *answer, const struct planning *p, const struct tw_configuration *c, struct tw_error *err) {
    struct tw_measurement m;
    TW_TRY(measure(&m, p, c, err));
    *answer = m.refusal.size == 0;
    tw_measurement_release(&m);
    return TW_OK;
}

/* The largest value of `field`, which is one of c's own, in [1, most] with which the configuration fits, 0 if none
 * does: memory grows with it. */
static tw_status largest(size_t *found, const struct planning *p, const struct tw_configuration *c, size_t *field,
                         size_t most, struct tw_error *err) {
    size_t low = 0, high = most, middle = most; /* often all of it does */
    for (; low < high; middle = low + (high - low + 1) / 2) {
        bool answer;
        *field = middle;
        TW_TRY(fits(&answer, p, c, err));
        if (answer)
            low = middle;
        else
            high = middle - 1;
    }
    *found = low;
    return TW_OK;
}

static tw_status put_row(struct tw_table *table, const struct planning *p, const struct tw_measurement *m, bool plain,
                         struct tw_error *err) {
    const struct tw_configuration *c = m->configuration;
    tw_table_begin_row(table);
    tw_configuration_put(table, c);
    if (p->options->machine.memory) {
        size_t context, chunk;
        struct tw_configuration varied = *c;
        TW_TRY(largest(&context, p, &varied, &varied.context, p->model->config.context_length, err));
        varied = *c;
        TW_TRY(largest(&chunk, p, &varied, &varied.chunk, c->context, err));
        tw_table_put_text(table, m->refusal.size ? "no" : "yes");
        tw_table_put_uint(table, context);
        tw_table_put_uint(table, chunk);
    }
    tw_measurement_put(table, m, plain);
    return TW_OK;
}

static tw_status write_plan(struct tw_invocation *invocation, const struct planning *p,
                            const struct tw_configurations *list, struct tw_error *err) {
    const struct plan_options *options = p->options;
    const bool plain = tw_table_format_of(invocation, &options->table) == TW_TABLE_PLAIN;
    struct tw_table table = {0};
    tw_status status = TW_OK;
    if (options->detail) {
        tw_measurement_detail_init(&table);
    } else {
        tw_table_init(&table, tw_configuration_columns, TW_CONFIGURATION_N_COLUMNS);
        if (options->machine.memory) {
            tw_table_add_column(&table, "fits");
            tw_table_add_column(&table, "longest_context");
            tw_table_add_column(&table, "largest_chunk");
        }
        tw_measurement_add_columns(&table, plain);
    }
    for (size_t i = 0; status == TW_OK && i < list->n; i++) {
        struct tw_measurement m;
        tw_progress_update(invocation->progress, "plan", i, list->n, "configurations", NULL);
        status = measure(&m, p, &list->at[i], err);
        if (status == TW_OK && options->detail) tw_measurement_detail_put(&table, &m);
        if (status == TW_OK && !options->detail) status = put_row(&table, p, &m, plain, err);
        if (status == TW_OK && m.refusal.size) tw_note("%s", tw_text_string(&m.refusal));
        tw_measurement_release(&m);
    }
    tw_table_set_metadata(&table, "model", p->model->config.name);
    tw_table_set_metadata(&table, "backend", options->machine.backend);
    if (status == TW_OK) status = tw_write_table(invocation, &options->table, &table, err);
    tw_table_release(&table);
    return status;
}

static tw_status run(struct tw_invocation *invocation, struct tw_error *err) {
    const struct plan_options *options = invocation->options;
    struct tw_model *model = NULL;
    struct tw_configurations list = {0};
    struct planning p = {.options = options};
    struct tw_span_settings span = options->span;
    uint64_t whole;
    TW_TRY(tw_open_model(&model, NULL, invocation->operands[0], err));
    const enum tw_dtype dtype = (enum tw_dtype)options->machine.dtype;
    tw_status status;
    p.model = model;
    whole = model->config.context_length;
    if (span.contexts.n == 0) span.contexts = (struct tw_u64_list){.values = &whole, .n = 1};
    TW_TRY_GOTO(status, done, tw_configurations_span(&list, &span, &dtype, 1, err));
    size_t longest = model->config.context_length;
    for (size_t i = 0; i < list.n; i++) longest = tw_max_size(longest, list.at[i].context);
    p.tokens = calloc(longest, sizeof *p.tokens);
    if (!p.tokens) {
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory: a prompt of %zu tokens", longest);
        goto done;
    }
    status = write_plan(invocation, &p, &list, err);
done:
    free(p.tokens);
    tw_configurations_release(&list);
    tw_model_free(model);
    return status;
}

const struct tw_command tw_command_plan = {
    .name = "plan",
    .summary = "the memory that a prefill would take, from a configuration alone",
    .usage = "MODEL|CONFIG.json [--context LIST] [--budget LIST] [options]",
    .description =
        "Runs the real schedules on a backend that books every buffer and computes nothing. With --memory it\n"
        "also finds the longest context and the largest chunk that fit.",
    .example = "tidewake plan data/configs/Llama-3.1-8B-Instruct.json --context 32K,64K,128K --budget 4096 "
               "--schedule postprefill,tide",
    .groups = groups,
    .options_size = sizeof(struct plan_options),
    .min_operands = 1,
    .max_operands = 1,
    .run = run,
};
