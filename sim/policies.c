#include "sim/policies.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "base/parse.h"

#define TW_DECLARE_POLICY(symbol) extern const struct tw_policy tw_policy_##symbol;
TW_POLICIES(TW_DECLARE_POLICY)
#undef TW_DECLARE_POLICY

#define TW_POLICY_ENTRY(symbol) &tw_policy_##symbol,
const struct tw_policy *const tw_policy_table[] = {TW_POLICIES(TW_POLICY_ENTRY) NULL};
#undef TW_POLICY_ENTRY

const size_t tw_policy_n_of_paper = 7;

/* A user's policy: what must hold before anything in it is called. */
static tw_status load(struct tw_policy_choice *choice, const char *path, struct tw_error *err) {
    /* A name without a folder means the one at hand, not what the system's folders have. */
    struct tw_text here = {0};
    tw_text_printf(&here, "%s%s", strchr(path, '/') ? "" : "./", path);
    dlerror();
    choice->library = tw_text_ok(&here) ? dlopen(tw_text_string(&here), RTLD_NOW | RTLD_LOCAL) : NULL;
    tw_text_release(&here);
    if (!choice->library) {
        const char *reason = dlerror();
        return TW_FAIL(err, TW_E_INPUT, "policy '%s' cannot be loaded: %s", path, reason ? reason : "no reason given");
    }
    const struct tw_policy *policy = dlsym(choice->library, "tw_policy_plugin");
    if (!policy) return TW_FAIL(err, TW_E_INPUT, "policy '%s' has no 'const struct tw_policy tw_policy_plugin'", path);
    if (policy->interface != TW_POLICY_INTERFACE)
        return TW_FAIL(err, TW_E_INPUT,
                       "policy '%s' is made for interface %lu of policies, this program has %d: build it again with "
                       "this program's sim/policy.h",
                       path, (unsigned long)policy->interface, TW_POLICY_INTERFACE);
    if (!policy->name || !*policy->name || strpbrk(policy->name, ":,\n"))
        return TW_FAIL(err, TW_E_INPUT, "policy '%s' has no usable name", path);
    if (!policy->open || !policy->serve || !policy->close || policy->sweep)
        return TW_FAIL(err, TW_E_INPUT, "policy '%s' must have open, serve and close, and no sweep", path);
    if (!policy->options != !policy->options_size || (policy->prunes_every && !policy->options))
        return TW_FAIL(err, TW_E_INPUT,
                       "policy '%s' has a table of options without a struct for them, or one without "
                       "the other",
                       path);
    for (const struct tw_policy *const *known = tw_policy_table; *known; known++)
        if (!strcmp((*known)->name, policy->name))
            return TW_FAIL(err, TW_E_INPUT, "policy '%s' has the name of a built-in policy, '%s'", path, policy->name);
    choice->policy = policy;
    return TW_OK;
}

static bool is_path(const char *name) {
    const size_t n = strlen(name);
    return strchr(name, '/') || (n > 3 && !strcmp(name + n - 3, ".so"));
}

static tw_status find(struct tw_policy_choice *choice, const char *name, struct tw_error *err) {
    struct tw_text known = {0};
    for (const struct tw_policy *const *policy = tw_policy_table; *policy; policy++) {
        if (!strcmp((*policy)->name, name)) {
            choice->policy = *policy;
            tw_text_release(&known);
            return TW_OK;
        }
        tw_text_printf(&known, "%s%s", known.size ? ", " : "", (*policy)->name);
    }
    const tw_status status =
        TW_FAIL(err, TW_E_OPTION, "there is no policy '%s'; there are %s, all, and shared objects like ./mine.so", name,
                tw_text_string(&known));
    tw_text_release(&known);
    return status;
}

tw_status tw_policy_choose(struct tw_policy_choice *choice, struct tw_view specification, struct tw_error *err) {
    *choice = (struct tw_policy_choice){0};
    tw_status status = TW_OK;
    struct tw_text label = {0}, what = {0};
    choice->text = strndup(specification.data ? specification.data : "", specification.size);
    if (!choice->text) {
        status = TW_FAIL(err, TW_E_MEMORY, "not enough memory for a policy's name");
        goto fail;
    }
    char *colon = strchr(choice->text, ':');
    if (colon) *colon = 0;
    TW_TRY_GOTO(status, fail,
                is_path(choice->text) ? load(choice, choice->text, err) : find(choice, choice->text, err));
    const struct tw_policy *policy = choice->policy;
    tw_text_printf(&what, "policy '%s'", policy->name);
    tw_text_printf(&label, "%s", policy->name);
    if (policy->options) {
        choice->options = malloc(policy->options_size);
        if (!choice->options) {
            status = TW_FAIL(err, TW_E_MEMORY, "not enough memory for the options of %s", tw_text_string(&what));
            goto fail;
        }
        tw_options_init(choice->options, policy->options_size, policy->options);
        TW_TRY_GOTO(status, fail,
                    tw_options_parse_specification(choice->options, policy->options, tw_view_of(colon ? colon + 1 : ""),
                                                   tw_text_string(&what), err));
        tw_options_describe(&label, choice->options, policy->options);
    } else if (colon) {
        status = TW_FAIL(err, TW_E_OPTION, "%s has no options", tw_text_string(&what));
        goto fail;
    }
    choice->label = tw_text_ok(&label) ? strdup(tw_text_string(&label)) : NULL;
    if (!choice->label) status = TW_FAIL(err, TW_E_MEMORY, "not enough memory for a policy's name");
fail:
    tw_text_release(&label);
    tw_text_release(&what);
    if (status != TW_OK) tw_policy_choice_release(choice);
    return status;
}

void tw_policy_choice_release(struct tw_policy_choice *choice) {
    if (choice->options) tw_options_release(choice->options, choice->policy->options);
    free(choice->options);
    free(choice->label);
    free(choice->text);
    if (choice->library) dlclose(choice->library);
    *choice = (struct tw_policy_choice){0};
}

static tw_status add(struct tw_policy_list *list, struct tw_view specification, struct tw_error *err) {
    struct tw_policy_choice *choices = realloc(list->choices, (list->n + 1) * sizeof *choices);
    if (!choices) return TW_FAIL(err, TW_E_MEMORY, "not enough memory for %zu policies", list->n + 1);
    list->choices = choices;
    struct tw_policy_choice choice;
    TW_TRY(tw_policy_choose(&choice, specification, err));
    for (size_t i = 0; i < list->n; i++)
        if (!strcmp(list->choices[i].label, choice.label)) {
            tw_policy_choice_release(&choice);
            return TW_OK;
        }
    list->choices[list->n++] = choice;
    return TW_OK;
}

tw_status tw_policy_list_parse(struct tw_policy_list *list, struct tw_view specification, struct tw_error *err) {
    *list = (struct tw_policy_list){0};
    struct tw_view piece, rest = specification;
    tw_status status = TW_OK;
    while (status == TW_OK && tw_parse_next(&piece, &rest, ',')) {
        if (!tw_view_equal(piece, TW_VIEW("all"))) {
            status = add(list, piece, err);
            continue;
        }
        for (size_t i = 0; status == TW_OK && i < tw_policy_n_of_paper; i++)
            status = add(list, tw_view_of(tw_policy_table[i]->name), err);
    }
    if (status != TW_OK) tw_policy_list_release(list);
    return status;
}

void tw_policy_list_release(struct tw_policy_list *list) {
    for (size_t i = 0; i < list->n; i++) tw_policy_choice_release(&list->choices[i]);
    free(list->choices);
    *list = (struct tw_policy_list){0};
}
