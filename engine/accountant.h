/*
 * The accountant: every large buffer of the engine comes from here, with a category, in a phase. Peaks are therefore
 * exact, not sampled (spec: prefill, "Accounting"; TideKV, section 5), and the invariants of the schedule are
 * assertions on them.
 *
 * Where the bytes come from is the backend's: host memory, device memory, or nowhere at all (the dry backend). One
 * thread at a time uses an accountant.
 */
#ifndef TW_ENGINE_ACCOUNTANT_H
#define TW_ENGINE_ACCOUNTANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum tw_category {
    TW_CATEGORY_WEIGHTS,        /* mapped weights, or the device's copy of them */
    TW_CATEGORY_UNPACKED_LAYER, /* a layer's weights in the layout that the matrix product likes */
    TW_CATEGORY_BRIDGE,         /* the hidden states between layers */
    TW_CATEGORY_ACTIVE_KV,      /* full-prompt keys and values of the layer being run (of all layers where nothing is
                                   evicted) */
    TW_CATEGORY_COMPACT_CACHE,  /* what decoding reads */
    TW_CATEGORY_CHUNK,          /* activations of a chunk, whatever its size, and kernels' scratch */
    TW_CATEGORY_COMPRESSION,    /* the two streaming passes, running top-k, kept lists */
    TW_CATEGORY_LOGITS,
    TW_CATEGORY_OTHER,
    TW_N_CATEGORIES
};

enum tw_phase { TW_PHASE_LOAD, TW_PHASE_PREFILL, TW_PHASE_LAYER_END, TW_PHASE_DECODE, TW_N_PHASES };

extern const char *const tw_category_names[TW_N_CATEGORIES];
extern const char *const tw_phase_names[TW_N_PHASES];

/* What a device's allocator and driver say beside the books. */
struct tw_device_memory {
    size_t allocated, reserved;                     /* bytes handed out, and held from the driver */
    bool has_splits;                                /* it is a caching allocator that knows the next three */
    size_t inactive_splits, largest_inactive_split; /* unused blocks of segments in use: all of them, the largest */
    size_t retries;              /* allocations that went through only after unused segments were given back */
    size_t process_bytes;        /* of this process on the device, as the driver counts; 0 where it cannot be had */
    const char *process_missing; /* why, or NULL */
};

/* Where bytes come from. `context` is the backend's. */
struct tw_memory_source {
    void *context;
    /* At least 64-byte aligned. Fails with TW_E_MEMORY. `what` names the buffer in the message. */
    tw_status (*allocate)(void *context, void **data, size_t bytes, const char *what, struct tw_error *err);
    void (*release)(void *context, void *data, size_t bytes);
    /* Bytes that the source holds from the system, in use or not; NULL: the same as allocated. */
    size_t (*reserved)(void *context);
    /* What it gives is a device's: buffers of the host (tw_buffer_allocate_host) are then in books of their own. */
    bool device;
    void (*inspect)(void *context, struct tw_device_memory *memory); /* NULL where there is no device */
};

/*
 * Host memory, 64-byte aligned. And nothing at all: data stays NULL, only the books are kept (the dry backend), in the
 * image of a backend whose memory is the host's or a device's.
 */
extern const struct tw_memory_source tw_memory_host;
extern const struct tw_memory_source tw_memory_dry;
extern const struct tw_memory_source tw_memory_dry_device;

/* One change of the books, for drawing memory over time. */
struct tw_account_event {
    double seconds; /* since the accountant was made */
    enum tw_phase phase;
    enum tw_category category;
    size_t category_bytes; /* of this category, after the change */
    size_t total_bytes;    /* of all, after the change */
};

struct tw_accountant {
    struct tw_memory_source source;
    size_t limit_bytes; /* 0: none. Mapped weights do not count against it, copies of them do */
    enum tw_phase phase;
    size_t current[TW_N_CATEGORIES];
    size_t peak[TW_N_PHASES][TW_N_CATEGORIES];    /* each category's own peak in the phase */
    size_t total, peak_total[TW_N_PHASES];        /* peak of the sum */
    size_t at_peak[TW_N_PHASES][TW_N_CATEGORIES]; /* the categories when the sum peaked */
    size_t live, peak_live;       /* the paper's M_live: active KV + compact caches + bridge + chunk + compression */
    size_t mapped;                /* of current[WEIGHTS], what is only mapped */
    size_t staging, peak_staging; /* host buffers beside a device's memory; 0 where the host's memory is the source */
    double started;
    bool record; /* keep events */
    struct tw_account_event *events;
    size_t n_events, events_capacity;
};

/* A buffer that the accountant knows. Zero-initialised it is empty. */
struct tw_buffer {
    void *data; /* host or device address; NULL on the dry backend */
    size_t bytes;
    enum tw_category category;
    bool held; /* false: empty */
    bool host; /* from tw_buffer_allocate_host */
};

void tw_accountant_init(struct tw_accountant *accountant, struct tw_memory_source source, size_t limit_bytes);
/* Every buffer must have been released: an assertion. Copes with {0}. */
void tw_accountant_release(struct tw_accountant *accountant);

/* A phase begins: its peaks start from what is held now, if it has none yet. Phases may come again (layer ends do). */
void tw_accountant_phase(struct tw_accountant *accountant, enum tw_phase phase);
/* Forgets all peaks and events, as if what is held now had just been allocated: before the next of many requests. */
void tw_accountant_reset_peaks(struct tw_accountant *accountant);

/*
 * Allocates. Beyond the limit it fails with TW_E_MEMORY and says which buffer of which phase did not fit:
 * "memory limit of 2.0 GiB: 'active KV, layer 3' needs 512.0 MiB in prefill, 300.1 MiB are left". `what` must outlive
 * the call.
 */
tw_status tw_buffer_allocate(struct tw_buffer *buffer, struct tw_accountant *accountant, size_t bytes,
                             enum tw_category category, const char *what, struct tw_error *err);
/*
 * The same in host memory, always with an address, even where the accountant's source is a device or nothing: for what
 * the host computes (positions of rows, kept lists, blocks of scores, logits). Where the source is a device's memory it
 * is booked as `staging` and does not count against the limit.
 */
tw_status tw_buffer_allocate_host(struct tw_buffer *buffer, struct tw_accountant *accountant, size_t bytes,
                                  enum tw_category category, const char *what, struct tw_error *err);
void tw_buffer_release(struct tw_buffer *buffer, struct tw_accountant *accountant); /* an empty one is fine */
/* The same bytes under another name: when the active KV becomes the cache. */
void tw_buffer_recategorise(struct tw_buffer *buffer, struct tw_accountant *accountant, enum tw_category category);

/* Books mapped weights: +bytes at opening, -bytes at closing. They do not count against the limit. */
void tw_accountant_note_mapped(struct tw_accountant *accountant, int64_t bytes);

/* Over all phases: of the sum, and of one category. */
size_t tw_accountant_peak(const struct tw_accountant *accountant);
size_t tw_accountant_category_peak(const struct tw_accountant *accountant, enum tw_category category);
/* What the source holds from the system (allocator-reserved memory), mapped weights included. */
size_t tw_accountant_reserved(const struct tw_accountant *accountant);
/* Bytes of this process that are in memory, or 0 when the system does not say. */
size_t tw_resident_set_bytes(void);

#endif
