/*
 * Seeded random numbers, the same on every machine: xoshiro256** (Blackman and Vigna, 2018) seeded by splitmix64.
 * Not for secrets.
 */
#ifndef TW_BASE_RANDOM_H
#define TW_BASE_RANDOM_H

#include <stdint.h>

struct tw_random {
    uint64_t state[4];
};

static inline uint64_t tw_random_splitmix(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* Streams of different `stream` numbers under one seed are independent. */
static inline void tw_random_init(struct tw_random *random, uint64_t seed, uint64_t stream) {
    uint64_t state = seed;
    state = tw_random_splitmix(&state) ^ stream;
    for (int i = 0; i < 4; i++) random->state[i] = tw_random_splitmix(&state);
}

static inline uint64_t tw_random_next(struct tw_random *random) {
    uint64_t *s = random->state;
    const uint64_t product = s[1] * 5;
    const uint64_t result = (product << 7 | product >> 57) * 9;
    const uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = s[3] << 45 | s[3] >> 19;
    return result;
}

/* Uniform in [0, n), n > 0, without bias. */
static inline uint64_t tw_random_below(struct tw_random *random, uint64_t n) {
    const uint64_t limit = -n % n; /* 2^64 mod n: values below it would make the first residues likelier */
    uint64_t value;
    do value = tw_random_next(random);
    while (value < limit);
    return value % n;
}

/* Uniform in [0, 1), a multiple of 2^-53. */
static inline double tw_random_unit(struct tw_random *random) {
    return (double)(tw_random_next(random) >> 11) * 0x1p-53;
}

#endif
