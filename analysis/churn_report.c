#include "analysis/churn_report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One figure: its names in the JSON and as a column, its place, and whether people see it on a terminal. */
struct figure {
    const char *member;
    const char *column; /* of activity figures only the part behind the rule's name */
    size_t offset;
    bool count; /* a size_t instead of a double */
    bool brief;
};

#define PAGES(member, column, field, brief)                                                                            \
    { member, column, offsetof(struct tw_page_churn, field), false, brief }
static const struct figure jaccard_figures[] = {PAGES("adjacent_jaccard", "page_jaccard", jaccard_mean, true)};
static const struct figure stability_figures[] = {
    PAGES("mean", "stability_mean", stability_mean, true),
    PAGES("p10", "stability_p10", stability_p10, false),
    PAGES("p90", "stability_p90", stability_p90, false),
    PAGES("unstable_fraction", "unstable_fraction", unstable_fraction, true),
};
static const struct figure drift_figures[] = {
    PAGES("events_mean", "drift_events_mean", drift_mean, true),
    PAGES("heads_with_event", "heads_with_event", heads_with_drift, true),
};

#define ACTIVITY(field, count, brief)                                                                                  \
    { #field, #field, offsetof(struct tw_activity, field), count, brief }
static const struct figure activity_figures[] = {
    ACTIVITY(adjacent_jaccard, false, true), ACTIVITY(empty_share, false, true), ACTIVITY(active_mean, false, false),
    ACTIVITY(active_std, false, false),      ACTIVITY(distinct, true, false),    ACTIVITY(jaccard_top20, false, false),
    ACTIVITY(entropy, false, false),
};

/* Figures of page sets by JSON object. */
static const struct section {
    const char *object;
    const struct figure *figures;
    size_t n;
} page_sections[] = {
    {"page_jaccard", jaccard_figures, sizeof jaccard_figures / sizeof *jaccard_figures},
    {"temporal_stability", stability_figures, sizeof stability_figures / sizeof *stability_figures},
    {"drift", drift_figures, sizeof drift_figures / sizeof *drift_figures},
};
enum {
    N_PAGE_SECTIONS = sizeof page_sections / sizeof *page_sections,
    N_ACTIVITY_FIGURES = sizeof activity_figures / sizeof *activity_figures,
};

static double value_of(const struct figure *figure, const void *of) {
    const char *const at = (const char *)of + figure->offset;
    return figure->count ? (double)*(const size_t *)(const void *)at : *(const double *)(const void *)at;
}

/* "needle>0.1" as the beginning of a column's name: "needle_0.1". */
static void rule_column(char *name, size_t size, size_t rule) {
    snprintf(name, size, "%s", tw_activity_rules[rule].name);
    for (char *c = name; *c; c++)
        if (*c == '>') *c = '_';
}

static bool rule_is_brief(size_t rule) {
    return rule == TW_ACTIVITY_COPY_PASTE || tw_activity_rules[rule].threshold == 0.2f;
}

static void add_figure_columns(struct tw_table *table, bool brief) {
    char name[96], rule[48];
    for (size_t s = 0; s < N_PAGE_SECTIONS; s++)
        for (size_t f = 0; f < page_sections[s].n; f++) {
            if (brief && !page_sections[s].figures[f].brief) continue;
            tw_table_add_column(table, page_sections[s].figures[f].column);
        }
    for (size_t r = 0; r < TW_N_ACTIVITY_RULES; r++)
        for (size_t f = 0; f < N_ACTIVITY_FIGURES; f++) {
            if (brief && (!activity_figures[f].brief || !rule_is_brief(r))) continue;
            rule_column(rule, sizeof rule, r);
            snprintf(name, sizeof name, "%s_%s", rule, activity_figures[f].column);
            tw_table_add_column(table, name);
        }
}

/* The mean over those of the runs that define the figure; of one run the figure itself. */
static double mean_pages(const struct tw_churn *const *churns, size_t n, size_t p, const struct figure *figure) {
    double sum = 0;
    size_t defined = 0;
    for (size_t i = 0; i < n; i++) {
        const double value = value_of(figure, &churns[i]->pages[p]);
        if (isnan(value)) continue;
        sum += value;
        defined++;
    }
    return defined ? sum / (double)defined : NAN;
}

static double mean_activity(const struct tw_churn *const *churns, size_t n, size_t rule, const struct figure *figure) {
    double sum = 0;
    size_t defined = 0;
    for (size_t i = 0; i < n; i++) {
        const double value = tw_churn_has_rule(churns[i], rule) ? value_of(figure, &churns[i]->activity[rule]) : NAN;
        if (isnan(value)) continue;
        sum += value;
        defined++;
    }
    return defined ? sum / (double)defined : NAN;
}

static void put_figures(struct tw_table *table, const struct tw_churn *const *churns, size_t n, size_t p, bool brief) {
    for (size_t s = 0; s < N_PAGE_SECTIONS; s++)
        for (size_t f = 0; f < page_sections[s].n; f++)
            if (!brief || page_sections[s].figures[f].brief)
                tw_table_put_double(table, mean_pages(churns, n, p, &page_sections[s].figures[f]));
    for (size_t r = 0; r < TW_N_ACTIVITY_RULES; r++)
        for (size_t f = 0; f < N_ACTIVITY_FIGURES; f++)
            if (!brief || (activity_figures[f].brief && rule_is_brief(r)))
                tw_table_put_double(table, mean_activity(churns, n, r, &activity_figures[f]));
}

void tw_churn_table(struct tw_table *table, const struct tw_churn *churns, size_t n, bool brief) {
    static const char *const columns[] = {"trace", "model", "task", "run", "page_size", "steps", "layers", "heads"};
    static const char *const brief_columns[] = {"trace", "page_size", "steps"};
    if (brief)
        tw_table_init(table, brief_columns, sizeof brief_columns / sizeof *brief_columns);
    else
        tw_table_init(table, columns, sizeof columns / sizeof *columns);
    add_figure_columns(table, brief);
    for (size_t i = 0; i < n; i++) {
        const struct tw_churn *const churn = &churns[i];
        for (size_t p = 0; p < churn->n_pages; p++) {
            tw_table_begin_row(table);
            tw_table_put_text(table, churn->name.trace);
            if (!brief) {
                tw_table_put_text(table, churn->name.model);
                tw_table_put_text(table, churn->name.task);
                tw_table_put_text(table, churn->name.run);
            }
            tw_table_put_uint(table, churn->pages[p].page_size);
            tw_table_put_uint(table, churn->n_steps);
            if (!brief) {
                tw_table_put_uint(table, churn->n_layers);
                tw_table_put_uint(table, churn->n_heads);
            }
            put_figures(table, &churn, 1, p, brief);
        }
    }
}

void tw_churn_average_table(struct tw_table *table, const struct tw_churn *churns, size_t n, bool brief) {
    static const char *const columns[] = {"model", "task", "runs", "page_size"};
    tw_table_init(table, columns, sizeof columns / sizeof *columns);
    add_figure_columns(table, brief);
    size_t *const group = malloc((n + 1) * sizeof *group);
    const struct tw_churn **const members = malloc((n + 1) * sizeof *members);
    if (!group || !members) table->failed = true;
    const size_t n_groups = table->failed ? 0 : tw_trace_names_group(group, &churns[0].name, sizeof *churns, n);
    for (size_t g = 0; g < n_groups; g++) {
        size_t n_members = 0;
        for (size_t i = 0; i < n; i++)
            if (group[i] == g) members[n_members++] = &churns[i];
        for (size_t p = 0; p < members[0]->n_pages; p++) {
            tw_table_begin_row(table);
            tw_table_put_text(table, members[0]->name.model);
            tw_table_put_text(table, members[0]->name.task);
            tw_table_put_uint(table, n_members);
            tw_table_put_uint(table, members[0]->pages[p].page_size);
            put_figures(table, members, n_members, p, brief);
        }
    }
    free(group);
    free(members);
}

static void json_figures(struct tw_json *json, const struct figure *figures, size_t n, const void *of) {
    for (size_t f = 0; f < n; f++)
        if (figures[f].count)
            tw_json_uint(json, figures[f].member, (uint64_t)value_of(&figures[f], of));
        else
            tw_json_double(json, figures[f].member, value_of(&figures[f], of));
}

static void json_pages(struct tw_json *json, const struct tw_page_churn *pages, size_t n_heads) {
    tw_json_begin_object(json, "temporal_stability");
    json_figures(json, stability_figures, sizeof stability_figures / sizeof *stability_figures, pages);
    tw_json_begin_array(json, "per_head");
    for (size_t h = 0; h < n_heads; h++) tw_json_double(json, NULL, pages->stability[h]);
    tw_json_end_array(json);
    tw_json_end_object(json);

    tw_json_begin_object(json, "drift");
    json_figures(json, drift_figures, sizeof drift_figures / sizeof *drift_figures, pages);
    tw_json_begin_array(json, "events");
    for (size_t i = 0; i < pages->n_drifts; i++) {
        tw_json_begin_array(json, NULL);
        tw_json_uint(json, NULL, pages->drift[i].head);
        tw_json_uint(json, NULL, pages->drift[i].step);
        tw_json_end_array(json);
    }
    tw_json_end_array(json);
    tw_json_end_object(json);

    tw_json_begin_object(json, "page_jaccard");
    json_figures(json, jaccard_figures, sizeof jaccard_figures / sizeof *jaccard_figures, pages);
    tw_json_end_object(json);
}

void tw_churn_json(struct tw_json *json, const struct tw_churn *churn) {
    const size_t n_heads = churn->n_layers * churn->n_heads;
    tw_json_text(json, "trace", tw_view_of(churn->name.trace));
    tw_json_text(json, "model", tw_view_of(churn->name.model));
    tw_json_text(json, "task", tw_view_of(churn->name.task));
    tw_json_text(json, "run", tw_view_of(churn->name.run));
    tw_json_uint(json, "steps", churn->n_steps);
    tw_json_uint(json, "layers", churn->n_layers);
    tw_json_uint(json, "heads", churn->n_heads);
    tw_json_uint(json, "page_size", churn->pages[0].page_size);
    json_pages(json, &churn->pages[0], n_heads);
    if (churn->has_copy_paste || churn->has_needle) {
        tw_json_begin_object(json, "activity");
        for (size_t r = 0; r < TW_N_ACTIVITY_RULES; r++) {
            if (!tw_churn_has_rule(churn, r)) continue;
            tw_json_begin_object(json, tw_activity_rules[r].name);
            json_figures(json, activity_figures, N_ACTIVITY_FIGURES, &churn->activity[r]);
            tw_json_double(json, "ln20", log(20));
            tw_json_end_object(json);
        }
        tw_json_end_object(json);
    }
    for (size_t p = 1; p < churn->n_pages; p++) {
        char name[48];
        snprintf(name, sizeof name, "pages_%llu", (unsigned long long)churn->pages[p].page_size);
        tw_json_begin_object(json, name);
        json_pages(json, &churn->pages[p], n_heads);
        tw_json_end_object(json);
    }
}

static void json_mean_pages(struct tw_json *json, const struct tw_churn *const *churns, size_t n, size_t p) {
    for (size_t s = 0; s < N_PAGE_SECTIONS; s++) {
        tw_json_begin_object(json, page_sections[s].object);
        for (size_t f = 0; f < page_sections[s].n; f++)
            tw_json_double(json, page_sections[s].figures[f].member,
                           mean_pages(churns, n, p, &page_sections[s].figures[f]));
        tw_json_end_object(json);
    }
}

void tw_churn_average_json(struct tw_json *json, const struct tw_churn *const *churns, size_t n) {
    tw_json_text(json, "model", tw_view_of(churns[0]->name.model));
    tw_json_text(json, "task", tw_view_of(churns[0]->name.task));
    tw_json_uint(json, "page_size", churns[0]->pages[0].page_size);
    tw_json_begin_array(json, "runs");
    for (size_t i = 0; i < n; i++) tw_json_text(json, NULL, tw_view_of(churns[i]->name.trace));
    tw_json_end_array(json);
    tw_json_begin_object(json, "mean_over_runs");
    json_mean_pages(json, churns, n, 0);
    tw_json_begin_object(json, "activity");
    for (size_t r = 0; r < TW_N_ACTIVITY_RULES; r++) {
        bool any = false;
        for (size_t i = 0; i < n; i++) any = any || tw_churn_has_rule(churns[i], r);
        if (!any) continue;
        tw_json_begin_object(json, tw_activity_rules[r].name);
        for (size_t f = 0; f < N_ACTIVITY_FIGURES; f++)
            tw_json_double(json, activity_figures[f].member, mean_activity(churns, n, r, &activity_figures[f]));
        tw_json_end_object(json);
    }
    tw_json_end_object(json);
    tw_json_end_object(json);
    for (size_t p = 1; p < churns[0]->n_pages; p++) {
        char name[48];
        snprintf(name, sizeof name, "pages_%llu", (unsigned long long)churns[0]->pages[p].page_size);
        tw_json_begin_object(json, name);
        json_mean_pages(json, churns, n, p);
        tw_json_end_object(json);
    }
}
