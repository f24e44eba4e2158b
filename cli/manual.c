#include "cli/manual.h"

#include <string.h>

#include "base/parse.h"
#include "cli/commands.h"

/* Text inside a man page: backslashes, and dots and quotes at the beginning of a line, mean something there. */
static void append_troff(struct tw_text *out, struct tw_view text) {
    for (size_t i = 0; i < text.size; i++) {
        const char c = text.data[i];
        if ((c == '.' || c == '\'') && (i == 0 || text.data[i - 1] == '\n')) tw_text_append(out, TW_VIEW("\\&"));
        if (c == '\\')
            tw_text_append(out, TW_VIEW("\\e"));
        else if (c == '-')
            tw_text_append(out, TW_VIEW("\\-"));
        else
            tw_text_append_char(out, c);
    }
}

static void append_option(struct tw_text *out, const struct tw_option *o) {
    tw_text_append(out, TW_VIEW(".TP\n.B "));
    if (o->letter) tw_text_printf(out, "\\-%c, ", o->letter);
    tw_text_append(out, TW_VIEW("\\-\\-"));
    append_troff(out, tw_view_of(o->name));
    const char *value = o->type == TW_OPTION_CHOICE ? o->choices : o->value_name;
    if (value && o->type != TW_OPTION_FLAG) tw_text_printf(out, " \\fI%s\\fR", value);
    tw_text_append_char(out, '\n');
    append_troff(out, tw_view_of(o->help));
    if (o->default_value && o->type != TW_OPTION_FLAG) {
        tw_text_append(out, TW_VIEW(" (default "));
        append_troff(out, tw_view_of(o->default_value));
        tw_text_append_char(out, ')');
    }
    tw_text_append_char(out, '\n');
}

/* An option table that several commands share is described once, where it stands first. */
static bool seen_before(const struct tw_command *const *command, const struct tw_option *options) {
    for (const struct tw_command *const *c = tw_command_table; c != command; c++)
        for (const struct tw_option_group *g = (*c)->groups; g && g->options; g++)
            if (g->options == options) return true;
    return false;
}

void tw_manual_page(struct tw_text *out) {
    tw_text_printf(out, ".TH TIDEWAKE 1 \"\" \"tidewake %s\" \"User Commands\"\n", tw_version);
    tw_text_append(out,
                   TW_VIEW(".SH NAME\ntidewake \\- trace, replay and analyse the key\\-value cache of language models\n"
                           ".SH SYNOPSIS\n.B tidewake\n.I COMMAND\n[\\fIoptions\\fR] \\fIFILES\\fR\n"
                           ".SH COMMANDS\n"));
    for (const struct tw_command *const *c = tw_command_table; *c; c++) {
        tw_text_printf(out, ".SS \"tidewake %s ", (*c)->name);
        append_troff(out, tw_view_of((*c)->usage));
        tw_text_append(out, TW_VIEW("\"\n"));
        append_troff(out, tw_view_of((*c)->summary));
        tw_text_append_char(out, '\n');
        if ((*c)->description) {
            tw_text_append(out, TW_VIEW(".PP\n"));
            append_troff(out, tw_view_of((*c)->description));
            tw_text_append_char(out, '\n');
        }
        for (const struct tw_option_group *g = (*c)->groups; g && g->options; g++) {
            if (seen_before(c, g->options)) {
                tw_text_append(out, TW_VIEW(".PP\nAnd the options \""));
                append_troff(out, tw_view_of(g->title ? g->title : "Output"));
                tw_text_append(out, TW_VIEW("\" of an earlier command.\n"));
                continue;
            }
            if (g->title) {
                tw_text_append(out, TW_VIEW(".PP\n"));
                append_troff(out, tw_view_of(g->title));
                tw_text_append(out, TW_VIEW(":\n"));
            }
            for (const struct tw_option *o = g->options; o->name; o++) append_option(out, o);
        }
        tw_text_append(out, TW_VIEW(".PP\n.nf\n"));
        append_troff(out, tw_view_of((*c)->example));
        tw_text_append(out, TW_VIEW("\n.fi\n"));
    }
    tw_text_append(
        out, TW_VIEW(".SH EXIT STATUS\n0 done; 1 the work was done and the answer is no; 2 unusable input or options; "
                     "3 resources ran out or an input/output error; 130 interrupted.\n"));
}

void tw_manual_completion(struct tw_text *out) {
    tw_text_append(out, TW_VIEW("# bash completion for tidewake\n_tidewake() {\n"
                                "    local current=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} words=\n"
                                "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        words='"));
    for (const struct tw_command *const *c = tw_command_table; *c; c++) tw_text_printf(out, "%s ", (*c)->name);
    tw_text_append(out, TW_VIEW("--help --version'\n    else\n        case $command in\n"));
    for (const struct tw_command *const *c = tw_command_table; *c; c++) {
        tw_text_printf(out, "        %s) words='", (*c)->name);
        for (const struct tw_option_group *g = (*c)->groups; g && g->options; g++)
            for (const struct tw_option *o = g->options; o->name; o++) tw_text_printf(out, "--%s ", o->name);
        tw_text_append(out, TW_VIEW("--help' ;;\n"));
    }
    tw_text_append(out, TW_VIEW("        esac\n"
                                "        case ${COMP_WORDS[COMP_CWORD-1]} in\n"));
    /* Values of choices, where every command that has the option agrees. */
    struct tw_text done = {0};
    for (const struct tw_command *const *c = tw_command_table; *c; c++)
        for (const struct tw_option_group *g = (*c)->groups; g && g->options; g++)
            for (const struct tw_option *o = g->options; o->name; o++) {
                if (o->type != TW_OPTION_CHOICE) continue;
                struct tw_text key = {0};
                tw_text_printf(&key, "\n%s\n", o->name);
                const bool again = done.size && memmem(done.data, done.size, key.data, key.size);
                tw_text_append(&done, tw_text_view(&key));
                tw_text_release(&key);
                if (again) continue;
                tw_text_printf(out, "        --%s) words='", o->name);
                struct tw_view choice, rest = tw_view_of(o->choices);
                while (tw_parse_next(&choice, &rest, '|')) tw_text_printf(out, "%.*s ", (int)choice.size, choice.data);
                tw_text_append(out, TW_VIEW("' ;;\n"));
            }
    tw_text_release(&done);
    tw_text_append(out, TW_VIEW("        esac\n    fi\n"
                                "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
                                "    [ \"${#COMPREPLY[@]}\" -gt 0 ] || COMPREPLY=($(compgen -f -- \"$current\"))\n"
                                "}\ncomplete -o filenames -F _tidewake tidewake\n"));
}
