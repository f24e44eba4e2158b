/* The selectors, in the order of `list`. To add one: its file, and one line here. */
#ifndef TW_ENGINE_PREFILL_SELECTORS_H
#define TW_ENGINE_PREFILL_SELECTORS_H

/* X(symbol): `const struct tw_selector tw_selector_<symbol>` in engine/prefill/selector_<symbol>.c */
#define TW_SELECTORS(X) X(snapkv) X(pyramidkv) X(adakv) X(chunkkv) X(keydiff) X(recent) X(knorm) X(random)

#endif
