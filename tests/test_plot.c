/* Figures: what is in them, names as typed, gaps, fallbacks of terminals, and gnuplot missing. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "analysis/plot.h"
#include "base/parse.h"
#include "tests/support.h"

static const char header[] = "model,task,policy,unit,page_size,budget,mean_resident,miss_rate,units\n";

static const char *write_table(const char *folder, const char *rows) {
    char text[8192];
    snprintf(text, sizeof text, "%s%s", header, rows);
    const char *const path = tw_test_path(folder, "results.csv");
    tw_test_write_file(path, text, strlen(text));
    return path;
}

static const char simple[] = "m,t,reactive,query,16,8,80,0.5,10\nm,t,reactive,query,16,16,160,0.25,10\n";

static void check_starts_with(const char *path, const char *magic, size_t n) {
    size_t size;
    char *const data = tw_test_read_file(path, &size);
    ck_assert_msg(size > 500 && memcmp(data, magic, n) == 0, "%s has %zu bytes", path, size);
    free(data);
}

START_TEST(the_ending_chooses_the_format) {
    const char *const folder = tw_test_folder();
    const char *const table = write_table(folder, simple);
    static const struct {
        const char *name, *magic;
    } formats[] = {{"a.svg", "<?xml"}, {"a.png", "\x89PNG"}, {"a.pdf", "%PDF"}, {"b.SVG", "<?xml"}};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        const char *const figure = tw_test_path(folder, formats[i].name);
        struct tw_test_run run = tw_test_run("plot miss-rate %s -o %s", table, figure);
        ck_assert_msg(run.exit_status == 0 && run.err.size == 0, "%s", tw_text_string(&run.err));
        check_starts_with(figure, formats[i].magic, strlen(formats[i].magic));
        tw_test_run_release(&run);
    }
    /* Nothing else is left: results.csv and the figures. */
    struct tw_test_run run = tw_test_shell("ls %s | wc -l", folder);
    ck_assert_int_eq(atoi(tw_text_string(&run.out)), 5);
    tw_test_run_release(&run);
}
END_TEST

/* Texts that gnuplot would otherwise take for markup, quotation or substitution. */
START_TEST(names_appear_as_typed) {
    static const struct {
        const char *model, *in_svg;
    } names[] = {
        {"tiny_model@2", ">tiny_model@2, "},
        {"a^b_c{d}", ">a^b_c{d}, "},
        {"back\\slash`cmd`$x", ">back\\slash`cmd`$x, "},
        {"100%d %s", ">100%d %s, "},
        {"<b>&amp;", ">&lt;b>&amp;amp;, "},
        {"\"\"quoted\"\"", ">\"quoted\", "},
        {"über_模型", ">über_模型, "},
    };
    const char *const folder = tw_test_folder();
    char rows[1024];
    snprintf(
        rows, sizeof rows,
        "\"%s\",it's_a {test},reactive,query,16,8,80,0.5,10\n\"%s\",it's_a {test},./my_own@1.so:a=b,query,16,8,90,0.4,10\n",
        names[_i].model, names[_i].model);
    const char *const table = write_table(folder, rows), *const figure = tw_test_path(folder, "fig.svg");
    struct tw_test_run run = tw_test_run("plot miss-rate %s -o %s", table, figure);
    ck_assert_msg(run.exit_status == 0 && run.err.size == 0, "%s", tw_text_string(&run.err));
    char *const svg = tw_test_read_file(figure, NULL);
    char expected[256];
    snprintf(expected, sizeof expected, "%sit's_a {test}<", names[_i].in_svg);
    ck_assert_msg(strstr(svg, expected) != NULL, "no '%s' in the figure", expected);
    ck_assert_ptr_nonnull(strstr(svg, ">./my_own@1.so:a=b<"));
    free(svg);
    tw_test_run_release(&run);
}
END_TEST

START_TEST(a_gap_breaks_the_curve) {
    const char *const folder = tw_test_folder();
    const char *const table = write_table(folder, "m,t,reactive,query,16,8,80,0.5,10\n"
                                                  "m,t,reactive,query,16,16,160,0.25,10\n"
                                                  "m,t,reactive,query,16,32,320,0.125,10\n"
                                                  "m,t,evict,query,16,8,81,0.75,10\n"
                                                  "m,t,evict,query,16,16,,,10\n" /* no point */
                                                  "m,t,evict,query,16,32,321,0.375,10\n"
                                                  "m,t,rkv,query,16,8,82,0.875,10\n" /* no row at 16 */
                                                  "m,t,rkv,query,16,32,322,0.4375,10\n"
                                                  "m,t,frozen,query,16,8,,,10\n" /* nothing at all */
                                                  "m,t,frozen,query,16,16,,,10\n");
    const char *const figure = tw_test_path(folder, "fig.svg");
    struct tw_test_run run = tw_test_run("plot miss-rate %s -o %s --keep-script", table, figure);
    ck_assert_msg(run.exit_status == 0, "%s", tw_text_string(&run.err));
    ck_assert_msg(strstr(tw_text_string(&run.err), "warning: policy 'frozen' has no miss rate"), "%s",
                  tw_text_string(&run.err));
    char *const script = tw_test_read_file(tw_test_path(folder, "fig.gp"), NULL);
    ck_assert_ptr_nonnull(strstr(script, "\n8 0.5 0.5 NaN \n16 0.25 0.25 NaN \n32 0.125 0.125 NaN \n"));
    ck_assert_ptr_nonnull(strstr(script, "\n8.1 0.75 0.75 NaN \n\n32.1 0.375 0.375 NaN \n"));
    ck_assert_ptr_nonnull(strstr(script, "\n8.2 0.875 0.875 NaN \n\n32.2 0.4375 0.4375 NaN \n"));
    ck_assert_ptr_null(strstr(script, "frozen"));
    free(script);
    tw_test_run_release(&run);
}
END_TEST

START_TEST(runs_are_averaged_with_bars) {
    const char *const folder = tw_test_folder();
    const char *const table = write_table(folder, "m,t,reactive,query,16,8,80,0.5,10\n"
                                                  "m,t,reactive,query,16,8,100,0.25,10\n");
    struct tw_test_run run =
        tw_test_run("plot miss-rate %s -o %s --keep-script", table, tw_test_path(folder, "fig.svg"));
    ck_assert_msg(run.exit_status == 0, "%s", tw_text_string(&run.err));
    char *const script = tw_test_read_file(tw_test_path(folder, "fig.gp"), NULL);
    ck_assert_ptr_nonnull(strstr(script, "\n9 0.375 0.375 0.1767766952966369 \n"));
    ck_assert_ptr_nonnull(strstr(script, "yerrorbars"));
    free(script);
    tw_test_run_release(&run);
}
END_TEST

START_TEST(the_kept_script_draws_the_same_figure) {
    const char *const folder = tw_test_folder();
    struct tw_test_run run =
        tw_test_shell("$TW_PROGRAM plot miss-rate %s -o %s/fig.svg --keep-script && mv %s/fig.svg %s/first.svg && "
                      "gnuplot -d %s/fig.gp && cmp %s/fig.svg %s/first.svg",
                      write_table(folder, simple), folder, folder, folder, folder, folder, folder);
    ck_assert_msg(run.exit_status == 0, "%s%s", tw_text_string(&run.out), tw_text_string(&run.err));
    tw_test_run_release(&run);
}
END_TEST

/* Numbers beside points keep clear of each other, few events or many: of any two in a panel the boxes are disjoint. */
START_TEST(lead_labels_do_not_overlap) {
    static const char *const traces[] = {"replay/long.h5", "replay/study", "replay/ties.h5"};
    struct {
        double x, y;
        size_t letters, panel;
    } labels[128];
    const char *const folder = tw_test_folder();
    struct tw_test_run run = tw_test_run("plot precision-recall %s -o %s --keep-script", tw_test_golden(traces[_i]),
                                         tw_test_path(folder, "fig.svg"));
    ck_assert_msg(run.exit_status == 0, "%s", tw_text_string(&run.err));
    tw_test_run_release(&run);
    char *const script = tw_test_read_file(tw_test_path(folder, "fig.gp"), NULL);
    size_t n = 0, panel = 0;
    for (char *line = script; line && n < 128; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        char text[64];
        panel += strncmp(line, "unset label\n", 12) == 0;
        if (sscanf(line, "set label '%63[0-9,]' at first %lf, first %lf", text, &labels[n].x, &labels[n].y) != 3)
            continue;
        labels[n].letters = strlen(text);
        labels[n++].panel = panel;
    }
    ck_assert_uint_gt(n, 4);
    ck_assert_uint_eq(panel, 2);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            ck_assert_msg(labels[i].panel != labels[j].panel || fabs(labels[i].y - labels[j].y) > 0.04 ||
                              fabs(labels[i].x - labels[j].x) > 0.01 * (double)(labels[i].letters + labels[j].letters),
                          "labels at %g, %g and %g, %g", labels[i].x, labels[i].y, labels[j].x, labels[j].y);
    free(script);
}
END_TEST

START_TEST(the_locale_changes_nothing) {
    const char *const folder = tw_test_folder();
    const char *const table = write_table(folder, simple);
    static const char *const locales[] = {"LC_ALL=C", "LC_ALL= LANG=POSIX", "LC_ALL=de_DE.UTF-8", "-u LC_ALL -u LANG"};
    for (size_t i = 0; i < sizeof locales / sizeof *locales; i++) {
        struct tw_test_run run =
            tw_test_shell("env %s GNUTERM=dumb $TW_PROGRAM plot miss-rate %s -o %s/%zu.svg && cmp %s/0.svg %s/%zu.svg",
                          locales[i], table, folder, i, folder, folder, i);
        ck_assert_msg(run.exit_status == 0 && run.err.size == 0, "%s: %s", locales[i], tw_text_string(&run.err));
        tw_test_run_release(&run);
    }
}
END_TEST

/* A gnuplot that knows only some terminals. */
static void write_gnuplot(const char *folder, const char *terminals) {
    char text[512];
    snprintf(text, sizeof text,
             "#!/bin/sh\ncase \"$*\" in *GPVAL_TERMINALS*) echo ' %s ';; *) exec /usr/bin/env PATH=/usr/bin:/bin "
             "gnuplot \"$@\";; esac\n",
             terminals);
    const char *const path = tw_test_path(folder, "gnuplot");
    tw_test_write_file(path, text, strlen(text));
    struct tw_test_run run = tw_test_shell("chmod +x %s", path);
    tw_test_run_release(&run);
}

START_TEST(another_terminal_is_taken_and_said) {
    static const struct {
        const char *terminals, *figure, *drawn, *says;
        int exit_status;
    } cases[] = {
        {"png svg", "fig.png", "fig.png", "has no terminal 'pngcairo'", 0},
        {"svg", "fig.png", "fig.svg", "is drawn instead", 0},
        {"svg pngcairo", "fig.pdf", "fig.svg", "is drawn instead", 0},
        {"svgx xpngcairo", "fig.png", "fig.gp", "fig.gp", 2}, /* names that only look alike */
        {"dumb", "fig.svg", "fig.gp", "fig.gp", 2},
    };
    const char *const folder = tw_test_folder();
    write_gnuplot(folder, cases[_i].terminals);
    struct tw_test_run run = tw_test_shell("env -u DISPLAY PATH=%s:$PATH $TW_PROGRAM plot miss-rate %s -o %s", folder,
                                           write_table(folder, simple), tw_test_path(folder, cases[_i].figure));
    ck_assert_msg(run.exit_status == cases[_i].exit_status, "%d: %s", run.exit_status, tw_text_string(&run.err));
    ck_assert_msg(strstr(tw_text_string(&run.err), cases[_i].says), "%s", tw_text_string(&run.err));
    ck_assert_ptr_eq(strchr(tw_text_string(&run.err), '\n') + 1, tw_text_string(&run.err) + run.err.size);
    ck_assert_int_eq(access(tw_test_path(folder, cases[_i].drawn), F_OK), 0);
    tw_test_run_release(&run);
}
END_TEST

START_TEST(without_gnuplot_the_script_is_written) {
    const char *const folder = tw_test_folder();
    const char *const table = write_table(folder, simple), *const figure = tw_test_path(folder, "fig.svg");
    struct tw_test_run run = tw_test_shell("PATH=%s $TW_PROGRAM plot miss-rate %s -o %s", folder, table, figure);
    ck_assert_int_eq(run.exit_status, 2);
    ck_assert_msg(strstr(tw_text_string(&run.err), "gnuplot is not there"), "%s", tw_text_string(&run.err));
    ck_assert_ptr_eq(strchr(tw_text_string(&run.err), '\n') + 1, tw_text_string(&run.err) + run.err.size);
    ck_assert_int_ne(access(figure, F_OK), 0);
    char *const script = tw_test_read_file(tw_test_path(folder, "fig.gp"), NULL);
    ck_assert_ptr_nonnull(strstr(script, "\n8 0.5 0.5 NaN \n16 0.25 0.25 NaN \n"));
    free(script);
    tw_test_run_release(&run);
}
END_TEST

START_TEST(a_failing_gnuplot_is_reported) {
    const char *const folder = tw_test_folder();
    static const char fails[] =
        "#!/bin/sh\ncase \"$*\" in *GPVAL*) echo ' svg ';; *) echo 'line 3: no room' >&2; exit 1;; esac\n";
    tw_test_write_file(tw_test_path(folder, "gnuplot"), fails, sizeof fails - 1);
    struct tw_test_run run =
        tw_test_shell("chmod +x %s/gnuplot; PATH=%s:$PATH $TW_PROGRAM plot miss-rate %s -o %s/fig.svg", folder, folder,
                      write_table(folder, simple), folder);
    ck_assert_int_eq(run.exit_status, 3);
    ck_assert_msg(strstr(tw_text_string(&run.err), "line 3: no room"), "%s", tw_text_string(&run.err));
    ck_assert_int_ne(access(tw_test_path(folder, "fig.svg"), F_OK), 0);
    ck_assert_int_eq(access(tw_test_path(folder, "fig.gp"), F_OK), 0);
    tw_test_run_release(&run);
}
END_TEST

START_TEST(refusals) {
    const char *const folder = tw_test_folder();
    const char *const table = write_table(folder, simple), *const json = tw_test_path(folder, "bad.json");
    static const struct {
        const char *arguments, *says;
        const char *json;
    } cases[] = {
        {"plot miss-rate %s", "a figure needs a file", NULL},
        {"plot miss-rate %s -o /tmp/fig.jpg", "must end in .svg, .png or .pdf", NULL},
        {"plot mis-rate %s -o /tmp/fig.svg", "there is no figure 'mis-rate'; there are miss-rate", NULL},
        {"plot miss-rate -o /tmp/fig.svg", "needs a table", NULL},
        {"plot miss-rate %s -o /no/such/folder/fig.svg", "/no/such/folder", NULL},
        {"plot miss-rate %s --model other -o /tmp/fig.svg", "no rows", NULL},
        {"plot miss-rate /nowhere.csv -o /tmp/fig.svg", "/nowhere.csv", NULL},
        {"plot miss-rate %s -o /tmp/fig.svg", "no column 'policy'", "a,b\n1,2\n"},
        {"plot miss-rate %s -o /tmp/fig.svg", "split by layer",
         "policy,budget,mean_resident,miss_rate,layer\nevict,1,2,3,4\n"},
        {"plot miss-rate %s -o /tmp/fig.svg", "neither CSV nor sound JSON", "{\"rows\": ["},
        {"plot miss-rate %s -o /tmp/fig.svg", "no list 'rows'", "{\"rows\": 3}"},
        {"plot miss-rate %s -o /tmp/fig.svg", "no object", "{\"rows\": [[1, 2]]}"},
        {"plot miss-rate %s -o /tmp/fig.svg", "no object", "{\"rows\": [{}, {}]}"},
        {"plot miss-rate %s -o /tmp/fig.svg", "row 2", "{\"rows\": [{\"a\": 1}, {\"b\": 1}, 3]}"},
        {"plot miss-rate %s -o /tmp/fig.svg", "no column 'policy'", "{\"rows\": []}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char arguments[512];
        if (cases[i].json) tw_test_write_file(json, cases[i].json, strlen(cases[i].json));
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(arguments, sizeof arguments, cases[i].arguments, cases[i].json ? json : table);
#pragma GCC diagnostic pop
        struct tw_test_run run = tw_test_run("%s", arguments);
        ck_assert_msg(run.exit_status == 2, "case %zu: %d: %s", i, run.exit_status, tw_text_string(&run.err));
        ck_assert_msg(strstr(tw_text_string(&run.err), cases[i].says), "case %zu: %s", i, tw_text_string(&run.err));
        tw_test_run_release(&run);
    }
}
END_TEST

/* Every kind: draws without a word from gnuplot, holds what it should, in every format. */
static const char log_csv[] = "schedule,seconds,category,bytes\none_shot,0,weights,1048576\none_shot,1,cache,2097152\n"
                              "tide,0,weights,1048576\ntide,2,cache,524288\none_shot,2,cache,0\n";
/* Two budgets of one schedule are two prefills; what all share stands over the figure once. */
static const char budgets_csv[] = "schedule,model,budget,context,chunk,seconds,category,bytes\n"
                                  "tide,m_1,8,100,16,0,weights,1048576\ntide,m_1,16,100,16,0,weights,2097152\n"
                                  "tide,m_1,16,100,16,1,weights,1048576\n";
static const char prefill_csv[] =
    "model,schedule,context,chunk,prefill_seconds,peak_bytes\nm_1,tide,2048,512,1.5,200000000\n"
    "m_1,tide,2048,1024,1.25,250000000\nm_1,oneshot,2048,,1,400000000\nm_1,block,2048,512,,\n";
static const char matched_csv[] =
    "model,task,policy,unit,page_size,budget,mean_resident,miss_rate,reference_miss_rate,win\n"
    "m_1,t,frozen,query,16,8,100,0.5,0.25,1\nm_1,t,frozen,query,16,16,200,0.25,,\n"
    "m_1,t,snapkv,query,16,8,100,0.25,0.5,0\n";
static const struct {
    const char *kind, *table, *traces, *options;
    const char *in_svg[4]; /* texts that must stand in the figure */
    const char *says;      /* in the warnings; NULL: none */
} kinds[] = {
    {"timeline",
     log_csv,
     NULL,
     "",
     {">one_shot: peak 3 MiB<", ">tide: peak 1.5 MiB<", ">weights<", ">memory (MiB)<"},
     NULL},
    {"timeline",
     budgets_csv,
     NULL,
     "",
     {">m_1, context 100, chunk 16<", ">tide, budget 8: peak 1 MiB<", ">tide, budget 16: peak 2 MiB<"},
     NULL},
    {"pareto",
     prefill_csv,
     NULL,
     "",
     {">m_1, context 2048<", ">oneshot<", ">time to first token (s)<"},
     "'block' has no time"},
    {"matched", matched_csv, NULL, "", {">m_1, t<", ">frozen (1 of 1)<", ">snapkv (0 of 1)<"}, "1 rows lie outside"},
    {"churn",
     NULL,
     "replay/study replay/plain.h5",
     "",
     {">synthetic-1b, multiturn (mean over runs)<", ">synthetic-1b, niah<", ">decode step<"},
     NULL},
    {"churn", NULL, "replay/noscore.h5", "", {">Jaccard of adjacent steps<"}, "has no steps to compare"},
    {"churn", NULL, "replay/short.h5", "--page-size 1", {">decode step<"}, "has no steps to compare"},
    {"heads",
     NULL,
     "replay/study",
     "",
     {">instability<", ">drift events<", ">needle score<", "(mean of 3 traces)<"},
     NULL},
    {"heads", NULL, "replay/noscore.h5", "", {">drift events<"}, "no trace has needle scores"},
    {"attention",
     NULL,
     "replay/wide.h5",
     "--layer 1 --head 7",
     {">synthetic-1b, niah: layer 1, query head 7<", ">needle<"},
     NULL},
    {"attention", NULL, "replay/noscore.h5", "--page-size 8", {"(8 tokens a page)<"}, NULL},
    {"wakeups", NULL, "replay/study", "", {">heads waking<", "run1: 16 wake-ups"}, NULL},
    {"wakeups", NULL, "replay/short.h5", "", {">heads waking<", ": 0 wake-ups, by 0 of 8 heads<"}, "no head of trace"},
    {"precision-recall",
     NULL,
     "replay/study",
     "",
     {">causal z-score above 2<", ">token markers (2nd halves)<", "35 wake-ups in 3 runs<"},
     NULL},
    {"precision-recall", NULL, "replay/plain.h5", "", {">token markers: none found<"}, NULL},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

START_TEST(every_kind_draws) {
    const char *const folder = tw_test_folder();
    char inputs[1024] = "";
    if (kinds[_i].table) {
        snprintf(inputs, sizeof inputs, "%s/input.csv", folder);
        tw_test_write_file(inputs, kinds[_i].table, strlen(kinds[_i].table));
    } else {
        struct tw_view piece, rest = tw_view_of(kinds[_i].traces);
        for (size_t n = 0; tw_parse_next(&piece, &rest, ' '); n = strlen(inputs)) {
            char name[64];
            snprintf(name, sizeof name, "%.*s", (int)piece.size, piece.data);
            snprintf(inputs + n, sizeof inputs - n, "%s ", tw_test_golden(name));
        }
    }
    static const char *const endings[] = {"svg", "png", "pdf"};
    for (size_t e = 0; e < 3; e++) {
        struct tw_test_run run =
            tw_test_run("plot %s %s %s -o %s/fig.%s", kinds[_i].kind, inputs, kinds[_i].options, folder, endings[e]);
        const char *const said = tw_text_string(&run.err);
        ck_assert_msg(run.exit_status == 0, "%s", said);
        ck_assert_msg(!strstr(said, "gnuplot"), "%s", said);
        ck_assert_msg(kinds[_i].says ? strstr(said, kinds[_i].says) != NULL : !*said, "%s", said);
        tw_test_run_release(&run);
    }
    char *const svg = tw_test_read_file(tw_test_path(folder, "fig.svg"), NULL);
    for (size_t i = 0; i < 4 && kinds[_i].in_svg[i]; i++)
        ck_assert_msg(strstr(svg, kinds[_i].in_svg[i]) != NULL, "no '%s' in the figure", kinds[_i].in_svg[i]);
    free(svg);
}
END_TEST

START_TEST(kinds_refuse_what_they_cannot_draw) {
    static const struct {
        const char *arguments, *says;
    } cases[] = {
        {"attention replay/plain.h5 --layer 2", "there is no layer 2"},
        {"attention replay/plain.h5 --head 4", "head 4"},
        {"attention replay/study", "takes one trace"},
        {"wakeups replay/noscore.h5", "has no /score/needle"},
        {"precision-recall replay/noscore.h5", "has no /score/needle"},
        {"precision-recall replay/short.h5", "no head wakes up"},
        {"precision-recall replay/study replay/plain.h5", "pools runs of one model and task"},
        {"heads replay/plain.h5 replay/mqa.h5", "a heat map needs equal ones"},
        {"churn replay/short.churn.json", "short.churn.json"},
        {"timeline replay/plain.churn.json", "no list 'rows'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tw_test_run run = tw_test_shell(
            "o=$(mktemp -u).svg; p=$(realpath $TW_PROGRAM); cd %s && $p plot %s -o $o; s=$?; test ! -e $o || s=9; exit $s",
            tw_test_golden(""), cases[i].arguments);
        ck_assert_msg(run.exit_status == 2, "case %zu: %d: %s", i, run.exit_status, tw_text_string(&run.err));
        ck_assert_msg(strstr(tw_text_string(&run.err), cases[i].says), "case %zu: %s", i, tw_text_string(&run.err));
        tw_test_run_release(&run);
    }
}
END_TEST

START_TEST(json_tables_are_read_as_csv_is) {
    const char *const folder = tw_test_folder(), *const path = tw_test_path(folder, "t.json");
    static const char text[] = " {\"seed\": 0, \"rows\": [{\"a\": \"x\", \"b\": 1.5}, {\"b\": null, \"a\": \"y\"}]}\n";
    tw_test_write_file(path, text, sizeof text - 1);
    struct tw_table table;
    struct tw_error err = {0};
    ck_assert_msg(tw_plot_read_table(&table, path, &err) == TW_OK, "%s", err.text);
    ck_assert_uint_eq(table.n_rows, 2);
    ck_assert_str_eq(tw_table_cell(&table, 1, tw_table_column(&table, "a"))->text, "y");
    double value;
    ck_assert(tw_cell_number(&value, tw_table_cell(&table, 0, 1)) && value == 1.5);
    ck_assert_int_eq(tw_table_cell(&table, 1, 1)->type, TW_CELL_EMPTY);
    tw_table_release(&table);
}
END_TEST

Suite *tw_suite_plot(void);
Suite *tw_suite_plot(void) {
    Suite *suite = suite_create("plot");
    TCase *figures = tcase_create("figures");
    tcase_set_timeout(figures, 60);
    tcase_add_test(figures, the_ending_chooses_the_format);
    tcase_add_loop_test(figures, names_appear_as_typed, 0, 7);
    tcase_add_test(figures, a_gap_breaks_the_curve);
    tcase_add_test(figures, runs_are_averaged_with_bars);
    tcase_add_test(figures, the_kept_script_draws_the_same_figure);
    tcase_add_loop_test(figures, lead_labels_do_not_overlap, 0, 3);
    tcase_add_test(figures, the_locale_changes_nothing);
    tcase_add_loop_test(figures, every_kind_draws, 0, N_KINDS);
    suite_add_tcase(suite, figures);
    TCase *failures = tcase_create("failures");
    tcase_set_timeout(failures, 60);
    tcase_add_loop_test(failures, another_terminal_is_taken_and_said, 0, 5);
    tcase_add_test(failures, without_gnuplot_the_script_is_written);
    tcase_add_test(failures, a_failing_gnuplot_is_reported);
    tcase_add_test(failures, refusals);
    tcase_add_test(failures, kinds_refuse_what_they_cannot_draw);
    tcase_add_test(failures, json_tables_are_read_as_csv_is);
    suite_add_tcase(suite, failures);
    return suite;
}
