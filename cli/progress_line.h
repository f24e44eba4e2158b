/* The progress line: on standard error if that is a terminal, delayed, at most six times a second, with rate and time
 * left. */
#ifndef TW_CLI_PROGRESS_LINE_H
#define TW_CLI_PROGRESS_LINE_H

#include "base/progress.h"

struct tw_progress *tw_progress_line(void);
/* Wipes the line so that something else can be printed. Does nothing when none is shown. */
void tw_progress_line_clear(void);

#endif
