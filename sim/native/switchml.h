/* SPDX-License-Identifier: Apache-2.0 */
/* SwitchML (NSDI 2021): algorithm 3 at switches, algorithm 4 at workers, and its trees of switches beyond a rack. */
#ifndef SIM_SWITCHML_H
#define SIM_SWITCHML_H
#include "sim.h"

extern const struct fold_rules switchml_rules;
#endif
