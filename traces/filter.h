/*
 * The zstd filter of HDF5, registered id 32015: whole zstd frames, one option (the compression level). Built into the
 * program and, from the same source, into the plugin that h5dump and h5py load. It calls no function of libhdf5, so
 * that the plugin works inside any copy of it.
 */
#ifndef TW_TRACES_FILTER_H
#define TW_TRACES_FILTER_H

#include <hdf5.h>

#define TW_FILTER_ZSTD 32015

extern const H5Z_class2_t tw_filter_zstd;

#endif
