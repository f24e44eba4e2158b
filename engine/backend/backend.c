#include "engine/backend/backend.h"

#include <string.h>

#include "engine/backend/backends.h"

#define DECLARE(symbol) extern const struct tw_backend_ops tw_backend_##symbol;
#define POINTER(symbol) &tw_backend_##symbol,
TW_BACKENDS(DECLARE)
const struct tw_backend_ops *const tw_backend_table[] = {TW_BACKENDS(POINTER) NULL};

tw_status tw_backend_find(const struct tw_backend_ops **ops, const char *name, struct tw_error *err) {
    struct tw_text names = {0};
    for (const struct tw_backend_ops *const *b = tw_backend_table; *b; b++) {
        if (strcmp((*b)->name, name) == 0) {
            tw_text_release(&names);
            *ops = *b;
            return TW_OK;
        }
        tw_text_printf(&names, "%s%s", names.size ? ", " : "", (*b)->name);
    }
    const tw_status status =
        TW_FAIL(err, TW_E_OPTION, "there is no backend '%s'; there are: %s, cuda", name, tw_text_string(&names));
    tw_text_release(&names);
    return status;
}
