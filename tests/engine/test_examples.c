/*
 * The examples of every command's --help, as a shell runs them, in a folder where a tiny model stands for MODEL.gguf
 * and the one in data/models. What takes minutes or writes to the system is only parsed, which test_cli.c does for all.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parse.h"
#include "cli/commands.h"
#include "tests/engine/tiny_model.h"
#include "tests/support.h"

static const struct {
    const char *part, *because;
} not_run[] = {
    {"study ", "makes and measures many runs"},
    {"8b.h5", "writes gigabytes"},
    {"/etc/", "writes to the system"},
};

static bool is_run(struct tw_view line) {
    for (size_t i = 0; i < sizeof not_run / sizeof *not_run; i++)
        if (memmem(line.data, line.size, not_run[i].part, strlen(not_run[i].part))) return false;
    return true;
}

static void shell(const char *folder, const char *command) {
    struct tw_test_run run = tw_test_shell(
        "source=$(realpath ${TW_SOURCE:-.}); program=$(realpath $TW_PROGRAM); cd %s && %s", folder, command);
    ck_assert_msg(run.exit_status == 0, "%s: status %d\n%s", command, run.exit_status, tw_text_string(&run.err));
    tw_test_run_release(&run);
}

/* The files that examples name. */
static const char *make_folder(void) {
    static const char template[] =
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
        "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    const char *const folder = tw_test_folder();
    struct tw_gguf_writer writer = {0};
    tw_tiny_write_gguf(&writer,
                       &(struct tw_tiny){.n_layers = 1, .n_heads = 2, .n_kv_heads = 1, .context_length = 16384});
    tw_gguf_put_string(&writer, "tokenizer.chat_template", template);
    tw_gguf_write(tw_test_path(folder, "MODEL.gguf"), &writer);
    shell(folder,
          "mkdir -p bin data/models runs wakekv_logs && ln -s $program bin/tidewake && ln -s $source/tests tests && "
          "ln -s $source/data/configs $source/data/published data/ && ln -s MODEL.gguf model.gguf && "
          "cp MODEL.gguf data/models/SmolLM2-135M-Instruct.Q4_1.gguf && "
          "cp tests/golden/engine/models/llama_tied/hf/tokenizer.json . && "
          "echo 'The tide comes in, and it goes out again.' > book.txt && cp book.txt prompts.txt && "
          "cp tests/golden/replay/k16.h5 runs/ && "
          "bin/tidewake convert tests/golden/replay/plain.h5 wakekv_logs/run3");
    return folder;
}

START_TEST(examples_run) {
    const char *const folder = make_folder();
    for (const struct tw_command *const *c = tw_command_table; *c; c++) {
        struct tw_view line, rest = tw_view_of((*c)->example);
        while (tw_parse_next(&line, &rest, '\n')) {
            if (!is_run(line)) continue;
            char command[1024];
            snprintf(command, sizeof command, "PATH=$PWD/bin:$PATH && %.*s", (int)line.size, line.data);
            shell(folder, command);
        }
    }
}
END_TEST

Suite *tw_suite_examples(void);
Suite *tw_suite_examples(void) {
    Suite *suite = suite_create("examples");
    TCase *c = tcase_create("examples");
    tcase_set_timeout(c, 600);
    tcase_add_test(c, examples_run);
    suite_add_tcase(suite, c);
    return suite;
}
