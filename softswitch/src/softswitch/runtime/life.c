/* SPDX-License-Identifier: Apache-2.0
 *
 * A switch from ss_open to ss_close, and what its program reports meanwhile.
 */
#include "entries.h"
#include "hash.h"
#include "pre.h"
#include "profiles.h"
#include "state.h"
#include "tables.h"
#include "trace.h"
#include "turn.h"
#include "value_sets.h"

void ss_digest(ss_switch *sw, uint32_t digest, const uint8_t *bytes, uint32_t n) {
    sw->stats.digests++;
    ss_report(sw, SS_EVENT_DIGEST, digest, bytes, n);
}

void ss_log(ss_switch *sw, const char *text) {
    TRACE(ss_trace_text(sw, 0, text);)
    ss_report(sw, SS_EVENT_LOG, 0, text, (uint32_t)strlen(text));
}

void ss_assert_failed(ss_switch *sw, const char *where) {
    sw->stats.asserts_failed++;
    ss_log(sw, where);
}

ss_switch *ss_open(const ss_program *program, const ss_options *options, const char **why) {
    if (program->abi != SS_ABI) {
        *why = "the program was compiled for another version of the runtime";
        return NULL;
    }
    if (options->cpu_port > SS_DROP_PORT && options->cpu_port != SS_NO_PORT) {
        *why = "cpu_port is above 511";
        return NULL;
    }
    if (!options->reserve || !options->commit) {
        *why = "options lack reserve or commit";
        return NULL;
    }
    *why = "out of memory, or a table or register is too large";
    ss_switch *sw = calloc(1, sizeof *sw);
    if (!sw) return NULL;
    sw->program = program;
    sw->options = *options;
    sw->state = aligned_alloc(64, ss_state_bytes(sw));
    sw->scratch = malloc(SS_MAX_FRAME + SS_MAX_ADDED);
    ss_prng_seed(&sw->prng, options->seed);
    if (!sw->state || !sw->scratch || !ss_tables_open(sw) || !ss_profiles_open(sw) || !ss_state_open(sw) ||
        !ss_value_sets_open(sw) || !ss_entries_const(sw)) {
        ss_close(sw);
        return NULL;
    }
    *why = NULL;
    return sw;
}

void ss_close(ss_switch *sw) {
    if (!sw) return;
    ss_tables_close(sw);
    ss_profiles_close(sw);
    ss_state_close(sw);
    ss_pre_reset(sw);
    ss_value_sets_close(sw);
    ss_turn_close(sw);
    for (uint32_t i = 0; i <= SS_MAX_CRCS; i++) free(sw->crcs[i]);
    while (sw->n_spare) free(sw->spare[--sw->n_spare]);
    TRACE(ss_trace_close(sw);)
    free(sw->spare), free(sw->work), free(sw->state), free(sw->scratch), free(sw);
}

const ss_stats *ss_get_stats(const ss_switch *sw) { return &sw->stats; }
