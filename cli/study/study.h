/*
 * A study: traces are made (or found), replayed, compared at matched memory, measured for churn, drawn, and put into
 * one report, all in one folder:
 *
 *     FOLDER/traces/MODEL/RUN.h5      and RUN.settings beside it: what the run was made with
 *     FOLDER/tables/ *.csv            replay, average, matched, wins, churn, wakeups, quality
 *     FOLDER/figures/ *.svg, *.png
 *     FOLDER/report.html
 *
 * Resumable: a run that is there, complete and made with the same settings is not repeated.
 */
#ifndef TW_CLI_STUDY_STUDY_H
#define TW_CLI_STUDY_STUDY_H

#include "base/progress.h"
#include "base/table.h"
#include "cli/study/report.h"
#include "cli/study/settings.h"

enum tw_study_table {
    TW_STUDY_REPLAY,  /* one row a run, policy, unit, page size and budget */
    TW_STUDY_AVERAGE, /* the same over the runs of a model and task */
    TW_STUDY_MATCHED, /* at matched memory, from the averages */
    TW_STUDY_COUNTED, /* the rows of `matched` but for those of policies that never pruned; not saved */
    TW_STUDY_WINS,    /* of reactive, a row a model, task and policy */
    TW_STUDY_CHURN,   /* one row a model and task */
    TW_STUDY_WAKEUPS, /* one row a model and task */
    TW_STUDY_GRADING, /* how well each signal foretells them, a row a signal, grading and lead */
    TW_STUDY_ANSWERS, /* one row a run whose answer is scored */
    TW_STUDY_QUALITY, /* answers right by schedule, selector and budget */
    TW_STUDY_N_TABLES
};

struct tw_study {
    const struct tw_study_settings *settings;
    const char *folder;
    struct tw_progress *progress;
    char **traces; /* [n_traces] paths, owned */
    size_t n_traces;
    struct tw_table tables[TW_STUDY_N_TABLES]; /* empty (no columns) until made */
    size_t shown_layer, shown_head; /* of the first trace: the head that reads the needle most, for its figure */
    size_t wakeful_run;             /* the trace with the most wake-ups */
    size_t wakeful_task;            /* a trace of the model and task with the most of them */
    struct tw_text files;           /* what was made, a path a line, in order */
    struct tw_text notes;           /* what the reader of the report should know, a line each */
};

void tw_study_release(struct tw_study *study); /* copes with {0} */

/* Traces, tables, figures, report. The folder is made when it is not there. */
tw_status tw_study_run(struct tw_study *study, struct tw_error *err);

/* ---- for the files of cli/study/ and cli/engine/ ---- */

/* FOLDER/relative, whose folders are made. Owned by the caller; NULL after a failure. */
char *tw_study_path(const struct tw_study *study, const char *relative, struct tw_error *err);
void tw_study_made(struct tw_study *study, const char *path);
tw_status tw_study_add_trace(struct tw_study *study, const char *path, struct tw_error *err);
extern const char *const tw_study_table_names[TW_STUDY_N_TABLES]; /* "replay": tables/replay.csv */

/* Whether the run at `path` is complete and was made with `settings` (the text of RUN.settings). */
bool tw_study_is_made(const char *path, struct tw_view settings);

/*
 * Makes the traces that [model], [task] and [prompts] ask for, and fills the table of answers; and the table of
 * quality. In cli/engine/; a program without the engine has only traces that are there.
 */
tw_status tw_study_make_traces(struct tw_study *study, struct tw_error *err);
tw_status tw_study_measure_quality(struct tw_study *study, struct tw_error *err);
/* The option table of [engine] and the size of its struct. */
extern const struct tw_option *const tw_study_engine_options;
extern const size_t tw_study_engine_options_size;

/* Wake-ups of the traces that carry needle scores, pooled over the runs of a model and task. */
tw_status tw_study_wakeups(struct tw_study *study, uint64_t page_size, struct tw_error *err);
/* Writes the table to its place in tables/ and lists it. */
tw_status tw_study_save_table(struct tw_study *study, enum tw_study_table which, struct tw_error *err);

/* FOLDER/report.html from all that was measured. */
tw_status tw_study_write_report(struct tw_study *study, struct tw_error *err);
/* The figures of the tables and traces there are; each is appended to the report with its caption. */
tw_status tw_study_draw(struct tw_study *study, struct tw_report *report, struct tw_error *err);
/* Each claim of the two papers beside what the tables say. */
void tw_study_claims(const struct tw_study *study, struct tw_report *report);

#endif
