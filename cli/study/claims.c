/*
 * The claims of WakeKV and TideKV that a study can check, each with its published figure (spec: residency.md, churn.md,
 * prefill.md) and how it is read from the study's tables. A claim for which there is no data is open, never assumed.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/parse.h"
#include "cli/study/study.h"

static double number(const struct tw_table *table, size_t row, const char *column) {
    const size_t c = tw_table_column(table, column);
    double value;
    return c != SIZE_MAX && tw_cell_number(&value, tw_table_cell(table, row, c)) ? value : NAN;
}

static const char *text(const struct tw_table *table, size_t row, const char *column) {
    const size_t c = tw_table_column(table, column);
    if (c == SIZE_MAX) return "";
    const struct tw_cell *cell = tw_table_cell(table, row, c);
    return cell->type == TW_CELL_TEXT ? cell->text : "";
}

/* WakeKV, section 5: reactive against each policy, from the wins that `match` counts. */
static void wins(const struct tw_study *study, struct tw_report *report) {
    static const struct {
        const char *policy, *claim, *published;
        double share; /* of the points, as published */
    } rows[] = {
        {"evict", "At equal budget reactive misses no more than evict", "19 of 20 budgets", 19.0 / 20},
        {"frozen", "At matched memory reactive misses no more than frozen", "17 of 17 points", 1},
        {"snapkv", "At matched memory reactive misses no more than SnapKV",
         "all of 32 points with R-KV and ReasonAlloc", 1},
        {"rkv", "At matched memory reactive misses no more than R-KV", "all of 32 points with SnapKV and ReasonAlloc",
         1},
        {"reasonalloc", "At matched memory reactive misses no more than ReasonAlloc",
         "all of 32 points with SnapKV and R-KV", 1},
    };
    const struct tw_table *table = &study->tables[TW_STUDY_WINS];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double won = 0, compared = 0, unpruned = 0;
        for (size_t r = 0; r < table->n_rows; r++) {
            /* "rkv:interval=8" is R-KV, too. */
            const char *const policy = text(table, r, "policy");
            const size_t length = strlen(rows[i].policy);
            if (strncmp(policy, rows[i].policy, length) != 0 || (policy[length] && policy[length] != ':')) continue;
            won += number(table, r, "wins");
            compared += number(table, r, "compared");
            unpruned += number(table, r, "never_pruned");
        }
        struct tw_text measured = {0};
        enum tw_verdict verdict = TW_VERDICT_OPEN;
        if (compared > 0) {
            tw_text_printf(&measured, "%g of %g points (%.0f %%)", won, compared, floor(100 * won / compared));
            verdict = won >= rows[i].share * compared ? TW_VERDICT_HOLDS : TW_VERDICT_FAILS;
        } else {
            tw_text_printf(&measured, "no point could be compared");
        }
        if (unpruned > 0)
            tw_text_printf(&measured, "; %g more, of runs too short for it to prune, do not count", unpruned);
        tw_report_claim(report, verdict, rows[i].claim, rows[i].published, tw_text_string(&measured));
        tw_text_release(&measured);
    }
}

/* Steps a run of a model and task, on average. */
static double mean_steps(const struct tw_study *study, const char *model, const char *task) {
    const struct tw_table *average = &study->tables[TW_STUDY_AVERAGE];
    for (size_t r = 0; r < average->n_rows; r++)
        if (strcmp(text(average, r, "model"), model) == 0 && strcmp(text(average, r, "task"), task) == 0)
            return number(average, r, "steps");
    return NAN;
}

/* Heads drift with time: shorter runs than the paper's (hundreds of steps) cannot speak against it. */
#define STEPS_TO_DRIFT 256
/* Below this many wake-ups, precision and recall are anecdotes. */
#define ENOUGH_EVENTS 20

/* WakeKV, section 2: a row of the churn table a model and task, at the first page size. */
static void churn(const struct tw_study *study, struct tw_report *report) {
    static const struct {
        const char *task, *jaccard, *jaccard_column, *empty_column, *unstable, *drift;
    } published[] = {
        {"niah", "0.53 (3B, continuous)", "needle_0.2_adjacent_jaccard", "needle_0.2_empty_share", "0.064", "0.63"},
        {"cot", "0.82 to 0.93 (1.5B and 8B, binary)", "copy_paste_adjacent_jaccard", "copy_paste_empty_share",
         "0.023 to 0.042", "0.76 to 0.85"},
        {"multiturn", "0.79 (3B, binary)", "copy_paste_adjacent_jaccard", "copy_paste_empty_share", "0.085", "0.76"},
    };
    const struct tw_table *table = &study->tables[TW_STUDY_CHURN];
    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        for (size_t r = 0; r < table->n_rows; r++) {
            if (strcmp(text(table, r, "task"), published[i].task) != 0) continue;
            if (number(table, r, "page_size") != number(table, 0, "page_size")) continue;
            const char *model = text(table, r, "model");
            const double jaccard = number(table, r, published[i].jaccard_column);
            const double steps = mean_steps(study, model, published[i].task);
            const double drift = number(table, r, "heads_with_event"), unstable = number(table, r, "unstable_fraction");
            struct tw_text claim = {0}, measured = {0};
            tw_text_printf(&claim, "The set of heads that read the needle changes from step to step (%s, %s)",
                           published[i].task, model);
            if (isnan(jaccard))
                tw_text_printf(&measured, "the traces carry no such score");
            else
                tw_text_printf(&measured, "adjacent-step Jaccard %.2f; %.0f %% of the steps have no such head", jaccard,
                               100 * number(table, r, published[i].empty_column));
            tw_report_claim(report,
                            isnan(jaccard)   ? TW_VERDICT_OPEN
                            : jaccard < 0.97 ? TW_VERDICT_HOLDS
                                             : TW_VERDICT_FAILS,
                            tw_text_string(&claim), published[i].jaccard, tw_text_string(&measured));
            tw_text_clear(&claim), tw_text_clear(&measured);
            tw_text_printf(&claim, "Most heads leave what they read at first (%s, %s)", published[i].task, model);
            if (isnan(drift))
                tw_text_printf(&measured, "not defined for runs this short");
            else
                tw_text_printf(&measured, "%.2f of the heads have a drift event, in runs of %.0f steps", drift, steps);
            tw_report_claim(report,
                            isnan(drift)             ? TW_VERDICT_OPEN
                            : drift > 0.5            ? TW_VERDICT_HOLDS
                            : steps < STEPS_TO_DRIFT ? TW_VERDICT_OPEN
                                                     : TW_VERDICT_FAILS,
                            tw_text_string(&claim), published[i].drift, tw_text_string(&measured));
            tw_text_clear(&claim), tw_text_clear(&measured);
            tw_text_printf(&claim, "Short-window stability calls few of them unstable (%s, %s)", published[i].task,
                           model);
            if (isnan(unstable))
                tw_text_printf(&measured, "not defined for runs this short");
            else
                tw_text_printf(&measured, "%.3f of the heads", unstable);
            tw_report_claim(report,
                            isnan(unstable)   ? TW_VERDICT_OPEN
                            : unstable < 0.25 ? TW_VERDICT_HOLDS
                                              : TW_VERDICT_FAILS,
                            tw_text_string(&claim), published[i].unstable, tw_text_string(&measured));
            tw_text_release(&claim), tw_text_release(&measured);
        }
}

/* WakeKV, section 2: no signal foretells wake-ups well. */
static void wakeups(const struct tw_study *study, struct tw_report *report) {
    const struct tw_table *table = &study->tables[TW_STUDY_WAKEUPS];
    for (size_t r = 0; r < table->n_rows; r++) {
        const double events = number(table, r, "events"), precision = number(table, r, "zscore_precision");
        struct tw_text claim = {0}, measured = {0};
        tw_text_printf(&claim, "Wake-ups cannot be foretold well from a head's own signals (%s, %s)",
                       text(table, r, "task"), text(table, r, "model"));
        enum tw_verdict verdict = TW_VERDICT_OPEN;
        if (!(events >= ENOUGH_EVENTS) || isnan(precision)) {
            tw_text_printf(&measured, "%.0f wake-ups, too few to grade", isnan(events) ? 0 : events);
        } else {
            tw_text_printf(&measured, "%.0f wake-ups; best z-scored signal (%s): precision %.2f at recall %.2f", events,
                           text(table, r, "zscore_signal"), precision, number(table, r, "zscore_recall"));
            verdict = precision < 0.5 ? TW_VERDICT_HOLDS : TW_VERDICT_FAILS;
        }
        tw_report_claim(report, verdict, tw_text_string(&claim),
                        "precision 0.08 (0.20) at recall 0.41 (0.70) on chain of thought (multi-turn)",
                        tw_text_string(&measured));
        tw_text_release(&claim), tw_text_release(&measured);
    }
}

/* TideKV, section 6: the schedule does not change what a selector keeps, so answers agree with postprefill's. */
static void quality(const struct tw_study *study, struct tw_report *report) {
    const struct tw_table *table = &study->tables[TW_STUDY_QUALITY];
    double right[2] = {0, 0}, n[2] = {0, 0};
    size_t pairs = 0, equal = 0;
    for (size_t r = 0; r < table->n_rows; r++) {
        if (strcmp(text(table, r, "schedule"), "tide") != 0) continue;
        for (size_t s = 0; s < table->n_rows; s++) {
            static const char *const same[] = {"model", "task", "selector"};
            bool pair = strcmp(text(table, s, "schedule"), "postprefill") == 0;
            for (size_t k = 0; k < 3; k++) pair = pair && strcmp(text(table, r, same[k]), text(table, s, same[k])) == 0;
            const double a = number(table, r, "budget"), b = number(table, s, "budget");
            pair = pair && (a == b || (isnan(a) && isnan(b))) &&
                   number(table, r, "context") == number(table, s, "context");
            if (!pair) continue;
            right[0] += number(table, r, "score"), right[1] += number(table, s, "score");
            n[0]++, n[1]++, pairs++;
            equal += number(table, r, "score") == number(table, s, "score");
        }
    }
    struct tw_text measured = {0};
    enum tw_verdict verdict = TW_VERDICT_OPEN;
    if (!tw_study_values(study->settings, "quality")) {
        verdict = TW_VERDICT_NOT_RUN;
        tw_text_printf(&measured, "a section [quality] would measure it");
    } else if (pairs == 0) {
        tw_text_printf(&measured, "no pair of schedules was compared");
    } else {
        tw_text_printf(&measured, "mean score %.3f under tide and %.3f under postprefill; %zu of %zu pairs equal",
                       right[0] / n[0], right[1] / n[1], equal, pairs);
        verdict = fabs(right[0] / n[0] - right[1] / n[1]) <= 0.0114 ? TW_VERDICT_HOLDS : TW_VERDICT_FAILS;
    }
    tw_report_claim(
        report, verdict,
        "With the same selector and budget, delayed eviction (tide) answers as well as compression after a whole prefill",
        "matched pairs differ by -0.46 to +1.14 points on RULER", tw_text_string(&measured));
    tw_text_release(&measured);
}

void tw_study_claims(const struct tw_study *study, struct tw_report *report) {
    tw_report_note(report,
                   "Published: WakeKV (Ranjan, NeurIPS 2026 Workshop on ML for Systems) with models of 1.5B to 8B "
                   "parameters; the last row TideKV (2026). A claim holds when the measurement goes the paper's "
                   "way, in at least the published share of the points; it cannot be told where too little was "
                   "measured to speak for or against it.");
    wins(study, report);
    churn(study, report);
    wakeups(study, report);
    quality(study, report);
}
