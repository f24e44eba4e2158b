#include "cli/progress_line.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"

#define FIRST_AFTER_SECONDS 0.3
#define EVERY_SECONDS       (1.0 / 6)

static struct {
    char phase[64];
    double began; /* when the phase did */
    uint64_t began_at;
    double shown; /* when the line was last drawn */
    bool visible;
} line;

void tw_progress_line_clear(void) {
    if (!line.visible) return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    line.visible = false;
}

static void append_time(char *out, size_t size, double seconds) {
    if (seconds >= 3600)
        snprintf(out, size, "%d:%02d:%02d", (int)(seconds / 3600), (int)(seconds / 60) % 60, (int)seconds % 60);
    else
        snprintf(out, size, "%d:%02d", (int)(seconds / 60), (int)seconds % 60);
}

static void update(struct tw_progress *progress, const char *phase, uint64_t done, uint64_t total, const char *unit,
                   const char *detail) {
    (void)progress;
    const double now = tw_clock_seconds();
    if (strncmp(phase, line.phase, sizeof line.phase - 1) != 0 || done < line.began_at) {
        snprintf(line.phase, sizeof line.phase, "%s", phase);
        line.began = now;
        line.began_at = done;
        line.shown = now - EVERY_SECONDS + FIRST_AFTER_SECONDS;
    }
    if (now - line.shown < EVERY_SECONDS) return;
    line.shown = now;

    char text[256], left[32] = "";
    const double elapsed = now - line.began;
    const double rate = elapsed > 0 ? (double)(done - line.began_at) / elapsed : 0;
    int n = snprintf(text, sizeof text, "%s", phase);
    if (total) n += snprintf(text + n, sizeof text - (size_t)n, " %3d%%", (int)(100.0 * (double)done / (double)total));
    if (detail) n += snprintf(text + n, sizeof text - (size_t)n, "  %.80s", detail);
    if (rate > 0) n += snprintf(text + n, sizeof text - (size_t)n, "  %.*f %s/s", rate < 10 ? 1 : 0, rate, unit);
    if (rate > 0 && total > done) {
        append_time(left, sizeof left, (double)(total - done) / rate);
        snprintf(text + n, sizeof text - (size_t)n, "  %s left", left);
    }
    struct winsize window = {0};
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1 && strlen(text) >= window.ws_col)
        text[window.ws_col - 1] = 0; /* a line that wraps could not be wiped */
    fprintf(stderr, "\r%s\033[K", text);
    fflush(stderr);
    line.visible = true;
}

static void silent(struct tw_progress *progress, const char *phase, uint64_t done, uint64_t total, const char *unit,
                   const char *detail) {
    (void)progress, (void)phase, (void)done, (void)total, (void)unit, (void)detail;
}

struct tw_progress *tw_progress_line(void) {
    static struct tw_progress shown = {update}, hidden = {silent};
    return isatty(STDERR_FILENO) ? &shown : &hidden;
}
