#include "engine/tracer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/checked.h"
#include "base/half.h"
#include "engine/backend/image.h"
#include "engine/prefill/compress.h"
#include "engine/ties.h"

/* Keys are read and converted so many positions at a time. */
#define KEY_POSITIONS 256

struct tw_tracer {
    struct tw_engine *engine;
    struct tw_team *team; /* the backend's; NULL: none */
    struct tw_tracer_options options;
    struct tw_trace_writer *writer;
    struct tw_watch watch;
    const struct tw_encoded *prompt;
    size_t kept_width;
    size_t n_steps;
    struct tw_attention_log *log; /* [n_layers], into the arrays below */
    int32_t *position;            /* [n_layers][n_heads][top_k] */
    float *weight;                /* [n_layers][n_heads][top_k] */
    uint16_t *half;               /* [n_threads][top_k] */
    uint8_t *disorder;            /* [n_threads][top_k] */
    float *needle_mass, *rest_mass, *needle;
    int32_t *argmax;
    uint8_t *copy_paste; /* these [n_layers][n_heads] */
    float *vote;         /* [n_kv_heads][prompt_length] */
    int32_t *kept;       /* [n_kv_heads][kept_width] */
    float *key_row;      /* [KEY_POSITIONS][head_dim] */
    uint16_t *key;       /* [KEY_POSITIONS][n_kv_heads][head_dim] */
};

/* ---- step rows ---- */

struct finishing {
    struct tw_tracer *tracer;
    int32_t token;
};

/* Rows of heads, counted over all layers. */
static void finish_rows(void *context, size_t first, size_t end, size_t thread) {
    const struct finishing *f = context;
    struct tw_tracer *t = f->tracer;
    const size_t top_k = t->options.top_k;
    for (size_t i = first; i < end; i++) {
        if (!t->options.weight_float)
            tw_order_stored_ties(t->position + i * top_k, t->weight + i * top_k, t->half + thread * top_k,
                                 t->disorder + thread * top_k, top_k);
        if (t->options.needle) t->needle[i] = t->needle_mass[i] / (t->rest_mass[i] > 1e-6f ? t->rest_mass[i] : 1e-6f);
        if (t->options.copy_paste) {
            const int32_t at = t->argmax[i];
            const bool inside = at >= 0 && (size_t)at >= t->prompt->needle_begin && (size_t)at < t->prompt->needle_end;
            t->copy_paste[i] = inside && t->prompt->ids[at] == f->token;
        }
    }
}

/* ---- keys, votes and kept positions ---- */

/* The last n_rows rows of every head. */
static tw_status put_keys(struct tw_tracer *t, size_t l, const struct tw_kv *kv, size_t n_rows, struct tw_error *err) {
    const struct tw_model_config *config = &t->engine->model->config;
    const size_t d = config->head_dim, n_kv_heads = config->n_kv_heads;
    for (size_t done = 0; done < n_rows; done += KEY_POSITIONS) {
        const size_t n = tw_min_size(KEY_POSITIONS, n_rows - done);
        for (size_t g = 0; g < n_kv_heads; g++) {
            const size_t first = kv->length[g] - (n_rows - done);
            TW_TRY(t->engine->ops->read_kv(t->engine->backend, kv, false, g, first, n, t->key_row, err));
            for (size_t i = 0; i < n; i++)
                tw_half_from_floats(t->key + (i * n_kv_heads + g) * d, t->key_row + i * d, d);
        }
        TW_TRY(tw_trace_writer_put_key(t->writer, l, t->key, n, err));
    }
    return TW_OK;
}

struct vote_sink {
    float *vote;
    size_t n_kv_heads, prompt_length, n_scored;
};

static tw_status take_votes(void *context, size_t first, size_t n, const float *score, struct tw_error *err) {
    (void)err;
    const struct vote_sink *sink = context;
    for (size_t g = 0; g < sink->n_kv_heads; g++)
        memcpy(sink->vote + g * sink->prompt_length + first, score + g * n, n * sizeof *score);
    return TW_OK;
}

/* Pooled votes of the window for every position before it; 1, more than any vote, for the window, which is always
 * kept. */
static tw_status put_votes(struct tw_tracer *t, size_t l, const struct tw_kv *kv, struct tw_observation *observation,
                           struct tw_error *err) {
    struct tw_engine *e = t->engine;
    const size_t n_kv_heads = e->model->config.n_kv_heads, prompt_length = t->prompt->n;
    const size_t n = prompt_length - observation->n_queries;
    const struct tw_selection_context context = tw_engine_selection(e, prompt_length);
    struct tw_pooling pooling = {.kernel = 5};
    if (e->selector.selector->needs_observation)
        TW_TRY(tw_pooling_of(&pooling, e->selector.options, e->selector.selector->name, err));
    size_t *n_scored = malloc(n_kv_heads * sizeof *n_scored);
    if (!n_scored) return TW_FAIL(err, TW_E_MEMORY, "out of memory: votes of a layer");
    for (size_t g = 0; g < n_kv_heads; g++) {
        n_scored[g] = n;
        for (size_t i = n; i < prompt_length; i++) t->vote[g * prompt_length + i] = 1;
    }
    struct vote_sink sink = {t->vote, n_kv_heads, prompt_length, n};
    tw_status status = tw_compress_scores(&context, l, kv, observation, TW_SCORE_ATTENTION, NULL, pooling, n_scored,
                                          take_votes, &sink, err);
    free(n_scored);
    if (status == TW_OK) status = tw_trace_writer_put_window_vote(t->writer, l, t->vote, err);
    return status;
}

static tw_status put_kept(struct tw_tracer *t, size_t l, const struct tw_kv *kv, const struct tw_kept *kept,
                          struct tw_error *err) {
    for (size_t g = 0; g < kv->n_kv_heads; g++) {
        const size_t n = kept ? kept->n_rows[g] : kv->length[g];
        assert(n <= t->kept_width);
        for (size_t r = 0; r < t->kept_width; r++)
            t->kept[g * t->kept_width + r] =
                r < n ? (int32_t)tw_kv_position(kv, g, kept ? (size_t)kept->row[g][r] : r) : -1;
    }
    return tw_trace_writer_put_kept(t->writer, l, t->kept, err);
}

static tw_status layer_end(void *context, size_t l, const struct tw_kv *kv, struct tw_observation *observation,
                           const struct tw_kept *kept, struct tw_error *err) {
    struct tw_tracer *t = context;
    TW_TRY(t->engine->ops->log_row(t->engine->backend, l, kv, observation, &t->log[l], err));
    if (t->options.key) TW_TRY(put_keys(t, l, kv, t->prompt->n, err));
    if (t->options.window_vote) TW_TRY(put_votes(t, l, kv, observation, err));
    if (t->options.kept) TW_TRY(put_kept(t, l, kv, kept, err));
    return TW_OK;
}

/* ---- opening ---- */

static tw_status check(const struct tw_tracer *t, struct tw_error *err) {
    const struct tw_schedule *schedule = t->engine->schedule.schedule;
    const bool has_needle = t->prompt->needle_end > t->prompt->needle_begin;
    if ((t->options.needle || t->options.copy_paste) && !has_needle)
        return TW_FAIL(err, TW_E_OPTION, "--log needle and --log copy need a task with a needle");
    if (t->options.window_vote && !schedule->layer_major)
        return TW_FAIL(err, TW_E_OPTION,
                       "--log vote: schedule '%s' never sees the last queries of a layer together; use a layer-major "
                       "one such as tide",
                       schedule->name);
    if (t->options.key && schedule->evicts && !schedule->layer_major)
        return TW_FAIL(err, TW_E_OPTION,
                       "--log keys: schedule '%s' drops keys before the prompt's end; use a layer-major one such as "
                       "tide",
                       schedule->name);
    if (t->options.kept && t->engine->options.budget == 0)
        return TW_FAIL(err, TW_E_OPTION, "--log kept needs --budget N: with a full budget everything is kept");
    return TW_OK;
}

static tw_status widest_kept(struct tw_tracer *t, struct tw_error *err) {
    const struct tw_selection_context context = tw_engine_selection(t->engine, t->prompt->n);
    for (size_t l = 0; l < t->engine->model->config.n_layers; l++) {
        size_t budget;
        TW_TRY(tw_selector_head_budget(&budget, t->engine->selector.selector, &context, t->engine->selector.options, l,
                                       err));
        t->kept_width = tw_max_size(t->kept_width, budget);
    }
    return TW_OK;
}

static bool allocate(struct tw_tracer *t) {
    const struct tw_model_config *config = &t->engine->model->config;
    const size_t heads = config->n_layers * config->n_heads, top_k = t->options.top_k;
    const size_t n_kv_heads = config->n_kv_heads, d = config->head_dim;
    t->log = calloc(config->n_layers, sizeof *t->log);
    t->position = calloc(heads * top_k, sizeof *t->position);
    t->weight = calloc(heads * top_k, sizeof *t->weight);
    const size_t n_threads = tw_team_threads(t->team);
    t->half = calloc(n_threads * top_k, sizeof *t->half);
    t->disorder = calloc(n_threads * top_k, sizeof *t->disorder);
    t->needle_mass = calloc(heads, sizeof *t->needle_mass);
    t->rest_mass = calloc(heads, sizeof *t->rest_mass);
    t->needle = calloc(heads, sizeof *t->needle);
    t->argmax = calloc(heads, sizeof *t->argmax);
    t->copy_paste = calloc(heads, sizeof *t->copy_paste);
    bool there = t->log && t->position && t->weight && t->half && t->disorder && t->needle_mass && t->rest_mass &&
                 t->needle && t->argmax && t->copy_paste;
    if (t->options.window_vote) there = (t->vote = calloc(n_kv_heads * t->prompt->n, sizeof *t->vote)) && there;
    if (t->options.kept) there = (t->kept = calloc(n_kv_heads * t->kept_width + 1, sizeof *t->kept)) && there;
    if (t->options.key) {
        t->key_row = calloc(KEY_POSITIONS * d, sizeof *t->key_row);
        t->key = calloc(KEY_POSITIONS * n_kv_heads * d, sizeof *t->key);
        there = t->key_row && t->key && there;
    }
    for (size_t l = 0; there && l < config->n_layers; l++)
        t->log[l] = (struct tw_attention_log){
            .top_k = top_k,
            .position = t->position + l * config->n_heads * top_k,
            .weight = t->weight + l * config->n_heads * top_k,
            .needle_begin = t->prompt->needle_begin,
            .needle_end = t->prompt->needle_end,
            .sink_tokens = TW_SINK_TOKENS,
            .local_window = TW_LOCAL_WINDOW,
            .needle_mass = t->needle_mass + l * config->n_heads,
            .rest_mass = t->rest_mass + l * config->n_heads,
            .argmax = t->argmax + l * config->n_heads,
        };
    return there;
}

static tw_status check_disk(const char *path, uint64_t bytes, struct tw_error *err) {
    char *folder = strdup(path);
    if (!folder) return TW_FAIL(err, TW_E_MEMORY, "out of memory: trace '%s'", path);
    char *slash = strrchr(folder, '/');
    if (slash && slash != folder)
        *slash = 0;
    else
        strcpy(folder, slash ? "/" : ".");
    struct statvfs disk;
    const bool known = statvfs(folder, &disk) == 0;
    free(folder);
    const uint64_t available = known ? (uint64_t)disk.f_bavail * disk.f_frsize : UINT64_MAX;
    if (bytes <= available) return TW_OK;
    return TW_FAIL(err, TW_E_IO,
                   "trace '%s' may take %.1f MiB, and its disk has %.1f MiB left; log fewer steps or less", path,
                   (double)bytes / 0x1p20, (double)available / 0x1p20);
}

static tw_status fill_info(struct tw_trace_info *info, const struct tw_tracer *t, struct tw_error *err) {
    const struct tw_engine *e = t->engine;
    const struct tw_model_config *config = &e->model->config;
    struct tw_text schedule = {0}, selector = {0};
    tw_schedule_choice_describe(&schedule, &e->schedule);
    tw_selector_choice_describe(&selector, &e->selector);
    tw_status status;
    TW_TRY_GOTO(status, done, tw_trace_info_set(&info->architecture, config->architecture, err));
    TW_TRY_GOTO(status, done, tw_trace_info_set(&info->schedule, tw_text_string(&schedule), err));
    TW_TRY_GOTO(status, done, tw_trace_info_set(&info->selector, tw_text_string(&selector), err));
    TW_TRY_GOTO(status, done, tw_trace_info_set(&info->backend, e->ops->name, err));
    TW_TRY_GOTO(status, done,
                tw_trace_info_set(&info->dtype, e->ops->dtype(e->backend) == TW_DTYPE_BF16 ? "bf16" : "f32", err));
    info->n_layers = config->n_layers;
    info->n_heads = config->n_heads;
    info->n_kv_heads = config->n_kv_heads;
    info->head_dim = config->head_dim;
    info->top_k = t->options.top_k;
    info->prompt_length = t->prompt->n;
    info->budget = e->options.budget;
    info->chunk = e->options.chunk;
    info->threads = e->options.backend_options.n_threads ? e->options.backend_options.n_threads : tw_host_threads();
    info->has_needle = t->prompt->needle_end > t->prompt->needle_begin;
    info->needle_begin = t->prompt->needle_begin;
    info->needle_end = t->prompt->needle_end;
    info->has_windows = info->has_needle;
    info->sink_tokens = TW_SINK_TOKENS;
    info->local_window = TW_LOCAL_WINDOW;
done:
    tw_text_release(&schedule);
    tw_text_release(&selector);
    return status;
}

tw_status tw_tracer_create(struct tw_tracer **tracer, struct tw_engine *engine, const struct tw_encoded *prompt,
                           const struct tw_trace_info *info, const struct tw_tracer_options *options, size_t n_steps,
                           struct tw_error *err) {
    struct tw_trace_info full = {0};
    tw_status status;
    *tracer = NULL;
    struct tw_tracer *t = calloc(1, sizeof *t);
    if (!t) return TW_FAIL(err, TW_E_MEMORY, "out of memory: tracer");
    t->engine = engine;
    if (engine->ops->team) t->team = engine->ops->team(engine->backend);
    t->options = *options;
    t->prompt = prompt;
    t->watch = (struct tw_watch){.context = t, .layer_end = layer_end};
    TW_TRY_GOTO(status, fail, check(t, err));
    if (options->kept) TW_TRY_GOTO(status, fail, widest_kept(t, err));
    if (!allocate(t)) {
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory: rows of a trace");
        goto fail;
    }
    TW_TRY_GOTO(status, fail, tw_trace_info_copy(&full, info, err));
    TW_TRY_GOTO(status, fail, fill_info(&full, t, err));
    const struct tw_trace_writer_options writer_options = {
        .force = options->force,
        .weight_float = options->weight_float,
        .needle = options->needle,
        .copy_paste = options->copy_paste,
        .window_vote = options->window_vote,
        .key = options->key,
        .kept_width = t->kept_width,
        .team = t->team,
    };
    TW_TRY_GOTO(status, fail, check_disk(options->path, tw_trace_estimate_bytes(&full, &writer_options, n_steps), err));
    TW_TRY_GOTO(status, fail,
                tw_trace_writer_create(&t->writer, options->path, &full, prompt->ids, &writer_options, err));
    tw_trace_info_release(&full);
    *tracer = t;
    return TW_OK;
fail:
    tw_trace_info_release(&full);
    tw_tracer_free(t);
    return status;
}

const struct tw_watch *tw_tracer_watch(const struct tw_tracer *tracer) { return &tracer->watch; }
struct tw_attention_log *tw_tracer_log(struct tw_tracer *tracer) {
    return tracer->log;
}

tw_status tw_tracer_step(struct tw_tracer *tracer, int32_t token, struct tw_error *err) {
    struct tw_tracer *t = tracer;
    const size_t n_rows = t->engine->model->config.n_layers * t->engine->model->config.n_heads;
    struct finishing finishing = {t, token};
    tw_team_run(t->team, n_rows, SIZE_MAX, finish_rows, &finishing);
    for (size_t l = 0; t->options.key && t->n_steps > 0 && l < t->engine->model->config.n_layers; l++)
        TW_TRY(put_keys(t, l, &t->engine->cache[l], 1, err));
    const struct tw_trace_step step = {
        .position = t->position,
        .weight = t->weight,
        .context_length = (int32_t)(t->prompt->n + t->n_steps),
        .token_id = token,
        .needle = t->options.needle ? t->needle : NULL,
        .copy_paste = t->options.copy_paste ? t->copy_paste : NULL,
    };
    TW_TRY(tw_trace_writer_append(t->writer, &step, err));
    t->n_steps++;
    return TW_OK;
}

tw_status tw_tracer_finish(struct tw_tracer *tracer, bool complete, struct tw_view generated_text,
                           struct tw_error *err) {
    TW_TRY(tw_trace_writer_set_text(tracer->writer, "generated_text", generated_text, err));
    TW_TRY(tw_trace_writer_finish(tracer->writer, complete, err));
    return TW_OK;
}

uint64_t tw_tracer_bytes(const struct tw_tracer *tracer) { return tw_trace_writer_bytes(tracer->writer); }

void tw_tracer_free(struct tw_tracer *tracer) {
    if (!tracer) return;
    tw_trace_writer_free(tracer->writer);
    free(tracer->log);
    free(tracer->position);
    free(tracer->weight);
    free(tracer->half);
    free(tracer->disorder);
    free(tracer->needle_mass);
    free(tracer->rest_mass);
    free(tracer->needle);
    free(tracer->argmax);
    free(tracer->copy_paste);
    free(tracer->vote);
    free(tracer->kept);
    free(tracer->key_row);
    free(tracer->key);
    free(tracer);
}
