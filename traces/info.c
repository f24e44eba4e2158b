/* struct tw_trace_info: copying and releasing, by the table of attributes; and finding traces by name. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "traces/attributes.h"

static char **text_of(struct tw_trace_info *info, const struct tw_attribute_row *row) {
    return (char **)((char *)info + row->offset);
}

tw_status tw_trace_info_set(char **field, const char *text, struct tw_error *err) {
    char *const copy = text ? strdup(text) : NULL;
    if (text && !copy) return TW_FAIL(err, TW_E_MEMORY, "out of memory for a trace's attributes");
    free(*field);
    *field = copy;
    return TW_OK;
}

void tw_trace_info_release(struct tw_trace_info *info) {
    for (const struct tw_attribute_row *row = tw_attribute_rows; row->name; row++)
        if (row->kind == TW_KIND_TEXT) free(*text_of(info, row));
    for (size_t i = 0; i < info->n_extra; i++) {
        free(info->extra[i].name);
        free(info->extra[i].text);
    }
    free(info->extra);
    *info = (struct tw_trace_info){0};
}

static bool copy_extra(struct tw_trace_info *info, const struct tw_trace_info *from) {
    if (!from->n_extra) return true;
    info->extra = calloc(from->n_extra, sizeof *info->extra);
    if (!info->extra) return false;
    for (size_t i = 0; i < from->n_extra; i++) {
        struct tw_trace_attribute *const to = &info->extra[info->n_extra++];
        *to = from->extra[i];
        to->name = strdup(from->extra[i].name);
        to->text = from->extra[i].text ? strdup(from->extra[i].text) : NULL;
        if (!to->name || (from->extra[i].text && !to->text)) return false;
    }
    return true;
}

tw_status tw_trace_info_copy(struct tw_trace_info *info, const struct tw_trace_info *from, struct tw_error *err) {
    *info = *from;
    info->extra = NULL;
    info->n_extra = 0;
    bool copied = true;
    for (const struct tw_attribute_row *row = tw_attribute_rows; row->name; row++) {
        if (row->kind != TW_KIND_TEXT) continue;
        char **const field = text_of(info, row);
        if (*field) *field = strdup(*field);
        copied = copied && !*field == !*(char *const *)((const char *)from + row->offset);
    }
    if (copied && copy_extra(info, from)) return TW_OK;
    tw_trace_info_release(info);
    return TW_FAIL(err, TW_E_MEMORY, "out of memory for a trace's attributes");
}

/* ---- finding ------------------------------------------------------------------------------------------------------
 */

static bool add(struct tw_trace_paths *paths, char *path) {
    char **const larger = path ? realloc(paths->paths, (paths->n + 1) * sizeof *larger) : NULL;
    if (!larger) {
        free(path);
        return false;
    }
    paths->paths = larger;
    paths->paths[paths->n++] = path;
    return true;
}

static int by_bytes(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static tw_status add_folder(struct tw_trace_paths *paths, const char *folder, struct tw_error *err) {
    DIR *const stream = opendir(folder);
    if (!stream) return TW_FAIL(err, TW_E_INPUT, "cannot open folder '%s': %s", folder, strerror(errno));
    const size_t before = paths->n;
    const size_t length = strlen(folder);
    const char *const slash = length && folder[length - 1] == '/' ? "" : "/";
    bool added = true;
    for (const struct dirent *entry; added && (entry = readdir(stream));) {
        const size_t size = strlen(entry->d_name);
        if (size <= 3 || strcmp(entry->d_name + size - 3, ".h5") != 0) continue;
        char *path = NULL;
        if (asprintf(&path, "%s%s%s", folder, slash, entry->d_name) < 0) path = NULL;
        added = add(paths, path);
    }
    closedir(stream);
    if (!added) return TW_FAIL(err, TW_E_MEMORY, "out of memory for the names in '%s'", folder);
    if (paths->n == before)
        return TW_FAIL(err, TW_E_INPUT, "folder '%s' holds no traces (no file ends in .h5)", folder);
    qsort(paths->paths + before, paths->n - before, sizeof *paths->paths, by_bytes);
    return TW_OK;
}

tw_status tw_trace_paths_find(struct tw_trace_paths *paths, const char *const *operands, size_t n_operands,
                              struct tw_error *err) {
    *paths = (struct tw_trace_paths){0};
    tw_status status = TW_OK;
    for (size_t i = 0; status == TW_OK && i < n_operands; i++) {
        struct stat st;
        if (stat(operands[i], &st) != 0)
            status = TW_FAIL(err, TW_E_INPUT, "cannot open trace '%s': %s", operands[i], strerror(errno));
        else if (S_ISDIR(st.st_mode))
            status = add_folder(paths, operands[i], err);
        else if (!add(paths, strdup(operands[i])))
            status = TW_FAIL(err, TW_E_MEMORY, "out of memory for names of traces");
    }
    if (status != TW_OK) tw_trace_paths_release(paths);
    return status;
}

void tw_trace_paths_release(struct tw_trace_paths *paths) {
    for (size_t i = 0; i < paths->n; i++) free(paths->paths[i]);
    free(paths->paths);
    *paths = (struct tw_trace_paths){0};
}
