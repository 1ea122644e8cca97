/* SPDX-License-Identifier: Apache-2.0
 *
 * The packet replication engine: multicast groups and clone sessions.
 */
#ifndef SS_PRE_H
#define SS_PRE_H
#include "codec.h"
#include "softswitch.h"

typedef struct {
    uint32_t port, instance;
} ss_replica;
typedef struct {
    uint32_t id, n;
    ss_replica *replicas;
} ss_multicast;
typedef struct {
    uint32_t id, truncate_to, group, n;
    ss_replica *replicas;
} ss_clone;
void ss_pre_reset(ss_switch *);

/* Requests; each returns a status and has written the reply's body. */
int ss_do_multicast_write(ss_switch *, ss_reader *, ss_writer *);
int ss_do_multicast_read(ss_switch *, ss_reader *, ss_writer *);
int ss_do_clone_write(ss_switch *, ss_reader *, ss_writer *);
int ss_do_clone_read(ss_switch *, ss_reader *, ss_writer *);
#endif
