#include <stdlib.h>
#include <string.h>

#include "analysis/wakeups_report.h"
#include "cli/study/study.h"

/* One report a model and task, over their runs in the order of the traces. */
static tw_status pool(struct tw_wake_report *reports, size_t *n_reports, const struct tw_wakeups *runs, size_t n,
                      const struct tw_wakeups **members, struct tw_error *err) {
    for (size_t i = 0; i < n; i++) {
        bool first = true;
        for (size_t j = 0; j < i; j++)
            first = first && (strcmp(runs[i].name.model, runs[j].name.model) != 0 ||
                              strcmp(runs[i].name.task, runs[j].name.task) != 0);
        if (!first) continue;
        const struct tw_wakeups **const begin = members;
        for (size_t j = i; j < n; j++)
            if (strcmp(runs[i].name.model, runs[j].name.model) == 0 &&
                strcmp(runs[i].name.task, runs[j].name.task) == 0)
                *members++ = &runs[j];
        static const struct tw_transfer no_transfer;
        TW_TRY(
            tw_wake_report_measure(&reports[*n_reports], begin, (size_t)(members - begin), true, 0, &no_transfer, err));
        ++*n_reports;
    }
    return TW_OK;
}

tw_status tw_study_wakeups(struct tw_study *study, uint64_t page_size, struct tw_error *err) {
    struct tw_wakeups *runs = calloc(study->n_traces + 1, sizeof *runs);
    struct tw_wake_report *reports = calloc(study->n_traces + 1, sizeof *reports);
    const struct tw_wakeups **members = calloc(study->n_traces + 1, sizeof *members);
    size_t n = 0, n_reports = 0;
    tw_status status = runs && reports && members
                           ? TW_OK
                           : TW_FAIL(err, TW_E_MEMORY, "out of memory for the wake-ups of %zu traces", study->n_traces);
    for (size_t i = 0; i < study->n_traces && status == TW_OK; i++) {
        struct tw_trace *trace = NULL;
        status = tw_trace_open(&trace, study->traces[i], err);
        if (status == TW_OK && tw_trace_has(trace, TW_TRACE_NEEDLE)) {
            status = tw_wakeups_measure(&runs[n], trace, page_size, NULL, 0, study->progress, err);
            n += status == TW_OK;
        }
        tw_trace_free(trace);
    }
    if (status == TW_OK && n < study->n_traces)
        tw_text_printf(&study->notes, "%zu of the traces carry no needle scores, which wake-ups are defined by.\n",
                       study->n_traces - n);
    if (status == TW_OK && n) status = pool(reports, &n_reports, runs, n, members, err);
    if (status == TW_OK && n) {
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
    return status;
}
