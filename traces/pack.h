/* Chunks on their way into the file: shuffled and compressed, many at once. For this floor only. */
#ifndef TW_TRACES_PACK_H
#define TW_TRACES_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/team.h"

/* The level that the filter's option names: what another program would use that adds to the file. */
#define TW_PACK_LEVEL 1

/* One chunk. */
struct tw_pack_job {
    const void *elements;            /* [n_elements] of element_size bytes */
    size_t n_elements, element_size; /* element_size of 1 to 4 bytes; all of them less than 2^32 */
    size_t n_noisy;  /* so many of an element's bytes, from its lowest, are noise that is not worth compressing */
    bool matches;    /* whether the others repeat in runs and phrases, and not just some more often than others */
    bool pad;        /* fill up with an empty frame to tw_pack_bound, so that the chunk can be replaced in place */
    uint8_t *packed; /* [tw_pack_bound(...)] owned by the job */
    size_t packed_capacity, packed_size;
    unsigned dataset; /* the rest is the caller's: where the chunk belongs */
    uint64_t offset[4];
};

struct tw_pack; /* compressors, one a thread */

struct tw_pack *tw_pack_new(struct tw_team *team); /* which must outlive it; NULL: out of memory */
void tw_pack_free(struct tw_pack *pack);

/* What a chunk of so many bytes can take at most, room for padding included. */
size_t tw_pack_bound(size_t chunk_bytes);

/* Compresses all jobs with the team; the result does not depend on their number. Fails with TW_E_MEMORY. */
tw_status tw_pack_run(struct tw_pack *pack, struct tw_pack_job *jobs, size_t n_jobs, struct tw_error *err);
void tw_pack_job_release(struct tw_pack_job *job);

#endif
