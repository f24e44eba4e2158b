#include "engine/backend/cpu/team.h"

#include <string.h>

#define SLACK         0.004 /* seconds by which the time passed may exceed the work: one time slice */
#define PROOF         0.05  /* seconds of work after which all together have shown to be quicker */
#define PATIENCE      0.02  /* seconds alone before all are tried again: some time slices of the system */
#define MOST_PATIENCE 0.64  /* and at most, when they were slower again and again */

void tw_cpu_team_init(struct tw_cpu_team *team, size_t n_threads) {
    memset(team, 0, sizeof *team);
    team->n_threads = n_threads;
    team->patience = PATIENCE;
}

size_t tw_cpu_team_threads(const struct tw_cpu_team *team) { return team->single ? 1 : team->n_threads; }

static void judge_from_now(struct tw_cpu_team *team) { team->passed = team->work = 0; }

void tw_cpu_team_took(struct tw_cpu_team *team, double passed, double work) {
    if (team->n_threads == 1) return;
    if (team->single) {
        team->left -= passed;
        if (team->left > 0) return;
        team->single = team->proven = false;
        judge_from_now(team);
        return;
    }
    team->passed += passed;
    team->work += work;
    if (team->passed > team->work + SLACK) {
        if (team->proven)
            team->patience = PATIENCE;
        else if (team->patience < MOST_PATIENCE)
            team->patience *= 2;
        team->single = true;
        team->left = team->patience;
    } else if (team->work > PROOF) {
        team->proven = true;
        judge_from_now(team);
    }
}
