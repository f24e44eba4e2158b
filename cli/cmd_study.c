/* `tidewake study`: trace, replay, match, churn, figures and a report in one go. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/parse.h"
#include "cli/command.h"
#include "cli/study/study.h"

#define DEMO_MODEL  "data/models/SmolLM2-135M-Instruct.Q4_1.gguf"
#define DEMO_TRACES "data/traces"

struct study_options {
    bool demo;
    const char *output;
};

static const struct tw_option option_rows[] = {
    {.name = "demo",
     .type = TW_OPTION_FLAG,
     .offset = offsetof(struct study_options, demo),
     .help = "a small study of SmolLM2, as `make demo` runs it: three traced runs, all policies"},
    {.name = "output",
     .letter = 'o',
     .type = TW_OPTION_TEXT,
     .offset = offsetof(struct study_options, output),
     .value_name = "FOLDER",
     .help = "where everything goes (default: what the file says, or demo)"},
    {0},
};

static const char demo_head[] = "[study]\n"
                                "title = Tidewake demo\n"
                                "output = demo\n"
                                "[replay]\n"
                                "policy = all,min\n"
                                "budget = 2..64\n";
static const char demo_traced[] = "[model smollm2]\n"
                                  "path = " DEMO_MODEL "\n"
                                  "[task niah]\n"
                                  "context = 2K\n"
                                  "max-new = 64\n"
                                  "[task cot]\n"
                                  "[task multiturn]\n";
static const char demo_recorded[] = "[traces recorded]\n"
                                    "path = " DEMO_TRACES "\n";

static tw_status demo_settings(struct tw_study_settings *settings, struct tw_error *err) {
    struct stat st;
    const bool model = TW_ENGINE && stat(DEMO_MODEL, &st) == 0;
    if (!model && stat(DEMO_TRACES, &st) != 0)
        return TW_FAIL(err, TW_E_INPUT,
                       "the demo needs '%s' ('make model' fetches it) or the recorded traces in '%s'; run it in the "
                       "folder of the sources",
                       DEMO_MODEL, DEMO_TRACES);
    if (!model)
        tw_note("the model '%s' is not there: going on from the recorded traces in '%s'", DEMO_MODEL, DEMO_TRACES);
    struct tw_text text = {0};
    tw_text_printf(&text, "%s%s", demo_head, model ? demo_traced : demo_recorded);
    const tw_status status = tw_study_settings_parse(settings, tw_text_string(&text), "demo", tw_study_engine_options,
                                                     tw_study_engine_options_size, err);
    tw_text_release(&text);
    return status;
}

/* A row of the average table: its cell by column name. */
static double value_at(const struct tw_table *table, size_t row, const char *column) {
    double value;
    const size_t c = tw_table_column(table, column);
    return c != SIZE_MAX && tw_cell_number(&value, tw_table_cell(table, row, c)) ? value : (double)NAN;
}
static const char *text_at(const struct tw_table *table, size_t row, const char *column) {
    return tw_table_cell(table, row, tw_table_column(table, column))->text;
}

/* The short table on the terminal: a row a policy, its miss rate for every model and task at one budget. */
static tw_status summarise(const struct tw_study *study, struct tw_error *err) {
    enum { MAX_COLUMNS = 6 };
    const struct tw_table *average = &study->tables[TW_STUDY_AVERAGE];
    /* The budget nearest to 16 pages of those that were replayed. */
    double budget = NAN;
    for (size_t r = 0; r < average->n_rows; r++) {
        const double b = value_at(average, r, "budget");
        if (!isnan(b) && !(fabs(b - 16) >= fabs(budget - 16))) budget = b;
    }
    struct tw_table table;
    tw_table_init(&table, (const char *const[]){"policy"}, 1);
    size_t columns[MAX_COLUMNS], n = 0; /* the first row of each model and task */
    for (size_t r = 0; r < average->n_rows && n < MAX_COLUMNS; r++) {
        bool known = false;
        for (size_t k = 0; k < n; k++)
            known = known || (strcmp(text_at(average, r, "model"), text_at(average, columns[k], "model")) == 0 &&
                              strcmp(text_at(average, r, "task"), text_at(average, columns[k], "task")) == 0);
        if (known) continue;
        columns[n++] = r;
        tw_table_add_column(&table, text_at(average, r, "task"));
    }
    tw_table_add_column(&table, "reactive_wins");
    for (size_t r = 0; r < average->n_rows; r++) {
        const char *policy = text_at(average, r, "policy");
        bool known = false;
        for (size_t q = 0; q < r; q++) known = known || strcmp(policy, text_at(average, q, "policy")) == 0;
        if (known) continue;
        tw_table_begin_row(&table);
        tw_table_put_text(&table, policy);
        for (size_t k = 0; k < n; k++) {
            double rate = NAN;
            for (size_t q = 0; q < average->n_rows; q++) {
                const double b = value_at(average, q, "budget");
                if (strcmp(policy, text_at(average, q, "policy")) == 0 && (isnan(b) || b == budget) &&
                    strcmp(text_at(average, q, "model"), text_at(average, columns[k], "model")) == 0 &&
                    strcmp(text_at(average, q, "task"), text_at(average, columns[k], "task")) == 0 && isnan(rate))
                    rate = value_at(average, q, "miss_rate");
            }
            tw_table_put_double(&table, rate);
        }
        const struct tw_table *wins = &study->tables[TW_STUDY_WINS];
        double won = 0, compared = 0;
        for (size_t w = 0; w < wins->n_rows; w++)
            if (strcmp(policy, text_at(wins, w, "policy")) == 0)
                won += value_at(wins, w, "wins"), compared += value_at(wins, w, "compared");
        char text[64] = "";
        if (compared > 0) snprintf(text, sizeof text, "%.0f of %.0f", won, compared);
        tw_table_put_text(&table, text);
    }
    struct tw_text out = {0};
    const tw_status status = tw_table_write(&out, &table, TW_TABLE_PLAIN, err);
    if (status == TW_OK) {
        printf("Miss rate at %.0f pages a head, and how often reactive misses no more at matched memory:\n\n%s\n",
               budget, tw_text_string(&out));
        printf("Made:\n");
        struct tw_view path, rest = tw_text_view(&study->files);
        while (rest.size && tw_parse_next(&path, &rest, '\n'))
            if (path.size) printf("  %.*s\n", (int)path.size, path.data);
    }
    tw_text_release(&out);
    tw_table_release(&table);
    return status;
}

static tw_status run(struct tw_invocation *invocation, struct tw_error *err) {
    const struct study_options *options = invocation->options;
    if (options->demo == (invocation->n_operands > 0))
        return TW_FAIL(err, TW_E_OPTION, "study needs a FILE.ini or --demo, and not both");
    struct tw_study_settings settings = {0};
    if (options->demo)
        TW_TRY(demo_settings(&settings, err));
    else
        TW_TRY(tw_study_settings_read(&settings, invocation->operands[0], tw_study_engine_options,
                                      tw_study_engine_options_size, err));
    const struct tw_study_general *general = tw_study_values(&settings, "study");
    struct tw_study study = {.settings = &settings, .progress = invocation->progress};
    study.folder = options->output ? options->output : general && general->output ? general->output : NULL;
    tw_status status = study.folder ? tw_study_run(&study, err)
                                    : TW_FAIL(err, TW_E_OPTION,
                                              "the study does not say where to write: give -o FOLDER, or "
                                              "'output' in its section [study]");
    tw_progress_update(invocation->progress, "", 0, 0, "", NULL);
    if (status == TW_OK) status = summarise(&study, err);
    tw_study_release(&study);
    tw_study_settings_release(&settings);
    return status;
}

const struct tw_command tw_command_study = {
    .name = "study",
    .summary = "trace, replay, compare, measure churn and draw, in one go, into one folder with a report",
    .usage = "FILE.ini | --demo [-o FOLDER]",
    .description =
        "The file says what is run; docs/study.md lists its sections and keys. A run that is there, complete and made with\n"
        "the same settings is not repeated, so that an interrupted study goes on where it stopped.",
    .example = "tidewake study --demo\ntidewake study data/studies/smollm2.ini -o smollm2",
    .groups = (const struct tw_option_group[]){{NULL, option_rows, 0}, {0}},
    .options_size = sizeof(struct study_options),
    .max_operands = 1,
    .run = run,
};
