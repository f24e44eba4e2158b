#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/clock.h"
#include "engine/backend/image.h"
#include "engine/backend/load.h"

/* Rows that a cache gains when decoding goes on beyond what was reserved. */
#define GROWTH_ROWS 256

void tw_engine_options_init(struct tw_engine_options *options) {
    *options = (struct tw_engine_options){
        .backend = "ref",
        .backend_options = {.window = 32},
        .schedule = "tide",
        .selector = "snapkv",
        .chunk = 2048,
        .block = 1024,
    };
}

static tw_status find_backend(const struct tw_backend_ops **ops, const char *name, struct tw_error *err) {
    return strcmp(name, "cuda") == 0 ? tw_backend_load(ops, name, err) : tw_backend_find(ops, name, err);
}

static tw_status check_options(const struct tw_engine *engine, struct tw_error *err) {
    const struct tw_engine_options *o = &engine->options;
    if (o->budget && !engine->schedule.schedule->evicts)
        return TW_FAIL(err, TW_E_OPTION, "schedule '%s' evicts nothing: --budget %zu needs tide, postprefill or block",
                       engine->schedule.schedule->name, o->budget);
    return TW_OK;
}

tw_status tw_engine_open(struct tw_engine **engine, const struct tw_model *model,
                         const struct tw_engine_options *options, struct tw_error *err) {
    *engine = NULL;
    struct tw_engine *e = calloc(1, sizeof *e);
    if (!e) return TW_FAIL(err, TW_E_MEMORY, "out of memory: engine");
    tw_status status;
    e->model = model;
    e->options = *options;
    tw_accountant_init(&e->accountant, tw_memory_host, options->memory_limit);
    e->accountant.record = options->record;
    e->cache = calloc(model->config.n_layers, sizeof *e->cache);
    if (!e->cache) {
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory: engine");
        goto fail;
    }
    TW_TRY_GOTO(status, fail, tw_schedule_choose(&e->schedule, options->schedule, err));
    TW_TRY_GOTO(status, fail, tw_selector_choose(&e->selector, options->selector, err));
    TW_TRY_GOTO(status, fail, check_options(e, err));
    TW_TRY_GOTO(status, fail, find_backend(&e->ops, options->backend, err));
    if (options->image)
        TW_TRY_GOTO(status, fail, tw_image_find(&e->options.backend_options.image, options->image, err));
    const struct tw_schedule *schedule = e->schedule.schedule;
    e->options.backend_options.whole_rows = schedule->whole_rows && schedule->whole_rows(e->schedule.options);
    TW_TRY_GOTO(status, fail, e->ops->open(&e->backend, model, &e->options.backend_options, &e->accountant, err));
    TW_TRY_GOTO(status, fail,
                tw_buffer_allocate_host(&e->logits, &e->accountant, model->config.n_vocab * sizeof(float),
                                        TW_CATEGORY_LOGITS, "logits of one position", err));
    *engine = e;
    return TW_OK;
fail:
    tw_engine_free(e);
    return status;
}

void tw_engine_reset(struct tw_engine *engine) {
    for (size_t l = 0; engine->backend && l < engine->model->config.n_layers; l++)
        if (engine->cache[l].capacity) engine->ops->kv_release(engine->backend, &engine->cache[l]);
    engine->prompt_length = engine->position = 0;
    engine->times = (struct tw_engine_times){0};
}

void tw_engine_free(struct tw_engine *engine) {
    if (!engine) return;
    if (engine->cache) tw_engine_reset(engine);
    tw_buffer_release(&engine->logits, &engine->accountant);
    if (engine->backend) engine->ops->close(engine->backend);
    tw_accountant_release(&engine->accountant);
    tw_schedule_choice_release(&engine->schedule);
    tw_selector_choice_release(&engine->selector);
    free(engine->cache);
    free(engine);
}

struct tw_selection_context tw_engine_selection(const struct tw_engine *engine, size_t prompt_length) {
    const struct tw_model_config *config = &engine->model->config;
    const struct tw_backend_image *image = engine->options.backend_options.image; /* whose likeness `dry` has */
    return (struct tw_selection_context){
        .ops = engine->ops,
        .backend = engine->backend,
        .accountant = (struct tw_accountant *)&engine->accountant,
        .n_layers = config->n_layers,
        .n_heads = config->n_heads,
        .n_kv_heads = config->n_kv_heads,
        .head_dim = config->head_dim,
        .window = engine->options.backend_options.window,
        .budget = engine->options.budget,
        .block = engine->options.block,
        .chunk = engine->options.chunk,
        .prompt_length = prompt_length,
        .seed = engine->options.seed,
        .ranks = (image ? image : engine->ops->image)->ranks,
    };
}

tw_status tw_engine_check(const struct tw_engine *engine, size_t prompt_length, size_t n_decode, struct tw_error *err) {
    const struct tw_model_config *config = &engine->model->config;
    if (prompt_length == 0) return TW_FAIL(err, TW_E_INPUT, "the prompt is empty: it has no tokens");
    if (prompt_length > config->context_length)
        return TW_FAIL(err, TW_E_INPUT, "the prompt has %zu tokens, but the context of model '%s' is %zu",
                       prompt_length, engine->model->path, config->context_length);
    if (n_decode > config->context_length - prompt_length + 1)
        return TW_FAIL(err, TW_E_INPUT,
                       "the prompt's %zu tokens and %zu new ones are more than the context of model '%s', %zu",
                       prompt_length, n_decode, engine->model->path, config->context_length);
    if (engine->options.budget == 0) return TW_OK;
    const struct tw_selection_context context = tw_engine_selection(engine, prompt_length);
    for (size_t l = 0; l < config->n_layers; l++) {
        size_t budget;
        TW_TRY(engine->selector.selector->layer_budget(&budget, &context, engine->selector.options, l, err));
    }
    return TW_OK;
}

static tw_status check_tokens(const struct tw_engine *engine, const int32_t *tokens, size_t n, struct tw_error *err) {
    const size_t n_vocab = engine->model->config.n_vocab;
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (size_t)tokens[i] >= n_vocab)
            return TW_FAIL(err, TW_E_INPUT,
                           "token %d, the %zu. of the prompt, is not in the embedding of model '%s', "
                           "which has %zu rows",
                           (int)tokens[i], i + 1, engine->model->path, n_vocab);
    return TW_OK;
}

static void measure_cache(struct tw_engine *engine) {
    engine->cache_bytes = engine->retained_rows = 0;
    for (size_t l = 0; l < engine->model->config.n_layers; l++) {
        engine->cache_bytes += engine->cache[l].key.bytes + engine->cache[l].value.bytes;
        engine->retained_rows += tw_kv_rows(&engine->cache[l]);
    }
    engine->steady_bytes = engine->accountant.total;
}

tw_status tw_engine_prefill(struct tw_engine *engine, const int32_t *tokens, size_t n_tokens, size_t reserve,
                            const struct tw_watch *watch, struct tw_progress *progress, struct tw_error *err) {
    tw_engine_reset(engine);
    TW_TRY(tw_engine_check(engine, n_tokens, 0, err));
    TW_TRY(check_tokens(engine, tokens, n_tokens, err));
    const double began = tw_clock_seconds();
    tw_accountant_phase(&engine->accountant, TW_PHASE_PREFILL);
    struct tw_prefill prefill = {
        .ops = engine->ops,
        .backend = engine->backend,
        .accountant = &engine->accountant,
        .model = engine->model,
        .selector = &engine->selector,
        .selection = tw_engine_selection(engine, n_tokens),
        .tokens = tokens,
        .n_tokens = n_tokens,
        .chunk = engine->options.chunk,
        .reserve = reserve,
        .watch = watch,
        .progress = progress,
        .cache = engine->cache,
    };
    tw_status status = engine->schedule.schedule->run(&prefill, engine->schedule.options, err);
    if (status == TW_OK) {
        tw_accountant_phase(&engine->accountant, TW_PHASE_PREFILL);
        status = engine->ops->logits(engine->backend, &prefill.last, 0, 1, engine->logits.data, err);
    }
    engine->ops->bridge_release(engine->backend, &prefill.last);
    if (status != TW_OK) {
        tw_engine_reset(engine);
        return status;
    }
    engine->prompt_length = engine->position = n_tokens;
    engine->times.prefill_seconds = tw_clock_seconds() - began;
    engine->times.layer_end_seconds = prefill.layer_end_seconds;
    measure_cache(engine);
    return TW_OK;
}

/* One layer's cache in a larger place. */
static tw_status grow(struct tw_engine *engine, struct tw_kv *cache, size_t n, struct tw_error *err) {
    const size_t n_kv_heads = cache->n_kv_heads;
    struct tw_kv larger = {0};
    struct tw_kept all = {0};
    size_t *capacity = malloc(n_kv_heads * sizeof *capacity);
    if (!capacity) return TW_FAIL(err, TW_E_MEMORY, "out of memory: capacities of a cache");
    for (size_t g = 0; g < n_kv_heads; g++) capacity[g] = cache->length[g] + n;
    tw_status status;
    TW_TRY_GOTO(status, done,
                engine->ops->kv_create(engine->backend, &larger, capacity, cache->position != NULL, cache->key.category,
                                       "larger cache of a layer", err));
    TW_TRY_GOTO(status, done, tw_kept_all(&all, &engine->accountant, cache, err));
    TW_TRY_GOTO(status, done,
                engine->ops->gather(engine->backend, &larger, cache, (const int32_t *const *)all.row, all.n_rows, err));
    engine->ops->kv_release(engine->backend, cache);
    *cache = larger;
    larger = (struct tw_kv){0};
done:
    tw_kept_release(&all, &engine->accountant);
    if (larger.capacity) engine->ops->kv_release(engine->backend, &larger);
    free(capacity);
    return status;
}

static size_t room(const struct tw_kv *cache) {
    size_t least = SIZE_MAX;
    for (size_t g = 0; g < cache->n_kv_heads; g++) least = tw_min_size(least, cache->capacity[g] - cache->length[g]);
    return least;
}

tw_status tw_engine_reserve(struct tw_engine *engine, size_t n, struct tw_error *err) {
    tw_accountant_phase(&engine->accountant, TW_PHASE_DECODE);
    for (size_t l = 0; l < engine->model->config.n_layers; l++)
        if (room(&engine->cache[l]) < n) TW_TRY(grow(engine, &engine->cache[l], n, err));
    return TW_OK;
}

tw_status tw_engine_decode(struct tw_engine *engine, int32_t token, struct tw_attention_log *log,
                           struct tw_error *err) {
    if (engine->position >= engine->model->config.context_length)
        return TW_FAIL(err, TW_E_INPUT, "position %zu is beyond the context of model '%s', %zu", engine->position,
                       engine->model->path, engine->model->config.context_length);
    TW_TRY(check_tokens(engine, &token, 1, err));
    const double began = tw_clock_seconds();
    if (room(&engine->cache[0]) == 0) TW_TRY(tw_engine_reserve(engine, GROWTH_ROWS, err));
    tw_accountant_phase(&engine->accountant, TW_PHASE_DECODE);
    TW_TRY(engine->ops->decode_begin(engine->backend, token, err));
    for (size_t l = 0; l < engine->model->config.n_layers; l++)
        TW_TRY(engine->ops->decode_layer(engine->backend, l, &engine->cache[l], engine->position, log ? &log[l] : NULL,
                                         err));
    TW_TRY(engine->ops->decode_logits(engine->backend, engine->logits.data, err));
    engine->position++;
    engine->times.decode_seconds += tw_clock_seconds() - began;
    engine->times.n_decoded++;
    return TW_OK;
}
