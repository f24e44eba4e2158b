/* Options of commands that generate: how long, how chosen. */
#ifndef TW_CLI_ENGINE_RUN_OPTIONS_H
#define TW_CLI_ENGINE_RUN_OPTIONS_H

#include "cli/command.h"
#include "engine/run.h"

struct tw_run_settings {
    uint64_t max_new, seed;
    bool ignore_eos;
    const char *continued;
    double temperature, top_p;
};
extern const struct tw_option tw_run_option_rows[];

/* What --continue names. Zero-initialise. */
struct tw_continuation {
    int32_t *ids; /* [n] */
    size_t n;
};
void tw_continuation_release(struct tw_continuation *continuation); /* copes with {0} */

/*
 * The engine's form of the settings. With --continue and without --max-new there are as many steps as ids. The
 * continuation is owned by the caller and must outlive the run.
 */
tw_status tw_run_settings_apply(struct tw_run_options *options, struct tw_continuation *continuation,
                                const struct tw_invocation *invocation, const struct tw_run_settings *settings,
                                struct tw_error *err);

/* Says once which generated token has no text of its own. */
void tw_warn_textless(const struct tw_tokenizer *tokenizer, const struct tw_run_result *result);

#endif
