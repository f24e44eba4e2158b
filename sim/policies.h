/* The policies there are. To add one: its file, and one line here. */
#ifndef TW_SIM_POLICIES_H
#define TW_SIM_POLICIES_H

#include "base/text.h"
#include "base/view.h"
#include "sim/policy.h"

/* X(symbol): `const struct tw_policy tw_policy_<symbol>` in sim/policy_<symbol>.c */
#define TW_POLICIES(X)                                                                                                 \
    X(full)                                                                                                            \
    X(reactive)                                                                                                        \
    X(evict)                                                                                                           \
    X(frozen)                                                                                                          \
    X(snapkv)                                                                                                          \
    X(rkv)                                                                                                             \
    X(reasonalloc)                                                                                                     \
    X(min)

/* Ends with NULL. The order in which `all` runs them: `all` is the paper's seven, those before `min`. */
extern const struct tw_policy *const tw_policy_table[];
extern const size_t tw_policy_n_of_paper;

/* A policy with its options filled: "rkv:interval=8", "./mine.so:alpha=3". */
struct tw_policy_choice {
    const struct tw_policy *policy;
    void *options; /* policy->options_size bytes; NULL when there are none */
    char *label;   /* how results name it: the name and the options that are not the defaults */
    void *library; /* the handle of a user's policy, or NULL */
    char *text;    /* what was parsed; text options point into it */
};

/*
 * Parses one policy's specification. A name with a '/' or the ending ".so" is a shared object of the user's. Fails with
 * TW_E_OPTION for an unknown policy (listing those there are) or option, TW_E_INPUT for a shared object that cannot be
 * used: not one, without `tw_policy_plugin`, or of another interface version.
 */
tw_status tw_policy_choose(struct tw_policy_choice *choice, struct tw_view specification, struct tw_error *err);
void tw_policy_choice_release(struct tw_policy_choice *choice); /* copes with {0} */

struct tw_policy_list {
    struct tw_policy_choice *choices; /* [n] */
    size_t n;
};

/* "reactive,rkv:interval=8,./mine.so"; "all" stands for the paper's seven. Repeated policies are kept once. */
tw_status tw_policy_list_parse(struct tw_policy_list *list, struct tw_view specification, struct tw_error *err);
void tw_policy_list_release(struct tw_policy_list *list); /* copes with {0} */

#endif
