/* Replays files, and the files of folders, through a fuzz target: with any compiler, each in a block of its exact size.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/fuzz/fuzz.h"

static size_t n_replayed;

static int replay(const char *path) {
    struct stat st;
    if (stat(path, &st) != 0) {
        perror(path);
        return 1;
    }
    if (S_ISDIR(st.st_mode)) {
        struct dirent **entries;
        const int n = scandir(path, &entries, NULL, alphasort);
        int failed = n < 0;
        for (int i = 0; i < n; i++) {
            char inner[4096];
            snprintf(inner, sizeof inner, "%s/%s", path, entries[i]->d_name);
            if (entries[i]->d_name[0] != '.') failed |= replay(inner);
            free(entries[i]);
        }
        if (n >= 0) free(entries);
        return failed;
    }
    FILE *file = fopen(path, "rb");
    const size_t size = (size_t)st.st_size;
    uint8_t *data = malloc(size ? size : 1);
    const int read = file && data && fread(data, 1, size, file) == size;
    if (file) fclose(file);
    if (read) {
        setenv("TW_FUZZ_FILE", path, 1); /* what a core dump or a debugger shows */
        LLVMFuzzerTestOneInput(data, size);
        n_replayed++;
    } else {
        perror(path);
    }
    free(data);
    return !read;
}

int main(int argc, char **argv) {
    int failed = 0;
    for (int i = 1; i < argc; i++) failed |= replay(argv[i]);
    const char *name = strrchr(argv[0], '/');
    printf("fuzz target %s: %zu files replayed\n", name ? name + 1 : argv[0], n_replayed);
    return failed;
}
