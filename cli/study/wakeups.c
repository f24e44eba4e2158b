/* The wake-ups of a study: what `wakeups --average` measures, and which run and task its figures show. */
#include <stdlib.h>

#include "analysis/wakeups_report.h"
#include "cli/study/study.h"

/* Without any wake-up the first trace that carries scores stands for both. trace_of [n]: the trace of each run. */
static void choose_shown(struct tw_study *study, const struct tw_wakeups *runs, const size_t *trace_of, size_t n,
                         const struct tw_wake_report *reports, size_t n_reports) {
    size_t run = 0, task = 0;
    for (size_t i = 1; i < n; i++)
        if (runs[i].n_events > runs[run].n_events) run = i;
    for (size_t i = 1; i < n_reports; i++)
        if (reports[i].n_events > reports[task].n_events) task = i;
    study->wakeful_run = trace_of[run];
    study->wakeful_task = trace_of[reports[task].runs[0] - runs];
}

tw_status tw_study_wakeups(struct tw_study *study, uint64_t page_size, struct tw_error *err) {
    static const struct tw_transfer no_transfer;
    struct tw_wakeups *runs = calloc(study->n_traces + 1, sizeof *runs);
    struct tw_wake_report *reports = calloc(study->n_traces + 1, sizeof *reports);
    const struct tw_wakeups **members = calloc(study->n_traces + 1, sizeof *members);
    size_t *trace_of = calloc(study->n_traces + 1, sizeof *trace_of);
    size_t n = 0, n_reports = 0;
    tw_status status = runs && reports && members && trace_of
                           ? TW_OK
                           : TW_FAIL(err, TW_E_MEMORY, "out of memory for the wake-ups of %zu traces", study->n_traces);
    for (size_t i = 0; i < study->n_traces && status == TW_OK; i++) {
        struct tw_trace *trace = NULL;
        status = tw_trace_open(&trace, study->traces[i], err);
        if (status == TW_OK && tw_trace_has(trace, TW_TRACE_NEEDLE)) {
            status = tw_wakeups_measure(&runs[n], trace, page_size, NULL, 0, study->progress, err);
            trace_of[n] = i;
            n += status == TW_OK;
        }
        tw_trace_free(trace);
    }
    if (status == TW_OK && n < study->n_traces)
        tw_text_printf(&study->notes, "%zu of the traces carry no needle scores, which wake-ups are defined by.\n",
                       study->n_traces - n);
    if (status == TW_OK)
        status = tw_wake_reports_measure(reports, &n_reports, members, runs, n, true, 0, &no_transfer, err);
    if (status == TW_OK && n) {
        choose_shown(study, runs, trace_of, n, reports, n_reports);
        tw_wake_summary_table(&study->tables[TW_STUDY_WAKEUPS], reports, n_reports, false);
        tw_wake_grading_table(&study->tables[TW_STUDY_GRADING], reports, n_reports);
        status = tw_study_save_table(study, TW_STUDY_WAKEUPS, err);
        if (status == TW_OK) status = tw_study_save_table(study, TW_STUDY_GRADING, err);
    }
    for (size_t i = 0; reports && i < n_reports; i++) tw_wake_report_release(&reports[i]);
    for (size_t i = 0; runs && i < n; i++) tw_wakeups_release(&runs[i]);
    free(runs);
    free(reports);
    free(members);
    free(trace_of);
    return status;
}
