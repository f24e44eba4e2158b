#include "base/stop.h"

#include <stdatomic.h>

static atomic_bool stop;

void tw_stop_request(void) { atomic_store(&stop, true); }
bool tw_stop_requested(void) { return atomic_load_explicit(&stop, memory_order_relaxed); }
void tw_stop_reset(void) { atomic_store(&stop, false); }
