/* What making traces and scoring answers share: a model of a study, opened for its runs. */
#ifndef TW_CLI_ENGINE_STUDY_ENGINE_H
#define TW_CLI_ENGINE_STUDY_ENGINE_H

#include "base/text.h"
#include "cli/engine/engine_options.h"
#include "cli/engine/tracing.h"
#include "cli/study/study.h"

/* A model whose runs are being made. The engine is opened when the first run that is not there yet asks for it. */
struct tw_study_model_runs {
    struct tw_study *study;
    const struct tw_study_section *section; /* [model NAME] */
    const struct tw_engine_settings *settings;
    struct tw_engine_settings defaults; /* where the study has no [engine] */
    struct tw_tracing tracing; /* engine empty until opened; model and tokenizer are there from the beginning */
};

/* Opens the model and its tokenizer; release also after a failure. */
tw_status tw_study_model_open(struct tw_study_model_runs *m, struct tw_study *study,
                              const struct tw_study_section *section, struct tw_error *err);
void tw_study_model_release(struct tw_study_model_runs *m);

/* "model PATH (N bytes)": what stands for the model where runs are told apart by what they were made with. */
void tw_study_describe_model(struct tw_text *text, const struct tw_study_model_runs *m);

#endif
