/*
 * Threads and dynamic shared memory of the kernels, as their launchers ask for them: what `make cuda-listing` cannot
 * read from ptxas. A line a kernel: its name as the demangler writes it, threads, bytes. Compiled over the emulation's
 * headers, from the kernel files themselves. Where the size depends on the model it is Llama-3.1-8B's, with a log
 * of 64.
 */
#include <stdio.h>

#include "engine/backend/cuda/tiles.h"
#include "engine/backend/cuda/unpack.h"

/* Each file has its own constants. */
namespace attention {
#include "engine/backend/cuda/attention.cu"
}
namespace eager {
#include "engine/backend/cuda/eager.cu"
}
namespace keys {
#include "engine/backend/cuda/keys.cu"
}
namespace observing {
#include "engine/backend/cuda/observe.cu"
}
namespace quant {
#include "engine/backend/cuda/quant.cu"
}
namespace one_row {
#include "engine/backend/cuda/row.cu"
}
namespace rows {
#include "engine/backend/cuda/rows.cu"
}
namespace select_top {
#include "engine/backend/cuda/select.cu"
}

static const size_t group = 4, head_dim = 128, top_k = 64;

static void line(const char *name, int threads, size_t bytes) { printf("%s\t%d\t%zu\n", name, threads, bytes); }

template <class T, int kWidth> static void tiles(const char *type) {
    const auto tile = [=](const char *name, size_t bytes) {
        printf("%s<%s, %d>\t%d\t%zu\n", name, type, kWidth, (int)TILE_THREADS, bytes);
    };
    tile("attend", attention::attend_shared<T, kWidth>::bytes);
    tile("eager_scores", eager::eager_shared<T, kWidth>::bytes);
    tile("eager_values", eager::eager_shared<T, kWidth>::bytes);
    tile("observe", observing::observe_shared<T, kWidth>::bytes);
    tile("score_attention", observing::observe_shared<T, kWidth>::bytes);
}

template <class T> static void widths(const char *type) {
    tiles<T, 16>(type);
    tiles<T, 32>(type);
    tiles<T, 64>(type);
    tiles<T, 128>(type);
    tiles<T, 256>(type);
}

int main() {
    widths<tw_bf16>("__nv_bfloat16");
    widths<float>("float");
    line("observe_merge", 128, 0);
    line("eager_softmax", eager::SOFTMAX_THREADS, 0);
    line("norm_rows", rows::ROW_THREADS, 0);
    line("add_norm_rows", rows::ROW_THREADS, 0);
    line("append_rows", rows::ROW_THREADS, 0);
    line("gate_rows", 256, 0);
    line("rotation_rows", 64, 0);
    line("score_keys", keys::KEY_THREADS, 0);
    line("key_mean", keys::KEY_THREADS, keys::KEY_WARPS * head_dim * sizeof(double));
    line("key_mean_merge", 128, 0);
    line("gather_rows", keys::KEY_THREADS, 0);
    line("unpack_rows", 128, 0);
    line("product", quant::PRODUCT_THREADS, 0);
    line("row_logits", one_row::LOGIT_THREADS, group * head_dim * sizeof(float));
    line("row_fold", one_row::ROW_THREADS, 0);
    line("row_weights", one_row::ROW_THREADS, 0);
    line("row_values", one_row::VALUE_THREADS, 0);
    line("row_values_merge", 128, 0);
    line("top_of_range", select_top::SELECT_THREADS, 0);
    line("top_merge", select_top::SELECT_THREADS, top_k * sizeof(uint64_t));
    line("pool_scores", 128, 0);
    line("chunk_means", 128, 0);
    line("rank_own", select_top::SELECT_THREADS, 0);
    line("rank_rest", select_top::SELECT_THREADS, 0);
    line("rank_shared", select_top::SELECT_THREADS, 0);
    return 0;
}
