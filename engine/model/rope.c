#include "engine/model/rope.h"

#include <math.h>

static double llama3_factor(double wavelength, const struct tw_rope_scaling *scaling) {
    const double turns = scaling->original_length / wavelength; /* within the original length */
    if (turns > scaling->high_frequency) return 1;
    if (turns < scaling->low_frequency) return scaling->factor;
    const double smooth = (turns - scaling->low_frequency) / (scaling->high_frequency - scaling->low_frequency);
    return 1 / ((1 - smooth) / scaling->factor + smooth);
}

void tw_rope_divisors(double *divisor, size_t head_dim, double theta, const struct tw_rope_scaling *scaling) {
    for (size_t j = 0; j < head_dim / 2; j++) {
        divisor[j] = pow(theta, 2 * (double)j / (double)head_dim);
        if (scaling->kind == TW_ROPE_LINEAR)
            divisor[j] *= scaling->factor;
        else if (scaling->kind == TW_ROPE_LLAMA3)
            divisor[j] *= (float)llama3_factor(2 * M_PI * divisor[j], scaling);
    }
}
