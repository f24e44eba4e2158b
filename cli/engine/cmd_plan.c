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
     .help = "every phase and category of each instead"},
    {0},
};

static const struct tw_option_group groups[] = {
    {"What is planned; lists span all combinations", tw_span_option_rows, offsetof(struct plan_options, span)},
    {NULL, option_rows, 0},
    {"Machine", tw_planned_option_rows, offsetof(struct plan_options, machine)},
    {"Output", tw_table_option_rows, offsetof(struct plan_options, table)},
    {0},
};

/* One configuration and what has come of it. */
struct planned {
    struct tw_measurement measurement;
    size_t longest_context, largest_chunk; /* only with --memory; 0: none fits */
};

struct planning {
    struct tw_progress progress; /* of the schedule that is run, shown as that of the whole; the first member */
    struct tw_invocation *invocation;
    const struct tw_model *model;
    const struct plan_options *options;
    int32_t *tokens;    /* [the longest context], all 0 */
    struct planned *at; /* [n] */
    size_t n, n_done;
};

static void show_progress(struct tw_progress *progress, const char *phase, uint64_t done, uint64_t total,
                          const char *unit, const char *detail) {
    const struct planning *p = (const struct planning *)progress;
    (void)phase, (void)done, (void)total, (void)unit, (void)detail;
    tw_progress_update(p->invocation->progress, "plan", p->n_done, p->n, "configurations", NULL);
}

/*
 * Runs the schedule on the dry backend. A configuration that does not fit the limit is a row with a reason, not a
 * failure.
 */
static tw_status measure(struct tw_measurement *m, struct planning *p, const struct tw_configuration *c,
                         struct tw_error *err) {
    struct tw_engine_options options;
    struct tw_engine *engine;
    memset(m, 0, sizeof *m);
    m->configuration = c;
    tw_configuration_apply(&options, c, &p->options->machine);
    options.image = options.backend;
    options.backend = "dry";
    tw_status status = tw_engine_open(&engine, p->model, &options, err);
    if (status == TW_OK) status = tw_engine_prefill(engine, p->tokens, c->context, 0, NULL, &p->progress, err);
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

/* The largest value of `field`, which is one of c's own, in [1, most] with which the configuration fits, 0 if none
 * does: memory grows with it. */
static tw_status largest(size_t *found, struct planning *p, const struct tw_configuration *c, size_t *field,
                         size_t most, struct tw_error *err) {
    size_t low = 0, high = most, middle = most; /* often all of it does */
    for (; low < high; middle = low + (high - low + 1) / 2) {
        struct tw_measurement m;
        *field = middle;
        TW_TRY(measure(&m, p, c, err));
        if (m.refusal.size == 0)
            low = middle;
        else
            high = middle - 1;
        tw_measurement_release(&m);
    }
    *found = low;
    return TW_OK;
}

static bool differ_in_context_alone(const struct tw_configuration *a, const struct tw_configuration *b) {
    return strcmp(a->schedule, b->schedule) == 0 && strcmp(a->selector, b->selector) == 0 && a->dtype == b->dtype &&
           a->budget == b->budget && a->chunk == b->chunk;
}

/* What fits the limit when one thing is varied. */
static tw_status find_limits(struct planning *p, size_t i, struct tw_error *err) {
    const struct tw_configuration *c = p->at[i].measurement.configuration;
    struct tw_configuration varied = *c;
    size_t known = 0;
    while (known < i && !differ_in_context_alone(c, p->at[known].measurement.configuration)) known++;
    if (known < i)
        p->at[i].longest_context = p->at[known].longest_context;
    else
        TW_TRY(largest(&p->at[i].longest_context, p, &varied, &varied.context, p->model->config.context_length, err));
    varied = *c;
    if (c->no_chunk) return TW_OK;
    return largest(&p->at[i].largest_chunk, p, &varied, &varied.chunk, c->context, err);
}

static tw_status plan(struct planning *p, const struct tw_configurations *list, struct tw_error *err) {
    for (size_t i = 0; i < list->n; i++) {
        p->n_done = i;
        show_progress(&p->progress, NULL, 0, 0, NULL, NULL);
        TW_TRY(measure(&p->at[i].measurement, p, &list->at[i], err));
        if (p->options->machine.memory && !p->options->detail) TW_TRY(find_limits(p, i, err));
    }
    return TW_OK;
}

static const struct tw_layout_column limits_layout[] = {
    {.title = "With this much memory", .name = "fits", .heading = "fits"},
    {.name = "longest_context", .heading = "longest context"},
    {.name = "largest_chunk", .heading = "largest chunk"},
    {0},
};

static tw_status write_plan(struct planning *p, struct tw_error *err) {
    const struct plan_options *options = p->options;
    const bool limited = options->machine.memory;
    const struct tw_layout_column *const parts[] = {limits_layout, tw_measurement_layout};
    struct tw_table table;
    tw_table_init(&table, tw_configuration_columns, TW_CONFIGURATION_N_COLUMNS);
    for (size_t i = 0; limited && limits_layout[i].name; i++) tw_table_add_column(&table, limits_layout[i].name);
    tw_measurement_add_columns(&table);
    tw_table_add_column(&table, "figures");
    const char *at_most = NULL;
    for (size_t i = 0; i < p->n; i++) {
        const struct planned *at = &p->at[i];
        tw_table_begin_row(&table);
        tw_configuration_put(&table, at->measurement.configuration);
        if (limited) {
            tw_table_put_text(&table, at->measurement.refusal.size ? "no" : "yes");
            tw_table_put_uint(&table, at->longest_context);
            if (at->measurement.configuration->no_chunk)
                tw_table_put_empty(&table);
            else
                tw_table_put_uint(&table, at->largest_chunk);
        }
        tw_measurement_put(&table, &at->measurement);
        tw_table_put_text(&table, at->measurement.configuration->at_most ? "at most" : "exact");
        if (at->measurement.configuration->at_most) at_most = at->measurement.configuration->selector;
    }
    if (at_most)
        tw_note("with %s it takes at most this: how a layer's heads share a budget is the scores' to say", at_most);
    const tw_status status = tw_write_configurations(p->invocation, &options->table, &table, parts, 2, p->model,
                                                     options->machine.backend, err);
    tw_table_release(&table);
    return status;
}

static tw_status write_detail(struct planning *p, struct tw_error *err) {
    const struct tw_measurement **measurements = malloc((p->n + 1) * sizeof *measurements);
    if (!measurements) return TW_FAIL(err, TW_E_MEMORY, "out of memory: list of configurations");
    for (size_t i = 0; i < p->n; i++) measurements[i] = &p->at[i].measurement;
    const tw_status status = tw_write_detail(p->invocation, &p->options->table, measurements, p->n, p->model,
                                             p->options->machine.backend, err);
    free(measurements);
    return status;
}

static tw_status run(struct tw_invocation *invocation, struct tw_error *err) {
    const struct plan_options *options = invocation->options;
    struct tw_model *model = NULL;
    struct tw_configurations list = {0};
    struct planning p = {.progress = {show_progress}, .invocation = invocation, .options = options};
    struct tw_span_settings span = options->span;
    uint64_t whole;
    TW_TRY(tw_open_model(&model, NULL, invocation->operands[0], err));
    tw_status status;
    p.model = model;
    whole = model->config.context_length;
    if (span.contexts.n == 0) span.contexts = (struct tw_u64_list){.values = &whole, .n = 1};
    TW_TRY_GOTO(status, done, tw_configurations_span(&list, &span, options->machine.backend, model, err));
    size_t longest = model->config.context_length;
    for (size_t i = 0; i < list.n; i++) longest = tw_max_size(longest, list.at[i].context);
    p.tokens = calloc(longest, sizeof *p.tokens);
    p.at = calloc(list.n + 1, sizeof *p.at);
    p.n = list.n;
    if (!p.tokens || !p.at) {
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory: a prompt of %zu tokens", longest);
        goto done;
    }
    status = plan(&p, &list, err);
    if (status == TW_OK) status = options->detail ? write_detail(&p, err) : write_plan(&p, err);
done:
    for (size_t i = 0; p.at && i < p.n; i++) tw_measurement_release(&p.at[i].measurement);
    free(p.at);
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
