/* SPDX-License-Identifier: Apache-2.0
 *
 * Registers, counters and meters.
 */
#ifndef SS_STATE_H
#define SS_STATE_H
#include "codec.h"
#include "rules.h"

typedef struct ss_register_array {
    void *memory;
    uint8_t *cells;
} ss_register_array;
bool ss_state_open(ss_switch *);
void ss_state_close(ss_switch *);
void ss_state_reset(ss_switch *);
uint32_t ss_meter_run(ss_meter_cell *, uint64_t now_us, uint64_t units);
void ss_meter_configure(ss_meter_cell *, const ss_meter_cell *config, uint64_t now_us);
ss_meter_cell ss_get_meter(ss_reader *);
void ss_put_meter(ss_writer *, const ss_meter_cell *);

/* Requests; each returns a status and has written the reply's body. */
int ss_do_counter_read(ss_switch *, ss_reader *, ss_writer *);
int ss_do_counter_write(ss_switch *, ss_reader *, ss_writer *);
int ss_do_meter_read(ss_switch *, ss_reader *, ss_writer *);
int ss_do_meter_write(ss_switch *, ss_reader *, ss_writer *);
int ss_do_register_read(ss_switch *, ss_reader *, ss_writer *);
int ss_do_register_write(ss_switch *, ss_reader *, ss_writer *);
int ss_do_register_reset(ss_switch *, ss_reader *, ss_writer *);
#endif
