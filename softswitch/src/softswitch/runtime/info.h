/* SPDX-License-Identifier: Apache-2.0
 *
 * The description of a program.
 */
#ifndef SS_INFO_H
#define SS_INFO_H
#include "codec.h"
#include "softswitch.h"

/* Requests; each returns a status and has written the reply's body. */
int ss_do_info(ss_switch *, ss_reader *, ss_writer *);
#endif
