/* `tidewake info`: looks at what a file is and shows what was understood of it. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/info.h"
#include "traces/attributes.h"

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

/* The attributes as they are named in the file, what data there is, and its size. */
static tw_status fill_trace(struct tw_table *table, const char *path, struct tw_error *err) {
    struct tw_trace *trace;
    TW_TRY(tw_trace_open(&trace, path, err));
    const struct tw_trace_info *const info = tw_trace_info(trace);
    for (const struct tw_attribute_row *row = tw_attribute_rows; row->name; row++) {
        if (!tw_attribute_present(row, info)) continue;
        const void *const field = (const char *)info + row->offset;
        if (row->kind == TW_KIND_TEXT)
            tw_info_row(table, row->name, "%s", *(char *const *)field);
        else
            tw_info_row(table, row->name, "%" PRIu64, tw_attribute_number(row, info));
    }
    for (size_t i = 0; i < info->n_extra; i++) {
        const struct tw_trace_attribute *const extra = &info->extra[i];
        switch (extra->type) {
        case TW_ATTRIBUTE_TEXT: tw_info_row(table, extra->name, "%s", extra->text); break;
        case TW_ATTRIBUTE_INTEGER: tw_info_row(table, extra->name, "%" PRId64, extra->integer); break;
        case TW_ATTRIBUTE_REAL: tw_info_row(table, extra->name, "%.17g", extra->real); break;
        }
    }
    struct tw_text datasets = {0};
    for (int which = 0; which < TW_TRACE_N_DATASETS; which++)
        if (tw_trace_has(trace, (enum tw_trace_dataset)which))
            tw_text_printf(&datasets, "%s%s", datasets.size ? " " : "",
                           tw_trace_dataset_path((enum tw_trace_dataset)which));
    tw_info_row(table, "datasets", "%s", tw_text_string(&datasets));
    tw_text_release(&datasets);
    struct stat st;
    if (stat(path, &st) == 0) tw_info_row(table, "bytes", "%lld", (long long)st.st_size);
    tw_trace_free(trace);
    return TW_OK;
}

static tw_status fill(struct tw_table *table, const char *path, struct tw_error *err) {
    if (tw_info_is_model(path)) {
#if TW_ENGINE
        return tw_info_model(table, path, err);
#else
        return TW_FAIL(err, TW_E_UNSUPPORTED, "'%s' is a model, and this program was built without the engine", path);
#endif
    }
    return fill_trace(table, path, err);
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
    .description =
        "A model: its architecture, shape, number formats and tokenizer, as Tidewake will use them. A trace: its\n"
        "attributes and what data it holds.",
    .example = "tidewake info data/models/SmolLM2-135M-Instruct.Q4_1.gguf\n"
               "tidewake info run.h5",
    .groups = groups,
    .options_size = sizeof(struct tw_table_options),
    .min_operands = 1,
    .max_operands = 1,
    .run = run,
};
