/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests to the process itself (io.h): its ports, their limits, how it is confined.  All others go to the switch.
 */
#include "requests.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include "io.h"
#include "protocol.h"
#include "queue.h"
#include "transmit.h"

static size_t reply_with(uint8_t *reply, uint16_t status, size_t body) {
    uint32_t size = (uint32_t)body + 2;
    memcpy(reply, &size, 4);
    memcpy(reply + 4, &status, 2);
    return 6 + body;
}

static size_t refuse_with(uint8_t *reply, size_t cap, uint16_t status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static size_t refuse_with(uint8_t *reply, size_t cap, uint16_t status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf((char *)reply + 6, cap - 6, format, args);
    va_end(args);
    return reply_with(reply, status, (size_t)n);
}

static size_t limit_queue(ss_io *io, const uint8_t *body, size_t n, uint8_t *reply, size_t cap) {
    uint32_t number;
    uint64_t value;
    if (n != 13) return refuse_with(reply, cap, SS_INVALID_ARGUMENT, "expected a port and a limit");
    memcpy(&number, body, 4), memcpy(&value, body + 5, 8);
    if (number != SS_NO_PORT && !ss_io_port(io, number))
        return refuse_with(reply, cap, SS_NOT_FOUND, "there is no port %u", number);
    for (uint32_t i = 0; i < io->stages.n_ports; i++) {
        ss_port *p = io->stages.ports[io->stages.numbers[i]];
        if (number != SS_NO_PORT && p->number != number) continue;
        if (body[4] == SS_LIMIT_RATE)
            ss_port_set_rate(p, value);
        else if (value <= io->port_options.queue)
            p->limit = (uint32_t)value;
        else
            return refuse_with(reply, cap, SS_OUT_OF_RANGE, "a queue of %llu frames: there is room for %u (--queue)",
                               (unsigned long long)value, io->port_options.queue);
    }
    return reply_with(reply, SS_OK, 0);
}

/* One whose interface has vanished receives when it comes back. */
static void start_port(ss_io *io, ss_port *p) {
    const char *why;
    if (!ss_port_start(p, &why)) ss_io_tell(io, "port %u: cannot receive from %s: %s", p->number, p->name, why);
    p->watched = false;
    if (p->fd >= 0) ss_io_watch(io, p->fd, p->number, EPOLLIN);
}

static size_t add_port(ss_io *io, const uint8_t *body, size_t n, uint8_t *reply, size_t cap) {
    uint32_t number;
    char name[IFNAMSIZ] = {0};
    const char *why;
    if (n <= 4 || n - 4 >= sizeof name) return refuse_with(reply, cap, SS_INVALID_ARGUMENT, "no interface's name");
    memcpy(&number, body, 4), memcpy(name, body + 4, n - 4);
    if (number >= SS_MAX_PORTS) return refuse_with(reply, cap, SS_INVALID_ARGUMENT, "port %u is above 510", number);
    if (io->stages.ports[number] || number == io->cpu_port)
        return refuse_with(reply, cap, SS_ALREADY_EXISTS, "port %u is there already", number);
    if (io->port_options.pcap) /* files cannot be made any more (confine.h) */
        return refuse_with(reply, cap, SS_UNIMPLEMENTED, "port %u: a switch that captures cannot get ports", number);
    ss_port *p = ss_port_open(number, name, &io->port_options, &why);
    if (!p) return refuse_with(reply, cap, SS_NOT_FOUND, "port %u: %s: %s", number, name, why);
    ss_io_add_port(io, p);
    if (io->started) start_port(io, p);
    ss_io_tell_port(io, p);
    return reply_with(reply, SS_OK, 0);
}

static size_t remove_port(ss_io *io, const uint8_t *body, size_t n, uint8_t *reply, size_t cap) {
    uint32_t number = SS_NO_PORT;
    if (n == 4) memcpy(&number, body, 4);
    ss_port *p = ss_io_port(io, number);
    if (!p) return refuse_with(reply, cap, SS_NOT_FOUND, "there is no port %u", number);
    for (uint32_t i = 0; i < io->stages.n_ports; i++)
        if (io->stages.numbers[i] == number) io->stages.numbers[i--] = io->stages.numbers[--io->stages.n_ports];
    io->stages.ports[number] = NULL;
    ss_port_close(p);
    return reply_with(reply, SS_OK, 0);
}

static size_t start_ports(ss_io *io, uint8_t *reply, size_t cap) {
    io->started = true;
    for (uint32_t i = 0; i < io->stages.n_ports; i++) {
        ss_port *p = io->stages.ports[io->stages.numbers[i]];
        start_port(io, p);
        ss_io_tell_port(io, p);
    }
    return reply_with(reply, SS_OK, 0);
}

static size_t describe_ports(ss_io *io, uint8_t *reply, size_t cap) {
    uint8_t *at = reply + 6;
    memcpy(at, &io->stages.n_ports, 4), at += 4;
    for (uint32_t i = 0; i < io->stages.n_ports; i++) {
        ss_port *p = io->stages.ports[io->stages.numbers[i]];
        uint16_t length = (uint16_t)strlen(p->name);
        if ((size_t)(reply + cap - at) < 15 + sizeof p->stats + 2 + length) break;
        ss_port_count_missed(p);
        uint32_t waiting = ss_port_waiting(p);
        memcpy(at, &p->number, 4), at += 4;
        *at++ = p->up, *at++ = p->vnet, *at++ = p->join;
        memcpy(at, &p->mtu, 4), at += 4;
        memcpy(at, &waiting, 4), at += 4;
        memcpy(at, &p->stats, sizeof p->stats), at += sizeof p->stats;
        memcpy(at, &length, 2), at += 2;
        memcpy(at, p->name, length), at += length;
    }
    return reply_with(reply, SS_OK, (size_t)(at - reply) - 6);
}

size_t ss_io_execute(void *arg, const uint8_t *batch, size_t n, uint8_t *reply, size_t cap) {
    ss_io *io = arg;
    uint16_t op = 0;
    if (n >= 6) memcpy(&op, batch + 4, 2);
    if (op == OP_START) return start_ports(io, reply, cap);
    if (op == OP_PORTS) return describe_ports(io, reply, cap);
    if (op == OP_LIMIT) return limit_queue(io, batch + 6, n - 6, reply, cap);
    if (op == OP_ADD_PORT) return add_port(io, batch + 6, n - 6, reply, cap);
    if (op == OP_REMOVE_PORT) return remove_port(io, batch + 6, n - 6, reply, cap);
    if (op == OP_CONFINED)
        return reply_with(reply, SS_OK, (size_t)snprintf((char *)reply + 6, cap - 6, "%s", io->confined));
    if (op == OP_PACKET_OUT)
        io->stages.last_port = io->cpu_port, io->stages.last_len = (uint32_t)n - 6, io->stages.last_frame = batch + 6;
    size_t length = ss_control(io->stages.sw, io->stages.now_us, batch, n, reply, cap);
    io->stages.last_frame = NULL;
    ss_stages_settle(&io->stages);
    return length;
}
