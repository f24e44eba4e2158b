#include "cli/progress_line.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"

#define FIRST_AFTER_SECONDS 0.3
#define EVERY_SECONDS       (1.0 / 6)
/* One operation may take long (attention of a whole long prompt): the line then shows for how long. */
#define BEAT_AFTER_SECONDS 0.8
#define BEAT_NANOSECONDS   200000000L

static struct {
    pthread_mutex_t lock;
    bool beating;   /* there is a thread that keeps the line alive */
    char phase[64]; /* empty: nothing is being done */
    char unit[24], detail[81];
    uint64_t done, total;
    double began; /* when the phase did */
    uint64_t began_at;
    double updated; /* when `done` was told */
    double shown;   /* when the line was last drawn */
    bool visible;
} line = {.lock = PTHREAD_MUTEX_INITIALIZER};

void tw_progress_line_clear(void) {
    pthread_mutex_lock(&line.lock);
    if (line.visible) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
    line.visible = false;
    line.phase[0] = 0;
    pthread_mutex_unlock(&line.lock);
}

static void append_time(char *out, size_t size, double seconds) {
    if (seconds >= 3600)
        snprintf(out, size, "%d:%02d:%02d", (int)(seconds / 3600), (int)(seconds / 60) % 60, (int)seconds % 60);
    else
        snprintf(out, size, "%d:%02d", (int)(seconds / 60), (int)seconds % 60);
}

static void draw(double now) {
    char text[256], left[32] = "";
    const double elapsed = line.updated - line.began, waited = now - line.updated;
    const double rate = elapsed > 0 ? (double)(line.done - line.began_at) / elapsed : 0;
    int n = snprintf(text, sizeof text, "%s", line.phase);
    if (line.total)
        n += snprintf(text + n, sizeof text - (size_t)n, " %3d%%",
                      (int)(100.0 * (double)line.done / (double)line.total));
    if (line.detail[0]) n += snprintf(text + n, sizeof text - (size_t)n, "  %s", line.detail);
    if (rate > 0) n += snprintf(text + n, sizeof text - (size_t)n, "  %.*f %s/s", rate < 10 ? 1 : 0, rate, line.unit);
    if (rate > 0 && line.total > line.done) {
        append_time(left, sizeof left, (double)(line.total - line.done) / rate);
        n += snprintf(text + n, sizeof text - (size_t)n, "  %s left", left);
    }
    if (waited >= BEAT_AFTER_SECONDS) snprintf(text + n, sizeof text - (size_t)n, "  (%.0f s)", waited);
    struct winsize window = {0};
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1 && strlen(text) >= window.ws_col)
        text[window.ws_col - 1] = 0; /* a line that wraps could not be wiped */
    fprintf(stderr, "\r%s\033[K", text);
    fflush(stderr);
    line.shown = now;
    line.visible = true;
}

static void *beat(void *context) {
    for (const struct timespec pause = {.tv_nsec = BEAT_NANOSECONDS};; nanosleep(&pause, NULL)) {
        pthread_mutex_lock(&line.lock);
        const double now = tw_clock_seconds();
        if (line.phase[0] && now - line.shown >= BEAT_AFTER_SECONDS && now - line.began >= FIRST_AFTER_SECONDS)
            draw(now);
        pthread_mutex_unlock(&line.lock);
    }
    return context;
}

static void update(struct tw_progress *progress, const char *phase, uint64_t done, uint64_t total, const char *unit,
                   const char *detail) {
    (void)progress;
    const double now = tw_clock_seconds();
    pthread_mutex_lock(&line.lock);
    if (strncmp(phase, line.phase, sizeof line.phase - 1) != 0 || done < line.began_at) {
        snprintf(line.phase, sizeof line.phase, "%s", phase);
        line.began = now;
        line.began_at = done;
        line.shown = now - EVERY_SECONDS + FIRST_AFTER_SECONDS;
    }
    line.done = done;
    line.total = total;
    line.updated = now;
    snprintf(line.unit, sizeof line.unit, "%s", unit ? unit : "");
    snprintf(line.detail, sizeof line.detail, "%s", detail ? detail : "");
    if (now - line.shown >= EVERY_SECONDS) draw(now);
    pthread_t thread;
    if (!line.beating && pthread_create(&thread, NULL, beat, NULL) == 0) pthread_detach(thread);
    line.beating = true; /* or there is none to be had */
    pthread_mutex_unlock(&line.lock);
}

static void silent(struct tw_progress *progress, const char *phase, uint64_t done, uint64_t total, const char *unit,
                   const char *detail) {
    (void)progress, (void)phase, (void)done, (void)total, (void)unit, (void)detail;
}

struct tw_progress *tw_progress_line(void) {
    static struct tw_progress shown = {update}, hidden = {silent};
    return isatty(STDERR_FILENO) ? &shown : &hidden;
}
