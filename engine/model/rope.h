/*
 * Rotary position divisors: the angle of pair j at position p is p / divisor[j].
 *
 * Source: RoFormer (arXiv 2104.09864) for theta^(2j/head_dim); linear position interpolation (arXiv 2306.15595); the
 * "llama3" rule as published with Llama 3.1, which leaves short wavelengths alone, divides long ones by `factor` and
 * blends in between.
 */
#ifndef TW_ENGINE_MODEL_ROPE_H
#define TW_ENGINE_MODEL_ROPE_H

#include <stddef.h>

enum tw_rope_scaling_kind { TW_ROPE_UNSCALED, TW_ROPE_LINEAR, TW_ROPE_LLAMA3 };

struct tw_rope_scaling {
    enum tw_rope_scaling_kind kind;
    double factor;                        /* linear, llama3; > 0 */
    double low_frequency, high_frequency; /* llama3: factors of the original length; low < high */
    double original_length;               /* llama3: positions */
};

/*
 * divisor [head_dim / 2]. The factor of the llama3 rule is rounded to float32, as GGUF files store it, so that both
 * containers give the same angles.
 */
void tw_rope_divisors(double *divisor, size_t head_dim, double theta, const struct tw_rope_scaling *scaling);

#endif
