/* The man page and shell completion, made from the tables of commands and options. */
#ifndef TW_CLI_MANUAL_H
#define TW_CLI_MANUAL_H

#include "base/text.h"

void tw_manual_page(struct tw_text *out);       /* troff, man macros */
void tw_manual_completion(struct tw_text *out); /* a bash script; zsh reads it through bashcompinit */

#endif
