/* `tidewake info`: looks at what a file is and shows what was understood of it. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/info.h"

void tw_info_row(struct tw_table *table, const char *property, const char *format, ...) {
    struct tw_text value = {0};
    va_list args;
    va_start(args, format);
    tw_text_vprintf(&value, format, args);
    va_end(args);
    table->failed |= !tw_text_ok(&value);
    tw_table_begin_row(table);
    tw_table_put_text(table, property);
    tw_table_put_text(table, tw_text_string(&value));
    tw_text_release(&value);
}

static bool has_ending(const char *path, const char *ending) {
    const size_t n = strlen(path), m = strlen(ending);
    return n > m && strcmp(path + n - m, ending) == 0;
}

int tw_info_is_model(const char *path) {
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        char config[4096];
        const int size = snprintf(config, sizeof config, "%s/config.json", path);
        return size > 0 && (size_t)size < sizeof config && access(config, F_OK) == 0;
    }
    if (has_ending(path, ".gguf") || has_ending(path, ".json") || has_ending(path, ".safetensors")) return true;
    char magic[4];
    FILE *file = fopen(path, "rb");
    const bool gguf = file && fread(magic, 1, 4, file) == 4 && memcmp(magic, "GGUF", 4) == 0;
    if (file) fclose(file);
    return gguf;
}

static tw_status fill(struct tw_table *table, const char *path, struct tw_error *err) {
    if (tw_info_is_model(path)) {
#if TW_ENGINE
        return tw_info_model(table, path, err);
#else
        return TW_FAIL(err, TW_E_UNSUPPORTED, "'%s' is a model, and this program was built without the engine", path);
#endif
    }
    (void)table;
    return TW_FAIL(err, TW_E_INPUT,
                   "'%s' is not a model: expected a GGUF file, a Hugging Face folder or its config.json", path);
}

static tw_status run(struct tw_invocation *invocation, struct tw_error *err) {
    struct tw_table table;
    tw_table_init(&table, (const char *const[]){"property", "value"}, 2);
    tw_status status = fill(&table, invocation->operands[0], err);
    if (status == TW_OK) status = tw_write_table(invocation, invocation->options, &table, err);
    tw_table_release(&table);
    return status;
}

static const struct tw_option_group groups[] = {
    {"Output", tw_table_option_rows, 0},
    {0},
};

const struct tw_command tw_command_info = {
    .name = "info",
    .summary = "what a file is and what was understood of it",
    .usage = "FILE [options]",
    .description = "A model: its architecture, shape, number formats and tokenizer, as Tidewake will use them.",
    .example = "tidewake info data/models/SmolLM2-135M-Instruct.Q4_1.gguf",
    .groups = groups,
    .options_size = sizeof(struct tw_table_options),
    .min_operands = 1,
    .max_operands = 1,
    .run = run,
};
