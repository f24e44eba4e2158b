#include "analysis/layers.h"

#include <stdbool.h>

#include "base/stop.h"

tw_status tw_layers_run(const struct tw_layer_job *job, struct tw_trace *trace, struct tw_progress *progress,
                        struct tw_error *err) {
    const size_t n_layers = tw_trace_info(trace)->n_layers;
    tw_status first = TW_OK;
    size_t first_layer = SIZE_MAX, n_done = 0;
#pragma omp parallel
    {
        void *const scratch = job->scratch_new(job->context);
#pragma omp for schedule(dynamic, 1)
        for (size_t layer = 0; layer < n_layers; layer++) {
            bool stopped;
#pragma omp atomic read
            stopped = first;
            if (stopped) continue;
            struct tw_error mine = {0};
            tw_status status;
            if (tw_stop_requested())
                status = TW_FAIL(&mine, TW_E_INTERRUPTED, "interrupted in '%s'", tw_trace_path(trace));
            else if (!scratch)
                status = TW_FAIL(&mine, TW_E_MEMORY, "out of memory for trace '%s'", tw_trace_path(trace));
            else
                status = job->run(job->context, scratch, trace, layer, &mine);
#pragma omp critical(tw_layers)
            {
                if (status != TW_OK && layer < first_layer) {
#pragma omp atomic write
                    first = status;
                    first_layer = layer;
                    if (err) *err = mine;
                }
                tw_progress_update(progress, job->phase, ++n_done, n_layers, "layers", tw_trace_path(trace));
            }
        }
        job->scratch_free(scratch);
    }
    return first;
}
