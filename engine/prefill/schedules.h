/* The schedules, in the order of `list`. To add one: its file, and one line here. */
#ifndef TW_ENGINE_PREFILL_SCHEDULES_H
#define TW_ENGINE_PREFILL_SCHEDULES_H

/* X(symbol): `const struct tw_schedule tw_schedule_<symbol>` in engine/prefill/schedule_<symbol>.c */
#define TW_SCHEDULES(X) X(oneshot) X(chunked) X(tide_noevict) X(tide) X(postprefill) X(block)

#endif
