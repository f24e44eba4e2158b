/*
 * How this floor uses libhdf5: one lock, its error stack turned into words, and a file driver of our own.
 *
 * The driver works on a file descriptor or on bytes in memory. It takes no lock, so that reading works on file systems
 * without any and needs no environment variable, and after a failed write it touches the file no more: what libhdf5
 * still wants to write when it closes cannot spoil what was flushed before. Metadata reaches the file at a flush and in
 * a safe order (traces/held.h).
 */
#ifndef TW_TRACES_H5_H
#define TW_TRACES_H5_H

#include <hdf5.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/error.h"
#include "traces/held.h"

/*
 * The lock around every call into libhdf5 (not thread-safe as Debian builds it). Recursive. The first call prepares the
 * library: no printing of errors, our zstd filter registered, no loading of plugins.
 */
void tw_h5_enter(void);
void tw_h5_leave(void);

/*
 * As tw_h5_enter, to read the trace of this name, which stays valid until the matching leave. libhdf5 1.10 believes
 * sizes that a damaged file states, and crashes on some: a program's signal handler finds out here that it was that.
 */
void tw_h5_enter_reading(const char *path);
/* The name given by the calling thread, while it is between enter and leave; NULL otherwise. For signal handlers too.
 */
const char *tw_h5_reading(void);

/* The innermost words of libhdf5's error stack, in a static buffer; "unknown reason" without any. Clears the stack. */
const char *tw_h5_reason(void);

enum { TW_H5_GATHERED_MOST = 128 };

/* What the driver works on. */
struct tw_h5_file {
    int fd;                /* of a regular file, owned by the caller; -1: `memory` */
    const uint8_t *memory; /* [size] */
    uint64_t size;         /* bytes in the file */
    uint64_t write_limit;  /* RLIMIT_FSIZE */
    int failure;           /* errno of the first failed write or read; 0: none */
    bool dead;             /* a write failed: later writes are dropped */
    bool read_only;        /* set by tw_h5_open */
    bool heaps; /* set by the caller while it reads attributes: global heaps are checked before libhdf5 sees them */
    struct tw_held held; /* metadata that waits for the next flush */
    uint64_t flushed;    /* where the file ended at the last flush */
    /* Between tw_h5_gather and tw_h5_put_gathered: pieces side by side that one call of the system is going to write.
     */
    const void *lasting;
    struct iovec gathered[TW_H5_GATHERED_MOST]; /* [n_gathered] */
    unsigned n_gathered;
    uint64_t gathered_at; /* in the file */
};

/* Prepares the struct for an open descriptor (its size is looked up). */
tw_status tw_h5_file_init(struct tw_h5_file *file, int fd, const char *path, struct tw_error *err);

/* As H5Fopen (read only) and H5Fcreate (truncating), on our driver; < 0 on failure. `file` must outlive the id. */
hid_t tw_h5_open(struct tw_h5_file *file);
hid_t tw_h5_create(struct tw_h5_file *file);

/*
 * Makes sure that `bytes` more can be written behind the end of the file, without changing its size: false, with
 * `failure` set, when the disk is full. Where the file system cannot promise, true.
 */
bool tw_h5_reserve(struct tw_h5_file *file, uint64_t bytes);

/*
 * Says that `bytes`, which libhdf5 is about to be asked to write, stay as they are until tw_h5_put_gathered. A block's
 * chunks lie side by side in the file, and the system takes them for a third of the time when it gets them all at once
 * (ext4: 7 MB in pieces of 12 KB 3.4 ms, of 700 KB 0.9 ms). False: a write failed.
 */
void tw_h5_gather(struct tw_h5_file *file, const void *bytes);
bool tw_h5_put_gathered(struct tw_h5_file *file);

/* How many ids (files, datasets, attributes, ...) libhdf5 has open: for tests. */
size_t tw_h5_open_ids(void);

#endif
