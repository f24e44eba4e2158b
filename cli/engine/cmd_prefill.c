/* `tidewake prefill`: schedules side by side on the same prompts: time, memory, fidelity. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/output.h"
#include "base/random.h"
#include "base/stop.h"
#include "cli/engine/fidelity.h"
#include "cli/engine/measure.h"
#include "engine/sample.h"
#include "engine/task/task.h"

struct prefill_options {
    struct tw_input_settings input;
    struct tw_span_settings span;
    struct tw_machine_settings machine;
    struct tw_table_options table;
    uint64_t max_new, repeat, runs, requests, seed;
    const char *reference, *timeline, *layers;
    bool detail;
};

#define PREFILL(field) offsetof(struct prefill_options, field)

static const struct tw_option option_rows[] = {
    {.name = "reference",
     .type = TW_OPTION_TEXT,
     .offset = PREFILL(reference),
     .default_value = "oneshot",
     .value_name = "SCHEDULE|none",
     .help = "schedule that hidden states and next tokens are compared with; oneshot is the exact one"},
    {.name = "runs",
     .type = TW_OPTION_U64,
     .offset = PREFILL(runs),
     .default_value = "1",
     .minimum = 1,
     .maximum = 10000,
     .value_name = "N",
     .help = "prompts a configuration, made from the seed and those after it"},
    {.name = "repeat",
     .type = TW_OPTION_U64,
     .offset = PREFILL(repeat),
     .default_value = "1",
     .minimum = 1,
     .maximum = 1000,
     .value_name = "N",
     .help = "times each is timed, in turns with the others; medians are reported"},
    {.name = "max-new",
     .type = TW_OPTION_SIZE,
     .offset = PREFILL(max_new),
     .default_value = "32",
     .minimum = 1,
     .maximum = 1 << 20,
     .value_name = "N",
     .help = "tokens decoded behind each prefill"},
    {.name = "requests",
     .type = TW_OPTION_U64,
     .offset = PREFILL(requests),
     .default_value = "0",
     .maximum = 1000000,
     .value_name = "N",
     .help = "instead: N prompts of mixed lengths in one process, and whether memory stays as it was"},
    {.name = "seed",
     .type = TW_OPTION_U64,
     .offset = PREFILL(seed),
     .default_value = "0",
     .value_name = "N",
     .help = "of the prompts"},
    {.name = "timeline",
     .type = TW_OPTION_TEXT,
     .offset = PREFILL(timeline),
     .value_name = "FILE.csv",
     .help = "memory over time of the first run of each, for 'plot timeline'"},
    {.name = "layers",
     .type = TW_OPTION_TEXT,
     .offset = PREFILL(layers),
     .value_name = "FILE.csv",
     .help = "fidelity layer by layer"},
    {.name = "detail",
     .type = TW_OPTION_FLAG,
     .offset = PREFILL(detail),
     .help = "every phase and category of each instead"},
    {0},
};

static const struct tw_option_group groups[] = {
    {"Prompt; without one it is made for --context", tw_input_option_rows, PREFILL(input)},
    {"What is run; lists span all combinations", tw_span_option_rows, PREFILL(span)},
    {"Measuring", option_rows, 0},
    {"Machine", tw_machine_option_rows, PREFILL(machine)},
    {"Output", tw_table_option_rows, PREFILL(table)},
    {0},
};

/* What a configuration has come to over its prompts and repetitions. */
struct outcome {
    double *prefill_seconds, *layer_end_seconds, *decode_seconds; /* [runs * repeat] */
    size_t n;
    struct tw_fidelity fidelity;
    struct tw_measurement measurement; /* of the first run */
};

struct prefilling {
    struct tw_progress progress; /* of one run, shown as that of all; the first member */
    const char *stage;           /* "run", "comparison" */
    size_t n_begun, n_runs;      /* of the stage */
    struct tw_invocation *invocation;
    const struct prefill_options *options;
    struct tw_model *model;
    struct tw_tokenizer *tokenizer;
    struct tw_encoded input; /* the prompt given; empty: prompts are made */
    struct tw_table timeline;
};

static void show_progress(struct tw_progress *progress, const char *phase, uint64_t done, uint64_t total,
                          const char *unit, const char *detail) {
    const struct prefilling *p = (const struct prefilling *)progress;
    char text[64];
    snprintf(text, sizeof text, "%s %zu/%zu: %s", p->stage, p->n_begun, p->n_runs, phase);
    tw_progress_update(p->invocation->progress, text, done, total, unit, detail);
}

/* ---- prompts ---- */

static size_t count_tokens(void *context, struct tw_view text) {
    struct tw_tokens tokens = {0};
    const struct tw_encode_options options = {0};
    const tw_status status = tw_tokenizer_encode(&tokens, context, text, &options, NULL, NULL);
    const size_t n = status == TW_OK ? tokens.n : SIZE_MAX / 2;
    tw_tokens_release(&tokens);
    return n;
}

/* Exactly n tokens: the first of the prompt given, or of a made one. Free *tokens. */
static tw_status prompt_of(int32_t **tokens, const struct prefilling *p, size_t n, uint64_t seed,
                           struct tw_error *err) {
    struct tw_encoded encoded = {0};
    struct tw_prompt prompt = {0};
    const struct tw_encoded *from = &p->input;
    *tokens = malloc(n * sizeof **tokens);
    if (!*tokens) return TW_FAIL(err, TW_E_MEMORY, "out of memory: a prompt of %zu tokens", n);
    tw_status status = TW_OK;
    if (p->input.n == 0) {
        const struct tw_task *task;
        const struct tw_task_request request = {.context_tokens = n + n / 8 + 256, .depth = 0.5, .seed = seed};
        const struct tw_token_counter counter = {count_tokens, p->tokenizer};
        TW_TRY_GOTO(status, done, tw_task_find(&task, "niah", err));
        TW_TRY_GOTO(status, done, tw_task_make(&prompt, task, &request, &counter, err));
        TW_TRY_GOTO(status, done, tw_encode_for_command(&encoded, p->tokenizer, &prompt, TW_SPECIAL_LITERAL, err));
        from = &encoded;
    }
    if (from->n < n)
        status =
            TW_FAIL(err, TW_E_INPUT, "the prompt has %zu tokens, fewer than the context of %zu asked for", from->n, n);
    else
        memcpy(*tokens, from->ids, n * sizeof **tokens);
done:
    tw_prompt_release(&prompt);
    tw_encoded_release(&encoded);
    if (status != TW_OK) {
        free(*tokens);
        *tokens = NULL;
    }
    return status;
}

/* ---- one run ---- */

static const char *const event_columns[] = {"model", "seconds", "phase", "category", "bytes"};

static void add_timeline(struct prefilling *p, const struct tw_configuration *c, const struct tw_engine *engine) {
    const struct tw_accountant *books = &engine->accountant;
    for (size_t i = 0; i < books->n_events; i++) {
        const struct tw_account_event *event = &books->events[i];
        tw_table_begin_row(&p->timeline);
        tw_configuration_put(&p->timeline, c);
        tw_table_put_text(&p->timeline, p->model->config.name);
        tw_table_put_double(&p->timeline, event->seconds);
        tw_table_put_text(&p->timeline, tw_phase_names[event->phase]);
        tw_table_put_text(&p->timeline, tw_category_names[event->category]);
        tw_table_put_uint(&p->timeline, event->category_bytes);
    }
}

static tw_status decode(struct tw_engine *engine, size_t max_new, struct tw_progress *progress, struct tw_error *err) {
    /* The first token comes of prefill. */
    TW_TRY(tw_engine_reserve(engine, max_new - 1, err));
    for (size_t t = 1; t < max_new; t++) {
        if (tw_stop_requested()) return TW_FAIL(err, TW_E_INTERRUPTED, "interrupted in decoding");
        tw_progress_update(progress, "decode", t, max_new, "tokens", NULL);
        const int32_t token = tw_sample_greedy(tw_engine_logits(engine), engine->model->config.n_vocab);
        TW_TRY(tw_engine_decode(engine, token, NULL, err));
    }
    return TW_OK;
}

/*
 * One prompt on one configuration; first: memory is looked at. A limit that does not suffice is an outcome, not a
 * failure.
 */
static tw_status run_once(struct prefilling *p, const struct tw_configuration *c, struct outcome *outcome,
                          const int32_t *tokens, bool first, struct tw_hidden_store *reference, bool compare,
                          struct tw_error *err) {
    struct tw_engine_options options;
    struct tw_engine *engine;
    tw_configuration_apply(&options, c, &p->options->machine);
    options.seed = p->options->seed;
    options.record = first && p->options->timeline;
    tw_status status = tw_engine_open(&engine, p->model, &options, err);
    struct tw_fidelity_watch watch = {.engine = engine, .store = reference, .fidelity = &outcome->fidelity};
    if (status == TW_OK && compare) status = tw_fidelity_watch_begin(&watch, err);
    if (status == TW_OK)
        status = tw_engine_prefill(engine, tokens, c->context, 0, compare ? &watch.watch : NULL, &p->progress, err);
    if (status == TW_OK && compare) tw_fidelity_watch_end(&watch, tw_engine_logits(engine));
    if (status == TW_OK && p->options->max_new > 1 && !compare)
        status = decode(engine, p->options->max_new, &p->progress, err);
    if (status == TW_OK && !compare) {
        if (first) {
            tw_measurement_take(&outcome->measurement, engine);
            add_timeline(p, c, engine);
        }
        outcome->prefill_seconds[outcome->n] = engine->times.prefill_seconds;
        outcome->layer_end_seconds[outcome->n] = engine->times.layer_end_seconds;
        outcome->decode_seconds[outcome->n] = engine->times.decode_seconds;
        outcome->n++;
    }
    tw_engine_free(engine);
    if (status == TW_E_MEMORY && p->options->machine.memory) {
        if (outcome->measurement.refusal.size == 0) tw_text_printf(&outcome->measurement.refusal, "%s", err->text);
        return TW_OK;
    }
    return status;
}

static bool comparable(const struct tw_configuration *a, const struct tw_configuration *b) {
    return a->context == b->context && a->dtype == b->dtype;
}

/* Hidden states and the next token of every configuration of one context and precision against the reference's, prompt
 * by prompt. */
static tw_status run_fidelity(struct prefilling *p, const struct tw_configurations *list, struct outcome *outcomes,
                              struct tw_error *err) {
    tw_status status = TW_OK;
    p->stage = "comparison";
    p->n_begun = 0;
    p->n_runs = p->options->runs * list->n;
    for (size_t i = 0; i < list->n; i++) {
        struct tw_configuration reference = list->at[i];
        bool done = false;
        for (size_t j = 0; j < i; j++) done = done || comparable(&list->at[j], &reference);
        if (done) continue;
        reference.schedule = (char *)p->options->reference;
        reference.budget = 0;
        for (uint64_t r = 0; status == TW_OK && r < p->options->runs; r++) {
            struct tw_hidden_store store = {0};
            struct outcome none = {0};
            int32_t *tokens;
            status = prompt_of(&tokens, p, reference.context, p->options->seed + r, err);
            if (status != TW_OK) break;
            status = tw_hidden_store_open(&store, &p->model->config, reference.context, err);
            if (status == TW_OK) status = run_once(p, &reference, &none, tokens, false, &store, true, err);
            store.complete = true;
            for (size_t j = i; status == TW_OK && j < list->n; j++)
                if (comparable(&list->at[j], &reference) && none.measurement.refusal.size == 0) {
                    p->n_begun++;
                    status = run_once(p, &list->at[j], &outcomes[j], tokens, false, &store, true, err);
                }
            tw_fidelity_release(&none.fidelity);
            tw_measurement_release(&none.measurement);
            tw_hidden_store_close(&store);
            free(tokens);
        }
    }
    return status;
}

/* Configurations in turns, so that a machine that slows down slows all of them. */
static tw_status run_timed(struct prefilling *p, const struct tw_configurations *list, struct outcome *outcomes,
                           struct tw_error *err) {
    p->stage = "run";
    p->n_begun = 0;
    p->n_runs = p->options->repeat * p->options->runs * list->n;
    for (uint64_t repeat = 0; repeat < p->options->repeat; repeat++)
        for (uint64_t r = 0; r < p->options->runs; r++)
            for (size_t i = 0; i < list->n; i++) {
                int32_t *tokens;
                p->n_begun++;
                if (outcomes[i].measurement.refusal.size) continue;
                TW_TRY(prompt_of(&tokens, p, list->at[i].context, p->options->seed + r, err));
                const tw_status status =
                    run_once(p, &list->at[i], &outcomes[i], tokens, repeat == 0 && r == 0, NULL, false, err);
                free(tokens);
                TW_TRY(status);
            }
    return TW_OK;
}

/* ---- tables ---- */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t n) {
    if (n == 0) return NAN;
    qsort(values, n, sizeof *values, by_value);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static const char *const time_columns[] = {
    "prefill_seconds", "prefill_tokens_per_second",
    "layer_end_share", "decode_tokens_per_second",
    "hidden_l2",       "hidden_cosine",
    "top1_agreement",  "js_divergence",
};

static const struct tw_layout_column time_layout[] = {
    {.title = "Time", .name = "prefill_seconds", .heading = "first token", .shown = TW_SHOWN_SECONDS, .digits = 3},
    {.name = "prefill_tokens_per_second", .heading = "tokens/s", .shown = TW_SHOWN_FIXED, .digits = 1},
    {.name = "layer_end_share", .heading = "layer ends", .shown = TW_SHOWN_PERCENT, .digits = 2},
    {.name = "decode_tokens_per_second", .heading = "decode tokens/s", .shown = TW_SHOWN_FIXED, .digits = 1},
    {0},
};

static void put_times(struct tw_table *table, const struct prefilling *p, const struct tw_configuration *c,
                      struct outcome *o) {
    double total = 0, ends = 0;
    for (size_t i = 0; i < o->n; i++) {
        total += o->prefill_seconds[i];
        ends += o->layer_end_seconds[i];
    }
    const double prefill = median(o->prefill_seconds, o->n), decode = median(o->decode_seconds, o->n);
    tw_table_put_double(table, prefill);
    tw_table_put_double(table, (double)c->context / prefill);
    tw_table_put_double(table, o->n ? ends / total : NAN);
    tw_table_put_double(table, p->options->max_new > 1 ? (double)(p->options->max_new - 1) / decode : NAN);
    tw_table_put_double(table, tw_fidelity_l2(&o->fidelity, SIZE_MAX));
    tw_table_put_double(table, tw_fidelity_cosine(&o->fidelity, SIZE_MAX));
    tw_table_put_double(table, tw_fidelity_top1(&o->fidelity));
    tw_table_put_double(table, tw_fidelity_divergence(&o->fidelity));
}

static tw_status write_layers(const struct prefilling *p, const struct tw_configurations *list,
                              const struct outcome *outcomes, struct tw_error *err) {
    struct tw_table table;
    struct tw_text text = {0};
    tw_table_init(&table, tw_configuration_columns, TW_CONFIGURATION_N_COLUMNS);
    tw_table_add_column(&table, "layer");
    tw_table_add_column(&table, "hidden_l2");
    tw_table_add_column(&table, "hidden_cosine");
    for (size_t i = 0; i < list->n; i++)
        for (size_t l = 0; outcomes[i].fidelity.n_layers && l < p->model->config.n_layers; l++) {
            tw_table_begin_row(&table);
            tw_configuration_put(&table, &list->at[i]);
            tw_table_put_uint(&table, l);
            tw_table_put_double(&table, tw_fidelity_l2(&outcomes[i].fidelity, l + 1));
            tw_table_put_double(&table, tw_fidelity_cosine(&outcomes[i].fidelity, l + 1));
        }
    tw_status status = tw_table_write(&text, &table, TW_TABLE_CSV, err);
    if (status == TW_OK) status = tw_output_write(p->options->layers, tw_text_view(&text), err);
    tw_text_release(&text);
    tw_table_release(&table);
    return status;
}

static tw_status write_timeline(const struct prefilling *p, struct tw_error *err) {
    struct tw_text text = {0};
    tw_status status = tw_table_write(&text, &p->timeline, TW_TABLE_CSV, err);
    if (status == TW_OK) status = tw_output_write(p->options->timeline, tw_text_view(&text), err);
    tw_text_release(&text);
    return status;
}

static tw_status write_comparison(struct prefilling *p, const struct tw_configurations *list, struct outcome *outcomes,
                                  struct tw_error *err) {
    const struct prefill_options *options = p->options;
    char title[96], seed[32];
    snprintf(title, sizeof title, "Difference from %s", options->reference);
    const struct tw_layout_column fidelity[] = {
        {.title = title, .name = "hidden_l2", .heading = "hidden L2", .shown = TW_SHOWN_SCIENTIFIC, .digits = 2},
        {.name = "hidden_cosine", .heading = "cosine", .shown = TW_SHOWN_FIXED, .digits = 6},
        {.name = "top1_agreement", .heading = "same next token", .shown = TW_SHOWN_PERCENT, .digits = 1},
        {.name = "js_divergence", .heading = "JS divergence", .shown = TW_SHOWN_SCIENTIFIC, .digits = 2},
        {0},
    };
    const struct tw_layout_column *parts[4] = {time_layout, fidelity, tw_measurement_layout};
    size_t n_parts = 3;
    struct tw_table table;
    tw_table_init(&table, tw_configuration_columns, TW_CONFIGURATION_N_COLUMNS);
    for (size_t i = 0; i < sizeof time_columns / sizeof *time_columns; i++)
        tw_table_add_column(&table, time_columns[i]);
    tw_measurement_add_columns(&table);
    tw_table_add_column(&table, "model");
    for (size_t i = 0; i < list->n; i++) {
        tw_table_begin_row(&table);
        tw_configuration_put(&table, &list->at[i]);
        put_times(&table, p, &list->at[i], &outcomes[i]);
        tw_measurement_put(&table, &outcomes[i].measurement);
        tw_table_put_text(&table, p->model->config.name);
        if (outcomes[i].measurement.on_device) {
            parts[3] = tw_device_layout;
            n_parts = 4;
        }
        const char *missing = outcomes[i].measurement.device.process_missing;
        if (missing && i == 0) tw_note("memory of the process on the device is not known: %s", missing);
    }
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)options->seed);
    tw_table_set_metadata(&table, "seed", seed);
    const tw_status status = tw_write_configurations(p->invocation, &options->table, &table, parts, n_parts, p->model,
                                                     options->machine.backend, err);
    tw_table_release(&table);
    return status;
}

static tw_status write_detail(struct prefilling *p, const struct outcome *outcomes, size_t n, struct tw_error *err) {
    const struct tw_measurement **measurements = malloc((n + 1) * sizeof *measurements);
    if (!measurements) return TW_FAIL(err, TW_E_MEMORY, "out of memory: list of configurations");
    for (size_t i = 0; i < n; i++) measurements[i] = &outcomes[i].measurement;
    const tw_status status =
        tw_write_detail(p->invocation, &p->options->table, measurements, n, p->model, p->options->machine.backend, err);
    free(measurements);
    return status;
}

static tw_status write_tables(struct prefilling *p, const struct tw_configurations *list, struct outcome *outcomes,
                              struct tw_error *err) {
    const struct prefill_options *options = p->options;
    if (options->detail)
        TW_TRY(write_detail(p, outcomes, list->n, err));
    else
        TW_TRY(write_comparison(p, list, outcomes, err));
    if (options->layers) TW_TRY(write_layers(p, list, outcomes, err));
    return options->timeline ? write_timeline(p, err) : TW_OK;
}

static tw_status run_comparison(struct prefilling *p, const struct tw_configurations *list, struct tw_error *err) {
    const size_t n = p->options->runs * p->options->repeat;
    struct outcome *outcomes = calloc(list->n, sizeof *outcomes);
    double *seconds = malloc((3 * n * list->n + 1) * sizeof *seconds);
    tw_status status = TW_OK;
    if (!outcomes || !seconds) status = TW_FAIL(err, TW_E_MEMORY, "out of memory: outcomes");
    for (size_t i = 0; status == TW_OK && i < list->n; i++) {
        outcomes[i].prefill_seconds = seconds + 3 * n * i;
        outcomes[i].layer_end_seconds = outcomes[i].prefill_seconds + n;
        outcomes[i].decode_seconds = outcomes[i].layer_end_seconds + n;
        outcomes[i].measurement.configuration = &list->at[i];
    }
    if (status == TW_OK) status = run_timed(p, list, outcomes, err);
    if (status == TW_OK && strcmp(p->options->reference, "none") != 0) status = run_fidelity(p, list, outcomes, err);
    if (status == TW_OK) status = write_tables(p, list, outcomes, err);
    for (size_t i = 0; outcomes && i < list->n; i++) {
        tw_fidelity_release(&outcomes[i].fidelity);
        tw_measurement_release(&outcomes[i].measurement);
    }
    free(seconds);
    free(outcomes);
    return status;
}

/* ---- many requests in one process ---- */

/* Least squares: bytes a request. */
static double slope_of(const double *y, size_t n) {
    double mean_x = (double)(n - 1) / 2, mean_y = 0, xy = 0, xx = 0;
    for (size_t i = 0; i < n; i++) mean_y += y[i] / (double)n;
    for (size_t i = 0; i < n; i++) {
        xy += ((double)i - mean_x) * (y[i] - mean_y);
        xx += ((double)i - mean_x) * ((double)i - mean_x);
    }
    return xx > 0 ? xy / xx : 0;
}

/* Requests before memory is expected to be flat: every length has had its turn. */
#define WARM_UP(n) ((n) / 5)

static tw_status run_requests(struct prefilling *p, const struct tw_configuration *c, struct tw_table *table,
                              struct tw_error *err) {
    const size_t n = p->options->requests;
    struct tw_engine_options options;
    struct tw_engine *engine;
    struct tw_random random;
    double *reserved = malloc(n * sizeof *reserved), *resident = malloc(n * sizeof *resident);
    int32_t *tokens = NULL;
    tw_random_init(&random, p->options->seed, 9);
    tw_configuration_apply(&options, c, &p->options->machine);
    tw_status status = reserved && resident ? TW_OK : TW_FAIL(err, TW_E_MEMORY, "out of memory: requests");
    engine = NULL;
    if (status == TW_OK) status = prompt_of(&tokens, p, c->context, p->options->seed, err);
    if (status == TW_OK) status = tw_engine_open(&engine, p->model, &options, err);
    for (size_t r = 0; status == TW_OK && r < n; r++) {
        /* Lengths from an eighth of the context to all of it; the longest comes in the warm-up. */
        const size_t length =
            r == 0 ? c->context
                   : tw_max_size(1, c->context / 8 + tw_random_below(&random, c->context - c->context / 8));
        tw_progress_update(p->invocation->progress, "requests", r, n, "requests", NULL);
        status = tw_engine_prefill(engine, tokens, length, 0, NULL, NULL, err);
        if (status == TW_OK) status = decode(engine, tw_min_size(p->options->max_new, 4), NULL, err);
        if (status != TW_OK) break;
        tw_engine_reset(engine);
        reserved[r] = (double)tw_accountant_reserved(&engine->accountant);
        resident[r] = (double)tw_resident_set_bytes();
    }
    if (status == TW_OK) {
        const size_t warm = WARM_UP(n);
        tw_table_begin_row(table);
        tw_configuration_put(table, c);
        tw_table_put_uint(table, n);
        tw_table_put_uint(table, (uint64_t)reserved[n - 1]);
        tw_table_put_double(table, slope_of(reserved + warm, n - warm));
        tw_table_put_double(table, reserved[n - 1] - reserved[warm]);
        tw_table_put_uint(table, (uint64_t)resident[n - 1]);
        tw_table_put_double(table, slope_of(resident + warm, n - warm));
        tw_table_put_double(table, resident[n - 1] - resident[warm]);
    }
    tw_engine_free(engine);
    free(tokens);
    free(reserved);
    free(resident);
    return status;
}

static tw_status run_workload(struct prefilling *p, const struct tw_configurations *list, struct tw_error *err) {
    static const struct tw_layout_column layout[] = {
        {.title = "Memory after the last request, and its growth since the warm-up",
         .name = "requests",
         .heading = "requests"},
        {.name = "reserved_bytes", .heading = "reserved", .shown = TW_SHOWN_BYTES},
        {.name = "reserved_slope", .heading = "a request", .shown = TW_SHOWN_CHANGE},
        {.name = "reserved_change", .heading = "in all", .shown = TW_SHOWN_CHANGE},
        {.name = "resident_bytes", .heading = "process", .shown = TW_SHOWN_BYTES},
        {.name = "resident_slope", .heading = "a request", .shown = TW_SHOWN_CHANGE},
        {.name = "resident_change", .heading = "in all", .shown = TW_SHOWN_CHANGE},
        {0},
    };
    const struct tw_layout_column *const parts[] = {layout};
    struct tw_table table;
    tw_status status = TW_OK;
    tw_table_init(&table, tw_configuration_columns, TW_CONFIGURATION_N_COLUMNS);
    for (size_t i = 0; layout[i].name; i++) tw_table_add_column(&table, layout[i].name);
    for (size_t i = 0; status == TW_OK && i < list->n; i++) status = run_requests(p, &list->at[i], &table, err);
    if (status == TW_OK)
        status = tw_write_configurations(p->invocation, &p->options->table, &table, parts, 1, p->model,
                                         p->options->machine.backend, err);
    tw_table_release(&table);
    return status;
}

static tw_status run(struct tw_invocation *invocation, struct tw_error *err) {
    const struct prefill_options *options = invocation->options;
    const bool has_input = options->input.prompt || options->input.text || options->input.tokens;
    struct prefilling p = {.progress = {show_progress}, .invocation = invocation, .options = options};
    struct tw_configurations list = {0};
    struct tw_span_settings span = options->span;
    uint64_t whole = 2048;
    tw_status status;
    if (has_input && options->runs > 1)
        return TW_FAIL(err, TW_E_OPTION, "--runs makes prompts of its own: not with --prompt, --text or --tokens");
    if (options->layers && strcmp(options->reference, "none") == 0)
        return TW_FAIL(err, TW_E_OPTION, "--layers needs --reference oneshot");
    tw_table_init(&p.timeline, tw_configuration_columns, TW_CONFIGURATION_N_COLUMNS);
    for (size_t i = 0; i < sizeof event_columns / sizeof *event_columns; i++)
        tw_table_add_column(&p.timeline, event_columns[i]);
    TW_TRY_GOTO(status, done, tw_open_model(&p.model, &p.tokenizer, invocation->operands[0], err));
    if (has_input) TW_TRY_GOTO(status, done, tw_read_input(&p.input, p.tokenizer, &options->input, false, err));
    if (has_input) whole = p.input.n;
    if (span.contexts.n == 0) span.contexts = (struct tw_u64_list){.values = &whole, .n = 1};
    TW_TRY_GOTO(status, done, tw_configurations_span(&list, &span, options->machine.backend, p.model, err));
    status = options->requests ? run_workload(&p, &list, err) : run_comparison(&p, &list, err);
done:
    tw_table_release(&p.timeline);
    tw_configurations_release(&list);
    tw_encoded_release(&p.input);
    tw_tokenizer_free(p.tokenizer);
    tw_model_free(p.model);
    return status;
}

const struct tw_command tw_command_prefill = {
    .name = "prefill",
    .summary = "compares schedules on the same prompts: time, memory and fidelity",
    .usage = "MODEL [--schedule LIST] [--context LIST] [--budget LIST] [options]",
    .description =
        "Every combination of the lists is run on the same prompts: time to first token, share of layer ends,\n"
        "decoding from the compact cache, memory by category, and with --reference how far hidden states and\n"
        "next tokens are from that schedule's.",
    .example =
        "tidewake prefill MODEL.gguf --schedule oneshot,tide,postprefill --context 8K --budget 1024\n"
        "tidewake prefill MODEL.gguf --schedule tide --chunk 512,1K,2K --context 8K -o chunks.csv\n"
        "tidewake prefill MODEL.gguf --schedule tide,block --budget 1K --context 4K --reference oneshot --runs 5",
    .groups = groups,
    .options_size = sizeof(struct prefill_options),
    .min_operands = 1,
    .max_operands = 1,
    .run = run,
};
