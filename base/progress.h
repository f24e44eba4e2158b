/*
 * How long work reports on itself. Libraries only call; cli/ draws the line (on a terminal, at most six times a
 * second). NULL is a progress that nobody watches.
 */
#ifndef TW_BASE_PROGRESS_H
#define TW_BASE_PROGRESS_H

#include <stdint.h>

struct tw_progress {
    /*
     * phase   what is being done: "prefill", "decode", "replay"; a change starts a new rate
     * done    of `total` units of work so far; total 0: unknown
     * unit    the unit's name in the plural: "tokens", "steps", "layers"
     * detail  more, or NULL: "layer 3/30, chunk 2/4"
     * May be called from one thread at a time only.
     */
    void (*update)(struct tw_progress *progress, const char *phase, uint64_t done, uint64_t total, const char *unit,
                   const char *detail);
};

static inline void tw_progress_update(struct tw_progress *progress, const char *phase, uint64_t done, uint64_t total,
                                      const char *unit, const char *detail) {
    if (progress) progress->update(progress, phase, done, total, unit, detail);
}

#endif
