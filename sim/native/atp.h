/* SPDX-License-Identifier: Apache-2.0 */
/* ATP (NSDI 2021): best-effort sums at two switches, the first rack's and the server's, and a parameter server. */
#ifndef SIM_ATP_H
#define SIM_ATP_H
#include "sim.h"

extern const struct fold_rules atp_rules;
#endif
