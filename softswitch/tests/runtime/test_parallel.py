# SPDX-License-Identifier: Apache-2.0
"""Threads that help the event loop of a switch process."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from cbuild import cc
from softswitch.engine.linking import RUNTIME
from softswitch.p4runtime.process import Settings, SwitchProcess
from switch_support import needs
from switch_support.insides import over_socket
from switch_support.namespace import in_own_network, inside, sh
from switch_support.ports import BOUND, IP, SWITCH_END, make_hosts, switch, udp, wait_for
from switch_support.switch import THREADS, probe_executable

_RCVBUFFORCE = 33
_JOBS = """
#include "parallel.h"
#include <assert.h>
#include <stdlib.h>
static uint32_t done[SS_JOBS][300]; /* by pieces, without a lock: no two may be one piece */
typedef struct {
    uint32_t *done, by;
} work;
static void piece(void *arg, uint32_t number) {
    work *w = arg;
    w->done[number] += w->by;
}
int main(int argc, char **argv) {
    unsigned helpers = (unsigned)atoi(argv[1]);
    assert(ss_parallel_start(helpers) == helpers && ss_parallel_helpers() == helpers);
    srand(20261201);
    static uint32_t before[SS_JOBS][300], n[SS_JOBS];
    static work works[SS_JOBS];
    for (unsigned turn = 0; turn < 20000; turn++) {
        ss_job first = rand() % SS_JOBS, ends[] = {first, !first};
        for (unsigned i = 0; i < 2; i++) { /* one may be under way since the turn before */
            ss_job j = ends[i];
            if (works[j].done) {
                ss_parallel_end(j);
                for (uint32_t k = 0; k < 300; k++) assert(done[j][k] == before[j][k] + (k < n[j] ? works[j].by : 0));
            }
            n[j] = (uint32_t)rand() % (turn % 64 ? 6 : 300);
            for (uint32_t k = 0; k < 300; k++) before[j][k] = done[j][k];
            works[j] = (work){done[j], (uint32_t)rand()};
            ss_parallel_begin(j, piece, &works[j], n[j]);
        }
    }
    for (ss_job j = 0; j < SS_JOBS; j++) ss_parallel_end(j);
}
"""


@pytest.mark.parametrize("helpers", [0, 1, 3])
def test_each_piece_of_two_jobs_at_a_time_is_done_once_and_before_the_caller_goes_on(helpers: int) -> None:
    """Whatever thread does it, the caller sees all results, and the sanitizer no two threads at the same memory."""
    needs.require("thread-sanitizer")
    program = cc.build([_JOBS, RUNTIME / "parallel.c"], kind="exe", name="parallel", include=[RUNTIME],
                       flags=["-g1", "-O1", *THREADS], compiler=cc.Compiler(("gcc",), "sanitized"))

    done = subprocess.run([program, str(helpers)], capture_output=True, text=True, timeout=100)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@in_own_network
@pytest.mark.parametrize("flags", [(), THREADS], ids=["confined", "sanitized"])
def test_stages_that_overlap_change_no_byte(flags: tuple[str, ...]) -> None:
    """TCP with super-packets, both ways at once, arrives whole while the control plane asks.  Helpers have done a part
    of it, make no forbidden system call, and the sanitizer sees no two threads at the same memory."""
    if flags:
        needs.require("thread-sanitizer")
    make_hosts()
    data = random.Random(5).randbytes(4 << 20)
    with inside("h2"):
        listener = socket.create_server((IP["h2"], 7000))
    listener.settimeout(BOUND)

    def exchange(host: str, connection: socket.socket, arrived: dict[str, bytes]) -> None:
        connection.settimeout(BOUND)
        reading = threading.Thread(target=lambda: arrived.setdefault(host, _all_of(connection)), daemon=True)
        reading.start()
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        reading.join(2 * BOUND)

    with switch(threads=4, flags=flags) as process:
        helpers = [task for task in Path(f"/proc/{process.pid}/task").iterdir() if task.name != str(process.pid)]
        assert [os.sched_getscheduler(int(helper.name)) for helper in helpers].count(os.SCHED_BATCH) == 3
        for _ in range(100):  # on a busy machine helpers come late, and the event loop does most of it
            with inside("h1"):
                client = socket.create_connection((IP["h2"], 7000), timeout=BOUND)
            arrived: dict[str, bytes] = {}
            both = [threading.Thread(target=exchange, args=("h2", listener.accept()[0], arrived), daemon=True),
                    threading.Thread(target=exchange, args=("h1", client, arrived), daemon=True)]
            for one in both:
                one.start()
            while any(one.join(0.01) or one.is_alive() for one in both):
                process.ports()
            assert arrived == {"h1": data, "h2": data}
            busy = sum(int((helper / "schedstat").read_text().split()[0]) for helper in helpers)
            if busy > 5_000_000:
                break
        else:
            pytest.fail(f"helpers took {busy} ns of a processor, as if they had only started")
        assert all(port.super_packets_in > 0 and port.super_packets_out > 0 for port in process.ports())
    assert process.death is None  # a report of the sanitizer ends it


@pytest.mark.slow
@in_own_network
def test_a_switch_ends_well_while_stages_overlap() -> None:
    """The control plane goes away while packets and events come: no thread uses a port that is closed."""
    needs.require("thread-sanitizer")
    make_hosts()
    sh("ip netns exec h1 ip neigh add 10.0.0.5 lladdr 00:00:00:05:00:00 dev eth0 nud permanent")
    sender, ended = udp("h1", segment=1058), threading.Event()

    def pump() -> None:
        while not ended.is_set():
            for to, frames in (IP["h2"], 40), ("10.0.0.5", 8):  # the other host; the control plane
                with suppress(OSError):  # what the kernel takes
                    sender.sendto(bytes(frames * 1058), (to, 7000))

    pumping = threading.Thread(target=pump, daemon=True)
    pumping.start()
    told, deaths = threading.Semaphore(0), threading.Semaphore(0)
    for _ in range(6):
        with switch(threads=3, cpu_port=5, flags=THREADS, on_event=lambda _: told.release(),
                    on_death=lambda _: deaths.release()) as process:
            for _ in range(500):
                assert told.acquire(timeout=BOUND)
            over_socket(process.engine).sock.shutdown(socket.SHUT_RDWR)
            assert deaths.acquire(timeout=BOUND)
        while told.acquire(blocking=False):
            pass
        assert "exit status 0" in str(process.death)
    ended.set()
    pumping.join(BOUND)


@pytest.mark.slow
@in_own_network
@pytest.mark.parametrize("queue", [8192, 64])
def test_frames_that_wait_while_stages_overlap_keep_their_order_and_are_counted(queue: int) -> None:
    """Links that are behind both ways: all frames leave in order, or only those that the queue has no room for are
    missing; and the sanitizer sees no two threads at the same memory."""
    needs.require("thread-sanitizer")
    make_hosts()
    for end in SWITCH_END.values():
        sh(f"tc qdisc add dev {end} root tbf rate 400mbit burst 64k limit 1m")
    draw = random.Random(6)
    supers = {host: [draw.randbytes(40 * 1058) for _ in range(100)] for host in IP}
    sockets = {host: udp(host, port=7000, segment=1058) for host in IP}
    for sock in sockets.values():
        sock.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, 32 << 20)
    with switch(threads=3, queue=queue, flags=THREADS) as process:
        for turn in range(100):
            for host, other in ("h1", "h2"), ("h2", "h1"):
                sockets[host].sendto(supers[host][turn], (IP[other], 7000))
        wait_for(lambda: all(p.received == 4000 and not p.waiting for p in process.ports()))
        ports = process.ports()
    assert sum(p.sent + p.dropped_full for p in ports) == 8000
    assert queue == 64 or not any(p.dropped_full for p in ports)
    for (host, other), port in zip((("h2", "h1"), ("h1", "h2")), ports, strict=True):
        whole = b"".join(supers[host])
        sent = [whole[at:at + 1058] for at in range(0, len(whole), 1058)]
        came = [sockets[other].recv(1 << 16) for _ in range(port.sent)]
        numbers = {payload: number for number, payload in enumerate(sent)}
        order = [numbers[payload] for payload in came]
        assert order == sorted(order)
    assert process.death is None


def _all_of(connection: socket.socket) -> bytes:
    got = bytearray()
    while part := connection.recv(1 << 16):
        got.extend(part)
    return bytes(got)


def test_all_threads_are_confined() -> None:
    """Helpers have no more rights than the event loop, and there are as many as were asked for."""
    process = SwitchProcess(probe_executable(), Settings(threads=4))
    try:
        process.start()
        threads = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/status")]
        assert len(threads) == 4
        rights = {tuple(line for line in text.splitlines() if line.startswith(("Cap", "NoNewPrivs", "Seccomp:")))
                  for text in threads}
        assert len(rights) == 1
        if "no seccomp here" not in process.confinement():
            assert "Seccomp:\t2" in rights.pop()
    finally:
        process.close()
