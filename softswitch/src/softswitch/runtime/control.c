/* SPDX-License-Identifier: Apache-2.0
 *
 * The control protocol's outside: requests out of a batch, to whom they belong, replies back into one.
 */
#include "codec.h"
#include "entries.h"
#include "hash.h"
#include "info.h"
#include "internal.h"
#include "pre.h"
#include "profiles.h"
#include "state.h"
#include "value_sets.h"

static int do_stats(ss_switch *sw, ss_reader *r, ss_writer *w) {
    (void)r;
    put_bytes(w, &sw->stats, sizeof sw->stats);
    return SS_OK;
}

static int do_packet_out(ss_switch *sw, ss_reader *r, ss_writer *w) {
    size_t n = get_left(r);
    if (sw->options.cpu_port == SS_NO_PORT) return refuse(w, SS_FAILED_PRECONDITION, "the switch has no CPU port");
    if (n > SS_MAX_FRAME) return refuse(w, SS_INVALID_ARGUMENT, "frame of %zu bytes is above %u", n, SS_MAX_FRAME);
    ss_arrival in = {.bytes = get_bytes(r, n), .len = (uint32_t)n, .sum = SS_NO_SUM};
    ss_receive(sw, sw->options.cpu_port, &in, sw->now_us);
    return SS_OK;
}

static int do_reset(ss_switch *sw, ss_reader *r, ss_writer *w) {
    (void)r;
    ss_profiles_reset(sw);
    ss_state_reset(sw);
    ss_pre_reset(sw);
    ss_value_sets_reset(sw);
    ss_prng_seed(&sw->prng, sw->options.seed);
    memset(&sw->stats, 0, sizeof sw->stats);
    sw->idle_wanted = false;
    return ss_entries_const(sw) ? SS_OK : refuse(w, SS_INTERNAL, "out of memory for the program's const entries");
}

static int dispatch(ss_switch *sw, uint16_t op, ss_reader *r, ss_writer *w) {
    switch (op) {
    case OP_INFO: return ss_do_info(sw, r, w);
    case OP_RESET: return do_reset(sw, r, w);
    case OP_STATS: return do_stats(sw, r, w);
    case OP_PACKET_OUT: return do_packet_out(sw, r, w);
    case OP_TABLE_WRITE: return ss_do_table_write(sw, r, w);
    case OP_TABLE_READ: return ss_do_table_read(sw, r, w);
    case OP_DEFAULT_WRITE: return ss_do_default_write(sw, r, w);
    case OP_DEFAULT_READ: return ss_do_default_read(sw, r, w);
    case OP_TABLE_CLEAR: return ss_do_table_clear(sw, r, w);
    case OP_DIRECT_COUNTER: return ss_do_direct_counter(sw, r, w);
    case OP_DIRECT_METER: return ss_do_direct_meter(sw, r, w);
    case OP_MEMBER_WRITE: return ss_do_member_write(sw, r, w);
    case OP_MEMBER_READ: return ss_do_member_read(sw, r, w);
    case OP_GROUP_WRITE: return ss_do_group_write(sw, r, w);
    case OP_GROUP_READ: return ss_do_group_read(sw, r, w);
    case OP_COUNTER_READ: return ss_do_counter_read(sw, r, w);
    case OP_COUNTER_WRITE: return ss_do_counter_write(sw, r, w);
    case OP_METER_READ: return ss_do_meter_read(sw, r, w);
    case OP_METER_WRITE: return ss_do_meter_write(sw, r, w);
    case OP_REGISTER_READ: return ss_do_register_read(sw, r, w);
    case OP_REGISTER_WRITE: return ss_do_register_write(sw, r, w);
    case OP_REGISTER_RESET: return ss_do_register_reset(sw, r, w);
    case OP_MULTICAST_WRITE: return ss_do_multicast_write(sw, r, w);
    case OP_MULTICAST_READ: return ss_do_multicast_read(sw, r, w);
    case OP_CLONE_WRITE: return ss_do_clone_write(sw, r, w);
    case OP_CLONE_READ: return ss_do_clone_read(sw, r, w);
    case OP_VALUE_SET_WRITE: return ss_do_value_set_write(sw, r, w);
    case OP_VALUE_SET_READ: return ss_do_value_set_read(sw, r, w);
    case OP_CRC_WRITE: return ss_do_crc_write(sw, r, w);
    default: return refuse(w, SS_UNIMPLEMENTED, "unknown request %u", op);
    }
}

#define SS_REPLY_HEAD 6u
#define SS_REFUSAL_ROOM 544u /* a head and the longest text of refuse() */

size_t ss_control(ss_switch *sw, uint64_t now_us, const uint8_t *req, size_t n, uint8_t *reply, size_t cap) {
    sw->now_us = now_us;
    ss_reader batch = {req, req + n, false};
    uint8_t *at = reply, *end = reply + cap;
    while (get_left(&batch)) {
        uint32_t size = get_u32(&batch);
        bool cut = batch.bad || size < 2 || size > get_left(&batch);
        ss_reader r = {batch.at, batch.at + (cut ? 0 : size), cut};
        if ((size_t)(end - at) < SS_REFUSAL_ROOM) break; /* the client sees fewer replies than requests */
        ss_writer w = {at + SS_REPLY_HEAD, end, false};
        int status = cut ? refuse_short(&w) : dispatch(sw, get_u16(&r), &r, &w);
        if (w.full) {
            w = (ss_writer){at + SS_REPLY_HEAD, end, false};
            status = refuse(&w, SS_RESOURCE_EXHAUSTED, "the reply does not fit");
        }
        uint32_t length = (uint32_t)(w.at - at) - 4;
        uint16_t code = (uint16_t)status;
        memcpy(at, &length, 4);
        memcpy(at + 4, &code, 2);
        at = w.at;
        if (cut) break;
        batch.at += size;
    }
    return (size_t)(at - reply);
}
