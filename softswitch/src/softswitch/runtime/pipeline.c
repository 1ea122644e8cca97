/* SPDX-License-Identifier: Apache-2.0
 *
 * The v1model pipeline, as BMv2's simple_switch runs it:
 *
 *   parse, verify checksum, ingress
 *      clone asked           -> copies of the frame as it came, parsed anew, metadata of the field list
 *      resubmit asked        -> again from the start; else
 *      mcast_grp != 0        -> one copy a replica; else
 *      egress_spec == 511    -> dropped; else egress_spec
 *   egress, for each copy
 *      clone asked           -> copies as they are now, through egress again
 *      egress_spec == 511    -> dropped; else
 *      compute checksum, deparse
 *      recirculate asked     -> the deparsed frame again from the start; else out
 *
 * Where BMv2 surprises, we do what it does: metadata of clones, resubmitted and recirculated packets starts at zero,
 * their ingress_port and timestamps too; truncate() in ingress does not reach multicast copies and recirculated
 * frames; counters and meters see the length of the frame that came in.  One thing BMv2 does only when told so
 * (--priority-queues 8): it takes every value of standard_metadata.priority; the queues are the I/O layer's, and have
 * no priorities.
 *
 * The packet at hand runs through directly; egress clones, resubmitted and recirculated ones wait in sw->work until
 * it is done.  One received frame causes at most SS_MAX_PASSES such passes, fewer where they take much memory, so that
 * a program that circulates packets for ever cannot stop the switch.
 */
#include "internal.h"
#include "outgoing.h"
#include "pre.h"
#include "sums.h"
#include "trace.h"
#include "turn.h"

#define SS_MAX_PASSES 4096u
#define SS_MASK48 0xffffffffffffull

typedef struct {
    const uint8_t *bytes;
    uint32_t len;
} frame_ref;

typedef struct ss_work { /* a packet that waits for its turn within one ss_receive */
    bool egress;         /* else ingress: resubmitted or recirculated */
    void *state;         /* initialised; ingress: kept metadata */
    const uint8_t *frame;
    uint32_t frame_len;
    uint32_t port, instance; /* egress port and egress_rid */
    uint32_t length;         /* BMv2's PACKET_LENGTH register */
    uint32_t counted;        /* BMv2's ingress length: what counters and meters see */
    TRACE(uint32_t parent;)  /* the pass that made this one */
} ss_work;

/* ---- states and waiting packets ---------------------------------------------------------------------------------- */

static void *take_state(ss_switch *sw) {
    if (sw->n_spare) return sw->spare[--sw->n_spare];
    if (sw->n_spare == sw->cap_spare) { /* room to give it back is made now, so that give_state cannot fail */
        uint32_t cap = sw->cap_spare + 16;
        void **spare = realloc(sw->spare, cap * sizeof *spare);
        if (!spare) return NULL;
        sw->spare = spare;
        sw->cap_spare = cap;
    }
    return aligned_alloc(64, ss_state_bytes(sw));
}

/* For one of many copies, each of which takes memory of the turn: a group may have tens of thousands in one pass. */
static void *take_state_of_copy(ss_switch *sw) { return ss_turn_full(sw) ? NULL : take_state(sw); }

static void give_state(ss_switch *sw, void *state) {
    if (sw->n_spare < sw->cap_spare)
        sw->spare[sw->n_spare++] = state;
    else
        free(state);
}

/* Standard metadata of a new packet. */
static ss_packet *blank(void *state) {
    ss_packet *p = memset(state, 0, sizeof(ss_packet));
    p->truncate_to = SS_WHOLE;
    return p;
}

/* A fresh packet: headers invalid, all metadata zero. */
static ss_packet *fresh(ss_switch *sw, void *state) {
    ss_packet *p = blank(state);
    sw->program->init(state);
    return p;
}

static bool wait(ss_switch *sw, ss_work work) {
    if (sw->work_tail == sw->work_cap) {
        if (sw->work_head) {
            memmove(sw->work, sw->work + sw->work_head, (sw->work_tail - sw->work_head) * sizeof *sw->work);
            sw->work_tail -= sw->work_head;
            sw->work_head = 0;
        } else {
            uint32_t cap = sw->work_cap ? 2 * sw->work_cap : 16;
            ss_work *grown = cap <= SS_MAX_PASSES ? realloc(sw->work, cap * sizeof *grown) : NULL;
            if (!grown) return false;
            sw->work = grown;
            sw->work_cap = cap;
        }
    }
    sw->work[sw->work_tail++] = work;
    return true;
}

static void lose(ss_switch *sw, void *state) {
    TRACE(NUMBERS(sw, SS_REC_DROP, SS_DROP_PASSES, 0);)
    if (sw->stats.dropped_passes++ == 0) {
        static const char text[] =
            "a frame went round too often, or in too much memory: its copies are dropped (stats: dropped_passes)";
        ss_report(sw, SS_EVENT_LOG, 0, text, sizeof text - 1);
    }
    if (state) give_state(sw, state);
}

#ifdef SS_TRACE
static void trace_clone(ss_switch *sw, uint32_t id, const ss_clone *session, bool egress) {
    NUMBERS(sw, SS_REC_CLONE, id, session != NULL, egress, session ? session->group : 0, session ? session->n : 0);
}
#endif

/* ---- out --------------------------------------------------------------------------------------------------------- */

static void to_controller(ss_switch *sw, void *state, uint32_t cap) {
    uint32_t len = ss_build_whole(sw, state, sw->scratch, cap, true);
    if (!len) return;
    sw->stats.packet_ins++;
    TRACE(ss_trace_frame(sw, SS_REC_PACKET_IN, sw->ingress_port, sw->scratch, len);)
    ss_report(sw, SS_EVENT_PACKET_IN, sw->ingress_port, sw->scratch, len);
}

static void recirculate(ss_switch *sw, void *state, uint32_t cap) {
    ss_packet *old = state;
    void *next = take_state_of_copy(sw);
    if (!next) {
        lose(sw, NULL);
        return;
    }
    uint8_t *frame = ss_take(sw, cap);
    uint32_t len = ss_build_whole(sw, state, frame, cap, false);
    if (!len) {
        give_state(sw, next);
        return;
    }
    ss_packet *p = fresh(sw, next);
    if (old->recirculate_list != SS_NO_LIST) sw->program->keep_fields(next, state, old->recirculate_list);
    p->instance_type = SS_RECIRC;
    p->packet_length = len;
    ss_work work = {.state = next, .frame = frame, .frame_len = len, .length = len, .counted = len};
    TRACE(work.parent = sw->trace.pass; NUMBERS(sw, SS_REC_RECIRCULATE, old->recirculate_list, len);)
    if (!wait(sw, work)) lose(sw, next);
}

/* Sends copies of `state`, which are `length` long at the start of egress, to all that a clone session names. */
static void clone_to(ss_switch *sw, const ss_clone *session, void *state, frame_ref frame, uint32_t length, bool now);

/* One packet through egress and out; `state` may be changed. */
static void egress(ss_switch *sw, void *state, uint32_t port, uint32_t instance, frame_ref frame, uint32_t length) {
    const ss_program *program = sw->program;
    ss_packet *p = state;
    uint32_t depth = sw->options.depth ? sw->options.depth(sw->options.io, port) : 0;
    p->egress_port = port;
    p->egress_rid = instance;
    p->egress_spec = 0;
    p->packet_length = length;
    p->enq_timestamp = sw->now_us & 0xffffffffu;
    p->enq_qdepth = p->deq_qdepth = depth & 0x7ffff;
    p->deq_timedelta = 0;
    p->egress_global_timestamp = sw->now_us & SS_MASK48;
    p->clone_asked = p->exited = false;
    p->length_change = 0;
    TRACE(PASS(sw, SS_PASS_EGRESS, p, sw->trace.pass ? sw->trace.pass : sw->trace.parent, port, instance, length);)
    program->egress(sw, state);
    if (unlikely(p->clone_asked)) {
        const ss_clone *session = ss_idmap_get(&sw->clones, p->clone_session);
        void *copy = session ? take_state(sw) : NULL;
        TRACE(trace_clone(sw, p->clone_session, session, true);)
        if (copy) {
            memcpy(copy, state, program->state_size);
            ss_packet *c = blank(copy);
            c->payload = p->payload;
            c->payload_len = p->payload_len;
            c->frame = p->frame;
            c->stable = p->stable;
            c->instance_type = SS_EGRESS_CLONE;
            if (session->truncate_to) c->truncate_to = session->truncate_to;
            program->reset_metadata(copy);
            if (p->clone_list != SS_NO_LIST) program->keep_fields(copy, state, p->clone_list);
            clone_to(sw, session, copy, frame, (uint32_t)((int64_t)length + p->length_change), false);
            give_state(sw, copy);
        }
        p->clone_asked = false;
    }
    if (p->egress_spec == SS_DROP_PORT) {
        sw->stats.dropped_egress++;
        TRACE(NUMBERS(sw, SS_REC_DROP, SS_DROP_EGRESS, port);)
        return;
    }
    p->exited = false;
    program->compute_checksum(sw, state);
    uint32_t cap = frame.len + SS_MAX_ADDED;
    if (unlikely(p->recirculate_asked)) {
        recirculate(sw, state, cap);
        return;
    }
    if (unlikely(port == sw->options.cpu_port)) {
        to_controller(sw, state, cap);
        return;
    }
    uint8_t *out = sw->options.reserve(sw->options.io, port, cap);
    if (unlikely(!out)) {
        sw->stats.dropped_queue++;
        TRACE(ss_trace_refused(sw, port);)
        return;
    }
    ss_outgoing made;
    uint32_t len = ss_build(sw, state, out, cap, true, &made);
    TRACE(if (len) ss_trace_parts(sw, SS_REC_OUT, port, out, &made.parts);)
    sw->options.commit(sw->options.io, port, &made);
    sw->stats.sent += len != 0;
    sw->stats.sent_bytes += len;
}

/* A copy through egress, now or when the packet at hand is done. */
static void copy_out(ss_switch *sw, const void *state, ss_replica to, frame_ref frame, uint32_t length, bool now) {
    void *copy = take_state_of_copy(sw);
    if (!copy) {
        lose(sw, NULL);
        return;
    }
    memcpy(copy, state, sw->program->state_size);
    if (now) {
        egress(sw, copy, to.port, to.instance, frame, length);
        give_state(sw, copy);
        return;
    }
    ss_work work = {.egress = true,
                    .state = copy,
                    .frame = frame.bytes,
                    .frame_len = frame.len,
                    .port = to.port,
                    .instance = to.instance,
                    .length = length,
                    .counted = sw->counted};
    TRACE(work.parent = sw->trace.pass;)
    if (!wait(sw, work)) lose(sw, copy);
}

static void clone_to(ss_switch *sw, const ss_clone *session, void *state, frame_ref frame, uint32_t length, bool now) {
    const ss_multicast *group = session->group ? ss_idmap_get(&sw->multicasts, session->group) : NULL;
    for (uint32_t i = 0; group && i < group->n; i++) copy_out(sw, state, group->replicas[i], frame, length, now);
    for (uint32_t i = 0; i < session->n; i++) copy_out(sw, state, session->replicas[i], frame, length, now);
}

/* ---- in ---------------------------------------------------------------------------------------------------------- */

static void parse(ss_switch *sw, void *state, frame_ref frame) {
    ss_packet *p = state;
    p->frame = frame.bytes;
    p->stable = frame.bytes == sw->frame ? sw->stable : frame.bytes;
    sw->program->parse(sw, state, frame.bytes, frame.len);
}

static void clone_ingress(ss_switch *sw, void *state, uint32_t port, frame_ref frame, uint32_t length) {
    ss_packet *old = state;
    const ss_clone *session = ss_idmap_get(&sw->clones, old->clone_session);
    void *copy = session ? take_state(sw) : NULL;
    TRACE(trace_clone(sw, old->clone_session, session, false);)
    if (!copy) return;
    ss_packet *p = fresh(sw, copy);
    p->ingress_port = port; /* for parsers that look at it; then forgotten, as in BMv2 */
    TRACE(PASS(sw, SS_PASS_CLONE, p, sw->trace.pass, port, 0, length);)
    parse(sw, copy, frame);
    const uint8_t *payload = p->payload;
    uint32_t payload_len = p->payload_len;
    blank(p);
    p->payload = payload;
    p->payload_len = payload_len;
    p->frame = sw->frame;
    p->stable = sw->stable;
    p->instance_type = SS_INGRESS_CLONE;
    if (session->truncate_to) p->truncate_to = session->truncate_to;
    sw->program->reset_metadata(copy);
    if (old->clone_list != SS_NO_LIST) sw->program->keep_fields(copy, state, old->clone_list);
    clone_to(sw, session, copy, frame, length, true);
    give_state(sw, copy);
}

static void resubmit(ss_switch *sw, void *state, frame_ref frame, uint32_t length) {
    ss_packet *old = state;
    void *next = take_state(sw);
    if (!next) {
        lose(sw, NULL);
        return;
    }
    ss_packet *p = fresh(sw, next);
    if (old->resubmit_list != SS_NO_LIST) sw->program->keep_fields(next, state, old->resubmit_list);
    p->instance_type = SS_RESUBMIT;
    p->packet_length = length;
    ss_work work = {
        .state = next, .frame = frame.bytes, .frame_len = frame.len, .length = length, .counted = sw->counted};
    TRACE(work.parent = sw->trace.pass; NUMBERS(sw, SS_REC_RESUBMIT, old->resubmit_list, length);)
    if (!wait(sw, work)) lose(sw, next);
}

/* Copies N-1 times: the last replica has the packet itself. */
static void replicate(ss_switch *sw, void *state, uint32_t group_id, frame_ref frame, uint32_t length) {
    const ss_multicast *group = ss_idmap_get(&sw->multicasts, group_id);
    ss_packet *p = state;
    TRACE(NUMBERS(sw, SS_REC_MULTICAST, group_id, group != NULL, group ? group->n : 0);)
    if (!group || !group->n) {
        sw->stats.dropped_ingress++;
        TRACE(NUMBERS(sw, SS_REC_DROP, group ? SS_DROP_EMPTY_GROUP : SS_DROP_NO_GROUP, group_id);)
        return;
    }
    p->instance_type = SS_REPLICATION;
    p->truncate_to = SS_WHOLE;
    for (uint32_t i = 0; i + 1 < group->n; i++) copy_out(sw, state, group->replicas[i], frame, length, true);
    egress(sw, state, group->replicas[group->n - 1].port, group->replicas[group->n - 1].instance, frame, length);
}

/* One packet from its parser on; `state` holds its metadata and may be changed. */
static void ingress(ss_switch *sw, void *state, frame_ref frame, uint32_t length) {
    const ss_program *program = sw->program;
    ss_packet *p = state;
    uint32_t port = (uint32_t)p->ingress_port;
    TRACE(PASS(sw, SS_PASS_INGRESS, p, sw->trace.parent, port, 0, length);)
    parse(sw, state, frame);
    sw->stats.parser_errors += p->parser_error != 0;
    TRACE(NUMBERS(sw, SS_REC_PARSED, (uint32_t)p->parser_error, p->payload_len);)
    program->verify_checksum(sw, state);
    p->exited = false;
    p->length_change = 0;
    program->ingress(sw, state);
    if (unlikely(p->clone_asked)) clone_ingress(sw, state, port, frame, length);
    p->clone_asked = false;
    if (unlikely(p->resubmit_asked)) {
        resubmit(sw, state, frame, length);
        return;
    }
    length = (uint32_t)((int64_t)length + p->length_change);
    p->recirculate_asked = false;
    if (p->mcast_grp) {
        replicate(sw, state, (uint32_t)p->mcast_grp, frame, length);
        return;
    }
    TRACE(NUMBERS(sw, SS_REC_EGRESS_SPEC, (uint32_t)p->egress_spec, 0);)
    if (p->egress_spec == SS_DROP_PORT) {
        sw->stats.dropped_ingress++;
        TRACE(NUMBERS(sw, SS_REC_DROP, SS_DROP_INGRESS, 0);)
        return;
    }
    p->instance_type = SS_NORMAL;
    egress(sw, state, (uint32_t)p->egress_spec, (uint32_t)p->egress_rid, frame, length);
}

void ss_receive(ss_switch *sw, uint32_t port, const ss_arrival *in, uint64_t now_us) {
    const uint8_t *frame = in->bytes;
    uint32_t len = in->len;
    sw->now_us = now_us;
    sw->stats.received++;
    sw->stats.received_bytes += len;
    TRACE(ss_trace_packet(sw, port, frame, len);)
    if (unlikely(len > SS_MAX_FRAME || port > SS_DROP_PORT)) {
        sw->stats.dropped_oversize++;
        TRACE(NUMBERS(sw, SS_REC_DROP, port > SS_DROP_PORT ? SS_DROP_BAD_PORT : SS_DROP_TOO_LONG_IN,
                      port > SS_DROP_PORT ? port : len);
              ss_trace_done(sw);)
        return;
    }
    ss_packet *p = fresh(sw, sw->state);
    p->ingress_port = port;
    p->packet_length = len;
    p->ingress_global_timestamp = now_us & SS_MASK48;
    sw->ingress_port = port;
    sw->counted = len;
    sw->frame = frame;
    sw->stable = frame + in->stable;
    sw->frame_len = len;
    sw->n_known = 0;
    if (in->sum != SS_NO_SUM) ss_sum_is(sw, sw->stable, len - in->stable, in->sum);
    ingress(sw, sw->state, (frame_ref){frame, len}, len);
    bool ended = false;
    for (uint32_t passes = 0; unlikely(sw->work_head < sw->work_tail); passes++) {
        ss_work work = sw->work[sw->work_head++];
        if (!ended && (passes == SS_MAX_PASSES || ss_turn_full(sw))) {
            ended = true;
            lose(sw, NULL);
        }
        if (ended) {
            give_state(sw, work.state);
            continue;
        }
        frame_ref ref = {work.frame, work.frame_len};
        sw->counted = work.counted;
        TRACE(sw->trace.parent = work.parent;)
        if (work.egress)
            egress(sw, work.state, work.port, work.instance, ref, work.length);
        else
            ingress(sw, work.state, ref, work.length);
        give_state(sw, work.state);
    }
    sw->work_head = sw->work_tail = 0;
    ss_turn_packet(sw);
    TRACE(ss_trace_done(sw);)
}
