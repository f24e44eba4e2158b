#include "traces/synth.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/half.h"
#include "base/random.h"
#include "base/stop.h"
#include "traces/writer.h"

#define TW_STRING_(x) #x
#define TW_STRING(x)  TW_STRING_(x)

enum { PAGE = 16, SINK = 4, LOCAL = 32, BLOCK = 16, NEEDLE = 24, BURST_PAGES = 4 };

/* What the whole run shares: tokens, the needle, and when heads turn to it. */
struct plan {
    size_t n_steps, prompt_length;
    bool has_needle;
    size_t needle_begin, needle_end;
    int32_t *prompt_id; /* [prompt_length] */
    int32_t *token_id;  /* [n_steps] */
    uint8_t *burst;     /* [n_steps] 1 while retrieval heads turn to the needle */
    int32_t *copied;    /* [n_steps] the prompt position copied at the step, or -1 */
};

/* One head; its random numbers are its own, so that heads can be made in any order. */
struct head {
    struct tw_random random;
    float *base, *state; /* [n_pages] what a page is worth at all, and its drift, of variance 1 */
    float keep, stir;    /* state' = keep * state + stir * noise */
    float drift, decay, noise, sink, local_gain, local_width;
    bool retrieves;
    float needle_gain;
    uint64_t token_seed;
    size_t burst_left;
    size_t burst_page[BURST_PAGES];
};

struct candidate {
    float score;
    int32_t position;
};

/* What one thread needs for a row. */
struct workspace {
    struct candidate *pages;  /* [n_pages] position is the page */
    struct candidate *tokens; /* [n_candidates * PAGE] */
    uint64_t *order;          /* [top_k] */
};

struct synth {
    const struct tw_synth_options *options;
    struct plan plan;
    struct head *heads;  /* [n_layers][n_heads] */
    size_t n_pages;      /* of the whole run */
    size_t n_candidates; /* pages whose tokens compete for a row */
    /* a block of steps */
    int32_t *position;   /* [BLOCK][n_layers][n_heads][top_k] */
    float *weight;       /* [BLOCK][n_layers][n_heads][top_k] */
    float *needle;       /* [BLOCK][n_layers][n_heads] */
    uint8_t *copy_paste; /* [BLOCK][n_layers][n_heads] */
};

/* ---- random shapes
 * ------------------------------------------------------------------------------------------------------ */

static float uniform(struct tw_random *random, float low, float high) {
    return low + (high - low) * (float)tw_random_unit(random);
}

/* Nearly normal, mean 0, variance 1: the sum of four bytes. Two from one draw. */
static void two_normals(float *a, float *b, uint64_t bits) {
    const uint32_t low = (uint32_t)bits, high = (uint32_t)(bits >> 32);
    const int x = (int)(low & 255) + (int)(low >> 8 & 255) + (int)(low >> 16 & 255) + (int)(low >> 24);
    const int y = (int)(high & 255) + (int)(high >> 8 & 255) + (int)(high >> 16 & 255) + (int)(high >> 24);
    const float scale = 0.0067660f; /* 1 / sqrt(4 * (256^2 - 1) / 12) */
    *a = (float)(x - 510) * scale;
    *b = (float)(y - 510) * scale;
}

static float normal(struct tw_random *random) {
    float a, b;
    two_normals(&a, &b, tw_random_next(random));
    return a;
}

/* A word of a small vocabulary, the frequent ones far more often. */
static int32_t word(struct tw_random *random) {
    const double u = tw_random_unit(random);
    return 10 + (int32_t)(900 * u * u * u);
}

/* ---- the plan
 * ------------------------------------------------------------------------------------------------------------ */

static void plan_bursts(struct plan *plan, struct tw_random *random) {
    const size_t length = plan->needle_end - plan->needle_begin;
    for (size_t t = 3 + tw_random_below(random, 17); t < plan->n_steps;) {
        const size_t n = 6 + tw_random_below(random, 11);
        const bool copying = tw_random_unit(random) < 0.6;
        for (size_t j = 0; j < n && t + j < plan->n_steps; j++) {
            plan->burst[t + j] = 1;
            if (!copying) continue;
            const size_t from = plan->needle_begin + j % length;
            plan->copied[t + j] = (int32_t)from;
            if (tw_random_unit(random) < 0.8) plan->token_id[t + j] = plan->prompt_id[from];
        }
        t += n + 9 + (size_t)(-73 * log(1 - tw_random_unit(random)));
    }
}

static bool make_plan(struct plan *plan, const struct tw_synth_options *options) {
    *plan = (struct plan){.n_steps = options->n_steps, .prompt_length = options->prompt_length};
    plan->prompt_id = malloc(plan->prompt_length * sizeof *plan->prompt_id);
    plan->token_id = malloc(tw_max_size(plan->n_steps, 1) * sizeof *plan->token_id);
    plan->burst = calloc(tw_max_size(plan->n_steps, 1), 1);
    plan->copied = malloc(tw_max_size(plan->n_steps, 1) * sizeof *plan->copied);
    if (!plan->prompt_id || !plan->token_id || !plan->burst || !plan->copied) return false;
    struct tw_random random;
    tw_random_init(&random, options->seed, 0);
    for (size_t i = 0; i < plan->prompt_length; i++) plan->prompt_id[i] = word(&random);
    for (size_t t = 0; t < plan->n_steps; t++) {
        plan->token_id[t] = word(&random);
        plan->copied[t] = -1;
    }
    plan->has_needle = plan->prompt_length >= 4 * NEEDLE;
    if (!plan->has_needle) return true;
    plan->needle_begin = SINK + 2 + tw_random_below(&random, plan->prompt_length - NEEDLE - LOCAL - SINK - 2);
    plan->needle_end = plan->needle_begin + NEEDLE;
    for (size_t i = plan->needle_begin; i < plan->needle_end; i++) plan->prompt_id[i] = 40000 + (int32_t)i;
    plan_bursts(plan, &random);
    return true;
}

static bool make_head(struct head *head, const struct synth *synth, size_t index) {
    struct tw_random *const random = &head->random;
    tw_random_init(random, synth->options->seed, 1 + index);
    head->base = malloc(synth->n_pages * sizeof *head->base);
    head->state = malloc(synth->n_pages * sizeof *head->state);
    if (!head->base || !head->state) return false;
    for (size_t p = 0; p < synth->n_pages; p++) {
        const float a = normal(random);
        head->base[p] = 0.8f * a * (1 + 0.3f * fabsf(a)); /* heavier than normal: a few pages stay wanted */
        head->state[p] = normal(random);
    }
    head->keep = uniform(random, 0.76f, 0.99f);
    head->stir = sqrtf(1 - head->keep * head->keep);
    head->drift = uniform(random, 0.6f, 1.4f);
    head->decay = uniform(random, 0.15f, 0.85f);
    head->noise = uniform(random, 0.5f, 0.9f);
    head->sink = tw_random_unit(random) < 0.7 ? 4.5f + normal(random) : 1 + normal(random);
    head->local_gain = uniform(random, 2.0f, 5.0f);
    head->local_width = 6 * expf(uniform(random, 0, 2.3f));
    head->retrieves = tw_random_unit(random) < 0.35;
    head->needle_gain = uniform(random, 4, 7);
    head->token_seed = tw_random_next(random);
    return true;
}

/* ---- one row
 * -------------------------------------------------------------------------------------------------------------- */

/* Moves the n_best highest scores to the front, in no order. */
static void select_best(struct candidate *items, size_t n, size_t n_best) {
    size_t low = 0, high = n;
    while (high - low > 1 && n_best > low && n_best < high) {
        const float a = items[low].score, b = items[low + (high - low) / 2].score, c = items[high - 1].score;
        const float pivot = a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b);
        size_t i = low, j = high - 1;
        for (;;) {
            while (items[i].score > pivot) i++;
            while (items[j].score < pivot) j--;
            if (i >= j) break;
            const struct candidate other = items[i];
            items[i++] = items[j];
            items[j--] = other;
        }
        const size_t middle = i > j ? i : items[i].score >= pivot ? i + 1 : i; /* [low, middle) >= pivot */
        if (middle == high || middle == low) {                                 /* all equal to the pivot on one side */
            size_t equal = low;
            for (size_t k = low; k < high; k++) {
                if (!(items[k].score > pivot)) continue;
                const struct candidate other = items[k];
                items[k] = items[equal];
                items[equal++] = other;
            }
            if (equal >= n_best || equal == low) {
                if (equal == low) return;
                high = equal;
            } else {
                low = equal;
                return;
            }
        } else if (middle >= n_best) {
            high = middle;
        } else {
            low = middle;
        }
    }
}

static void drift(struct head *head, size_t n_pages) {
    for (size_t p = 0; p < n_pages; p += 2) {
        float a, b;
        two_normals(&a, &b, tw_random_next(&head->random));
        head->state[p] = head->keep * head->state[p] + head->stir * a;
        if (p + 1 < n_pages) head->state[p + 1] = head->keep * head->state[p + 1] + head->stir * b;
    }
}

/* Now and then a head turns to a few far pages for a while. */
static void burst(struct head *head, size_t n_pages) {
    if (head->burst_left) {
        head->burst_left--;
    } else if (tw_random_unit(&head->random) < 1.0 / 80) {
        head->burst_left = 6 + tw_random_below(&head->random, 11);
        for (size_t i = 0; i < BURST_PAGES; i++) head->burst_page[i] = tw_random_below(&head->random, n_pages);
    }
}

static size_t choose_pages(const struct synth *synth, const struct head *head, struct candidate *pages,
                           size_t n_pages) {
    const struct plan *const plan = &synth->plan;
    for (size_t p = 0; p < n_pages; p++) {
        const float distance = (float)(n_pages - 1 - p) * (PAGE / 64.0f);
        const float score = head->base[p] + head->drift * head->state[p] - head->decay * logf(1 + distance);
        pages[p] = (struct candidate){score, (int32_t)p};
    }
    for (size_t i = 0; head->burst_left && i < BURST_PAGES; i++) pages[head->burst_page[i]].score += 3;
    /* The sink, the newest and the needle's always compete; which of their tokens win is another matter. */
    const float must = 100;
    pages[0].score += must;
    for (size_t p = n_pages < 3 ? 0 : n_pages - 3; p < n_pages; p++) pages[p].score += p ? must : 0;
    for (size_t p = plan->needle_begin / PAGE; plan->has_needle && head->retrieves && p * PAGE < plan->needle_end; p++)
        if (pages[p].score < must / 2) pages[p].score += must;
    const size_t n = tw_min_size(n_pages, synth->n_candidates);
    select_best(pages, n_pages, n);
    for (size_t i = 0; i < n; i++)
        if (pages[i].score > must / 2) pages[i].score -= must;
    return n;
}

/* What a token is worth to the head at all: a hash of both, nearly normal. */
static float token_bias(const struct head *head, size_t position) {
    uint64_t state = head->token_seed + position * 0x9e3779b97f4a7c15;
    float a, b;
    two_normals(&a, &b, tw_random_splitmix(&state));
    return a;
}

static size_t score_tokens(const struct synth *synth, struct head *head, struct workspace *work, size_t n_pages,
                           size_t t, size_t context) {
    const struct plan *const plan = &synth->plan;
    const bool turned = head->retrieves && plan->burst[t];
    size_t n = 0;
    for (size_t i = 0; i < n_pages; i++) {
        const size_t first = (size_t)work->pages[i].position * PAGE;
        for (size_t position = first; position < first + PAGE && position < context; position++) {
            float a, b;
            two_normals(&a, &b, tw_random_next(&head->random));
            float x = work->pages[i].score + 1.4f * token_bias(head, position) + head->noise * a;
            const float back = (float)(context - 1 - position);
            if (back < 20 * head->local_width) x += head->local_gain * expf(-back / head->local_width);
            if (position < SINK) x += head->sink;
            if (plan->has_needle && head->retrieves && position >= plan->needle_begin && position < plan->needle_end) {
                x += turned ? head->needle_gain : -3.5f;
                if (turned && plan->copied[t] == (int32_t)position) x += 3;
            }
            work->tokens[n++] = (struct candidate){x, (int32_t)position};
        }
    }
    return n;
}

static int descending(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

static void make_row(struct synth *synth, struct head *head, struct workspace *work, size_t t, size_t in_block,
                     size_t row) {
    const struct plan *const plan = &synth->plan;
    const size_t K = synth->options->top_k, context = plan->prompt_length + t;
    const size_t n_pages = tw_divide_up(context, PAGE);
    drift(head, n_pages);
    burst(head, n_pages);
    const size_t n_chosen = choose_pages(synth, head, work->pages, n_pages);
    const size_t n = score_tokens(synth, head, work, n_chosen, t, context), k = tw_min_size(K, n);
    float most = -INFINITY, sum = 0, inside = 0, middle = 0;
    for (size_t i = 0; i < n; i++) most = fmaxf(most, work->tokens[i].score);
    for (size_t i = 0; i < n; i++) {
        struct candidate *const token = &work->tokens[i];
        const size_t position = (size_t)token->position;
        token->score = expf(token->score - most);
        sum += token->score;
        if (plan->has_needle && position >= plan->needle_begin && position < plan->needle_end)
            inside += token->score;
        else if (position >= SINK && context - 1 - position >= LOCAL)
            middle += token->score;
    }
    select_best(work->tokens, n, k);
    const float scale = 1 / (1.02f * sum); /* a tail lies outside the pages that compete */
    for (size_t i = 0; i < k; i++) {
        const uint64_t half = tw_half_from_float(work->tokens[i].score * scale);
        work->order[i] = half << 32 | (uint32_t)~work->tokens[i].position; /* equal weights: the lower position first */
    }
    qsort(work->order, k, sizeof *work->order, descending);
    const size_t at = (in_block * synth->options->n_layers * synth->options->n_heads + row);
    int32_t *const position = synth->position + at * K;
    float *const weight = synth->weight + at * K;
    for (size_t i = 0; i < K; i++) {
        position[i] = i < k ? (int32_t) ~(uint32_t)work->order[i] : -1;
        weight[i] = i < k ? tw_float_from_half((uint16_t)(work->order[i] >> 32)) : 0;
    }
    if (!plan->has_needle) return;
    synth->needle[at] = inside / fmaxf(inside + middle, 1e-6f * sum);
    const size_t top = k ? (size_t)position[0] : 0;
    synth->copy_paste[at] =
        top >= plan->needle_begin && top < plan->needle_end && plan->prompt_id[top] == plan->token_id[t];
}

/* ---- the run
 * -------------------------------------------------------------------------------------------------------------- */

static bool make_workspace(struct workspace *work, const struct synth *synth) {
    work->pages = malloc(synth->n_pages * sizeof *work->pages);
    work->tokens = malloc(synth->n_candidates * PAGE * sizeof *work->tokens);
    work->order = malloc(synth->options->top_k * sizeof *work->order);
    return work->pages && work->tokens && work->order;
}

static void release_workspace(struct workspace *work) {
    free(work->pages);
    free(work->tokens);
    free(work->order);
}

/* Steps [first, first + n) of every head. */
static bool make_block(struct synth *synth, size_t first, size_t n) {
    const size_t rows = synth->options->n_layers * synth->options->n_heads;
    bool done = true;
#pragma omp parallel reduction(&& : done)
    {
        struct workspace work = {0};
        const bool made = make_workspace(&work, synth);
        done = made;
#pragma omp for schedule(dynamic, 4)
        for (size_t row = 0; row < rows; row++)
            for (size_t t = 0; made && t < n; t++) make_row(synth, &synth->heads[row], &work, first + t, t, row);
        release_workspace(&work);
    }
    return done;
}

static void release(struct synth *synth) {
    const size_t rows = synth->options->n_layers * synth->options->n_heads;
    for (size_t i = 0; synth->heads && i < rows; i++) {
        free(synth->heads[i].base);
        free(synth->heads[i].state);
    }
    free(synth->heads);
    free(synth->position);
    free(synth->weight);
    free(synth->needle);
    free(synth->copy_paste);
    free(synth->plan.prompt_id);
    free(synth->plan.token_id);
    free(synth->plan.burst);
    free(synth->plan.copied);
}

static bool allocate(struct synth *synth) {
    const struct tw_synth_options *const options = synth->options;
    size_t rows, entries, pages;
    if (!tw_mul_size(&rows, options->n_layers, options->n_heads) ||
        !tw_mul_size(&entries, rows, BLOCK * sizeof(float)) || !tw_mul_size(&entries, entries, options->top_k) ||
        !tw_mul_size(&pages, rows, synth->n_pages))
        return false;
    synth->position = malloc(entries);
    synth->weight = malloc(entries);
    synth->needle = malloc(rows * BLOCK * sizeof *synth->needle);
    synth->copy_paste = malloc(rows * BLOCK);
    synth->heads = calloc(rows, sizeof *synth->heads);
    if (!synth->position || !synth->weight || !synth->needle || !synth->copy_paste || !synth->heads) return false;
    bool made = make_plan(&synth->plan, options);
#pragma omp parallel for reduction(&& : made)
    for (size_t i = 0; i < rows; i++) made = made && make_head(&synth->heads[i], synth, i);
    return made;
}

static tw_status describe(struct tw_trace_info *info, const struct synth *synth, struct tw_error *err) {
    const struct tw_synth_options *const options = synth->options;
    *info = (struct tw_trace_info){
        .n_layers = options->n_layers,
        .n_heads = options->n_heads,
        .n_kv_heads = options->n_kv_heads,
        .head_dim = 64,
        .top_k = options->top_k,
        .prompt_length = options->prompt_length,
        .seed = options->seed,
        .has_needle = synth->plan.has_needle,
        .needle_begin = synth->plan.needle_begin,
        .needle_end = synth->plan.needle_end,
        .has_windows = synth->plan.has_needle,
        .sink_tokens = SINK,
        .local_window = LOCAL,
    };
    const struct {
        char **field;
        const char *text;
    } texts[] = {
        {&info->model, "synthetic"},
        {&info->architecture, "none"},
        {&info->task, "synthetic"},
        {&info->schedule, "none"},
        {&info->selector, "none"},
        {&info->backend, "none"},
        {&info->dtype, "none"},
        {&info->special_tokens, "literal"},
        {&info->producer, "tidewake " TW_STRING(TW_VERSION)},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        TW_TRY(tw_trace_info_set(texts[i].field, texts[i].text, err));
    char run[32];
    snprintf(run, sizeof run, "seed%llu", (unsigned long long)options->seed);
    return tw_trace_info_set(&info->run, run, err);
}

static tw_status append_block(struct synth *synth, struct tw_trace_writer *writer, size_t first, size_t n,
                              struct tw_error *err) {
    const struct plan *const plan = &synth->plan;
    const size_t rows = synth->options->n_layers * synth->options->n_heads, K = synth->options->top_k;
    for (size_t t = 0; t < n; t++) {
        const struct tw_trace_step step = {
            .position = synth->position + t * rows * K,
            .weight = synth->weight + t * rows * K,
            .context_length = (int32_t)(plan->prompt_length + first + t),
            .token_id = plan->token_id[first + t],
            .needle = plan->has_needle ? synth->needle + t * rows : NULL,
            .copy_paste = plan->has_needle ? synth->copy_paste + t * rows : NULL,
        };
        TW_TRY(tw_trace_writer_append(writer, &step, err));
    }
    return TW_OK;
}

tw_status tw_synth_write(const char *path, const struct tw_synth_options *options, struct tw_progress *progress,
                         struct tw_error *err) {
    struct synth synth = {.options = options,
                          .n_pages = tw_divide_up(options->prompt_length + options->n_steps, PAGE),
                          .n_candidates = tw_max_size(6, options->top_k * 38 / 64)};
    struct tw_trace_info info = {0};
    struct tw_trace_writer *writer = NULL;
    tw_status status = allocate(&synth) ? describe(&info, &synth, err)
                                        : TW_FAIL(err, TW_E_MEMORY, "out of memory for a synthetic trace of this size");
    const struct tw_trace_writer_options how = {.force = options->force,
                                                .weight_float = options->weight_float,
                                                .needle = synth.plan.has_needle,
                                                .copy_paste = synth.plan.has_needle};
    if (status == TW_OK) status = tw_trace_writer_create(&writer, path, &info, synth.plan.prompt_id, &how, err);
    size_t first = 0;
    while (status == TW_OK && first < options->n_steps && !tw_stop_requested()) {
        const size_t n = tw_min_size(BLOCK, options->n_steps - first);
        status = make_block(&synth, first, n) ? append_block(&synth, writer, first, n, err)
                                              : TW_FAIL(err, TW_E_MEMORY, "out of memory for a synthetic trace");
        first += n;
        tw_progress_update(progress, "synth", first, options->n_steps, "steps", NULL);
    }
    const bool complete = first >= options->n_steps;
    if (status == TW_OK) status = tw_trace_writer_finish(writer, complete, err);
    if (status == TW_OK && !complete)
        status = TW_FAIL(err, TW_E_INTERRUPTED, "interrupted: %zu of %llu steps are in '%s'", first,
                         (unsigned long long)options->n_steps, path);
    tw_trace_writer_free(writer);
    tw_trace_info_release(&info);
    release(&synth);
    return status;
}
