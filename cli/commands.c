#include "cli/commands.h"

#include <stddef.h>

#define TW_COMMAND_POINTER(symbol) &tw_command_##symbol,
const struct tw_command *const tw_command_table[] = {TW_COMMANDS(TW_COMMAND_POINTER) NULL};
