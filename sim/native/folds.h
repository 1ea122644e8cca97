/* SPDX-License-Identifier: Apache-2.0 */
/* NetFold's folds: what ranks send over aggregation trees, and the slots of switches.
 *
 * A rank's windows, repeats, questions and timers are those of the host library, whose stream.c and congestion.c are
 * compiled in; what switches do is verdict.c. */
#ifndef SIM_FOLDS_H
#define SIM_FOLDS_H
#include "sim.h"

extern const struct fold_rules netfold_rules;
#endif
