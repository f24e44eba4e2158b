/* The datasets of a new trace (spec: trace.md). For this floor only. */
#ifndef TW_TRACES_CREATE_H
#define TW_TRACES_CREATE_H

#include <hdf5.h>
#include <stdbool.h>

#include "traces/trace.h"
#include "traces/writer.h"

enum { TW_TRACE_BLOCK = 16 }; /* steps (or positions of keys) a chunk */

/*
 * Creates those that the options ask for, with extents of 0 where they grow, in datasets [TW_TRACE_N_DATASETS]; others
 * are left alone. False on failure, with what there is in datasets all the same. Under the lock.
 */
bool tw_trace_create_datasets(hid_t *datasets, hid_t file, const struct tw_trace_info *info,
                              const struct tw_trace_writer_options *options);

#endif
