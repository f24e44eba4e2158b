/*
 * Errors: what can fail returns a tw_status and leaves one sentence in a struct tw_error.
 *
 * The sentence names the file, the thing, the fault and, where there is one, the remedy, in lower case and without a
 * full stop: "trace 'a.h5': '/topk/position' has rank 3, expected 4". Only cli/ prints it and turns the status into
 * an exit status.
 */
#ifndef TW_BASE_ERROR_H
#define TW_BASE_ERROR_H

/* The numbers stay: user policies are compiled against them. */
typedef enum tw_status {
    TW_OK = 0,
    TW_E_INPUT = 1,       /* a file or text that cannot be used: exit status 2 */
    TW_E_OPTION = 2,      /* an option or a combination of options that cannot be used: exit status 2 */
    TW_E_UNSUPPORTED = 3, /* sound, but nothing we can do: exit status 2 */
    TW_E_MEMORY = 4,      /* an allocation failed or the accountant's limit was met: exit status 3 */
    TW_E_IO = 5,          /* the system refused to read or write: exit status 3 */
    TW_E_INTERRUPTED = 6, /* SIGINT or SIGTERM was seen: exit status 130 */
    TW_E_DEVICE = 7,      /* an accelerator or its driver failed: exit status 3 */
} tw_status;

/* Zero-initialise: struct tw_error err = {0}. */
struct tw_error {
    char text[1024];
};

/*
 * Writes the sentence and returns `status`. `err` may be NULL: then only the status is returned. A sentence longer
 * than the buffer is cut. Line breaks and other control characters in it (file names may hold any byte) become '?'.
 */
tw_status tw_fail(struct tw_error *err, tw_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts words in front of a sentence that is already there: "while reading 'x': " + text. Returns `status`. */
tw_status tw_fail_prefix(struct tw_error *err, tw_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* return TW_FAIL(err, TW_E_INPUT, "model '%s': ...", path); */
#define TW_FAIL(err, status, ...) tw_fail((err), (status), __VA_ARGS__)

/* Forwards a failure to the caller. For functions that hold nothing that must be released. */
#define TW_TRY(call)                                                                                                   \
    do {                                                                                                               \
        const tw_status tw_try_ = (call);                                                                              \
        if (tw_try_ != TW_OK) return tw_try_;                                                                          \
    } while (0)

/* Stores the result in `status` and jumps to `label` unless it is TW_OK. For functions with one exit. */
#define TW_TRY_GOTO(status, label, call)                                                                               \
    do {                                                                                                               \
        (status) = (call);                                                                                             \
        if ((status) != TW_OK) goto label;                                                                             \
    } while (0)

#endif
