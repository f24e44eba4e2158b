#include "engine/prefill/schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parse.h"
#include "engine/prefill/schedules.h"

#define DECLARE(symbol) extern const struct tw_schedule tw_schedule_##symbol;
#define POINTER(symbol) &tw_schedule_##symbol,
TW_SCHEDULES(DECLARE)
const struct tw_schedule *const tw_schedule_table[] = {TW_SCHEDULES(POINTER) NULL};

tw_status tw_schedule_choose(struct tw_schedule_choice *choice, const char *specification, struct tw_error *err) {
    struct tw_view name, rest = tw_view_of(specification);
    tw_parse_next(&name, &rest, ':');
    memset(choice, 0, sizeof *choice);
    struct tw_text names = {0};
    for (const struct tw_schedule *const *s = tw_schedule_table; *s; s++) {
        if (tw_view_equal(name, tw_view_of((*s)->name))) choice->schedule = *s;
        tw_text_printf(&names, "%s%s", names.size ? ", " : "", (*s)->name);
    }
    tw_status status = TW_OK;
    if (!choice->schedule)
        status = TW_FAIL(err, TW_E_OPTION, "there is no schedule '%.*s'; there are: %s", (int)name.size, name.data,
                         tw_text_string(&names));
    tw_text_release(&names);
    if (status != TW_OK) return status;
    const struct tw_schedule *schedule = choice->schedule;
    if (!schedule->options) {
        if (rest.data && rest.size) return TW_FAIL(err, TW_E_OPTION, "schedule '%s' has no options", schedule->name);
        return TW_OK;
    }
    choice->options = malloc(schedule->options_size);
    if (!choice->options) return TW_FAIL(err, TW_E_MEMORY, "out of memory: options of a schedule");
    tw_options_init(choice->options, schedule->options_size, schedule->options);
    char what[64];
    snprintf(what, sizeof what, "schedule '%s'", schedule->name);
    if (rest.data) status = tw_options_parse_specification(choice->options, schedule->options, rest, what, err);
    if (status != TW_OK) tw_schedule_choice_release(choice);
    return status;
}

void tw_schedule_choice_release(struct tw_schedule_choice *choice) {
    if (choice->options) tw_options_release(choice->options, choice->schedule->options);
    free(choice->options);
    memset(choice, 0, sizeof *choice);
}

void tw_schedule_choice_describe(struct tw_text *text, const struct tw_schedule_choice *choice) {
    tw_text_printf(text, "%s", choice->schedule->name);
    if (choice->options) tw_options_describe(text, choice->options, choice->schedule->options);
}
