#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static tw_status open_failed(const char *path, const char *what, struct tw_error *err) {
    const bool users =
        errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == ELOOP || errno == ENAMETOOLONG;
    return TW_FAIL(err, users ? TW_E_INPUT : TW_E_IO, "cannot open %s '%s': %s", what, path, strerror(errno));
}

tw_status tw_file_map(struct tw_file *file, const char *path, const char *what, struct tw_error *err) {
    *file = (struct tw_file){0};
    /* O_NONBLOCK: a named pipe is refused below, not waited for. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return open_failed(path, what, err);
    tw_status status = TW_OK;
    struct stat st;
    if (fstat(fd, &st) != 0) {
        status = TW_FAIL(err, TW_E_IO, "cannot examine %s '%s': %s", what, path, strerror(errno));
    } else if (S_ISDIR(st.st_mode)) {
        status = TW_FAIL(err, TW_E_INPUT, "%s '%s' is a directory, expected a file", what, path);
    } else if (!S_ISREG(st.st_mode)) {
        status = TW_FAIL(err, TW_E_INPUT, "%s '%s' is not a regular file", what, path);
    } else if (st.st_size > 0) {
        void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED) {
            status = TW_FAIL(err, TW_E_IO, "cannot map %s '%s': %s", what, path, strerror(errno));
        } else {
            file->data = data;
            file->size = (size_t)st.st_size;
        }
    }
    close(fd);
    return status;
}

void tw_file_unmap(struct tw_file *file) {
    if (file->data) munmap((void *)(uintptr_t)file->data, file->size);
    *file = (struct tw_file){0};
}

void tw_file_will_need(const void *data, size_t size) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), before = (uintptr_t)data % page;
    (void)madvise((void *)((uintptr_t)data - before), size + before, MADV_WILLNEED);
}

tw_status tw_file_read(struct tw_text *text, const char *path, size_t max_bytes, const char *what,
                       struct tw_error *err) {
    const bool standard_input = strcmp(path, "-") == 0;
    const int fd = standard_input ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return open_failed(path, what, err);
    tw_status status = TW_OK;
    const size_t start = text->size;
    char block[1 << 16];
    for (;;) {
        const ssize_t n = read(fd, block, sizeof block);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            status = errno == EISDIR ? TW_FAIL(err, TW_E_INPUT, "%s '%s' is a directory, expected a file", what, path)
                                     : TW_FAIL(err, TW_E_IO, "cannot read %s '%s': %s", what, path, strerror(errno));
            break;
        }
        if (n == 0) break;
        if ((size_t)n > max_bytes - (text->size - start)) {
            status = TW_FAIL(err, TW_E_INPUT, "%s '%s' is larger than %zu bytes", what, path, max_bytes);
            break;
        }
        tw_text_append(text, (struct tw_view){block, (size_t)n});
    }
    if (status == TW_OK && !tw_text_ok(text))
        status = TW_FAIL(err, TW_E_MEMORY, "out of memory while reading %s '%s'", what, path);
    if (!standard_input) close(fd);
    return status;
}
