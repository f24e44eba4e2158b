/*
 * ReasonAlloc: as R-KV, but at every pruning the pages of a layer's budget are dealt out anew to its heads, by how many
 * of the layer's most wanted pages each head holds.
 *
 * All budgets in one pass: what a resident page gathers between two prunings does not depend on the budget, so scores
 * are kept once, and each page carries one bit a budget that says whether it is resident. (The sets need not be nested:
 * a head's share may fall while the budget rises.) The bits change only at prunings, so a page's wishes are counted and
 * turned into misses there.
 */
#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "sim/tally.h"

struct reasonalloc_options {
    uint64_t delta;
};

static const struct tw_option reasonalloc_options[] = {
    {.name = "delta",
     .type = TW_OPTION_U64,
     .offset = offsetof(struct reasonalloc_options, delta),
     .default_value = "128",
     .minimum = 1,
     .maximum = 1e15,
     .value_name = "STEPS",
     .help = "steps between two allocations"},
    {0},
};

struct page_state {
    uint64_t score;  /* gathered since the last pruning */
    uint32_t page;   /* its id */
    uint32_t wishes; /* since the last pruning, not counting the one that brought it in */
};

struct unit_state {
    uint32_t *local;           /* [n_pages] 1 + index into pages; 0: never seen */
    struct page_state *pages;  /* [n] in the order of their coming */
    uint64_t *mask;            /* [n][n_words] the budgets under which it is resident */
    size_t n, n_old, capacity; /* n_old: those that have been through a pruning */
    uint32_t *living;          /* [n_living] indices of pages resident under some budget, ascending by id */
    size_t n_living;
    uint32_t *resident; /* [n_budgets] after the last pruning */
    uint32_t *idle;     /* [n_idle] at a pruning: living pages without a score, ascending by id */
    uint32_t *wanted;   /* [n_wanted] the others, ascending by score, then id; behind the idle ones in memory */
    size_t n_idle, n_wanted;
};

/* A wanted page of any unit of the layer. */
struct contender {
    uint64_t score;
    uint32_t unit, index; /* index into the unit's pages */
};

struct layer_state {
    const struct tw_sweep *sweep;
    struct tw_tally *tally;
    size_t n_units, n_budgets, n_words;
    struct unit_state *units;
    struct contender *contenders;
    size_t contender_capacity;
    uint32_t *held;      /* [n_units][n_budgets + 1] r_i: pages at or above the layer's threshold */
    uint64_t *need;      /* [n_budgets] pages of the layer's budget not found among the wanted ones */
    uint32_t *quota;     /* [n_budgets][n_units] the new budgets, at most UINT32_MAX */
    uint32_t *bulk;      /* [n_units][n_budgets + 1] the part of `held` that is counted in bulk, as differences */
    uint32_t *excess;    /* [n_budgets + 1] */
    uint64_t *alive;     /* [n_words] budgets that still look for their threshold, or still have too much */
    uint64_t *words;     /* [n_words] scratch */
    uint64_t *valid;     /* [n_words] bits of the budgets there are */
    struct share *share; /* [n_units] */
};

struct share {
    unsigned __int128 remainder;
    uint32_t unit;
};

static bool grow(struct unit_state *unit, size_t n_words) {
    const size_t capacity = unit->capacity ? 2 * unit->capacity : 64;
    struct page_state *pages = realloc(unit->pages, capacity * sizeof *pages);
    if (pages) unit->pages = pages;
    uint64_t *mask = realloc(unit->mask, capacity * n_words * sizeof *mask);
    if (mask) unit->mask = mask;
    uint32_t *living = realloc(unit->living, capacity * sizeof *living);
    if (living) unit->living = living;
    uint32_t *idle = realloc(unit->idle, capacity * sizeof *idle);
    if (idle) unit->idle = idle;
    if (!pages || !mask || !living || !idle) return false;
    unit->capacity = capacity;
    return true;
}

/*
 * Adds n at the first budget of every run of set bits and takes it away behind the last one: differences that prefix
 * sums turn into n for the budgets with a bit. Either row may be NULL.
 */
static inline void add_runs(const struct layer_state *state, uint64_t *row, uint32_t *row_32, const uint64_t *words,
                            uint64_t n) {
    uint64_t carry = 0; /* whether the budget before the word has a bit */
    for (size_t w = 0; w <= state->n_words; w++) {
        const uint64_t bits = w < state->n_words ? words[w] : 0;
        for (uint64_t edges = bits ^ (bits << 1 | carry); edges; edges &= edges - 1) {
            const size_t bit = (size_t)__builtin_ctzll(edges), b = w * 64 + bit;
            const uint64_t change = bits >> bit & 1 ? n : -n;
            if (row) row[b] += change;
            if (row_32) row_32[b] += (uint32_t)change;
        }
        carry = bits >> 63;
    }
}

/* n misses more under the budgets without a bit, in a row that is read "below": the negative of the above. */
static inline void add_misses(const struct layer_state *state, uint64_t *total, uint32_t *step, const uint64_t *mask,
                              uint32_t n) {
    for (size_t w = 0; w < state->n_words; w++) state->words[w] = ~mask[w] & state->valid[w];
    add_runs(state, total, step, state->words, -(uint64_t)n);
}

/* One unit over steps [from, to), between two prunings. */
static bool serve_unit(struct layer_state *state, size_t u, size_t from, size_t to) {
    struct unit_state *unit = &state->units[u];
    const size_t section = tw_tally_section(state->tally, u);
    for (size_t t = from; t < to; t++) {
        const struct tw_demand_row row = tw_demand_row(state->sweep->demand, u, t);
        const size_t n_before = unit->n;
        for (size_t i = 0; i < row.n; i++) {
            const uint32_t page = row.page[i], local = unit->local[page];
            if (local == 0) {
                if (unit->n == unit->capacity && !grow(unit, state->n_words)) return false;
                unit->pages[unit->n] = (struct page_state){row.score[i], page, 0};
                memcpy(unit->mask + unit->n * state->n_words, state->valid, state->n_words * sizeof *unit->mask);
                unit->local[page] = (uint32_t)++unit->n;
                continue;
            }
            struct page_state *known = &unit->pages[local - 1];
            known->score += row.score[i];
            known->wishes++;
            if (state->tally->step_misses) {
                uint32_t *const step = tw_tally_row(state->tally, state->tally->step_misses, section, t);
                add_misses(state, NULL, step, unit->mask + (local - 1) * state->n_words, 1);
            }
        }
        if (unit->n > n_before) tw_tally_resident(state->tally, section, t, 0, (int64_t)(unit->n - n_before));
    }
    return true;
}

/* Turns the wishes since the last pruning into misses. */
static void count_misses(struct layer_state *state, size_t u) {
    struct unit_state *unit = &state->units[u];
    uint64_t *const row = state->tally->misses + tw_tally_section(state->tally, u) * state->tally->width;
    for (size_t i = 0; i < unit->n; i++) {
        const uint32_t wishes = unit->pages[i].wishes;
        if (wishes == 0) continue;
        add_misses(state, row, NULL, unit->mask + i * state->n_words, wishes);
        unit->pages[i].wishes = 0;
    }
}

static int by_page(const void *a, const void *b, void *pages) {
    const uint32_t x = ((struct page_state *)pages)[*(const uint32_t *)a].page,
                   y = ((struct page_state *)pages)[*(const uint32_t *)b].page;
    return (x > y) - (x < y);
}

static int by_score(const void *a, const void *b, void *pages) {
    const struct page_state *x = (struct page_state *)pages + *(const uint32_t *)a,
                            *y = (struct page_state *)pages + *(const uint32_t *)b;
    if (x->score != y->score) return x->score < y->score ? -1 : 1;
    return (x->page > y->page) - (x->page < y->page);
}

static int by_falling_score(const void *a, const void *b) {
    const uint64_t x = ((const struct contender *)a)->score, y = ((const struct contender *)b)->score;
    return (x < y) - (x > y);
}

/* Merges the pages that came in since the last pruning into `living`, and sorts out which of all were wanted. */
static void order_pages(struct unit_state *unit) {
    const size_t n_fresh = unit->n - unit->n_old;
    uint32_t *const fresh = unit->idle; /* scratch */
    for (size_t i = 0; i < n_fresh; i++) fresh[i] = (uint32_t)(unit->n_old + i);
    if (n_fresh) qsort_r(fresh, n_fresh, sizeof *fresh, by_page, unit->pages);
    size_t to = unit->n_living + n_fresh, i = unit->n_living, j = n_fresh;
    unit->n_living = to;
    while (j > 0) {
        const bool old = i > 0 && unit->pages[unit->living[i - 1]].page > unit->pages[fresh[j - 1]].page;
        unit->living[--to] = old ? unit->living[--i] : fresh[--j];
    }
    unit->n_old = unit->n;
    unit->n_idle = 0;
    size_t n_wanted = 0;
    for (size_t k = 0; k < unit->n_living; k++) {
        const uint32_t index = unit->living[k];
        if (unit->pages[index].score == 0)
            unit->idle[unit->n_idle++] = index;
        else
            unit->idle[unit->n_living - ++n_wanted] = index;
    }
    unit->wanted = unit->idle + unit->n_idle;
    unit->n_wanted = n_wanted;
    if (n_wanted) qsort_r(unit->wanted, n_wanted, sizeof *unit->wanted, by_score, unit->pages);
}

static bool gather_contenders(struct layer_state *state, size_t *n) {
    size_t total = 0;
    for (size_t u = 0; u < state->n_units; u++) total += state->units[u].n_wanted;
    if (total > state->contender_capacity) {
        free(state->contenders);
        state->contender_capacity = 0;
        state->contenders = malloc(total * sizeof *state->contenders);
        if (!state->contenders) return false;
        state->contender_capacity = total;
    }
    *n = 0;
    for (size_t u = 0; u < state->n_units; u++)
        for (size_t i = 0; i < state->units[u].n_wanted; i++) {
            const uint32_t index = state->units[u].wanted[i];
            state->contenders[(*n)++] = (struct contender){state->units[u].pages[index].score, (uint32_t)u, index};
        }
    if (*n) qsort(state->contenders, *n, sizeof *state->contenders, by_falling_score);
    return true;
}

/* The contenders are looked at in blocks; a budget that does not find its threshold in one is counted in bulk. */
#define TW_CONTENDERS_AT_ONCE 64

/* One budget, whose threshold is at or behind `from`, contender by contender; those as good as the last one count too.
 */
static void count_to_threshold(struct layer_state *state, size_t b, size_t from, size_t n_contenders) {
    uint64_t need = state->need[b], threshold = 0;
    for (size_t i = from; i < n_contenders; i++) {
        const struct contender c = state->contenders[i];
        if (need == 0 && c.score != threshold) break;
        if (!(state->units[c.unit].mask[c.index * state->n_words + b / 64] >> (b % 64) & 1)) continue;
        state->held[c.unit * (state->n_budgets + 1) + b]++;
        if (need > 0 && --need == 0) threshold = c.score;
    }
    state->need[b] = need;
}

/* held as differences for the budgets in `alive`, from the contenders [from, to). */
static void count_in_bulk(struct layer_state *state, uint32_t *row, size_t from, size_t to) {
    for (size_t i = from; i < to; i++) {
        const struct contender c = state->contenders[i];
        const uint64_t *mask = state->units[c.unit].mask + c.index * state->n_words;
        for (size_t w = 0; w < state->n_words; w++) state->words[w] = mask[w] & state->alive[w];
        add_runs(state, NULL, row ? row : state->bulk + c.unit * (state->n_budgets + 1), state->words, 1);
    }
}

/*
 * held[u][b]: how many of the unit's resident pages score at least tau, the (B * n_units)-th largest score of the
 * layer's resident pages. Only pages that were wanted are looked at: if they are too few, tau is 0 or less, and every
 * resident page counts.
 */
static void count_held(struct layer_state *state, size_t n_contenders) {
    const struct tw_budgets *budgets = state->sweep->budgets;
    const size_t width = state->n_budgets + 1;
    memset(state->held, 0, state->n_units * width * sizeof *state->held);
    memset(state->bulk, 0, state->n_units * width * sizeof *state->bulk);
    memset(state->alive, 0, state->n_words * sizeof *state->alive);
    for (size_t b = 0; b < state->n_budgets; b++) {
        state->need[b] = budgets->value[b] * state->n_units;
        if (state->need[b]) state->alive[b / 64] |= (uint64_t)1 << (b % 64);
    }
    for (size_t from = 0; from < n_contenders; from += TW_CONTENDERS_AT_ONCE) {
        const size_t to = tw_min_size(n_contenders, from + TW_CONTENDERS_AT_ONCE);
        memset(state->excess, 0, width * sizeof *state->excess);
        count_in_bulk(state, state->excess, from, to);
        uint32_t n = 0;
        for (size_t b = 0; b < state->n_budgets; b++) {
            n += state->excess[b];
            if (!(state->alive[b / 64] >> (b % 64) & 1)) continue;
            if (state->need[b] > n) {
                state->need[b] -= n;
                continue;
            }
            count_to_threshold(state, b, from, n_contenders);
            state->alive[b / 64] &= ~((uint64_t)1 << (b % 64));
        }
        count_in_bulk(state, NULL, from, to);
    }
    for (size_t u = 0; u < state->n_units; u++) {
        uint32_t *held = state->held + u * width, n = 0;
        for (size_t b = 0; b < state->n_budgets; b++) {
            n += state->bulk[u * width + b];
            held[b] += n;
            if (state->need[b] || budgets->value[b] == 0) held[b] = state->units[u].resident[b];
        }
    }
}

/* Whether `a` gets a left-over page before `b`. */
static inline bool ahead(const struct share *a, const struct share *b) {
    return a->remainder > b->remainder || (a->remainder == b->remainder && a->unit < b->unit);
}

/* Moves the n > 0 that are ahead of all others to the front: Hoare's selection, since every budget needs one. */
static void select_ahead(struct share *share, size_t n_shares, size_t n) {
    const ptrdiff_t last = (ptrdiff_t)n - 1;
    for (ptrdiff_t low = 0, high = (ptrdiff_t)n_shares - 1; low < high;) {
        const struct share pivot = share[last];
        ptrdiff_t i = low, j = high;
        while (i <= j) {
            while (ahead(&share[i], &pivot)) i++;
            while (ahead(&pivot, &share[j])) j--;
            if (i > j) break;
            const struct share moved = share[i];
            share[i++] = share[j];
            share[j--] = moved;
        }
        if (j < last) low = i;
        if (last < i) high = j;
    }
}

/* The new budgets of the units under one budget: a quarter of B as a floor, the rest in proportion to what they hold
 * above it. */
static void deal_out(struct layer_state *state, size_t b) {
    const uint64_t budget = state->sweep->budgets->value[b];
    const size_t n_units = state->n_units;
    const uint32_t *held = state->held + b;
    const size_t width = state->n_budgets + 1;
    uint32_t *quota = state->quota + b * n_units;
    unsigned __int128 sum = 0;
    for (size_t u = 0; u < n_units; u++) {
        const uint64_t four = 4 * (uint64_t)held[u * width];
        sum += four > budget ? four - budget : 0;
    }
    /*
     * Where every resident page is held and sum <= 3 * budget * n_units, each part below is at least (budget + x) / 4,
     * which is no less than the head holds: nothing has to go, and how much more fits does not matter.
     */
    if (state->need[b] && sum <= (unsigned __int128)3 * budget * n_units) {
        for (size_t u = 0; u < n_units; u++) quota[u] = UINT32_MAX;
        return;
    }
    const bool equal = sum == 0;
    if (equal) sum = n_units;
    unsigned __int128 left = (unsigned __int128)budget * n_units;
    for (size_t u = 0; u < n_units; u++) {
        const uint64_t four = 4 * (uint64_t)held[u * width];
        const uint64_t x = equal ? 1 : four > budget ? four - budget : 0;
        const unsigned __int128 part = budget * sum + (unsigned __int128)3 * budget * n_units * x, whole = 4 * sum;
        unsigned __int128 quotient;
        if (part <= UINT64_MAX && whole <= UINT64_MAX) {
            quotient = (uint64_t)part / (uint64_t)whole;
            state->share[u].remainder = (uint64_t)part % (uint64_t)whole;
        } else {
            quotient = part / whole;
            state->share[u].remainder = part % whole;
        }
        state->share[u].unit = (uint32_t)u;
        left -= quotient;
        quota[u] = quotient < UINT32_MAX ? (uint32_t)quotient : UINT32_MAX;
    }
    assert(left < n_units || n_units == 0);
    if (left == 0) return;
    select_ahead(state->share, n_units, (size_t)left);
    for (size_t i = 0; i < (size_t)left; i++)
        if (quota[state->share[i].unit] < UINT32_MAX) quota[state->share[i].unit]++;
}

/* Takes the bits of the lowest-scored pages above the quota. */
static void drop(struct layer_state *state, struct unit_state *unit, const uint32_t *list, size_t n) {
    uint64_t any = 1;
    for (size_t i = 0; i < n && any; i++) {
        uint64_t *mask = unit->mask + list[i] * state->n_words;
        any = 0;
        for (size_t w = 0; w < state->n_words; w++) {
            for (uint64_t bits = mask[w] & state->alive[w]; bits; bits &= bits - 1) {
                const size_t bit = (size_t)__builtin_ctzll(bits);
                mask[w] &= ~((uint64_t)1 << bit);
                if (--state->excess[w * 64 + bit] == 0) state->alive[w] &= ~((uint64_t)1 << bit);
            }
            any |= state->alive[w];
        }
    }
}

static void trim(struct layer_state *state, size_t u, size_t step) {
    struct unit_state *unit = &state->units[u];
    const size_t section = tw_tally_section(state->tally, u);
    uint64_t *const row = tw_tally_row(state->tally, state->tally->resident, section, step);
    tw_span_touch(&state->tally->moved[section * state->tally->n_steps + step], 0, state->n_budgets);
    memset(state->alive, 0, state->n_words * sizeof *state->alive);
    uint64_t change_before = 0;
    for (size_t b = 0; b < state->n_budgets; b++) {
        const uint32_t quota = state->quota[b * state->n_units + u];
        state->excess[b] = unit->resident[b] > quota ? unit->resident[b] - quota : 0;
        if (state->excess[b]) state->alive[b / 64] |= (uint64_t)1 << (b % 64);
        unit->resident[b] -= state->excess[b];
        const uint64_t change = -(uint64_t)state->excess[b];
        row[b] += change - change_before;
        change_before = change;
    }
    drop(state, unit, unit->idle, unit->n_idle);
    drop(state, unit, unit->wanted, unit->n_wanted);
    size_t n = 0;
    for (size_t i = 0; i < unit->n_living; i++) {
        const uint32_t index = unit->living[i];
        uint64_t any = 0;
        for (size_t w = 0; w < state->n_words; w++) any |= unit->mask[index * state->n_words + w];
        unit->living[n] = index;
        n += any != 0;
    }
    unit->n_living = n;
    for (size_t i = 0; i < unit->n; i++) unit->pages[i].score = 0;
}

static bool prune(struct layer_state *state, size_t step) {
    for (size_t u = 0; u < state->n_units; u++) {
        struct unit_state *unit = &state->units[u];
        count_misses(state, u);
        const uint32_t n_fresh = (uint32_t)(unit->n - unit->n_old);
        for (size_t b = 0; b < state->n_budgets; b++) unit->resident[b] += n_fresh;
        order_pages(unit);
    }
    size_t n_contenders;
    if (!gather_contenders(state, &n_contenders)) return false;
    count_held(state, n_contenders);
    for (size_t b = 0; b < state->n_budgets; b++) deal_out(state, b);
    for (size_t u = 0; u < state->n_units; u++) trim(state, u, step);
    return true;
}

static bool init_state(struct layer_state *state, struct tw_tally *tally, const struct tw_sweep *sweep) {
    const size_t n_budgets = sweep->budgets->n, n_units = sweep->demand->n_units;
    *state = (struct layer_state){
        .sweep = sweep, .tally = tally, .n_units = n_units, .n_budgets = n_budgets, .n_words = (n_budgets + 63) / 64};
    size_t cells;
    if (!tw_mul_size(&cells, n_budgets + 1, n_units + 1)) return false;
    state->units = calloc(n_units + 1, sizeof *state->units);
    state->held = malloc(cells * sizeof *state->held);
    state->quota = malloc(cells * sizeof *state->quota);
    state->need = malloc((n_budgets + 1) * sizeof *state->need);
    state->excess = malloc((n_budgets + 1) * sizeof *state->excess);
    state->alive = malloc((state->n_words + 1) * sizeof *state->alive);
    state->words = malloc((state->n_words + 1) * sizeof *state->words);
    state->bulk = malloc(cells * sizeof *state->bulk);
    state->valid = calloc(state->n_words + 1, sizeof *state->valid);
    state->share = malloc((n_units + 1) * sizeof *state->share);
    if (!state->units || !state->held || !state->quota || !state->need || !state->excess || !state->alive ||
        !state->words || !state->bulk || !state->valid || !state->share)
        return false;
    for (size_t b = 0; b < n_budgets; b++) state->valid[b / 64] |= (uint64_t)1 << (b % 64);
    for (size_t u = 0; u < n_units; u++) {
        state->units[u].local = calloc(sweep->demand->n_pages + 1, sizeof(uint32_t));
        state->units[u].resident = calloc(n_budgets + 1, sizeof(uint32_t));
        if (!state->units[u].local || !state->units[u].resident) return false;
    }
    return true;
}

static void release_state(struct layer_state *state) {
    for (size_t u = 0; state->units && u < state->n_units; u++) {
        free(state->units[u].local);
        free(state->units[u].resident);
        free(state->units[u].pages);
        free(state->units[u].mask);
        free(state->units[u].living);
        free(state->units[u].idle);
    }
    free(state->units);
    free(state->contenders);
    free(state->held);
    free(state->quota);
    free(state->need);
    free(state->excess);
    free(state->alive);
    free(state->words);
    free(state->bulk);
    free(state->valid);
    free(state->share);
}

static tw_status reasonalloc_sweep(struct tw_tally *tally, const struct tw_sweep *sweep, struct tw_error *err) {
    const uint64_t delta = ((const struct reasonalloc_options *)sweep->options)->delta;
    const size_t n_steps = sweep->demand->n_steps;
    struct layer_state state;
    bool fine = init_state(&state, tally, sweep);
    for (size_t from = 0; fine && from < n_steps;) {
        const size_t to = n_steps - from > delta ? from + (size_t)delta : n_steps;
        for (size_t u = 0; fine && u < state.n_units; u++) fine = serve_unit(&state, u, from, to);
        if (fine && to - from == delta) fine = prune(&state, to - 1);
        from = to;
    }
    for (size_t u = 0; fine && u < state.n_units; u++) count_misses(&state, u);
    release_state(&state);
    if (!fine)
        return TW_FAIL(err, TW_E_MEMORY, "not enough memory for the residency of %zu pages under %zu budgets",
                       sweep->demand->n_pages, sweep->budgets->n);
    return TW_OK;
}

const struct tw_policy tw_policy_reasonalloc = {
    .interface = TW_POLICY_INTERFACE,
    .name = "reasonalloc",
    .summary = "as rkv, with budgets that move between the heads of a layer",
    .source = "ReasonAlloc, as simplified by WakeKV",
    .scores = 1,
    .options = reasonalloc_options,
    .options_size = sizeof(struct reasonalloc_options),
    .prunes_every = 1,
    .sweep = reasonalloc_sweep,
};
