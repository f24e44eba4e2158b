#include "traces/create.h"

#include "traces/filter.h"
#include "traces/pack.h"

static hid_t half_type(void) {
    const hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    H5Tset_fields(type, 15, 10, 5, 0, 10);
    H5Tset_size(type, 2);
    H5Tset_ebias(type, 15);
    return type;
}

/* dims[0] grows when `growing`; a chunk of 0 elements makes the dataset contiguous. */
static hid_t create_dataset(hid_t file, enum tw_trace_dataset which, hid_t type, unsigned rank, const hsize_t *dims,
                            const hsize_t *chunk, bool growing) {
    hsize_t most[4];
    bool empty = false;
    for (unsigned d = 0; d < rank; d++) {
        most[d] = dims[d];
        empty = empty || chunk[d] == 0;
    }
    if (growing) most[0] = H5S_UNLIMITED;
    const hid_t space = H5Screate_simple((int)rank, dims, most);
    const hid_t plan = H5Pcreate(H5P_DATASET_CREATE), links = H5Pcreate(H5P_LINK_CREATE);
    const unsigned level = TW_PACK_LEVEL;
    bool done = space >= 0 && plan >= 0 && links >= 0 && H5Pset_create_intermediate_group(links, 1) >= 0 &&
                H5Pset_fill_time(plan, H5D_FILL_TIME_NEVER) >= 0 &&
                H5Pset_obj_track_times(plan, false) >= 0; /* the same run gives the same bytes */
    if (done && !empty)
        done = H5Pset_chunk(plan, (int)rank, chunk) >= 0 && (H5Tget_size(type) == 1 || H5Pset_shuffle(plan) >= 0) &&
               H5Pset_filter(plan, TW_FILTER_ZSTD, H5Z_FLAG_MANDATORY, 1, &level) >= 0;
    const hid_t id =
        done ? H5Dcreate2(file, tw_trace_dataset_path(which), type, space, links, plan, H5P_DEFAULT) : H5I_INVALID_HID;
    H5Pclose(links);
    H5Pclose(plan);
    H5Sclose(space);
    return id;
}

bool tw_trace_create_datasets(hid_t *datasets, hid_t file, const struct tw_trace_info *info,
                              const struct tw_trace_writer_options *options) {
    enum { BLOCK = TW_TRACE_BLOCK };
    const hsize_t L = info->n_layers, H = info->n_heads, K = info->top_k, G = info->n_kv_heads, d = info->head_dim;
    const hsize_t P = info->prompt_length, N = options->kept_width;
    const hsize_t topk[] = {0, L, H, K}, topk_chunk[] = {BLOCK, 1, H, K};
    const hsize_t step[] = {0}, step_chunk[] = {BLOCK}, score[] = {0, L, H}, score_chunk[] = {BLOCK, 1, H};
    const hsize_t prompt[] = {P}, prompt_chunk[] = {P < 1 << 16 ? P : 1 << 16};
    const hsize_t vote[] = {L, G, P}, vote_chunk[] = {1, G, P}, kept[] = {L, G, N}, kept_chunk[] = {1, G, N};
    const hsize_t key[] = {0, L, G, d}, key_chunk[] = {BLOCK, 1, G, d};
    const hid_t half = half_type(), i32 = H5T_STD_I32LE, f32 = H5T_IEEE_F32LE, u8 = H5T_STD_U8LE;
    const hid_t weight = options->weight_float ? f32 : half;
    const struct {
        bool wanted;
        enum tw_trace_dataset which;
        hid_t type;
        unsigned rank;
        const hsize_t *dims, *chunk;
        bool growing;
    } rows[] = {
        {true, TW_TRACE_POSITION, i32, 4, topk, topk_chunk, true},
        {true, TW_TRACE_WEIGHT, weight, 4, topk, topk_chunk, true},
        {true, TW_TRACE_CONTEXT_LENGTH, i32, 1, step, step_chunk, true},
        {true, TW_TRACE_TOKEN_ID, i32, 1, step, step_chunk, true},
        {true, TW_TRACE_PROMPT, i32, 1, prompt, prompt_chunk, false},
        {options->needle, TW_TRACE_NEEDLE, f32, 3, score, score_chunk, true},
        {options->copy_paste, TW_TRACE_COPY_PASTE, u8, 3, score, score_chunk, true},
        {options->window_vote, TW_TRACE_WINDOW_VOTE, half, 3, vote, vote_chunk, false},
        {N > 0, TW_TRACE_KEPT, i32, 3, kept, kept_chunk, false},
        {options->key, TW_TRACE_KEY, half, 4, key, key_chunk, true},
    };
    bool done = true;
    for (size_t i = 0; done && i < sizeof rows / sizeof *rows; i++)
        if (rows[i].wanted) {
            const hid_t id = create_dataset(file, rows[i].which, rows[i].type, rows[i].rank, rows[i].dims,
                                            rows[i].chunk, rows[i].growing);
            datasets[rows[i].which] = id;
            done = id >= 0;
        }
    H5Tclose(half);
    return done;
}

uint64_t tw_trace_estimate_bytes(const struct tw_trace_info *info, const struct tw_trace_writer_options *options,
                                 size_t n_steps) {
    /* Of a logged entry: positions rarely take more than 2 of their 4 bytes, weights little less than all of theirs. */
    const double entry = 2.0 + (options->weight_float ? 3.9 : 2.0);
    const double heads = (double)info->n_layers * (double)info->n_heads;
    const double kv_heads = (double)info->n_layers * (double)info->n_kv_heads, prompt = (double)info->prompt_length;
    double bytes = 65536 + 4 * prompt;
    bytes += (double)n_steps * (heads * (double)info->top_k * entry + 16);
    if (options->needle) bytes += 4 * heads * (double)n_steps;
    if (options->copy_paste) bytes += heads * (double)n_steps;
    if (options->window_vote) bytes += 2 * kv_heads * prompt;
    bytes += 4 * kv_heads * (double)options->kept_width;
    if (options->key) bytes += 2 * kv_heads * (double)info->head_dim * (prompt + (double)n_steps);
    bytes *= 1.02;
    return bytes < 0x1p63 ? (uint64_t)bytes : UINT64_MAX;
}
