/*
 * The image of a backend: the sizes of all its buffers, in plain C that needs neither weights nor device.
 *
 * A backend allocates what its image lists, through tw_buffers_allocate; the dry backend allocates the same lists from
 * nowhere. So `plan` and a real run agree by construction. Nothing else in a backend may take memory that grows with
 * the model, the prompt, the chunk, the window or the block.
 */
#ifndef TW_ENGINE_BACKEND_IMAGE_H
#define TW_ENGINE_BACKEND_IMAGE_H

#include "engine/backend/backend.h"

/*
 * When buffers are held. Those of decoding may be kept from one operation to the next (until chunk_create at the
 * latest): peaks are the same.
 */
enum tw_moment {
    TW_MOMENT_OPEN,        /* from open to close: scratch, decoding's state, a device's copy of the weights */
    TW_MOMENT_CHUNK,       /* from chunk_create to chunk_release; n = max_rows */
    TW_MOMENT_BRIDGE,      /* bridge_create; n rows; exactly one buffer */
    TW_MOMENT_KV,          /* kv_create; capacity, offset; exactly two: keys, values (their category is the caller's) */
    TW_MOMENT_OBSERVATION, /* observation_create; exactly three: query, maximum, sum */
    TW_MOMENT_LAYER,       /* from layer_begin(layer) to layer_end(layer) */
    /* During one operation. */
    TW_MOMENT_EMBED,         /* n rows */
    TW_MOMENT_APPEND,        /* n rows */
    TW_MOMENT_ATTEND,        /* n rows over a KV whose longest head has n_keys rows */
    TW_MOMENT_FINISH,        /* n rows */
    TW_MOMENT_OBSERVE,       /* n = block, n_keys */
    TW_MOMENT_SCORE,         /* n keys */
    TW_MOMENT_RANK,          /* n = block, n_keys = the most rows that are scored of a head, ranking */
    TW_MOMENT_KEY_MEAN,      /* n_keys */
    TW_MOMENT_GATHER,        /* n = the most that any head keeps */
    TW_MOMENT_LOG_ROW,       /* n = top_k, n_keys; decode_layer with a log too */
    TW_MOMENT_LOGITS,        /* n rows */
    TW_MOMENT_DECODE_LAYER,  /* n_keys: of the longest head, the token's own included */
    TW_MOMENT_DECODE_LOGITS, /* */
};

struct tw_moment_of {
    enum tw_moment moment;
    size_t n, n_keys, layer;
    const size_t *capacity;           /* [n_kv_heads] KV */
    size_t *offset;                   /* [n_kv_heads] KV: filled, the first row of each head in the backend's unit */
    const struct tw_ranking *ranking; /* RANK */
};

struct tw_buffer_size {
    const char *what; /* for the message when it does not fit: "unpacked layer" */
    enum tw_category category;
    size_t bytes; /* 0: no buffer, an empty place in the list */
    bool mapped;  /* weights that are only mapped: booked, not allocated */
};

#define TW_MOMENT_MAX_BUFFERS 24

struct tw_backend_image {
    const char *name;                          /* the backend's */
    const struct tw_memory_source *dry_source; /* tw_memory_dry, or tw_memory_dry_device */
    bool ranks;                                /* it has the operation `rank` */
    /*
     * Fills in what is to be chosen: dtype (never AUTO afterwards) and n_threads (never 0). Fails with TW_E_OPTION when
     * the backend cannot do what is asked for. open calls it too.
     */
    tw_status (*resolve)(struct tw_backend_options *options, const struct tw_model *model, struct tw_error *err);
    /* The buffers of a moment, in an order that is the backend's own; options are resolved. Returns their number. */
    size_t (*buffers)(struct tw_buffer_size sizes[TW_MOMENT_MAX_BUFFERS], const struct tw_model *model,
                      const struct tw_backend_options *options, const struct tw_moment_of *of);
};

/* The buffers of one moment, held. Zero-initialised it is empty. */
struct tw_buffers {
    size_t n;
    struct tw_buffer buffer[TW_MOMENT_MAX_BUFFERS]; /* as listed; an empty place has no data */
    size_t mapped_bytes;
};

/* Allocates all or none. */
tw_status tw_buffers_allocate(struct tw_buffers *buffers, struct tw_accountant *accountant,
                              const struct tw_backend_image *image, const struct tw_model *model,
                              const struct tw_backend_options *options, const struct tw_moment_of *of,
                              struct tw_error *err);
void tw_buffers_release(struct tw_buffers *buffers, struct tw_accountant *accountant); /* copes with {0} */

/* kv_create, bridge_create, observation_create and observation_release of any backend. */
tw_status tw_image_kv_create(struct tw_kv *kv, struct tw_accountant *accountant, const struct tw_backend_image *image,
                             const struct tw_model *model, const struct tw_backend_options *options,
                             const size_t *capacity, bool with_positions, enum tw_category category, const char *what,
                             struct tw_error *err);
tw_status tw_image_bridge_create(struct tw_bridge *bridge, struct tw_accountant *accountant,
                                 const struct tw_backend_image *image, const struct tw_model *model,
                                 const struct tw_backend_options *options, size_t n_rows, struct tw_error *err);
tw_status tw_image_observation_create(struct tw_observation *observation, struct tw_accountant *accountant,
                                      const struct tw_backend_image *image, const struct tw_model *model,
                                      const struct tw_backend_options *options, struct tw_error *err);
void tw_image_observation_release(struct tw_observation *observation, struct tw_accountant *accountant);

/* The image called `name`: of a built-in backend or of cuda. Fails with TW_E_OPTION and lists the names. */
tw_status tw_image_find(const struct tw_backend_image **image, const char *name, struct tw_error *err);

#endif
