/*
 * The engine's side of the benchmark: reads commands from standard input, one a line, answers each with one line of
 * numbers, so that a driver can alternate between it and another program.
 *
 *   bench_engine MODEL TOKENS N_THREADS [processor]
 *
 * TOKENS is a file of token ids, repeated as often as needed. With `processor`, times are the process's processor time
 * instead of the clock's: what one thread needs, whatever else the machine does.
 *
 *   peak            GFLOP/s of a large oneDNN product (bf16 if the backend computes in it)
 *   read            GB/s of reading memory, all threads
 *   prefill N       N tokens through schedule tide, budget 1024: seconds, share of the layer ends, useful GFLOP
 *   context N       the same with a full cache, kept for decoding
 *   decode N LOG    N tokens after it, LOG 0 or 1: seconds, bytes of weights and cache read
 *   trace N STEPS   the same, traced into a temporary file: seconds of decoding, and of writing with what belongs to it
 *   describe        the backend's own words
 */
#include <dnnl.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/backend/cpu/sizes.h"
#include "engine/engine.h"
#include "engine/tracer.h"

static size_t n_threads;
static bool processor_time;
static struct tw_model *model;
static int32_t *tokens;
static size_t n_tokens;

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(processor_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void stop(const char *what) {
    fprintf(stderr, "bench_engine: %s\n", what);
    exit(1);
}

static void *space(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p) stop("out of memory");
    memset(p, 1, bytes);
    return p;
}

/* ---- the machine ---- */

/* One product of 2048 x 2048 x 2048, oneDNN's own threads and its own choice of layout. */
static double peak_gflops(bool bf16) {
    const dnnl_dim_t n = 2048;
    const dnnl_dims_t dims = {n, n};
    const dnnl_data_type_t type = bf16 ? dnnl_bf16 : dnnl_f32;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_memory_desc_t plain, any;
    dnnl_matmul_desc_t operation;
    dnnl_primitive_desc_t description;
    dnnl_primitive_t product;
    omp_set_num_threads((int)n_threads);
    if (dnnl_engine_create(&engine, dnnl_cpu, 0) || dnnl_stream_create(&stream, engine, dnnl_stream_default_flags) ||
        dnnl_memory_desc_init_by_tag(&plain, 2, dims, type, dnnl_ab) ||
        dnnl_memory_desc_init_by_tag(&any, 2, dims, type, dnnl_format_tag_any) ||
        dnnl_matmul_desc_init(&operation, &plain, &any, NULL, &plain) ||
        dnnl_primitive_desc_create(&description, &operation, NULL, engine, NULL) ||
        dnnl_primitive_create(&product, description))
        return 0;
    dnnl_exec_arg_t arguments[3];
    const int names[3] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
    void *data[3];
    for (int i = 0; i < 3; i++) {
        const dnnl_memory_desc_t *of =
            dnnl_primitive_desc_query_md(description, i == 1 ? dnnl_query_weights_md : dnnl_query_src_md, 0);
        data[i] = space(dnnl_memory_desc_get_size(of));
        memset(data[i], 0, dnnl_memory_desc_get_size(of));
        if (dnnl_memory_create(&arguments[i].memory, of, engine, data[i])) stop("oneDNN");
        arguments[i].arg = names[i];
    }
    double best = 0;
    for (int i = 0; i < 8; i++) {
        const double started = seconds_now();
        dnnl_primitive_execute(product, stream, 3, arguments);
        dnnl_stream_wait(stream);
        best = fmax(best, 2.0 * (double)n * (double)n * (double)n / (seconds_now() - started) * 1e-9);
    }
    for (int i = 0; i < 3; i++) {
        dnnl_memory_destroy(arguments[i].memory);
        free(data[i]);
    }
    dnnl_primitive_destroy(product);
    dnnl_primitive_desc_destroy(description);
    dnnl_stream_destroy(stream);
    dnnl_engine_destroy(engine);
    return best;
}

static double read_gigabytes(void) {
    const size_t n = (size_t)1 << 28; /* bytes: far more than any cache */
    uint64_t *data = space(n), sink = 0;
    double best = 0;
    for (int i = 0; i < 6; i++) {
        const double started = seconds_now();
#pragma omp parallel for reduction(+ : sink) num_threads((int)n_threads)
        for (size_t piece = 0; piece < n / 65536; piece++) {
            const uint64_t *p = data + piece * 8192;
            uint64_t sum[32] = {0};
            for (size_t j = 0; j < 8192; j += 32) {
                __builtin_prefetch(p + j + 512);
                __builtin_prefetch(p + j + 520);
                __builtin_prefetch(p + j + 528);
                __builtin_prefetch(p + j + 536);
                for (size_t k = 0; k < 32; k++) sum[k] += p[j + k];
            }
            for (size_t k = 0; k < 32; k++) sink += sum[k];
        }
        best = fmax(best, (double)n / (seconds_now() - started) * 1e-9);
    }
    free(data);
    return sink == 42 ? 0 : best;
}

/* ---- the engine ---- */

static struct tw_engine *engine_open(size_t budget) {
    struct tw_error err = {0};
    struct tw_engine_options options;
    struct tw_engine *engine;
    tw_engine_options_init(&options);
    options.backend = "cpu";
    options.backend_options.n_threads = n_threads;
    options.budget = budget;
    if (tw_engine_open(&engine, model, &options, &err) != TW_OK) stop(err.text);
    return engine;
}

/* Multiplications and additions that a prompt of n tokens needs, each query with the keys that it sees. */
static double useful_gflop(size_t n) {
    const struct tw_model_config *c = &model->config;
    const double query_width = (double)(c->n_heads * c->head_dim), kv_width = (double)(c->n_kv_heads * c->head_dim);
    const double d = (double)c->n_embd, mlp = (double)c->n_mlp, s = (double)n;
    const double products = d * (query_width + 2 * kv_width) + query_width * d + 3 * d * mlp;
    return (double)c->n_layers * (2 * s * products + 4 * query_width * s * (s + 1) / 2) * 1e-9;
}

static void prefill(struct tw_engine *engine, size_t n, size_t reserve) {
    struct tw_error err = {0};
    if (n == 0 || n > n_tokens) stop("prompt length");
    tw_engine_reset(engine);
    const double started = seconds_now();
    if (tw_engine_prefill(engine, tokens, n, reserve, NULL, NULL, &err) != TW_OK) stop(err.text);
    printf("%.6f %.6f %.6f\n", seconds_now() - started, engine->times.layer_end_seconds / engine->times.prefill_seconds,
           useful_gflop(n));
}

static void decode(struct tw_engine *engine, size_t n, struct tw_attention_log *log) {
    struct tw_error err = {0};
    double bytes = 0;
    const double started = seconds_now();
    for (size_t i = 0; i < n; i++) {
        if (tw_engine_decode(engine, tokens[(engine->position + i) % n_tokens], log, &err) != TW_OK) stop(err.text);
        for (size_t l = 0; l < model->config.n_layers; l++)
            bytes += (double)tw_kv_rows(&engine->cache[l]) * (double)model->config.head_dim * 2 *
                     (engine->ops->dtype(engine->backend) == TW_DTYPE_BF16 ? 2 : 4);
    }
    const double seconds = seconds_now() - started;
    bytes += (double)n * (double)tw_model_weight_bytes(model);
    if (!model->config.tied_embeddings) bytes -= (double)n * (double)tw_matrix_bytes(&model->embedding);
    printf("%.6f %.0f\n", seconds, bytes);
}

/* The file goes where temporary files go; what is timed is the tracer's step (sorting rows, HDF5, zstd) and its end. */
static void trace(struct tw_engine *engine, size_t n, size_t n_steps) {
    struct tw_error err = {0};
    char path[] = "/tmp/bench-engine-XXXXXX";
    const int file = mkstemp(path);
    if (file < 0) stop("no temporary file");
    close(file);
    const struct tw_encoded prompt = {.ids = tokens, .n = n};
    const struct tw_tracer_options options = {.path = path, .top_k = 64, .force = true};
    struct tw_trace_info info = {0};
    struct tw_tracer *tracer;
    if (tw_tracer_create(&tracer, engine, &prompt, &info, &options, n_steps, &err) != TW_OK) stop(err.text);
    if (tw_engine_prefill(engine, tokens, n, n_steps, tw_tracer_watch(tracer), NULL, &err) != TW_OK) stop(err.text);
    double decoding = 0, writing = 0, started = seconds_now();
    for (size_t i = 0; i < n_steps; i++) {
        const int32_t token = tokens[n + i];
        if (tw_tracer_step(tracer, token, &err) != TW_OK) stop(err.text);
        const double written = seconds_now();
        if (tw_engine_decode(engine, token, tw_tracer_log(tracer), &err) != TW_OK) stop(err.text);
        const double decoded = seconds_now();
        writing += written - started;
        decoding += decoded - written;
        started = decoded;
    }
    if (tw_tracer_finish(tracer, true, (struct tw_view){0}, &err) != TW_OK) stop(err.text);
    writing += seconds_now() - started;
    tw_tracer_free(tracer);
    unlink(path);
    printf("%.6f %.6f\n", decoding, writing);
}

static struct tw_attention_log *make_logs(size_t top_k) {
    const size_t n_layers = model->config.n_layers, n = model->config.n_heads * top_k;
    struct tw_attention_log *log = space(n_layers * sizeof *log);
    memset(log, 0, n_layers * sizeof *log);
    for (size_t l = 0; l < n_layers; l++) {
        log[l].top_k = top_k;
        log[l].position = space(n * sizeof(int32_t));
        log[l].weight = space(n * sizeof(float));
    }
    return log;
}

static void read_tokens(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) stop("no file of tokens");
    size_t room = 65536, n = 0;
    tokens = space(room * sizeof *tokens);
    while (n < room && fscanf(file, "%d", &tokens[n]) == 1) n++;
    fclose(file);
    if (n == 0) stop("no tokens");
    for (n_tokens = n; n_tokens < room; n_tokens++) tokens[n_tokens] = tokens[n_tokens - n];
}

int main(int argc, char **argv) {
    struct tw_error err = {0};
    if (argc != 4 && argc != 5) stop("usage: bench_engine MODEL TOKENS N_THREADS [processor]");
    n_threads = strtoul(argv[3], NULL, 10);
    processor_time = argc == 5;
    if (n_threads == 0) stop("number of threads");
    read_tokens(argv[2]);
    if (tw_model_open(&model, argv[1], &err) != TW_OK) stop(err.text);
    struct tw_engine *compact = engine_open(1024), *full = engine_open(0);
    struct tw_attention_log *log = make_logs(64);
    char line[256], word[32];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        size_t n = 0, flag = 0;
        if (sscanf(line, "%31s %zu %zu", word, &n, &flag) < 1) continue;
        if (strcmp(word, "peak") == 0)
            printf("%.1f\n", peak_gflops(full->ops->dtype(full->backend) == TW_DTYPE_BF16));
        else if (strcmp(word, "read") == 0)
            printf("%.2f\n", read_gigabytes());
        else if (strcmp(word, "prefill") == 0)
            prefill(compact, n, 0);
        else if (strcmp(word, "context") == 0)
            prefill(full, n, 2048);
        else if (strcmp(word, "decode") == 0)
            decode(full, n, flag ? log : NULL);
        else if (strcmp(word, "trace") == 0)
            trace(full, n, flag);
        else if (strcmp(word, "describe") == 0) {
            struct tw_text text = {0};
            full->ops->describe(full->backend, &text);
            printf("%s\n", tw_text_string(&text));
            tw_text_release(&text);
        } else {
            stop("unknown command");
        }
    }
    tw_engine_free(compact);
    tw_engine_free(full);
    tw_model_free(model);
    return 0;
}
