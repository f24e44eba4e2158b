/* The engine as a whole on small models: eviction, positions, ties, memory (cases C13 to C20, C38; prefill invariants).
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/half.h"
#include "base/stop.h"
#include "engine/sample.h"
#include "tests/engine/tiny.h"
#include "tests/support.h"

static struct tw_engine_options tiny_options(const char *schedule, const char *selector, size_t chunk, size_t window,
                                             size_t budget) {
    struct tw_engine_options options;
    tw_engine_options_init(&options);
    options.schedule = schedule;
    options.selector = selector;
    options.chunk = chunk;
    options.budget = budget;
    options.backend_options.window = window;
    options.backend_options.n_threads = 1;
    return options;
}

static float *hidden_of(const struct tw_model *model, const struct tw_engine_options *options, const int32_t *tokens,
                        size_t n) {
    struct tw_engine *engine = tw_tiny_engine(model, options);
    float *hidden = tw_tiny_hidden(engine, tokens, n, 0);
    tw_engine_free(engine);
    return hidden;
}

static size_t hidden_floats(const struct tw_model *model, size_t n) {
    return (model->config.n_layers + 1) * n * model->config.n_embd;
}

static void prefill(struct tw_engine *engine, const int32_t *tokens, size_t n, size_t reserve) {
    struct tw_error err = {0};
    ck_assert_msg(tw_engine_prefill(engine, tokens, n, reserve, NULL, NULL, &err) == TW_OK, "%s", err.text);
}

/* ---- what eviction may and may not change ---- */

/* Memory as it may come: every allocation is full of NaN. */
static tw_status allocate_poison(void *context, void **data, size_t bytes, const char *what, struct tw_error *err) {
    TW_TRY(tw_memory_host.allocate(context, data, bytes, what, err));
    memset(*data, 0xff, bytes);
    return TW_OK;
}

/* C13: nothing that has not been written is ever read. */
START_TEST(unwritten_memory_is_never_read) {
    static const char *const schedules[] = {"oneshot", "chunked", "tide", "postprefill", "block"};
    struct tw_model *model = tw_tiny_model(&tw_tiny_llama, 3);
    int32_t *tokens = tw_tiny_tokens(model, 40, 3);
    struct tw_error err = {0};
    for (size_t s = 0; s < 5; s++) {
        const struct tw_engine_options options = tiny_options(schedules[s], "snapkv", 16, 8, s >= 2 ? 12 : 0);
        struct tw_engine *engine = tw_tiny_engine(model, &options);
        engine->accountant.source.allocate = allocate_poison;
        free(tw_tiny_hidden(engine, tokens, 40, 3));
        for (int t = 0; t < 5; t++) {
            ck_assert(tw_engine_decode(engine, 5, NULL, &err) == TW_OK);
            for (size_t v = 0; v < model->config.n_vocab; v++) ck_assert(isfinite(tw_engine_logits(engine)[v]));
        }
        tw_engine_free(engine);
    }
    free(tokens);
    tw_tiny_free(model);
}
END_TEST

/* C14 */
START_TEST(block_eviction_is_not_simulated) {
    const size_t n = 64, chunk = 16, n_embd = tw_tiny_llama.n_embd;
    struct tw_model *model = tw_tiny_model(&tw_tiny_llama, 11);
    int32_t *tokens = tw_tiny_tokens(model, n, 11);
    struct tw_engine_options options = tiny_options("oneshot", "snapkv", chunk, 8, 0);
    float *exact = hidden_of(model, &options, tokens, n);
    options = tiny_options("block", "snapkv", chunk, 8, 24);
    float *block = hidden_of(model, &options, tokens, n);
    options = tiny_options("tide", "snapkv", chunk, 8, 24);
    float *tide = hidden_of(model, &options, tokens, n);
    options = tiny_options("block", "snapkv", chunk, 8, n);
    float *roomy = hidden_of(model, &options, tokens, n);

    double worst = 0;
    for (size_t l = 0; l <= model->config.n_layers; l++) {
        ck_assert_mem_eq(block + l * n * n_embd, exact + l * n * n_embd, 2 * chunk * n_embd * sizeof(float));
        for (size_t i = 2 * chunk * n_embd; i < 3 * chunk * n_embd; i++)
            worst = fmax(worst, fabs(block[l * n * n_embd + i] - exact[l * n * n_embd + i]));
    }
    ck_assert(worst > 1e-3);
    ck_assert_mem_eq(tide, exact, hidden_floats(model, n) * sizeof(float));
    ck_assert_mem_eq(roomy, exact, hidden_floats(model, n) * sizeof(float));
    free(exact), free(block), free(tide), free(roomy);
    free(tokens);
    tw_tiny_free(model);
}
END_TEST

/* The fourth invariant, for every selector: what is kept never changes the prompt's path. */
START_TEST(hidden_states_do_not_depend_on_selector_or_budget) {
    const size_t n = 70;
    struct tw_model *model = tw_tiny_model(&tw_tiny_llama, 12);
    int32_t *tokens = tw_tiny_tokens(model, n, 12);
    struct tw_engine_options options = tiny_options("tide-noevict", "snapkv", 16, 8, 0);
    float *exact = hidden_of(model, &options, tokens, n);
    for (const struct tw_selector *const *s = tw_selector_table; *s; s++)
        for (size_t budget = 8; budget <= 72; budget += 16)
            for (size_t whole = 0; whole < 2; whole++) {
                options = tiny_options(whole ? "postprefill" : "tide", (*s)->name, 16, 8, budget);
                float *hidden = hidden_of(model, &options, tokens, n);
                ck_assert_mem_eq(hidden, exact, hidden_floats(model, n) * sizeof(float));
                free(hidden);
            }
    free(exact);
    free(tokens);
    tw_tiny_free(model);
}
END_TEST

/* C15, for every selector and layer-major schedule. */
START_TEST(selections_do_not_depend_on_the_chunk) {
    const size_t n = 64, budget = 16;
    struct tw_model *model = tw_tiny_model(&tw_tiny_llama, 13);
    int32_t *tokens = tw_tiny_tokens(model, n, 13);
    for (const struct tw_selector *const *s = tw_selector_table; *s; s++) {
        int32_t *expected = NULL;
        for (size_t c = 0; c < 4; c++) {
            const struct tw_engine_options options =
                tiny_options(c == 3 ? "postprefill" : "tide", (*s)->name, (size_t[]){8, 16, 64, 64}[c], 8, budget);
            struct tw_engine *engine = tw_tiny_engine(model, &options);
            prefill(engine, tokens, n, 0);
            ck_assert_uint_eq(engine->retained_rows, budget * model->config.n_layers * model->config.n_kv_heads);
            size_t n_kept;
            int32_t *kept = tw_tiny_kept(engine, &n_kept);
            if (expected) ck_assert_mem_eq(kept, expected, n_kept * sizeof *kept);
            if (!expected)
                expected = kept;
            else
                free(kept);
            tw_engine_free(engine);
        }
        free(expected);
    }
    free(tokens);
    tw_tiny_free(model);
}
END_TEST

/* Under `block` every selector leaves its budget, never chunks times it. */
START_TEST(block_keeps_its_budget) {
    const size_t n = 100, budget = 24;
    struct tw_model *model = tw_tiny_model(&tw_tiny_llama, 14);
    int32_t *tokens = tw_tiny_tokens(model, n, 14);
    for (const struct tw_selector *const *s = tw_selector_table; *s; s++)
        for (size_t chunk = 5; chunk < 100; chunk += 31) {
            const struct tw_engine_options options = tiny_options("block", (*s)->name, chunk, 8, budget);
            struct tw_engine *engine = tw_tiny_engine(model, &options);
            free(tw_tiny_hidden(engine, tokens, n, 0));
            ck_assert_uint_eq(engine->retained_rows, budget * model->config.n_layers * model->config.n_kv_heads);
            tw_engine_free(engine);
        }
    free(tokens);
    tw_tiny_free(model);
}
END_TEST

/* ---- ties ---- */

struct row_log {
    struct tw_attention_log log;
    int32_t position[4 * 64];
    float weight[4 * 64];
};

static void row_log_init(struct row_log *row) {
    memset(row, 0, sizeof *row);
    row->log = (struct tw_attention_log){.top_k = 64, .position = row->position, .weight = row->weight};
}

/* C18 */
START_TEST(ties_go_to_the_lower_position) {
    static const int32_t expected[] = {2, 3, 4, 5, 16, 17, 18, 19};
    struct tw_model *model = tw_tiny_model(&tw_tiny_zero_key, 15);
    int32_t *tokens = tw_tiny_tokens(model, 120, 15);
    for (size_t c = 0; c < 12; c++) {
        struct tw_engine_options options = tiny_options("tide", "snapkv", (size_t[]){20, 7, 3}[c % 3], 4, 8);
        options.block = (size_t[]){1, 2, 5, 64}[c / 3];
        options.backend_options.n_threads = 1 + (c == 5);
        struct tw_engine *engine = tw_tiny_engine(model, &options);
        prefill(engine, tokens, 20, 0);
        for (size_t l = 0; l < 2; l++)
            for (size_t g = 0; g < 2; g++) {
                ck_assert_uint_eq(engine->cache[l].length[g], 8);
                ck_assert_mem_eq(engine->cache[l].position[g], expected, sizeof expected);
            }
        tw_engine_free(engine);
    }
    const struct tw_engine_options options = tiny_options("tide", "snapkv", 32, 4, 0);
    struct tw_engine *engine = tw_tiny_engine(model, &options);
    struct row_log rows[2];
    struct tw_attention_log logs[2];
    struct tw_error err = {0};
    for (size_t l = 0; l < 2; l++) {
        row_log_init(&rows[l]);
        logs[l] = rows[l].log;
    }
    prefill(engine, tokens, 99, 1);
    ck_assert(tw_engine_decode(engine, 7, logs, &err) == TW_OK);
    for (size_t l = 0; l < 2; l++)
        for (size_t i = 0; i < 4 * 64; i++) {
            ck_assert_int_eq(rows[l].position[i], (int)(i % 64));
            ck_assert_uint_eq(tw_half_from_float(rows[l].weight[i]), tw_half_from_float(0.01f));
        }
    tw_engine_free(engine);
    free(tokens);
    tw_tiny_free(model);
}
END_TEST

/* ---- decoding ---- */

static double greatest_difference(const float *a, const float *b, size_t n) {
    double worst = 0;
    for (size_t i = 0; i < n; i++) worst = fmax(worst, fabs((double)a[i] - b[i]));
    return worst;
}

/* C20: with a full cache decoding gives the logits of a prefill over everything; positions are true ones in any. */
START_TEST(decoding_goes_on_at_absolute_positions) {
    const size_t n = 48, n_new = 8, n_vocab = tw_tiny_llama.n_vocab;
    struct tw_tiny_shape shape = tw_tiny_llama;
    shape.extras = _i == 1;
    shape.sliding_window = _i == 2 ? 20 : 0;
    struct tw_model *model = tw_tiny_model(&shape, 16);
    int32_t *tokens = tw_tiny_tokens(model, n + n_new, 16);
    struct tw_error err = {0};
    float logits[8 * 96];
    for (size_t budget = 16; budget <= n; budget += 32) {
        const struct tw_engine_options options = tiny_options("tide", "snapkv", 16, 8, budget);
        struct tw_engine *engine = tw_tiny_engine(model, &options);
        prefill(engine, tokens, n, budget == n ? n_new : 0); /* once with room, once growing */
        for (size_t t = 0; t < n_new; t++) {
            ck_assert_uint_eq(engine->position, n + t);
            ck_assert(tw_engine_decode(engine, tokens[n + t], NULL, &err) == TW_OK);
            memcpy(logits + t * n_vocab, tw_engine_logits(engine), n_vocab * sizeof(float));
            for (size_t l = 0; l < model->config.n_layers; l++)
                for (size_t g = 0; g < model->config.n_kv_heads; g++) {
                    const size_t length = engine->cache[l].length[g];
                    ck_assert_uint_eq(length, budget + t + 1);
                    ck_assert_uint_eq(tw_kv_position(&engine->cache[l], g, length - 1), n + t);
                }
        }
        tw_engine_free(engine);
    }
    const struct tw_engine_options options = tiny_options("oneshot", "snapkv", 16, 8, 0);
    for (size_t t = 0; t < n_new; t++) {
        struct tw_engine *engine = tw_tiny_engine(model, &options);
        prefill(engine, tokens, n + t + 1, 0);
        ck_assert(greatest_difference(tw_engine_logits(engine), logits + t * n_vocab, n_vocab) <= 1e-4);
        tw_engine_free(engine);
    }
    free(tokens);
    tw_tiny_free(model);
}
END_TEST

/* C19: threads do not matter, nor does repetition in one process. */
START_TEST(greedy_text_does_not_depend_on_threads) {
    struct tw_model *model = tw_tiny_model(&tw_tiny_llama, 17);
    int32_t *tokens = tw_tiny_tokens(model, 60, 17);
    int32_t expected[12] = {0};
    struct tw_error err = {0};
    for (size_t r = 0; r < 4; r++) {
        struct tw_engine_options options = tiny_options("tide", "adakv", 16, 8, 24);
        options.backend_options.n_threads = 1 + r / 2;
        struct tw_engine *engine = tw_tiny_engine(model, &options);
        for (size_t again = 0; again < 2; again++) {
            prefill(engine, tokens, 60, 12);
            for (size_t t = 0; t < 12; t++) {
                const int32_t token = tw_sample_greedy(tw_engine_logits(engine), model->config.n_vocab);
                if (r == 0 && again == 0) expected[t] = token;
                ck_assert_int_eq(token, expected[t]);
                ck_assert(tw_engine_decode(engine, token, NULL, &err) == TW_OK);
            }
        }
        tw_engine_free(engine);
    }
    free(tokens);
    tw_tiny_free(model);
}
END_TEST

/* ---- memory ---- */

struct peaks {
    size_t active, chunk, compression, bridge, compact;
};

static struct peaks peaks_of(const struct tw_model *model, const struct tw_engine_options *options,
                             const int32_t *tokens, size_t n) {
    struct tw_engine *engine = tw_tiny_engine(model, options);
    prefill(engine, tokens, n, 0);
    const struct tw_accountant *a = &engine->accountant;
    const struct peaks peaks = {
        .active = tw_accountant_category_peak(a, TW_CATEGORY_ACTIVE_KV),
        .chunk = tw_accountant_category_peak(a, TW_CATEGORY_CHUNK),
        .compression = tw_accountant_category_peak(a, TW_CATEGORY_COMPRESSION),
        .bridge = tw_accountant_category_peak(a, TW_CATEGORY_BRIDGE),
        .compact = a->current[TW_CATEGORY_COMPACT_CACHE],
    };
    tw_engine_free(engine);
    return peaks;
}

/* The first three invariants of the schedule, and the paper's formulas for the rest. */
START_TEST(memory_of_tide_is_what_the_paper_says) {
    struct tw_model *model = tw_tiny_model(&tw_tiny_llama, 18);
    int32_t *tokens = tw_tiny_tokens(model, 1000, 18);
    const size_t row = 2 * 2 * 8 * sizeof(float); /* key and value of both heads */
    for (const struct tw_selector *const *s = tw_selector_table; *s; s++) {
        struct tw_engine_options options = tiny_options("tide", (*s)->name, 32, 8, 40);
        options.block = 64;
        const struct peaks small = peaks_of(model, &options, tokens, 250);
        const struct peaks large = peaks_of(model, &options, tokens, 1000);
        ck_assert_uint_eq(small.active, 250 * row); /* one layer's, whatever the number of layers */
        ck_assert_uint_eq(large.active, 1000 * row);
        ck_assert_uint_eq(small.chunk, large.chunk);
        ck_assert_uint_eq(small.compression, large.compression);
        ck_assert_uint_eq(large.bridge, 1000 * 32 * sizeof(float) + 32 * sizeof(float)); /* and the last row */
        ck_assert_uint_eq(large.compact, 2 * 40 * row);
    }
    /* Without eviction every layer's KV stays; in one shot the chunk grows with the prompt. */
    const struct tw_engine_options keep = tiny_options("tide-noevict", "snapkv", 32, 8, 0);
    ck_assert_uint_eq(peaks_of(model, &keep, tokens, 1000).active, 2 * 1000 * row);
    const struct tw_engine_options whole = tiny_options("postprefill", "snapkv", 32, 8, 40);
    ck_assert_uint_gt(peaks_of(model, &whole, tokens, 1000).chunk,
                      4 * peaks_of(model, &whole, tokens, 250).chunk - 65536);
    free(tokens);
    tw_tiny_free(model);
}
END_TEST

START_TEST(a_limit_names_what_did_not_fit) {
    struct tw_model *model = tw_tiny_model(&tw_tiny_llama, 19);
    int32_t *tokens = tw_tiny_tokens(model, 400, 19);
    struct tw_engine_options options = tiny_options("tide", "snapkv", 32, 8, 16);
    struct tw_engine *engine = tw_tiny_engine(model, &options);
    prefill(engine, tokens, 400, 0);
    const size_t needed = tw_accountant_peak(&engine->accountant) - engine->accountant.mapped;
    tw_engine_free(engine);

    size_t refused = 0;
    for (size_t limit = needed; limit > needed / 4; limit -= 1 + needed / 50) {
        struct tw_error err = {0};
        options.memory_limit = limit;
        if (tw_engine_open(&engine, model, &options, &err) != TW_OK) break; /* below what opening needs */
        const tw_status status = tw_engine_prefill(engine, tokens, 400, 0, NULL, NULL, &err);
        ck_assert_int_eq(status, limit == needed ? TW_OK : TW_E_MEMORY);
        if (status != TW_OK) {
            ck_assert_msg(strstr(err.text, "memory limit of") && strstr(err.text, "needs") && strstr(err.text, "left"),
                          "%s", err.text);
            refused++;
            /* Nothing is left behind, and a smaller prompt still runs. */
            ck_assert_uint_eq(engine->accountant.current[TW_CATEGORY_BRIDGE], 0);
            ck_assert_uint_eq(engine->accountant.current[TW_CATEGORY_ACTIVE_KV], 0);
            ck_assert_uint_eq(engine->accountant.current[TW_CATEGORY_COMPACT_CACHE], 0);
            ck_assert_uint_eq(engine->accountant.current[TW_CATEGORY_COMPRESSION], 0);
        }
        tw_engine_free(engine);
    }
    ck_assert_uint_gt(refused, 5);
    free(tokens);
    tw_tiny_free(model);
}
END_TEST

/* C38: one process, many prompts of different lengths: nothing grows, and each phase has its own peak. */
START_TEST(many_requests_leave_memory_as_it_was) {
    struct tw_model *model = tw_tiny_model(&tw_tiny_llama, 20);
    int32_t *tokens = tw_tiny_tokens(model, 400, 20);
    const struct tw_engine_options options = tiny_options("tide", "snapkv", 16, 8, 24);
    struct tw_engine *engine = tw_tiny_engine(model, &options);
    const size_t idle = engine->accountant.total;
    struct tw_error err = {0};
    size_t after_20 = 0;
    for (size_t r = 0; r < 150; r++) {
        tw_accountant_reset_peaks(&engine->accountant);
        const size_t n = r == 10 ? 190 : 40 + (r * 53) % 150;
        prefill(engine, tokens, n, 1);
        ck_assert(tw_engine_decode(engine, 3, NULL, &err) == TW_OK);
        const struct tw_accountant *a = &engine->accountant;
        ck_assert_uint_lt(a->peak_total[TW_PHASE_DECODE], a->peak_total[TW_PHASE_PREFILL]);
        ck_assert_uint_eq(a->peak[TW_PHASE_DECODE][TW_CATEGORY_BRIDGE], 0);
        ck_assert_uint_gt(a->peak[TW_PHASE_LAYER_END][TW_CATEGORY_COMPRESSION], 0);
        tw_engine_reset(engine);
        ck_assert_uint_eq(engine->accountant.total, idle);
        if (r == 20) after_20 = tw_test_private_bytes();
    }
    ck_assert_uint_gt(after_20, 0);
#ifndef __SANITIZE_ADDRESS__ /* AddressSanitizer keeps what was freed, to see uses of it */
    ck_assert_uint_le(tw_test_private_bytes(),
                      after_20 + after_20 / 100 + 65536); /* and a few pages of the C library's */
#endif
    tw_engine_free(engine);
    free(tokens);
    tw_tiny_free(model);
}
END_TEST

static void books_of(struct tw_accountant *books, const struct tw_model *model, const struct tw_engine_options *options,
                     const int32_t *tokens, size_t n) {
    struct tw_error err = {0};
    struct tw_engine *engine = tw_tiny_engine(model, options);
    struct row_log *rows = calloc(model->config.n_layers, sizeof *rows);
    struct tw_attention_log *logs = calloc(model->config.n_layers, sizeof *logs);
    for (size_t l = 0; l < model->config.n_layers; l++) {
        row_log_init(&rows[l]);
        logs[l] = rows[l].log;
    }
    prefill(engine, tokens, n, 5);
    for (int t = 0; t < 5; t++) ck_assert(tw_engine_decode(engine, 1, t % 2 ? logs : NULL, &err) == TW_OK);
    *books = engine->accountant;
    books->events = NULL;
    free(rows);
    free(logs);
    tw_engine_free(engine);
}

/* What the dry backend books in the image of another is what the other books, to the byte, in every phase. */
START_TEST(dry_books_are_the_real_ones) {
    static const char *const images[] = {"ref", "cpu"};
    static const char *const schedules[] = {"oneshot", "chunked", "tide-noevict", "tide", "postprefill", "block"};
    struct tw_tiny_shape shape = tw_tiny_llama;
    shape.n_layers = 3;
    struct tw_model *model = tw_tiny_model(&shape, 23);
    int32_t *tokens = tw_tiny_tokens(model, 333, 23);
    for (size_t i = 0; i < 2; i++)
        for (size_t s = 0; s < 6; s++)
            for (const struct tw_selector *const *selector = tw_selector_table; *selector; selector++)
                for (size_t eager = 0; eager < 2; eager++) {
                    /* How adakv's heads share their budget is the scores' to say: what is planned is a bound. */
                    const bool bound = (*selector)->head_budget;
                    struct tw_engine_options options =
                        tiny_options(schedules[s], (*selector)->name, 50, 8, s == 0 || s == 1 || s == 2 ? 0 : 44);
                    options.backend = images[i];
                    options.block = 100;
                    options.backend_options.attention = eager ? TW_ATTENTION_EAGER : TW_ATTENTION_TILED;
                    struct tw_accountant real, dry;
                    books_of(&real, model, &options, tokens, 333);
                    options.backend = "dry";
                    options.image = images[i];
                    books_of(&dry, model, &options, tokens, 333);
                    for (int p = 0; p < TW_N_PHASES; p++) {
                        for (int c = 0; c < TW_N_CATEGORIES; c++)
                            ck_assert_msg(bound ? real.peak[p][c] <= dry.peak[p][c] : real.peak[p][c] == dry.peak[p][c],
                                          "%s, %s, %s, %s, %s: %zu, planned %zu", images[i], schedules[s],
                                          (*selector)->name, tw_phase_names[p], tw_category_names[c], real.peak[p][c],
                                          dry.peak[p][c]);
                        ck_assert_uint_le(real.peak_total[p], dry.peak_total[p]);
                        if (!bound) ck_assert_uint_eq(real.peak_total[p], dry.peak_total[p]);
                    }
                    ck_assert_uint_le(real.peak_live, dry.peak_live);
                    if (!bound) ck_assert_uint_eq(real.peak_live, dry.peak_live);
                    /* And no more than the rounding of each head above. */
                    const size_t cache = real.peak[TW_PHASE_DECODE][TW_CATEGORY_COMPACT_CACHE];
                    ck_assert_uint_le(dry.peak[TW_PHASE_DECODE][TW_CATEGORY_COMPACT_CACHE],
                                      cache + 64 * 2 * 2 * 3 * 8 * sizeof(float));
                }
    free(tokens);
    tw_tiny_free(model);
}
END_TEST

/* ---- stopping and refusing ---- */

static tw_status stop_at_third(void *context, size_t index, const struct tw_bridge *bridge, size_t first_row,
                               size_t first_position, size_t n, struct tw_error *err) {
    (void)index, (void)bridge, (void)first_row, (void)first_position, (void)n, (void)err;
    if (++*(int *)context == 3) tw_stop_request();
    return TW_OK;
}

START_TEST(prefill_stops_within_a_chunk) {
    static const char *const schedules[] = {"oneshot", "chunked", "tide", "block"};
    struct tw_model *model = tw_tiny_model(&tw_tiny_llama, 21);
    int32_t *tokens = tw_tiny_tokens(model, 100, 21);
    for (size_t s = 0; s < 4; s++) {
        const struct tw_engine_options options = tiny_options(schedules[s], "snapkv", 16, 8, s >= 2 ? 24 : 0);
        struct tw_engine *engine = tw_tiny_engine(model, &options);
        const size_t idle = engine->accountant.total;
        int calls = 0;
        struct tw_error err = {0};
        const struct tw_watch watch = {.context = &calls, .hidden = stop_at_third};
        const tw_status status = tw_engine_prefill(engine, tokens, 100, 0, &watch, NULL, &err);
        tw_stop_reset();
        if (s == 0) {
            ck_assert_int_eq(status, TW_OK); /* three calls are all that oneshot makes: nothing is left to stop */
        } else {
            ck_assert_int_eq(status, TW_E_INTERRUPTED);
            ck_assert(calls <= 8); /* the rest of the embedding's chunks, at most */
            ck_assert_uint_eq(engine->accountant.total, idle);
        }
        tw_engine_free(engine);
    }
    free(tokens);
    tw_tiny_free(model);
}
END_TEST

START_TEST(what_cannot_be_run_is_refused) {
    struct tw_tiny_shape shape = tw_tiny_llama;
    shape.context_length = 64;
    struct tw_model *model = tw_tiny_model(&shape, 22);
    int32_t *tokens = tw_tiny_tokens(model, 100, 22);
    struct tw_engine *engine;
    struct tw_error err = {0};
    struct tw_engine_options options = tiny_options("chunked", "snapkv", 16, 8, 24);
    ck_assert_int_eq(tw_engine_open(&engine, model, &options, &err), TW_E_OPTION);
    options = tiny_options("tides", "snapkv", 16, 8, 24);
    ck_assert_int_eq(tw_engine_open(&engine, model, &options, &err), TW_E_OPTION);
    options = tiny_options("tide", "snapkv", 16, 8, 24);
    options.backend = "no-such";
    ck_assert_int_eq(tw_engine_open(&engine, model, &options, &err), TW_E_OPTION);

    options = tiny_options("tide", "snapkv", 16, 8, 7);
    engine = tw_tiny_engine(model, &options);
    ck_assert_int_eq(tw_engine_prefill(engine, tokens, 0, 0, NULL, NULL, &err), TW_E_INPUT);
    ck_assert_int_eq(tw_engine_prefill(engine, tokens, 65, 0, NULL, NULL, &err), TW_E_INPUT);
    ck_assert_int_eq(tw_engine_prefill(engine, tokens, 30, 0, NULL, NULL, &err), TW_E_OPTION); /* K < W */
    ck_assert_int_eq(tw_engine_prefill(engine, tokens, 7, 0, NULL, NULL, &err), TW_OK);        /* S < W */
    tokens[5] = 96;
    ck_assert_int_eq(tw_engine_prefill(engine, tokens, 7, 0, NULL, NULL, &err), TW_E_INPUT);
    ck_assert(strstr(err.text, "96"));
    tokens[5] = 1;
    prefill(engine, tokens, 7, 0);
    for (size_t t = 7; t < 64; t++) ck_assert(tw_engine_decode(engine, 1, NULL, &err) == TW_OK);
    ck_assert_int_eq(tw_engine_decode(engine, 1, NULL, &err), TW_E_INPUT);
    tw_engine_free(engine);
    free(tokens);
    tw_tiny_free(model);
}
END_TEST

/* ---- sampling ---- */

START_TEST(sampling_follows_the_probabilities) {
    const float logits[] = {logf(0.5f), logf(0.3f), logf(0.15f), logf(0.05f)};
    struct tw_error err = {0};
    int counts[4] = {0}, nucleus[4] = {0};
    struct tw_sampler all, some;
    tw_sampler_init(&all, 1, 1, 5);
    tw_sampler_init(&some, 1, 0.8, 5);
    for (int i = 0; i < 20000; i++) {
        int32_t token;
        ck_assert(tw_sample(&token, &all, logits, 4, &err) == TW_OK);
        counts[token]++;
        ck_assert(tw_sample(&token, &some, logits, 4, &err) == TW_OK);
        nucleus[token]++;
    }
    for (int v = 0; v < 4; v++) ck_assert(fabs(counts[v] / 20000.0 - exp(logits[v])) < 0.015);
    ck_assert(nucleus[2] == 0 && nucleus[3] == 0 && fabs(nucleus[0] / 20000.0 - 0.5 / 0.8) < 0.015);
    tw_sampler_release(&all);
    tw_sampler_release(&some);
    const float ties[] = {NAN, 1, 3, 3, NAN};
    ck_assert_int_eq(tw_sample_greedy(ties, 5), 2);
}
END_TEST

Suite *tw_suite_engine(void);

Suite *tw_suite_engine(void) {
    Suite *suite = suite_create("engine");
    TCase *tcase = tcase_create("small models");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, unwritten_memory_is_never_read);
    tcase_add_test(tcase, block_eviction_is_not_simulated);
    tcase_add_test(tcase, hidden_states_do_not_depend_on_selector_or_budget);
    tcase_add_test(tcase, selections_do_not_depend_on_the_chunk);
    tcase_add_test(tcase, block_keeps_its_budget);
    tcase_add_test(tcase, ties_go_to_the_lower_position);
    tcase_add_loop_test(tcase, decoding_goes_on_at_absolute_positions, 0, 3);
    tcase_add_test(tcase, greedy_text_does_not_depend_on_threads);
    tcase_add_test(tcase, memory_of_tide_is_what_the_paper_says);
    tcase_add_test(tcase, a_limit_names_what_did_not_fit);
    tcase_add_test(tcase, many_requests_leave_memory_as_it_was);
    tcase_add_test(tcase, dry_books_are_the_real_ones);
    tcase_add_test(tcase, prefill_stops_within_a_chunk);
    tcase_add_test(tcase, what_cannot_be_run_is_refused);
    tcase_add_test(tcase, sampling_follows_the_probabilities);
    suite_add_tcase(suite, tcase);
    return suite;
}
