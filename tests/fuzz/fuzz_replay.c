/* Bytes become a small trace, a cut and budgets; every policy must do what its plain form does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/sweeps.h"

struct bytes {
    const uint8_t *data;
    size_t size;
};

/* The next byte, 0 when they are used up. */
static uint8_t next(struct bytes *bytes) {
    if (bytes->size == 0) return 0;
    bytes->size--;
    return *bytes->data++;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct bytes bytes = {data, size};
    struct tw_oracle_trace trace = {0};
    trace.n_layers = 1 + next(&bytes) % 2;
    trace.n_kv_heads = 1 + next(&bytes) % 3;
    trace.n_heads = trace.n_kv_heads * (1 + next(&bytes) % 2);
    trace.top_k = 1 + next(&bytes) % 5;
    trace.n_steps = next(&bytes) % 24;
    trace.limit = 1 + next(&bytes) % 48;
    uint64_t budgets[4];
    struct tw_test_sweep sweep = {.by = (enum tw_replay_by)(next(&bytes) % 4),
                                  .page_size = 1 + next(&bytes) % 5,
                                  .unit = (enum tw_unit)(next(&bytes) % 2),
                                  .budgets = budgets,
                                  .n_budgets = 1 + next(&bytes) % 4};
    for (size_t b = 0; b < sweep.n_budgets; b++) budgets[b] = next(&bytes) % 16;
    const uint64_t every = 1 + next(&bytes) % 7;
    const double unstable = (next(&bytes) % 5) / 4.0;
    tw_oracle_trace_allocate(&trace);
    /* Two bytes a position: 255 is padding; the weight is any finite half that is not negative. */
    const size_t n = trace.n_layers * trace.n_steps * trace.n_heads * trace.top_k;
    for (size_t i = 0; i < n && bytes.size > 0; i++) {
        const uint8_t position = next(&bytes), weight = next(&bytes);
        if (position != 255) trace.position[i] = position % trace.limit;
        trace.weight[i] = (uint16_t)((weight % 124) << 8 | (weight & 3));
    }
    char difference[512];
    if (!tw_test_sweep_compare(&trace, &sweep, every, unstable, difference, sizeof difference)) {
        fprintf(stderr, "%s\n", difference);
        abort();
    }
    tw_oracle_trace_release(&trace);
    return 0;
}
