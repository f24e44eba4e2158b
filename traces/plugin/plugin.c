/* What libhdf5 asks a filter plugin: found through HDF5_PLUGIN_PATH by h5dump, h5py and others. */
#include <H5PLextern.h>

#include "traces/filter.h"

H5PL_type_t H5PLget_plugin_type(void) { return H5PL_TYPE_FILTER; }
const void *H5PLget_plugin_info(void) { return &tw_filter_zstd; }
