# SPDX-License-Identifier: Apache-2.0
"""Threads that help the event loop of a switch process."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from cbuild import cc
from softswitch.engine.linking import RUNTIME
from softswitch.p4runtime.process import Settings, SwitchProcess
from switch_support import needs
from switch_support.namespace import in_own_network, inside
from switch_support.ports import BOUND, IP, make_hosts, switch
from switch_support.switch import THREADS, probe_executable

_JOBS = """
#include "parallel.h"
#include <assert.h>
#include <stdlib.h>
static uint32_t done[300]; /* by pieces, without a lock: no two may be one piece */
static void piece(void *arg, uint32_t number) { done[number] += *(uint32_t *)arg; }
int main(int argc, char **argv) {
    unsigned helpers = (unsigned)atoi(argv[1]);
    assert(ss_parallel_start(helpers) == helpers);
    srand(20261201);
    for (unsigned job = 0; job < 20000; job++) {
        uint32_t n = (uint32_t)rand() % (job % 64 ? 6 : 300), by = (uint32_t)rand(), before[300];
        for (uint32_t i = 0; i < 300; i++) before[i] = done[i];
        ss_parallel(piece, &by, n);
        for (uint32_t i = 0; i < 300; i++) assert(done[i] == before[i] + (i < n ? by : 0));
    }
}
"""


@pytest.mark.parametrize("helpers", [0, 1, 3])
def test_each_piece_of_a_job_is_done_once_and_before_the_caller_goes_on(helpers: int) -> None:
    """Whatever thread does it, the caller sees all results, and the sanitizer no two threads at the same memory."""
    needs.require("thread-sanitizer")
    program = cc.build([_JOBS, RUNTIME / "parallel.c"], kind="exe", name="parallel", include=[RUNTIME],
                       flags=["-g1", "-O1", *THREADS], compiler=cc.Compiler(("gcc",), "sanitized"))

    done = subprocess.run([program, str(helpers)], capture_output=True, text=True, timeout=100)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@in_own_network
def test_ports_that_send_and_receive_side_by_side_change_no_byte() -> None:
    """TCP with super-packets, both ways at once, arrives whole, and the sanitizer sees no two threads at the same
    memory."""
    needs.require("thread-sanitizer")
    make_hosts()
    data = random.Random(5).randbytes(4 << 20)
    with inside("h2"):
        listener = socket.create_server((IP["h2"], 7000))
    listener.settimeout(BOUND)
    arrived: dict[str, bytes] = {}

    def exchange(host: str, connection: socket.socket) -> None:
        connection.settimeout(BOUND)
        reading = threading.Thread(target=lambda: arrived.setdefault(host, _all_of(connection)), daemon=True)
        reading.start()
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        reading.join(2 * BOUND)

    with switch(threads=4, flags=THREADS) as process:
        with inside("h1"):
            client = socket.create_connection((IP["h2"], 7000), timeout=BOUND)
        server = threading.Thread(target=lambda: exchange("h2", listener.accept()[0]), daemon=True)
        server.start()
        exchange("h1", client)
        server.join(2 * BOUND)
        assert all(port.super_packets_in > 0 and port.super_packets_out > 0 for port in process.ports())
        helpers = [int(task.name) for task in Path(f"/proc/{process.pid}/task").iterdir()]
        assert [os.sched_getscheduler(helper) for helper in helpers if helper != process.pid].count(os.SCHED_BATCH) == 3
    assert arrived == {"h1": data, "h2": data}
    assert process.death is None  # a report of the sanitizer ends it


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
