/*
 * PyramidKV: as snapkv, with budgets that fall linearly from the first layer to the last. With n = K - W on average the
 * last layer gets lo = n / beta, the first hi = 2n - lo; where hi is more than there is, it is what there is and lo
 * makes up for it. Rounding is to nearest, halves to even, which keeps the total.
 */
#include <math.h>
#include <stddef.h>

#include "base/checked.h"
#include "engine/prefill/compress.h"

struct pyramidkv_options {
    struct tw_pooling_options pooling;
    double beta;
};

static const struct tw_option pyramidkv_options[] = {
    TW_POOLING_OPTION_ROWS,
    {.name = "beta",
     .type = TW_OPTION_DOUBLE,
     .offset = offsetof(struct pyramidkv_options, beta),
     .default_value = "20",
     .minimum = 1,
     .maximum = 1e6,
     .value_name = "X",
     .help = "the last layer gets the average over this"},
    {0},
};

static tw_status layer_budget(size_t *budget, const struct tw_selection_context *context, const void *options, size_t l,
                              struct tw_error *err) {
    const struct pyramidkv_options *o = options;
    TW_TRY(tw_uniform_budget(budget, context, true, "pyramidkv", err));
    if (*budget >= context->prompt_length || context->n_layers == 1) return TW_OK;
    const double n = (double)(*budget - context->window), most = (double)(context->prompt_length - context->window);
    double low = n / o->beta, high = 2 * n - low;
    if (high > most) {
        high = most;
        low = 2 * n - high;
    }
    const double here = high - (double)l * (high - low) / (double)(context->n_layers - 1);
    *budget = context->window + (size_t)rint(here);
    return TW_OK;
}

static tw_status select_rows(struct tw_kept *kept, const struct tw_selection_context *context, const void *options,
                             size_t l, const struct tw_kv *kv, struct tw_observation *observation,
                             struct tw_error *err) {
    struct tw_pooling pooling;
    size_t budget;
    TW_TRY(tw_pooling_of(&pooling, options, "pyramidkv", err));
    TW_TRY(layer_budget(&budget, context, options, l, err));
    return tw_compress_windowed(kept, context, l, kv, observation, pooling, budget, err);
}

const struct tw_selector tw_selector_pyramidkv = {
    .name = "pyramidkv",
    .summary = "as snapkv, with more for the lower layers and less for the upper ones",
    .source = "PyramidKV (Cai et al., 2024)",
    .options = pyramidkv_options,
    .options_size = sizeof(struct pyramidkv_options),
    .windowed = true,
    .needs_observation = true,
    .layer_budget = layer_budget,
    .select = select_rows,
};
