#include "sim/replay.h"

#include <assert.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/parse.h"
#include "base/stop.h"
#include "sim/account.h"
#include "sim/ranks.h"
#include "sim/serve.h"

/* Traces that are open at the same time, at most. */
#define TW_REPLAY_WINDOW 32

bool tw_replay_range_parse(struct tw_replay_range *range, struct tw_view text) {
    uint64_t first, last;
    const char *dots = text.size ? memmem(text.data, text.size, "..", 2) : NULL;
    if (!dots) {
        if (!tw_parse_u64(&first, text)) return false;
        last = first;
    } else {
        const size_t n = (size_t)(dots - text.data);
        if (!tw_parse_u64(&first, (struct tw_view){text.data, n}) ||
            !tw_parse_u64(&last, (struct tw_view){dots + 2, text.size - n - 2}))
            return false;
    }
    if (first > last || last > UINT32_MAX) return false;
    *range = (struct tw_replay_range){true, (size_t)first, (size_t)last};
    return true;
}

bool tw_replay_units_parse(enum tw_unit units[2], size_t *n, struct tw_view text) {
    struct tw_view piece, rest = text;
    *n = 0;
    while (tw_parse_next(&piece, &rest, ',')) {
        enum tw_unit unit = TW_UNIT_QUERY;
        while (unit <= TW_UNIT_KV && !tw_view_equal(piece, tw_view_of(tw_unit_name(unit)))) unit++;
        if (unit > TW_UNIT_KV) return false;
        bool again = false;
        for (size_t i = 0; i < *n; i++) again = again || units[i] == unit;
        if (!again) units[(*n)++] = unit;
    }
    return *n > 0;
}

void tw_replay_report_release(struct tw_replay_report *report) {
    free(report->first_limited);
    *report = (struct tw_replay_report){0};
}

/* One policy over one stream of one trace. */
struct run {
    size_t stream;
    const struct tw_policy_choice *choice;
    const struct tw_budgets *budgets;
    struct tw_account account;
};

/* A trace that is being replayed. */
struct job {
    struct tw_trace *trace;
    size_t first_layer, n_layers;
    size_t first_step, n_steps;
    struct run *runs;    /* [n_streams][n_policies] */
    uint64_t **accesses; /* [n_streams] of each group: 1, layers, units or steps */
};

/* The whole of a call. */
struct replay {
    const struct tw_replay_options *options;
    size_t n_streams, n_threads;
    struct tw_budgets budgets, one; /* `one`: for policies without a budget */
    bool timed, scores;             /* a model of time; some policy reads scores */
    struct job *jobs;               /* [n_jobs] the traces of the window */
    size_t n_jobs;
    struct worker *workers; /* [n_threads] */
    struct tw_progress *progress;
    size_t n_done, n_total; /* layers, of the traces seen so far */
    struct tw_table *table;
};

/* What a thread needs, reused from layer to layer. */
struct worker {
    struct tw_trace_raw *raw;
    struct tw_trace_scratch *scratch;
    struct tw_demand *demands;        /* [n_streams] */
    struct tw_demand_source *sources; /* [n_streams] */
    struct tw_tally tally;
};

static enum tw_unit stream_unit(const struct replay *replay, size_t stream) {
    return replay->options->units[stream % replay->options->n_units];
}

static uint64_t stream_page_size(const struct replay *replay, size_t stream) {
    return replay->options->page_sizes[stream / replay->options->n_units];
}

static size_t units_of(const struct replay *replay, const struct job *job, size_t stream) {
    const struct tw_trace_info *info = tw_trace_info(job->trace);
    return stream_unit(replay, stream) == TW_UNIT_KV ? info->n_kv_heads : info->n_heads;
}

static size_t groups_of(const struct replay *replay, const struct job *job, size_t stream) {
    switch (replay->options->by) {
    case TW_REPLAY_BY_RUN: return 1;
    case TW_REPLAY_BY_LAYER: return job->n_layers;
    case TW_REPLAY_BY_HEAD: return job->n_layers * units_of(replay, job, stream);
    case TW_REPLAY_BY_STEP: return job->n_steps;
    }
    return 1;
}

/* ---- opening ---- */

static tw_status cut(size_t *first, size_t *n, const struct tw_replay_range *range, size_t there, const char *what,
                     const char *path, struct tw_error *err) {
    *first = 0;
    *n = there;
    if (!range->given) return TW_OK;
    if (range->last >= there)
        return TW_FAIL(err, TW_E_OPTION, "trace '%s' has %s 0 to %lld, not %zu..%zu", path, what, (long long)there - 1,
                       range->first, range->last);
    *first = range->first;
    *n = range->last - range->first + 1;
    return TW_OK;
}

static tw_status page_bytes(double *bytes, const struct replay *replay, const struct job *job, size_t stream,
                            struct tw_error *err) {
    const struct tw_link *link = &replay->options->link;
    const struct tw_trace_info *info = tw_trace_info(job->trace);
    *bytes = (double)link->page_bytes;
    if (!replay->timed || link->page_bytes) return TW_OK;
    if (info->head_dim == 0)
        return TW_FAIL(err, TW_E_INPUT, "trace '%s' does not say its head_dim: give the size of a page (--page-bytes)",
                       tw_trace_path(job->trace));
    *bytes = (double)stream_page_size(replay, stream) * (double)info->head_dim * 2 * 2;
    return TW_OK;
}

static tw_status open_job(struct replay *replay, struct job *job, const char *path, struct tw_error *err) {
    const struct tw_replay_options *options = replay->options;
    TW_TRY(tw_trace_open(&job->trace, path, err));
    const struct tw_trace_info *info = tw_trace_info(job->trace);
    TW_TRY(cut(&job->first_layer, &job->n_layers, &options->layers, info->n_layers, "layers", path, err));
    TW_TRY(cut(&job->first_step, &job->n_steps, &options->steps, info->n_steps, "steps", path, err));
    /* Counts of a step are kept in 32 bits. */
    size_t wishes;
    if (!tw_mul_size(&wishes, info->n_layers, info->n_heads) || !tw_mul_size(&wishes, wishes, info->top_k) ||
        wishes > UINT32_MAX || job->n_steps >= UINT32_MAX)
        return TW_FAIL(
            err, TW_E_UNSUPPORTED,
            "trace '%s' has more positions a step (%zu layers, %zu heads, %zu positions) than can be replayed", path,
            info->n_layers, info->n_heads, info->top_k);
    const size_t n_policies = options->policies->n;
    job->runs = calloc(replay->n_streams * n_policies + 1, sizeof *job->runs);
    job->accesses = calloc(replay->n_streams + 1, sizeof *job->accesses);
    if (!job->runs || !job->accesses)
        return TW_FAIL(err, TW_E_MEMORY, "not enough memory for the results of '%s'", path);
    for (size_t s = 0; s < replay->n_streams; s++) {
        job->accesses[s] = calloc(groups_of(replay, job, s) + 1, sizeof **job->accesses);
        if (!job->accesses[s]) return TW_FAIL(err, TW_E_MEMORY, "not enough memory for the results of '%s'", path);
        struct tw_account_shape shape = {
            .n_layers = job->n_layers,
            .n_units = units_of(replay, job, s),
            .n_steps = job->n_steps,
            .by = options->by,
            .link = replay->timed ? &options->link : NULL,
        };
        TW_TRY(page_bytes(&shape.page_bytes, replay, job, s, err));
        for (size_t p = 0; p < n_policies; p++) {
            struct run *run = &job->runs[s * n_policies + p];
            run->stream = s;
            run->choice = &options->policies->choices[p];
            run->budgets = run->choice->policy->without_budget ? &replay->one : &replay->budgets;
            shape.n_budgets = run->budgets->n;
            TW_TRY(tw_account_init(&run->account, &shape, err));
        }
    }
    return TW_OK;
}

static void close_job(struct replay *replay, struct job *job) {
    for (size_t s = 0; s < replay->n_streams; s++) {
        for (size_t p = 0; job->runs && p < replay->options->policies->n; p++) {
            struct run *run = &job->runs[s * replay->options->policies->n + p];
            if (run->choice) tw_account_release(&run->account, run->choice->policy->free_kept);
        }
        if (job->accesses) free(job->accesses[s]);
    }
    free(job->runs);
    free(job->accesses);
    tw_trace_free(job->trace);
    *job = (struct job){0};
}

/* ---- one layer ---- */

static struct tw_sweep sweep_of(const struct run *run, const struct job *job, size_t layer,
                                const struct tw_demand *demand) {
    const struct tw_account_shape *shape = &run->account.shape;
    struct tw_sweep sweep = {
        .demand = demand,
        .budgets = run->budgets,
        .options = run->choice->options,
        .layer = layer,
        .n_layers = shape->n_layers,
        .n_units = shape->n_units,
        .n_steps = job->n_steps,
        .measure = run->account.measure,
        .keep = &run->account.kept[layer],
    };
    const uint64_t largest = run->budgets->n ? run->budgets->value[run->budgets->n - 1] : 0;
    if (demand) sweep.cap = largest < demand->n_pages ? (size_t)largest : demand->n_pages;
    return sweep;
}

/* The row of each step's, layer's or unit's accesses; layers are apart, steps are shared by all of them. */
static void count_accesses(const struct replay *replay, struct job *job, size_t stream, size_t layer,
                           const struct tw_demand *demand) {
    uint64_t *const accesses = job->accesses[stream];
    switch (replay->options->by) {
    case TW_REPLAY_BY_RUN:
#pragma omp atomic
        accesses[0] += demand->n_accesses;
        break;
    case TW_REPLAY_BY_LAYER: accesses[layer] += demand->n_accesses; break;
    case TW_REPLAY_BY_HEAD:
        for (size_t u = 0; u < demand->n_units; u++)
            for (size_t t = 0; t < demand->n_steps; t++)
                accesses[layer * demand->n_units + u] += tw_demand_row(demand, u, t).n;
        break;
    case TW_REPLAY_BY_STEP:
        for (size_t t = 0; t < demand->n_steps; t++) {
            uint64_t n = 0;
            for (size_t u = 0; u < demand->n_units; u++) n += tw_demand_row(demand, u, t).n;
#pragma omp atomic
            accesses[t] += n;
        }
        break;
    }
}

static tw_status replay_layer(struct replay *replay, struct worker *worker, struct job *job, size_t layer,
                              struct tw_error *err) {
    const size_t n_policies = replay->options->policies->n;
    for (size_t s = 0; s < replay->n_streams; s++)
        worker->sources[s] = (struct tw_demand_source){
            .page_size = stream_page_size(replay, s),
            .unit = stream_unit(replay, s),
            .scores = replay->scores,
            .first_step = job->first_step,
            .n_steps = job->n_steps,
        };
    TW_TRY(tw_demand_read_many(worker->demands, job->trace, worker->sources, replay->n_streams,
                               job->first_layer + layer, worker->raw, worker->scratch, err));
    for (size_t s = 0; s < replay->n_streams; s++) {
        const struct tw_demand *demand = &worker->demands[s];
        count_accesses(replay, job, s, layer, demand);
        for (size_t p = 0; p < n_policies; p++) {
            struct run *run = &job->runs[s * n_policies + p];
            const struct tw_policy *policy = run->choice->policy;
            const struct tw_sweep sweep = sweep_of(run, job, layer, demand);
            const struct tw_account_shape *shape = &run->account.shape;
            TW_TRY(tw_tally_begin(&worker->tally, tw_account_sections(shape), job->n_steps, shape->n_budgets,
                                  tw_account_wants_steps(shape), err));
            TW_TRY(policy->sweep ? policy->sweep(&worker->tally, &sweep, err)
                                 : tw_serve_sweep(&worker->tally, &sweep, policy, run->choice->label, err));
            if (policy->settle) continue; /* counts when all layers are known */
            TW_TRY(tw_account_add(&run->account, &worker->tally, layer, err));
        }
    }
    return TW_OK;
}

static tw_status init_worker(struct worker *worker, size_t n_streams, struct tw_error *err) {
    worker->raw = tw_trace_raw_new();
    worker->scratch = tw_trace_scratch_new();
    worker->demands = calloc(n_streams + 1, sizeof *worker->demands);
    worker->sources = calloc(n_streams + 1, sizeof *worker->sources);
    if (worker->raw && worker->scratch && worker->demands && worker->sources) return TW_OK;
    return TW_FAIL(err, TW_E_MEMORY, "not enough memory to replay");
}

static void release_worker(struct worker *worker, size_t n_streams) {
    for (size_t s = 0; worker->demands && s < n_streams; s++) tw_demand_release(&worker->demands[s]);
    free(worker->demands);
    free(worker->sources);
    tw_trace_raw_free(worker->raw);
    tw_trace_scratch_free(worker->scratch);
    tw_tally_release(&worker->tally);
}

/*
 * All layers of the window's traces that are this rank's. Of several failures the one of the first layer counts, so
 * that the message does not depend on the threads.
 */
static tw_status replay_window(struct replay *replay, struct tw_error *err) {
    size_t n_items = 0;
    for (size_t j = 0; j < replay->n_jobs; j++) n_items += replay->jobs[j].n_layers;
    replay->n_total += n_items;
    tw_status status = TW_OK;
    size_t failed = SIZE_MAX;
    const size_t n_ranks = tw_ranks_count(), own = tw_ranks_own();
#pragma omp parallel for schedule(dynamic, 1) num_threads((int)replay->n_threads)
    for (size_t item = 0; item < n_items; item++) {
        size_t before, done;
#pragma omp atomic read
        before = failed;
        if (item % n_ranks != own || item > before) continue;
        size_t j = 0, layer = item;
        while (layer >= replay->jobs[j].n_layers) layer -= replay->jobs[j++].n_layers;
        struct tw_error item_err = {0};
        const tw_status item_status =
            tw_stop_requested()
                ? TW_FAIL(&item_err, TW_E_INTERRUPTED, "replay was interrupted")
                : replay_layer(replay, &replay->workers[omp_get_thread_num()], &replay->jobs[j], layer, &item_err);
#pragma omp critical(tw_replay)
        {
            if (item_status != TW_OK && item < failed) {
                failed = item;
                status = item_status;
                if (err) *err = item_err;
            }
            done = ++replay->n_done;
            tw_progress_update(replay->progress, "replay", done, replay->n_total, "layers",
                               tw_trace_path(replay->jobs[j].trace));
        }
    }
    return status;
}

/* ---- rows ---- */

static const char *const columns[] = {"trace",         "model",         "task",        "run",
                                      "policy",        "unit",          "page_size",   "budget",
                                      "steps",         "units",         "accesses",    "misses",
                                      "miss_rate",     "fetches",       "stall_steps", "resident_page_steps",
                                      "mean_resident", "peak_resident", "prunes"};

static void init_table(const struct replay *replay, struct tw_table *table) {
    tw_table_init(table, columns, sizeof columns / sizeof *columns);
    const enum tw_replay_by by = replay->options->by;
    if (by == TW_REPLAY_BY_LAYER || by == TW_REPLAY_BY_HEAD) tw_table_add_column(table, "layer");
    if (by == TW_REPLAY_BY_HEAD) tw_table_add_column(table, "head");
    if (by == TW_REPLAY_BY_STEP) tw_table_add_column(table, "step");
    if (!replay->timed) return;
    tw_table_add_column(table, "bytes_fetched");
    tw_table_add_column(table, "stall_seconds");
    tw_table_add_column(table, "stall_seconds_p99");
    tw_table_add_column(table, "slowdown");
}

static void put_text(struct tw_table *table, const char *text) {
    if (text)
        tw_table_put_text(table, text);
    else
        tw_table_put_empty(table);
}

/* How often a policy with an interval pruned in the steps [0, n). */
static uint64_t prunes_until(const struct tw_policy_choice *choice, size_t n) {
    const struct tw_policy *policy = choice->policy;
    if (!policy->prunes_every) return 0;
    const struct tw_option *option = &policy->options[policy->prunes_every - 1];
    const uint64_t interval = *(const uint64_t *)((const char *)choice->options + option->offset);
    return interval ? n / interval : 0;
}

static void put_row(const struct replay *replay, const struct job *job, const struct run *run, size_t group, size_t b) {
    struct tw_table *table = replay->table;
    const struct tw_trace_info *info = tw_trace_info(job->trace);
    const struct tw_account_shape *shape = &run->account.shape;
    const struct tw_account_row *row = &run->account.rows[group * shape->n_budgets + b];
    const enum tw_replay_by by = replay->options->by;
    const uint64_t accesses = job->accesses[run->stream][group];
    const size_t n_steps = by == TW_REPLAY_BY_STEP ? 1 : job->n_steps;
    tw_table_begin_row(table);
    tw_table_put_text(table, tw_trace_path(job->trace));
    put_text(table, info->model);
    put_text(table, info->task);
    put_text(table, info->run);
    tw_table_put_text(table, run->choice->label);
    tw_table_put_text(table, tw_unit_name(stream_unit(replay, run->stream)));
    tw_table_put_uint(table, stream_page_size(replay, run->stream));
    if (run->choice->policy->without_budget)
        tw_table_put_empty(table);
    else
        tw_table_put_uint(table, run->budgets->value[b]);
    tw_table_put_uint(table, n_steps);
    tw_table_put_uint(table, by == TW_REPLAY_BY_HEAD    ? 1
                             : by == TW_REPLAY_BY_LAYER ? shape->n_units
                                                        : shape->n_layers * shape->n_units);
    tw_table_put_uint(table, accesses);
    tw_table_put_uint(table, row->misses);
    if (accesses)
        tw_table_put_double(table, (double)row->misses / (double)accesses);
    else
        tw_table_put_empty(table);
    tw_table_put_uint(table, row->fetches);
    tw_table_put_uint(table, row->stall_steps);
    tw_table_put_uint(table, row->resident_page_steps);
    if (n_steps)
        tw_table_put_double(table, (double)row->resident_page_steps / (double)n_steps);
    else
        tw_table_put_empty(table);
    tw_table_put_uint(table, row->peak_resident);
    tw_table_put_uint(table, by == TW_REPLAY_BY_STEP
                                 ? prunes_until(run->choice, group + 1) - prunes_until(run->choice, group)
                                 : prunes_until(run->choice, n_steps));
    if (by == TW_REPLAY_BY_LAYER) tw_table_put_uint(table, job->first_layer + group);
    if (by == TW_REPLAY_BY_HEAD) {
        tw_table_put_uint(table, job->first_layer + group / shape->n_units);
        tw_table_put_uint(table, group % shape->n_units);
    }
    if (by == TW_REPLAY_BY_STEP) tw_table_put_uint(table, job->first_step + group);
    if (!replay->timed) return;
    const double computing = replay->options->link.step_seconds * (double)n_steps;
    tw_table_put_uint(table, row->fetches * (uint64_t)shape->page_bytes);
    tw_table_put_double(table, row->stall_seconds);
    tw_table_put_double(table, row->stall_seconds_p99);
    if (computing > 0)
        tw_table_put_double(table, (computing + row->stall_seconds) / computing);
    else
        tw_table_put_empty(table);
}

/* What is known only when all layers of the trace have been swept. */
static tw_status settle(struct replay *replay, struct job *job, struct run *run, struct tw_error *err) {
    const struct tw_policy *policy = run->choice->policy;
    struct tw_account *account = &run->account;
    const struct tw_account_shape *shape = &account->shape;
    if (!policy->settle) return TW_OK;
    struct tw_tally *tally = &replay->workers[0].tally;
    tw_ranks_sum_double(account->measure, shape->n_layers * shape->n_units);
    tw_status status = TW_OK;
    for (size_t l = 0; status == TW_OK && l < shape->n_layers; l++) {
        if (!account->kept[l]) continue; /* another rank's */
        const struct tw_sweep sweep = sweep_of(run, job, l, NULL);
        status = tw_tally_begin(tally, tw_account_sections(shape), job->n_steps, shape->n_budgets,
                                tw_account_wants_steps(shape), err);
        if (status == TW_OK) status = policy->settle(tally, &sweep, err);
        if (status == TW_OK) status = tw_account_add(account, tally, l, err);
    }
    return tw_ranks_agree(status, err);
}

static tw_status finish_job(struct replay *replay, struct job *job, struct tw_error *err) {
    const size_t n_policies = replay->options->policies->n;
    for (size_t s = 0; s < replay->n_streams; s++) {
        tw_ranks_sum_u64(job->accesses[s], groups_of(replay, job, s));
        for (size_t p = 0; p < n_policies; p++) {
            struct run *run = &job->runs[s * n_policies + p];
            TW_TRY(settle(replay, job, run, err));
            TW_TRY(tw_ranks_agree(tw_account_finish(&run->account, err), err));
            for (size_t b = 0; b < run->budgets->n; b++)
                for (size_t g = 0; g < run->account.n_groups; g++) put_row(replay, job, run, g, b);
        }
    }
    return TW_OK;
}

/* ---- all ---- */

static tw_status note_limited(struct tw_replay_report *report, const struct job *job, struct tw_error *err) {
    if (!report || tw_trace_info(job->trace)->budget == 0) return TW_OK;
    if (report->n_limited++ == 0 && !(report->first_limited = strdup(tw_trace_path(job->trace))))
        return TW_FAIL(err, TW_E_MEMORY, "not enough memory for a path");
    return TW_OK;
}

static tw_status init_replay(struct replay *replay, const struct tw_replay_options *options, struct tw_error *err) {
    static const uint64_t nothing = 0;
    replay->options = options;
    replay->n_streams = options->n_page_sizes * options->n_units;
    replay->n_threads = options->n_threads ? options->n_threads : (size_t)omp_get_max_threads();
    replay->timed = options->link.bytes_per_second > 0;
    for (size_t p = 0; p < options->policies->n; p++)
        replay->scores |= options->policies->choices[p].policy->scores != 0;
    TW_TRY(tw_budgets_init(&replay->budgets, options->budgets, options->n_budgets, err));
    TW_TRY(tw_budgets_init(&replay->one, &nothing, 1, err));
    replay->jobs = calloc(TW_REPLAY_WINDOW, sizeof *replay->jobs);
    replay->workers = calloc(replay->n_threads + 1, sizeof *replay->workers);
    if (!replay->jobs || !replay->workers) return TW_FAIL(err, TW_E_MEMORY, "not enough memory to replay");
    for (size_t i = 0; i < replay->n_threads; i++) TW_TRY(init_worker(&replay->workers[i], replay->n_streams, err));
    return TW_OK;
}

static void close_jobs(struct replay *replay) {
    for (size_t j = 0; j < replay->n_jobs; j++) close_job(replay, &replay->jobs[j]);
    replay->n_jobs = 0;
}

tw_status tw_replay_run(struct tw_table *table, struct tw_replay_report *report, const char *const *paths,
                        size_t n_paths, const struct tw_replay_options *options, struct tw_progress *progress,
                        struct tw_error *err) {
    struct replay replay = {.progress = progress, .table = table};
    *table = (struct tw_table){0};
    if (report) *report = (struct tw_replay_report){0};
    tw_status status = init_replay(&replay, options, err);
    if (status == TW_OK) init_table(&replay, table);
    for (size_t next = 0; status == TW_OK && next < n_paths;) {
        /* Enough layers to keep every thread and rank busy, and no more traces than it takes. */
        size_t n_layers = 0;
        while (status == TW_OK && next < n_paths && replay.n_jobs < TW_REPLAY_WINDOW &&
               n_layers < 4 * replay.n_threads * tw_ranks_count()) {
            struct job *job = &replay.jobs[replay.n_jobs++];
            status = open_job(&replay, job, paths[next++], err);
            if (status == TW_OK) status = note_limited(report, job, err);
            n_layers += job->n_layers;
        }
        status = tw_ranks_agree(status, err);
        if (status == TW_OK) status = tw_ranks_agree(replay_window(&replay, err), err);
        for (size_t j = 0; status == TW_OK && j < replay.n_jobs; j++)
            status = finish_job(&replay, &replay.jobs[j], err);
        close_jobs(&replay);
    }
    if (status == TW_OK && table->failed) status = TW_FAIL(err, TW_E_MEMORY, "not enough memory for the table");
    close_jobs(&replay);
    for (size_t i = 0; replay.workers && i < replay.n_threads; i++)
        release_worker(&replay.workers[i], replay.n_streams);
    free(replay.workers);
    free(replay.jobs);
    tw_budgets_release(&replay.budgets);
    tw_budgets_release(&replay.one);
    if (status != TW_OK) {
        tw_table_release(table);
        if (report) tw_replay_report_release(report);
    }
    return status;
}
