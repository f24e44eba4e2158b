#include "cli/engine/fidelity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "engine/sample.h"

/* Rows that are read and compared at a time. */
#define ROWS 64

tw_status tw_hidden_store_open(struct tw_hidden_store *store, const struct tw_model_config *config, size_t n_tokens,
                               struct tw_error *err) {
    memset(store, 0, sizeof *store);
    store->n_tokens = n_tokens;
    store->n_embd = config->n_embd;
    store->n_vocab = config->n_vocab;
    store->logits = malloc(config->n_vocab * sizeof *store->logits);
    store->file = tmpfile();
    if (store->logits && store->file) return TW_OK;
    const tw_status status = store->logits ? TW_E_IO : TW_E_MEMORY;
    tw_hidden_store_close(store);
    return TW_FAIL(err, status, "cannot make a temporary place for hidden states");
}

void tw_hidden_store_close(struct tw_hidden_store *store) {
    if (store->file) fclose(store->file);
    free(store->logits);
    memset(store, 0, sizeof *store);
}

void tw_fidelity_release(struct tw_fidelity *fidelity) {
    free(fidelity->difference);
    memset(fidelity, 0, sizeof *fidelity);
}

static tw_status fidelity_allocate(struct tw_fidelity *f, size_t n_layers, struct tw_error *err) {
    if (f->n_layers) return TW_OK;
    f->difference = calloc(4 * (n_layers + 1), sizeof *f->difference);
    if (!f->difference) return TW_FAIL(err, TW_E_MEMORY, "out of memory: fidelity of layers");
    f->norm = f->difference + n_layers + 1;
    f->cosine = f->norm + n_layers + 1;
    f->rows = f->cosine + n_layers + 1;
    f->n_layers = n_layers;
    return TW_OK;
}

static double per_row(const struct tw_fidelity *f, size_t i) { return f->cosine[i] / f->rows[i]; }

double tw_fidelity_l2(const struct tw_fidelity *fidelity, size_t i) {
    if (i == SIZE_MAX) i = fidelity->n_layers;
    return fidelity->n_layers ? sqrt(fidelity->difference[i] / fidelity->norm[i]) : NAN;
}

double tw_fidelity_cosine(const struct tw_fidelity *fidelity, size_t i) {
    if (i == SIZE_MAX) i = fidelity->n_layers;
    return fidelity->n_layers ? per_row(fidelity, i) : NAN;
}

double tw_fidelity_top1(const struct tw_fidelity *fidelity) {
    return fidelity->n_prompts ? (double)fidelity->n_agree / (double)fidelity->n_prompts : NAN;
}

double tw_fidelity_divergence(const struct tw_fidelity *fidelity) {
    return fidelity->n_prompts ? fidelity->divergence / (double)fidelity->n_prompts : NAN;
}

static void compare_row(struct tw_fidelity *f, size_t index, const float *row, const float *reference, size_t n) {
    double difference = 0, own = 0, norm = 0, dot = 0;
    for (size_t j = 0; j < n; j++) {
        const double x = row[j], y = reference[j];
        difference += (x - y) * (x - y);
        own += x * x;
        norm += y * y;
        dot += x * y;
    }
    f->difference[index] += difference;
    f->norm[index] += norm;
    f->cosine[index] += own > 0 && norm > 0 ? dot / sqrt(own * norm) : own == norm;
    f->rows[index] += 1;
}

static tw_status take_hidden(void *context, size_t index, const struct tw_bridge *bridge, size_t first_row,
                             size_t first_position, size_t n, struct tw_error *err) {
    struct tw_fidelity_watch *w = context;
    const struct tw_engine *e = w->engine;
    const size_t n_embd = w->store->n_embd;
    float *rows = malloc(2 * ROWS * n_embd * sizeof *rows);
    if (!rows) return TW_FAIL(err, TW_E_MEMORY, "out of memory: rows of hidden states");
    tw_status status = TW_OK;
    for (size_t done = 0; status == TW_OK && done < n; done += ROWS) {
        const size_t m = tw_min_size(ROWS, n - done), bytes = m * n_embd * sizeof *rows;
        const off_t at = (off_t)((index * w->store->n_tokens + first_position + done) * n_embd * sizeof *rows);
        float *reference = rows + ROWS * n_embd;
        status = e->ops->read_hidden(e->backend, bridge, first_row + done, m, false, rows, err);
        if (status != TW_OK) break;
        if (!w->store->complete) {
            if (pwrite(fileno(w->store->file), rows, bytes, at) != (ssize_t)bytes)
                status = TW_FAIL(err, TW_E_IO, "cannot keep hidden states in a temporary file: is the disk full?");
            continue;
        }
        if (pread(fileno(w->store->file), reference, bytes, at) != (ssize_t)bytes)
            status = TW_FAIL(err, TW_E_IO, "cannot read hidden states back from a temporary file");
        for (size_t i = 0; status == TW_OK && i < m; i++)
            compare_row(w->fidelity, index, rows + i * n_embd, reference + i * n_embd, n_embd);
    }
    free(rows);
    return status;
}

tw_status tw_fidelity_watch_begin(struct tw_fidelity_watch *watch, struct tw_error *err) {
    watch->watch = (struct tw_watch){.context = watch, .hidden = take_hidden};
    if (!watch->store->complete) return TW_OK;
    return fidelity_allocate(watch->fidelity, watch->engine->model->config.n_layers, err);
}

/* The divergence of two softmaxes: the mean of their Kullback-Leibler divergences to the average of both. */
static double jensen_shannon(const float *a, const float *b, size_t n) {
    double max_a = -INFINITY, max_b = -INFINITY, sum_a = 0, sum_b = 0, divergence = 0;
    for (size_t v = 0; v < n; v++) {
        max_a = fmax(max_a, a[v]);
        max_b = fmax(max_b, b[v]);
    }
    for (size_t v = 0; v < n; v++) {
        sum_a += exp(a[v] - max_a);
        sum_b += exp(b[v] - max_b);
    }
    for (size_t v = 0; v < n; v++) {
        const double p = exp(a[v] - max_a) / sum_a, q = exp(b[v] - max_b) / sum_b, mean = (p + q) / 2;
        if (p > 0) divergence += p * log(p / mean) / 2;
        if (q > 0) divergence += q * log(q / mean) / 2;
    }
    return divergence;
}

void tw_fidelity_watch_end(struct tw_fidelity_watch *watch, const float *logits) {
    struct tw_hidden_store *store = watch->store;
    if (!store->complete) {
        memcpy(store->logits, logits, store->n_vocab * sizeof *logits);
        return;
    }
    struct tw_fidelity *f = watch->fidelity;
    f->n_prompts++;
    f->n_agree += tw_sample_greedy(logits, store->n_vocab) == tw_sample_greedy(store->logits, store->n_vocab);
    f->divergence += jensen_shannon(logits, store->logits, store->n_vocab);
}
