#include "engine/ties.h"

#include <string.h>

#include "base/half.h"

void tw_order_stored_ties(int32_t *restrict position, const float *restrict weight, uint16_t *restrict half,
                          uint8_t *restrict disorder, size_t top_k) {
    tw_half_from_floats(half, weight, top_k);
    for (size_t k = 1; k < top_k; k++)
        disorder[k] = (half[k] == half[k - 1]) & ((uint32_t)position[k] < (uint32_t)position[k - 1]);
    size_t k = 1;
    for (const uint8_t *found; k < top_k && (found = memchr(disorder + k, 1, top_k - k));) {
        k = (size_t)(found - disorder); /* its run was in order up to here */
        size_t begin = k - 1;
        while (begin > 0 && half[begin - 1] == half[k]) begin--;
        for (; k < top_k && half[k] == half[begin] && position[k] >= 0; k++) {
            const int32_t moved = position[k];
            size_t at = k;
            for (; at > begin && position[at - 1] > moved; at--) position[at] = position[at - 1];
            position[at] = moved;
        }
    }
}
