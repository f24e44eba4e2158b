#include "engine/backend/image.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "engine/backend/cuda/cuda_sizes.h"

tw_status tw_buffers_allocate(struct tw_buffers *buffers, struct tw_accountant *accountant,
                              const struct tw_backend_image *image, const struct tw_model *model,
                              const struct tw_backend_options *options, const struct tw_moment_of *of,
                              struct tw_error *err) {
    struct tw_buffer_size sizes[TW_MOMENT_MAX_BUFFERS];
    memset(buffers, 0, sizeof *buffers);
    const size_t n = image->buffers(sizes, model, options, of);
    assert(n <= TW_MOMENT_MAX_BUFFERS);
    buffers->n = n;
    for (size_t i = 0; i < n; i++) {
        if (sizes[i].bytes == 0) continue;
        if (sizes[i].mapped) {
            buffers->mapped_bytes += sizes[i].bytes;
            continue;
        }
        const tw_status status =
            tw_buffer_allocate(&buffers->buffer[i], accountant, sizes[i].bytes, sizes[i].category, sizes[i].what, err);
        if (status != TW_OK) {
            buffers->mapped_bytes = 0; /* not booked yet */
            tw_buffers_release(buffers, accountant);
            return status;
        }
    }
    if (buffers->mapped_bytes) tw_accountant_note_mapped(accountant, (int64_t)buffers->mapped_bytes);
    return TW_OK;
}

void tw_buffers_release(struct tw_buffers *buffers, struct tw_accountant *accountant) {
    for (size_t i = 0; i < buffers->n; i++) tw_buffer_release(&buffers->buffer[i], accountant);
    if (buffers->mapped_bytes) tw_accountant_note_mapped(accountant, -(int64_t)buffers->mapped_bytes);
    memset(buffers, 0, sizeof *buffers);
}

tw_status tw_image_kv_create(struct tw_kv *kv, struct tw_accountant *accountant, const struct tw_backend_image *image,
                             const struct tw_model *model, const struct tw_backend_options *options,
                             const size_t *capacity, bool with_positions, enum tw_category category, const char *what,
                             struct tw_error *err) {
    const size_t n_kv_heads = model->config.n_kv_heads;
    size_t *offset = calloc(n_kv_heads, sizeof *offset);
    memset(kv, 0, sizeof *kv);
    if (!offset) return TW_FAIL(err, TW_E_MEMORY, "out of memory: '%s'", what);
    struct tw_buffer_size sizes[TW_MOMENT_MAX_BUFFERS];
    const size_t n = image->buffers(
        sizes, model, options, &(struct tw_moment_of){.moment = TW_MOMENT_KV, .capacity = capacity, .offset = offset});
    assert(n == 2);
    (void)n;
    const tw_status status = tw_kv_init(kv, accountant, n_kv_heads, model->config.head_dim, capacity, offset,
                                        sizes[0].bytes, sizes[1].bytes, with_positions, category, what, err);
    free(offset);
    return status;
}

tw_status tw_image_bridge_create(struct tw_bridge *bridge, struct tw_accountant *accountant,
                                 const struct tw_backend_image *image, const struct tw_model *model,
                                 const struct tw_backend_options *options, size_t n_rows, struct tw_error *err) {
    struct tw_buffer_size sizes[TW_MOMENT_MAX_BUFFERS];
    memset(bridge, 0, sizeof *bridge);
    const size_t n =
        image->buffers(sizes, model, options, &(struct tw_moment_of){.moment = TW_MOMENT_BRIDGE, .n = n_rows});
    assert(n == 1);
    (void)n;
    TW_TRY(tw_buffer_allocate(&bridge->data, accountant, sizes[0].bytes, TW_CATEGORY_BRIDGE, "hidden bridge", err));
    bridge->n_rows = n_rows;
    return TW_OK;
}

tw_status tw_image_observation_create(struct tw_observation *observation, struct tw_accountant *accountant,
                                      const struct tw_backend_image *image, const struct tw_model *model,
                                      const struct tw_backend_options *options, struct tw_error *err) {
    struct tw_buffers buffers;
    memset(observation, 0, sizeof *observation);
    TW_TRY(tw_buffers_allocate(&buffers, accountant, image, model, options,
                               &(struct tw_moment_of){.moment = TW_MOMENT_OBSERVATION}, err));
    assert(buffers.n == 3);
    observation->query = buffers.buffer[0];
    observation->maximum = buffers.buffer[1];
    observation->sum = buffers.buffer[2];
    return TW_OK;
}

void tw_image_observation_release(struct tw_observation *observation, struct tw_accountant *accountant) {
    tw_buffer_release(&observation->query, accountant);
    tw_buffer_release(&observation->maximum, accountant);
    tw_buffer_release(&observation->sum, accountant);
    memset(observation, 0, sizeof *observation);
}

tw_status tw_image_find(const struct tw_backend_image **image, const char *name, struct tw_error *err) {
    struct tw_text names = {0};
    *image = strcmp(name, tw_cuda_image.name) == 0 ? &tw_cuda_image : NULL;
    for (const struct tw_backend_ops *const *b = tw_backend_table; *b; b++) {
        if (!(*b)->image) continue;
        if (strcmp((*b)->image->name, name) == 0) *image = (*b)->image;
        tw_text_printf(&names, "%s, ", (*b)->image->name);
    }
    const tw_status status =
        *image ? TW_OK
               : TW_FAIL(err, TW_E_OPTION, "there is no backend '%s' whose buffers could be planned; there are: %s%s",
                         name, tw_text_string(&names), tw_cuda_image.name);
    tw_text_release(&names);
    return status;
}
