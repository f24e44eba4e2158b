/* `tidewake list`: what there is to choose from; and, for `make install`, the man page and shell completion. */
#include "analysis/plot.h"
#include "base/output.h"
#include "cli/commands.h"
#include "cli/manual.h"
#if TW_ENGINE
#include "engine/backend/backend.h"
#include "engine/model/architecture.h"
#include "engine/prefill/schedule.h"
#include "engine/prefill/selector.h"
#include "engine/task/task.h"
#endif

enum what { WHAT_TABLE, WHAT_MAN, WHAT_BASH };

struct list_options {
    unsigned as;
    struct tw_table_options table;
};

static const struct tw_option list_rows[] = {
    {.name = "as",
     .type = TW_OPTION_CHOICE,
     .offset = offsetof(struct list_options, as),
     .default_value = "table",
     .choices = "table|man|bash",
     .help = "a table, or all commands as a man page or a bash completion script"},
    {0},
};

static void row(struct tw_table *table, const char *kind, const char *name, const char *summary, const char *source) {
    tw_table_begin_row(table);
    tw_table_put_text(table, kind);
    tw_table_put_text(table, name);
    tw_table_put_text(table, summary);
    if (source)
        tw_table_put_text(table, source);
    else
        tw_table_put_empty(table);
}

#if TW_ENGINE
static void engine_rows(struct tw_table *table) {
    for (const struct tw_schedule *const *s = tw_schedule_table; *s; s++)
        row(table, "schedule", (*s)->name, (*s)->summary, (*s)->source);
    for (const struct tw_selector *const *s = tw_selector_table; *s; s++)
        row(table, "selector", (*s)->name, (*s)->summary, (*s)->source);
    for (const struct tw_backend_ops *const *b = tw_backend_table; *b; b++)
        row(table, "backend", (*b)->name, (*b)->summary, NULL);
    for (const struct tw_architecture *const *a = tw_architectures; *a; a++)
        row(table, "architecture", (*a)->name, (*a)->summary, NULL);
    for (const struct tw_task *const *t = tw_task_table; *t; t++)
        row(table, "task", (*t)->name, (*t)->summary, (*t)->source);
}
#endif

static tw_status run(struct tw_invocation *invocation, struct tw_error *err) {
    const struct list_options *options = invocation->options;
    if (options->as != WHAT_TABLE) {
        struct tw_text text = {0};
        (options->as == WHAT_MAN ? tw_manual_page : tw_manual_completion)(&text);
        const tw_status status = tw_text_ok(&text) ? tw_output_write(options->table.output, tw_text_view(&text), err)
                                                   : TW_FAIL(err, TW_E_MEMORY, "out of memory for the manual");
        tw_text_release(&text);
        return status;
    }
    struct tw_table table;
    tw_table_init(&table, (const char *const[]){"kind", "name", "summary", "source"}, 4);
    for (const struct tw_command *const *c = tw_command_table; *c; c++)
        row(&table, "command", (*c)->name, (*c)->summary, NULL);
    for (const struct tw_plot_kind *const *k = tw_plot_kinds; *k; k++)
        row(&table, "plot", (*k)->name, (*k)->summary, NULL);
#if TW_ENGINE
    engine_rows(&table);
#endif
    const tw_status status = tw_write_table(invocation, &options->table, &table, err);
    tw_table_release(&table);
    return status;
}

const struct tw_command tw_command_list = {
    .name = "list",
    .summary = "what there is of policies, selectors, schedules, backends and architectures",
    .usage = "",
    .example = "tidewake list\ntidewake list --as bash > /etc/bash_completion.d/tidewake",
    .groups = (const struct tw_option_group[]){{NULL, list_rows, 0},
                                               {"Output", tw_table_option_rows, offsetof(struct list_options, table)},
                                               {0}},
    .options_size = sizeof(struct list_options),
    .run = run,
};
