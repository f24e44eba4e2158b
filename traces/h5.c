#include "traces/h5.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

#include "traces/filter.h"

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static hid_t driver = -1;
static _Thread_local unsigned depth;                  /* of the lock */
static _Thread_local const char *volatile in_reading; /* the trace, while depth > 0 */

/* ---- the driver ------------------------------------------------------------------------------------------------- */

struct driver_file {
    H5FD_t public; /* libhdf5's part, first */
    struct tw_h5_file *shared;
    haddr_t eoa; /* end of what libhdf5 has given out */
};

struct driver_info {
    struct tw_h5_file *shared;
};

static H5FD_t *driver_open(const char *name, unsigned flags, hid_t fapl, haddr_t max_address) {
    (void)name;
    (void)max_address;
    const struct driver_info *const info = H5Pget_driver_info(fapl);
    if (!info) return NULL;
    struct driver_file *const file = calloc(1, sizeof *file);
    if (!file) return NULL;
    file->shared = info->shared;
    if (flags & H5F_ACC_TRUNC) {
        if (ftruncate(file->shared->fd, 0) != 0) {
            file->shared->failure = errno;
            free(file);
            return NULL;
        }
        file->shared->size = file->shared->flushed = 0;
    }
    return &file->public;
}

/* Consumes the pieces. */
static bool put_pieces(struct tw_h5_file *file, haddr_t address, struct iovec *piece, unsigned n) {
    while (n && !file->dead) {
        if (piece->iov_len == 0) {
            piece++;
            n--;
            continue;
        }
        ssize_t put = pwritev(file->fd, piece, (int)n, (off_t)address);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) {
            file->failure = put < 0 ? errno : ENOSPC;
            file->dead = true;
            return false;
        }
        address += (haddr_t)put;
        if (address > file->size) file->size = address;
        for (unsigned i = 0; put > 0; i++) {
            const size_t part = piece[i].iov_len < (size_t)put ? piece[i].iov_len : (size_t)put;
            piece[i].iov_base = (uint8_t *)piece[i].iov_base + part;
            piece[i].iov_len -= part;
            put -= (ssize_t)part;
        }
    }
    return true;
}

static bool put_bytes(struct tw_h5_file *file, haddr_t address, size_t size, const void *bytes) {
    struct iovec piece = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size};
    return put_pieces(file, address, &piece, 1);
}

void tw_h5_gather(struct tw_h5_file *file, const void *bytes) { file->lasting = bytes; }

bool tw_h5_put_gathered(struct tw_h5_file *file) {
    const unsigned n = file->n_gathered;
    file->n_gathered = 0;
    file->lasting = NULL;
    return put_pieces(file, file->gathered_at, file->gathered, n);
}

/* Chunks that last are gathered as long as each follows the one before; others are written at once. */
static bool put_data(struct tw_h5_file *file, haddr_t address, size_t size, const void *bytes) {
    uint64_t end = file->gathered_at;
    for (unsigned i = 0; i < file->n_gathered; i++) end += file->gathered[i].iov_len;
    const bool lasting = bytes == file->lasting;
    if (file->n_gathered && (!lasting || address != end || file->n_gathered == TW_H5_GATHERED_MOST) &&
        !tw_h5_put_gathered(file))
        return false;
    if (!lasting) return put_bytes(file, address, size, bytes);
    if (file->n_gathered == 0) file->gathered_at = address;
    file->gathered[file->n_gathered++] = (struct iovec){.iov_base = (void *)(uintptr_t)bytes, .iov_len = size};
    return true;
}

/* Writes the metadata that is held back; after a failure it is dropped. */
static bool put_held(struct tw_h5_file *file) {
    bool done = tw_h5_put_gathered(file); /* first what it refers to */
    tw_held_order(&file->held, file->flushed);
    for (size_t i = 0; done && i < file->held.n; i++) {
        const struct tw_held_block *const block = &file->held.block[i];
        done = put_bytes(file, block->address, block->size, block->bytes);
    }
    tw_held_clear(&file->held);
    return done;
}

static herr_t driver_flush(H5FD_t *public, hid_t dxpl, hbool_t closing) {
    (void)dxpl;
    (void)closing;
    struct driver_file *const file = (struct driver_file *)public;
    const bool done = put_held(file->shared);
    file->shared->flushed = file->eoa;
    return done ? 0 : -1;
}

static herr_t driver_close(H5FD_t *file) {
    const bool done = put_held(((struct driver_file *)file)->shared);
    free(file);
    return done ? 0 : -1;
}

static herr_t driver_query(const H5FD_t *file, unsigned long *flags) {
    (void)file;
    /* Metadata is neither gathered into blocks nor written several at a time: driver_alloc says why. */
    *flags = H5FD_FEAT_DATA_SIEVE | H5FD_FEAT_AGGREGATE_SMALLDATA | H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
    return 0;
}

/*
 * Room for an object. A kill cuts a write between two pages of memory, and a half-written node of a chunk index loses
 * chunks that were flushed long before: what is metadata lies within one page, so that it is on the disk as it was or
 * as it is to be. (Chunks may be cut: nothing refers to them until they are whole.) traces/held.h orders these writes.
 */
static haddr_t driver_alloc(H5FD_t *file, H5FD_mem_t type, hid_t transfer, hsize_t size) {
    (void)transfer;
    enum { PAGE = 4096 };
    haddr_t *const eoa = &((struct driver_file *)file)->eoa;
    haddr_t address = *eoa;
    if (type != H5FD_MEM_DRAW && size <= PAGE && address / PAGE != (address + size - 1) / PAGE)
        address = (address + PAGE - 1) / PAGE * PAGE;
    *eoa = address + size;
    return address;
}

static haddr_t driver_get_eoa(const H5FD_t *file, H5FD_mem_t type) {
    (void)type;
    return ((const struct driver_file *)file)->eoa;
}

static herr_t driver_set_eoa(H5FD_t *file, H5FD_mem_t type, haddr_t address) {
    (void)type;
    ((struct driver_file *)file)->eoa = address;
    return 0;
}

static haddr_t driver_get_eof(const H5FD_t *file, H5FD_mem_t type) {
    (void)type;
    return ((const struct driver_file *)file)->shared->size;
}

static uint64_t word_at(const uint8_t *bytes) {
    uint64_t word = 0;
    for (size_t b = 0; b < 8; b++) word |= (uint64_t)bytes[b] << 8 * b;
    return word;
}

/*
 * A collection of the global heap, where attributes keep their strings (HDF5 file format, III.E): objects of 16 bytes
 * and their contents, filled up to a multiple of 8; the free rest is object 0. libhdf5 1.10 follows the sizes wherever
 * they lead, or for ever.
 */
static bool sound_heap(const uint8_t *bytes, uint64_t size) {
    enum { HEAD = 16 };
    for (uint64_t at = HEAD; size - at >= HEAD;) {
        const uint64_t left = size - at, stated = word_at(bytes + at + 8);
        const bool unused = !bytes[at] && !bytes[at + 1];
        if (stated > left || (unused && stated < HEAD)) return false;
        const uint64_t whole = unused ? stated : HEAD + (stated + 7) / 8 * 8;
        if (whole > left) return false;
        at += whole;
    }
    return true;
}

static herr_t driver_read(H5FD_t *public, H5FD_mem_t type, hid_t dxpl, haddr_t address, size_t size, void *buffer);

/* What was read from a place where libhdf5 looks for such a collection; the rest of it is read here. */
static bool check_heap(H5FD_t *file, haddr_t address, size_t size, const uint8_t *bytes) {
    if (size < 16 || memcmp(bytes, "GCOL", 4) != 0) return true; /* the rest of one, or libhdf5 refuses it */
    const uint64_t stated = word_at(bytes + 8), there = driver_get_eof(file, H5FD_MEM_DRAW);
    if (stated < 16 || address > there || stated > there - address) return false;
    if (stated <= size) return sound_heap(bytes, stated);
    uint8_t *const all = malloc((size_t)stated);
    const bool sound =
        all && driver_read(file, H5FD_MEM_DRAW, 0, address, (size_t)stated, all) == 0 && sound_heap(all, stated);
    free(all);
    return sound;
}

/* Reads behind the end give zeros, as with libhdf5's own driver. */
static herr_t driver_read(H5FD_t *public, H5FD_mem_t type, hid_t dxpl, haddr_t address, size_t size, void *buffer) {
    (void)type;
    (void)dxpl;
    struct tw_h5_file *const file = ((struct driver_file *)public)->shared;
    uint8_t *to = buffer;
    const haddr_t first = address;
    const size_t all = size;
    if (address > INT64_MAX || size > INT64_MAX - address) return -1;
    if (file->n_gathered && !tw_h5_put_gathered(file)) return -1;
    while (size) {
        size_t n = 0;
        if (file->fd < 0) {
            n = address < file->size ? (size_t)(file->size - address < size ? file->size - address : size) : 0;
            if (n) memcpy(to, file->memory + address, n);
        } else {
            const ssize_t got = pread(file->fd, to, size, (off_t)address);
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) {
                file->failure = errno;
                return -1;
            }
            n = (size_t)got;
        }
        if (!n) {
            memset(to, 0, size);
            break;
        }
        to += n;
        address += n;
        size -= n;
    }
    tw_held_overlay(&file->held, buffer, first, all);
    if (file->heaps && !check_heap(public, first, all, buffer)) return -1;
    return 0;
}

static herr_t driver_write(H5FD_t *public, H5FD_mem_t type, hid_t dxpl, haddr_t address, size_t size,
                           const void *buffer) {
    (void)dxpl;
    struct tw_h5_file *const file = ((struct driver_file *)public)->shared;
    if (file->dead) return 0;
    /* Place that was freed and given out anew since the last flush (none is while steps come in): what is held for it
     * goes first, in whatever state. */
    if (tw_held_overlaps(&file->held, address, size) && !put_held(file)) return -1;
    if (type == H5FD_MEM_DRAW) /* global heaps too: libhdf5 counts them as data, and what they held they still hold */
        return put_data(file, address, size, buffer) ? 0 : -1;
    const enum tw_held_kind kind = type == H5FD_MEM_SUPER   ? TW_HELD_SUPERBLOCK
                                   : type == H5FD_MEM_BTREE ? TW_HELD_TREE
                                                            : TW_HELD_OTHER;
    if (tw_held_put(&file->held, kind, address, size, buffer)) return 0;
    file->failure = ENOMEM;
    file->dead = true;
    return -1;
}

/*
 * At a flush, before driver_flush, and at the end: the file is at least as long as libhdf5 is going to say, or it would
 * not open again. It shrinks only at the end, to give back what tw_h5_reserve took, when nothing on the disk speaks of
 * more.
 */
static herr_t driver_truncate(H5FD_t *public, hid_t dxpl, hbool_t closing) {
    (void)dxpl;
    struct driver_file *const file = (struct driver_file *)public;
    struct tw_h5_file *const shared = file->shared;
    if (shared->fd < 0 || shared->dead || shared->read_only) return 0;
    if (!tw_h5_put_gathered(shared)) return -1;
    if (closing && file->eoa <= shared->size && !put_held(shared)) return -1;
    if (file->eoa <= shared->size && !closing) return 0;
    if (ftruncate(shared->fd, (off_t)file->eoa) != 0) {
        shared->failure = errno;
        shared->dead = true;
        return -1;
    }
    shared->size = file->eoa;
    return 0;
}

static const H5FD_class_t driver_class = {
#if H5_VERSION_GE(1, 13, 2)
    .version = H5FD_CLASS_VERSION,
    .value = 518, /* in the range for testing; never stored in a file */
#endif
    .name = "tidewake",
    .maxaddr = INT64_MAX,
    .fc_degree = H5F_CLOSE_STRONG, /* closing a file closes all that is open in it */
    .fapl_size = sizeof(struct driver_info),
    .open = driver_open,
    .close = driver_close,
    .query = driver_query,
    .alloc = driver_alloc,
    .get_eoa = driver_get_eoa,
    .set_eoa = driver_set_eoa,
    .get_eof = driver_get_eof,
    .read = driver_read,
    .write = driver_write,
    .flush = driver_flush,
    .truncate = driver_truncate,
    .fl_map = H5FD_FLMAP_DICHOTOMY,
};

/* ---- the library ------------------------------------------------------------------------------------------------ */

void tw_h5_enter(void) {
    pthread_mutex_lock(&lock);
    depth++;
    if (driver >= 0) return;
    H5open();
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    H5PLset_loading_state(0);
    H5Zregister(&tw_filter_zstd);
    driver = H5FDregister(&driver_class);
}

void tw_h5_enter_reading(const char *path) {
    tw_h5_enter();
    if (!in_reading) in_reading = path;
}

const char *tw_h5_reading(void) { return in_reading; }

void tw_h5_leave(void) {
    if (--depth == 0) in_reading = NULL;
    pthread_mutex_unlock(&lock);
}

static herr_t innermost(unsigned level, const H5E_error2_t *error, void *words) {
    (void)level;
    snprintf(words, 256, "%s", error->desc && *error->desc ? error->desc : "unknown reason");
    return 1; /* walking from inside out: the first is the cause */
}

const char *tw_h5_reason(void) {
    static char words[256];
    snprintf(words, sizeof words, "unknown reason");
    tw_h5_enter();
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, innermost, words);
    H5Eclear2(H5E_DEFAULT);
    tw_h5_leave();
    return words;
}

tw_status tw_h5_file_init(struct tw_h5_file *file, int fd, const char *path, struct tw_error *err) {
    struct stat st;
    if (fstat(fd, &st) != 0) return TW_FAIL(err, TW_E_IO, "cannot examine trace '%s': %s", path, strerror(errno));
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0) limit.rlim_cur = RLIM_INFINITY;
    *file = (struct tw_h5_file){.fd = fd, .size = (uint64_t)st.st_size, .write_limit = limit.rlim_cur};
    return TW_OK;
}

static hid_t file_access(struct tw_h5_file *file) {
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    const struct driver_info info = {file};
    if (access >= 0 && H5Pset_driver(access, driver, &info) >= 0) return access;
    if (access >= 0) H5Pclose(access);
    return -1;
}

/* The name is for libhdf5's messages alone: the driver has the file already. */
hid_t tw_h5_open(struct tw_h5_file *file) {
    file->read_only = true;
    const hid_t access = file_access(file);
    if (access < 0) return -1;
    const hid_t id = H5Fopen("trace", H5F_ACC_RDONLY, access);
    H5Pclose(access);
    return id;
}

hid_t tw_h5_create(struct tw_h5_file *file) {
    const hid_t access = file_access(file);
    if (access < 0) return -1;
    const hid_t id = H5Fcreate("trace", H5F_ACC_TRUNC, H5P_DEFAULT, access);
    H5Pclose(access);
    return id;
}

bool tw_h5_reserve(struct tw_h5_file *file, uint64_t bytes) {
    if (file->dead) return false;
    if (file->write_limit < file->size || bytes > file->write_limit - file->size) {
        file->failure = EFBIG;
    } else if (fallocate(file->fd, FALLOC_FL_KEEP_SIZE, (off_t)file->size, (off_t)bytes) == 0 ||
               (errno != ENOSPC && errno != EDQUOT)) {
        return true;
    } else {
        file->failure = errno;
    }
    file->dead = true;
    return false;
}

size_t tw_h5_open_ids(void) {
    tw_h5_enter();
    const ssize_t n = H5Fget_obj_count((hid_t)H5F_OBJ_ALL, H5F_OBJ_ALL);
    tw_h5_leave();
    return n > 0 ? (size_t)n : 0;
}
