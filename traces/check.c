#include "traces/check.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/checked.h"

enum { WINDOW = 64 }; /* steps at a time, about: memory stays small whatever the length */

/* Room for the largest of what is read, once for all. */
struct room {
    void *bytes;
    size_t size;
};

static tw_status reserve(struct room *room, size_t count, size_t size, const struct tw_trace *trace,
                         struct tw_error *err) {
    size_t bytes;
    if (tw_mul_size(&bytes, count, size) && bytes <= room->size) return TW_OK;
    free(room->bytes);
    *room = (struct room){0};
    if (!tw_mul_size(&bytes, count, size) || !(room->bytes = malloc(tw_max_size(bytes, 1))))
        return TW_FAIL(err, TW_E_MEMORY, "out of memory for checking trace '%s'", tw_trace_path(trace));
    room->size = bytes;
    return TW_OK;
}

static tw_status verify_topk(struct tw_trace *trace, size_t layer, struct tw_trace_raw *raw,
                             struct tw_trace_scratch *scratch, struct room *room, struct tw_error *err) {
    const struct tw_trace_info *const info = tw_trace_info(trace);
    const size_t row = info->n_heads * info->top_k;
    for (size_t first = 0, n = 0; first < info->n_steps; first += n) {
        n = tw_min_size(WINDOW, info->n_steps - first);
        TW_TRY(tw_trace_raw_read(raw, trace, layer, first, n, err));
        const size_t block = tw_trace_raw_block_steps(raw);
        if (block > WINDOW && first % block == 0 && n < block) { /* long chunks: a whole one, not the same one often */
            n = tw_min_size(block, info->n_steps - first);
            TW_TRY(tw_trace_raw_read(raw, trace, layer, first, n, err));
        }
        for (size_t b = 0; b < tw_trace_raw_n_blocks(raw); b++) {
            size_t from, count;
            tw_trace_raw_block_range(raw, b, &from, &count);
            TW_TRY(reserve(room, count * row, sizeof(int32_t) + sizeof(uint16_t), trace, err));
            int32_t *const position = room->bytes;
            uint16_t *const weight = (uint16_t *)(position + count * row);
            TW_TRY(tw_trace_raw_decode(raw, b, position, weight, scratch, err));
        }
    }
    return TW_OK;
}

static tw_status verify_rest(struct tw_trace *trace, size_t layer, struct room *room, struct tw_error *err) {
    const struct tw_trace_info *const info = tw_trace_info(trace);
    const size_t S = info->n_steps, H = info->n_heads, G = info->n_kv_heads, P = info->prompt_length;
    if (tw_trace_has(trace, TW_TRACE_NEEDLE)) {
        TW_TRY(reserve(room, S * H, sizeof(float), trace, err));
        TW_TRY(tw_trace_read_needle(trace, room->bytes, layer, 0, S, err));
    }
    if (tw_trace_has(trace, TW_TRACE_COPY_PASTE)) {
        TW_TRY(reserve(room, S * H, 1, trace, err));
        TW_TRY(tw_trace_read_copy_paste(trace, room->bytes, layer, 0, S, err));
    }
    if (tw_trace_has(trace, TW_TRACE_WINDOW_VOTE)) {
        TW_TRY(reserve(room, G * P, sizeof(uint16_t), trace, err));
        TW_TRY(tw_trace_read_window_vote(trace, room->bytes, layer, err));
    }
    if (tw_trace_has(trace, TW_TRACE_KEPT)) {
        TW_TRY(reserve(room, G * tw_trace_kept_width(trace), sizeof(int32_t), trace, err));
        TW_TRY(tw_trace_read_kept(trace, room->bytes, layer, err));
    }
    const size_t n_keys = S ? P + S - 1 : 0;
    for (size_t at = 0, n = 0; tw_trace_has(trace, TW_TRACE_KEY) && at < n_keys; at += n) {
        n = tw_min_size(WINDOW, n_keys - at);
        TW_TRY(reserve(room, n * G * tw_trace_key_dim(trace), sizeof(uint16_t), trace, err));
        TW_TRY(tw_trace_read_key(trace, room->bytes, layer, at, n, err));
    }
    return TW_OK;
}

tw_status tw_trace_verify(struct tw_trace *trace, struct tw_error *err) {
    const struct tw_trace_info *const info = tw_trace_info(trace);
    struct room room = {0};
    struct tw_trace_raw *const raw = tw_trace_raw_new();
    struct tw_trace_scratch *const scratch = tw_trace_scratch_new();
    tw_status status = raw && scratch ? TW_OK : TW_FAIL(err, TW_E_MEMORY, "out of memory for checking a trace");
    if (status == TW_OK)
        status = reserve(&room, tw_max_size(info->n_steps, info->prompt_length), sizeof(int32_t), trace, err);
    if (status == TW_OK) status = tw_trace_read_token_ids(trace, room.bytes, err);
    if (status == TW_OK) status = tw_trace_read_prompt(trace, room.bytes, err);
    for (size_t l = 0; status == TW_OK && l < info->n_layers; l++) {
        status = verify_topk(trace, l, raw, scratch, &room, err);
        if (status == TW_OK) status = verify_rest(trace, l, &room, err);
    }
    tw_trace_scratch_free(scratch);
    tw_trace_raw_free(raw);
    free(room.bytes);
    return status;
}

/* ---- in a child
 * ------------------------------------------------------------------------------------------------------------ */

/* What the child sends through the pipe. */
struct answer {
    tw_status status;
    struct tw_trace_verdict verdict;
    struct tw_error err;
};

static void answer_in_child(int to, const char *path) {
    const struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none); /* a crash is an answer here */
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGILL};
    for (size_t i = 0; i < sizeof crashes / sizeof *crashes; i++) signal(crashes[i], SIG_DFL);
    struct answer answer = {0};
    struct tw_trace *trace;
    answer.status = tw_trace_open(&trace, path, &answer.err);
    if (answer.status == TW_OK) {
        answer.verdict.n_steps = tw_trace_info(trace)->n_steps;
        answer.verdict.complete = tw_trace_info(trace)->complete;
        answer.status = tw_trace_verify(trace, &answer.err);
        tw_trace_free(trace);
    }
    const char *from = (const char *)&answer;
    for (size_t left = sizeof answer; left;) {
        const ssize_t n = write(to, from, left);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) _exit(1);
        from += n;
        left -= (size_t)n;
    }
    _exit(0);
}

tw_status tw_trace_check(struct tw_trace_verdict *verdict, const char *path, struct tw_error *err) {
    *verdict = (struct tw_trace_verdict){0};
    int ends[2];
    if (pipe(ends) != 0) return TW_FAIL(err, TW_E_IO, "cannot check '%s': %s", path, strerror(errno));
    const pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        answer_in_child(ends[1], path);
    }
    close(ends[1]);
    struct answer answer;
    size_t got = 0;
    while (child > 0 && got < sizeof answer) {
        const ssize_t n = read(ends[0], (char *)&answer + got, sizeof answer - got);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        got += (size_t)n;
    }
    close(ends[0]);
    if (child < 0) return TW_FAIL(err, TW_E_IO, "cannot check '%s': %s", path, strerror(errno));
    int ended = 0;
    while (waitpid(child, &ended, 0) < 0 && errno == EINTR) continue;
    if (got == sizeof answer) {
        *verdict = answer.verdict;
        return answer.status == TW_OK ? TW_OK : TW_FAIL(err, answer.status, "%s", answer.err.text);
    }
    if (WIFSIGNALED(ended))
        return TW_FAIL(err, TW_E_INPUT, "trace '%s': is damaged: the HDF5 library crashed on it (%s)", path,
                       strsignal(WTERMSIG(ended)));
    return TW_FAIL(err, TW_E_INPUT, "trace '%s': is damaged: the HDF5 library gave up on it", path);
}
