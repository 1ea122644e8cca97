/* SPDX-License-Identifier: Apache-2.0
 *
 * The switch process's event loop: ports, control channel and timers on one epoll.  It runs in one thread.  While
 * super-packets come, other threads may receive and send (stages.h).
 */
#ifndef SS_IO_H
#define SS_IO_H
#include "channel.h"
#include "records.h"
#include "stages.h"
#include "trace_file.h"

/* Requests to the process itself (protocol.h has those to the switch); the same framing. */
enum {
    /* -> ; ports begin to receive */
    OP_START = 100,
    /* -> u32 n, n * (u32 port, u8 up, u8 vnet, u8 join, u32 mtu, u32 waiting, u64 * (ss_port_stats fields, in order),
     *                u16 length, name) */
    OP_PORTS = 101,
    /* -> text: what the process may still do (confine.h) */
    OP_CONFINED = 102,
    /* u32 port (SS_NO_PORT: all), u8 what, u64 n -> ; SS_LIMIT_DEPTH: n frames may wait, SS_LIMIT_RATE: n leave a
     * second (0: no limit).  SS_NOT_FOUND: no such port */
    OP_LIMIT = 103,
    /* u32 port, name -> ; opens a port, which receives once OP_START was there */
    OP_ADD_PORT = 104,
    /* u32 port -> ; closes a port */
    OP_REMOVE_PORT = 105,
};

enum { SS_LIMIT_DEPTH = 0, SS_LIMIT_RATE = 1 };

typedef struct ss_io {
    ss_stages stages;
    ss_channel channel;
    ss_port_options port_options; /* of ports that are added later */
    bool started;                 /* OP_START was there */
    bool batch;                   /* SCHED_BATCH is set */
    uint32_t plain_turns;         /* since super-packets came last */
    bool overlap;                 /* stages overlap */
    int epoll, netlink, timer;
    uint64_t start_us;  /* monotonic; stages.now_us counts from it */
    uint64_t timer_due; /* what the timer is set to, as now_us; UINT64_MAX: off */
    uint32_t cpu_port;
    const char *confined; /* what ss_confine() has returned */
#ifdef SS_TRACE
    ss_trace_file trace; /* out is NULL where nothing is traced */
    bool trace_watched, trace_told;
#endif
} ss_io;

/* Sets up loop and channel; false with *why set where that fails. */
bool ss_io_open(ss_io *, int control_fd, const char **why);
bool ss_io_add_port(ss_io *, ss_port *);
/* Runs until the control channel ends; `execute` gets its requests, with this ss_io. */
void ss_io_run(ss_io *, ss_request_fn *execute);
void ss_io_close(ss_io *);

/* What requests.c needs of the loop. */
static inline ss_port *ss_io_port(const ss_io *io, uint32_t number) {
    return number < SS_MAX_PORTS ? io->stages.ports[number] : NULL;
}
void ss_io_tell(ss_io *, const char *format, ...) __attribute__((format(printf, 2, 3)));
void ss_io_tell_port(ss_io *, ss_port *); /* whether frames can pass, if the control plane was not told yet */
void ss_io_watch(ss_io *, int fd, uint32_t key, uint32_t events);

/* Callbacks for ss_options. */
uint8_t *ss_io_reserve(void *io, uint32_t port, uint32_t cap);
void ss_io_commit(void *io, uint32_t port, const ss_outgoing *);
uint32_t ss_io_depth(void *io, uint32_t port);
void ss_io_event(void *io, const ss_event *);

#ifdef SS_TRACE
/* Traces every frame to a file or pipe (trace_file.h); called after io->stages.sw was opened. */
bool ss_io_trace(ss_io *, int fd, uint16_t program, uint64_t limit, uint32_t keep);
uint32_t ss_io_refusal(void *io, uint32_t port);
#endif
#endif
