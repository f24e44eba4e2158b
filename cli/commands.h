/* All commands, in the order in which --help lists them. To add one: its file, and one line here. */
#ifndef TW_CLI_COMMANDS_H
#define TW_CLI_COMMANDS_H

#include "cli/command.h"

/* X(symbol): `const struct tw_command tw_command_<symbol>` in cli/cmd_<symbol>.c */
/* clang-format off */
#define TW_COMMANDS_ALWAYS(X) \
    X(study) \
    X(replay) \
    X(match) \
    X(churn) \
    X(wakeups) \
    X(compare) \
    X(plot) \
    X(info) \
    X(check) \
    X(convert) \
    X(synth) \
    X(list)
/* clang-format on */

/* Those that need the engine's floor: in cli/engine/cmd_<symbol>.c, left out by `make ENGINE=0`. */
#if TW_ENGINE
#define TW_COMMANDS_ENGINE(X) X(trace) X(prefill) X(plan) X(generate) X(logits) X(tokenize)
#else
#define TW_COMMANDS_ENGINE(X)
#endif

#define TW_COMMANDS(X)                                                                                                 \
    TW_COMMANDS_ENGINE(X)                                                                                              \
    TW_COMMANDS_ALWAYS(X)

#define TW_DECLARE_COMMAND(symbol) extern const struct tw_command tw_command_##symbol;
TW_COMMANDS(TW_DECLARE_COMMAND)
#undef TW_DECLARE_COMMAND

/* Ends with NULL. */
extern const struct tw_command *const tw_command_table[];

#endif
