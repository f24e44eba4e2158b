#include "cli/study/settings.h"

#include <ini.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/parse.h"

#define FIELD(type, field) .offset = offsetof(struct type, field)

static const struct tw_option general_rows[] = {
    {.name = "title",
     .type = TW_OPTION_TEXT,
     FIELD(tw_study_general, title),
     .default_value = "A Tidewake study",
     .value_name = "TEXT",
     .help = "the report's title"},
    {.name = "output",
     .type = TW_OPTION_TEXT,
     FIELD(tw_study_general, output),
     .value_name = "FOLDER",
     .help = "where everything goes"},
    {0},
};
static const struct tw_option model_rows[] = {
    {.name = "path",
     .type = TW_OPTION_TEXT,
     FIELD(tw_study_model, path),
     .value_name = "MODEL",
     .help = "a GGUF file or a Hugging Face folder"},
    {0},
};
static const struct tw_option task_rows[] = {
    {.name = "context",
     .type = TW_OPTION_SIZE_LIST,
     FIELD(tw_study_task, context),
     .default_value = "0",
     .value_name = "LIST",
     .help = "lengths of the prompt in tokens; 0: the task's own"},
    {.name = "depth",
     .type = TW_OPTION_DOUBLE_LIST,
     FIELD(tw_study_task, depth),
     .default_value = "0.5",
     .maximum = 1,
     .value_name = "LIST",
     .help = "where the needle stands, 0 to 1"},
    {.name = "runs",
     .type = TW_OPTION_U64,
     FIELD(tw_study_task, runs),
     .default_value = "1",
     .minimum = 1,
     .maximum = 100000,
     .value_name = "N",
     .help = "runs of each length and depth, with seeds of their own"},
    {.name = "seed",
     .type = TW_OPTION_U64,
     FIELD(tw_study_task, seed),
     .default_value = "0",
     .value_name = "N",
     .help = "the first run's seed"},
    {.name = "max-new",
     .type = TW_OPTION_U64,
     FIELD(tw_study_task, max_new),
     .default_value = "0",
     .value_name = "N",
     .help = "steps at most; 0: as many as the task's answer may need"},
    {0},
};
static const struct tw_option prompts_rows[] = {
    {.name = "file",
     .type = TW_OPTION_TEXT,
     FIELD(tw_study_prompts, file),
     .value_name = "FILE",
     .help = "one {\"prompt\", \"answer\"} a line"},
    {.name = "max-new",
     .type = TW_OPTION_U64,
     FIELD(tw_study_prompts, max_new),
     .default_value = "128",
     .minimum = 1,
     .value_name = "N",
     .help = "steps at most"},
    {0},
};
static const struct tw_option traces_rows[] = {
    {.name = "path",
     .type = TW_OPTION_TEXT,
     FIELD(tw_study_traces, path),
     .value_name = "TRACE|FOLDER",
     .help = "traces that are there already"},
    {0},
};
static const struct tw_option replay_rows[] = {
    {.name = "policy",
     .type = TW_OPTION_TEXT,
     FIELD(tw_study_replay, policy),
     .default_value = "all,min",
     .value_name = "LIST",
     .help = "as for replay"},
    {.name = "budget",
     .type = TW_OPTION_U64_LIST,
     FIELD(tw_study_replay, budget),
     .default_value = "2..64",
     .value_name = "LIST",
     .help = "pages a unit"},
    {.name = "page-size",
     .type = TW_OPTION_U64_LIST,
     FIELD(tw_study_replay, page_size),
     .default_value = "16",
     .minimum = 1,
     .value_name = "LIST",
     .help = "tokens a page"},
    {.name = "unit",
     .type = TW_OPTION_TEXT,
     FIELD(tw_study_replay, unit),
     .default_value = "query",
     .value_name = "LIST",
     .help = "query, kv or both"},
    {0},
};
static const struct tw_option quality_rows[] = {
    {.name = "task",
     .type = TW_OPTION_TEXT,
     FIELD(tw_study_quality, task),
     .default_value = "niah,multikey,multivalue,multiquery,variables",
     .value_name = "LIST",
     .help = "tasks whose answers are scored"},
    {.name = "context",
     .type = TW_OPTION_SIZE_LIST,
     FIELD(tw_study_quality, context),
     .default_value = "1K,2K,4K",
     .value_name = "LIST",
     .help = "lengths of the prompt in tokens"},
    {.name = "runs",
     .type = TW_OPTION_U64,
     FIELD(tw_study_quality, runs),
     .default_value = "2",
     .minimum = 1,
     .maximum = 100000,
     .value_name = "N",
     .help = "prompts of each task and length"},
    {.name = "seed",
     .type = TW_OPTION_U64,
     FIELD(tw_study_quality, seed),
     .default_value = "1000",
     .value_name = "N",
     .help = "the first prompt's seed"},
    {.name = "selector",
     .type = TW_OPTION_TEXT,
     FIELD(tw_study_quality, selector),
     .default_value = "snapkv,pyramidkv,adakv,chunkkv,keydiff,recent:sinks=4",
     .value_name = "LIST",
     .help = "selectors to compare"},
    {.name = "schedule",
     .type = TW_OPTION_TEXT,
     FIELD(tw_study_quality, schedule),
     .default_value = "tide,postprefill,block",
     .value_name = "LIST",
     .help = "schedules to compare"},
    {.name = "budget",
     .type = TW_OPTION_TEXT,
     FIELD(tw_study_quality, budget),
     .default_value = "256,1024,full",
     .value_name = "LIST",
     .help = "positions kept a KV head"},
    {0},
};

static const struct tw_study_kind kinds[] = {
    {"study", false, general_rows, sizeof(struct tw_study_general)},
    {"model", true, model_rows, sizeof(struct tw_study_model)},
    {"engine", false, NULL, 0}, /* the engine's own table */
    {"task", true, task_rows, sizeof(struct tw_study_task)},
    {"prompts", true, prompts_rows, sizeof(struct tw_study_prompts)},
    {"traces", true, traces_rows, sizeof(struct tw_study_traces)},
    {"replay", false, replay_rows, sizeof(struct tw_study_replay)},
    {"quality", false, quality_rows, sizeof(struct tw_study_quality)},
};

/* While a file is parsed: the library calls back for every key. */
struct parser {
    struct tw_study_settings *settings;
    struct tw_study_kind *kinds; /* a copy with the engine's table in place; lives as long as the settings */
    const char *name;
    tw_status status;
    struct tw_error *err;
};

static const char *keep_text(struct tw_study_settings *settings, const char *value) {
    char **texts = realloc(settings->texts, (settings->n_texts + 1) * sizeof *texts);
    if (!texts) return NULL;
    settings->texts = texts;
    return texts[settings->n_texts] = strdup(value), texts[settings->n_texts] ? texts[settings->n_texts++] : NULL;
}

static const struct tw_study_kind *find_kind(const struct parser *p, struct tw_view kind) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (tw_view_equal(kind, tw_view_of(p->kinds[i].name)) && p->kinds[i].options) return &p->kinds[i];
    return NULL;
}

/* The section called `title` ("task niah"), made when it is new. NULL after a failure. */
static struct tw_study_section *section(struct parser *p, const char *title) {
    struct tw_study_settings *s = p->settings;
    struct tw_view kind, rest = tw_view_of(title);
    tw_parse_next(&kind, &rest, ' ');
    while (rest.size && *rest.data == ' ') rest.data++, rest.size--;
    const struct tw_study_kind *found = find_kind(p, kind);
    if (!found) {
        p->status = TW_FAIL(
            p->err, TW_E_INPUT,
            "study '%s': there is no section [%s]; there are study, model NAME, engine, task NAME, prompts NAME, "
            "traces NAME, replay and quality",
            p->name, title);
        return NULL;
    }
    if (found->named != (rest.size > 0)) {
        p->status = TW_FAIL(p->err, TW_E_INPUT,
                            found->named ? "study '%s': section [%s] needs a name, like [%s NAME]"
                                         : "study '%s': section [%s] takes no name; write [%s]",
                            p->name, title, found->name);
        return NULL;
    }
    for (size_t i = 0; i < s->n_sections; i++)
        if (s->sections[i].kind == found && (!found->named || tw_view_equal(rest, tw_view_of(s->sections[i].name))))
            return &s->sections[i];
    struct tw_study_section *sections = realloc(s->sections, (s->n_sections + 1) * sizeof *sections);
    if (sections) {
        s->sections = sections;
        struct tw_study_section *fresh = &sections[s->n_sections];
        *fresh = (struct tw_study_section){.kind = found, .values = calloc(1, found->size)};
        if (found->named) fresh->name = strndup(rest.data, rest.size);
        if (fresh->values && (!found->named || fresh->name)) {
            tw_options_init(fresh->values, 0, found->options);
            s->n_sections++;
            return fresh;
        }
        free(fresh->values);
        free(fresh->name);
    }
    p->status = TW_FAIL(p->err, TW_E_MEMORY, "out of memory while reading study '%s'", p->name);
    return NULL;
}

static int on_key(void *user, const char *title, const char *name, const char *value) {
    struct parser *p = user;
    if (p->status != TW_OK) return 1;
    if (!*title) {
        p->status = TW_FAIL(p->err, TW_E_INPUT, "study '%s': key '%s' stands before the first section", p->name, name);
        return 1;
    }
    struct tw_study_section *at = section(p, title);
    if (!at) return 1;
    const struct tw_option *option = tw_options_find(at->kind->options, tw_view_of(name));
    if (!option) {
        const char *nearest = NULL;
        size_t best = SIZE_MAX;
        for (const struct tw_option *o = at->kind->options; o->name; o++)
            if (tw_parse_distance(o->name, name) < best) best = tw_parse_distance(o->name, name), nearest = o->name;
        p->status = TW_FAIL(p->err, TW_E_INPUT, "study '%s': section [%s] has no key '%s'; the nearest is '%s'",
                            p->name, title, name, nearest);
        return 1;
    }
    struct tw_text key = {0};
    tw_text_printf(&key, "\n%s\n", name);
    const bool again = at->keys_given.size && memmem(at->keys_given.data, at->keys_given.size, key.data, key.size);
    tw_text_append(&at->keys_given, tw_text_view(&key));
    tw_text_release(&key);
    if (again) {
        p->status =
            TW_FAIL(p->err, TW_E_INPUT, "study '%s': key '%s' stands twice in section [%s]", p->name, name, title);
        return 1;
    }
    const char *kept = keep_text(p->settings, value);
    struct tw_text prefix = {0};
    tw_text_printf(&prefix, "[%s] ", title);
    p->status = kept ? tw_options_set(at->values, option, kept, tw_text_string(&prefix), p->err)
                     : TW_FAIL(p->err, TW_E_MEMORY, "out of memory while reading study '%s'", p->name);
    if (p->status == TW_E_OPTION) {
        tw_fail_prefix(p->err, p->status, "study '%s': ", p->name);
        p->status = TW_E_INPUT;
    }
    tw_text_release(&prefix);
    return 1;
}

tw_status tw_study_settings_parse(struct tw_study_settings *settings, const char *text, const char *name,
                                  const struct tw_option *engine, size_t engine_size, struct tw_error *err) {
    *settings = (struct tw_study_settings){0};
    /* The library reads lines into a buffer of 200 bytes and would take the rest of a longer one for a line of its own.
     */
    enum { LONGEST = 190 };
    struct tw_view rest = tw_view_of(text), one;
    for (size_t i = 1; tw_parse_next(&one, &rest, '\n'); i++)
        if (one.size > LONGEST)
            return TW_FAIL(
                err, TW_E_INPUT,
                "study '%s': line %zu is longer than %d characters; put its list into shorter ranges or more sections",
                name, i, LONGEST);
    struct tw_study_kind *copy = malloc(sizeof kinds);
    if (!copy) return TW_FAIL(err, TW_E_MEMORY, "out of memory while reading study '%s'", name);
    memcpy(copy, kinds, sizeof kinds);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!copy[i].options) copy[i].options = engine, copy[i].size = engine_size;
    settings->kinds = copy;
    struct parser parser = {.settings = settings, .kinds = copy, .name = name, .err = err};
    /* The library tells of keys alone: sections are found here, so that one without keys, all defaults, is there too.
     */
    for (rest = tw_view_of(text); parser.status == TW_OK && tw_parse_next(&one, &rest, '\n');) {
        while (one.size && (*one.data == ' ' || *one.data == '\t')) one.data++, one.size--;
        const char *end = one.size && *one.data == '[' ? memchr(one.data, ']', one.size) : NULL;
        char title[LONGEST + 1];
        if (!end) continue;
        memcpy(title, one.data + 1, (size_t)(end - one.data) - 1);
        title[end - one.data - 1] = 0;
        section(&parser, title);
    }
    const int line = ini_parse_string(text, on_key, &parser);
    tw_status status = parser.status;
    if (status == TW_OK && line != 0)
        status = TW_FAIL(err, TW_E_INPUT, "study '%s': line %d is neither a [section] nor key = value", name, line);
    if (status == TW_OK && settings->n_sections == 0)
        status = TW_FAIL(err, TW_E_INPUT, "study '%s' has no section", name);
    if (status != TW_OK) tw_study_settings_release(settings);
    return status;
}

tw_status tw_study_settings_read(struct tw_study_settings *settings, const char *path, const struct tw_option *engine,
                                 size_t engine_size, struct tw_error *err) {
    struct tw_text text = {0};
    tw_status status = tw_file_read(&text, path, 1 << 20, "study", err);
    if (status == TW_OK && text.size && memchr(text.data, 0, text.size))
        status = TW_FAIL(err, TW_E_INPUT, "study '%s' is not a text file", path);
    if (status == TW_OK)
        status = tw_study_settings_parse(settings, tw_text_string(&text), path, engine, engine_size, err);
    tw_text_release(&text);
    return status;
}

void tw_study_settings_release(struct tw_study_settings *settings) {
    for (size_t i = 0; i < settings->n_sections; i++) {
        struct tw_study_section *s = &settings->sections[i];
        tw_options_release(s->values, s->kind->options);
        free(s->values);
        free(s->name);
        tw_text_release(&s->keys_given);
    }
    for (size_t i = 0; i < settings->n_texts; i++) free(settings->texts[i]);
    free(settings->texts);
    free(settings->sections);
    free(settings->kinds);
    *settings = (struct tw_study_settings){0};
}

const struct tw_study_section *tw_study_next(const struct tw_study_settings *settings, const char *kind,
                                             const struct tw_study_section *after) {
    for (size_t i = after ? (size_t)(after - settings->sections) + 1 : 0; i < settings->n_sections; i++)
        if (strcmp(settings->sections[i].kind->name, kind) == 0) return &settings->sections[i];
    return NULL;
}

const void *tw_study_values(const struct tw_study_settings *settings, const char *kind) {
    const struct tw_study_section *section = tw_study_next(settings, kind, NULL);
    return section ? section->values : NULL;
}
