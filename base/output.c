#include "base/output.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

tw_status tw_output_open(struct tw_output *output, const char *path, struct tw_error *err) {
    *output = (struct tw_output){0};
    if (!path || strcmp(path, "-") == 0) {
        output->stream = stdout;
        return TW_OK;
    }
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return TW_FAIL(err, TW_E_INPUT, "cannot write '%s': it is a directory", path);
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) { /* a pipe or /dev/null: nothing to rename */
        output->stream = fopen(path, "wb");
        output->path = strdup(path);
    } else {
        output->path = strdup(path);
        const size_t size = strlen(path) + sizeof ".XXXXXX";
        output->temporary = malloc(size);
        if (output->temporary) {
            snprintf(output->temporary, size, "%s.XXXXXX", path);
            const int fd = mkstemp(output->temporary);
            if (fd >= 0) {
                const mode_t mask = umask(0);
                umask(mask);
                (void)!fchmod(fd, 0666 & ~mask); /* mkstemp gives 0600; the file is to look like any other */
                output->stream = fdopen(fd, "wb");
            }
        }
    }
    if (!output->stream || !output->path) {
        const bool users = errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == EROFS;
        const tw_status status =
            TW_FAIL(err, users ? TW_E_INPUT : TW_E_IO, "cannot write '%s': %s", path, strerror(errno));
        if (output->temporary && !output->stream) {
            free(output->temporary);
            output->temporary = NULL;
        }
        tw_output_discard(output);
        return status;
    }
    return TW_OK;
}

tw_status tw_output_commit(struct tw_output *output, struct tw_error *err) {
    const char *const name = output->path ? output->path : "standard output";
    errno = 0;
    bool failed = fflush(output->stream) != 0 || ferror(output->stream);
    int reason = errno;
    if (output->path) {
        if (fclose(output->stream) != 0 && !failed) failed = true, reason = errno;
        output->stream = NULL;
        if (!failed && output->temporary && rename(output->temporary, output->path) != 0) failed = true, reason = errno;
    }
    tw_status status = TW_OK;
    if (failed)
        status = TW_FAIL(err, TW_E_IO, "cannot write '%s': %s", name, reason ? strerror(reason) : "unknown error");
    if (!failed && output->temporary) {
        free(output->temporary);
        output->temporary = NULL;
    }
    tw_output_discard(output);
    return status;
}

void tw_output_discard(struct tw_output *output) {
    if (output->stream && output->path) fclose(output->stream);
    if (output->temporary) unlink(output->temporary);
    free(output->temporary);
    free(output->path);
    *output = (struct tw_output){0};
}

tw_status tw_output_write(const char *path, struct tw_view content, struct tw_error *err) {
    struct tw_output output;
    TW_TRY(tw_output_open(&output, path, err));
    if (content.size) fwrite(content.data, 1, content.size, output.stream); /* commit sees the stream's error */
    return tw_output_commit(&output, err);
}
