/* The backends that are built in, in the order of `list`. To add one: its folder, and one line here. */
#ifndef TW_ENGINE_BACKEND_BACKENDS_H
#define TW_ENGINE_BACKEND_BACKENDS_H

/* X(symbol): `const struct tw_backend_ops tw_backend_<symbol>` in engine/backend/<symbol>/ */
#define TW_BACKENDS(X) X(ref) X(cpu) X(dry)

#endif
