#include "tests/trace_maker.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "base/random.h"

static void *room(size_t n, size_t size) {
    void *const memory = calloc(n ? n : 1, size);
    ck_assert_ptr_nonnull(memory);
    return memory;
}

void tw_test_trace_shape(struct tw_test_trace *trace, size_t n_steps) {
    *trace = (struct tw_test_trace){
        .info = {.n_layers = 3,
                 .n_heads = 4,
                 .n_kv_heads = 2,
                 .head_dim = 8,
                 .top_k = 10,
                 .prompt_length = 37,
                 .n_steps = n_steps,
                 .has_needle = true,
                 .needle_begin = 5,
                 .needle_end = 9,
                 .has_windows = true,
                 .sink_tokens = 4,
                 .local_window = 32,
                 .budget = 0,
                 .chunk = 2048,
                 .seed = 7,
                 .threads = 2},
        .options = {.needle = true, .copy_paste = true, .window_vote = true, .key = true, .kept_width = 6},
    };
    struct tw_error err = {0};
    ck_assert_int_eq(tw_trace_info_set(&trace->info.model, "tiny", &err), TW_OK);
    ck_assert_int_eq(tw_trace_info_set(&trace->info.task, "test", &err), TW_OK);
    ck_assert_int_eq(tw_trace_info_set(&trace->info.run, "run0", &err), TW_OK);
}

static void make_row(struct tw_random *random, int32_t *position, float *weight, size_t top_k, size_t context) {
    float left = 1;
    const size_t n = tw_random_below(random, 8) ? top_k : tw_random_below(random, top_k + 1);
    for (size_t k = 0; k < top_k; k++) {
        const bool there = k < n && context > 0;
        position[k] = there ? (int32_t)tw_random_below(random, context) : -1;
        weight[k] = there ? tw_float_from_half(tw_half_from_float(left * 0.3f)) : 0;
        left *= 0.7f;
    }
}

void tw_test_trace_make(struct tw_test_trace *trace, uint64_t seed) {
    const struct tw_trace_info *const info = &trace->info;
    const size_t S = info->n_steps, L = info->n_layers, H = info->n_heads, K = info->top_k, P = info->prompt_length;
    const size_t G = info->n_kv_heads, d = info->head_dim, N = trace->options.kept_width;
    struct tw_random random;
    tw_random_init(&random, seed, 0);
    trace->position = room(S * L * H * K, sizeof *trace->position);
    trace->weight = room(S * L * H * K, sizeof *trace->weight);
    trace->context_length = room(S, sizeof *trace->context_length);
    trace->token_id = room(S, sizeof *trace->token_id);
    trace->prompt = room(P, sizeof *trace->prompt);
    trace->needle = room(S * L * H, sizeof *trace->needle);
    trace->copy_paste = room(S * L * H, sizeof *trace->copy_paste);
    trace->vote = room(L * G * P, sizeof *trace->vote);
    trace->kept = room(L * G * N, sizeof *trace->kept);
    trace->key = room(L * (P + S) * G * d, sizeof *trace->key);
    for (size_t i = 0; i < P; i++) trace->prompt[i] = (int32_t)tw_random_below(&random, 50000);
    for (size_t t = 0; t < S; t++) {
        trace->context_length[t] = (int32_t)(P + t);
        trace->token_id[t] = (int32_t)tw_random_below(&random, 50000);
        for (size_t row = t * L * H; row < (t + 1) * L * H; row++) {
            make_row(&random, trace->position + row * K, trace->weight + row * K, K, P + t);
            trace->needle[row] = (float)tw_random_unit(&random);
            trace->copy_paste[row] = (uint8_t)tw_random_below(&random, 2);
        }
    }
    for (size_t i = 0; i < L * G * P; i++)
        trace->vote[i] = tw_float_from_half((uint16_t)tw_random_below(&random, 0x3c00));
    for (size_t i = 0; i < L * G * N; i++) trace->kept[i] = (int32_t)tw_random_below(&random, P + 1) - 1;
    for (size_t i = 0; i < L * (P + S) * G * d; i++) trace->key[i] = (uint16_t)tw_random_below(&random, 0x7c00);
}

void tw_test_trace_release(struct tw_test_trace *trace) {
    tw_trace_info_release(&trace->info);
    free(trace->position);
    free(trace->weight);
    free(trace->context_length);
    free(trace->token_id);
    free(trace->prompt);
    free(trace->needle);
    free(trace->copy_paste);
    free(trace->vote);
    free(trace->kept);
    free(trace->key);
}

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        struct tw_error err = {0};                                                                                     \
        ck_assert_msg((call) == TW_OK, "%s", err.text);                                                                \
    } while (0)

void tw_test_trace_append(struct tw_trace_writer *writer, const struct tw_test_trace *trace, size_t first, size_t n) {
    const struct tw_trace_info *const info = &trace->info;
    const size_t L = info->n_layers, rows = L * info->n_heads, P = info->prompt_length;
    const size_t key_row = info->n_kv_heads * info->head_dim;
    const size_t all_keys = (P + info->n_steps) * key_row;
    for (size_t l = 0; first == 0 && l < L; l++) {
        if (trace->options.window_vote)
            OK(tw_trace_writer_put_window_vote(writer, l, trace->vote + l * info->n_kv_heads * P, &err));
        if (trace->options.kept_width)
            OK(tw_trace_writer_put_kept(writer, l, trace->kept + l * info->n_kv_heads * trace->options.kept_width,
                                        &err));
    }
    for (size_t t = first; t < first + n; t++) {
        for (size_t l = 0; l < L; l++) {
            if (!trace->options.key) continue;
            const size_t from = t ? P + t - 1 : 0, count = t ? 1 : P;
            OK(tw_trace_writer_put_key(writer, l, trace->key + l * all_keys + from * key_row, count, &err));
        }
        const struct tw_trace_step step = {
            .position = trace->position + t * rows * info->top_k,
            .weight = trace->weight + t * rows * info->top_k,
            .context_length = trace->context_length[t],
            .token_id = trace->token_id[t],
            .needle = trace->options.needle ? trace->needle + t * rows : NULL,
            .copy_paste = trace->options.copy_paste ? trace->copy_paste + t * rows : NULL,
        };
        OK(tw_trace_writer_append(writer, &step, &err));
    }
}

void tw_test_trace_write(const struct tw_test_trace *trace, const char *path) {
    struct tw_trace_writer *writer;
    OK(tw_trace_writer_create(&writer, path, &trace->info, trace->prompt, &trace->options, &err));
    tw_test_trace_append(writer, trace, 0, trace->info.n_steps);
    OK(tw_trace_writer_finish(writer, true, &err));
    tw_trace_writer_free(writer);
}

static void compare_layer(const struct tw_test_trace *made, struct tw_trace *trace, size_t l, size_t S) {
    const struct tw_trace_info *const info = &made->info;
    const size_t L = info->n_layers, H = info->n_heads, K = info->top_k, row = H * K;
    int32_t *const position = room(S * row, sizeof *position);
    uint16_t *const weight = room(S * row, sizeof *weight);
    OK(tw_trace_read_layer(trace, position, weight, l, 0, S, &err));
    float *const needle = room(S * H, sizeof *needle);
    uint8_t *const copy = room(S * H, sizeof *copy);
    if (made->options.needle) OK(tw_trace_read_needle(trace, needle, l, 0, S, &err));
    if (made->options.copy_paste) OK(tw_trace_read_copy_paste(trace, copy, l, 0, S, &err));
    for (size_t t = 0; t < S; t++) {
        ck_assert_mem_eq(position + t * row, made->position + (t * L + l) * row, row * sizeof *position);
        for (size_t i = 0; i < row; i++)
            ck_assert_uint_eq(weight[t * row + i], tw_half_from_float(made->weight[(t * L + l) * row + i]));
        if (made->options.needle) ck_assert_mem_eq(needle + t * H, made->needle + (t * L + l) * H, H * sizeof *needle);
        if (made->options.copy_paste) ck_assert_mem_eq(copy + t * H, made->copy_paste + (t * L + l) * H, H);
    }
    free(position);
    free(weight);
    free(needle);
    free(copy);
}

static void compare_prefill(const struct tw_test_trace *made, struct tw_trace *trace, size_t l, size_t S) {
    const struct tw_trace_info *const info = &made->info;
    const size_t G = info->n_kv_heads, P = info->prompt_length, N = made->options.kept_width;
    if (made->options.window_vote) {
        uint16_t *const vote = room(G * P, sizeof *vote);
        OK(tw_trace_read_window_vote(trace, vote, l, &err));
        for (size_t i = 0; i < G * P; i++) ck_assert_uint_eq(vote[i], tw_half_from_float(made->vote[l * G * P + i]));
        free(vote);
    }
    if (N) {
        int32_t *const kept = room(G * N, sizeof *kept);
        ck_assert_uint_eq(tw_trace_kept_width(trace), N);
        OK(tw_trace_read_kept(trace, kept, l, &err));
        ck_assert_mem_eq(kept, made->kept + l * G * N, G * N * sizeof *kept);
        free(kept);
    }
    if (made->options.key && S) {
        const size_t n = P + S - 1, row = G * info->head_dim;
        uint16_t *const key = room(n * row, sizeof *key);
        OK(tw_trace_read_key(trace, key, l, 0, n, &err));
        ck_assert_mem_eq(key, made->key + l * (P + info->n_steps) * row, n * row * sizeof *key);
        free(key);
    }
}

void tw_test_trace_compare(const struct tw_test_trace *made, const char *path, size_t n_steps) {
    struct tw_trace *trace;
    OK(tw_trace_open(&trace, path, &err));
    const struct tw_trace_info *const info = tw_trace_info(trace);
    ck_assert_uint_eq(info->n_steps, n_steps);
    ck_assert_uint_eq(info->n_layers, made->info.n_layers);
    ck_assert_uint_eq(info->n_heads, made->info.n_heads);
    ck_assert_uint_eq(info->n_kv_heads, made->info.n_kv_heads);
    ck_assert_uint_eq(info->top_k, made->info.top_k);
    ck_assert_uint_eq(info->seed, made->info.seed);
    ck_assert_mem_eq(tw_trace_context_length(trace), made->context_length, n_steps * sizeof(int32_t));
    int32_t *const ids = room(info->prompt_length + n_steps, sizeof *ids);
    OK(tw_trace_read_prompt(trace, ids, &err));
    ck_assert_mem_eq(ids, made->prompt, info->prompt_length * sizeof *ids);
    OK(tw_trace_read_token_ids(trace, ids, &err));
    ck_assert_mem_eq(ids, made->token_id, n_steps * sizeof *ids);
    free(ids);
    for (size_t l = 0; l < info->n_layers; l++) {
        compare_layer(made, trace, l, n_steps);
        if (n_steps || info->complete) compare_prefill(made, trace, l, n_steps); /* not before step 0 is there */
    }
    tw_trace_free(trace);
}
