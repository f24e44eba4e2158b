#include "engine/accountant.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/clock.h"

#define ALIGNMENT 64

const char *const tw_category_names[TW_N_CATEGORIES] = {
    [TW_CATEGORY_WEIGHTS] = "weights",
    [TW_CATEGORY_UNPACKED_LAYER] = "unpacked layer",
    [TW_CATEGORY_BRIDGE] = "hidden bridge",
    [TW_CATEGORY_ACTIVE_KV] = "active KV",
    [TW_CATEGORY_COMPACT_CACHE] = "compact cache",
    [TW_CATEGORY_CHUNK] = "chunk activations",
    [TW_CATEGORY_COMPRESSION] = "compression",
    [TW_CATEGORY_LOGITS] = "logits",
    [TW_CATEGORY_OTHER] = "other",
};

const char *const tw_phase_names[TW_N_PHASES] = {
    [TW_PHASE_LOAD] = "load",
    [TW_PHASE_PREFILL] = "prefill",
    [TW_PHASE_LAYER_END] = "layer-end",
    [TW_PHASE_DECODE] = "decode",
};

/* ---- sources ---- */

static tw_status host_allocate(void *context, void **data, size_t bytes, const char *what, struct tw_error *err) {
    (void)context;
    size_t rounded;
    *data = NULL;
    if (!tw_add_size(&rounded, bytes, ALIGNMENT - 1) ||
        !(*data = aligned_alloc(ALIGNMENT, tw_max_size(rounded / ALIGNMENT, 1) * ALIGNMENT)))
        return TW_FAIL(err, TW_E_MEMORY, "out of memory: '%s' needs %.1f MiB", what, (double)bytes / 0x1p20);
    return TW_OK;
}

static void host_release(void *context, void *data, size_t bytes) {
    (void)context, (void)bytes;
    free(data);
}

static tw_status dry_allocate(void *context, void **data, size_t bytes, const char *what, struct tw_error *err) {
    (void)context, (void)bytes, (void)what, (void)err;
    *data = NULL;
    return TW_OK;
}

static void dry_release(void *context, void *data, size_t bytes) { (void)context, (void)data, (void)bytes; }

const struct tw_memory_source tw_memory_host = {.allocate = host_allocate, .release = host_release};
const struct tw_memory_source tw_memory_dry = {.allocate = dry_allocate, .release = dry_release};
const struct tw_memory_source tw_memory_dry_device = {.allocate = dry_allocate, .release = dry_release, .device = true};

/* ---- books ---- */

void tw_accountant_init(struct tw_accountant *accountant, struct tw_memory_source source, size_t limit_bytes) {
    memset(accountant, 0, sizeof *accountant);
    accountant->source = source;
    accountant->limit_bytes = limit_bytes;
    accountant->started = tw_clock_seconds();
}

void tw_accountant_release(struct tw_accountant *accountant) {
    assert(accountant->total == 0 && accountant->staging == 0);
    free(accountant->events);
    memset(accountant, 0, sizeof *accountant);
}

static void update_peaks(struct tw_accountant *a) {
    const enum tw_phase phase = a->phase;
    for (int c = 0; c < TW_N_CATEGORIES; c++)
        if (a->current[c] > a->peak[phase][c]) a->peak[phase][c] = a->current[c];
    if (a->total > a->peak_total[phase]) {
        a->peak_total[phase] = a->total;
        memcpy(a->at_peak[phase], a->current, sizeof a->current);
    }
    if (a->live > a->peak_live) a->peak_live = a->live;
    if (a->staging > a->peak_staging) a->peak_staging = a->staging;
}

void tw_accountant_phase(struct tw_accountant *accountant, enum tw_phase phase) {
    accountant->phase = phase;
    update_peaks(accountant);
}

void tw_accountant_reset_peaks(struct tw_accountant *accountant) {
    memset(accountant->peak, 0, sizeof accountant->peak);
    memset(accountant->peak_total, 0, sizeof accountant->peak_total);
    memset(accountant->at_peak, 0, sizeof accountant->at_peak);
    accountant->peak_live = accountant->peak_staging = 0;
    accountant->n_events = 0;
    accountant->started = tw_clock_seconds();
    update_peaks(accountant);
}

static bool is_live(enum tw_category category) {
    return category == TW_CATEGORY_ACTIVE_KV || category == TW_CATEGORY_COMPACT_CACHE ||
           category == TW_CATEGORY_BRIDGE || category == TW_CATEGORY_CHUNK || category == TW_CATEGORY_COMPRESSION;
}

static void record_event(struct tw_accountant *a, enum tw_category category) {
    if (a->n_events == a->events_capacity) {
        const size_t capacity = tw_max_size(1024, 2 * a->events_capacity);
        struct tw_account_event *events = realloc(a->events, capacity * sizeof *events);
        if (!events) {
            a->record = false; /* the drawing ends here; the books go on */
            return;
        }
        a->events = events;
        a->events_capacity = capacity;
    }
    a->events[a->n_events++] =
        (struct tw_account_event){tw_clock_seconds() - a->started, a->phase, category, a->current[category], a->total};
}

/* Moves the books by `bytes`, up or down. */
static void book(struct tw_accountant *a, enum tw_category category, size_t bytes, bool up) {
    assert(up || (a->current[category] >= bytes && a->total >= bytes));
    const size_t change = up ? bytes : -bytes;
    a->current[category] += change;
    a->total += change;
    if (is_live(category)) a->live += change;
    update_peaks(a);
    if (a->record && bytes) record_event(a, category);
}

static void append_bytes(char *text, size_t size, size_t bytes) {
    if (bytes >= (size_t)1 << 30)
        snprintf(text, size, "%.2f GiB", (double)bytes / 0x1p30);
    else
        snprintf(text, size, "%.1f MiB", (double)bytes / 0x1p20);
}

static tw_status check_limit(const struct tw_accountant *a, size_t bytes, const char *what, struct tw_error *err) {
    const size_t counted = a->total - a->mapped;
    if (a->limit_bytes == 0 || (counted <= a->limit_bytes && bytes <= a->limit_bytes - counted)) return TW_OK;
    char limit[32], needed[32], left[32];
    append_bytes(limit, sizeof limit, a->limit_bytes);
    append_bytes(needed, sizeof needed, bytes);
    append_bytes(left, sizeof left, a->limit_bytes - tw_min_size(counted, a->limit_bytes));
    return TW_FAIL(err, TW_E_MEMORY, "memory limit of %s: '%s' needs %s in %s, %s are left", limit, what, needed,
                   tw_phase_names[a->phase], left);
}

static tw_status allocate(struct tw_buffer *buffer, struct tw_accountant *accountant, size_t bytes,
                          enum tw_category category, const char *what, bool host, struct tw_error *err) {
    const struct tw_memory_source *source = host ? &tw_memory_host : &accountant->source;
    const bool staging = host && accountant->source.device;
    memset(buffer, 0, sizeof *buffer);
    if (!staging) TW_TRY(check_limit(accountant, bytes, what, err));
    TW_TRY(source->allocate(source->context, &buffer->data, bytes, what, err));
    buffer->bytes = bytes;
    buffer->category = category;
    buffer->held = true;
    buffer->host = host;
    if (staging) {
        accountant->staging += bytes;
        update_peaks(accountant);
    } else {
        book(accountant, category, bytes, true);
    }
    return TW_OK;
}

tw_status tw_buffer_allocate(struct tw_buffer *buffer, struct tw_accountant *accountant, size_t bytes,
                             enum tw_category category, const char *what, struct tw_error *err) {
    return allocate(buffer, accountant, bytes, category, what, false, err);
}

tw_status tw_buffer_allocate_host(struct tw_buffer *buffer, struct tw_accountant *accountant, size_t bytes,
                                  enum tw_category category, const char *what, struct tw_error *err) {
    return allocate(buffer, accountant, bytes, category, what, true, err);
}

void tw_buffer_release(struct tw_buffer *buffer, struct tw_accountant *accountant) {
    if (!buffer->held) return;
    const struct tw_memory_source *source = buffer->host ? &tw_memory_host : &accountant->source;
    source->release(source->context, buffer->data, buffer->bytes);
    if (buffer->host && accountant->source.device)
        accountant->staging -= buffer->bytes;
    else
        book(accountant, buffer->category, buffer->bytes, false);
    memset(buffer, 0, sizeof *buffer);
}

void tw_buffer_recategorise(struct tw_buffer *buffer, struct tw_accountant *accountant, enum tw_category category) {
    if (!buffer->held || buffer->category == category) return;
    if (!(buffer->host && accountant->source.device)) {
        book(accountant, buffer->category, buffer->bytes, false);
        book(accountant, category, buffer->bytes, true);
    }
    buffer->category = category;
}

void tw_accountant_note_mapped(struct tw_accountant *accountant, int64_t bytes) {
    const bool up = bytes >= 0;
    const size_t magnitude = up ? (size_t)bytes : -(size_t)bytes;
    assert(up || accountant->mapped >= magnitude);
    accountant->mapped += up ? magnitude : -magnitude;
    book(accountant, TW_CATEGORY_WEIGHTS, magnitude, up);
}

size_t tw_accountant_peak(const struct tw_accountant *accountant) {
    size_t peak = 0;
    for (int p = 0; p < TW_N_PHASES; p++) peak = tw_max_size(peak, accountant->peak_total[p]);
    return peak;
}

size_t tw_accountant_category_peak(const struct tw_accountant *accountant, enum tw_category category) {
    size_t peak = 0;
    for (int p = 0; p < TW_N_PHASES; p++) peak = tw_max_size(peak, accountant->peak[p][category]);
    return peak;
}

size_t tw_accountant_reserved(const struct tw_accountant *accountant) {
    const struct tw_memory_source *source = &accountant->source;
    return source->reserved ? source->reserved(source->context) + accountant->mapped : accountant->total;
}

size_t tw_resident_set_bytes(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file) return 0;
    unsigned long size = 0, resident = 0;
    const bool read = fscanf(file, "%lu %lu", &size, &resident) == 2;
    fclose(file);
    const long page = sysconf(_SC_PAGESIZE);
    return read && page > 0 ? (size_t)resident * (size_t)page : 0;
}
