/* SPDX-License-Identifier: Apache-2.0
 *
 * The control protocol: what ss_control() understands, in process and over a socket alike.
 *
 * All integers little endian, packed.  A request batch is a run of
 *     u32 size | u16 op | body                 size counts op and body
 * and each gets one reply, in order:
 *     u32 size | u16 status | body             body is the result, or UTF-8 text saying what was wrong
 * One failed request does not stop the others.  Objects are named by their index in ss_program (OP_INFO lists them with
 * p4info ids and names).  Keys, masks and parameters are in softswitch.h's byte form:
 *     key[K]   value of every key field, or the low end of a range
 *     mask[K]  exact: all ones; lpm: prefix mask; ternary: mask; optional: all ones or zero; range: the high end
 * K is the sum of the key fields' bytes.  An entry is identified by (key, mask, priority); larger priority wins.
 *
 * Reads are paged so that no request stalls the packets for long: a read takes a cursor (0 at first) and gives the next
 * one (0: that was all).  Writes between pages may hide or repeat entries; nothing else breaks.
 */
#ifndef SS_PROTOCOL_H
#define SS_PROTOCOL_H

enum { /* status: the gRPC codes that P4Runtime uses */
       SS_OK = 0,
       SS_INVALID_ARGUMENT = 3,
       SS_NOT_FOUND = 5,
       SS_ALREADY_EXISTS = 6,
       SS_PERMISSION_DENIED = 7,
       SS_RESOURCE_EXHAUSTED = 8,
       SS_FAILED_PRECONDITION = 9,
       SS_OUT_OF_RANGE = 11,
       SS_UNIMPLEMENTED = 12,
       SS_INTERNAL = 13,
};

enum { SS_INSERT = 0, SS_MODIFY = 1, SS_DELETE = 2 };         /* u8 what */
enum { SS_ONE_SLOT = 2 };                                     /* u8 one of OP_TABLE_READ */
enum { SS_DO_ACTION = 0, SS_DO_MEMBER = 1, SS_DO_GROUP = 2 }; /* u8 kind of an entry's action */

enum {
    /* -> program description, see info.c */
    OP_INFO = 1,
    /* -> ; everything as after ss_open, but for the parameters of custom CRCs (OP_CRC_WRITE), which stay as in BMv2 */
    OP_RESET = 2,
    /* -> u64 * (ss_stats fields, in order) */
    OP_STATS = 3,
    /* frame... -> ; as ss_receive from cpu_port */
    OP_PACKET_OUT = 4,

    /* u8 what, u32 table, i32 priority, key, mask | insert, modify: u64 cookie, u64 idle_timeout_ns, u8 kind,
     *     u32 action (index) or member or group, params...
     * -> u64 handle */
    OP_TABLE_WRITE = 10,
    /* u32 table, u64 cursor, u8 one | one == 1: i32 priority, key, mask
     *     (SS_ONE_SLOT: the entry whose handle has `cursor` as its lower half)
     * -> u64 next, u32 n, n * entry
     * entry: u64 handle, i32 priority, u8 kind, u32 action, u32 n_params, key, mask, params, u64 cookie, u64
     *        idle_timeout_ns, u64 since_hit_us, u64 packets, u64 bytes, meter
     * meter: u8 set, u64 cir, u64 cburst, u64 pir, u64 pburst (bursts in units; rates per second where set is 1, per
     *        10^6 seconds where it is 2) */
    OP_TABLE_READ = 11,
    /* u32 table, u8 set | set != 0: u32 action, params...    (set == 0: back to the program's) */
    OP_DEFAULT_WRITE = 12,
    /* u32 table -> u32 action, u64 packets, u64 bytes, meter, params... */
    OP_DEFAULT_READ = 13,
    /* u32 table */
    OP_TABLE_CLEAR = 14,
    /* u32 table, u8 default | default == 0: i32 priority, key, mask || u64 packets, u64 bytes */
    OP_DIRECT_COUNTER = 15,
    /* u32 table, u8 default | default == 0: i32 priority, key, mask || meter (set == 0: unmetered) */
    OP_DIRECT_METER = 16,

    /* u8 what, u32 profile, u32 member | insert, modify: u32 table, u32 action (index there), params */
    OP_MEMBER_WRITE = 20,
    /* u32 profile, u64 cursor, u8 one, u32 member
     * -> u64 next, u32 n, n * (u32 member, u32 action_id (p4info), u32 n_params, params) */
    OP_MEMBER_READ = 21,
    /* u8 what, u32 profile, u32 group | insert, modify: u32 max_size, u32 n, n * (u32 member, u32 weight) */
    OP_GROUP_WRITE = 22,
    /* as OP_MEMBER_READ -> u64 next, u32 n, n * (u32 group, u32 max_size, u32 m, m * (u32, u32)) */
    OP_GROUP_READ = 23,

    /* u32 counter, u64 first, u32 n -> n * (u64 packets, u64 bytes)       n <= 1024 */
    OP_COUNTER_READ = 30,
    /* u32 counter, u64 first, u32 n, n * (u64 packets, u64 bytes) */
    OP_COUNTER_WRITE = 31,
    /* u32 meter, u64 first, u32 n -> n * meter                            n <= 1024 */
    OP_METER_READ = 32,
    /* u32 meter, u64 first, u32 n, n * meter */
    OP_METER_WRITE = 33,
    /* u32 register, u64 first, u32 n -> n * ceil(bits/8) bytes, big endian;  fits a reply */
    OP_REGISTER_READ = 34,
    /* u32 register, u64 first, u32 n, n * ceil(bits/8) bytes */
    OP_REGISTER_WRITE = 35,
    /* u32 register */
    OP_REGISTER_RESET = 36,

    /* u8 what, u32 group | insert, modify: u32 n, n * (u32 port, u32 instance) */
    OP_MULTICAST_WRITE = 40,
    /* u64 cursor, u8 one, u32 group -> u64 next, u32 n, n * (u32 group, u32 m, m * (port, instance)) */
    OP_MULTICAST_READ = 41,
    /* u8 what, u32 session | insert, modify: u32 truncate_to (0: whole), u32 group (0: none; a multicast group
     *     to follow), u32 n, n * (u32 port, u32 instance) */
    OP_CLONE_WRITE = 42,
    /* as OP_MULTICAST_READ -> ... n * (u32 session, u32 truncate_to, u32 group, u32 m, m * (...)) */
    OP_CLONE_READ = 43,
    /* u32 value_set, u32 n, n * (key, mask): replaces all members */
    OP_VALUE_SET_WRITE = 44,
    /* u32 value_set, u64 cursor -> u64 next, u32 n, n * (key, mask) */
    OP_VALUE_SET_READ = 45,
    /* u32 number, u8 bits (16 or 32), u32 polynomial, u32 initial, u32 final_xor, u8 flags (1: data, 2: remainder
     *     reflected): the parameters of a custom CRC */
    OP_CRC_WRITE = 46,
};

/* Over a socket (SOCK_STREAM) both sides send messages
 *     u32 size | u8 type | payload             size counts type and payload, at most SS_MESSAGE_MAX
 * REQUEST and REPLY carry u32 tag (chosen by the client, returned as is) and then a batch as above. */
#define SS_MESSAGE_MAX (1u << 20)
enum {
    SS_MSG_REQUEST = 1, /* to the switch: u32 tag, request batch */
    SS_MSG_REPLY = 2,   /* from the switch: u32 tag, reply batch */
    SS_MSG_EVENT = 3,   /* from the switch: u8 ss_event_kind, u32 id, u64 now_us, data... */
};
#endif
