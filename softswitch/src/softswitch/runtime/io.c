/* SPDX-License-Identifier: Apache-2.0
 *
 * The event loop; see io.h.  One turn:
 *
 *   epoll_wait -> packets in and out (stages.c)
 *              -> requests of the control plane, which see what those packets did
 *              -> replies and events
 *
 * Without packets it sleeps without end: a timer runs only while an entry may fall idle or a full interface queue is to
 * be tried again.
 */
#define _GNU_SOURCE
#include "io.h"
#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>
#include "parallel.h"
#include "protocol.h"
#include "queue.h"
#include "trace.h"

#define PLAIN_TURNS 64u /* without a super-packet, after which there are short messages alone */
enum { KEY_CHANNEL = 1000, KEY_NETLINK, KEY_TIMER, KEY_TRACE }; /* epoll keys; below: port numbers */

static uint64_t monotonic_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

void ss_io_tell(ss_io *io, const char *format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    ss_channel_event(&io->channel, SS_EVENT_LOG, 0, io->stages.now_us, (const uint8_t *)text, (uint32_t)n);
}

/* ---- the pipeline's side ----------------------------------------------------------------------------------------- */

uint8_t *ss_io_reserve(void *arg, uint32_t number, uint32_t cap) {
    ss_port *p = ss_io_port(arg, number);
    return p ? ss_port_reserve(p, cap) : NULL;
}

void ss_io_commit(void *arg, uint32_t number, const ss_outgoing *made) {
    ss_io *io = arg;
    ss_port *p = ss_io_port(io, number);
    ss_port_commit(p, made);
    if (ss_port_crowded(p)) io->stages.crowded = true;
}

/* Frames of the batch at hand are not a queue: they leave at the end of the turn unless the link is behind. */
uint32_t ss_io_depth(void *arg, uint32_t number) {
    const ss_port *p = ss_io_port(arg, number);
    return p && p->tx != SS_TX_IDLE ? ss_port_waiting(p) : 0;
}

#ifdef SS_TRACE
uint32_t ss_io_refusal(void *arg, uint32_t number) {
    const ss_port *p = ss_io_port(arg, number);
    return !p ? SS_DROP_NO_PORT : p->up ? SS_DROP_QUEUE : SS_DROP_PORT_DOWN;
}
#endif

void ss_io_event(void *arg, const ss_event *e) {
    ss_io *io = arg;
    ss_channel_event(&io->channel, (uint8_t)e->kind, e->id, e->now_us, e->data, e->len);
}

/* ---- ports ------------------------------------------------------------------------------------------------------- */

void ss_io_watch(ss_io *io, int fd, uint32_t key, uint32_t events) {
    struct epoll_event e = {.events = events, .data.u32 = key};
    if (epoll_ctl(io->epoll, EPOLL_CTL_MOD, fd, &e) && errno == ENOENT) epoll_ctl(io->epoll, EPOLL_CTL_ADD, fd, &e);
}

void ss_io_tell_port(ss_io *io, ss_port *p) {
    uint8_t up = p->up;
    if (p->reported && p->reported_up == p->up) return;
    p->reported = true, p->reported_up = p->up;
    ss_channel_event(&io->channel, SS_EVENT_PORT, p->number, io->stages.now_us, &up, 1);
}

static void watch_port(ss_io *io, ss_port *p) {
    p->watched = p->tx == SS_TX_WAIT_WRITABLE;
    ss_io_watch(io, p->fd, p->number, p->watched ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

static void refresh(ss_io *io, ss_port *p) {
    bool changed = ss_port_refresh(p);
    ss_io_tell_port(io, p);
    if (p->fd >= 0 && p->started) watch_port(io, p); /* maybe a new socket with the number of the old one */
    if (!changed) return;
    ss_io_tell(io, "port %u (%s) is %s", p->number, p->name, p->fd < 0 ? "gone" : p->up ? "up" : "down");
}

/* Has epoll tell of ports that are behind when the kernel has room. */
static void watch_ports(ss_io *io) {
    for (uint32_t i = 0; i < io->stages.n_ports; i++) {
        ss_port *p = io->stages.ports[io->stages.numbers[i]];
        if (p->fd >= 0 && p->watched != (p->tx == SS_TX_WAIT_WRITABLE)) watch_port(io, p);
    }
}

/* While super-packets come this is a batch process, which does not interrupt who sends to it: it works on what has
 * piled up, with fewer turns.  Single packets are short messages, which somebody waits for: then it is one like others.
 */
static void choose_policy(ss_io *io) {
    bool bulky = false, limited = false; /* limited: what leaves a port depends on the clock and on what left before */
    for (uint32_t i = 0; i < io->stages.n_ports; i++) {
        bulky |= io->stages.ports[io->stages.numbers[i]]->bulky;
        limited |= io->stages.ports[io->stages.numbers[i]]->gap_ns > 0;
    }
    if (bulky)
        io->plain_turns = 0;
    else if (io->plain_turns < PLAIN_TURNS)
        io->plain_turns++;
    bool batch = io->plain_turns < PLAIN_TURNS;
    io->overlap = batch && !limited && ss_parallel_helpers();
    if (batch == io->batch) return;
    io->batch = batch;
    sched_setscheduler(0, batch ? SCHED_BATCH : SCHED_OTHER, &(struct sched_param){0});
}

/* ---- timers, links ----------------------------------------------------------------------------------------------- */

static void set_timer(ss_io *io) {
    uint64_t due = ss_tick(io->stages.sw, io->stages.now_us);
    for (uint32_t i = 0; i < io->stages.n_ports; i++) {
        const ss_port *p = io->stages.ports[io->stages.numbers[i]];
        if (p->tx == SS_TX_WAIT_TIMER && due > p->retry_us) due = p->retry_us;
        if (p->tx == SS_TX_WAIT_RATE && ss_port_waiting(p) && due > (p->next_ns + 999) / 1000)
            due = (p->next_ns + 999) / 1000;
    }
    if (due == io->timer_due) return;
    io->timer_due = due;
    uint64_t at = due == UINT64_MAX ? 0 : io->start_us + due; /* 0 disarms */
    struct itimerspec when = {.it_value = {.tv_sec = (time_t)(at / 1000000u), .tv_nsec = (long)(at % 1000000u) * 1000}};
    timerfd_settime(io->timer, TFD_TIMER_ABSTIME, &when, NULL);
}

static void links_changed(ss_io *io) {
    uint8_t news[8192];
    while (recv(io->netlink, news, sizeof news, MSG_DONTWAIT) > 0) {
    } /* what changed does not matter: all are asked */
    ss_stages_drain(&io->stages); /* no other thread uses a socket */
    for (uint32_t i = 0; i < io->stages.n_ports; i++) refresh(io, io->stages.ports[io->stages.numbers[i]]);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

bool ss_io_open(ss_io *io, int control_fd, const char **why) {
    memset(io, 0, sizeof *io);
    io->start_us = monotonic_us();
    io->timer_due = UINT64_MAX;
    io->plain_turns = PLAIN_TURNS;
    *why = "out of memory";
    if (!ss_channel_open(&io->channel, control_fd)) return false;
    *why = "cannot set up the event loop";
    io->epoll = epoll_create1(EPOLL_CLOEXEC);
    io->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    io->netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (io->epoll < 0 || io->timer < 0 || io->netlink < 0) return false;
    struct sockaddr_nl links = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK};
    if (bind(io->netlink, (struct sockaddr *)&links, sizeof links)) return false;
    ss_io_watch(io, io->channel.fd, KEY_CHANNEL, EPOLLIN);
    ss_io_watch(io, io->netlink, KEY_NETLINK, EPOLLIN);
    ss_io_watch(io, io->timer, KEY_TIMER, EPOLLIN);
    return true;
}

bool ss_io_add_port(ss_io *io, ss_port *p) {
    if (p->number >= SS_MAX_PORTS || io->stages.ports[p->number]) return false;
    io->stages.ports[p->number] = p;
    p->now_us = &io->stages.now_us;
    io->stages.numbers[io->stages.n_ports++] = p->number;
    return true;
}

#ifdef SS_TRACE
bool ss_io_trace(ss_io *io, int fd, uint16_t program, uint64_t limit, uint32_t keep) {
    return ss_trace_file_open(&io->trace, fd, program, limit) &&
           ss_trace_open(io->stages.sw, ss_trace_file_put, &io->trace, keep);
}

/* What waits for a slow reader is given a second. */
static void close_trace(ss_io *io) {
    if (!io->trace.out) return;
    uint64_t until = monotonic_us() + 1000000u;
    ss_trace_file_end(&io->trace);
    for (uint64_t now; io->trace.waits && (now = monotonic_us()) < until; ss_trace_file_flush(&io->trace)) {
        struct epoll_event event;
        ss_io_watch(io, io->trace.fd, KEY_TRACE, EPOLLOUT | EPOLLONESHOT);
        epoll_wait(io->epoll, &event, 1, (int)((until - now) / 1000 + 1));
    }
    ss_trace_file_close(&io->trace);
}

/* A regular file takes everything, and epoll does not take it. */
static void flush_trace(ss_io *io) {
    if (!io->trace.out) return;
    if (!io->trace.waits) ss_trace_file_flush(&io->trace);
    if (io->trace.error && !io->trace_told)
        ss_io_tell(io, "the packet trace ends here: %s", strerror(io->trace.error)), io->trace_told = true;
    if (io->trace.waits == io->trace_watched) return;
    io->trace_watched = io->trace.waits;
    if (io->trace_watched)
        ss_io_watch(io, io->trace.fd, KEY_TRACE, EPOLLOUT);
    else
        epoll_ctl(io->epoll, EPOLL_CTL_DEL, io->trace.fd, NULL);
}
#endif

void ss_io_close(ss_io *io) {
    for (uint32_t i = 0; i < io->stages.n_ports; i++) ss_port_close(io->stages.ports[io->stages.numbers[i]]);
    ss_channel_close(&io->channel);
    TRACE(close_trace(io);)
    close(io->epoll), close(io->netlink), close(io->timer);
}

static uint32_t channel_interest(const ss_io *io) {
    return (ss_channel_hungry(&io->channel) ? EPOLLIN : 0u) | (ss_channel_unsent(&io->channel) ? EPOLLOUT : 0u);
}

void ss_io_run(ss_io *io, ss_request_fn *execute) {
    uint32_t interest = EPOLLIN;
    while (!io->channel.ended) {
        struct epoll_event events[64];
        ss_port *ready[64];
        uint32_t n_ready = 0;
        bool asked = false;
        set_timer(io);
        int n = epoll_wait(io->epoll, events, 64, ss_stages_busy(&io->stages) ? 0 : -1);
        io->stages.now_us = monotonic_us() - io->start_us;
        for (int i = 0; i < n; i++) {
            uint32_t key = events[i].data.u32;
            if (key == KEY_CHANNEL) {
                asked = events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR);
            } else if (key == KEY_NETLINK)
                links_changed(io);
#ifdef SS_TRACE
            else if (key == KEY_TRACE)
                ss_trace_file_flush(&io->trace);
#endif
            else if (key == KEY_TIMER) {
                uint64_t expirations;
                if (read(io->timer, &expirations, sizeof expirations) > 0) io->timer_due = UINT64_MAX;
            } else {
                ss_port *p = ss_io_port(io, key);
                p->writable |= (events[i].events & EPOLLOUT) != 0;
                if (events[i].events & (EPOLLIN | EPOLLERR)) ready[n_ready++] = p;
            }
        }
        if (io->overlap && !asked)
            ss_stages_overlap(&io->stages, ready, n_ready);
        else
            ss_stages_turn(&io->stages, ready, n_ready);
        if (asked) ss_channel_read(&io->channel, execute, io);
        ss_channel_write(&io->channel);
        ss_channel_report_lost(&io->channel, io->stages.now_us);
        ss_channel_write(&io->channel);
        TRACE(flush_trace(io);)
        watch_ports(io);
        choose_policy(io);
        uint32_t now = channel_interest(io);
        if (now != interest) ss_io_watch(io, io->channel.fd, KEY_CHANNEL, interest = now);
    }
    ss_stages_drain(&io->stages); /* no other thread uses a port */
}
