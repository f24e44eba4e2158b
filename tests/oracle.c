#include "tests/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"

/* What a unit wants at a step, by page: wanted[page], score[page]. */
struct wish {
    bool *wanted;
    uint64_t *score;
};

/* One unit's state, by page. */
struct state {
    bool *resident, *seen;
    uint64_t *score, *last, *count;
};

struct oracle {
    const struct tw_oracle_options *o;
    size_t n_units, n_all, n_steps, n_pages; /* units of a layer, of all */
    struct wish *wish;                       /* [n_all][n_steps] */
    struct state *state;                     /* [n_all] */
    struct tw_oracle_cell *cells;
};

static void *zeros(size_t n, size_t size) {
    void *memory = calloc(n + 1, size);
    if (!memory) abort();
    return memory;
}

static void make_wishes(struct oracle *oracle, const struct tw_oracle_trace *trace) {
    const size_t group = trace->n_heads / oracle->n_units, K = trace->top_k;
    oracle->wish = zeros(oracle->n_all * oracle->n_steps, sizeof *oracle->wish);
    for (size_t u = 0; u < oracle->n_all; u++)
        for (size_t t = 0; t < oracle->n_steps; t++) {
            struct wish *wish = &oracle->wish[u * oracle->n_steps + t];
            wish->wanted = zeros(oracle->n_pages, sizeof *wish->wanted);
            wish->score = zeros(oracle->n_pages, sizeof *wish->score);
            const size_t layer = u / oracle->n_units, unit = u % oracle->n_units;
            for (size_t h = unit * group; h < (unit + 1) * group; h++)
                for (size_t k = 0; k < K; k++) {
                    const size_t at = ((layer * oracle->n_steps + t) * trace->n_heads + h) * K + k;
                    if (trace->position[at] < 0) continue;
                    const uint64_t page = (uint64_t)trace->position[at] / oracle->o->page_size;
                    wish->wanted[page] = true;
                    wish->score[page] += (uint64_t)ldexp(tw_float_from_half(trace->weight[at]), 24);
                }
        }
}

/*
 * Leaves the n best of the resident pages: the highest key, of equal ones the higher id. What leaves is not resident
 * any more. Pages are taken out one by one, the worst first.
 */
static void keep_best(const struct oracle *oracle, struct state *state, const uint64_t *key, uint64_t n) {
    for (;;) {
        size_t n_resident = 0, worst = SIZE_MAX;
        for (size_t p = oracle->n_pages; p-- > 0;) {
            if (!state->resident[p]) continue;
            n_resident++;
            if (worst == SIZE_MAX || key[p] <= key[worst]) worst = p;
        }
        if (n_resident <= n) return;
        state->resident[worst] = false;
    }
}

static uint64_t count_resident(const struct oracle *oracle, const struct state *state) {
    uint64_t n = 0;
    for (size_t p = 0; p < oracle->n_pages; p++) n += state->resident[p];
    return n;
}

#define FOR_EACH_WISH(oracle, u, t, p)                                                                                 \
    for (size_t p = 0; p < (oracle)->n_pages; p++)                                                                     \
        if ((oracle)->wish[(u) * (oracle)->n_steps + (t)].wanted[p])

static uint64_t next_use(const struct oracle *oracle, size_t u, size_t t, size_t p) {
    for (size_t s = t + 1; s < oracle->n_steps; s++)
        if (oracle->wish[u * oracle->n_steps + s].wanted[p]) return s;
    return UINT64_MAX;
}

/* full, reactive, evict, min */
static void run_stack(struct oracle *oracle, size_t u, const char *policy) {
    struct state *state = &oracle->state[u];
    const bool destroys = !strcmp(policy, "evict"), belady = !strcmp(policy, "min");
    for (size_t t = 0; t < oracle->n_steps; t++) {
        struct tw_oracle_cell *cell = &oracle->cells[u * oracle->n_steps + t];
        FOR_EACH_WISH(oracle, u, t, p) {
            if (state->seen[p] && !state->resident[p]) {
                cell->misses++;
                if (destroys) continue;
                cell->fetches++;
            }
            state->seen[p] = state->resident[p] = true;
            state->last[p] = t;
        }
        if (belady)
            for (size_t p = 0; p < oracle->n_pages; p++) state->last[p] = UINT64_MAX - next_use(oracle, u, t, p);
        if (strcmp(policy, "full") != 0) keep_best(oracle, state, state->last, oracle->o->budget);
        cell->resident = count_resident(oracle, state);
    }
}

static void run_snapkv(struct oracle *oracle, size_t u) {
    struct state *state = &oracle->state[u];
    size_t boundary = 0;
    if (oracle->n_steps == 0) return;
    FOR_EACH_WISH(oracle, u, 0, p) {
        state->resident[p] = true;
        boundary = p + 1;
    }
    keep_best(oracle, state, oracle->wish[u * oracle->n_steps].score, oracle->o->budget);
    for (size_t t = 0; t < oracle->n_steps; t++) {
        struct tw_oracle_cell *cell = &oracle->cells[u * oracle->n_steps + t];
        FOR_EACH_WISH(oracle, u, t, p) {
            if (p >= boundary)
                state->resident[p] = true;
            else
                cell->misses += !state->resident[p];
        }
        cell->resident = count_resident(oracle, state);
    }
}

static void run_stable(struct oracle *oracle, size_t u) {
    struct state *state = &oracle->state[u], next = *state;
    next.resident = zeros(oracle->n_pages, sizeof *next.resident);
    for (size_t t = 0; t < oracle->n_steps; t++) {
        struct tw_oracle_cell *cell = &oracle->cells[u * oracle->n_steps + t];
        FOR_EACH_WISH(oracle, u, t, p) {
            cell->misses += !state->resident[p];
            state->count[p]++;
        }
        if ((t + 1) % oracle->o->every == 0) {
            bool any = false;
            for (size_t p = 0; p < oracle->n_pages; p++) any |= next.resident[p] = state->count[p] > 0;
            if (any) {
                keep_best(oracle, &next, state->count, oracle->o->budget);
                for (size_t p = 0; p < oracle->n_pages; p++) {
                    cell->prefetch += next.resident[p] && !state->resident[p];
                    state->resident[p] = next.resident[p];
                    state->count[p] = 0;
                }
            }
        }
        cell->resident = count_resident(oracle, state);
    }
    free(next.resident);
}

static long double mean_overlap(const struct oracle *oracle, size_t u) {
    long double sum = 0;
    size_t n = 0;
    for (size_t t = 0; t + 1 < oracle->n_steps; t++) {
        const struct wish *a = &oracle->wish[u * oracle->n_steps + t], *b = a + 1;
        size_t both = 0, either = 0;
        for (size_t p = 0; p < oracle->n_pages; p++) {
            both += a->wanted[p] && b->wanted[p];
            either += a->wanted[p] || b->wanted[p];
        }
        if (!either) continue;
        sum += (long double)both / (long double)either;
        n++;
    }
    return n ? sum / (long double)n : 1;
}

static void run_frozen(struct oracle *oracle) {
    long double *stability = zeros(oracle->n_all, sizeof *stability);
    bool *unstable = zeros(oracle->n_all, sizeof *unstable);
    for (size_t u = 0; u < oracle->n_all; u++) stability[u] = mean_overlap(oracle, u);
    const double exact = (double)oracle->n_all * oracle->o->unstable;
    size_t n = (size_t)floor(exact);
    if (exact - floor(exact) > 0.5 || (exact - floor(exact) == 0.5 && n % 2 == 1)) n++;
    for (; n > 0; n--) {
        size_t lowest = SIZE_MAX;
        for (size_t u = 0; u < oracle->n_all; u++)
            if (!unstable[u] && (lowest == SIZE_MAX || stability[u] < stability[lowest] - 1e-12L)) lowest = u;
        unstable[lowest] = true;
    }
    for (size_t u = 0; u < oracle->n_all; u++)
        if (unstable[u])
            run_stack(oracle, u, "full");
        else
            run_stable(oracle, u);
    free(stability);
    free(unstable);
}

static int falling(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

/* ReasonAlloc's budgets of one layer's units, after the specification's whole-number form. */
static void deal_out(uint64_t *quota, const struct oracle *oracle, struct state *states) {
    const size_t H = oracle->n_units;
    const uint64_t B = oracle->o->budget, b = B * H;
    uint64_t *pool = zeros(H * oracle->n_pages, sizeof *pool), *r = zeros(H, sizeof *r), *x = zeros(H, sizeof *x),
             *rest = zeros(H, sizeof *rest);
    size_t n = 0;
    for (size_t i = 0; i < H; i++)
        for (size_t p = 0; p < oracle->n_pages; p++)
            if (states[i].resident[p]) pool[n++] = states[i].score[p];
    qsort(pool, n, sizeof *pool, falling);
    const bool bounded = b > 0 && n >= b;
    for (size_t i = 0; i < H; i++)
        for (size_t p = 0; p < oracle->n_pages; p++)
            r[i] += states[i].resident[p] && (!bounded || states[i].score[p] >= pool[b - 1]);
    uint64_t X = 0, left = b;
    for (size_t i = 0; i < H; i++) X += x[i] = 4 * r[i] > B ? 4 * r[i] - B : 0;
    if (X == 0)
        for (size_t i = 0; i < H; i++) X += x[i] = 1;
    for (size_t i = 0; i < H; i++) {
        quota[i] = (B * X + 3 * B * H * x[i]) / (4 * X);
        rest[i] = (B * X + 3 * B * H * x[i]) % (4 * X) + 1; /* 0 once it has been served */
        left -= quota[i];
    }
    for (; left > 0; left--) {
        size_t best = 0;
        for (size_t i = 1; i < H; i++)
            if (rest[i] > rest[best]) best = i;
        quota[best]++;
        rest[best] = 0;
    }
    free(pool);
    free(r);
    free(x);
    free(rest);
}

/* rkv and reasonalloc, a layer at a time */
static void run_scored(struct oracle *oracle, size_t layer) {
    const bool deals = !strcmp(oracle->o->policy, "reasonalloc");
    const size_t first = layer * oracle->n_units;
    uint64_t *quota = zeros(oracle->n_units, sizeof *quota);
    for (size_t t = 0; t < oracle->n_steps; t++) {
        for (size_t u = first; u < first + oracle->n_units; u++) {
            struct state *state = &oracle->state[u];
            FOR_EACH_WISH(oracle, u, t, p) {
                if (state->seen[p] && !state->resident[p]) {
                    oracle->cells[u * oracle->n_steps + t].misses++;
                    continue;
                }
                state->seen[p] = state->resident[p] = true;
                state->score[p] += oracle->wish[u * oracle->n_steps + t].score[p];
            }
        }
        const bool prunes = (t + 1) % oracle->o->every == 0;
        if (prunes && deals) deal_out(quota, oracle, oracle->state + first);
        for (size_t i = 0; i < oracle->n_units; i++) {
            struct state *state = &oracle->state[first + i];
            if (prunes) {
                keep_best(oracle, state, state->score, deals ? quota[i] : oracle->o->budget);
                memset(state->score, 0, oracle->n_pages * sizeof *state->score);
            }
            oracle->cells[(first + i) * oracle->n_steps + t].resident = count_resident(oracle, state);
        }
    }
    free(quota);
}

void tw_oracle_run(struct tw_oracle_cell *cells, const struct tw_oracle_trace *trace,
                   const struct tw_oracle_options *options) {
    const size_t n_units = options->unit == TW_UNIT_KV ? trace->n_kv_heads : trace->n_heads;
    struct oracle oracle = {
        .o = options,
        .n_units = n_units,
        .n_all = trace->n_layers * n_units,
        .n_steps = trace->n_steps,
        .n_pages = (size_t)((uint64_t)trace->limit / options->page_size) + 1,
        .cells = cells,
    };
    memset(cells, 0, oracle.n_all * oracle.n_steps * sizeof *cells);
    make_wishes(&oracle, trace);
    oracle.state = zeros(oracle.n_all, sizeof *oracle.state);
    for (size_t u = 0; u < oracle.n_all; u++) {
        struct state *state = &oracle.state[u];
        state->resident = zeros(oracle.n_pages, sizeof *state->resident);
        state->seen = zeros(oracle.n_pages, sizeof *state->seen);
        state->score = zeros(oracle.n_pages, sizeof *state->score);
        state->last = zeros(oracle.n_pages, sizeof *state->last);
        state->count = zeros(oracle.n_pages, sizeof *state->count);
        for (size_t t = 0; t < oracle.n_steps; t++) FOR_EACH_WISH(&oracle, u, t, p)
        cells[u * oracle.n_steps + t].accesses++;
    }
    if (!strcmp(options->policy, "frozen")) {
        run_frozen(&oracle);
    } else if (!strcmp(options->policy, "rkv") || !strcmp(options->policy, "reasonalloc")) {
        for (size_t l = 0; l < trace->n_layers; l++) run_scored(&oracle, l);
    } else {
        for (size_t u = 0; u < oracle.n_all; u++)
            if (!strcmp(options->policy, "snapkv"))
                run_snapkv(&oracle, u);
            else
                run_stack(&oracle, u, options->policy);
    }
    for (size_t u = 0; u < oracle.n_all; u++) {
        for (size_t t = 0; t < oracle.n_steps; t++) {
            free(oracle.wish[u * oracle.n_steps + t].wanted);
            free(oracle.wish[u * oracle.n_steps + t].score);
        }
        free(oracle.state[u].resident);
        free(oracle.state[u].seen);
        free(oracle.state[u].score);
        free(oracle.state[u].last);
        free(oracle.state[u].count);
    }
    free(oracle.wish);
    free(oracle.state);
}
