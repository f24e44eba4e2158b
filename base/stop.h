/*
 * Asking long work to stop. cli/ installs handlers for SIGINT and SIGTERM that call tw_stop_request(); loops that run
 * for long poll tw_stop_requested() (a chunk, a step, a layer) and return TW_E_INTERRUPTED after saving what they have.
 */
#ifndef TW_BASE_STOP_H
#define TW_BASE_STOP_H

#include <stdbool.h>

void tw_stop_request(void); /* async-signal-safe */
bool tw_stop_requested(void);
void tw_stop_reset(void); /* for tests */

#endif
