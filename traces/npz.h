/*
 * The logs of the WakeKV scripts, a folder with `log.npz` and `meta.json` (spec: trace.md), to traces and back; and a
 * trace as CSV. Importing holds the unpacked arrays in memory; exporting holds 16 steps.
 *
 * What a log does not have is left out of the trace, but for the prompt's token ids, which every trace has: they are
 * -1. Exporting writes them as one array more, `prompt_token_ids`, which importing understands.
 */
#ifndef TW_TRACES_NPZ_H
#define TW_TRACES_NPZ_H

#include <stdbool.h>

#include "base/error.h"
#include "base/progress.h"
#include "traces/trace.h"

/* Whether `path` is such a folder, or the log.npz in one. */
bool tw_npz_is_log(const char *path);

/* `force` as for tw_trace_writer_create. */
tw_status tw_npz_import(const char *trace_path, const char *folder, bool force, struct tw_progress *progress,
                        struct tw_error *err);
/* Makes the folder; one that has a log.npz already is refused unless `force`. */
tw_status tw_npz_export(const char *folder, struct tw_trace *trace, bool force, struct tw_progress *progress,
                        struct tw_error *err);

/* step,layer,head,rank,position,weight: a line for every entry that is not padding. `path` as for tw_output_open. */
tw_status tw_trace_export_csv(const char *path, struct tw_trace *trace, struct tw_progress *progress,
                              struct tw_error *err);

#endif
