/* A program without the engine: a study of traces that are there. */
#include "cli/study/study.h"

#if !TW_ENGINE

const struct tw_option *const tw_study_engine_options = NULL;
const size_t tw_study_engine_options_size = 0;

tw_status tw_study_make_traces(struct tw_study *study, struct tw_error *err) {
    if (!tw_study_next(study->settings, "model", NULL)) return TW_OK;
    return TW_FAIL(err, TW_E_UNSUPPORTED,
                   "the study has a [model], and this program was built without the engine; give it [traces]");
}

tw_status tw_study_measure_quality(struct tw_study *study, struct tw_error *err) {
    if (!tw_study_values(study->settings, "quality")) return TW_OK;
    return TW_FAIL(err, TW_E_UNSUPPORTED,
                   "the study has a section [quality], and this program was built without the engine");
}

#endif
